//! Arbitrary messages that the codec accepts, from members and from other nodes. A replica refuses
//! or accepts them, and never panics. These tests do not judge whether a message is true, because
//! Raft trusts its members. But one frame of a broken peer must not stop a node.

use std::panic::{AssertUnwindSafe, catch_unwind};

use epicepoch_core::state::State;
use epicepoch_wire::raft_message::{
    Configuration, EntryKind, LogEntry, MessageKind, RaftMessage, Snapshot,
};
use epicepoch_wire::{LogIndex, NodeId, Term};
use fastrand::Rng;

use crate::support::bench::{Bench, genesis, message};
use crate::support::disk::Disk;

fn garbage(random: &mut Rng, near: &Bench) -> RaftMessage {
    let status = near.status();
    let kinds = MessageKind::ALL;
    let kind = kinds[random.usize(0..kinds.len())];
    let around =
        |random: &mut Rng, at: u64| (at + random.u64(0..4)).saturating_sub(random.u64(0..4));
    let term = around(random, status.term.0).max(1);
    let at = if random.bool() { status.last } else { status.committed };
    let index = around(random, at.0);
    let entry = |random: &mut Rng, index: u64| LogEntry {
        kind: if random.u8(0..5) == 0 { EntryKind::Membership } else { EntryKind::Normal },
        term: Term(random.u64(term.saturating_sub(2)..=term)),
        index: LogIndex(index),
        data: vec![],
        context: if random.u8(0..5) == 0 { vec![1, 2, 3] } else { vec![] },
    };
    let count = if kind == MessageKind::Append { random.u64(0..4) } else { 0 };
    let entries = (index + 1..=index + count).map(|at| entry(random, at)).collect();
    let ids = |random: &mut Rng| (1..6).filter(|_| random.bool()).map(NodeId).collect::<Vec<_>>();
    let snapshot = (kind == MessageKind::Snapshot).then(|| Snapshot {
        index: LogIndex(index),
        term: Term(around(random, term)),
        configuration: Configuration {
            voters: if random.bool() { vec![NodeId(1), NodeId(2), NodeId(3)] } else { ids(random) },
            learners: if random.bool() { vec![] } else { ids(random) },
            voters_outgoing: if random.bool() { vec![] } else { ids(random) },
            learners_next: if random.u8(0..5) > 0 { vec![] } else { ids(random) },
            auto_leave: random.u8(0..5) == 0,
        },
        data: State::new(&genesis(&[1, 2, 3, 4])).encode(),
    });
    RaftMessage {
        log_term: Term(around(random, term)),
        index: LogIndex(index),
        commit: LogIndex(around(random, index)),
        commit_term: Term(around(random, term)),
        reject: random.bool(),
        reject_hint: LogIndex(around(random, index)),
        entries,
        snapshot,
        ..message(kind, term)
    }
}

fn run(seed: u64) {
    let mut random = Rng::with_seed(seed);
    let voters: &[u64] = [&[1][..], &[1, 2], &[1, 2, 3], &[2, 3, 4]][random.usize(0..4)];
    let mut disk = Disk::genesis(&genesis(voters));
    let is_joining = random.u8(0..6) == 0;
    if is_joining {
        disk = Disk::joining(&genesis(voters));
    } else if random.u8(0..50) == 0 {
        disk.fill(1_022);
    }
    let mut bench = Bench::of(disk);
    if random.bool() && voters.contains(&1) && !is_joining {
        bench.elect(voters);
    }
    for _ in 0..40 {
        match random.u8(0..10) {
            0 | 1 => bench.ticks(random.usize(1..8)),
            2 | 3 => {
                bench.persist_one();
            }
            4 => {
                let status = bench.status();
                if status.leader == Some(NodeId(1)) {
                    bench.persist();
                    let peer = random.u64(2..5);
                    let ack = RaftMessage {
                        index: status.last,
                        ..message(MessageKind::AppendResponse, status.term.0)
                    };
                    let _ = bench.take(peer, &ack);
                }
            }
            _ => {
                let message = garbage(&mut random, &bench);
                let mut bytes = vec![];
                message.encode(&mut bytes);
                if RaftMessage::decode(&bytes).is_ok() {
                    let from = random.u64(2..6);
                    let _ = bench.take(from, &message);
                }
            }
        }
    }
}

/// Number of seeds. All of them take about a second in a development build.
const SEEDS: u64 = 40_000;

#[test]
fn no_message_that_the_codec_accepts_makes_a_replica_panic() {
    let mut panics = std::collections::BTreeMap::new();
    for seed in 0..SEEDS {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            let kind: String =
                text.unwrap_or_default().chars().filter(|c| !c.is_ascii_digit()).collect();
            panics.entry(kind).or_insert((seed, 0)).1 += 1;
        }
    }
    assert!(panics.is_empty(), "first seed and count of each: {panics:#?}");
}
