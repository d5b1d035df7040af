//! A cluster with a proxy on every connection, between the nodes and from clients.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::{Deref, DerefMut};

use epicepoch_bench::run::Target;
use epicepoch_link::{Diallers, Fault, Links, Party};

use super::{Cluster, Node, unused_port};

pub(crate) struct LinkedCluster {
    /// This field is dropped first, so that the nodes end before their links.
    cluster: Cluster,
    pub(crate) links: Links,
    /// Addresses at which clients reach the nodes through the proxy.
    client_addrs: Vec<SocketAddr>,
}

impl LinkedCluster {
    /// Starts three nodes with the defaults behind good links, and waits until they are ready.
    pub(crate) fn start(seed: u64) -> Self {
        Self::start_of(Cluster::down(&[]), seed)
    }

    /// Starts these nodes behind good links, and waits until they are ready.
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

    /// Adds a node with its own links that will join the cluster. The node knows the addresses of
    /// all members. It is not started.
    pub(crate) fn add_joining(&mut self, id: u64) -> usize {
        let known: Vec<_> = self.nodes.iter().map(|node| node.raft_addr().to_string()).collect();
        let index = self.cluster.add_joining(id, &format!("node-{id}"));
        let node = &mut self.cluster.nodes[index];
        node.set("JOIN", known.join(","));
        self.client_addrs.push(stand_before(&self.links, node));
        index
    }

    /// Removes the last node from the test, and ends it.
    pub(crate) fn drop_last(&mut self) {
        self.cluster.nodes.pop();
        self.client_addrs.pop();
    }

    /// Returns the node with this index as an end of a link.
    pub(crate) fn party(&self, index: usize) -> Party {
        Party::node(self.nodes[index].id)
    }

    /// Sets a fault for all bytes that one node sends to another.
    pub(crate) fn set(&self, from: usize, to: usize, fault: Fault) {
        self.links.set(self.party(from), self.party(to), fault);
    }

    /// Sets a fault for all bytes that one node sends to its peers.
    pub(crate) fn set_outgoing(&self, index: usize, fault: Fault) {
        self.others(index).iter().for_each(|other| self.set(index, *other, fault));
    }

    /// Sets a fault for all bytes that its peers send to one node.
    pub(crate) fn set_incoming(&self, index: usize, fault: Fault) {
        self.others(index).iter().for_each(|other| self.set(*other, index, fault));
    }

    /// Sets a fault for all bytes between the nodes.
    pub(crate) fn set_all(&self, fault: Fault) {
        (0..self.nodes.len()).for_each(|index| self.set_outgoing(index, fault));
    }

    /// Returns how many bytes between the nodes have vanished so far.
    pub(crate) fn bytes_lost(&self) -> u64 {
        self.pairs().map(|(from, to)| self.links.passed(from, to).bytes_lost).sum()
    }

    /// Returns how many connections between the nodes were reset so far.
    pub(crate) fn resets(&self) -> u64 {
        self.pairs().map(|(from, to)| self.links.passed(from, to).resets).sum()
    }

    fn pairs(&self) -> impl Iterator<Item = (Party, Party)> {
        let all = 0..self.nodes.len();
        let of = |from: usize| self.others(from).into_iter().map(move |to| (from, to));
        all.flat_map(of).map(|(from, to)| (self.party(from), self.party(to)))
    }

    /// Returns the nodes as targets for clients that reach them through the proxy.
    pub(crate) fn targets_behind_links(&self) -> Vec<Target> {
        let pairs = self.nodes.iter().zip(&self.client_addrs);
        pairs.map(|(node, addr)| Target::new(node.id, *addr)).collect()
    }
}

/// Puts the proxy in front of a node that is down. Returns the address at which clients reach the
/// node through the proxy.
fn stand_before(links: &Links, node: &mut Node) -> SocketAddr {
    let party = Party::node(node.id);
    // The node names an address at which the proxy listens, so peers dial the proxy. The node
    // itself listens at another address.
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
