//! Wall clocks that are wrong by an hour, on real processes. Needs a test build.

use std::time::{Duration, Instant};

use crate::support::watch::is_at_wall_time;
use crate::support::{Cluster, Faults, PATIENCE, Silence, Watch, let_pass, wait_until};

/// How long a broken clock is watched.
const BROKEN: Duration = Duration::from_secs(3);
/// Longest silence around a clock accident, ms: a change of leadership may come of it.
const SILENCE_MS: u64 = 1400;

enum Who {
    Leader,
    Follower,
}

/// One node's clock jumps and later jumps back; the service goes on at true wall time.
fn live_through_a_jump(hours: i64, who: &Who) {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let leader = cluster.wait_for_leader();
    let broken = match who {
        Who::Leader => leader,
        Who::Follower => cluster.others(leader)[0],
    };
    let from = Instant::now();
    cluster.nodes[broken].break_with(Faults::wall_offset_hours(hours));
    let_pass(BROKEN);
    watch.wait_for_service_since(Instant::now());
    if matches!(who, Who::Leader) {
        cluster.wait_for_leader_other_than(Some(broken), PATIENCE);
    }
    cluster.nodes[broken].break_with(Faults::NONE);
    let_pass(BROKEN / 2);
    watch.wait_for_service_since(Instant::now());
    let to = Instant::now();
    cluster.assert_well();
    wait_until("epochs are at wall time", PATIENCE, || is_at_wall_time(&cluster));
    let seen = watch.finish();
    seen.assert_epochs_at_wall_time();
    Silence::of("clock an hour off", &seen.times, &[(from, to)])
        .assert_within(SILENCE_MS, SILENCE_MS);
}

#[test]
fn a_leader_whose_clock_is_set_back_an_hour_never_stops_or_repeats() {
    live_through_a_jump(-1, &Who::Leader);
}

#[test]
fn a_leader_whose_clock_is_set_ahead_an_hour_is_not_followed() {
    live_through_a_jump(1, &Who::Leader);
}

#[test]
fn a_follower_whose_clock_is_set_ahead_an_hour_is_not_followed() {
    live_through_a_jump(1, &Who::Follower);
}

#[test]
fn a_next_leader_whose_clock_is_an_hour_behind_never_stops_or_repeats() {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let from = Instant::now();
    // Both that may follow, so that the next leader is certainly one of them. Now the wrong
    // clocks are the majority: the epoch may stand still, but never goes back.
    let leader = cluster.wait_for_leader();
    for other in cluster.others(leader) {
        cluster.nodes[other].break_with(Faults::wall_offset_hours(-1));
    }
    let_pass(Duration::from_millis(500));
    cluster.nodes[leader].kill();
    watch.wait_for_service_since(Instant::now());
    let to = Instant::now();
    cluster.nodes[leader].start();
    cluster.wait_until_ready();
    let_pass(Duration::from_secs(1));
    for node in &cluster.nodes {
        node.break_with(Faults::NONE);
    }
    wait_until("epochs are at wall time again", PATIENCE, || is_at_wall_time(&cluster));
    cluster.assert_well();
    let seen = watch.finish();
    seen.assert_epochs_not_ahead();
    Silence::of("next leader an hour behind", &seen.times, &[(from, to)])
        .assert_within(SILENCE_MS, SILENCE_MS);
}

#[test]
fn clocks_set_back_an_hour_across_a_restart_never_stop_or_repeat() {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    cluster.kill_all();
    for node in &cluster.nodes {
        node.break_with(Faults::wall_offset_hours(-1));
    }
    cluster.start_all();
    watch.wait_for_service_since(Instant::now());
    cluster.wait_until_ready();
    let_pass(Duration::from_secs(1));
    watch.wait_for_service_since(Instant::now());
    for node in &cluster.nodes {
        node.break_with(Faults::NONE);
    }
    wait_until("epochs are at wall time again", PATIENCE, || is_at_wall_time(&cluster));
    cluster.assert_well();
    let seen = watch.finish();
    seen.assert_epochs_not_ahead();
}

#[test]
fn a_leader_restarted_with_a_clock_an_hour_behind_never_repeats() {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let leader = cluster.wait_for_leader();
    cluster.nodes[leader].kill();
    watch.wait_for_service_since(Instant::now());
    cluster.nodes[leader].break_with(Faults::wall_offset_hours(-1));
    cluster.nodes[leader].start();
    cluster.wait_until_ready();
    // It may lead again: the others go one after the other.
    for other in cluster.others(leader) {
        cluster.nodes[other].kill();
        watch.wait_for_service_since(Instant::now());
        cluster.nodes[other].start();
        cluster.wait_until_ready();
    }
    cluster.nodes[leader].break_with(Faults::NONE);
    wait_until("epochs are at wall time again", PATIENCE, || is_at_wall_time(&cluster));
    cluster.assert_well();
    let seen = watch.finish();
    seen.assert_epochs_not_ahead();
}
