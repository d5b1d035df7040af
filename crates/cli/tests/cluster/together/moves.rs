//! Nodes restart at other addresses. Peers and clients must still find them.

use std::time::Duration;

use crate::support::cluster::peers;
use crate::support::{Cluster, Node, unused_port, wait_until};

/// A moved node must be found within this time: a few attempts to connect, and an election.
const FOUND_MAX: Duration = Duration::from_secs(20);

/// All nodes restart at other addresses, with a corrected `PEERS`, as after a move of the machines.
/// Two of them serve before the third one is back.
#[test]
fn a_cluster_whose_nodes_all_moved_recovers_by_their_peers_setting() {
    let mut cluster = Cluster::start();
    cluster.kill_all();
    for node in &mut cluster.nodes {
        (node.raft_port, node.http_port) = (unused_port(), unused_port());
        node.set("RAFT_ADDR", node.raft_addr());
        node.set("HTTP_PORT", node.http_port);
        node.set("ADVERTISE_ADDR", node.http());
    }
    let peers = peers(&cluster.nodes);
    for node in &mut cluster.nodes {
        node.set("PEERS", &peers);
    }
    cluster.nodes[0].start();
    cluster.nodes[1].start();
    wait_until("two of three serve", FOUND_MAX, || cluster.nodes[..2].iter().any(Node::serves));
    cluster.nodes[2].start();
    cluster.wait_until_ready();
    let addrs: Vec<String> = cluster.nodes.iter().map(|node| node.http().to_string()).collect();
    wait_until("all tell where all are", FOUND_MAX, || {
        cluster.nodes.iter().all(|node| {
            let told = node.ask("/members").map(|answer| answer.text());
            told.is_some_and(|told| addrs.iter().all(|addr| told.contains(addr)))
        })
    });
    cluster.assert_well();
}
