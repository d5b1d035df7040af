//! Tests of `epicepoch clock advance-to`, which moves the epoch ahead: under load, up to a bound,
//! and only with `--yes`.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use epicepoch_wire::Timestamp;

use crate::support::{
    Calling, Campaigns, Cluster, Disturbed, WAIT_MAX, Watch, undisturbed, wait_until,
};

/// The default reservation window, ms.
const WINDOW_MS: f64 = 1_000.0;
/// Largest difference between the clock readings of two nodes, ms. All nodes read the same clock,
/// but not at the same moment.
const CLOCKS_APART_MS: f64 = 100.0;
const MINUTE_NS: u64 = 60_000_000_000;

fn ahead(ns: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is past 1970");
    now.as_nanos() as u64 + ns
}

/// Gets a timestamp with `epicepoch get`.
fn taken(cluster: &Cluster) -> Timestamp {
    let said = cluster.order(&["get"]);
    said.split_whitespace().next().expect("a timestamp").parse().expect("a timestamp")
}

/// Returns the highest ceiling that any node has applied.
fn ceiling(cluster: &Cluster) -> u64 {
    let output = cluster.operate(&["clock", "--json"]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let nodes = document["nodes"].as_array().expect("nodes").iter();
    let ceilings = nodes.filter_map(|node| node["ceiling"].as_str()?.parse().ok());
    ceilings.max().expect("a ceiling")
}

/// Checks how long, by `epicepoch clock`, wall time needs to catch up with the epochs. It must
/// catch up with `to`, and with the few epochs above `to` that were given or reserved.
fn assert_recovers_at(cluster: &Cluster, to: u64) {
    let before = ahead(0);
    let output = cluster.operate(&["clock", "--json"]);
    let after = ahead(0);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let recovers_in_ms = document["recoversInMs"].as_f64().expect("when time has caught up");
    let least_ms = to.saturating_sub(after) as f64 / 1e6 - CLOCKS_APART_MS;
    let most_ms = (to - before) as f64 / 1e6 + WINDOW_MS + CLOCKS_APART_MS;
    assert!((least_ms..most_ms).contains(&recovers_in_ms), "{least_ms} to {most_ms}: {document}");
}

#[test]
fn no_call_fails_while_the_epoch_is_moved_ahead_and_later_answers_are_above_it() {
    undisturbed(advance_under_load);
}

fn advance_under_load() -> Result<(), Disturbed> {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let calling = Calling::start(&cluster);

    // A time two hours ahead is refused, because one hour is allowed. Nothing changes.
    let far = format!("{}ns", ahead(120 * MINUTE_NS));
    let words = ["ahead of the clock", "3600 s are allowed", "allow more with --ahead-max"];
    cluster.assert_refused(&["clock", "advance-to", &far], &words);
    cluster.assert_refused(&["clock", "advance-to", &far, "--yes"], &words);
    // Every answer is above a time in the past, so the command has nothing to do.
    let past = format!("{}ns", taken(&cluster).epoch.0 - MINUTE_NS);
    for order in [&["clock", "advance-to", &past][..], &["clock", "advance-to", &past, "--yes"]] {
        let said = cluster.order(order);
        assert!(said.contains("no change needed: "), "{said}");
    }
    let moved = |node: &crate::support::Node| node.log().contains("an operator has moved");
    assert!(!cluster.nodes.iter().any(moved), "it logs that the epoch was moved");
    let to = ahead(30 * MINUTE_NS);
    let time = format!("{to}ns");
    for order in [&["clock", "advance-to", &time][..], &["clock", "advance-to", &time, "--dry-run"]]
    {
        let said = cluster.order(order);
        assert!(said.contains("would be above") && said.contains("nothing was changed"), "{said}");
    }
    assert!(ceiling(&cluster) < to, "a plan has changed something");
    assert!(taken(&cluster).epoch.0 < to, "a plan has changed something");

    let campaigns = Campaigns::so_far(&cluster);
    let leader = cluster.wait_for_leader();
    let said = cluster.order(&["clock", "advance-to", &time, "--yes"]);
    assert!(said.contains("from now on") && said.contains("stand still"), "{said}");
    let first = taken(&cluster);
    assert!(first.epoch.0 > to, "{first} is not above {to}");
    assert!(ceiling(&cluster) > to);
    // The same command is given again. It changes nothing.
    let said = cluster.order(&["clock", "advance-to", &time, "--yes"]);
    assert!(said.contains("already"), "{said}");
    let table = cluster.operate(&["clock"]).stdout;
    assert!(String::from_utf8_lossy(&table).contains("until time has caught up in"));
    assert_recovers_at(&cluster, to);

    // The leader is killed. The next leader must also begin above `to`.
    let leads_on = cluster.wait_for_leader() == leader;
    let stayed = campaigns.judge(&cluster, 0, leads_on, "the command moves no leadership");
    let from = Instant::now();
    cluster.nodes[leader].kill();
    watch.wait_for_service_since(Instant::now());
    calling.wait_for_service_since(from);
    assert!(taken(&cluster) > first);
    let begins_ahead = "\"message\":\"this leader begins ahead of its clock";
    let next = cluster.wait_for_leader_other_than(Some(leader), WAIT_MAX);
    let told = [next, leader].map(|at| cluster.nodes[at].log().matches(begins_ahead).count());
    let what = format!("the next leader logs it once, and the old one does not: {told:?}");
    let told = stayed.and_then(|()| campaigns.judge(&cluster, 1, told == [1, 0], &what));
    assert_recovers_at(&cluster, to);
    cluster.nodes[leader].start();
    cluster.wait_until_ready();
    assert!(taken(&cluster).epoch.0 > to);

    // The epoch is moved by 1 µs. This needs no new reservation, because the new epoch is already
    // reserved. The epoch never goes back.
    let near = format!("{}ns", first.epoch.0 + 1_000);
    cluster.order(&["clock", "advance-to", &near, "--yes"]);
    assert!(taken(&cluster).epoch.0 > first.epoch.0 + 1_000);
    cluster.assert_well();
    let operations = calling.finish();
    assert!(operations.len() > 100, "{} calls", operations.len());
    watch.finish_with(&operations);
    told
}

/// The leader refuses the command without the header `epicepoch-admin`, which a web page cannot
/// send to another site. A follower refuses it, too.
#[test]
fn only_the_leader_moves_the_epoch_and_only_with_the_header() {
    let cluster = Cluster::start_calm();
    let leader = cluster.wait_for_leader();
    let follower = &cluster.nodes[cluster.others(leader)[0]];
    let target = format!("/admin/clock/advance?to={}", ahead(MINUTE_NS));
    let ask = |node: &crate::support::Node, method: &str, target: &str, headers: &[_]| {
        node.ask_with(method, target, headers).expect("a node answers")
    };
    let by_operator = [("epicepoch-admin", "test")];
    let got = ask(&cluster.nodes[leader], "POST", &target, &[]);
    assert_eq!((got.status, got.error()), (403, Some("FORBIDDEN")), "{got:?}");
    let got = ask(&cluster.nodes[leader], "GET", &target, &by_operator);
    assert_eq!(got.status, 405, "{got:?}");
    let got = ask(follower, "POST", &target, &by_operator);
    assert_eq!((got.status, got.error()), (409, Some("NOT_LEADER")), "{got:?}");
    let got = ask(&cluster.nodes[leader], "POST", "/admin/clock/advance?to=soon", &by_operator);
    assert_eq!((got.status, got.error()), (400, Some("BAD_REQUEST")), "{got:?}");
    let mut is_done = false;
    wait_until("it is done", WAIT_MAX, || {
        let got = ask(&cluster.nodes[leader], "POST", &target, &by_operator);
        is_done = got.status == 200;
        assert!(is_done || got.error() == Some("BUSY"), "{got:?}");
        is_done
    });
}
