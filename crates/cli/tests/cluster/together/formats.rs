//! Tests of the format of the replicated state. `FORMAT_MAX` makes a node behave like an old
//! version.

use std::time::Duration;

use serde_json::Value;

use crate::support::operator::{list, named};
use crate::support::{Cluster, WAIT_MAX, holds_for, wait_until};

/// The test checks for this long that the format does not rise.
const STAYS: Duration = Duration::from_secs(1);
/// The oldest format.
const OLDEST: &str = "1";

/// Operators see which node holds the format back, and which commands need a newer format. After
/// the format has risen, a node that cannot read it exits, or is refused as a new member.
#[test]
fn the_format_waits_for_the_last_node_and_then_refuses_an_older_one() {
    let mut cluster = Cluster::down_calm(&[]);
    cluster.nodes[2].set("FORMAT_MAX", OLDEST);
    cluster.start_all();
    cluster.wait_until_ready();
    let format = |cluster: &Cluster| list(cluster)["format"].as_u64().expect("a format");
    holds_for("one node holds it back", STAYS, || format(&cluster) == 1);
    let said = cluster.order(&["member", "list"]);
    assert!(said.contains("the next one waits for node 3: update it"), "{said}");
    let set = ["settings", "set", "MAX_N=300"];
    cluster.assert_refused(&set, &["settings are in it from format 3 on", "member list"]);
    let said = cluster.order(&["settings", "list"]);
    assert!(said.contains("no settings in its state"), "{said}");
    // The last node is upgraded. Any node without `FORMAT_MAX` reports the newest format.
    assert_eq!(cluster.nodes[2].terminate().code(), Some(0));
    cluster.nodes[2].unset("FORMAT_MAX");
    cluster.nodes[2].start();
    let members = list(&cluster)["members"].as_array().expect("members").clone();
    let of = |member: &Value| member["formatMax"].as_u64();
    let newest = members.iter().filter_map(of).max().expect("they have met");
    wait_until("all read it", WAIT_MAX, || format(&cluster) == newest);
    let said = cluster.order(&["member", "list"]);
    assert!(!said.contains("format"), "nothing waits: {said}");
    wait_until("a setting can be changed", WAIT_MAX, || cluster.operate(&set).status.success());
    // One node is downgraded: it can only read the oldest format. It exits, and logs what to do.
    let old = cluster.others(cluster.wait_for_leader())[0];
    assert_eq!(cluster.nodes[old].terminate().code(), Some(0));
    cluster.nodes[old].set("FORMAT_MAX", OLDEST);
    cluster.nodes[old].start();
    assert_eq!(cluster.nodes[old].wait_for_exit(WAIT_MAX).code(), Some(1));
    let log = cluster.nodes[old].log();
    assert!(log.contains("this node reads 1 to 1: run a version that reads it"), "{log}");
    cluster.nodes[old].unset("FORMAT_MAX");
    cluster.nodes[old].start();
    cluster.wait_until_ready();
    // A new node that cannot read the format of the cluster is refused, too. So is a command to add
    // it. As a member, the node could not connect, and the format could never rise again.
    let new = cluster.add_joining(4, "node-4");
    cluster.nodes[new].set("FORMAT_MAX", OLDEST);
    cluster.nodes[new].start();
    let words = format!("reads formats up to 1, and the state of node 1 has format {newest}");
    wait_until("it is told", WAIT_MAX, || cluster.nodes[new].log().contains(&words));
    let words = format!("does not read format {newest}");
    let name = named(&cluster.nodes[new]);
    cluster.assert_refused(&["member", "add", &name], &[&words, "FORMAT_MAX"]);
    cluster.nodes.remove(new);
    cluster.assert_well();
}
