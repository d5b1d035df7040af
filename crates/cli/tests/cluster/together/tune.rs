//! Tests `epicepoch tune`: it shows the round trips that the nodes measure, and advises settings
//! for them.

use std::time::Duration;

use epicepoch_link::Fault;
use serde_json::Value;

use crate::support::{Cluster, LinkedCluster, wait_until};

/// Longest wait until the nodes have measured all links. Measuring takes at least 13 seconds.
const MEASURED_MAX: Duration = Duration::from_mins(1);

#[test]
fn the_links_of_a_lan_are_shown_for_every_pair() {
    let cluster = Cluster::start();
    wait_until("all links are measured", MEASURED_MAX, || {
        let output = cluster.operate(&["tune", "--output", "json"]);
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        document["links"].as_array().expect("links").len() == 6
            && document["members"].as_array().expect("nodes").len() == 3
    });
    let words = String::from_utf8(cluster.operate(&["tune"]).stdout).expect("UTF-8");
    assert!(words.contains("advised     ELECTION_TIMEOUT_MS="), "{words}");
    let both = cluster.nodes[0].metric("epicepoch_peer_round_trip_seconds");
    assert!(both.is_some_and(|seconds| seconds > 0.0 && seconds < 5.0), "{both:?}");
}

/// The links have round trips of 80 ms, too long for the default settings. `epicepoch tune` says
/// so. The test applies the settings that it advises, and the cluster works with them.
#[test]
fn links_that_are_too_long_for_the_settings_are_reported_with_advice() {
    let cluster = LinkedCluster::start(6);
    cluster.set_all(Fault::delay(Duration::from_millis(40)));
    wait_until("the advice is there, and its command is taken", MEASURED_MAX, || {
        let output = cluster.operate(&["tune", "--output", "json"]);
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let is_of_all = document["links"].as_array().is_some_and(|links| links.len() == 6);
        let advised = &document["advised"];
        let election_ms = advised["electionTimeoutMs"].as_u64();
        if !is_of_all || election_ms.is_none_or(|ms| ms < 800) {
            return false;
        }
        assert!(advised["requestTimeoutMs"].is_u64(), "{advised}");
        let words = String::from_utf8(cluster.operate(&["tune"]).stdout).expect("UTF-8");
        assert!(words.contains("TOO TIGHT"), "{words}");
        let command = advised["clusterCommand"].as_str().expect("a command");
        let words: Vec<&str> = command.split(' ').skip(1).collect();
        cluster.operate(&words).status.success()
    });
    wait_until("a node warns", MEASURED_MAX, || {
        cluster.nodes.iter().any(|node| node.log().contains("ELECTION_TIMEOUT_MS is too short"))
    });
    cluster.links.heal();
}
