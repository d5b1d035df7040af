//! Messages that no correct peer sends. They are refused without a panic, and the log does not
//! change. Some of these tests are about traps in the library (`raft` 0.7.0).

use epicepoch_core::publication::Role;
use epicepoch_core::replica::MessageError;
use epicepoch_core::state::{Command, Owner, State};
use epicepoch_wire::bootstrap::Genesis;
use epicepoch_wire::raft_message::{
    Configuration, INDEX_MAX, MessageKind, RaftMessage, Snapshot, TERM_MAX,
};
use epicepoch_wire::{BootId, ClusterId, Epoch, LogIndex, NodeId, StoreId, Term};

use crate::support::bench::{Bench, append, genesis, message};
use crate::support::disk::Disk;
use crate::support::{ELECTION_TICKS, store};

/// A follower of node 2 in term 2. It has the entries 2 to 6, and index 4 is committed.
fn follower() -> Bench {
    follower_drawing(5)
}

fn follower_drawing(seed: u64) -> Bench {
    let mut bench = Bench::drawing(Disk::genesis(&genesis(&[1, 2, 3])), seed);
    bench.take(2, &append(2, (1, 1), 5, 4)).unwrap();
    bench.persist();
    assert_eq!((bench.status().last, bench.status().applied), (LogIndex(6), LogIndex(4)));
    bench
}

fn snapshot(term: u64, index: u64, voters: &[u64]) -> RaftMessage {
    let ids = |list: &[u64]| list.iter().map(|id| NodeId(*id)).collect::<Vec<_>>();
    RaftMessage {
        snapshot: Some(Snapshot {
            index: LogIndex(index),
            term: Term(term),
            configuration: Configuration { voters: ids(voters), ..Configuration::default() },
            data: State::new(&genesis(&[1, 2, 3])).encode(),
        }),
        ..message(MessageKind::Snapshot, term)
    }
}

fn refused(bench: &mut Bench, from: u64, message: &RaftMessage, why: MessageError) {
    let before = bench.status();
    assert_eq!(bench.take(from, message), Err(why), "{message:?}");
    assert_eq!(bench.status(), before, "{message:?} left a trace");
}

#[test]
fn another_store_under_a_members_id_is_refused() {
    let mut bench = follower();
    let vote = message(MessageKind::RequestVote, 9);
    let taken = bench.take_of(3, StoreId(999), &vote);
    assert_eq!(taken, Err(MessageError::WrongStore));
    assert_eq!(bench.status().term, Term(2));
}

#[test]
fn votes_of_unknown_nodes_do_not_count() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.ticks(2 * ELECTION_TICKS);
    assert_eq!(bench.status().role, Role::Candidate);
    let term = bench.status().term.0 + 1;
    for stranger in [8, 9] {
        let yes = message(MessageKind::RequestPreVoteResponse, term);
        refused(&mut bench, stranger, &yes, MessageError::NotAMember);
    }
    bench.elect(&[2]);
}

#[test]
fn a_commit_index_beyond_the_log_says_that_this_disk_lost_entries() {
    let mut bench = follower();
    let beat = RaftMessage { commit: LogIndex(7), ..message(MessageKind::Heartbeat, 2) };
    let lost = MessageError::LostEntries { commit: LogIndex(7), last: LogIndex(6) };
    refused(&mut bench, 2, &beat, lost);
    // A message of an earlier term is ignored, so its content is not checked.
    let old = RaftMessage { term: Term(1), ..beat };
    assert_eq!(bench.take(2, &old), Ok(()));
}

#[test]
fn an_ack_beyond_the_log_is_refused() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.elect(&[2]);
    let index = LogIndex(bench.status().last.0 + 1);
    let term = bench.status().term.0;
    let ack = RaftMessage { index, ..message(MessageKind::AppendResponse, term) };
    refused(&mut bench, 2, &ack, MessageError::Impossible);
}

/// Found by a seed of the simulator. A leader sends entries before they are durable, and restarts
/// without them in the same term. Then their acknowledgements arrive.
#[test]
fn an_ack_of_an_entry_of_an_earlier_boot_is_no_offence() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.elect(&[2]);
    bench.ack_all(2);
    bench.beats(42, &[2]);
    assert_eq!(bench.status().writes_outstanding, 1, "a reservation is sent and not written");
    let (term, index) = (bench.status().term.0, bench.status().last);
    let mut bench = bench.restarted();
    assert!(bench.status().term.0 == term && bench.status().last < index);
    let ack = RaftMessage { index, ..message(MessageKind::AppendResponse, term) };
    assert_eq!(bench.take(2, &ack), Ok(()));
}

#[test]
fn a_vote_that_was_not_asked_for_yet_is_refused() {
    let mut bench = follower();
    bench.take(2, &append(2, (6, 2), 1, 4)).unwrap();
    bench.take(2, &message(MessageKind::TimeoutNow, 2)).unwrap();
    assert_eq!(bench.status().role, Role::Candidate);
    let yes = message(MessageKind::RequestVoteResponse, 3);
    refused(&mut bench, 3, &yes, MessageError::Impossible);
    bench.persist();
    bench.take(3, &yes).unwrap();
    assert!(bench.is_leader());
}

#[test]
fn an_append_that_contradicts_a_committed_entry_is_refused() {
    let mut bench = follower();
    // Each message overwrites the committed entry 4, or names a wrong term for the entry before its
    // own.
    for before in [(3, 2), (4, 3), (5, 1)] {
        let other = append(3, before, 3, 4);
        refused(&mut bench, 2, &other, MessageError::ContradictsCommit);
    }
    refused(&mut bench, 2, &append(3, (4, 0), 3, 4), MessageError::Impossible);
    assert_eq!(bench.take(2, &append(3, (5, 2), 2, 4)), Ok(()));
}

/// The node is in term 2. A leader of term 4 has committed the entry 5 of term 2. The node learns that
/// from a candidate of a pre-vote whose log ends there, and its term does not change. The leader of
/// term 3 had another entry 5; its append comes late.
#[test]
fn a_late_append_of_a_leader_in_between_does_not_undo_what_an_election_told() {
    let mut bench = follower();
    bench.ticks(ELECTION_TICKS);
    let ask = RaftMessage {
        index: LogIndex(5),
        log_term: Term(2),
        commit: LogIndex(5),
        commit_term: Term(2),
        ..message(MessageKind::RequestPreVote, 5)
    };
    assert_eq!(bench.take(3, &ask), Ok(()));
    assert_eq!((bench.status().term, bench.status().committed), (Term(2), LogIndex(5)));
    let late = append(3, (4, 2), 1, 4);
    refused(&mut bench, 2, &late, MessageError::ContradictsCommit);
    assert_eq!(bench.take(3, &append(4, (6, 2), 1, 5)), Ok(()));
}

#[test]
fn impossible_snapshots_are_refused() {
    let mut bench = follower();
    let good = snapshot(2, 50, &[1, 2, 3]);
    let mut foreign = good.clone();
    let other = Genesis { cluster: ClusterId(8), ..genesis(&[1, 2, 3]) };
    foreign.snapshot.as_mut().unwrap().data = State::new(&other).encode();
    let mut damaged = good.clone();
    damaged.snapshot.as_mut().unwrap().data.pop();
    let mut later = good.clone();
    later.snapshot.as_mut().unwrap().term = Term(3);
    let mut twice = good.clone();
    twice.snapshot.as_mut().unwrap().configuration.voters.push(NodeId(2));
    let doubled = snapshot(2, 50, &[1, 2, 2, 3]);
    let mut leaving = good.clone();
    leaving.snapshot.as_mut().unwrap().configuration.auto_leave = true;
    let mut next = good.clone();
    next.snapshot.as_mut().unwrap().configuration.learners_next.push(NodeId(3));
    let mut nothing = snapshot(2, 0, &[1, 2, 3]);
    nothing.snapshot.as_mut().unwrap().term = Term(1);
    let mut both = good.clone();
    both.snapshot.as_mut().unwrap().configuration.learners.push(NodeId(2));
    let mut stranger = good.clone();
    stranger.snapshot.as_mut().unwrap().configuration.voters.push(NodeId(7));
    let mut rewritten = snapshot(2, 4, &[1, 2, 3]);
    rewritten.snapshot.as_mut().unwrap().term = Term(1);
    let nobody = snapshot(2, 50, &[]);
    let bad = [foreign, damaged, later, twice, doubled, both, stranger, rewritten, nobody];
    for bad in bad.into_iter().chain([leaving, next, nothing]) {
        refused(&mut bench, 2, &bad, MessageError::Impossible);
    }
    let many: Vec<u64> = (1..=64).collect();
    let mut joint = snapshot(2, 50, &many);
    let configuration = &mut joint.snapshot.as_mut().unwrap().configuration;
    configuration.voters_outgoing = (65..=90).map(NodeId).collect();
    refused(&mut bench, 2, &joint, MessageError::Impossible);
    assert_eq!(bench.take(2, &good), Ok(()));
    bench.persist();
    assert_eq!(bench.status().applied, LogIndex(50));
}

/// A follower of node 2 that has applied a reservation at index 2.
fn follower_with_a_ceiling() -> Bench {
    let mut bench = Bench::new(&[1, 2, 3]);
    let owner = Owner { term: Term(2), node: NodeId(2), boot: BootId(3) };
    let mut reservation = append(2, (1, 1), 1, 2);
    reservation.entries[0].data =
        Command::Reserve { owner, until: Epoch(1_000_000), lease_ms: 0 }.encode();
    bench.take(2, &reservation).unwrap();
    bench.persist();
    assert_eq!(bench.replica.ceiling(), Epoch(1_000_000));
    bench
}

/// A snapshot with a lower ceiling is refused, because applying it would make the replica panic
/// (S5). A snapshot older than the applied index is ignored.
#[test]
fn a_snapshot_that_would_lower_the_ceiling_is_refused() {
    let mut bench = follower_with_a_ceiling();
    refused(&mut bench, 2, &snapshot(2, 3, &[1, 2, 3]), MessageError::Impossible);
    let mut old = snapshot(2, 1, &[1, 2, 3]);
    old.snapshot.as_mut().unwrap().term = Term(1);
    assert_eq!(bench.take(2, &old), Ok(()));
    bench.persist();
    assert_eq!((bench.replica.ceiling(), bench.status().applied), (Epoch(1_000_000), LogIndex(2)));
}

/// A snapshot arrives twice. The second copy arrives after all its entries are applied.
#[test]
fn a_snapshot_of_committed_entries_is_accepted() {
    let mut bench = follower();
    assert_eq!(bench.take(2, &snapshot(2, 4, &[1, 2, 3])), Ok(()));
    bench.persist();
    assert_eq!((bench.status().last, bench.status().applied), (LogIndex(6), LogIndex(4)));
}

#[test]
fn terms_are_accepted_up_to_the_limit() {
    let mut bench = follower();
    let beat = |term: u64| message(MessageKind::Heartbeat, term);
    let highest = TERM_MAX.0 - (1 << 32);
    for term in [highest + 1, TERM_MAX.0, TERM_MAX.0 + 1, u64::MAX] {
        refused(&mut bench, 2, &beat(term), MessageError::Impossible);
    }
    assert_eq!(bench.take(2, &beat(highest)), Ok(()));
    assert_eq!(bench.status().term, Term(highest));
}

/// Above the limit, sums in the library overflow. An index in the hint of a rejection overflows in
/// the search for the last index at which two logs are equal. An index in a snapshot overflows when
/// the library uses it as the index of the last entry.
#[test]
fn log_indexes_are_accepted_up_to_the_limit() {
    let mut bench = follower();
    for index in [INDEX_MAX.0 + 1, u64::MAX] {
        let (mut hint, mut commit) =
            (message(MessageKind::AppendResponse, 2), append(2, (6, 2), 2, 1));
        (hint.reject, hint.reject_hint) = (true, LogIndex(index));
        refused(&mut bench, 2, &hint, MessageError::Impossible);
        commit.commit = LogIndex(index);
        refused(&mut bench, 2, &commit, MessageError::Impossible);
        refused(&mut bench, 2, &snapshot(2, index, &[1, 2, 3]), MessageError::Impossible);
    }
    assert_eq!(bench.take(2, &snapshot(2, INDEX_MAX.0, &[1, 2, 3])), Ok(()));
}

/// On most of these messages, the library would append after a gap, or panic later.
#[test]
fn appends_whose_entries_do_not_follow_each_other_are_refused() {
    let mut bench = follower();
    let two = append(2, (6, 2), 2, 4);
    let mut gap = two.clone();
    gap.entries[1].index = LogIndex(9);
    let mut back = two.clone();
    back.entries[1].index = LogIndex(7);
    let mut late = two.clone();
    late.entries[0].index = LogIndex(8);
    late.entries[1].index = LogIndex(9);
    let mut ahead = two.clone();
    ahead.entries[1].term = Term(3);
    let mut falling = append(3, (6, 2), 2, 4);
    falling.entries[1].term = Term(2);
    let mut of_no_term = append(2, (0, 0), 1, 0);
    of_no_term.entries[0].term = Term(0);
    let without_term = append(2, (6, 0), 1, 4);
    let without_index = append(2, (0, 2), 1, 0);
    let bad = [gap, back, late, ahead, falling, of_no_term, without_term, without_index];
    for bad in bad {
        refused(&mut bench, 2, &bad, MessageError::Impossible);
    }
    assert_eq!(bench.take(2, &two), Ok(()));
    assert_eq!(bench.status().last, LogIndex(8));
    refused(&mut bench, 2, &append(2, (0, 2), 0, 0), MessageError::Impossible);
    // An empty log has no term at any index. It accepts only entries from its first index on.
    let mut bench = Bench::of(Disk::joining(&genesis(&[2, 3])));
    refused(&mut bench, 2, &append(2, (5, 0), 1, 0), MessageError::Impossible);
    assert_eq!(bench.take(2, &append(2, (0, 0), 1, 0)), Ok(()));
    assert_eq!(bench.status().last, LogIndex(1));
}

/// A late message of an earlier leader is not an error, so its content is not checked.
#[test]
fn an_append_of_an_earlier_term_is_ignored() {
    let mut bench = follower();
    assert_eq!(bench.take(3, &append(1, (2, 1), 1, 1)), Ok(()));
    assert_eq!(bench.status().last, LogIndex(6));
}

#[test]
fn messages_to_others_of_oneself_and_of_term_0_are_refused() {
    let mut bench = follower();
    let beat = message(MessageKind::Heartbeat, 2);
    let elsewhere = RaftMessage { to: NodeId(3), ..beat.clone() };
    refused(&mut bench, 2, &elsewhere, MessageError::WrongReceiver);
    refused(&mut bench, 1, &beat, MessageError::WrongReceiver);
    // Trap: the library treats a message of term 0 as its own, and changes the leader and the log.
    let mut local = append(2, (6, 2), 1, 4);
    local.term = Term(0);
    refused(&mut bench, 3, &local, MessageError::Impossible);
}

#[test]
fn no_follower_requests_a_snapshot_itself() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.elect(&[2]);
    let term = bench.status().term.0;
    let ask = RaftMessage {
        request_snapshot: LogIndex(1),
        reject: true,
        ..message(MessageKind::AppendResponse, term)
    };
    refused(&mut bench, 2, &ask, MessageError::Impossible);
}

/// If the vote did not wait for the disk, a single voter that becomes leader would release a vote
/// for another node before the vote is durable.
#[test]
fn a_single_voter_does_not_release_a_vote_that_it_could_forget() {
    let mut bench = Bench::new(&[1]);
    let vote = RaftMessage {
        index: LogIndex(100),
        log_term: Term(4),
        ..message(MessageKind::RequestVote, 5)
    };
    bench.take(9, &vote).unwrap();
    bench.ticks(5 * ELECTION_TICKS);
    assert_eq!(bench.kinds_to(9), vec![]);
    bench.persist_one();
    assert_eq!(bench.kinds_to(9), vec![MessageKind::RequestVoteResponse]);
    let stored = bench.durable().hard_state;
    assert_eq!((stored.term, stored.vote), (Term(5), NodeId(9)));
}

/// If a single voter campaigns while entries are not durable, the library panics.
#[test]
fn a_single_voter_does_not_campaign_with_a_write_outstanding() {
    for seed in 0..20 {
        let mut bench = Bench::drawing(Disk::genesis(&genesis(&[1])), seed);
        bench.take(2, &append(3, (1, 1), 1, 1)).unwrap();
        bench.ticks(10 * ELECTION_TICKS);
        assert_eq!(bench.status().role, Role::Follower);
    }
    let mut bench = Bench::new(&[1]);
    bench.take(2, &append(3, (1, 1), 1, 1)).unwrap();
    let now = message(MessageKind::TimeoutNow, 3);
    assert_eq!(bench.take(2, &now), Err(MessageError::Impossible));
    bench.replica.handle_closed(bench.now_ns, NodeId(2));
    bench.ticks(10 * ELECTION_TICKS);
    bench.persist();
    bench.elect(&[]);
    // As leader, a single voter may tick for any time while writes are unfinished.
    bench.ticks(40);
    bench.persist();
    assert!(bench.is_leader());
}

/// To campaign, the library would read log entries before the snapshot, which do not exist.
#[test]
fn a_node_does_not_campaign_while_a_snapshot_is_not_durable() {
    for seed in 0..20 {
        let is_told = seed % 2 == 0;
        let mut bench = follower_drawing(seed);
        bench.take(2, &snapshot(2, 50, &[1, 2, 3])).unwrap();
        if is_told {
            let now = message(MessageKind::TimeoutNow, 2);
            bench.take(2, &now).unwrap();
        }
        if seed % 4 < 2 {
            bench.replica.handle_closed(bench.now_ns, NodeId(2));
        }
        bench.ticks(4 * ELECTION_TICKS);
        assert_eq!(bench.status().role, Role::Follower);
        bench.persist();
        bench.ticks(2 * ELECTION_TICKS);
        assert_eq!(bench.status().role, Role::Candidate);
    }
}

/// The library draws election timeouts from a random generator of its thread. The replica replaces
/// each with a draw from its own seed. A draw outside the library's bounds would panic, and equal
/// draws would split votes for ever. Between two timeouts, a failed campaign is repeated once.
#[test]
fn election_timeouts_differ_and_keep_their_bounds() {
    let mut bench = Bench::new(&[1, 2, 3]);
    let mut waits = std::collections::BTreeSet::new();
    let (mut since, mut repeats, mut campaigns) = (0, 0, 0);
    for _ in 0..200 * ELECTION_TICKS {
        bench.tick();
        since += 1;
        if bench.kinds_to(2).contains(&MessageKind::RequestPreVote) {
            if since < ELECTION_TICKS {
                assert!(
                    (2..=3).contains(&since) && repeats == 0,
                    "the repeat of the first in turn"
                );
                repeats = 1;
            } else {
                assert!(since < 2 * ELECTION_TICKS, "{since} ticks");
                assert!(campaigns == 0 || repeats == 1, "not repeated");
                waits.insert(since);
                (since, repeats, campaigns) = (0, 0, campaigns + 1);
            }
        }
    }
    assert!(waits.len() >= ELECTION_TICKS - 1, "{waits:?}");
}

/// The library would forward a follower's proposal to the leader, and answer Ok.
#[test]
fn a_follower_proposes_nothing() {
    let mut bench = follower();
    bench.sent();
    bench.ticks(ELECTION_TICKS - 1);
    assert_eq!(bench.sent(), vec![]);
    assert_eq!(bench.status().last, LogIndex(6));
}

/// After the library has sent a snapshot to a follower, it waits for the outcome without a timeout.
#[test]
fn a_lost_snapshot_is_sent_again_even_after_a_late_ack() {
    let mut disk = Disk::genesis(&genesis(&[1, 2, 3]));
    disk.fill(1_022);
    let mut bench = Bench::of(disk);
    bench.elect(&[2]);
    bench.ack_all(2);
    bench.sent();
    // Node 3 has no entries, and the leader's log no longer has the first ones.
    let term = bench.status().term.0;
    let last = bench.status().last;
    let nothing = RaftMessage {
        index: LogIndex(1_023),
        reject: true,
        ..message(MessageKind::AppendResponse, term)
    };
    bench.take(3, &nothing).unwrap();
    assert_eq!(bench.kinds_to(3), vec![MessageKind::Snapshot]);
    // An old ack of node 3 arrives late. The snapshot itself never arrives.
    bench.ack(3, LogIndex(1));
    let mut was_sent = false;
    for _ in 0..20 * ELECTION_TICKS {
        bench.tick();
        bench.persist();
        for peer in [2, 3] {
            let term = bench.status().term.0;
            let alive = message(MessageKind::HeartbeatResponse, term);
            bench.take(peer, &alive).unwrap();
        }
        let last = bench.status().last;
        let kinds = bench.kinds_to(3);
        bench.ack(2, last);
        if kinds.contains(&MessageKind::Append) {
            // Node 3 still has no entries.
            let again = RaftMessage {
                index: LogIndex(last.0),
                reject: true,
                ..message(MessageKind::AppendResponse, term)
            };
            let _ = bench.take(3, &again);
        }
        was_sent |= kinds.contains(&MessageKind::Snapshot);
    }
    assert!(last > LogIndex(1_023) && was_sent, "node 3 is paused for ever");
    assert_eq!(store(3), StoreId(103));
}
