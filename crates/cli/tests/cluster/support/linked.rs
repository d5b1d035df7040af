//! A cluster whose every connection passes a proxy, between the nodes and before the clients.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::{Deref, DerefMut};

use epicepoch_bench::load;
use epicepoch_link::{Diallers, Fault, Links, Party};

use super::{Cluster, Node, unused_port};

pub(crate) struct LinkedCluster {
    /// Dropped first: its nodes should end before their links do.
    cluster: Cluster,
    pub(crate) links: Links,
    /// Where clients reach each node through the proxy.
    client_addrs: Vec<SocketAddr>,
}

impl LinkedCluster {
    /// Three nodes with the defaults behind links that are good, ready.
    pub(crate) fn start(seed: u64) -> Self {
        Self::start_of(Cluster::down(&[]), seed)
    }

    /// The same of nodes that were not started yet.
    pub(crate) fn start_of(mut cluster: Cluster, seed: u64) -> Self {
        let links = Links::start(seed).expect("a proxy can be started");
        let mut client_addrs = Vec::new();
        for node in &mut cluster.nodes {
            client_addrs.push(stand_before(&links, node));
        }
        cluster.start_all();
        cluster.wait_until_ready();
        Self { cluster, links, client_addrs }
    }

    /// A node that is down and shall join the cluster, behind links of its own; it knows the addresses
    /// of all that are there.
    pub(crate) fn add_joining(&mut self, id: u64) -> usize {
        let known: Vec<_> = self.nodes.iter().map(|node| node.raft_addr().to_string()).collect();
        let index = self.cluster.add_joining(id, &format!("node-{id}"));
        let node = &mut self.cluster.nodes[index];
        node.set("JOIN", known.join(","));
        self.client_addrs.push(stand_before(&self.links, node));
        index
    }

    /// Takes the last node out of the test; if it runs, it ends.
    pub(crate) fn drop_last(&mut self) {
        self.cluster.nodes.pop();
        self.client_addrs.pop();
    }

    /// The node of this index, as an end of a link.
    pub(crate) fn party(&self, index: usize) -> Party {
        Party::node(self.nodes[index].id)
    }

    /// From now on this is wrong with what one node sends to another.
    pub(crate) fn set(&self, from: usize, to: usize, fault: Fault) {
        self.links.set(self.party(from), self.party(to), fault);
    }

    /// The same with everything that one node sends to its peers.
    pub(crate) fn set_outgoing(&self, index: usize, fault: Fault) {
        self.others(index).iter().for_each(|other| self.set(index, *other, fault));
    }

    /// The same with everything that its peers send to one node.
    pub(crate) fn set_incoming(&self, index: usize, fault: Fault) {
        self.others(index).iter().for_each(|other| self.set(*other, index, fault));
    }

    /// The same with everything between the nodes.
    pub(crate) fn set_all(&self, fault: Fault) {
        (0..self.nodes.len()).for_each(|index| self.set_outgoing(index, fault));
    }

    /// Bytes that vanished between the nodes so far.
    pub(crate) fn bytes_lost(&self) -> u64 {
        self.pairs().map(|(from, to)| self.links.passed(from, to).bytes_lost).sum()
    }

    /// Connections between the nodes that were reset so far.
    pub(crate) fn resets(&self) -> u64 {
        self.pairs().map(|(from, to)| self.links.passed(from, to).resets).sum()
    }

    fn pairs(&self) -> impl Iterator<Item = (Party, Party)> {
        let all = 0..self.nodes.len();
        let of = |from: usize| self.others(from).into_iter().map(move |to| (from, to));
        all.flat_map(of).map(|(from, to)| (self.party(from), self.party(to)))
    }

    /// For clients that reach the nodes through the proxy.
    pub(crate) fn targets_behind_links(&self) -> Vec<load::Node> {
        let pairs = self.nodes.iter().zip(&self.client_addrs);
        pairs.map(|(node, addr)| load::Node { id: node.id, addr: *addr }).collect()
    }
}

/// Puts the proxy before a node that is down; gives where clients reach it.
fn stand_before(links: &Links, node: &mut Node) -> SocketAddr {
    let party = Party::node(node.id);
    // Peers dial the proxy, at the address that the node names; it listens elsewhere.
    let bind = SocketAddr::from((Ipv4Addr::LOCALHOST, unused_port()));
    node.set("RAFT_BIND", bind);
    let front = links.stand_before(party, Diallers::Peers, node.raft_addr(), bind);
    front.expect("the port is unused");
    let any_port = (Ipv4Addr::LOCALHOST, 0).into();
    let front = links.stand_before(party, Diallers::Clients, any_port, node.http());
    front.expect("some port is unused")
}

impl Deref for LinkedCluster {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl DerefMut for LinkedCluster {
    fn deref_mut(&mut self) -> &mut Cluster {
        &mut self.cluster
    }
}
