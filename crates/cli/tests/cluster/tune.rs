//! Round trips as the nodes measure them, and what is advised for them.

use std::time::Duration;

use epicepoch_link::Fault;

use crate::support::{Cluster, LinkedCluster, wait_until};

/// Until the nodes have asked each other often enough to go by it, 13 seconds and more.
const MEASURED_MAX: Duration = Duration::from_mins(1);

#[test]
fn the_links_of_a_lan_are_shown_for_every_pair() {
    let cluster = Cluster::start();
    wait_until("all ways are measured", MEASURED_MAX, || {
        let output = cluster.operate(&["tune", "--json"]);
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
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
