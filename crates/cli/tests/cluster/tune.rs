//! Round trips as the nodes measure them, and what is advised for them.

use std::time::{Duration, Instant};

use epicepoch_link::Fault;
use serde_json::Value;

use crate::support::{Cluster, LinkedCluster, PATIENCE, Silence, Watch, outages, say, wait_until};

/// Until the nodes have asked each other often enough to go by it, 13 seconds and more.
const MEASURED_MAX: Duration = Duration::from_mins(1);

#[test]
fn the_links_of_a_lan_are_shown_for_every_pair() {
    let cluster = Cluster::start();
    wait_until("all ways are measured", MEASURED_MAX, || {
        let output = cluster.operate(&["tune", "--json"]);
        let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let of_all = said["links"].as_array().expect("links").len() == 6
            && said["nodes"].as_array().expect("nodes").len() == 3;
        let words = String::from_utf8(cluster.operate(&["tune"]).stdout).expect("UTF-8");
        of_all && words.contains("advised     ELECTION_TIMEOUT_MS=")
    });
    let both = cluster.nodes[0].metric("epicepoch_peer_round_trip_seconds");
    assert!(both.is_some_and(|seconds| seconds > 0.0 && seconds < 5.0), "{both:?}");
}

#[test]
fn links_that_are_too_long_for_the_settings_are_told_with_what_they_need() {
    let cluster = LinkedCluster::start(6);
    cluster.set_all(Fault::delay(Duration::from_millis(40)));
    let mut said = String::new();
    wait_until("it is said what they need", MEASURED_MAX, || {
        let output = cluster.operate(&["tune"]);
        said = String::from_utf8(output.stdout).expect("UTF-8");
        output.status.code() == Some(1) && said.contains("TOO TIGHT")
    });
    let advised = said.split("advised     ELECTION_TIMEOUT_MS=").nth(1).expect("advice");
    let ms: u64 = advised.split(' ').next().and_then(|it| it.parse().ok()).expect("a number");
    assert!(ms >= 800, "{said}");
    wait_until("a node warns", MEASURED_MAX, || {
        cluster.nodes.iter().any(|node| node.log().contains("ELECTION_TIMEOUT_MS is too short"))
    });
    cluster.links.heal();
}

/// A way of a coast to the other, one way: a round trip is 80 ms.
const COAST: Fault = Fault::delay(Duration::from_millis(40));
/// `(p50, p99)` of the silence on such links with what is advised for them, ms, as
/// `docs/topologies.md` promises it.
const COAST_SILENT_MS: (u64, u64) = (1700, 2800);
const COAST_KILLED_MS: (u64, u64) = (600, 800);

/// Sets what `epicepoch tune` advises, as `docs/topologies.md` says: first the command, then the nodes.
fn take_advice(cluster: &mut LinkedCluster) -> Value {
    let mut advised = Value::Null;
    wait_until(
        "the links are measured, and the command that is advised is taken",
        MEASURED_MAX,
        || {
            let output = cluster.operate(&["tune", "--json"]);
            let mut said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            advised = said["advised"].take();
            let is_of_all = said["links"].as_array().is_some_and(|links| links.len() == 6);
            let election_ms = advised["electionTimeoutMs"].as_u64();
            if !is_of_all || election_ms.is_none_or(|ms| !(800..=1200).contains(&ms)) {
                return false;
            }
            let command = advised["clusterCommand"].as_str().expect("a command");
            let words: Vec<&str> = command.split(' ').skip(1).collect();
            cluster.operate(&words).status.success()
        },
    );
    for node in &mut cluster.nodes {
        node.set("ELECTION_TIMEOUT_MS", &advised["electionTimeoutMs"]);
        if let Some(ms) = advised["requestTimeoutMs"].as_u64() {
            node.set("REQUEST_TIMEOUT_MS", ms);
        }
    }
    cluster.kill_all();
    cluster.start_all();
    cluster.wait_until_ready();
    advised
}

#[test]
fn a_leader_lost_on_links_of_80_ms_with_what_is_advised_is_replaced_in_the_time_that_is_promised() {
    let mut cluster = LinkedCluster::start(9);
    cluster.set_all(COAST);
    let advised = take_advice(&mut cluster);
    say(&format!("links of 80 ms: {advised} is advised"));
    let watch = Watch::start(&cluster);
    let (mut killed, mut silent) = (Vec::new(), Vec::new());
    for _ in 0..outages(4) {
        let leader = cluster.wait_for_leader();
        watch.wait_for_service_since(Instant::now());
        let from = Instant::now();
        cluster.nodes[leader].kill();
        watch.wait_for_service_since(Instant::now());
        killed.push((from, Instant::now()));
        cluster.nodes[leader].start();
        cluster.wait_until_ready();
        let leader = cluster.wait_for_leader();
        watch.wait_for_service_since(Instant::now());
        let from = Instant::now();
        cluster.set_outgoing(leader, Fault::blackhole());
        cluster.set_incoming(leader, Fault::blackhole());
        cluster.wait_for_leader_other_than(Some(leader), PATIENCE);
        watch.wait_for_service_since(Instant::now());
        silent.push((from, Instant::now()));
        cluster.set_outgoing(leader, COAST);
        cluster.set_incoming(leader, COAST);
        cluster.wait_until_ready();
    }
    cluster.assert_well();
    let seen = watch.finish();
    Silence::of("leader killed, links of 80 ms", &seen, &killed).assert_promised(COAST_KILLED_MS);
    Silence::of("leader cut off silently, links of 80 ms", &seen, &silent)
        .assert_promised(COAST_SILENT_MS);
}
