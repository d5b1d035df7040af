//! Elections and grants: which node leads, and which may stamp.

use epicepoch_core::publication::Role;
use epicepoch_core::replica::{HandOver, Report};
use epicepoch_core::state::{Command, Owner};
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::{BootId, Epoch, LogIndex, NodeId, Term};

use crate::support::bench::{Bench, append, message};
use crate::support::cluster::ELECTED_TICKS;
use crate::support::{
    Cluster, ELECTION_TICKS, EPOCH_INTERVAL_NS, MS, RESERVATION_NS, TICK_NS, store,
};

/// Workers may read the publication at any moment, also while an entry is applied. So the grant
/// must not be published even for a moment.
#[test]
fn a_range_of_another_node_or_boot_gives_no_grant() {
    let grants = |bench: &Bench| {
        let granted = |report: &&Report| matches!(report, Report::Granted { .. });
        bench.reports.iter().filter(granted).count()
    };
    // Case 1: a follower applies a range that its leader owns.
    let mut bench = Bench::new(&[1, 2, 3]);
    let owner = Owner { term: Term(2), node: NodeId(2), boot: BootId(9) };
    let mut assigned = append(2, (1, 1), 1, 2);
    assigned.entries[0].data =
        Command::Reserve { owner, until: Epoch(1_000_000), lease_ms: 0 }.encode();
    bench.take(2, &assigned).unwrap();
    bench.persist();
    assert_eq!(bench.replica.state().owner.map(|(owner, _)| owner), Some(owner));
    assert_eq!(grants(&bench), 0);
    // Case 2: a node restarts in the term that it led. The range belongs to its earlier boot.
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
        let mut cluster = Cluster::started(seed, 3);
        let leader = cluster.elect();
        assert!(cluster.now_ns < ELECTED_TICKS * TICK_NS, "seed {seed}");
        assert!(cluster.ask(leader, 3).is_some(), "seed {seed}");
    }
}

#[test]
fn leadership_that_goes_away_and_comes_back_keeps_ranges_apart_and_timestamps_rising() {
    let mut cluster = Cluster::started(1, 3);
    let first = cluster.elect();
    let (mut leader, mut other) =
        (first, cluster.ids().into_iter().find(|id| *id != first).unwrap());
    for _ in 0..6 {
        cluster.load(leader, 5);
        let to = Some(other);
        cluster.with(leader, |replica, now| replica.hand_over(now, to, HandOver::Asked));
        cluster.until(20, "the other leads", |cluster| cluster.leader() == to);
        (leader, other) = (other, leader);
    }
    cluster.load(leader, 5);
}

#[test]
fn a_deposed_leader_that_does_not_know_it_cannot_answer() {
    let mut cluster = Cluster::started(2, 3);
    let old = cluster.elect();
    cluster.load(old, 3);
    // The old leader's consensus thread hangs. Its workers and their links still work.
    cluster.pause(old);
    let new = cluster.elect_another(old);
    cluster.load(new, 3);
    assert!(cluster.published(old).grant.is_some(), "it does not know");
    assert_eq!(cluster.ask(old, 1), None);
    cluster.load(new, 1);
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
        // The bench is not drained, so no message has left yet. The Promise must be raised already.
        let now_ns = bench.now_ns;
        bench.replica.handle_message(now_ns, NodeId(2), store(2), &higher).unwrap();
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
                index: LogIndex(9),
                log_term: Term(6),
                ..message(MessageKind::RequestVote, 7)
            },
        )
        .unwrap();
    assert_eq!(bench.shared.promise.load(), Term(7));
}

#[test]
fn a_restarted_node_gets_no_grant_from_replayed_entries() {
    let mut cluster = Cluster::started(3, 1);
    let node = cluster.elect();
    cluster.load(node, 200);
    let before = cluster.published(node);
    cluster.restart(node);
    assert!(cluster.published(node).grant.is_none());
    let applied = cluster.bench(node).status().applied;
    assert!(applied > LogIndex(4), "there was something to replay");
    cluster.elect();
    let (old, new) = (before.grant.unwrap(), cluster.published(node).grant.unwrap());
    assert!(new.term > old.term && new.boot != old.boot && new.range.low >= old.range.high);
}

#[test]
fn a_node_restarted_in_the_same_term_owns_no_range() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.elect(&[2]);
    bench.persist();
    let status = bench.status();
    let mut bench = bench.restarted();
    assert_eq!(bench.status().term, status.term);
    assert_eq!(bench.status().last, status.last);
    // A late ack now commits the node's own reservation, in the same term. But after its restart
    // the node is a follower.
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
    // The new leader's log has this node's reservation, and a second one of the same owner.
    let mut again = append(term, (status.last.0, status.term.0), 1, status.last.0 + 1);
    let me = bench.shared.published().identity;
    let owner = Owner { term: status.term, node: me.node, boot: me.boot };
    let until = Epoch(u64::MAX / 2);
    again.entries[0].data = Command::Reserve { owner, until, lease_ms: 0 }.encode();
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
        let mut cluster = Cluster::started(4, voters);
        let leader = cluster.elect();
        let first = cluster.bench(leader).status().last;
        for _ in 0..1_000 {
            cluster.load(leader, 1);
            let high = cluster.published(leader).grant.unwrap().range.high.0;
            let left_ns = high - cluster.trusted_ns();
            assert!(left_ns >= RESERVATION_NS / 2, "{left_ns} ns are left");
        }
        let written = cluster.bench(leader).status().last.0 - first.0;
        // Some of them raise the format.
        assert!((10..=32).contains(&written), "{written} entries in 10 s");
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
    let mut cluster = Cluster::started(9, 3);
    let leader = cluster.elect();
    cluster.ticks(EPOCH_INTERVAL_NS / TICK_NS);
    for _ in 0..500 {
        cluster.load(leader, 1);
        let behind_ns = cluster.trusted_ns() - cluster.epoch(leader).0;
        assert!(behind_ns <= EPOCH_INTERVAL_NS + 2 * TICK_NS, "{behind_ns} ns behind");
    }
}

#[test]
fn a_wall_clock_an_hour_back_stops_the_epoch_and_nothing_else() {
    let mut cluster = Cluster::started(5, 3);
    let leader = cluster.elect();
    cluster.load(leader, 50);
    let epoch = cluster.epoch(leader);
    cluster.ahead_ns = -3_600_000 * MS as i64;
    cluster.load(leader, 300);
    let moved = cluster.epoch(leader).0 - epoch.0;
    assert!(moved <= 100, "one epoch per interval at most, each a nanosecond long");
    // The next leader's clock is behind, too. That leader gets a range of the least width, and
    // serves.
    cluster.crash(leader, false);
    let next = cluster.elect();
    cluster.load(next, 100);
}

#[test]
fn when_the_leaders_connection_closes_the_next_one_campaigns_in_its_turn() {
    for seed in 0..20 {
        let mut cluster = Cluster::started(seed, 3);
        let leader = cluster.elect();
        cluster.ticks(5);
        cluster.crash(leader, true);
        let before_ns = cluster.now_ns;
        cluster.elect();
        let took_ns = cluster.now_ns - before_ns;
        assert!(took_ns < ELECTION_TICKS as u64 * TICK_NS, "seed {seed}: {took_ns} ns");
    }
}
