//! The world: events in the order of time, links that delay, reorder, repeat and lose, and the
//! way of everything from one node to another. The history watches every step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;

use epicepoch_core::publication::{Published, Role};
use epicepoch_core::replica::MessageError;
use epicepoch_wire::bootstrap::Genesis;
use epicepoch_wire::confirm::{Confirm, ConfirmReply};
use epicepoch_wire::{BootId, ClusterId, Epoch, HistoryId, LogIndex, NodeId, StoreId};

use super::disk::Disk;
use super::history::History;
use super::node::{Node, Request, TICK_NS, member};
use super::plant::{Plant, forged};

/// A millisecond.
pub(crate) const MS: u64 = 1_000_000;
/// Unix time when a world begins.
pub(crate) const START_NS: u64 = 1_700_000_000_000 * MS;
/// Lines of a trace that are kept.
const TRACE_MAX: usize = 150;

/// What a link or a pause is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Plane {
    Raft,
    Workers,
}

/// What links do. Chances are per thousand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    pub(crate) delay_ns: (u64, u64),
    pub(crate) lost: u32,
    pub(crate) doubled: u32,
    pub(crate) late: u32,
    pub(crate) late_ns: u64,
    /// A write that is finished takes those behind it with it.
    pub(crate) together: u32,
    /// Most time between a confirmed round and its allocation.
    pub(crate) dither_ns: u64,
}

impl Weather {
    /// Every message arrives once, after a millisecond.
    pub(crate) const FAIR: Self = Self {
        delay_ns: (MS, MS),
        lost: 0,
        doubled: 0,
        late: 0,
        late_ns: 0,
        together: 0,
        dither_ns: 0,
    };
}

#[derive(Clone, Debug)]
pub(super) enum Event {
    Tick,
    Written,
    Work { worker: usize },
    Allocate { worker: usize },
    Raft { from: NodeId, store: StoreId, bytes: Vec<u8> },
    Confirm { from: NodeId, confirm: Confirm },
    Reply { from: NodeId, reply: ConfirmReply },
    Closed { peer: NodeId },
}

impl Event {
    const fn plane(&self) -> Plane {
        match self {
            Self::Tick | Self::Written | Self::Raft { .. } | Self::Closed { .. } => Plane::Raft,
            Self::Work { .. }
            | Self::Allocate { .. }
            | Self::Confirm { .. }
            | Self::Reply { .. } => Plane::Workers,
        }
    }
}

/// To whom, of which run (any, for what comes over a link), and what.
type Addressed = (NodeId, Option<BootId>, Event);

/// Everything.
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) now_ns: u64,
    pub(crate) random: fastrand::Rng,
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    pub(crate) genesis: Genesis,
    pub(crate) weather: Weather,
    /// One-way: from, to.
    pub(crate) cuts: BTreeSet<(NodeId, NodeId, Plane)>,
    pub(crate) history: History,
    pub(crate) plant: Option<Plant>,
    /// Messages that a node refused.
    pub(crate) refusals: Vec<(NodeId, MessageError)>,
    /// The latest time that any node has trusted.
    pub(crate) clock_max_ns: u64,
    /// Runs that ended because the replica said so.
    pub(crate) fatals: u64,
    queue: BTreeMap<(u64, u64), Addressed>,
    sequence: u64,
    /// Lines of the trace, when it is kept, and a hash of all of them.
    pub(crate) trace: Option<(VecDeque<String>, u64)>,
}

impl World {
    /// A cluster of `voters`, not started.
    pub(crate) fn new(seed: u64, voters: u64) -> Self {
        let store = |node: u64| StoreId(u128::from(node) + 100);
        let members = (1..=voters).map(|node| member(NodeId(node), store(node))).collect();
        let genesis = Genesis {
            cluster: ClusterId(9),
            history: HistoryId(1),
            members,
            floor: Epoch(0),
            removed: vec![],
        };
        let nodes = (1..=voters).map(|node| {
            (NodeId(node), Node::new(NodeId(node), store(node), Disk::genesis(&genesis)))
        });
        Self {
            seed,
            now_ns: 0,
            random: fastrand::Rng::with_seed(seed),
            nodes: nodes.collect(),
            genesis,
            weather: Weather::FAIR,
            cuts: BTreeSet::new(),
            history: History::default(),
            plant: None,
            refusals: vec![],
            clock_max_ns: 0,
            fatals: 0,
            queue: BTreeMap::new(),
            sequence: 0,
            trace: None,
        }
    }

    /// A cluster that runs in fair weather.
    pub(crate) fn started(seed: u64, voters: u64) -> Self {
        let mut world = Self::new(seed, voters);
        world.start_all();
        world
    }

    pub(crate) fn start_all(&mut self) {
        for id in self.ids() {
            self.start_if_down(id);
        }
    }

    pub(crate) fn start_if_down(&mut self, id: NodeId) {
        if self.nodes[&id].running.is_none() {
            self.start(id);
        }
    }

    pub(crate) fn ids(&self) -> Vec<NodeId> {
        self.nodes.keys().copied().collect()
    }

    pub(crate) fn node(&mut self, id: NodeId) -> &mut Node {
        self.nodes.get_mut(&id).expect("a node of this world")
    }

    /// Adds a node that knows the cluster and is no member, and starts it.
    pub(crate) fn add_joining(&mut self, id: NodeId) {
        let disk = Disk::joining(&self.genesis);
        self.nodes.insert(id, Node::new(id, StoreId(u128::from(id.0) + 100), disk));
        self.start(id);
    }

    pub(crate) fn start(&mut self, id: NodeId) {
        let seed = self.random.u64(..);
        let is_apart = matches!(self.plant, Some(Plant::KeptRange | Plant::OldVoters));
        let node = self.node(id);
        node.boot(seed, is_apart);
        let offset_ns = self.random.u64(0..TICK_NS);
        self.schedule_own(id, offset_ns, Event::Tick);
        self.note(|| format!("start {id}"));
        self.pump(id);
    }

    /// The process ends; what was not durable is lost.
    pub(crate) fn crash(&mut self, id: NodeId) {
        self.note(|| format!("crash {id}"));
        let node = self.node(id);
        node.disk.crash();
        if let Some(running) = node.running.take() {
            let waiting = running.workers.iter().map(|worker| worker.open.len() as u64);
            self.history.refused += waiting.sum::<u64>();
        }
    }

    pub(crate) fn restart(&mut self, id: NodeId) {
        self.crash(id);
        self.start(id);
    }

    /// Peers see that the connection from `id` has closed.
    pub(crate) fn close(&mut self, id: NodeId) {
        for peer in self.ids() {
            if peer != id {
                self.schedule(peer, None, MS, Event::Closed { peer: id });
            }
        }
    }

    pub(crate) fn pause(&mut self, id: NodeId, plane: Plane, ns: u64) {
        let until_ns = self.now_ns + ns;
        let node = self.node(id);
        match plane {
            Plane::Raft => node.raft_paused_until_ns = until_ns,
            Plane::Workers => node.workers_paused_until_ns = until_ns,
        }
    }

    /// Cuts both directions between `a` and `b`.
    pub(crate) fn cut(&mut self, a: NodeId, b: NodeId, plane: Plane) {
        self.cuts.insert((a, b, plane));
        self.cuts.insert((b, a, plane));
    }

    /// Cuts a node off from all others, on one plane.
    pub(crate) fn isolate(&mut self, id: NodeId, plane: Plane) {
        for other in self.ids() {
            if other != id {
                self.cut(id, other, plane);
            }
        }
    }

    pub(crate) fn heal(&mut self) {
        self.cuts.clear();
    }

    /// A client asks `node` for `count` timestamps.
    pub(crate) fn ask(&mut self, id: NodeId, worker: usize, count: u64) {
        let request = Request { count, floor: self.history.floor() };
        let plant = self.plant;
        let Some(running) = self.node(id).running.as_mut() else {
            self.history.refused += 1;
            return;
        };
        if plant == Some(Plant::LateJoin)
            && let Some(batch) = &running.workers[worker].newest
            && !batch.borrow().is_empty()
        {
            batch.borrow_mut().push(request);
            return;
        }
        if plant == Some(Plant::Unconfirmed)
            && let Some(grant) = running.seen.published().grant
        {
            let key = forged(running.identity, grant);
            self.allocate(id, &[request], &key);
            return;
        }
        running.workers[worker].open.push(request);
        self.schedule_own(id, 50_000, Event::Work { worker });
    }

    /// Calls the replica of a running node, then does what it wants done.
    pub(crate) fn with<R>(
        &mut self,
        id: NodeId,
        call: impl FnOnce(&mut epicepoch_core::replica::Replica, u64) -> R,
    ) -> R {
        let now_ns = self.now_ns;
        let result = call(&mut self.node(id).running_mut().replica, now_ns);
        self.pump(id);
        result
    }

    pub(crate) fn published(&self, id: NodeId) -> std::sync::Arc<Published> {
        self.nodes[&id].running().shared.published()
    }

    /// The node that leads the highest term and holds a grant.
    pub(crate) fn leader(&self) -> Option<NodeId> {
        let leading = |node: &&Node| {
            let published = node.running.as_ref()?.shared.published();
            (published.role == Role::Leader && published.grant.is_some()).then_some(published.term)
        };
        self.nodes.values().max_by_key(leading).filter(|node| leading(node).is_some()).map(|n| n.id)
    }

    /// What is known to be committed, wherever it is.
    pub(crate) fn committed(&self) -> LogIndex {
        let running = self.nodes.values().filter_map(|node| node.running.as_ref());
        let committed = running.map(|running| running.replica.status().committed);
        committed.max().unwrap_or(LogIndex(0))
    }

    /// Whether every member has applied up to `committed`, and no change of members is half done.
    pub(crate) fn is_whole(&self, committed: LogIndex) -> bool {
        let Some(leader) = self.leader() else { return false };
        self.nodes[&leader].running().replica.state().members.keys().all(|member| {
            self.nodes[member].running.as_ref().is_some_and(|running| {
                let is_joint = running.shared.published().voters.is_joint();
                running.replica.applied() >= committed && !is_joint
            })
        })
    }

    /// Trusted time of a node, Unix nanoseconds.
    pub(crate) fn trusted_ns(&self, id: NodeId) -> u64 {
        (START_NS + self.now_ns).saturating_add_signed(self.nodes[&id].ahead_ns)
    }

    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        let Some((lines, hash)) = &mut self.trace else { return };
        let mut text = format!("{:>12} ", self.now_ns);
        let _ = text.write_str(&line());
        for byte in text.bytes() {
            *hash = (*hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if lines.len() == TRACE_MAX {
            lines.pop_front();
        }
        lines.push_back(text);
    }

    pub(super) fn schedule_own(&mut self, id: NodeId, after_ns: u64, event: Event) {
        let boot = self.nodes[&id].running().identity.boot;
        self.schedule(id, Some(boot), after_ns, event);
    }

    fn schedule(&mut self, to: NodeId, boot: Option<BootId>, after_ns: u64, event: Event) {
        self.sequence += 1;
        self.queue.insert((self.now_ns + after_ns, self.sequence), (to, boot, event));
    }

    /// Puts something on a link.
    pub(super) fn send(&mut self, to: NodeId, event: &Event) {
        let weather = self.weather;
        if self.chance(weather.lost) {
            return;
        }
        let copies = if self.chance(weather.doubled) { 2 } else { 1 };
        for _ in 0..copies {
            let (least, most) = weather.delay_ns;
            let late_ns =
                if self.chance(weather.late) { self.random.u64(0..weather.late_ns) } else { 0 };
            let after_ns = self.random.u64(least..=most) + late_ns;
            self.schedule(to, None, after_ns, event.clone());
        }
    }

    pub(super) fn chance(&mut self, per_thousand: u32) -> bool {
        per_thousand > 0 && self.random.u32(0..1000) < per_thousand
    }

    /// The next event. `false` when there is none.
    pub(crate) fn step(&mut self) -> bool {
        let Some(((at_ns, _), (to, boot, event))) = self.queue.pop_first() else { return false };
        self.now_ns = at_ns;
        let Some(node) = self.nodes.get(&to) else { return true };
        let Some(running) = &node.running else { return true };
        if boot.is_some_and(|boot| boot != running.identity.boot) {
            return true;
        }
        let until_ns = match event.plane() {
            Plane::Raft => node.raft_paused_until_ns,
            Plane::Workers => node.workers_paused_until_ns,
        };
        if until_ns > at_ns {
            // The inbox is drained before the tick.
            let after_ns = until_ns - at_ns + u64::from(matches!(event, Event::Tick));
            self.schedule(to, boot, after_ns, event);
            return true;
        }
        self.note(|| format!("{to} {event:?}"));
        match event {
            Event::Tick => self.tick(to),
            Event::Written => self.written(to),
            Event::Work { worker } => self.work(to, worker),
            Event::Allocate { worker } => self.allocate_next(to, worker),
            Event::Raft { from, store, bytes } => self.receive(to, from, store, &bytes),
            Event::Confirm { from, confirm } => self.confirm(to, from, &confirm),
            Event::Reply { from, reply } => self.reply(to, from, reply),
            Event::Closed { peer } => {
                self.with(to, |replica, now_ns| {
                    replica.handle_closed(now_ns, peer);
                    replica.handle_unreachable(now_ns, peer);
                });
            }
        }
        true
    }

    /// Runs for a while. Panics when the history is violated.
    pub(crate) fn run(&mut self, ns: u64) {
        let end_ns = self.now_ns + ns;
        while self.queue.first_key_value().is_some_and(|((at_ns, _), _)| *at_ns <= end_ns) {
            self.step();
            self.assert_sound();
        }
        self.now_ns = end_ns;
    }

    /// Runs until something holds, at most some ticks.
    pub(crate) fn run_until(&mut self, ticks: u64, what: &str, holds: impl Fn(&Self) -> bool) {
        let end_ns = self.now_ns + ticks * TICK_NS;
        while !holds(self) {
            assert!(self.now_ns <= end_ns, "not within {ticks} ticks: {what}; {}", self.summary());
            self.step();
            self.assert_sound();
        }
    }

    /// Runs until there is a leader with a grant.
    pub(crate) fn elect(&mut self) -> NodeId {
        self.run_until(60, "a leader with a grant", |world| world.leader().is_some());
        self.leader().expect("there is one")
    }

    pub(crate) fn assert_sound(&self) {
        let violation = self.history.violations.first();
        assert!(violation.is_none(), "seed {}: {violation:?}\n{}", self.seed, self.lines());
    }

    pub(crate) fn lines(&self) -> String {
        let lines = self.trace.iter().flat_map(|(lines, _)| lines.iter().cloned());
        lines.collect::<Vec<_>>().join("\n")
    }

    pub(crate) fn summary(&self) -> String {
        let nodes = self.nodes.values().map(|node| {
            let status = node.running.as_ref().map(|running| running.replica.status());
            format!("\n{}: {status:?}", node.id)
        });
        format!("at {} ns{}\n{}", self.now_ns, nodes.collect::<String>(), self.lines())
    }
}
