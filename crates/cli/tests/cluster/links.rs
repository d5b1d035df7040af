//! Links that are cut: silently, in one direction, between two of three, with a reset, and between
//! clients and nodes. All nodes are driven all the time, the ones that were cut off, too, and every
//! answer is checked.
//!
//! `EPICEPOCH_OUTAGES=200` makes each measured cut happen that often, so that its distribution has
//! a tail.

use std::time::{Duration, Instant};

use epicepoch_link::{Cut, Fault, Party};

use crate::support::{
    Cluster, LinkedCluster, PATIENCE, Silence, Watch, let_pass, outages, say, wait_until,
};

/// `(p50, p99)` of the silence, ms, as `docs/operations.md` promises it.
const SILENT_MS: (u64, u64) = (300, 700);
const DEAF_MS: (u64, u64) = (300, 700);
/// The same for links that are refused: noticed like a process that ends, and the links to the next
/// leader have to be found.
const RESET_MS: (u64, u64) = (150, 700);
/// Shortest median of the silence when a leader loses its peers silently, ms: without them it may
/// not answer, and nobody else leads before an election timeout (200 ms) less a few heartbeats.
const SILENT_MS_MIN: u64 = 100;
/// How long a partition lasts that stops nobody.
const PARTITION: Duration = Duration::from_secs(2);
/// How long a node that is cut off may take to see that it is.
const NOTICED_MAX: Duration = Duration::from_secs(3);

/// What a node that is cut off may say to a client: never an answer, and soon that nobody can be
/// asked. A node that was deposed just before it was cut off names its successor until it sees.
#[track_caller]
fn assert_refuses(cluster: &Cluster, index: usize) {
    wait_until("the node that is cut off says what to do", NOTICED_MAX, || {
        let answer = cluster.nodes[index].ask("/timestamp");
        let answer = answer.expect("a node refuses within its limit");
        assert_ne!(answer.status, 200, "a node that is cut off answers: {answer:?}");
        let codes = [Some("NO_LEADER"), Some("NO_QUORUM")];
        answer.status == 503 && codes.contains(&answer.error()) && answer.text().contains("retry")
    });
}

/// Cuts the leader's links again and again until others have taken over, and heals them.
/// `then` looks at the old leader while it is cut off.
fn cut_leaders(
    event: &'static str,
    cut: impl Fn(&LinkedCluster, usize),
    then: impl Fn(&LinkedCluster, usize),
) -> Silence {
    let mut cluster = LinkedCluster::start(1);
    let watch = Watch::start(&cluster);
    let mut windows = Vec::new();
    for _ in 0..outages(8) {
        let leader = cluster.wait_for_leader();
        let from = Instant::now();
        cut(&cluster, leader);
        cluster.wait_for_leader_other_than(Some(leader), PATIENCE);
        let led = Instant::now();
        watch.wait_for_service_since(led);
        windows.push((from, Instant::now()));
        then(&cluster, leader);
        cluster.links.heal();
        wait_until("the old leader is back", PATIENCE, || cluster.nodes[leader].is_ready());
        cluster.wait_until_ready();
    }
    cluster.assert_well();
    let seen = watch.finish();
    Silence::of(event, &seen, &windows)
}

#[test]
fn a_leader_cut_off_silently_is_replaced_and_answers_nothing() {
    let both_ways = |cluster: &LinkedCluster, leader| {
        cluster.set_outgoing(leader, Fault::blackhole());
        cluster.set_incoming(leader, Fault::blackhole());
    };
    let silence = cut_leaders("leader cut off silently", both_ways, |cluster, leader| {
        assert_refuses(cluster, leader);
        wait_until("it sees that it is cut off", NOTICED_MAX, || {
            let node = &cluster.nodes[leader];
            !node.is_ready() && !node.is_leader()
        });
        assert_refuses(cluster, leader);
        assert!(cluster.bytes_lost() > 0, "the cut has cut nothing");
    });
    silence.assert_promised(SILENT_MS);
    silence.assert_at_least(SILENT_MS_MIN);
}

#[test]
fn a_leader_that_nobody_hears_is_replaced_and_follows() {
    let outgoing = |cluster: &LinkedCluster, leader| {
        cluster.set_outgoing(leader, Fault::blackhole());
    };
    let silence = cut_leaders("leader not heard", outgoing, |cluster, leader| {
        // It hears the next one, and says who that is.
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

#[test]
fn a_leader_that_hears_nobody_gives_up_although_it_is_heard() {
    let incoming = |cluster: &LinkedCluster, leader| {
        cluster.set_incoming(leader, Fault::blackhole());
    };
    let silence = cut_leaders("leader hears nobody", incoming, |cluster, leader| {
        assert_refuses(cluster, leader);
    });
    silence.assert_promised(DEAF_MS);
    silence.assert_at_least(SILENT_MS_MIN);
}

#[test]
fn what_a_cut_held_back_for_seconds_arrives_late_and_changes_nothing() {
    let both_ways = |cluster: &LinkedCluster, leader| {
        cluster.set_outgoing(leader, Fault::cut(Cut::Hold));
        cluster.set_incoming(leader, Fault::cut(Cut::Hold));
    };
    let silence = cut_leaders("leader's links held", both_ways, |cluster, leader| {
        assert_refuses(cluster, leader);
        let_pass(Duration::from_millis(500));
    });
    silence.assert_promised(SILENT_MS);
    silence.assert_at_least(SILENT_MS_MIN);
}

#[test]
fn a_leader_whose_links_are_refused_is_replaced() {
    let both_ways = |cluster: &LinkedCluster, leader| {
        cluster.set_outgoing(leader, Fault::cut(Cut::Reset));
    };
    let silence = cut_leaders("leader's links reset", both_ways, |cluster, leader| {
        assert_refuses(cluster, leader);
        assert!(cluster.resets() > 0, "the cut has cut nothing");
    });
    silence.assert_promised(RESET_MS);
}

/// Cuts the link between two of three for a while: the third reaches both.
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
        // The other end hears no leader and can depose none; it refuses.
        assert_refuses(&cluster, other);
        assert!(!cluster.nodes[other].is_ready(), "a node without a leader is not ready");
    }
    cluster.links.heal();
    let to = Instant::now();
    watch.wait_for_service_since(to);
    cluster.assert_well();
    let seen = watch.finish();
    // One change of leadership at most may come of it.
    Silence::of("two of three parted", &seen, &[(from, to)])
        .assert_promised((SILENT_MS.1, SILENT_MS.1));
}

#[test]
fn a_leader_that_lost_one_of_two_followers_serves_on_with_the_other() {
    part(|cluster, leader| (leader, cluster.others(leader)[1]));
}

#[test]
fn followers_that_lost_each_other_do_not_disturb_their_leader() {
    part(|cluster, leader| (cluster.others(leader)[0], cluster.others(leader)[1]));
}

/// Cuts clients off from the leader for a while; whether leadership stayed where it was, as it
/// should but need not: a busy machine's disk may stall for longer than an election timeout.
fn cut_clients_off(cluster: &LinkedCluster, others: &Watch, cut_off: &Watch) -> bool {
    let leader = cluster.wait_for_leader();
    let party = cluster.party(leader);
    cluster.links.set_both(Party::Client, party, Fault::blackhole());
    let cut = Instant::now();
    while cut.elapsed() < PARTITION {
        if !cut_off.is_silent_since(cut) {
            // Nobody but another leader can have answered.
            cluster.wait_for_leader_other_than(Some(leader), Duration::from_secs(1));
            cluster.links.heal();
            return false;
        }
        let_pass(Duration::from_millis(1));
    }
    others.wait_for_service_since(Instant::now());
    let (there, back) = (Party::Client, party);
    let (there, back) = (cluster.links.passed(there, back), cluster.links.passed(back, there));
    assert!(there.bytes_lost + back.bytes_lost > 0, "nothing was cut: {there:?}, {back:?}");
    cluster.links.heal();
    true
}

#[test]
fn a_client_cut_off_from_the_leader_stops_nobody_else_and_comes_back() {
    let mut cluster = LinkedCluster::start(3);
    let others = Watch::start(&cluster);
    let cut_off = Watch::start_at(cluster.targets_behind_links(), 1);
    let mut stayed = false;
    for _ in 0..5 {
        stayed = stayed || cut_clients_off(&cluster, &others, &cut_off);
        cut_off.wait_for_service_since(Instant::now());
        cluster.assert_well();
    }
    assert!(stayed, "leadership has moved each time");
    cut_off.finish();
    others.finish();
}

#[test]
fn answers_that_reach_their_client_late_are_in_order_all_the_same() {
    let mut cluster = LinkedCluster::start(4);
    let mut targets = cluster.targets_behind_links();
    targets.extend(cluster.targets());
    for node in 0..cluster.nodes.len() {
        let late = Fault { jitter: Duration::from_millis(120), ..Fault::NONE };
        cluster.links.set_both(Party::Client, cluster.party(node), late);
    }
    let watch = Watch::start_at(targets, 4);
    let_pass(PARTITION);
    watch.wait_for_service_since(Instant::now());
    let leader = cluster.party(cluster.wait_for_leader());
    assert!(cluster.links.passed(leader, Party::Client).bytes > 0, "no answer was late");
    cluster.assert_well();
    watch.finish();
}
