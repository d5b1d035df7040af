//! Links between nodes are cut: all links of the leader silently, in one direction or with a reset,
//! or one link of three. The tests measure how long clients get no answer (the silence). They ask
//! all nodes all the time, even nodes that are cut off, and check every answer.
//!
//! `EPICEPOCH_OUTAGES=200` repeats each measured cut 200 times, so that the 99th percentile can be
//! measured.

use std::time::{Duration, Instant};

use epicepoch_link::{Cut, Fault};

use crate::support::{
    Cluster, LinkedCluster, Silence, WAIT_MAX, Watch, alone, let_pass, outages, say, wait_until,
};

/// Promised `(p50, p99)` of the time without an answer when the leader's links are cut silently, ms
/// (`docs/operations/outages.md`).
const SILENT_MS: (u64, u64) = (300, 700);
/// Promised `(p50, p99)` of the time without an answer when the leader hears no other node, but the
/// others hear the leader, ms (`docs/operations/outages.md`).
const DEAF_MS: (u64, u64) = (300, 700);
/// Promised `(p50, p99)` of the time without an answer when the leader's connections are reset, ms.
/// The p50 is as for a killed process, because nodes notice a reset as fast. The p99 is higher,
/// because clients still have to find the next leader.
const RESET_MS: (u64, u64) = (150, 700);
/// Shortest possible median of the time without an answer when a leader loses its peers silently,
/// ms. A leader without its peers must not answer. No other node leads before an election timeout
/// (200 ms) less a few heartbeats is over.
const SILENT_MS_MIN: u64 = 100;
/// How long the link between two of the three nodes is cut.
const PARTITION: Duration = Duration::from_secs(2);
/// A node must notice within this time that it is cut off.
const NOTICED_MAX: Duration = Duration::from_secs(3);

/// Checks that a node that is cut off gives no timestamp, and soon refuses with 503. If the node
/// was deposed just before the cut, it names the next leader until it notices the cut.
#[track_caller]
fn assert_refuses(cluster: &Cluster, index: usize) {
    wait_until("the node that is cut off says what to do", NOTICED_MAX, || {
        let Some(answer) = cluster.nodes[index].ask("/timestamp") else { return false };
        assert_ne!(answer.status, 200, "a node that is cut off answers: {answer:?}");
        let codes = [Some("NO_LEADER"), Some("NO_QUORUM")];
        answer.status == 503 && codes.contains(&answer.error()) && answer.text().contains("retry")
    });
}

/// Cuts the leader's links `usual` times. Each time it waits until another node leads, calls `then`
/// to check the old leader while it is cut off, and heals the links.
fn cut_leaders(
    event: &'static str,
    usual: usize,
    cut: impl Fn(&LinkedCluster, usize),
    then: impl Fn(&LinkedCluster, usize),
) -> Silence {
    let mut cluster = LinkedCluster::start(1);
    let watch = Watch::start(&cluster);
    let mut windows = Vec::new();
    for _ in 0..outages(usual) {
        let leader = cluster.wait_for_leader();
        let from = Instant::now();
        cut(&cluster, leader);
        cluster.wait_for_leader_other_than(Some(leader), WAIT_MAX);
        let led = Instant::now();
        watch.wait_for_service_since(led);
        windows.push((from, Instant::now()));
        then(&cluster, leader);
        cluster.links.heal();
        wait_until("the old leader is back", WAIT_MAX, || cluster.nodes[leader].is_ready());
        cluster.wait_until_ready();
    }
    cluster.assert_well();
    let seen = watch.finish();
    Silence::of(event, &seen, &windows)
}

/// The leader's links are cut silently in both directions. The median of the time without an answer
/// is 100 to 600 ms, and the 99th percentile is at most 1400 ms. The upper limits are twice the
/// promise.
#[test]
fn a_leader_cut_off_silently_is_replaced_and_answers_nothing() {
    let _alone = alone();
    let both_ways = |cluster: &LinkedCluster, leader| {
        cluster.set_outgoing(leader, Fault::blackhole());
        cluster.set_incoming(leader, Fault::blackhole());
    };
    let silence = cut_leaders("leader cut off silently", 8, both_ways, |cluster, leader| {
        assert_refuses(cluster, leader);
        wait_until("it notices that it is cut off", NOTICED_MAX, || {
            let node = &cluster.nodes[leader];
            !node.is_ready() && !node.is_leader()
        });
        assert_refuses(cluster, leader);
        assert!(cluster.bytes_lost() > 0, "the cut has cut nothing");
    });
    silence.assert_promised(SILENT_MS);
    silence.assert_at_least(SILENT_MS_MIN);
}

/// The followers no longer hear the leader, but the leader hears them. The median of the time
/// without an answer is 100 to 600 ms, and the 99th percentile is at most 1400 ms. The old leader
/// names the next one to clients.
#[test]
fn a_leader_that_is_not_heard_is_replaced_and_follows() {
    let _alone = alone();
    let outgoing = |cluster: &LinkedCluster, leader| {
        cluster.set_outgoing(leader, Fault::blackhole());
    };
    let silence = cut_leaders("leader not heard", 4, outgoing, |cluster, leader| {
        wait_until("it names the next leader", NOTICED_MAX, || {
            let answer = cluster.nodes[leader].ask("/timestamp");
            let Some(answer) = answer.filter(|answer| answer.status == 409) else { return false };
            let addrs = cluster.others(leader).into_iter().map(|it| cluster.nodes[it].http());
            addrs.into_iter().any(|addr| answer.text() == addr.to_string())
        });
    });
    silence.assert_promised(SILENT_MS);
    silence.assert_at_least(SILENT_MS_MIN);
}

/// The leader hears no follower, but the followers hear the leader. The median of the time without
/// an answer is 100 to 600 ms, and the 99th percentile is at most 1400 ms.
#[test]
fn a_leader_that_hears_no_follower_gives_up_although_it_is_heard() {
    let _alone = alone();
    let incoming = |cluster: &LinkedCluster, leader| {
        cluster.set_incoming(leader, Fault::blackhole());
    };
    let silence = cut_leaders("leader hears nobody", 8, incoming, |cluster, leader| {
        assert_refuses(cluster, leader);
    });
    silence.assert_promised(DEAF_MS);
    silence.assert_at_least(SILENT_MS_MIN);
}

/// The cut holds back all bytes of the leader's links. They arrive when it ends. The median of the
/// time without an answer is 100 to 600 ms, and the 99th percentile is at most 1400 ms.
#[test]
fn messages_that_a_cut_delays_for_seconds_change_nothing() {
    let _alone = alone();
    let both_ways = |cluster: &LinkedCluster, leader| {
        cluster.set_outgoing(leader, Fault::cut(Cut::Hold));
        cluster.set_incoming(leader, Fault::cut(Cut::Hold));
    };
    let silence = cut_leaders("leader's links held", 4, both_ways, |cluster, leader| {
        assert_refuses(cluster, leader);
        let_pass(Duration::from_millis(500));
    });
    silence.assert_promised(SILENT_MS);
    silence.assert_at_least(SILENT_MS_MIN);
}

/// The leader's connections are reset, and new ones too. The median of the time without an answer
/// is at most 300 ms, and the 99th percentile at most 1400 ms.
#[test]
fn a_leader_whose_links_are_refused_is_replaced() {
    let _alone = alone();
    let both_ways = |cluster: &LinkedCluster, leader| {
        cluster.set_outgoing(leader, Fault::cut(Cut::Reset));
    };
    let silence = cut_leaders("leader's links reset", 4, both_ways, |cluster, leader| {
        assert_refuses(cluster, leader);
        assert!(cluster.resets() > 0, "the cut has cut nothing");
    });
    silence.assert_promised(RESET_MS);
}

/// Cuts the link between the two nodes that `pick` names for 2 s. The third node reaches both.
fn part(pick: impl Fn(&LinkedCluster, usize) -> (usize, usize)) {
    let mut cluster = LinkedCluster::start(2);
    let watch = Watch::start(&cluster);
    let leader = cluster.wait_for_leader();
    let (one, other) = pick(&cluster, leader);
    let from = Instant::now();
    cluster.links.set_both(cluster.party(one), cluster.party(other), Fault::blackhole());
    let_pass(PARTITION);
    watch.wait_for_service_since(Instant::now());
    let now = cluster.wait_for_leader();
    say(&format!("bridge: {one} and {other} parted, {leader} led, now {now} leads"));
    assert!(cluster.bytes_lost() > 0, "the cut has cut nothing");
    for end in [one, other] {
        assert!(cluster.nodes[end].is_running(), "a partition is no reason to exit");
    }
    if one == leader && now == leader {
        // The leader has not changed. The node that cannot hear it cannot depose it either, so that
        // node refuses requests.
        assert_refuses(&cluster, other);
        assert!(!cluster.nodes[other].is_ready(), "a node without a leader is not ready");
    }
    cluster.links.heal();
    let to = Instant::now();
    watch.wait_for_service_since(to);
    cluster.assert_well();
    let seen = watch.finish();
    // The bound allows one change of leadership because of the cut, but not two.
    Silence::of("two of three parted", &seen, &[(from, to)])
        .assert_promised((SILENT_MS.1, SILENT_MS.1));
}

/// The leader and one of its two followers cannot reach each other for 2 s. Clients are without an
/// answer for at most 1.4 s, so at most one change of leadership fits in.
#[test]
fn a_leader_that_lost_one_of_two_followers_serves_on_with_the_other() {
    let _alone = alone();
    part(|cluster, leader| (leader, cluster.others(leader)[1]));
}

/// The two followers cannot reach each other for 2 s. Clients are without an answer for at most
/// 1.4 s, so at most one change of leadership fits in.
#[test]
fn followers_that_lost_each_other_do_not_disturb_their_leader() {
    let _alone = alone();
    part(|cluster, leader| (cluster.others(leader)[0], cluster.others(leader)[1]));
}
