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

/// A node comes back where no name leads to it, as a container does while its name still has the
/// old address. Its peers dial it back at the address from which it has come.
#[test]
fn a_node_that_comes_back_at_another_address_is_dialled_back_where_it_is() {
    let mut cluster = Cluster::down(&[]);
    let moved = cluster.nodes.len() - 1;
    let port = cluster.nodes[moved].raft_port;
    // Later this address stands for a name whose name server still tells the old address.
    let old = format!("127.0.0.9:{port}");
    cluster.nodes[moved].set("RAFT_ADDR", &old);
    let peers = peers(&cluster.nodes).replace(&format!("127.0.0.1:{port}"), &old);
    for node in &mut cluster.nodes {
        node.set("PEERS", &peers);
    }
    cluster.nodes[moved].set("RAFT_BIND", &old);
    cluster.start_all();
    cluster.wait_until_ready();
    cluster.nodes[moved].kill();
    cluster.nodes[moved].set("RAFT_BIND", format!("127.0.0.1:{port}"));
    cluster.nodes[moved].start();
    wait_until("all links are up again", FOUND_MAX, || {
        cluster.nodes.iter().all(|node| {
            let links = node.metric("epicepoch_confirm_links");
            links.is_some() && links == node.metric("epicepoch_confirm_links_expected")
        })
    });
    wait_until("the leader hears the moved node", FOUND_MAX, || {
        cluster.order(&["member", "list"]).contains("3 of 3 heard")
    });
    cluster.assert_well();
}
