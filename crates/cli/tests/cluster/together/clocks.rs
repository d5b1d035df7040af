//! Tests of `epicepoch clock`: it shows wrong clocks, and moves the epoch ahead. A test build is
//! needed, because only that can break its clock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use epicepoch_wire::Timestamp;
use serde_json::Value;

use crate::support::operator::told;
use crate::support::{Calling, Cluster, Faults, Node, WAIT_MAX, Watch, wait_until};

/// So long are epochs ahead of wall time after the command. The test ends when time has caught up.
const AHEAD_S: u64 = 20;
const HOUR_S: u64 = 3_600;
/// The command may be wrong by so much about when time has caught up.
const TOLERANCE: Duration = Duration::from_millis(1_500);

/// Returns the exit code of `epicepoch clock`, and its document.
fn clock(cluster: &Cluster) -> (Option<i32>, Value) {
    let output = cluster.operate(&["clock", "--output", "json"]);
    (output.status.code(), serde_json::from_slice(&output.stdout).expect("JSON"))
}

/// Gets a timestamp with `epicepoch get`.
fn taken(cluster: &Cluster) -> Timestamp {
    let said = cluster.order(&["get"]);
    said.split_whitespace().next().expect("a timestamp").parse().expect("a timestamp")
}

/// The epoch that is so many seconds ahead of wall time.
fn ahead(seconds: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is past 1970");
    now.as_nanos() as u64 + seconds * 1_000_000_000
}

#[test]
fn an_operator_sees_which_clock_is_off_and_how_far_the_ceiling_is_ahead() {
    let mut cluster = Cluster::start();
    wait_until("all clocks are followed", WAIT_MAX, || clock(&cluster).0 == Some(0));
    let (_, document) = clock(&cluster);
    for node in document["members"].as_array().expect("nodes") {
        let number = |name: &str| node[name].as_f64().expect("a number");
        assert!(number("offsetMs").abs() < 250.0, "{node}");
        assert!((-500.0..1100.0).contains(&number("leadMs")), "{node}");
    }
    let broken = cluster.others(cluster.wait_for_leader())[0];
    cluster.nodes[broken].break_with(Faults::wall_offset_hours(1));
    wait_until("the wrong one is outvoted", WAIT_MAX, || {
        let (code, document) = clock(&cluster);
        let node = &document["members"][broken];
        let is_outvoted = node["status"] == "outvoted";
        let offset_ms = node["offsetMs"].as_f64().expect("a number");
        assert_eq!(code, Some(i32::from(is_outvoted)), "{node}");
        is_outvoted && (offset_ms - 3_600_000.0).abs() < 1000.0
    });
    let text = cluster.operate(&["clock"]).stdout;
    assert!(String::from_utf8_lossy(&text).contains("outvoted"));
    cluster.nodes[broken].kill();
    assert_eq!(clock(&cluster).0, Some(1), "a node that does not answer");
}

#[test]
fn no_call_fails_while_the_epoch_is_moved_ahead_and_later_answers_are_above_it() {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let calling = Calling::start(&cluster);
    // A time two hours ahead is refused, because one hour is allowed.
    let far = format!("{}ns", ahead(2 * HOUR_S));
    let words = ["ahead of the clock", "3600 s are allowed", "allow more with --ahead-max"];
    cluster.assert_refused(&["clock", "advance-to", &far], &words);
    cluster.assert_refused(&["clock", "advance-to", &far, "--yes"], &words);
    // Every answer is above a time in the past, so the command has nothing to do.
    let past = format!("{}ns", taken(&cluster).epoch.0 - 1);
    let said = cluster.order(&["clock", "advance-to", &past, "--yes"]);
    assert!(said.contains("no change needed: "), "{said}");
    // A command without `--yes` only shows its plan.
    let to = ahead(AHEAD_S);
    let time = format!("{to}ns");
    for order in [&["clock", "advance-to", &time][..], &["clock", "advance-to", &time, "--dry-run"]]
    {
        let said = cluster.order(order);
        assert!(said.contains("would be above") && said.contains("nothing was changed"), "{said}");
    }
    let moved = |node: &Node| node.log().contains("an operator has moved");
    assert!(!cluster.nodes.iter().any(moved), "it logs that the epoch was moved");
    assert!(taken(&cluster).epoch.0 < to, "a plan has changed something");
    let said = cluster.order(&["clock", "advance-to", &time, "--yes"]);
    assert!(said.contains("from now on") && said.contains("stand still"), "{said}");
    assert!(taken(&cluster).epoch.0 > to);
    assert!(cluster.nodes.iter().any(moved), "no node logs that the epoch was moved");
    // The same command is given again. It changes nothing.
    let said = cluster.order(&["clock", "advance-to", &time, "--yes"]);
    assert!(said.contains("already"), "{said}");
    let table = cluster.operate(&["clock"]).stdout;
    assert!(String::from_utf8_lossy(&table).contains("until time has caught up in"));
    let recovers_in_ms = clock(&cluster).1["recoversInMs"].as_f64().expect("a number");
    assert!(recovers_in_ms > 0.0 && recovers_in_ms < 1e3 * AHEAD_S as f64 + 1_100.0, "{table:?}");
    // The leader is killed. The next one begins above the earlier timestamps, and warns of it.
    let before = taken(&cluster);
    let leader = cluster.wait_for_leader();
    cluster.nodes[leader].kill();
    watch.wait_for_service_since(Instant::now());
    assert!(taken(&cluster) > before);
    let warned = |at: &usize| cluster.nodes[*at].log().contains("begins ahead of its clock");
    assert!(cluster.others(leader).iter().any(warned), "the next leader does not warn");
    cluster.nodes[leader].start();
    // Time catches up, when `epicepoch clock` says so.
    let (mut asked, mut answered) = (Instant::now(), Instant::now());
    let mut recovers_in_ms = None;
    wait_until("a leader knows when", WAIT_MAX, || {
        asked = Instant::now();
        recovers_in_ms = clock(&cluster).1["recoversInMs"].as_f64();
        answered = Instant::now();
        recovers_in_ms.is_some()
    });
    let recovers_in = Duration::from_secs_f64(recovers_in_ms.expect("a number") / 1e3);
    // The last moment at which time had not caught up yet.
    let mut before = asked;
    wait_until("time has caught up", WAIT_MAX, || {
        let (epoch, now) = (taken(&cluster).epoch.0, Instant::now());
        let has_caught_up = epoch <= ahead(0);
        if !has_caught_up {
            before = now;
        }
        has_caught_up
    });
    let recovered = Instant::now();
    assert!(recovered + TOLERANCE >= asked + recovers_in, "{:?}", recovered - asked);
    assert!(before <= answered + recovers_in + TOLERANCE, "{:?}", before - answered);
    wait_until("the table says so", WAIT_MAX, || {
        !told(&cluster, &["clock"]).contains("until time has caught up in")
    });
    cluster.assert_well();
    watch.wait_for_service_since(Instant::now());
    watch.finish_with(&calling.finish());
}
