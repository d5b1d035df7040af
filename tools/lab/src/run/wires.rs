//! The links: proxies before every node, one set for the nodes and one for the clients of each
//! region; or devices between namespaces.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use epicepoch_bench::run::Target;
use epicepoch_link::{Cut, Diallers, Fault, Links, Party};

use super::error::{LabError, millis};
use super::namespaces::{Direction, Namespaces};
use super::nodes::Nodes;
use crate::outcome::End;
use crate::topology::Topology;

/// All links of a topology.
pub(super) struct Wires {
    kind: Kind,
    nodes: BTreeMap<u64, usize>,
    /// By region of clients: the nodes as they reach them.
    targets: BTreeMap<usize, Vec<Target>>,
    delays: Vec<Vec<f64>>,
    jitter_ms: f64,
}

/// What delays and cuts.
enum Kind {
    /// Proxies between the nodes, and before the clients of each region.
    Proxies { peers: Links, clients: BTreeMap<usize, Links> },
    /// The kernel.
    Namespaces(Namespaces),
}

impl Wires {
    /// Opens the listeners of all proxies, or takes namespaces that are there. There are no delays
    /// yet.
    pub(super) fn new(
        topology: &Topology,
        nodes: &Nodes,
        namespaces: Option<Namespaces>,
        seed: u64,
    ) -> Result<Self, LabError> {
        let (kind, addresses) = match namespaces {
            Some(namespaces) => {
                let addr = |region: usize, id: &u64| (*id, namespaces.target(region, *id));
                let of = |region: &usize| {
                    (*region, nodes.all.keys().map(|id| addr(*region, id)).collect())
                };
                let addresses = topology.clients.keys().map(of).collect();
                (Kind::Namespaces(namespaces), addresses)
            }
            None => proxies(topology, nodes, seed)?,
        };
        // A node names the leader by its own address. The name leads the client back to the way of
        // its region.
        let target = |(id, addr)| Target { id, name: nodes.all[&id].advertised.to_string(), addr };
        let targets = addresses
            .into_iter()
            .map(|(region, all): (usize, Vec<_>)| (region, all.into_iter().map(target).collect()))
            .collect();
        let delays = topology.one_way_ms.clone();
        let jitter_ms = topology.jitter_ms;
        Ok(Self { kind, nodes: topology.nodes.clone(), targets, delays, jitter_ms })
    }

    /// The nodes as clients of a region reach them.
    pub(super) fn targets(&self, region: usize) -> &[Target] {
        &self.targets[&region]
    }

    /// Sets the delays of the topology, and ends all cuts. What was held or lost arrives.
    pub(super) fn set_delays(&mut self) -> Result<(), LabError> {
        self.set(|_, _| false)
    }

    /// Cuts every link between a region and the others, in both directions.
    pub(super) fn cut(&mut self, region: usize) -> Result<(), LabError> {
        let nodes = self.nodes.clone();
        let is_in = move |end| place(&nodes, end) == region;
        self.set(|from, to| is_in(from) != is_in(to))
    }

    /// Cuts what a node sends to other nodes. It still hears them, and clients reach it.
    pub(super) fn mute(&mut self, node: u64) -> Result<(), LabError> {
        self.set(|from, to| from == End::Node(node) && matches!(to, End::Node(_)))
    }

    fn set(&mut self, is_cut: impl Fn(End, End) -> bool) -> Result<(), LabError> {
        let (mut pairs, nodes) = (Vec::new(), || self.nodes.keys().copied());
        for one in nodes() {
            pairs.extend(nodes().filter(|it| *it != one).map(|it| (End::Node(one), End::Node(it))));
            let clients = self.targets.keys().map(|region| End::Clients(*region));
            pairs.extend(clients.flat_map(|it| [(it, End::Node(one)), (End::Node(one), it)]));
        }
        let direction = |(from, to): (End, End)| {
            let (here, there) = (place(&self.nodes, from), place(&self.nodes, to));
            let jitter_ms = if here == there { 0.0 } else { self.jitter_ms };
            let delay_ms = self.delays[here][there];
            Direction { from, to, delay_ms, jitter_ms, is_cut: is_cut(from, to) }
        };
        let directions: Vec<Direction> = pairs.into_iter().map(direction).collect();
        match &mut self.kind {
            Kind::Namespaces(namespaces) => namespaces.set(&directions),
            Kind::Proxies { peers, clients } => {
                for direction in &directions {
                    set_proxy(peers, clients, direction);
                }
                Ok(())
            }
        }
    }
}

/// The region of an end.
fn place(nodes: &BTreeMap<u64, usize>, end: End) -> usize {
    match end {
        End::Node(id) => nodes[&id],
        End::Clients(region) => region,
    }
}

/// By region of clients: the address of each node for them.
type Addresses = BTreeMap<usize, Vec<(u64, SocketAddr)>>;

fn proxies(topology: &Topology, nodes: &Nodes, seed: u64) -> Result<(Kind, Addresses), LabError> {
    let peers = Links::start(seed)?;
    for (id, node) in &nodes.all {
        let party = Party::node(*id);
        peers.stand_before(party, Diallers::Peers, node.front, node.bind)?;
        if node.advertised != node.http {
            peers.stand_before(party, Diallers::Forwarders, node.advertised, node.http)?;
        }
    }
    let (mut clients, mut addresses) = (BTreeMap::new(), BTreeMap::new());
    let any_port: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    for region in topology.clients.keys() {
        let links = Links::start(seed.wrapping_add(1 + *region as u64))?;
        let mut fronts = Vec::new();
        for (id, node) in &nodes.all {
            let party = Party::node(*id);
            let addr = links.stand_before(party, Diallers::Clients, any_port, node.http)?;
            fronts.push((*id, addr));
        }
        clients.insert(*region, links);
        addresses.insert(*region, fronts);
    }
    Ok((Kind::Proxies { peers, clients }, addresses))
}

/// Sets what the proxies do in one direction.
fn set_proxy(peers: &Links, clients: &BTreeMap<usize, Links>, direction: &Direction) {
    let cut = if direction.is_cut { Cut::Hold } else { Cut::None };
    let jitter = millis(direction.jitter_ms);
    let fault = Fault { jitter, cut, ..Fault::delay(millis(direction.delay_ms)) };
    let party = |end: End| match end {
        End::Node(id) => Party::node(id),
        End::Clients(_) => Party::Client,
    };
    let links = match (direction.from, direction.to) {
        (End::Clients(region), _) | (_, End::Clients(region)) => &clients[&region],
        (End::Node(_), End::Node(_)) => peers,
    };
    links.set(party(direction.from), party(direction.to), fault);
}
