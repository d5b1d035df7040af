//! The follower that the leader asks is lost: its process is killed or paused, or its links are cut
//! silently. The leader leads on, and asks the other follower. The tests measure the longest time
//! without an answer meanwhile, and check every answer.
//!
//! `EPICEPOCH_OUTAGES=100` measures that many events of each kind.

use std::ops::DerefMut;
use std::time::{Duration, Instant};

use epicepoch_link::Fault;

use crate::support::{
    Campaigns, Cluster, LinkedCluster, Silence, Watch, alone, let_pass, outages, undisturbed,
    wait_until,
};

/// Promised `(p50, p99)` of the longest time without an answer, ms (`docs/operations/outages.md`).
const FOLLOWER_MS: (u64, u64) = (5, 20);
/// How long a follower is lost: long enough that the round that asked it has asked the others, and
/// shorter than an election timeout (200 ms).
const LOSS: Duration = Duration::from_millis(150);
/// The leader asks a follower if that one answers at least so many rounds while it is watched.
const ROUNDS_MIN: f64 = 50.0;
/// Within this time, one of two followers has answered so many rounds.
const ASKED_MAX: Duration = Duration::from_secs(30);

/// Loses the follower that is asked again and again, and brings it back. Its loss deposes no leader.
fn lose<C: DerefMut<Target = Cluster>>(
    event: &'static str,
    mut cluster: C,
    lose: impl Fn(&mut C, usize),
    bring_back: impl Fn(&mut C, usize),
) -> C {
    let watch = Watch::start(&cluster);
    let mut windows = Vec::new();
    for _ in 0..outages(8) {
        undisturbed(|| {
            let campaigns = Campaigns::so_far(&cluster);
            let leader = cluster.wait_for_leader();
            await_links(&cluster, leader);
            let follower = asked(&cluster, leader);
            let from = Instant::now();
            lose(&mut cluster, follower);
            let_pass(LOSS.saturating_sub(from.elapsed()));
            watch.wait_for_service_since(Instant::now());
            let window = (from, Instant::now());
            bring_back(&mut cluster, follower);
            cluster.wait_until_ready();
            let is_led_on = cluster.wait_for_leader() == leader;
            campaigns.judge(&cluster, 0, is_led_on, "its leader leads on")?;
            windows.push(window);
            Ok(())
        });
    }
    cluster.assert_well();
    let seen = watch.finish();
    Silence::of(event, &seen, &windows).assert_promised(FOLLOWER_MS);
    cluster
}

/// Waits until the leader is connected to both followers. One that has come back answers requests
/// before that, and losing the other one then would be a loss of two.
fn await_links(cluster: &Cluster, leader: usize) {
    wait_until("the leader has all its links", ASKED_MAX, || {
        let count = |name: &str| cluster.nodes[leader].metric(name);
        let expected = count("epicepoch_confirm_links_expected");
        expected.is_some() && count("epicepoch_confirm_links") == expected
    });
}

/// Waits until a follower has answered some rounds, and returns the one that has answered the most.
fn asked(cluster: &Cluster, leader: usize) -> usize {
    let others = cluster.others(leader);
    let count = |index: usize| {
        let name = "epicepoch_confirms_answered_total{answer=\"yes\"}";
        cluster.nodes[index].metric(name).expect("a follower has metrics")
    };
    let before: Vec<f64> = others.iter().map(|it| count(*it)).collect();
    let mut most = (0.0, others[0]);
    wait_until("a follower is asked", ASKED_MAX, || {
        let answered = others.iter().zip(&before).map(|(it, before)| (count(*it) - before, *it));
        most = answered.max_by(|a, b| a.0.total_cmp(&b.0)).expect("two followers");
        most.0 >= ROUNDS_MIN
    });
    most.1
}

/// The median of the longest time without an answer is at most 10 ms, and the 99th percentile at
/// most 40 ms.
#[test]
fn a_follower_that_is_asked_and_cut_off_silently_costs_one_late_answer() {
    let _alone = alone();
    let cut = |cluster: &mut LinkedCluster, follower| {
        cluster.set_outgoing(follower, Fault::blackhole());
        cluster.set_incoming(follower, Fault::blackhole());
    };
    let heal = |cluster: &mut LinkedCluster, _| cluster.links.heal();
    let cluster = lose("asked follower cut off silently", LinkedCluster::start(3), cut, heal);
    assert!(cluster.bytes_lost() > 0, "the cut has cut nothing");
}

/// The median of the longest time without an answer is at most 10 ms, and the 99th percentile at
/// most 40 ms.
#[test]
fn a_follower_that_is_asked_and_paused_costs_one_late_answer() {
    let _alone = alone();
    let pause = |cluster: &mut Box<Cluster>, follower: usize| cluster.nodes[follower].pause();
    let resume = |cluster: &mut Box<Cluster>, follower: usize| cluster.nodes[follower].resume();
    lose("asked follower paused", Box::new(Cluster::start()), pause, resume);
}

/// The median of the longest time without an answer is at most 10 ms, and the 99th percentile at
/// most 40 ms.
#[test]
fn a_follower_that_is_asked_and_killed_costs_no_late_answer() {
    let _alone = alone();
    let kill = |cluster: &mut Box<Cluster>, follower: usize| cluster.nodes[follower].kill();
    let start = |cluster: &mut Box<Cluster>, follower: usize| cluster.nodes[follower].start();
    lose("asked follower killed", Box::new(Cluster::start()), kill, start);
}
