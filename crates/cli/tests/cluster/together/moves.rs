//! Nodes restart at other addresses. Peers and clients must still find them.

use std::time::Duration;

use crate::support::{Cluster, unused_port, wait_until};

/// A moved node must be found within this time: a few attempts to connect, and an election.
const FOUND_MAX: Duration = Duration::from_secs(20);

/// Gives a node new ports for peers and clients. The node must be down.
fn move_node(cluster: &mut Cluster, index: usize) {
    let node = &mut cluster.nodes[index];
    (node.raft_port, node.http_port) = (unused_port(), unused_port());
    node.set("RAFT_ADDR", node.raft_addr());
    node.set("HTTP_PORT", node.http_port);
    node.set("ADVERTISE_ADDR", node.http());
}

/// Corrects `PEERS` on every node, as an operator does.
fn correct_peers(cluster: &mut Cluster) {
    let addr = |node: &crate::support::Node| node.settings()["RAFT_ADDR"].clone();
    let list: Vec<_> =
        cluster.nodes.iter().map(|node| format!("{}={}", node.id, addr(node))).collect();
    for node in &mut cluster.nodes {
        node.set("PEERS", list.join(","));
    }
}

/// Whether the node with this index lists all members at their present addresses.
fn lists_new_addresses(cluster: &Cluster, index: usize) -> bool {
    let Some(answer) = cluster.nodes[index].ask("/members") else { return false };
    let text = answer.text();
    cluster.nodes.iter().all(|node| text.contains(&node.settings()["ADVERTISE_ADDR"]))
}

#[test]
fn a_member_that_moved_is_found_although_another_is_down() {
    let mut cluster = Cluster::start();
    cluster.kill_all();
    move_node(&mut cluster, 1);
    correct_peers(&mut cluster);
    cluster.nodes[0].start();
    cluster.nodes[1].start();
    wait_until("two of three serve, one of them moved", FOUND_MAX, || {
        cluster.nodes[..2].iter().any(crate::support::Node::serves)
    });
    cluster.nodes[2].start();
    cluster.wait_until_ready();
    wait_until("all tell where the moved one is", FOUND_MAX, || {
        (0..3).all(|index| lists_new_addresses(&cluster, index))
    });
}

#[test]
fn a_cluster_whose_nodes_all_moved_recovers_by_their_peers_setting() {
    let mut cluster = Cluster::start();
    cluster.kill_all();
    for index in 0..3 {
        move_node(&mut cluster, index);
    }
    correct_peers(&mut cluster);
    cluster.start_all();
    cluster.wait_until_ready();
    wait_until("all tell where all are", FOUND_MAX, || {
        (0..3).all(|index| lists_new_addresses(&cluster, index))
    });
    cluster.assert_well();
}
