//! The clients: a closed loop for each region, behind the links of its region. Each caller waits for
//! its answer, then for [`PAUSE`], and asks again. Callers follow the leader, as every client does, or
//! ask only the nearest node, which sends their requests on or answers by its clock.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use epicepoch_bench::Operation;
use epicepoch_bench::run::load::{Load, Report};
use epicepoch_bench::run::{Routing, RunConfig, Target, Transport as Wire};
use epicepoch_wire::Guarantee;
use epicepoch_wire::http::PATH_INTERVAL;

use super::wires::Wires;
use crate::topology::{Mode, Topology, Transport};

/// Pause of a caller after an answer. Without it, callers near the leader would use all processors
/// of the machine, which the nodes need.
const PAUSE: Duration = Duration::from_millis(2);

/// Clients that run.
pub(super) struct Callers {
    loads: BTreeMap<usize, Load>,
}

impl Callers {
    /// Starts the clients of these regions, which ask for this mode.
    pub(super) fn start(
        topology: &Topology,
        wires: &Wires,
        regions: &[usize],
        callers: u32,
        mode: Mode,
        attempt: Duration,
    ) -> Self {
        let guarantee = match mode {
            // The default of the nodes, whatever their settings are.
            Mode::Quorum | Mode::Forwarded | Mode::Interval => None,
            Mode::Lease => Some(Guarantee::Lease),
        };
        let is_near = mode.asks_nearest();
        let routing = match (is_near, topology.forwards()) {
            (true, _) => Routing::EveryNode,
            (false, true) => Routing::FollowDirectly,
            (false, false) => Routing::FollowLeader,
        };
        // Intervals are asked for over HTTP, whatever the transport of the other modes is.
        let path = (mode == Mode::Interval).then(|| PATH_INTERVAL.to_owned());
        let transport = match topology.measure.transport {
            Transport::Native if path.is_none() => Wire::Native { in_flight: 1 },
            Transport::Http | Transport::Native => Wire::Http1 { pipeline: 1 },
        };
        let load = |region: &usize| {
            let nearest = topology.nearest(*region);
            let is_asked = |it: &&Target| !is_near || it.id == nearest;
            let targets = wires.targets(*region).iter().filter(is_asked).cloned();
            let config = RunConfig {
                transport,
                connections: callers as usize,
                request_timeout: attempt,
                answer_pause: PAUSE,
                guarantee,
                routing,
                path: path.clone(),
                ..RunConfig::new(targets.collect())
            };
            (*region, Load::start(config))
        };
        Self { loads: regions.iter().map(load).collect() }
    }

    /// Whether clients of every region were answered a request that they sent after `at`.
    pub(super) fn are_answered_since(&self, at: Instant) -> bool {
        self.loads.values().all(|load| load.answered_since(at))
    }

    /// Ends all clients. Open requests still get their answer, or time out.
    pub(super) fn stop(self) -> BTreeMap<usize, Report> {
        // All threads are told before the first one is waited for.
        let stopping = self.loads.into_iter();
        let threads = stopping.map(|(region, load)| (region, std::thread::spawn(|| load.stop())));
        let threads: Vec<_> = threads.collect();
        let join = |(region, thread): (usize, std::thread::JoinHandle<Report>)| {
            (region, thread.join().expect("a load never panics"))
        };
        threads.into_iter().map(join).collect()
    }
}

/// The node that gave most of these answers.
pub(super) fn mostly<'a>(operations: impl Iterator<Item = &'a Operation>) -> Option<u64> {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    for operation in operations {
        *counts.entry(operation.node).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(node, _)| node)
}
