//! Wall clocks that are wrong by hours, on real processes. Needs a test build.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::support::watch::{Seen, is_at_wall_time};
use crate::support::{Cluster, Faults, Node, PATIENCE, Silence, Watch, let_pass, say, wait_until};

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
    live_through_jumps(&[hours], who);
}

/// Clocks jump one after the other, to so many hours off, and back together: that of one follower
/// each time, or of whoever leads then.
fn live_through_jumps(hours: &[i64], who: &Who) {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let follower = cluster.others(cluster.wait_for_leader())[0];
    let from = Instant::now();
    for hours in hours {
        let broken = match who {
            Who::Leader => cluster.wait_for_leader(),
            Who::Follower => follower,
        };
        cluster.nodes[broken].break_with(Faults::wall_offset_hours(*hours));
        let_pass(BROKEN);
        watch.wait_for_service_since(Instant::now());
        if matches!(who, Who::Leader) {
            cluster.wait_for_leader_other_than(Some(broken), PATIENCE);
        }
    }
    cluster.nodes.iter().for_each(|node| node.break_with(Faults::NONE));
    let_pass(BROKEN / 2);
    watch.wait_for_service_since(Instant::now());
    let to = Instant::now();
    cluster.assert_well();
    wait_until("epochs are at wall time", PATIENCE, || is_at_wall_time(&cluster));
    let seen = watch.finish();
    seen.assert_epochs_at_wall_time();
    Silence::of("clock hours off", &seen, &[(from, to)]).assert_within(SILENCE_MS);
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
fn a_follower_whose_clock_is_set_back_hours_and_then_ahead_is_not_followed() {
    live_through_jumps(&[-5, 5], &Who::Follower);
}

/// The second meets a cluster whose first leader is as far off the other way: one clock is right, and
/// it is the median.
#[test]
fn leaders_whose_clocks_step_five_hours_back_and_ahead_are_not_followed() {
    live_through_jumps(&[-5, 5], &Who::Leader);
}

#[test]
fn an_operator_sees_whose_clock_is_off_and_how_far_the_ceiling_is_ahead() {
    let mut cluster = Cluster::start();
    let clocks = |cluster: &Cluster| {
        let output = cluster.operate(&["clock", "--json"]);
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
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

/// One node is restarted with a clock so many hours off, and may lead again: the others go one after
/// the other.
fn live_through_a_restart(hours: i64, who: &Who) -> Seen {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let leader = cluster.wait_for_leader();
    let broken = match who {
        Who::Leader => leader,
        Who::Follower => cluster.others(leader)[0],
    };
    cluster.nodes[broken].kill();
    watch.wait_for_service_since(Instant::now());
    cluster.nodes[broken].break_with(Faults::wall_offset_hours(hours));
    cluster.nodes[broken].start();
    cluster.wait_until_ready();
    for other in cluster.others(broken) {
        cluster.nodes[other].kill();
        watch.wait_for_service_since(Instant::now());
        cluster.nodes[other].start();
        cluster.wait_until_ready();
    }
    cluster.nodes[broken].break_with(Faults::NONE);
    wait_until("epochs are at wall time again", PATIENCE, || is_at_wall_time(&cluster));
    cluster.assert_well();
    watch.finish()
}

#[test]
fn a_leader_restarted_with_a_clock_an_hour_behind_never_repeats() {
    live_through_a_restart(-1, &Who::Leader).assert_epochs_not_ahead();
}

#[test]
fn a_leader_restarted_with_a_clock_hours_ahead_is_not_followed() {
    live_through_a_restart(5, &Who::Leader).assert_epochs_not_ahead();
}

#[test]
fn a_follower_restarted_with_a_clock_an_hour_behind_never_repeats() {
    live_through_a_restart(-1, &Who::Follower).assert_epochs_not_ahead();
}

#[test]
fn a_follower_restarted_with_a_clock_hours_ahead_is_not_followed() {
    live_through_a_restart(5, &Who::Follower).assert_epochs_not_ahead();
}

/// All clocks are ahead and agree, so everybody follows them, and then they are right again: the
/// ceiling is poisoned. With a restart both times, as of machines whose clocks were set while they
/// were off.
fn poison(cluster: &mut Cluster, watch: &Watch, ahead_ms: i64) {
    cluster.kill_all();
    for node in &cluster.nodes {
        node.break_with(Faults { wall_offset_ms: ahead_ms, ..Faults::NONE });
    }
    cluster.start_all();
    watch.wait_for_service_since(Instant::now());
    cluster.wait_until_ready();
    let_pass(Duration::from_secs(1));
    cluster.kill_all();
    cluster.nodes.iter().for_each(|node| node.break_with(Faults::NONE));
    cluster.start_all();
    watch.wait_for_service_since(Instant::now());
    cluster.wait_until_ready();
}

/// How far the epoch of a fresh timestamp is ahead of true time, ms.
fn ahead_ms(cluster: &Cluster) -> i128 {
    let answer = cluster.order(&["get", "--format", "json"]);
    let answer: Value = serde_json::from_str(answer.lines().next().expect("a line")).expect("JSON");
    let epoch: i128 = answer["epoch"].as_str().expect("an epoch").parse().expect("a number");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is past 1970");
    (epoch - now.as_nanos() as i128) / 1_000_000
}

const AHEAD_WORDS: &str = "epochs are ahead of the clocks";

/// `epicepoch clock`, which everybody answers with a clock that is followed: when time has caught up,
/// ms from when that was asked, and what is said.
fn recovers_in_ms(cluster: &Cluster) -> (Instant, f64, String) {
    let mut asked = Instant::now();
    let mut recovers_in_ms = None;
    wait_until("all clocks are followed, and the leader knows", PATIENCE, || {
        asked = Instant::now();
        let output = cluster.operate(&["clock", "--json"]);
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        recovers_in_ms = document["recoversInMs"].as_f64();
        output.status.success() && recovers_in_ms.is_some()
    });
    let text = cluster.operate(&["clock"]).stdout;
    (asked, recovers_in_ms.expect("the wait is over"), String::from_utf8(text).expect("UTF-8"))
}

#[test]
fn a_ceiling_that_all_clocks_have_carried_hours_ahead_is_told_and_served_on_above() {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    poison(&mut cluster, &watch, 2 * 3_600_000);
    let ahead = ahead_ms(&cluster);
    assert!((7_100_000..7_300_000).contains(&ahead), "epochs are {ahead} ms ahead");
    let (_, recovers_in_ms, said) = recovers_in_ms(&cluster);
    assert!((7_100_000.0..7_300_000.0).contains(&recovers_in_ms), "{said}");
    assert!(said.contains(AHEAD_WORDS), "{said}");
    let is_warned = |node: &Node| node.log().contains("begins ahead of its clock");
    assert!(cluster.nodes.iter().any(is_warned), "nobody has warned of it");
    // Whoever leads next is as far ahead, and above.
    let leader = cluster.wait_for_leader();
    cluster.nodes[leader].kill();
    watch.wait_for_service_since(Instant::now());
    assert!(ahead_ms(&cluster) > 7_000_000);
    cluster.nodes[leader].start();
    cluster.assert_well();
    watch.finish();
}

#[test]
fn a_ceiling_that_all_clocks_have_carried_seconds_ahead_heals_when_time_has_caught_up() {
    const AHEAD_MS: i64 = 12_000;
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    poison(&mut cluster, &watch, AHEAD_MS);
    let (from, told_ms, said) = recovers_in_ms(&cluster);
    assert!((2_500.0..AHEAD_MS as f64 + 2_500.0).contains(&told_ms), "{said}");
    assert!(said.contains(AHEAD_WORDS), "{said}");
    wait_until("epochs are at wall time again", PATIENCE, || ahead_ms(&cluster) <= 0);
    let healed = from.elapsed().as_secs_f64() * 1e3;
    say(&format!("a poisoned ceiling: {told_ms:.0} ms were told, {healed:.0} ms passed"));
    assert!((healed - told_ms).abs() < 1_500.0, "{healed} ms, and {told_ms} ms were told");
    wait_until("nothing is said of it any more", PATIENCE, || {
        let (_, recovers_in_ms, said) = recovers_in_ms(&cluster);
        recovers_in_ms < 1.0 && !said.contains(AHEAD_WORDS)
    });
    wait_until("epochs are at wall time", PATIENCE, || is_at_wall_time(&cluster));
    cluster.assert_well();
    watch.finish();
}
