//! The format rises when all members can read the next one. A node is sent only entries that it can
//! read, and an unreadable entry is never skipped (S15).

use epicepoch_core::replica::{Fatal, MessageError, Replica, ReplicaConfig, RestoreError};
use epicepoch_core::state::{Command, FORMATS, State};
use epicepoch_wire::peer_hello::Formats;
use epicepoch_wire::raft_message::{LogEntry, MessageKind, RaftMessage, Snapshot};
use epicepoch_wire::{DecodeError, LogIndex, NodeId, Term};

use crate::support::ELECTION_TICKS;
use crate::support::bench::{Bench, append, genesis, message};
use crate::support::disk::Disk;

const NEXT: u32 = FORMATS.oldest + 1;

fn says(bench: &mut Bench, node: u64, newest: u32) {
    bench.replica.handle_formats(NodeId(node), Formats { oldest: FORMATS.oldest, newest });
}

/// Node 1 as the leader of `voters`, all of which it hears. Node 1 reads formats up to the second.
fn led(voters: &[u64]) -> Bench {
    let mut bench = Bench::reading(Disk::genesis(&genesis(voters)), NEXT);
    bench.elect(&voters[1..]);
    bench.persist();
    for other in &voters[1..] {
        bench.ack_all(*other);
    }
    bench
}

fn raises(bench: &Bench) -> usize {
    let entries = &bench.durable().entries;
    let raise = |entry: &&LogEntry| matches!(Command::decode(&entry.data), Ok(Command::Raise(_)));
    entries.iter().filter(raise).count()
}

/// An append message with one entry that contains this command.
fn carrying(data: Vec<u8>) -> RaftMessage {
    let mut message = append(2, (1, 1), 1, 2);
    message.entries[0].data = data;
    message
}

#[test]
fn the_format_is_raised_once_every_member_has_said_that_it_reads_the_next_and_is_heard() {
    let mut bench = led(&[1, 2, 3]);
    bench.beats(ELECTION_TICKS, &[2, 3]);
    assert_eq!(bench.replica.not_reading(NEXT), [NodeId(2), NodeId(3)], "nobody has said anything");
    says(&mut bench, 2, NEXT);
    says(&mut bench, 3, FORMATS.oldest);
    bench.beats(ELECTION_TICKS, &[2, 3]);
    bench.persist();
    assert_eq!((bench.replica.not_reading(NEXT), raises(&bench)), (vec![NodeId(3)], 0));
    // A silent member may come back with an older version, so its last hello does not count.
    bench.beats(2 * ELECTION_TICKS, &[2]);
    says(&mut bench, 3, NEXT + 1);
    bench.beats(2 * ELECTION_TICKS, &[2]);
    bench.persist();
    assert_eq!((bench.replica.not_reading(NEXT), raises(&bench)), (vec![NodeId(3)], 0));
    assert_eq!(bench.shared.published().format, FORMATS.oldest);
    bench.beats(2, &[2, 3]);
    assert_eq!(
        (bench.replica.state().format, bench.shared.published().format),
        (FORMATS.oldest, NEXT),
        "nobody has acknowledged it, and who is sent it must read it already"
    );
    bench.ack_all(2);
    assert_eq!((bench.replica.state().format, raises(&bench)), (NEXT, 1));
    bench.beats(2 * ELECTION_TICKS, &[2, 3]);
    bench.persist();
    assert_eq!(raises(&bench), 1, "it reads no later one itself");
}

#[test]
fn the_record_on_disk_is_of_the_format_that_was_raised_with_the_next_write() {
    let mut bench = led(&[1, 2]);
    says(&mut bench, 2, NEXT);
    bench.beats(ELECTION_TICKS, &[2]);
    bench.persist();
    bench.ack_all(2);
    assert_eq!(bench.replica.state().format, NEXT);
    let recorded = |bench: &Bench| State::decode(&bench.durable().record.data).expect("a state");
    assert_eq!(recorded(&bench).format, FORMATS.oldest, "nothing was written since");
    let entries = bench.durable().entries.len();
    while bench.durable().entries.len() == entries {
        bench.beats(1, &[2]);
        bench.persist();
    }
    assert_eq!(recorded(&bench).format, NEXT, "an older version ends at it");
    // The record was written once because of the raise. The next writes do not contain it again.
    let at = bench.durable().record.index;
    for _ in 0..3 {
        bench.ack_all(2);
        let entries = bench.durable().entries.len();
        while bench.durable().entries.len() == entries {
            bench.beats(1, &[2]);
            bench.persist();
        }
    }
    assert!(bench.status().applied > at);
    assert_eq!(bench.durable().record.index, at);
}

#[test]
fn a_leader_that_owns_nothing_yet_raises_no_format() {
    let mut bench = Bench::reading(Disk::genesis(&genesis(&[1, 2])), NEXT);
    bench.elect(&[2]);
    says(&mut bench, 2, NEXT);
    let beat = |bench: &mut Bench| {
        bench.beats(1, &[2]);
        bench.persist();
    };
    for _ in 0..2 * ELECTION_TICKS {
        beat(&mut bench);
    }
    assert!(bench.is_leader() && bench.shared.published().grant.is_none());
    assert_eq!((bench.replica.not_reading(NEXT), raises(&bench)), (vec![], 0));
    bench.ack_all(2);
    beat(&mut bench);
    assert_eq!(raises(&bench), 1);
}

#[test]
fn an_unacknowledged_raise_is_proposed_again_after_an_election_timeout() {
    let mut bench = led(&[1, 2]);
    says(&mut bench, 2, NEXT);
    let raises_of: Vec<usize> = (0..ELECTION_TICKS + 2)
        .map(|_| {
            bench.beats(1, &[2]);
            bench.persist();
            raises(&bench)
        })
        .collect();
    let (once, again) = raises_of.split_at(ELECTION_TICKS + 1);
    assert_eq!((once, again), ([1; ELECTION_TICKS + 1].as_slice(), [2].as_slice()));
}

/// A node remembers the formats of only one stranger: the last one that sent a hello.
#[test]
fn formats_of_a_stranger_are_remembered_until_another_speaks() {
    let mut bench = Bench::reading(Disk::genesis(&genesis(&[1, 2])), NEXT);
    let known = |bench: &Bench| [1, 2, 8, 9].map(|node| bench.replica.format_of(NodeId(node)));
    assert_eq!(known(&bench), [Some(NEXT), None, None, None], "what it reads itself it knows");
    says(&mut bench, 2, FORMATS.newest);
    says(&mut bench, 9, NEXT);
    assert_eq!(known(&bench), [Some(NEXT), Some(FORMATS.newest), None, Some(NEXT)]);
    says(&mut bench, 8, NEXT);
    assert_eq!(known(&bench), [Some(NEXT), Some(FORMATS.newest), Some(NEXT), None]);
}

#[test]
fn a_starting_node_publishes_the_format_of_its_log_immediately() {
    let mut bench = Bench::reading(Disk::genesis(&genesis(&[1, 2, 3])), NEXT);
    let mut raise = carrying(Command::Raise(NEXT).encode());
    raise.commit = LogIndex(1);
    bench.take(2, &raise).expect("it reads that");
    bench.persist();
    bench.disk.crash();
    let bench = Bench::reading(bench.disk, NEXT);
    let published = bench.shared.published().format;
    assert_eq!((published, bench.replica.state().format), (NEXT, FORMATS.oldest));
}

#[test]
fn a_member_that_reports_an_older_format_again_holds_the_format_back() {
    let mut bench = led(&[1, 2]);
    says(&mut bench, 2, NEXT);
    says(&mut bench, 2, FORMATS.oldest);
    bench.beats(2 * ELECTION_TICKS, &[2]);
    assert_eq!(bench.replica.not_reading(NEXT), [NodeId(2)]);
    bench.persist();
    assert_eq!(raises(&bench), 0);
}

#[test]
fn a_node_that_may_not_read_the_next_format_never_raises_it() {
    let mut bench = Bench::led(&[1, 2]);
    says(&mut bench, 2, NEXT);
    bench.beats(2 * ELECTION_TICKS, &[2]);
    bench.persist();
    assert_eq!(raises(&bench), 0);
}

#[test]
fn an_unreadable_entry_is_neither_accepted_nor_acknowledged() {
    let mut bench = Bench::new(&[1, 2, 3]);
    for data in [Command::Raise(NEXT).encode(), vec![9], vec![3, 99, 0, 0, 0]] {
        let taken = bench.take(2, &carrying(data.clone()));
        let Err(MessageError::Unreadable { index, .. }) = taken else {
            panic!("{data:?}: {taken:?}");
        };
        assert_eq!((index, bench.status().last), (LogIndex(2), LogIndex(1)));
        assert!(!bench.kinds_to(2).contains(&MessageKind::AppendResponse));
    }
    bench.take(2, &append(2, (1, 1), 1, 2)).expect("an entry that it reads");
    let state = State { format: NEXT, ..State::new(&genesis(&[1, 2, 3])) };
    let snapshot = Snapshot {
        index: LogIndex(9),
        term: Term(2),
        configuration: bench.durable().record.configuration.clone(),
        data: state.encode(),
    };
    let sent = RaftMessage { snapshot: Some(snapshot), ..message(MessageKind::Snapshot, 2) };
    let Err(MessageError::Unreadable { index: LogIndex(9), error }) = bench.take(2, &sent) else {
        panic!("a snapshot that it does not read");
    };
    let text = error.to_string();
    assert!(text.contains("of format 2") && text.contains("reads 1 to 1"), "{text}");
}

#[test]
fn a_snapshot_of_an_older_format_than_the_state_is_refused() {
    let mut bench = Bench::reading(Disk::genesis(&genesis(&[1, 2, 3])), NEXT);
    bench.take(2, &carrying(Command::Raise(NEXT).encode())).expect("it reads that");
    bench.persist();
    assert_eq!(bench.replica.state().format, NEXT);
    let of = |format| {
        let snapshot = Snapshot {
            index: LogIndex(9),
            term: Term(2),
            configuration: bench.durable().record.configuration.clone(),
            data: State { format, ..State::new(&genesis(&[1, 2, 3])) }.encode(),
        };
        RaftMessage { snapshot: Some(snapshot), ..message(MessageKind::Snapshot, 2) }
    };
    let (older, same) = (of(FORMATS.oldest), of(NEXT));
    assert_eq!(bench.take(2, &older), Err(MessageError::Impossible));
    assert_eq!(bench.take(2, &same), Ok(()));
    assert_eq!(bench.status().applied, LogIndex(9));
}

#[test]
fn an_overwritten_raise_refuses_no_peer() {
    let mut bench = Bench::reading(Disk::genesis(&genesis(&[1, 2, 3])), NEXT);
    let mut raise = carrying(Command::Raise(NEXT).encode());
    raise.commit = LogIndex(1);
    bench.take(2, &raise).expect("it reads that");
    bench.persist();
    bench.tick();
    let published = |bench: &Bench| bench.shared.published().format;
    assert_eq!((published(&bench), bench.replica.state().format), (NEXT, FORMATS.oldest));
    bench.take(3, &append(3, (1, 1), 1, 1)).expect("of a later leader");
    bench.tick();
    assert_eq!(published(&bench), NEXT, "what is under way may hold it yet");
    bench.persist();
    bench.tick();
    assert_eq!(published(&bench), FORMATS.oldest);
    // A later leader overwrites the raise with an equal entry. So the log still needs the new
    // format.
    let mut again = append(4, (1, 1), 1, 1);
    again.entries[0].data = Command::Raise(NEXT).encode();
    bench.take(2, &again).expect("of a later leader");
    bench.persist();
    bench.tick();
    assert_eq!((published(&bench), bench.replica.format_needed()), (NEXT, NEXT));
}

/// An older version starts on the directory of a newer one.
#[test]
fn a_committed_entry_that_cannot_be_read_stops_the_node_and_nothing_is_lost() {
    let mut bench = Bench::reading(Disk::genesis(&genesis(&[1, 2, 3])), NEXT);
    let mut appended = append(2, (1, 1), 3, 1);
    appended.entries[1].data = Command::Raise(NEXT).encode();
    bench.take(2, &appended).expect("it reads that");
    bench.persist();
    let held = bench.durable().clone();
    let mut older = Bench::of(bench.disk);
    assert_eq!(older.status().applied, LogIndex(1), "nothing is known to be committed");
    older.take(2, &append(2, (4, 2), 0, 4)).expect("a word of what is committed");
    assert_eq!(older.status().applied, LogIndex(2), "up to what it cannot read");
    let fatal = older.replica.handle_tick(1, 1).expect_err("it must stop");
    assert!(matches!(fatal, Fatal::Unreadable { index: LogIndex(3), .. }), "{fatal}");
    older.persist();
    assert_eq!(older.durable().entries, held.entries);
    // The newer version continues where the older version stopped.
    let mut newer = Bench::reading(older.disk, NEXT);
    newer.take(2, &append(2, (4, 2), 0, 4)).expect("a word of what is committed");
    assert_eq!((newer.status().applied, newer.replica.state().format), (LogIndex(4), NEXT));
}

#[test]
fn a_node_does_not_start_on_a_state_that_it_cannot_read() {
    let mut bench = led(&[1]);
    bench.ticks(2 * ELECTION_TICKS);
    bench.persist();
    assert_eq!(bench.replica.state().format, NEXT, "alone, it has nobody to wait for");
    let mut restored = bench.durable().clone();
    restored.record.data = bench.replica.state().encode();
    let config = ReplicaConfig {
        identity: bench.shared.published().identity,
        seed: 1,
        election_ticks: ELECTION_TICKS,
        heartbeat_ticks: 1,
        tick_ns: 1_000_000,
        reservation_ns: 1_000_000_000,
        deadline_limit: 100,
        format_max: FORMATS.oldest,
    };
    let shared = bench.shared.clone();
    let Err(RestoreError::Record(error)) = Replica::new(config, &restored, shared) else {
        panic!("it starts");
    };
    let newer = DecodeError::Format { field: "the state", found: 2, oldest: 1, newest: 1 };
    assert_eq!(error, newer);
}
