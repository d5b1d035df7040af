//! Wall clocks are wrong by hours. Tests what operators see, and what happens at a restart. Needs a
//! test build, because only that can break its clock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::support::watch::is_at_wall_time;
use crate::support::{Cluster, Faults, Node, WAIT_MAX, Watch, let_pass, say, wait_until};

#[test]
fn an_operator_sees_which_clock_is_off_and_how_far_the_ceiling_is_ahead() {
    let mut cluster = Cluster::start();
    let clocks = |cluster: &Cluster| {
        let output = cluster.operate(&["clock", "--json"]);
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (output.status.code(), document["nodes"].as_array().expect("nodes").clone())
    };
    wait_until("all clocks are followed", WAIT_MAX, || clocks(&cluster).0 == Some(0));
    let (_, nodes) = clocks(&cluster);
    for node in &nodes {
        let number = |name: &str| node[name].as_f64().expect("a number");
        assert!(number("offsetMs").abs() < 250.0, "{node}");
        assert!((-500.0..1100.0).contains(&number("leadMs")), "{node}");
    }
    let broken = cluster.others(cluster.wait_for_leader())[0];
    cluster.nodes[broken].break_with(Faults::wall_offset_hours(1));
    wait_until("the wrong one is outvoted", WAIT_MAX, || {
        let (code, nodes) = clocks(&cluster);
        let node = &nodes[broken];
        let is_outvoted = node["status"] == "outvoted";
        let offset_ms = node["offsetMs"].as_f64().expect("a number");
        assert_eq!(code, Some(i32::from(is_outvoted)), "{node}");
        is_outvoted && (offset_ms - 3_600_000.0).abs() < 1000.0
    });
    let text = cluster.operate(&["clock"]).stdout;
    assert!(String::from_utf8_lossy(&text).contains("outvoted"));
    cluster.nodes[broken].kill();
    assert_eq!(clocks(&cluster).0, Some(1), "a node that does not answer");
}

#[test]
fn a_leader_restarted_with_a_clock_hours_ahead_is_not_followed() {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let broken = cluster.wait_for_leader();
    cluster.nodes[broken].kill();
    watch.wait_for_service_since(Instant::now());
    cluster.nodes[broken].break_with(Faults::wall_offset_hours(5));
    cluster.nodes[broken].start();
    cluster.wait_until_ready();
    // The node with the wrong clock may lead again. To make it lead, the test kills the other nodes
    // one after the other.
    for other in cluster.others(broken) {
        cluster.nodes[other].kill();
        watch.wait_for_service_since(Instant::now());
        cluster.nodes[other].start();
        cluster.wait_until_ready();
    }
    cluster.nodes[broken].break_with(Faults::NONE);
    wait_until("epochs are at wall time again", WAIT_MAX, || is_at_wall_time(&cluster));
    cluster.assert_well();
    watch.finish().assert_epochs_not_ahead();
}

/// Makes the ceiling stay ahead of all clocks. First all clocks are ahead by the same time, so all
/// nodes follow them. Then the clocks are right again. All nodes restart both times, like machines
/// whose clocks were set while they were off.
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

/// Returns how far the epoch of a fresh timestamp is ahead of true time, ms.
fn ahead_ms(cluster: &Cluster) -> i128 {
    let mut epoch = None;
    wait_until("a leader answers", WAIT_MAX, || {
        let mut answers = cluster.nodes.iter().filter_map(|node| node.ask("/timestamp"));
        let answer = answers.find(|answer| answer.status == 200);
        epoch = answer.and_then(|it| it.body.first_chunk().map(|it| u64::from_be_bytes(*it)));
        epoch.is_some()
    });
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is past 1970");
    (i128::from(epoch.expect("the wait is over")) - now.as_nanos() as i128) / 1_000_000
}

const AHEAD_WORDS: &str = "epochs are ahead of the clocks";

/// Repeats `epicepoch clock` until it reports that all clocks are followed. Returns three things:
/// when the last run began, in how many ms wall time will have caught up by that run, and its
/// output.
fn recovers_in_ms(cluster: &Cluster) -> (Instant, f64, String) {
    let mut asked = Instant::now();
    let mut recovers_in_ms = None;
    wait_until("all clocks are followed, and the leader knows when", WAIT_MAX, || {
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
fn a_ceiling_hours_ahead_of_all_clocks_is_reported_and_epochs_stay_above_it() {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    poison(&mut cluster, &watch, 2 * 3_600_000);
    let ahead = ahead_ms(&cluster);
    assert!((7_100_000..7_300_000).contains(&ahead), "epochs are {ahead} ms ahead");
    let (_, recovers_in_ms, said) = recovers_in_ms(&cluster);
    assert!((7_100_000.0..7_300_000.0).contains(&recovers_in_ms), "{said}");
    assert!(said.contains(AHEAD_WORDS), "{said}");
    let is_warned = |node: &Node| node.log().contains("begins ahead of its clock");
    assert!(cluster.nodes.iter().any(is_warned), "no node warned of it");
    // The leader is killed. The epochs of the next leader are as far ahead, and its timestamps are
    // above the earlier ones.
    let leader = cluster.wait_for_leader();
    cluster.nodes[leader].kill();
    watch.wait_for_service_since(Instant::now());
    assert!(ahead_ms(&cluster) > 7_000_000);
    cluster.nodes[leader].start();
    cluster.assert_well();
    watch.finish();
}

#[test]
fn a_ceiling_seconds_ahead_of_all_clocks_heals_when_time_has_caught_up() {
    const AHEAD_MS: i64 = 10_000;
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    poison(&mut cluster, &watch, AHEAD_MS);
    let (from, told_ms, said) = recovers_in_ms(&cluster);
    assert!((0.0..AHEAD_MS as f64 + 2_500.0).contains(&told_ms), "{said}");
    assert!(said.contains(AHEAD_WORDS), "{said}");
    wait_until("epochs are at wall time again", WAIT_MAX, || ahead_ms(&cluster) <= 0);
    let healed = from.elapsed().as_secs_f64() * 1e3;
    say(&format!(
        "a ceiling ahead of the clocks: {told_ms:.0} ms were announced, {healed:.0} ms passed"
    ));
    assert!((healed - told_ms).abs() < 1_500.0, "{healed} ms, and {told_ms} ms were announced");
    wait_until("it is not reported any more", WAIT_MAX, || {
        let (_, recovers_in_ms, said) = recovers_in_ms(&cluster);
        recovers_in_ms < 1.0 && !said.contains(AHEAD_WORDS)
    });
    wait_until("epochs are at wall time", WAIT_MAX, || is_at_wall_time(&cluster));
    cluster.assert_well();
    watch.finish();
}
