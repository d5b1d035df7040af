//! Tests of the format of the replicated state. The format rises when the last node can read the
//! next one. After that, a node that cannot read the new format is refused. `FORMAT_MAX` makes a
//! node behave like an old version.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Calling, Cluster, WAIT_MAX, Watch, holds_for, wait_until};

/// The test checks for this long that the format does not rise.
const STAYS: Duration = Duration::from_secs(1);
/// The oldest format.
const OLDEST: &str = "1";

fn list(cluster: &Cluster) -> Value {
    serde_json::from_str(&cluster.order(&["member", "list", "--json"])).expect("JSON")
}

fn format(cluster: &Cluster) -> u64 {
    list(cluster)["format"].as_u64().expect("a format")
}

/// Returns the newest format that this version reads. Any node without `FORMAT_MAX` reports it.
fn newest(cluster: &Cluster) -> u64 {
    let listed = list(cluster);
    let members = listed["members"].as_array().expect("members");
    members.iter().filter_map(|member| member["formatMax"].as_u64()).max().expect("they have met")
}

#[test]
fn the_format_waits_for_the_last_node_and_then_refuses_an_older_one() {
    let mut cluster = Cluster::down(&[]);
    cluster.nodes[2].set("FORMAT_MAX", OLDEST);
    cluster.start_all();
    cluster.wait_until_ready();
    let watch = Watch::start(&cluster);
    let calling = Calling::start(&cluster);
    holds_for("one node holds it back", STAYS, || format(&cluster) == 1);
    let said = cluster.order(&["member", "list"]);
    assert!(said.contains("the next one waits for node 3: update it"), "{said}");
    // The last node is upgraded.
    assert_eq!(cluster.nodes[2].terminate().code(), Some(0));
    cluster.nodes[2].unset("FORMAT_MAX");
    cluster.nodes[2].start();
    let newest = newest(&cluster);
    wait_until("all read it", WAIT_MAX, || format(&cluster) == newest);
    let said = cluster.order(&["member", "list"]);
    assert!(!said.contains("format"), "nothing waits: {said}");
    cluster.wait_until_ready();
    // One node is downgraded: it can only read the oldest format. It exits, and logs what to do.
    let leader = cluster.wait_for_leader();
    let old = cluster.others(leader)[0];
    assert_eq!(cluster.nodes[old].terminate().code(), Some(0));
    cluster.nodes[old].set("FORMAT_MAX", OLDEST);
    cluster.nodes[old].start();
    assert_eq!(cluster.nodes[old].wait_for_exit(WAIT_MAX).code(), Some(1));
    let log = cluster.nodes[old].log();
    assert!(log.contains("this node reads 1 to 1: run a version that reads it"), "{log}");
    cluster.nodes[old].unset("FORMAT_MAX");
    cluster.nodes[old].start();
    cluster.wait_until_ready();
    // A new node that cannot read the format of the cluster is refused, too.
    let new = cluster.add_joining(4, "node-4");
    cluster.nodes[new].set("FORMAT_MAX", OLDEST);
    cluster.nodes[new].start();
    let words = format!("reads formats up to 1, and the state of node 1 has format {newest}");
    wait_until("it is told", WAIT_MAX, || cluster.nodes[new].log().contains(&words));
    // A command to add such a node is refused, too. As a member, the node could not connect, and
    // the format could never rise again.
    let name = format!("4={}", cluster.nodes[new].raft_addr());
    let words = format!("does not read format {newest}");
    cluster.assert_refused(&["member", "add", &name], &[&words, "FORMAT_MAX"]);
    assert_eq!(list(&cluster)["members"].as_array().map(Vec::len), Some(3));
    cluster.nodes[new].terminate();
    cluster.nodes[new].unset("FORMAT_MAX");
    cluster.nodes[new].start();
    cluster.order(&["member", "add", &name]);
    cluster.order(&["member", "promote", "4", "--wait", "--timeout", "20s"]);
    cluster.assert_well();
    watch.wait_for_service_since(Instant::now());
    let operations = calling.finish();
    watch.finish_with(&operations);
}
