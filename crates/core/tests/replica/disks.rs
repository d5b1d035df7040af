//! What must be durable before what leaves, disks that are slow, stuck or set back, and logs that
//! are compacted.

use epicepoch_core::publication::Role;
use epicepoch_core::replica::{HandOver, Report};
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::{LogIndex, NodeId, Term};

use crate::support::bench::{Bench, append, message};
use crate::support::{ELECTION_TICKS, MS, Plane, TICK_NS, World};

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
    // Entries on a slow disk do not silence a follower.
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
fn what_a_quorum_wrote_is_committed_while_the_leaders_own_disk_is_slow() {
    let mut world = World::started(1, 3);
    let leader = world.elect();
    world.run(100 * MS);
    world.node(leader).disk.write_ns = 40 * MS;
    world.load(leader, 300);
    assert_eq!(world.leader(), Some(leader));
    assert_eq!(world.history.leaderships(), 1);
    assert_eq!(world.history.answered, 300);
}

#[test]
fn a_leader_with_a_stuck_disk_hands_over_to_one_that_can_write() {
    let mut world = World::started(2, 3);
    let leader = world.elect();
    world.load(leader, 5);
    world.node(leader).disk.is_stuck = true;
    world.run_until(100, "another leader", |world| world.leader().is_some_and(|id| id != leader));
    assert!(world.has_reported(leader, |report| {
        matches!(report, Report::HandingOver { why: HandOver::DiskStuck, .. })
    }));
    let next = world.leader().unwrap();
    let answered = world.history.answered;
    world.load(next, 20);
    assert_eq!(world.history.answered, answered + 20);
}

#[test]
fn a_leader_with_a_stuck_disk_and_no_successor_steps_down_and_does_not_campaign() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.elect(&[2]);
    bench.ack_all(2);
    for _ in 0..60 + 4 * ELECTION_TICKS {
        bench.tick();
        let term = bench.status().term.0;
        // They hear it, and do nothing else.
        bench.take(2, &message(MessageKind::HeartbeatResponse, term)).unwrap();
        bench.take(3, &message(MessageKind::HeartbeatResponse, term)).unwrap();
    }
    let reports = &bench.reports;
    assert!(reports.contains(&Report::SteppedDown { why: HandOver::DiskStuck }), "{reports:?}");
    assert_eq!(bench.status().role, Role::Follower);
    assert!(bench.shared.published().grant.is_none());
}

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
        // Stuck until a handover is tried.
        for _ in 0..100 {
            bench.tick();
            let term = bench.status().term.0;
            bench.take(2, &message(MessageKind::HeartbeatResponse, term)).unwrap();
            if handovers(&bench) == round {
                break;
            }
        }
        assert_eq!(handovers(&bench), round);
        // It writes again, before anybody has taken over, and goes on for long.
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
    // Its first timeout may pass before the disk counts as stuck; it stays without consequence.
    assert_eq!(bench.status().term, Term(2));
    assert!(!bench.sent().iter().any(|out| out.message.kind == MessageKind::RequestVote));
}

#[test]
fn a_single_voter_ticks_for_long_with_a_write_outstanding() {
    for seed in 0..20 {
        let mut world = World::started(seed, 1);
        world.node(NodeId(1)).disk.is_stuck = true;
        world.run(1_000 * MS);
        assert_eq!(world.leader(), None);
        world.node(NodeId(1)).disk.is_stuck = false;
        world.elect();
        world.load(NodeId(1), 20);
        world.node(NodeId(1)).disk.is_stuck = true;
        world.run(3_000 * MS);
        world.node(NodeId(1)).disk.is_stuck = false;
        let answered = world.history.answered;
        world.run(100 * MS);
        world.load(NodeId(1), 20);
        assert_eq!(world.history.answered, answered + 20);
    }
}

#[test]
fn a_disk_set_back_to_an_older_state_is_reported() {
    let mut world = World::started(3, 3);
    let leader = world.elect();
    world.load(leader, 10);
    let victim = world.ids().into_iter().find(|id| *id != leader).unwrap();
    let old = world.nodes[&victim].disk.durable().clone();
    world.load(leader, 300);
    world.crash(victim);
    world.node(victim).disk.roll_back(old);
    world.start(victim);
    for _ in 0..60 {
        world.step();
    }
    let violations = std::mem::take(&mut world.history.violations);
    assert!(violations.iter().any(|what| what.starts_with("LOST")), "{violations:?}");
}

#[test]
fn a_follower_that_lags_behind_the_compacted_log_gets_a_snapshot() {
    for is_lost in [false, true] {
        let mut world = World::new(4, 3);
        for id in [1, 2] {
            world.node(NodeId(id)).disk.fill(1_022);
        }
        for id in [1, 2] {
            world.start(NodeId(id));
        }
        let leader = world.elect();
        world.load(leader, 200);
        assert!(world.has_reported(leader, |report| matches!(report, Report::Compacted { .. })));
        world.start(NodeId(3));
        if is_lost {
            // The leader's messages are lost until the snapshot has been sent for sure.
            world.cuts.insert((leader, NodeId(3), Plane::Raft));
            world.run(200 * MS);
            world.heal();
        }
        let is_there = |world: &World| {
            let applied = |id| world.nodes[&id].running().replica.applied();
            applied(NodeId(3)) == applied(world.leader().unwrap_or(NodeId(3)))
                && applied(NodeId(3)) > LogIndex(1_000)
        };
        world.run_until(200, "node 3 has caught up", is_there);
        assert!(world.has_reported(NodeId(3), |report| matches!(report, Report::Installed { .. })));
        // A restart from the snapshot and from the compacted log.
        for id in world.ids() {
            world.restart(id);
        }
        let leader = world.elect();
        world.load(leader, 20);
        assert!(
            world.nodes[&leader].disk.durable().entries.len() < 600,
            "the disk is compacted too"
        );
        assert!(world.now_ns > TICK_NS);
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
    // The disk is back, and so is the offer.
    bench.persist();
    bench.take(2, &message(MessageKind::TimeoutNow, 2)).unwrap();
    assert_eq!((bench.status().term, bench.status().role), (Term(3), Role::Candidate));
}

/// A follower whose disk hangs while its leader goes on: what waits for the disk is limited, and
/// what is dropped is the oldest, which the newest says as well.
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
