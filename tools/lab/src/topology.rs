//! A topology: regions, the delays between them, and which nodes and clients are where. It is
//! checked when it is read ([`mod@crate::file`]), so everything here is in range.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// At most this many regions.
pub const REGIONS_MAX: usize = 8;
/// At most this many voters, as in any cluster's first start.
pub const NODES_MAX: usize = 9;

/// A checked topology. Regions are numbers, in the order of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// Name of the topology.
    pub name: String,
    /// One sentence for people; may be empty.
    pub about: String,
    /// Names of the regions.
    pub regions: Vec<String>,
    /// Delay from region to region in one direction, ms.
    pub one_way_ms: Vec<Vec<f64>>,
    /// The longest random delay in addition, per direction between different regions, ms.
    pub jitter_ms: f64,
    /// Region of each voter, by node id.
    pub nodes: BTreeMap<u64, usize>,
    /// The clients of each region that has clients.
    pub clients: BTreeMap<usize, Clients>,
    /// What is measured.
    pub measure: Measure,
    /// Settings of the nodes that the file gives.
    pub settings: BTreeMap<String, String>,
}

/// The clients of a region.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clients {
    /// Share of the load, relative to other regions. Default 1.
    pub weight: f64,
    /// Timestamps that a transaction needs, one after the other. Default 1.
    pub per_transaction: u32,
}

impl Default for Clients {
    fn default() -> Self {
        Self { weight: 1.0, per_transaction: 1 }
    }
}

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measure {
    /// Numbers of callers of each region in step 1. Each caller waits for its answer.
    pub callers: Vec<u32>,
    /// The protocol of the clients.
    pub transport: Transport,
    /// The modes of step 6, each once, [`Mode::Interval`] last. The other steps ask a quorum.
    pub modes: Vec<Mode>,
    /// Region of the leader in the steps 3 to 6; `None` for the one that [`crate::expected`] finds
    /// best.
    pub leader: Option<usize>,
}

/// The protocol of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// HTTP/1.1.
    Http,
    /// The native protocol.
    Native,
}

/// How a leader confirms that it still leads, and whom clients ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It asks a quorum before each answer.
    Quorum,
    /// It holds a lease, and asks nobody.
    Lease,
    /// As quorum, but clients ask the nearest node, which sends their requests on.
    Forwarded,
    /// No leader is asked: the nearest node answers alone, by its clock. A cluster in this mode stays
    /// in it.
    Interval,
}

impl Mode {
    /// The name in files and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Lease => "lease",
            Self::Forwarded => "forwarded",
            Self::Interval => "interval",
        }
    }

    /// The mode with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    /// All modes.
    pub const ALL: [Self; 4] = [Self::Quorum, Self::Lease, Self::Forwarded, Self::Interval];

    /// Whether clients ask the nearest node, whoever leads.
    #[must_use]
    pub fn asks_nearest(self) -> bool {
        match self {
            Self::Quorum | Self::Lease => false,
            Self::Forwarded | Self::Interval => true,
        }
    }
}

impl Transport {
    /// The name in files and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Native => "native",
        }
    }
}

impl Topology {
    /// Name of a region.
    #[must_use]
    pub fn region(&self, region: usize) -> &str {
        &self.regions[region]
    }

    /// Region of a voter.
    #[must_use]
    pub fn region_of(&self, node: u64) -> usize {
        self.nodes[&node]
    }

    /// The round trip between two regions, ms, with the mean jitter of both directions.
    #[must_use]
    pub fn round_trip_ms(&self, one: usize, other: usize) -> f64 {
        let jitter = if one == other { 0.0 } else { self.jitter_ms };
        self.one_way_ms[one][other] + self.one_way_ms[other][one] + jitter
    }

    /// The longest round trip between two voters, with the longest jitter, ms.
    #[must_use]
    pub fn longest_ms(&self) -> f64 {
        let regions: Vec<usize> = self.nodes.values().copied().collect();
        let pairs = regions.iter().flat_map(|one| regions.iter().map(move |other| (*one, *other)));
        let longest = |(one, other): (usize, usize)| {
            let jitter = if one == other { 0.0 } else { 2.0 * self.jitter_ms };
            self.one_way_ms[one][other] + self.one_way_ms[other][one] + jitter
        };
        pairs.map(longest).fold(0.0, f64::max)
    }

    /// The voter that clients of a region reach first, and of several the one with the lowest id.
    ///
    /// # Panics
    /// When there are no voters.
    #[must_use]
    pub fn nearest(&self, client: usize) -> u64 {
        let trip = |node: &u64| self.round_trip_ms(client, self.region_of(*node));
        let nearest = self.nodes.keys().copied().min_by(|a, b| trip(a).total_cmp(&trip(b)));
        nearest.expect("a topology has voters")
    }

    /// Whether nodes send requests on.
    #[must_use]
    pub fn forwards(&self) -> bool {
        self.measure.modes.contains(&Mode::Forwarded)
    }

    /// Ids of all voters.
    #[must_use]
    pub fn voters(&self) -> Vec<u64> {
        self.nodes.keys().copied().collect()
    }

    /// Voters of a region, lowest id first.
    #[must_use]
    pub fn voters_in(&self, region: usize) -> Vec<u64> {
        self.nodes.iter().filter(|(_, it)| **it == region).map(|(node, _)| *node).collect()
    }

    /// Voters outside these regions.
    #[must_use]
    pub fn voters_outside(&self, lost: &[usize]) -> Vec<u64> {
        self.nodes.iter().filter(|(_, it)| !lost.contains(it)).map(|(node, _)| *node).collect()
    }

    /// Regions with at least one voter.
    #[must_use]
    pub fn voting_regions(&self) -> Vec<usize> {
        (0..self.regions.len()).filter(|region| !self.voters_in(*region).is_empty()).collect()
    }

    /// How many voters are a majority.
    #[must_use]
    pub fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    /// The topology as JSON, for reports.
    #[must_use]
    pub fn document(&self) -> Value {
        let named = |(region, it): (&usize, &Clients)| {
            let clients = json!({"weight": it.weight, "per_transaction": it.per_transaction});
            (self.regions[*region].clone(), clients)
        };
        let nodes = self.nodes.iter().map(|(id, it)| (id.to_string(), self.regions[*it].clone()));
        json!({
            "name": self.name,
            "about": self.about,
            "regions": self.regions,
            "one_way_ms": self.one_way_ms,
            "jitter_ms": self.jitter_ms,
            "nodes": nodes.collect::<BTreeMap<_, _>>(),
            "clients": self.clients.iter().map(named).collect::<BTreeMap<_, _>>(),
            "callers": self.measure.callers,
            "transport": self.measure.transport.name(),
            "modes": self.measure.modes.iter().map(|it| it.name()).collect::<Vec<_>>(),
            "leader": self.measure.leader.map(|it| self.regions[it].clone()),
            "settings": self.settings,
        })
    }
}
