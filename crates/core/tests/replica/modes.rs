//! The changes between quorum mode and interval mode, with whole replicas (S24, S26): leaders are
//! lost, nodes crash, pause, are cut off and removed, leadership is handed over, and operators change
//! their minds. Workers stamp by publications that they read some time ago.
//!
//! Checked: an interval timestamp is above every quorum timestamp before it, and the other way round,
//! and none is given twice. `proof/sim` has more of the rules, with a log that is a list.

use std::collections::{BTreeMap, BTreeSet};

use epicepoch_core::interval::peers::PeerIntervals;
use epicepoch_core::interval::{Opening, Reading, Stamper};
use epicepoch_core::publication::Role;
use epicepoch_core::replica::HandOver;
use epicepoch_core::state::{Command, FORMATS, MembershipChange, MembershipStep, Outcome, State};
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::voter_status::Closed;
use epicepoch_wire::{
    Epoch, EpochIndex, Guarantee, Mode, NodeId, Term, Timestamp, TimestampFormat,
};
use fastrand::Rng;

use crate::support::bench::genesis;
use crate::support::disk::Disk;
use crate::support::{Cluster, ELECTION_TICKS, MS, START_NS, TICK_NS};

const SEEDS: u64 = 25;
/// Ticks of a run, before everything is repaired.
const TICKS: u64 = 1_500;
const VOTERS: u64 = 4;
/// A clock is off by at most this.
const BOUND_NS: u64 = 5 * MS;
/// Trusted time is off by at most this.
const TRUSTED_OFF_NS: i64 = 50 * MS as i64;
/// Ticks within which a cluster that was repaired is in quorum mode and answers.
const REPAIRED_TICKS: u64 = 1_000;

fn settings(mode: Mode) -> ClusterSettings {
    ClusterSettings {
        epoch_interval_ms: 100,
        reservation_ms: 8 * ELECTION_TICKS as u64 * TICK_NS / MS,
        clock_offset_max_ms: 50,
        max_n: 65_536,
        leader_zones: vec![],
        lease_ms: 0,
        guarantee_default: Guarantee::Quorum,
        timestamp_format: TimestampFormat::Wide,
        mode,
    }
}

/// What a node has for interval mode beside its replica.
struct Machine {
    // On its disk.
    mark_ns: u64,
    closed: u64,
    // In its process.
    stamper: Stamper,
    /// What is on its way to the disk.
    closing: Option<Closed>,
    /// Publications that workers have read and not used yet.
    read: Vec<Opening>,
}

impl Machine {
    fn new(id: NodeId, mark_ns: u64, closed: u64) -> Self {
        let stamper = Stamper::new(id, mark_ns, closed, BOUND_NS).expect("a low id");
        Self { mark_ns, closed, stamper, closing: None, read: vec![] }
    }
}

/// What a run did.
#[derive(Debug, Default)]
struct Counts {
    of_intervals: u64,
    of_quorum: u64,
    closed: u64,
    ended: u64,
    /// Requests that a closed stamper refused, although they had read that interval mode is open.
    overtaken: u64,
    handed_over: u64,
    removed: u64,
}

struct World {
    cluster: Cluster,
    random: Rng,
    machines: BTreeMap<NodeId, Machine>,
    down: BTreeSet<NodeId>,
    paused: BTreeSet<NodeId>,
    removed: BTreeSet<NodeId>,
    nonce: u64,
    /// The last quorum timestamp, and the highest interval timestamp.
    quorum: Timestamp,
    interval: Timestamp,
    given: BTreeSet<Timestamp>,
    /// The mode of the leader's state, and the change by which it closed.
    last: (Mode, Option<u64>),
    counts: Counts,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut cluster = Cluster::new(seed, VOTERS);
        let genesis = genesis(&(1..=VOTERS).collect::<Vec<_>>());
        let mut state = State { format: FORMATS.newest, ..State::new(&genesis) };
        let settings = settings(Mode::Quorum);
        let first = Command::Settings { nonce: 0, is_seed: true, settings };
        assert_eq!(state.apply(Term(1), &first), Outcome::Set);
        for id in 1..=VOTERS {
            cluster.add(id, |disk| *disk = Disk::genesis_of(&genesis, &state));
        }
        let zero = Timestamp::new(Epoch(0), EpochIndex(0));
        let machines = cluster.ids().into_iter().map(|id| (id, Machine::new(id, 0, 0)));
        Self {
            random: Rng::with_seed(seed),
            machines: machines.collect(),
            cluster,
            down: BTreeSet::new(),
            paused: BTreeSet::new(),
            removed: BTreeSet::new(),
            nonce: 0,
            quorum: zero,
            interval: zero,
            given: BTreeSet::new(),
            last: (Mode::Quorum, None),
            counts: Counts::default(),
        }
    }

    fn drawn(&mut self) -> NodeId {
        let ids = self.cluster.ids();
        ids[self.random.usize(..ids.len())]
    }

    /// The leader of the highest term. In interval mode no grant is published.
    fn leader(&self) -> Option<NodeId> {
        let leads = |id: &NodeId| {
            !self.down.contains(id) && self.cluster.published(*id).role == Role::Leader
        };
        let leaders = self.cluster.ids().into_iter().filter(leads);
        leaders.max_by_key(|id| self.cluster.published(*id).term)
    }

    fn tick(&mut self) {
        self.cluster.tick();
        for id in self.cluster.ids() {
            if !self.down.contains(&id) && !self.paused.contains(&id) {
                self.close_if_due(id);
            }
        }
        if let Some(leader) = self.leader() {
            let state = self.cluster.bench(leader).replica.state();
            let now = (state.mode(), state.closing());
            self.counts.closed += u64::from(now.1 > self.last.1);
            self.counts.ended += u64::from(now.0 == Mode::Quorum && self.last.0 == Mode::Interval);
            self.last = now;
        }
    }

    /// The consensus plane stops the stamper, and says so when that is on the disk.
    fn close_if_due(&mut self, id: NodeId) {
        let due = self.cluster.bench(id).replica.closing_due();
        let machine = self.machines.get_mut(&id).expect("a node");
        let Some(change) = due else { return };
        match machine.closing.filter(|it| it.change == change) {
            None => {
                let given_ns = machine.stamper.close(change);
                machine.closing = Some(Closed { change, given_ns });
            }
            Some(closed) if self.random.bool() => {
                machine.closed = machine.closed.max(change);
                self.cluster.with(id, |replica, _| replica.handle_intervals_closed(closed));
            }
            Some(_) => {}
        }
    }

    /// A worker reads the publication. It may pause afterwards.
    fn read(&mut self, id: NodeId) {
        let opening = self.cluster.published(id).opening;
        let machine = self.machines.get_mut(&id).expect("a node");
        if machine.read.len() < 4 && !self.down.contains(&id) {
            machine.read.extend(opening);
        }
    }

    /// A worker goes on, with the clock as it is now.
    fn stamp(&mut self, id: NodeId) {
        let true_ns = START_NS + self.cluster.now_ns;
        let clock_ns = true_ns - BOUND_NS + self.random.u64(0..=2 * BOUND_NS);
        let machine = self.machines.get_mut(&id).expect("a node");
        if self.down.contains(&id) || machine.read.is_empty() {
            return;
        }
        let opening = machine.read.swap_remove(self.random.usize(..machine.read.len()));
        let reading = Reading {
            earliest_ns: clock_ns - BOUND_NS,
            latest_ns: clock_ns + BOUND_NS,
            disruption: 0,
            raw_from_ns: clock_ns,
            raw_until_ns: clock_ns,
        };
        let outcome = machine.stamper.stamp(opening, reading, &PeerIntervals::new(id), 1);
        if let Some(mark_ns) = machine.stamper.poll_mark() {
            machine.mark_ns = mark_ns;
            machine.stamper.handle_mark(mark_ns);
        }
        let Ok(stamp) = outcome else {
            self.counts.overtaken += u64::from(machine.closing.is_some());
            return;
        };
        let timestamp = stamp.timestamp();
        assert!(timestamp > self.quorum, "{id} gave {timestamp} after {}", self.quorum);
        assert!(self.given.insert(timestamp), "{timestamp} twice");
        self.interval = self.interval.max(timestamp);
        self.counts.of_intervals += 1;
    }

    /// A request of quorum mode at a node that may lead.
    fn ask(&mut self, id: NodeId) {
        if self.down.contains(&id) {
            return;
        }
        if let Some(range) = self.cluster.ask(id, 2) {
            let first = range.first();
            assert!(first > self.interval, "{id} gave {first} after {}", self.interval);
            self.quorum = range.last();
            self.counts.of_quorum += 1;
        }
    }

    fn set_mode(&mut self, mode: Mode) {
        let Some(leader) = self.leader() else { return };
        self.nonce += 1;
        let (nonce, settings) = (self.nonce, settings(mode));
        self.cluster.with(leader, |replica, now_ns| {
            // A leader may be about to hand over, or busy.
            let _refused = replica.change_settings(now_ns, nonce, &settings);
        });
    }

    fn crash(&mut self, id: NodeId) {
        if self.down.insert(id) {
            let is_seen = self.random.bool();
            self.cluster.crash(id, is_seen);
        }
    }

    fn start(&mut self, id: NodeId) {
        if !self.removed.contains(&id) && self.down.remove(&id) {
            self.paused.remove(&id);
            self.cluster.restart(id);
            let Machine { mark_ns, closed, .. } = self.machines[&id];
            self.machines.insert(id, Machine::new(id, mark_ns, closed));
        }
    }

    fn hand_over(&mut self) {
        let Some(leader) = self.leader() else { return };
        let to = self.drawn();
        self.counts.handed_over += u64::from(to != leader);
        self.cluster.with(leader, |replica, now_ns| {
            let _refused = replica.hand_over(now_ns, Some(to), HandOver::Asked);
        });
    }

    /// One node of a run is removed. It may not hear of it, and goes on until an operator ends it.
    fn remove(&mut self) {
        let Some(leader) = self.leader() else { return };
        let id = self.drawn();
        if id == leader || !self.removed.is_empty() {
            return;
        }
        let steps = vec![MembershipStep::Remove(id)];
        let change = MembershipChange { nonce: 1_000_000, steps };
        let taken =
            self.cluster.with(leader, |replica, now_ns| replica.propose_change(now_ns, &change));
        if taken.is_ok() {
            self.removed.insert(id);
            self.counts.removed += 1;
        }
    }

    /// An operator ends the nodes that were removed in interval mode, and then says so.
    fn state_gone(&mut self) {
        let Some(leader) = self.leader() else { return };
        let intervals = self.cluster.bench(leader).replica.state().intervals.as_ref();
        let gone: Vec<_> = intervals.iter().flat_map(|it| &it.removed).copied().collect();
        for id in &gone {
            self.crash(*id);
        }
        self.cluster.with(leader, |replica, _| replica.record_gone(&gone));
    }

    fn step(&mut self) {
        let id = self.drawn();
        match self.random.u32(..1_000) {
            0..=299 => self.read(id),
            300..=599 => self.stamp(id),
            600..=899 => self.ask(id),
            900..=909 => {
                let mode = if self.random.bool() { Mode::Interval } else { Mode::Quorum };
                self.set_mode(mode);
            }
            910..=915 => self.hand_over(),
            916..=919 => self.crash(id),
            920..=939 => self.start(id),
            940..=943 => self.cluster.isolate(id),
            944..=954 => self.cluster.heal(),
            955..=958 => {
                self.paused.insert(id);
                self.cluster.pause(id);
            }
            959..=974 => {
                self.paused.remove(&id);
                self.cluster.resume(id);
            }
            975 => self.remove(),
            976..=978 => self.state_gone(),
            // Trusted time is within its own bound only.
            979..=988 => self.cluster.ahead_ns = self.random.i64(-TRUSTED_OFF_NS..=TRUSTED_OFF_NS),
            _ => {}
        }
    }

    /// Repairs everything. The cluster must come to quorum mode, and answer.
    fn repair(&mut self) {
        self.cluster.heal();
        for id in self.cluster.ids() {
            self.cluster.resume(id);
            self.paused.remove(&id);
            self.start(id);
        }
        let before = self.counts.of_quorum;
        for tick in 0..REPAIRED_TICKS {
            self.tick();
            if tick % 20 == 0 {
                self.set_mode(Mode::Quorum);
                self.state_gone();
            }
            for id in self.cluster.ids() {
                self.ask(id);
            }
            if self.counts.of_quorum > before {
                return;
            }
        }
        let nodes = self.cluster.ids().into_iter().map(|id| (id, self.cluster.bench(id).status()));
        let (nodes, down): (Vec<_>, _) = (nodes.collect(), &self.down);
        panic!("no answer {REPAIRED_TICKS} ticks after all was repaired: {nodes:?}, down {down:?}");
    }
}

#[test]
fn replicas_whose_mode_changes_in_both_directions_keep_the_modes_apart() {
    let mut counts = Counts::default();
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        for _ in 0..TICKS {
            world.tick();
            for _ in 0..4 {
                world.step();
            }
        }
        world.repair();
        let Counts { of_intervals, of_quorum, closed, ended, .. } = world.counts;
        let Counts { overtaken, handed_over, removed, .. } = world.counts;
        counts.of_intervals += of_intervals;
        counts.of_quorum += of_quorum;
        counts.closed += closed;
        counts.ended += ended;
        counts.overtaken += overtaken;
        counts.handed_over += handed_over;
        counts.removed += removed;
    }
    println!("{counts:?}");
    let Counts { of_intervals, of_quorum, closed, ended, overtaken, handed_over, removed } = counts;
    let all = [of_intervals / 10, of_quorum / 10, closed, ended, overtaken, handed_over, removed];
    assert!(all.iter().all(|count| *count >= SEEDS / 2), "{counts:?}");
}
