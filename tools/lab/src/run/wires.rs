//! The links: proxies before every node, one set for the nodes and one for the clients of each
//! region.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use epicepoch_bench::run::Target;
use epicepoch_link::{Cut, Diallers, Fault, Links, Party};

use super::error::{LabError, millis};
use super::nodes::Nodes;
use crate::topology::Topology;

/// All links of a topology.
pub(super) struct Wires {
    nodes: BTreeMap<u64, usize>,
    peers: Links,
    /// By region of clients: their links, and the nodes as they reach them.
    clients: BTreeMap<usize, (Links, Vec<Target>)>,
    delays: Vec<Vec<f64>>,
    jitter_ms: f64,
}

impl Wires {
    /// Opens all listeners. There are no delays yet.
    pub(super) fn new(topology: &Topology, nodes: &Nodes, seed: u64) -> Result<Self, LabError> {
        let peers = Links::start(seed)?;
        for (id, node) in &nodes.all {
            peers.stand_before(Party::node(*id), Diallers::Peers, node.front, node.bind)?;
        }
        let mut clients = BTreeMap::new();
        let any_port: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
        for region in topology.clients.keys() {
            let links = Links::start(seed.wrapping_add(1 + *region as u64))?;
            let mut targets = Vec::new();
            for (id, node) in &nodes.all {
                let party = Party::node(*id);
                let addr = links.stand_before(party, Diallers::Clients, any_port, node.http)?;
                // A node names the leader by its own address. The name leads the client back to
                // its region's proxy.
                targets.push(Target { id: *id, name: node.http.to_string(), addr });
            }
            clients.insert(*region, (links, targets));
        }
        let delays = topology.one_way_ms.clone();
        let jitter_ms = topology.jitter_ms;
        Ok(Self { nodes: topology.nodes.clone(), peers, clients, delays, jitter_ms })
    }

    /// The nodes as clients of a region reach them.
    pub(super) fn targets(&self, region: usize) -> &[Target] {
        &self.clients[&region].1
    }

    fn fault(&self, from: usize, to: usize) -> Fault {
        let jitter = if from == to { Duration::ZERO } else { millis(self.jitter_ms) };
        Fault { jitter, ..Fault::delay(millis(self.delays[from][to])) }
    }

    /// Sets the delays of the topology, and ends all cuts. What was held arrives.
    pub(super) fn set_delays(&self) {
        self.set(|_, _| false);
    }

    /// Cuts every link between a region and the others, in both directions.
    pub(super) fn cut(&self, region: usize) {
        self.set(|from, to| (from == region) != (to == region));
    }

    fn set(&self, is_cut: impl Fn(usize, usize) -> bool) {
        let fault = |from: usize, to: usize| {
            let cut = if is_cut(from, to) { Cut::Hold } else { Cut::None };
            Fault { cut, ..self.fault(from, to) }
        };
        for (one, here) in &self.nodes {
            for (other, there) in self.nodes.iter().filter(|(other, _)| *other != one) {
                self.peers.set(Party::node(*one), Party::node(*other), fault(*here, *there));
            }
        }
        for (region, (links, _)) in &self.clients {
            for (node, there) in &self.nodes {
                links.set(Party::Client, Party::node(*node), fault(*region, *there));
                links.set(Party::node(*node), Party::Client, fault(*there, *region));
            }
        }
    }

    /// Cuts what a node sends to other nodes. It still hears them, and clients reach it.
    pub(super) fn mute(&self, node: u64) {
        let here = self.nodes[&node];
        for (other, there) in self.nodes.iter().filter(|(other, _)| **other != node) {
            let fault = Fault { cut: Cut::Hold, ..self.fault(here, *there) };
            self.peers.set(Party::node(node), Party::node(*other), fault);
        }
    }
}
