//! Who leads, who may stamp, and who may not any more.

use epicepoch_core::publication::Role;
use epicepoch_core::replica::{HandOver, Report};
use epicepoch_core::state::{Command, Owner};
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::{BootId, Epoch, NodeId, Term};

use crate::support::bench::{Bench, append, message};
use crate::support::{
    ELECTION_TICKS, EPOCH_INTERVAL_NS, MS, Plane, RESERVATION_NS, TICK_NS, World,
};

/// Ticks within which three healthy nodes elect a leader that may stamp.
const ELECTED_TICKS: u64 = 6 * ELECTION_TICKS as u64;

/// Not for a moment: workers read what is published while an entry is applied.
#[test]
fn nobody_is_granted_what_another_or_an_earlier_run_was_assigned() {
    let grants = |bench: &Bench| {
        let granted = |report: &&Report| matches!(report, Report::Granted { .. });
        bench.reports.iter().filter(granted).count()
    };
    // A follower in its leader's term.
    let mut bench = Bench::new(&[1, 2, 3]);
    let owner = Owner { term: Term(2), node: NodeId(2), boot: BootId(9) };
    let mut assigned = append(2, (1, 1), 1, 2);
    assigned.entries[0].data = Command::Reserve { owner, until: Epoch(1_000_000) }.encode();
    bench.take(2, &assigned).unwrap();
    bench.persist();
    assert_eq!(bench.replica.state().owner.map(|(owner, _)| owner), Some(owner));
    assert_eq!(grants(&bench), 0);
    // A node that starts in the term that it led, with the number of that run.
    let mut bench = Bench::led(&[1]);
    bench.ticks(1);
    bench.persist();
    let term = bench.status().term;
    assert_eq!(grants(&bench), 1);
    let mut bench = bench.restarted();
    bench.drain();
    assert_eq!(bench.status().term, term);
    assert_eq!(bench.replica.state().owner.map(|(owner, _)| owner.term), Some(term));
    assert_eq!(grants(&bench), 0);
}

#[test]
fn a_leader_waits_for_another_clock_before_it_moves_the_ceiling_but_not_for_ever() {
    let granted =
        |bench: &Bench| bench.reports.iter().any(|report| matches!(report, Report::Granted { .. }));
    let lead = || {
        let mut bench = Bench::new(&[1, 2, 3]);
        bench.replica.handle_compared(false);
        bench.elect(&[2, 3]);
        bench.ack_all(2);
        bench
    };
    let mut bench = lead();
    bench.beats(2 * ELECTION_TICKS, &[2, 3]);
    bench.ack_all(2);
    assert!(!granted(&bench));
    bench.replica.handle_compared(true);
    bench.beats(1, &[2, 3]);
    bench.ack_all(2);
    assert!(granted(&bench));

    let mut bench = lead();
    bench.beats(6 * ELECTION_TICKS, &[2, 3]);
    bench.ack_all(2);
    assert!(granted(&bench));
}

#[test]
fn three_replicas_elect_one_leader_that_gets_a_grant() {
    for seed in 0..50 {
        let mut world = World::started(seed, 3);
        let leader = world.elect();
        assert!(world.now_ns < ELECTED_TICKS * TICK_NS, "seed {seed}");
        world.ask(leader, 0, 3);
        world.run(TICK_NS);
        assert_eq!(world.history.answered, 1, "seed {seed}");
        assert_eq!(world.history.leaderships(), 1, "seed {seed}");
    }
}

#[test]
fn leadership_that_goes_away_and_comes_back_keeps_ranges_apart_and_timestamps_rising() {
    let mut world = World::started(1, 3);
    let first = world.elect();
    let mut led = vec![first];
    while led.len() < 6 {
        let leader = *led.last().unwrap();
        world.load(leader, 5);
        // To and fro between two nodes.
        let to = world
            .ids()
            .into_iter()
            .find(|id| *id != leader && led.len() < 3 || led.iter().rev().nth(1) == Some(id));
        let to = to.unwrap();
        world.with(leader, |replica, now| replica.hand_over(now, Some(to), HandOver::Asked));
        world.run_until(20, "the other leads", |world| world.leader() == Some(to));
        led.push(to);
    }
    world.load(*led.last().unwrap(), 5);
    assert!(led.iter().filter(|id| **id == first).count() >= 3, "{led:?}");
    assert_eq!(world.history.leaderships(), 6);
    assert!(world.history.answered >= 25);
}

#[test]
fn a_deposed_leader_that_does_not_know_it_cannot_answer() {
    let mut world = World::started(2, 3);
    let old = world.elect();
    world.load(old, 3);
    // Its consensus plane hangs; its workers and their links are as good as ever.
    world.pause(old, Plane::Raft, 10_000 * MS);
    world.run_until(60, "another leader", |world| world.leader().is_some_and(|id| id != old));
    let new = world.leader().unwrap();
    world.load(new, 3);
    assert!(world.published(old).grant.is_some(), "it does not know");
    let (answered, refused) = (world.history.answered, world.history.refused);
    for _ in 0..10 {
        world.ask(old, 0, 1);
        world.ask(old, 1, 1);
        world.run(TICK_NS);
    }
    assert_eq!(world.history.answered, answered);
    world.run(1_000 * MS);
    world.load(new, 1);
    assert_eq!(world.history.refused, refused, "its rounds wait; its consensus plane fails them");
    assert_eq!(world.history.answered, answered + 1);
}

#[test]
fn a_grant_is_revoked_in_the_step_that_changes_the_term() {
    for kind in [
        MessageKind::Heartbeat,
        MessageKind::Append,
        MessageKind::AppendResponse,
        MessageKind::HeartbeatResponse,
        MessageKind::RequestVoteResponse,
    ] {
        let mut bench = Bench::new(&[1, 2, 3]);
        bench.elect(&[2]);
        bench.ack_all(2);
        assert!(bench.shared.published().grant.is_some());
        let term = bench.status().term.0 + 1;
        let higher = message(kind, term);
        // Not drained: nothing has been sent yet.
        let now_ns = bench.now_ns;
        let store = crate::support::bench::store(2);
        bench.replica.handle_message(now_ns, NodeId(2), store, &higher).unwrap();
        assert_eq!(bench.shared.promise.load(), Term(term), "{kind:?}");
        let published = bench.shared.published();
        assert!(published.grant.is_none() && published.role == Role::Follower, "{kind:?}");
    }
}

#[test]
fn a_pre_vote_promises_nothing() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.take(2, &message(MessageKind::RequestPreVote, 7)).unwrap();
    bench.ticks(ELECTION_TICKS * 2);
    assert_eq!(bench.shared.promise.load(), Term(1));
    bench
        .take(
            2,
            &RaftMessage {
                index: epicepoch_wire::LogIndex(9),
                log_term: Term(6),
                ..message(MessageKind::RequestVote, 7)
            },
        )
        .unwrap();
    assert_eq!(bench.shared.promise.load(), Term(7));
}

#[test]
fn a_restarted_node_gets_no_grant_from_what_it_replays() {
    let mut world = World::started(3, 1);
    let node = world.elect();
    world.load(node, 200);
    let before = world.published(node);
    world.restart(node);
    assert!(world.published(node).grant.is_none());
    let status = world.nodes[&node].running().replica.status();
    assert!(status.applied > epicepoch_wire::LogIndex(4), "there was something to replay");
    world.elect();
    let (old, new) = (before.grant.unwrap(), world.published(node).grant.unwrap());
    assert!(new.term > old.term && new.boot != old.boot && new.range.low >= old.range.high);
}

#[test]
fn a_restart_in_the_same_term_owns_nothing() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.elect(&[2]);
    bench.persist();
    let status = bench.status();
    let mut bench = bench.restarted();
    assert_eq!(bench.status().term, status.term);
    assert_eq!(bench.status().last, status.last);
    // Its own reservation is committed now, in the same term, by a late ack: it is a follower.
    let beat =
        RaftMessage { commit: status.last, ..message(MessageKind::Heartbeat, status.term.0) };
    bench.take(2, &beat).unwrap();
    bench.persist();
    assert_eq!(bench.status().applied, status.last);
    assert!(bench.replica.ceiling() > Epoch(0) && bench.shared.published().grant.is_none());
}

#[test]
fn a_reservation_that_is_committed_under_another_leader_assigns_no_grant() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.elect(&[2]);
    let status = bench.status();
    bench.ticks(ELECTION_TICKS * 3);
    bench.persist();
    let term = status.term.0 + 1;
    // The new leader has this node's reservation in its log, and the very same one again.
    let mut again = append(term, (status.last.0, status.term.0), 1, status.last.0 + 1);
    let me = bench.shared.published().identity;
    let owner = Owner { term: status.term, node: me.node, boot: me.boot };
    let until = Epoch(u64::MAX / 2);
    again.entries[0].data = Command::Reserve { owner, until }.encode();
    bench.take(2, &again).unwrap();
    bench.persist();
    assert_eq!(bench.status().applied.0, status.last.0 + 1);
    assert!(bench.shared.published().grant.is_none());
    assert!(bench.replica.ceiling() < until, "a proposal of another term owns nothing");
    assert_eq!(me.boot, BootId(7));
}

#[test]
fn reservations_are_renewed_before_half_is_used_and_writes_stay_few() {
    for voters in [1, 3] {
        let mut world = World::started(4, voters);
        let leader = world.elect();
        world.run(100 * MS);
        let first = world.nodes[&leader].running().replica.status().last;
        for _ in 0..1_000 {
            world.load(leader, 1);
            let high = world.published(leader).grant.unwrap().range.high.0;
            let left_ns = high - world.trusted_ns(leader);
            assert!(left_ns >= RESERVATION_NS / 2, "{left_ns} ns are left");
        }
        assert_eq!(world.leader(), Some(leader));
        let last = world.nodes[&leader].running().replica.status().last;
        let written = last.0 - first.0;
        assert!((10..=30).contains(&written), "{written} entries in 10 s");
    }
}

#[test]
fn a_reservation_is_never_proposed_twice_at_once() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.elect(&[2]);
    let last = bench.status().last;
    for _ in 0..200 {
        bench.tick();
        bench.persist();
        for peer in [2, 3] {
            let term = bench.status().term.0;
            bench.take(peer, &message(MessageKind::HeartbeatResponse, term)).unwrap();
        }
    }
    assert!(bench.is_leader());
    assert_eq!(bench.status().last, last, "nothing was committed, and nothing proposed again");
    assert!(bench.reports.iter().any(|report| matches!(report, Report::ReservationLate { .. })));
}

#[test]
fn epochs_are_at_most_one_interval_behind_a_healthy_clock_and_never_ahead_of_it() {
    let mut world = World::started(9, 3);
    let leader = world.elect();
    world.run(EPOCH_INTERVAL_NS);
    for _ in 0..500 {
        world.load(leader, 1);
        let epoch = world.nodes[&leader].running().allocator.epoch().0;
        let behind_ns = world.trusted_ns(leader) - epoch;
        assert!(behind_ns <= EPOCH_INTERVAL_NS + 2 * TICK_NS, "{behind_ns} ns behind");
    }
}

#[test]
fn a_wall_clock_set_back_an_hour_changes_nothing_but_the_epoch_that_stands_still() {
    let mut world = World::started(5, 3);
    let leader = world.elect();
    world.load(leader, 50);
    let epoch = world.nodes[&leader].running().allocator.epoch();
    for id in world.ids() {
        world.node(id).ahead_ns = -3_600_000 * MS as i64;
    }
    let answered = world.history.answered;
    world.load(leader, 300);
    assert_eq!(world.history.answered, answered + 300);
    let now = world.nodes[&leader].running().allocator.epoch();
    assert!(now.0 - epoch.0 <= 100, "one epoch per interval at most, each a nanosecond long");
    // Leaders to come also stay behind: they get the least of a range, and serve.
    world.crash(leader);
    let next = world.elect();
    world.load(next, 100);
    assert_eq!(world.history.answered, answered + 400);
}

#[test]
fn when_the_leaders_connection_closes_the_next_one_campaigns_in_its_turn() {
    for seed in 0..20 {
        let mut world = World::started(seed, 3);
        let leader = world.elect();
        world.run(50 * MS);
        world.crash(leader);
        world.close(leader);
        let before_ns = world.now_ns;
        world.elect();
        let took_ns = world.now_ns - before_ns;
        assert!(took_ns < ELECTION_TICKS as u64 * TICK_NS, "seed {seed}: {took_ns} ns");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let hash = |seed| {
        let mut world = World::new(seed, 5);
        world.trace = Some(Default::default());
        world.weather.doubled = 50;
        world.weather.lost = 50;
        world.weather.delay_ns = (1, 4 * MS);
        world.start_all();
        for _ in 0..4 {
            let leader = world.elect();
            world.load(leader, 20);
            world.restart(leader);
        }
        world.trace.unwrap().1
    };
    assert_eq!(hash(7), hash(7));
    assert_ne!(hash(7), hash(8));
}

#[test]
fn a_leader_whose_workers_complete_no_round_hands_over() {
    let mut world = World::started(6, 3);
    let leader = world.elect();
    world.load(leader, 5);
    world.isolate(leader, Plane::Workers);
    world.run_until(60, "another leader", |world| world.leader().is_some_and(|id| id != leader));
    let why = HandOver::RoundsStuck;
    assert!(world.has_reported(leader, |report| {
        matches!(report, Report::HandingOver { why: reason, .. } if *reason == why)
    }));
}

#[test]
fn a_leader_whose_clock_is_off_hands_over_to_whom_it_may_and_to_nobody_else() {
    let mut world = World::started(7, 3);
    let leader = world.elect();
    let others: Vec<NodeId> = world.ids().into_iter().filter(|id| *id != leader).collect();
    world.node(leader).successors = Some(vec![]);
    world.run(1_000 * MS);
    assert_eq!(world.leader(), Some(leader), "nobody may take it");
    world.node(leader).successors = Some(vec![others[1]]);
    world.run_until(30, "the one that may leads", |world| world.leader() == Some(others[1]));
    let handed =
        |report: &Report| matches!(report, Report::HandingOver { to, .. } if *to == others[0]);
    assert!(!world.has_reported(leader, handed));
}

#[test]
fn an_idle_leader_keeps_leading() {
    let mut world = World::started(8, 3);
    let leader = world.elect();
    world.run(20_000 * MS);
    assert_eq!((world.leader(), world.history.leaderships()), (Some(leader), 1));
}
