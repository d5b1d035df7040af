//! The format of the replicated state: raised when the last node reads the next one, and then nobody
//! takes part who does not. `FORMAT_MAX` makes a node as old as it has to be.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::clients::Calling;
use crate::support::{Cluster, PATIENCE, Watch, holds_for, wait_until};

/// For how long the format has to stay where it is.
const STAYS: Duration = Duration::from_secs(2);
/// The oldest format that there is.
const OLDEST: &str = "1";

fn list(cluster: &Cluster) -> Value {
    serde_json::from_str(&cluster.order(&["member", "list", "--json"])).expect("JSON")
}

fn format(cluster: &Cluster) -> u64 {
    list(cluster)["format"].as_u64().expect("a format")
}

/// The newest format that this version reads: what a node says that is not held back.
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
    // The last one is updated.
    assert_eq!(cluster.nodes[2].terminate().code(), Some(0));
    cluster.nodes[2].unset("FORMAT_MAX");
    cluster.nodes[2].start();
    let newest = newest(&cluster);
    wait_until("all read it", PATIENCE, || format(&cluster) == newest);
    let said = cluster.order(&["member", "list"]);
    assert!(!said.contains("format"), "nothing waits: {said}");
    cluster.wait_until_ready();
    // One is set back: it stops, and says what to do.
    let leader = cluster.wait_for_leader();
    let old = cluster.others(leader)[0];
    assert_eq!(cluster.nodes[old].terminate().code(), Some(0));
    cluster.nodes[old].set("FORMAT_MAX", OLDEST);
    cluster.nodes[old].start();
    assert_eq!(cluster.nodes[old].wait_for_exit(PATIENCE).code(), Some(1));
    let log = cluster.nodes[old].log();
    assert!(log.contains("this node reads 1 to 1: run a version that reads it"), "{log}");
    cluster.nodes[old].unset("FORMAT_MAX");
    cluster.nodes[old].start();
    cluster.wait_until_ready();
    // And one that never was there is told at the door.
    let new = cluster.add_joining(4, "node-4");
    cluster.nodes[new].set("FORMAT_MAX", OLDEST);
    cluster.nodes[new].start();
    let words =
        format!("reads formats up to 1, and the state that node 1 holds is of format {newest}");
    wait_until("it is told", PATIENCE, || cluster.nodes[new].log().contains(&words));
    // Nor is it admitted: it would be refused ever after, and hold the next format back.
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
