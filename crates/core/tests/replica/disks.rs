//! Tests of disks: which writes must be durable before a message leaves, slow and stuck disks, and
//! compacted logs.

use epicepoch_core::publication::Role;
use epicepoch_core::replica::{HandOver, Report};
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::{LogIndex, NodeId, Term};

use crate::support::bench::{Bench, append, genesis, message};
use crate::support::disk::Disk;
use crate::support::{Cluster, ELECTION_TICKS, START_NS};

#[test]
fn a_vote_leaves_only_after_it_is_durable() {
    let mut bench = Bench::new(&[1, 2, 3]);
    let vote = RaftMessage {
        index: LogIndex(9),
        log_term: Term(4),
        ..message(MessageKind::RequestVote, 5)
    };
    bench.take(2, &vote).unwrap();
    assert_eq!(bench.shared.promise.load(), Term(5), "the promise is raised at once");
    bench.ticks(3);
    assert_eq!(bench.sent(), vec![]);
    bench.persist_one();
    assert_eq!(bench.kinds_to(2), vec![MessageKind::RequestVoteResponse]);
}

#[test]
fn a_vote_is_not_asked_for_before_everything_earlier_is_durable() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.take(2, &append(2, (1, 1), 2, 1)).unwrap();
    bench.persist_one();
    bench.take(2, &append(2, (3, 2), 2, 1)).unwrap();
    bench.take(2, &message(MessageKind::TimeoutNow, 2)).unwrap();
    bench.sent();
    assert_eq!(bench.status().role, Role::Candidate);
    bench.persist_one();
    assert!(!bench.kinds_to(3).contains(&MessageKind::RequestVote), "its term is not durable");
    bench.persist();
    assert!(bench.kinds_to(3).contains(&MessageKind::RequestVote));
}

#[test]
fn an_ack_leaves_only_after_its_entries_are_durable() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.take(2, &append(2, (1, 1), 3, 1)).unwrap();
    bench.take(2, &append(2, (4, 2), 1, 1)).unwrap();
    assert_eq!(bench.sent(), vec![]);
    bench.persist_one();
    let acks: Vec<LogIndex> = bench.sent().iter().map(|out| out.message.index).collect();
    assert_eq!(acks, vec![LogIndex(4)]);
    bench.persist();
    assert_eq!(bench.sent().iter().map(|out| out.message.index).max(), Some(LogIndex(5)));
}

#[test]
fn an_answer_to_a_heartbeat_waits_for_the_term_and_for_nothing_else() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.take(2, &message(MessageKind::Heartbeat, 2)).unwrap();
    assert_eq!(bench.sent(), vec![]);
    bench.persist();
    assert_eq!(bench.kinds_to(2), vec![MessageKind::HeartbeatResponse]);
    // The follower's disk has not written the new entries. The follower still answers heartbeats.
    bench.take(2, &append(2, (1, 1), 3, 1)).unwrap();
    bench.take(2, &message(MessageKind::Heartbeat, 2)).unwrap();
    assert_eq!(bench.kinds_to(2), vec![MessageKind::HeartbeatResponse]);
}

#[test]
fn a_leaders_appends_and_heartbeats_do_not_wait_for_its_own_disk() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.elect(&[2]);
    bench.ack_all(2);
    bench.sent();
    bench.beats(45, &[2, 3]);
    assert!(bench.status().writes_outstanding > 0, "a reservation is being written");
    let kinds = bench.kinds_to(2);
    assert!(kinds.contains(&MessageKind::Append) && kinds.contains(&MessageKind::Heartbeat));
}

#[test]
fn entries_that_a_quorum_wrote_are_committed_while_the_leaders_own_disk_is_slow() {
    let mut bench = Bench::led(&[1, 2, 3]);
    bench.beats(45, &[2, 3]);
    let last = bench.status().last;
    assert!(bench.status().writes_outstanding > 0 && bench.status().committed < last);
    bench.ack(2, last);
    assert!(bench.status().committed < last, "one of three");
    bench.ack(3, last);
    assert_eq!(bench.status().committed, last);
}

#[test]
fn a_leader_with_a_stuck_disk_and_no_successor_steps_down_and_does_not_campaign() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.elect(&[2]);
    bench.ack_all(2);
    // Its range lasts for a second, and it leads as long.
    for _ in 0..100 + 4 * ELECTION_TICKS {
        bench.tick();
        let term = bench.status().term.0;
        // Both followers hear the leader, but acknowledge no entry.
        bench.take(2, &message(MessageKind::HeartbeatResponse, term)).unwrap();
        bench.take(3, &message(MessageKind::HeartbeatResponse, term)).unwrap();
    }
    let reports = &bench.reports;
    assert!(reports.contains(&Report::SteppedDown { why: HandOver::DiskStuck }), "{reports:?}");
    assert_eq!(bench.status().role, Role::Follower);
    assert!(bench.shared.published().grant.is_none());
}

/// A leader's disk is stuck, and the leader tries to hand over. The disk works again. If it is
/// stuck once more later, the leader tries to hand over again, and does not step down at once.
#[test]
fn a_disk_that_was_stuck_once_gets_a_handover_again_and_no_step_down() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.elect(&[2]);
    bench.ack_all(2);
    let handovers = |bench: &Bench| {
        let tried = |report: &&Report| matches!(report, Report::HandingOver { .. });
        bench.reports.iter().filter(tried).count()
    };
    for round in 1..=3 {
        // The disk is stuck until the leader tries to hand over.
        for _ in 0..100 {
            bench.tick();
            let term = bench.status().term.0;
            bench.take(2, &message(MessageKind::HeartbeatResponse, term)).unwrap();
            if handovers(&bench) == round {
                break;
            }
        }
        assert_eq!(handovers(&bench), round);
        // The disk writes again before another node takes over, and goes on for long.
        for _ in 0..60 {
            bench.persist();
            bench.ack_all(2);
            bench.tick();
        }
        assert!(bench.is_leader(), "{:?}", bench.reports);
    }
}

#[test]
fn a_follower_with_a_stuck_disk_does_not_campaign() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.take(2, &append(2, (1, 1), 1, 1)).unwrap();
    bench.ticks(20 * ELECTION_TICKS);
    // One election timeout may pass before the disk counts as stuck. Even then the term stays, and
    // no vote is requested.
    assert_eq!(bench.status().term, Term(2));
    assert!(!bench.sent().iter().any(|out| out.message.kind == MessageKind::RequestVote));
}

#[test]
fn a_single_voter_ticks_for_long_with_a_write_outstanding() {
    for seed in 0..20 {
        let mut bench = Bench::drawing(Disk::genesis(&genesis(&[1])), seed);
        bench.ticks(100);
        assert!(bench.shared.published().grant.is_none());
        bench.elect(&[]);
        bench.persist();
        bench.ticks(300);
        bench.persist();
        bench.ticks(1);
        bench.persist();
        let high = bench.shared.published().grant.expect("it leads").range.high;
        assert!(high.0 > START_NS + bench.now_ns, "it reserves again");
    }
}

#[test]
fn a_follower_that_lags_behind_the_compacted_log_gets_a_snapshot() {
    for is_lost in [false, true] {
        let mut cluster = Cluster::new(4, 3);
        cluster.add(1, |disk| disk.fill(1_022));
        cluster.add(2, |disk| disk.fill(1_022));
        let leader = cluster.elect();
        cluster.load(leader, 200);
        assert!(cluster.has_reported(leader, |it| matches!(it, Report::Compacted { .. })));
        let lagging = NodeId(3);
        cluster.add(3, |_| ());
        if is_lost {
            // The leader answers a heartbeat response with a snapshot, which is lost.
            cluster.cut(leader, lagging);
            cluster.ticks(20);
            cluster.heal();
        }
        let applied = |cluster: &Cluster, id| cluster.bench(id).status().applied;
        cluster.until(200, "node 3 has caught up", |cluster| {
            cluster.leader().is_some_and(|leader| {
                let here = applied(cluster, lagging);
                here == applied(cluster, leader) && here > LogIndex(1_000)
            })
        });
        assert!(cluster.has_reported(lagging, |it| matches!(it, Report::Installed { .. })));
        // All nodes restart from the snapshot and the compacted log.
        for id in cluster.ids() {
            cluster.restart(id);
        }
        let leader = cluster.elect();
        cluster.load(leader, 20);
        assert!(cluster.bench(leader).durable().entries.len() < 600, "the disk is compacted too");
    }
}

#[test]
fn a_node_whose_disk_is_stuck_does_not_take_leadership_over() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.take(2, &append(2, (1, 1), 1, 1)).unwrap();
    bench.persist();
    bench.take(2, &append(2, (2, 2), 1, 1)).unwrap();
    for _ in 0..=ELECTION_TICKS / 2 {
        bench.tick();
    }
    bench.take(2, &message(MessageKind::TimeoutNow, 2)).unwrap();
    assert_eq!((bench.status().term, bench.status().role), (Term(2), Role::Follower));
    // The disk works again, and the leader repeats its offer.
    bench.persist();
    bench.take(2, &message(MessageKind::TimeoutNow, 2)).unwrap();
    assert_eq!((bench.status().term, bench.status().role), (Term(3), Role::Candidate));
}

/// A follower's disk hangs while its leader goes on. The number of messages that wait for the disk
/// is limited. The oldest ones are dropped, because the newest acknowledges their entries as well.
#[test]
fn messages_that_wait_for_a_disk_are_limited_and_the_newest_stay() {
    let mut bench = Bench::new(&[1, 2, 3]);
    let first = bench.status().last.0;
    for index in first..first + 5_000 {
        bench.take(2, &append(1, (index, 1), 1, 0)).expect("an entry is taken");
    }
    let last = bench.status().last;
    assert_eq!((last.0, bench.status().messages_held), (first + 5_000, 4_096));
    bench.sent();
    bench.persist();
    let sent = bench.sent();
    assert_eq!(sent.len(), 4_096);
    assert_eq!(sent.last().map(|out| out.message.index), Some(last));
}
