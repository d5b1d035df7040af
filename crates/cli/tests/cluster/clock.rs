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
    Silence::of("clock an hour off", &seen, &[(from, to)]).assert_within(SILENCE_MS);
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
fn an_operator_sees_whose_clock_is_off_and_how_far_the_ceiling_is_ahead() {
    let mut cluster = Cluster::start();
    let clocks = |cluster: &Cluster| {
        let output = cluster.operate(&["clock", "--json"]);
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (output.status.code(), document["nodes"].as_array().expect("nodes").clone())
    };
    wait_until("all clocks are followed", PATIENCE, || clocks(&cluster).0 == Some(0));
    let (_, nodes) = clocks(&cluster);
    for node in &nodes {
        let number = |name: &str| node[name].as_f64().expect("a number");
        assert!(number("offsetMs").abs() < 100.0, "{node}");
        assert!((-500.0..1100.0).contains(&number("leadMs")), "{node}");
    }
    let broken = cluster.others(cluster.wait_for_leader())[0];
    cluster.nodes[broken].break_with(Faults::wall_offset_hours(1));
    wait_until("the wrong one is outvoted", PATIENCE, || {
        let (code, nodes) = clocks(&cluster);
        let node = &nodes[broken];
        let is_told = node["status"] == "outvoted";
        let offset_ms = node["offsetMs"].as_f64().expect("a number");
        assert_eq!(code, Some(i32::from(is_told)), "{node}");
        is_told && (offset_ms - 3_600_000.0).abs() < 1000.0
    });
    let text = cluster.operate(&["clock"]).stdout;
    assert!(String::from_utf8_lossy(&text).contains("outvoted"));
    cluster.nodes[broken].kill();
    assert_eq!(clocks(&cluster).0, Some(1), "a node that does not answer");
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
    Silence::of("next leader an hour behind", &seen, &[(from, to)]).assert_within(SILENCE_MS);
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
