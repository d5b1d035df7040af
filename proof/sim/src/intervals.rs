//! Interval mode in a simulator of its own: the shipped `Stamper` of each node, with clocks that
//! drift, step and are disrupted, sources that state their bound, disks that acknowledge marks late,
//! crashes, restarts, and clients that wait. A seed replays a run. It reads no clock.
//!
//! Checked: no timestamp is given twice; each answer's interval holds the true time of a moment
//! between the request's arrival and its answer; a node's timestamps rise, over restarts too; and if
//! an operation, its wait included, ended before another one began, the first has the smaller
//! timestamp. Some runs begin in quorum mode, and the order holds over the change.
//!
//! Nodes tell each other their intervals, late or never. In some runs the source of one node lies;
//! then it must refuse once it has heard another node, and the others must go on (S27).
//!
//! - `plant`: the rules that can be broken on purpose.
//! - `node`: a machine, its clock, its source, its disk and its process.
//! - `reports`: what the nodes tell each other of the time.

mod node;
pub(crate) mod plant;
mod reports;

use std::collections::HashSet;

use epicepoch_core::interval::Uncertain;
use epicepoch_wire::interval::{INTERVAL_COUNTS, IntervalStamp};
use epicepoch_wire::{Epoch, EpochIndex, Timestamp};
use fastrand::Rng;

use node::{BOUND_MAX_NS, NODES, Node, TICK_NS};
pub use plant::IntervalPlant;
use reports::Report;

/// Steps of a run.
const STEPS: usize = 2_500;
/// At most this many operations are under way.
const OPERATIONS_MAX: usize = 6;
/// The interval to which the planted rule truncates time: at least twice the largest bound.
const TRUNCATED_NS: u64 = 2 * BOUND_MAX_NS as u64;

/// What a run did, for its summary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IntervalCounts {
    /// Operations that got a timestamp and waited.
    pub ended: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Requests that were refused because a mark was not durable yet.
    pub behind_mark: u64,
    /// Requests that were refused because of a disruption.
    pub disrupted: u64,
    /// Restarts of a node.
    pub restarts: u64,
    /// Clean stops of a node.
    pub stops: u64,
    /// Timestamps of quorum mode, before the change.
    pub of_quorum: u64,
    /// Reports of other nodes' intervals that arrived.
    pub reports: u64,
    /// Requests that were refused because the interval contradicts the others'.
    pub contradicted: u64,
    /// Requests that were refused because too few other intervals were known yet.
    pub unheard: u64,
}

impl IntervalCounts {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.ended += other.ended;
        self.refused += other.refused;
        self.behind_mark += other.behind_mark;
        self.disrupted += other.disrupted;
        self.restarts += other.restarts;
        self.stops += other.stops;
        self.of_quorum += other.of_quorum;
        self.reports += other.reports;
        self.contradicted += other.contradicted;
        self.unheard += other.unheard;
    }
}

/// Runs one seed, with a planted bug or without one. Returns what it did, and the first violation.
#[must_use]
pub fn run_intervals(seed: u64, plant: Option<IntervalPlant>) -> (IntervalCounts, Option<String>) {
    let mut world = World::new(seed, plant);
    for _ in 0..STEPS {
        world.step();
        if world.violation.is_some() {
            break;
        }
    }
    (world.counts, world.violation)
}

/// An operation of a client.
#[derive(Clone, Copy, Debug)]
struct Operation {
    node: usize,
    began_ns: i64,
    /// The largest timestamp of all operations that had ended before this one began.
    floor: Option<Timestamp>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Asked,
    Arrived {
        at_ns: i64,
    },
    /// `left` is in eighths of a nanosecond of the client's clock.
    Waiting {
        timestamp: Timestamp,
        left: i64,
    },
}

struct World {
    random: Rng,
    plant: Option<IntervalPlant>,
    now_ns: i64,
    nodes: Vec<Node>,
    operations: Vec<Operation>,
    /// Reports that are under way.
    under_way: Vec<Report>,
    /// The node whose source lies.
    liar: Option<usize>,
    /// When each node has last heard each other one, in its present run, if that surely counted.
    heard: [[Option<i64>; NODES]; NODES],
    /// Whether each node has heard any other one in its present run.
    has_heard: [bool; NODES],
    /// The largest timestamp of an operation that has ended.
    highest: Option<Timestamp>,
    seen: HashSet<Timestamp>,
    /// Quorum mode: the last timestamp, and the ceiling where interval mode began.
    quorum: Timestamp,
    ceiling: Option<Epoch>,
    violation: Option<String>,
    counts: IntervalCounts,
}

impl World {
    fn new(seed: u64, plant: Option<IntervalPlant>) -> Self {
        let mut random = Rng::with_seed(seed);
        let now_ns = 10_000 * TICK_NS;
        let begins_in_quorum = random.bool();
        let nodes = (0..NODES).map(|at| Node::new(at, now_ns, &mut random, plant)).collect();
        let liar = reports::liar(&mut random, plant);
        let quorum = Timestamp::new(Epoch(now_ns as u64), EpochIndex(0));
        let mut world = Self {
            random,
            plant,
            now_ns,
            nodes,
            operations: vec![],
            under_way: vec![],
            liar,
            heard: [[None; NODES]; NODES],
            has_heard: [false; NODES],
            highest: None,
            seen: HashSet::new(),
            quorum,
            ceiling: None,
            violation: None,
            counts: IntervalCounts::default(),
        };
        if let Some(liar) = liar {
            world.nodes[liar].lie(&mut world.random);
        }
        if !begins_in_quorum {
            world.change_mode();
            for node in &mut world.nodes {
                node.applied = world.ceiling;
            }
        }
        world
    }

    fn is(&self, plant: IntervalPlant) -> bool {
        self.plant == Some(plant)
    }

    fn violate(&mut self, what: impl FnOnce() -> String) {
        self.violation.get_or_insert_with(what);
    }

    fn chance(&mut self, thousandths: u32) -> bool {
        self.random.u32(..1_000) < thousandths
    }

    // The world.

    fn advance(&mut self) {
        let ticks = if self.chance(20) { self.random.i64(20..=150) } else { self.random.i64(0..4) };
        let ns = ticks * TICK_NS + self.random.i64(0..TICK_NS / 4);
        // Half of the steps follow each other at once.
        let ns = if self.random.bool() { 0 } else { ns };
        self.now_ns += ns;
        for node in &mut self.nodes {
            node.pass(ns);
            if self.random.u8(..50) == 0 {
                node.applied = self.ceiling;
            }
        }
        // A client's clock may be fast by an eighth.
        let eighths = if self.is(IntervalPlant::WorldClientFast) { 18 } else { 9 };
        for operation in &mut self.operations {
            if let Stage::Waiting { left, .. } = &mut operation.stage {
                *left -= ns * eighths;
            }
        }
    }

    /// The change of the mode is committed: the leader of quorum mode ceases. Its ceiling may be a
    /// reservation ahead of the clock.
    fn change_mode(&mut self) {
        let ahead_ns = self.random.i64(0..100) * TICK_NS;
        let ceiling_ns = self.quorum.epoch.0.max((self.now_ns + ahead_ns) as u64);
        self.ceiling = Some(Epoch(ceiling_ns));
    }

    /// The leader of quorum mode answers a request that begins and ends here. With the planted bug it
    /// does so in interval mode, too.
    fn quorum_answers(&mut self) {
        if self.ceiling.is_some() && !self.is(IntervalPlant::MixedWithQuorum) {
            return;
        }
        let epoch_ns = self.quorum.epoch.0.max(self.now_ns as u64);
        let is_due = epoch_ns - self.quorum.epoch.0 > 10 * TICK_NS as u64;
        self.quorum = match (self.ceiling, is_due) {
            // A range ahead of the clock, as after a crash of the leader.
            (None, _) if self.random.u8(..8) == 0 => {
                Timestamp::new(Epoch(epoch_ns + 50 * TICK_NS as u64), EpochIndex(0))
            }
            (_, true) => Timestamp::new(Epoch(epoch_ns), EpochIndex(0)),
            (_, false) => Timestamp::new(self.quorum.epoch, EpochIndex(self.quorum.index.0 + 1)),
        };
        let (given, highest) = (self.quorum, self.highest);
        if Some(given) <= highest {
            self.violate(|| format!("ORDER: quorum mode gave {given} after {highest:?}"));
        }
        self.highest = highest.max(Some(given));
        self.counts.of_quorum += 1;
    }

    // Clients.

    fn begin(&mut self) {
        if self.operations.len() < OPERATIONS_MAX {
            let (node, began_ns, floor) = (self.random.usize(..NODES), self.now_ns, self.highest);
            self.operations.push(Operation { node, began_ns, floor, stage: Stage::Asked });
        }
    }

    fn answer(&mut self, which: usize) {
        let Operation { node: at, stage: Stage::Arrived { at_ns }, began_ns, .. } =
            self.operations[which]
        else {
            return;
        };
        let n = self.random.u64(1..4);
        let outcome = self.nodes[at].stamp(self.now_ns, n, &mut self.random);
        let stamp = match outcome {
            Ok(stamp) => stamp,
            Err(why) => {
                self.operations.swap_remove(which);
                self.counts.refused += 1;
                self.counts.behind_mark += u64::from(why == Some(Uncertain::MarkBehind));
                self.counts.disrupted += u64::from(why == Some(Uncertain::Disrupted));
                self.check_refusal(at, why);
                return;
            }
        };
        self.check_heard(at);
        let timestamp = self.planted_timestamp(&stamp);
        self.check_stamp(at, at_ns, &stamp, timestamp, n);
        let width_ns = (stamp.latest_ns() - stamp.earliest_ns()) as i64;
        let left = match self.plant {
            Some(IntervalPlant::NoWait | IntervalPlant::SeedOtherKey) => 0,
            Some(IntervalPlant::HalfWait) => stamp.wait_ns() as i64 / 2 * 8,
            Some(IntervalPlant::WaitWithoutDrift) => width_ns * 8,
            Some(IntervalPlant::WaitBeforeStamp) => {
                stamp.wait_ns() as i64 * 8 - (self.now_ns - began_ns) * 9
            }
            _ => stamp.wait_ns() as i64 * 8,
        };
        self.operations[which].stage = Stage::Waiting { timestamp, left };
    }

    /// The timestamp of an answer; with some planted bugs, not the one of the shipped code.
    fn planted_timestamp(&self, stamp: &IntervalStamp) -> Timestamp {
        let given = stamp.timestamp();
        let (earliest_ns, latest_ns, index) = (stamp.earliest_ns(), given.epoch.0, given.index.0);
        let middle_ns = earliest_ns + (latest_ns - earliest_ns) / 2;
        let truncated = |ns: u64| ns / TRUNCATED_NS * TRUNCATED_NS;
        let (epoch_ns, index) = match self.plant {
            Some(IntervalPlant::StampMiddle) => (middle_ns, index),
            Some(IntervalPlant::StampEarliest) => (earliest_ns, index),
            Some(IntervalPlant::TruncatedDown) => (truncated(latest_ns), index),
            Some(IntervalPlant::SeedOtherKey) => (truncated(middle_ns), index),
            Some(IntervalPlant::NoNodeInIndex) => {
                (latest_ns, index & (1 << 63 | (INTERVAL_COUNTS - 1)))
            }
            Some(IntervalPlant::CountRestarts) => (latest_ns, index & !(INTERVAL_COUNTS - 1)),
            _ => (latest_ns, index),
        };
        Timestamp::new(Epoch(epoch_ns), EpochIndex(index))
    }

    fn check_stamp(
        &mut self,
        at: usize,
        arrived_ns: i64,
        stamp: &IntervalStamp,
        first: Timestamp,
        n: u64,
    ) {
        let now_ns = self.now_ns;
        let (earliest, latest) = (stamp.earliest_ns() as i64, stamp.latest_ns() as i64);
        let is_wrong = latest < arrived_ns || earliest > now_ns;
        if is_wrong && self.liar != Some(at) {
            self.violate(|| {
                format!(
                    "INTERVAL: [{earliest}, {latest}] holds no moment of [{arrived_ns}, {now_ns}]"
                )
            });
        }
        // The rule of the seed promises neither: clients ask again.
        let is_of_seed = self.is(IntervalPlant::SeedOtherKey);
        for index in first.index.0..first.index.0 + n {
            let timestamp = Timestamp::new(first.epoch, EpochIndex(index));
            let before = self.nodes[at].given.replace(timestamp);
            if Some(timestamp) <= before && !is_of_seed {
                self.violate(|| format!("NODE: n{at} gave {timestamp} after {before:?}"));
            }
            if !self.seen.insert(timestamp) && !is_of_seed {
                self.violate(|| format!("DUPLICATE: {timestamp}"));
            }
        }
    }

    /// An operation ends: it has its timestamp and has waited.
    fn end(&mut self, which: usize) {
        let Stage::Waiting { timestamp, .. } = self.operations[which].stage else { return };
        let Operation { node, floor, .. } = self.operations.swap_remove(which);
        self.counts.ended += 1;
        if self.liar == Some(node) {
            return;
        }
        let is_low = if self.is(IntervalPlant::SeedOtherKey) {
            floor.is_some_and(|floor| timestamp.epoch < floor.epoch)
        } else {
            Some(timestamp) <= floor
        };
        if is_low {
            self.violate(|| format!("ORDER: n{node} gave {timestamp} after {floor:?}"));
        }
        self.highest = self.highest.max(Some(timestamp));
    }

    /// An operation at this stage, drawn at random.
    fn drawn(&mut self, is_at: impl Fn(&Stage) -> bool) -> Option<usize> {
        let found = (0..self.operations.len()).filter(|at| is_at(&self.operations[*at].stage));
        let found: Vec<_> = found.collect();
        if found.is_empty() { None } else { Some(found[self.random.usize(..found.len())]) }
    }

    fn crash(&mut self, at: usize, is_clean: bool) {
        if self.nodes[at].is_up() {
            let is_waiting = |it: &Operation| matches!(it.stage, Stage::Waiting { .. });
            self.operations.retain(|it| it.node != at || is_waiting(it));
            self.under_way.retain(|it| it.to != at);
            self.heard[at] = [None; NODES];
            self.has_heard[at] = false;
            self.nodes[at].end(is_clean, &mut self.random);
            self.counts.stops += u64::from(is_clean);
        }
    }

    fn step(&mut self) {
        self.advance();
        let at = self.random.usize(..NODES);
        if self.random.u8(..10) < 4 {
            return self.exchange(at);
        }
        let is_asked = |stage: &Stage| matches!(stage, Stage::Asked);
        let has_arrived = |stage: &Stage| matches!(stage, Stage::Arrived { .. });
        let is_over = |stage: &Stage| matches!(stage, Stage::Waiting { left, .. } if *left <= 0);
        match self.random.u32(..1_000) {
            0..=249 => self.begin(),
            250..=399 => {
                if let Some(which) = self.drawn(is_asked) {
                    self.operations[which].stage = Stage::Arrived { at_ns: self.now_ns };
                }
            }
            400..=579 => self.drawn(has_arrived).into_iter().for_each(|which| self.answer(which)),
            580..=819 => self.drawn(is_over).into_iter().for_each(|which| self.end(which)),
            820..=849 => self.nodes[at].synchronize(self.now_ns, &mut self.random),
            850..=889 => self.nodes[at].read_source(self.now_ns, &mut self.random),
            890..=904 => self.nodes[at].cache(self.now_ns),
            905..=944 => self.nodes[at].sync_disk(),
            945..=959 => self.quorum_answers(),
            960..=966 => {
                if self.ceiling.is_none() && self.counts.of_quorum > 0 {
                    self.change_mode();
                }
            }
            967..=969 => self.crash(at, false),
            970..=972 => self.crash(at, true),
            973..=992 => {
                if !self.nodes[at].is_up() {
                    self.nodes[at].start();
                    self.counts.restarts += 1;
                }
            }
            _ => {
                if self.chance(300) {
                    self.nodes[at].disrupt(&mut self.random);
                }
            }
        }
    }
}
