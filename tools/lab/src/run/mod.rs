//! Runs a topology: real nodes, delayed links, clients of every region.
//!
//! - `error`: why a run has no outcome. `nodes`: the processes. `wires`: the links between them, by
//!   proxies or by `namespaces`. `callers`: the clients. `http`: questions to nodes.
//! - `verify`: are the links as asked? `steps`: the steps that measure latency. `outages`: the steps
//!   that break something.

mod callers;
mod error;
mod http;
mod namespaces;
mod nodes;
mod outages;
mod steps;
mod verify;
mod wires;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use epicepoch_bench::History;
use epicepoch_bench::machine::Machine;
use epicepoch_bench::run::Failures;
use epicepoch_bench::run::load::Report;

use crate::advice;
use crate::expected;
use crate::outcome::{Outcome, add_failures};
use crate::plan::{LinkKind, Plan, Step};
use crate::topology::{Mode, Topology};
pub use error::LabError;
use error::millis;
pub use namespaces::Entry;
use namespaces::Namespaces;
use nodes::Nodes;
pub use nodes::Running;
use wires::Wires;

/// How to run a topology.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The program whose command `serve` runs a node.
    pub program: PathBuf,
    /// The steps.
    pub plan: Plan,
    /// Seed of the jitter.
    pub seed: u64,
    /// Set to end the run early.
    pub stop: Arc<AtomicBool>,
    /// The processes of the nodes, so that the caller can end them at once.
    pub running: Running,
    /// Expected times are multiplied by this: 1, but for tests that want to see a wrong one.
    pub expected_factor: f64,
}

/// The settings of the nodes: those of the file, and for the rest what `epicepoch tune` advises.
///
/// # Errors
/// No settings suit the links.
pub fn node_settings(topology: &Topology) -> Result<BTreeMap<String, String>, LabError> {
    let advised = advice::settings(topology).ok_or_else(|| {
        let longest = topology.longest_ms();
        LabError::Settings(format!(
            "no election settings suit links of {longest:.0} ms; allowed is 1 s"
        ))
    })?;
    let mut settings = topology.settings.clone();
    let given = [
        ("ELECTION_TIMEOUT_MS", Some(advised.election)),
        ("REQUEST_TIMEOUT_MS", advised.request_timeout),
        ("CLOCK_OFFSET_MAX_MS", advised.clock_offset_max),
    ];
    for (name, ms) in given {
        if let Some(ms) = ms {
            settings.entry(name.to_owned()).or_insert_with(|| ms.to_string());
        }
    }
    if topology.measure.modes.contains(&Mode::Lease) {
        let longest = format!("{:.0}", election_ms(&settings));
        // All nodes share the clock of this machine, so it stands still for none of them alone.
        for (name, value) in [("LEASE_MS", longest), ("LEASE_CLOCK", "trusted".to_owned())] {
            settings.entry(name.to_owned()).or_insert(value);
        }
    }
    if topology.forwards() {
        settings.insert("FORWARD".to_owned(), "on".to_owned());
    }
    if topology.measure.modes.contains(&Mode::Interval) {
        // All nodes have the clock of this machine, so they agree within any bound.
        let source = settings.entry("INTERVAL_SOURCE".to_owned());
        source.or_insert_with(|| "fixed=1ms".to_owned());
    }
    Ok(settings)
}

/// The election timeout among these settings, ms.
#[must_use]
pub fn election_ms(settings: &BTreeMap<String, String>) -> f64 {
    settings.get("ELECTION_TIMEOUT_MS").and_then(|it| it.parse().ok()).unwrap_or(200.0)
}

/// Runs a topology. Calls `tell` with a line whenever something begins or was measured.
///
/// # Errors
/// There is no outcome; see [`LabError`]. An outcome that is not as expected is no error.
pub fn run(
    topology: &Topology,
    setup: &Setup,
    tell: &mut dyn FnMut(&str),
) -> Result<Outcome, LabError> {
    let settings = node_settings(topology)?;
    let began = Instant::now();
    let mut lab = Lab::start(topology, setup, settings, tell)?;
    lab.floor()?;
    lab.verify()?;
    for step in setup.plan.steps.clone() {
        match step {
            Step::Floor => {}
            Step::AtRest => lab.at_rest()?,
            Step::EachLeader => lab.each_leader()?,
            Step::RegionLost => lab.regions_lost()?,
            Step::Killed => lab.killed()?,
            Step::OneWay => lab.one_way()?,
            Step::Modes => lab.modes()?,
        }
    }
    lab.outcome.elapsed_s = began.elapsed().as_secs_f64();
    Ok(lab.outcome)
}

/// A running topology.
struct Lab<'a> {
    /// The nodes end before their links.
    nodes: Nodes,
    wires: Wires,
    setup: &'a Setup,
    tell: &'a mut dyn FnMut(&str),
    history: History,
    outcome: Outcome,
}

impl<'a> Lab<'a> {
    fn start(
        topology: &Topology,
        setup: &'a Setup,
        settings: BTreeMap<String, String>,
        tell: &'a mut dyn FnMut(&str),
    ) -> Result<Self, LabError> {
        let machine = Machine::read();
        let namespaces = match setup.plan.links {
            LinkKind::Proxies => None,
            LinkKind::Netns => Some(Namespaces::new(topology)?),
        };
        let (program, running) = (setup.program.clone(), setup.running.clone());
        let nodes = Nodes::new(topology, &settings, program, running, namespaces.as_ref())?;
        let wires = Wires::new(topology, &nodes, namespaces, setup.seed)?;
        nodes.check()?;
        tell(&format!("starting {} nodes", topology.nodes.len()));
        nodes.start_all()?;
        let outcome = Outcome {
            topology: topology.clone(),
            plan: setup.plan.clone(),
            settings,
            started: SystemTime::now(),
            elapsed_s: 0.0,
            machine,
            seed: setup.seed,
            floor_ms: BTreeMap::new(),
            floor_failures: Failures::new(),
            links: Vec::new(),
            cells: Vec::new(),
            handovers: Vec::new(),
            outages: Vec::new(),
            checked: 0,
            violations: 0,
            described: Vec::new(),
        };
        let history = History::new(Instant::now());
        let mut lab = Self { nodes, wires, setup, tell, history, outcome };
        lab.wait_until_well()?;
        Ok(lab)
    }

    fn topology(&self) -> &Topology {
        &self.outcome.topology
    }

    fn tell(&mut self, line: &str) {
        (self.tell)(line);
    }

    /// How long clients get no answer after a silent loss of the leader.
    fn silent_loss(&self) -> Duration {
        let election_ms = election_ms(&self.outcome.settings);
        millis(expected::silent_loss_ms(self.topology(), election_ms))
    }

    /// The longest answer that is expected while all voters run.
    fn longest_answer(&self) -> Duration {
        let topology = self.topology();
        let all = topology.voters();
        let pairs = topology.clients.keys().flat_map(|it| all.iter().map(move |node| (*it, *node)));
        let costs = pairs.filter_map(|(it, node)| expected::answer_ms(topology, it, node, &all));
        millis(costs.fold(0.0, f64::max))
    }

    /// How long a client waits for an answer before it asks another node.
    fn attempt(&self) -> Duration {
        ATTEMPT_MIN.max(2 * self.longest_answer() + Duration::from_millis(200))
    }

    /// Sleeps, unless the run is told to stop.
    fn pause(&self, length: Duration) -> Result<(), LabError> {
        let end = Instant::now() + length;
        loop {
            if self.setup.stop.load(Ordering::Relaxed) {
                return Err(LabError::Stopped);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK));
        }
    }

    /// Waits until `holds`. Returns whether it did before `limit`.
    fn wait(&self, limit: Duration, mut holds: impl FnMut() -> bool) -> Result<bool, LabError> {
        let end = Instant::now() + limit;
        loop {
            if holds() {
                return Ok(true);
            }
            if Instant::now() >= end {
                return Ok(false);
            }
            self.pause(LOOK)?;
        }
    }

    /// Waits until every node is ready and one leads.
    fn wait_until_well(&mut self) -> Result<u64, LabError> {
        let limit = WELL_MAX + 3 * self.silent_loss();
        let end = Instant::now() + limit;
        loop {
            self.nodes.check_running()?;
            if self.nodes.are_ready()
                && let Some(leader) = self.nodes.leader()
            {
                return Ok(leader);
            }
            if Instant::now() >= end {
                let tail = self.nodes.log_tail();
                return Err(LabError::Node(format!("no leader after {limit:.0?}. {tail}")));
            }
            self.pause(LOOK)?;
        }
    }

    /// Gives leadership to a node.
    fn lead(&mut self, to: u64) -> Result<(), LabError> {
        for _ in 0..HANDOVERS_MAX {
            let leader = self.wait_until_well()?;
            if leader == to {
                return Ok(());
            }
            self.nodes.hand_over(leader, to);
            if self.wait(HANDOVER_MAX, || self.nodes.leads(to))? {
                return Ok(());
            }
        }
        let tail = self.nodes.log_tail();
        Err(LabError::Node(format!("leadership does not move to node {to}. {tail}")))
    }

    /// Records the answers of clients that have stopped, and checks them.
    fn record(&mut self, reports: &BTreeMap<usize, Report>) {
        for report in reports.values() {
            self.history.record_all(&report.operations);
            self.history.count(report.refused(), report.unknown());
        }
        let verdict = self.history.settle(Instant::now());
        self.outcome.checked = self.history.totals().answered;
        self.outcome.violations += verdict.violation_count;
        let room = DESCRIBED_MAX.saturating_sub(self.outcome.described.len());
        let described = verdict.violations.iter().take(room).map(ToString::to_string);
        self.outcome.described.extend(described);
    }
}

/// The failed requests of all clients.
fn failures_of(reports: &BTreeMap<usize, Report>) -> Failures {
    let mut failures = Failures::new();
    for report in reports.values() {
        add_failures(&mut failures, &report.failures);
    }
    failures
}

/// Time between two looks at a node.
const LOOK: Duration = Duration::from_millis(20);
/// A client waits at least this long for an answer.
const ATTEMPT_MIN: Duration = Duration::from_millis(500);
/// How long nodes may take until one leads, beyond three elections.
const WELL_MAX: Duration = Duration::from_secs(20);
/// How long a handover may take before it is tried again.
const HANDOVER_MAX: Duration = Duration::from_secs(5);
/// How often a handover is tried.
const HANDOVERS_MAX: usize = 4;
/// At most this many wrong answers are described.
const DESCRIBED_MAX: usize = 8;
