//! The changes between quorum mode and interval mode, in both directions, of a whole cluster (S24,
//! S26): the shipped state, stampers and confirmations, beside a log that is a list. Consensus itself
//! is simulated elsewhere. Here a leader is lost at any time and with it what it knows, entries that
//! it has proposed are lost or committed, nodes lag, are cut off, crash, and start again from what is
//! on their disks, take the state of another node, are added and removed, and do not know it; a
//! request is read, and its worker pauses before it stamps; operators change their minds. A seed
//! replays a run. It reads no clock.
//!
//! Checked: no timestamp is given twice; every quorum timestamp is above all interval timestamps that
//! were given before it, waited out or not; if an operation, its wait included, ended before another one
//! began, in whichever mode, the first has the smaller timestamp; and the ceiling is at most a
//! reservation ahead of the clocks.
//!
//! - `plant`: the rules that can be broken on purpose.
//! - `node`: a node.

mod node;
mod plant;

use std::collections::HashSet;

use epicepoch_core::interval::Opening;
use epicepoch_core::state::{
    Command, FORMAT_OF_CLOSING, MembershipChange, MembershipStep, Outcome, Owner, State,
};
use epicepoch_wire::bootstrap::{Genesis, Member};
use epicepoch_wire::raft_message::Configuration;
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::voter_status::Closed;
use epicepoch_wire::{
    ClusterId, Epoch, Guarantee, HistoryId, Mode, NodeId, StoreId, Term, Timestamp, TimestampFormat,
};
use fastrand::Rng;

use node::{BOUND_NS, Node, WINDOW_NS};
pub use plant::ModePlant;

/// Steps of a run.
const STEPS: usize = 4_000;
/// Members at the beginning, and how many ids a run uses at most.
const FOUNDERS: u64 = 3;
const NODES_MAX: usize = 7;
/// At most this many operations are under way.
const OPERATIONS_MAX: usize = 12;
/// At most this many confirmations are under way.
const MESSAGES_MAX: usize = 16;

/// What a run did, for its summary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModeCounts {
    /// Operations that ended with an interval timestamp.
    pub of_intervals: u64,
    /// Operations that ended with a quorum timestamp.
    pub of_quorum: u64,
    /// Changes to interval mode.
    pub opened: u64,
    /// Changes back that were begun.
    pub closed: u64,
    /// Changes back that were cancelled.
    pub cancelled: u64,
    /// Changes back that ended.
    pub ended: u64,
    /// Changes back that ended under another leader than the one they began under.
    pub led_by_another: u64,
    /// Removals in interval mode.
    pub removed: u64,
    /// Restarts.
    pub restarts: u64,
    /// Requests that were refused because the node had stopped between their arrival and their
    /// stamp.
    pub overtaken: u64,
}

impl ModeCounts {
    /// The counts, in the order of the fields.
    #[must_use]
    pub const fn all(&self) -> [u64; 10] {
        [
            self.of_intervals,
            self.of_quorum,
            self.opened,
            self.closed,
            self.cancelled,
            self.ended,
            self.led_by_another,
            self.removed,
            self.restarts,
            self.overtaken,
        ]
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.of_intervals += other.of_intervals;
        self.of_quorum += other.of_quorum;
        self.opened += other.opened;
        self.closed += other.closed;
        self.cancelled += other.cancelled;
        self.ended += other.ended;
        self.led_by_another += other.led_by_another;
        self.removed += other.removed;
        self.restarts += other.restarts;
        self.overtaken += other.overtaken;
    }
}

/// Runs one seed, with a planted bug or without one. Returns what it did, and the first violation.
#[must_use]
pub fn run_modes(seed: u64, plant: Option<ModePlant>) -> (ModeCounts, Option<String>) {
    let mut world = World::new(seed, plant);
    for _ in 0..STEPS {
        world.step();
        if world.violation.is_some() {
            break;
        }
    }
    (world.counts, world.violation)
}

/// An entry of the log.
#[derive(Clone, Debug)]
enum Entry {
    Command(Term, Command),
    Members(MembershipChange),
}

/// An operation of a client.
#[derive(Clone, Copy, Debug)]
struct Operation {
    node: usize,
    /// The largest timestamp of all operations that had ended before this one began.
    floor: Option<Timestamp>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The worker has read what its node had applied, and stamps at this step or later.
    Arrived { opening: Opening, from: usize },
    /// `left` is in eighths of a nanosecond of the client's clock.
    Waiting { timestamp: Timestamp, left: i64 },
}

struct World {
    random: Rng,
    plant: Option<ModePlant>,
    now_ns: i64,
    /// Time passes this many times more slowly than in other runs.
    pace: i64,
    steps: usize,
    log: Vec<Entry>,
    /// Proposed by the leader, and not committed yet.
    proposed: Vec<Entry>,
    term: Term,
    leader: Option<usize>,
    nodes: Vec<Node>,
    /// Confirmations on their way, each with the term whose leader gets it.
    messages: Vec<(Term, NodeId, Closed)>,
    operations: Vec<Operation>,
    highest: Option<Timestamp>,
    /// The largest interval timestamp that was given, waited out or not.
    given: Option<Timestamp>,
    seen: HashSet<Timestamp>,
    /// The term in which the last change back began.
    closed_in: Term,
    /// Entries of the log that the checker has seen.
    checked: State,
    violation: Option<String>,
    counts: ModeCounts,
}

fn member(node: NodeId) -> Member {
    let addr = format!("n{node}:1");
    let store = StoreId(node.0.into());
    Member { node, store, raft_addr: addr.clone(), client_addr: addr }
}

fn settings(mode: Mode) -> ClusterSettings {
    ClusterSettings {
        epoch_interval_ms: 100,
        reservation_ms: 500,
        clock_offset_max_ms: 100,
        max_n: 100,
        leader_zones: vec![],
        lease_ms: 0,
        guarantee_default: Guarantee::Quorum,
        timestamp_format: TimestampFormat::Wide,
        mode,
    }
}

impl World {
    fn new(seed: u64, plant: Option<ModePlant>) -> Self {
        let mut random = Rng::with_seed(seed);
        let pace = [1, 1, 5, 20][random.usize(..4)];
        let now_ns = 1_000_000_000_000;
        let genesis = Genesis {
            cluster: ClusterId(1),
            history: HistoryId(1),
            members: (1..=FOUNDERS).map(|id| member(NodeId(id))).collect(),
            floor: Epoch(now_ns as u64 / 2),
            removed: vec![],
        };
        let mut state = State { format: FORMAT_OF_CLOSING, ..State::new(&genesis) };
        let settings = settings(Mode::Quorum);
        let seeded = Command::Settings { nonce: 0, is_seed: true, settings };
        assert_eq!(state.apply(Term(1), &seeded), Outcome::Set);
        let node = |id| Node::new(NodeId(id), (0, state.clone()), plant);
        Self {
            random,
            plant,
            now_ns,
            pace,
            steps: 0,
            log: vec![],
            proposed: vec![],
            term: Term(1),
            leader: Some(0),
            nodes: (1..=FOUNDERS).map(node).collect(),
            messages: vec![],
            operations: vec![],
            highest: None,
            given: None,
            seen: HashSet::new(),
            closed_in: Term(0),
            checked: state,
            violation: None,
            counts: ModeCounts::default(),
        }
    }

    fn violate(&mut self, what: impl FnOnce() -> String) {
        self.violation.get_or_insert_with(what);
    }

    fn drawn_node(&mut self) -> usize {
        self.random.usize(..self.nodes.len())
    }

    // Time.

    fn advance(&mut self) {
        let ms = match self.random.u8(..20) {
            0 => self.random.i64(20..=300),
            1..10 => 0,
            _ => self.random.i64(0..10),
        };
        let ns = ms * 1_000_000 / self.pace + self.random.i64(0..1_000);
        self.now_ns += ns;
        for operation in &mut self.operations {
            if let Stage::Waiting { left, .. } = &mut operation.stage {
                *left -= ns * 9;
            }
        }
    }

    // Consensus.

    /// A new leader has all committed entries, and some of those that the last one had proposed.
    fn elect(&mut self) {
        let kept = self.random.usize(..=self.proposed.len());
        let kept: Vec<_> = self.proposed.drain(..).take(kept).collect();
        self.leader = None;
        self.commit(kept);
        let members = &self.checked.members;
        let fit =
            |node: &Node| !node.is_cut && node.run.is_some() && members.contains_key(&node.id);
        let fit: Vec<_> = (0..self.nodes.len()).filter(|at| fit(&self.nodes[*at])).collect();
        self.term = Term(self.term.0 + 1);
        if !fit.is_empty() {
            self.leader = Some(fit[self.random.usize(..fit.len())]);
        }
    }

    /// A leader applies what it has committed before it tells others.
    fn commit(&mut self, entries: Vec<Entry>) {
        self.append(entries);
        let Some(at) = self.leader else { return };
        while self.nodes[at].run.as_ref().is_some_and(|run| run.applied < self.log.len()) {
            self.apply(at);
        }
    }

    fn append(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            let change = self.checked.mode_changes;
            let (was, was_closing) = (self.checked.mode(), self.checked.closing().is_some());
            let outcome = apply_to(&mut self.checked, &entry);
            self.log.push(entry);
            let state = &self.checked;
            let is_new = state.mode_changes != change;
            match (state.mode(), state.closing().is_some()) {
                (Mode::Interval, true) if is_new => {
                    self.closed_in = self.term;
                    self.counts.closed += 1;
                }
                (Mode::Interval, false) if is_new && was_closing => self.counts.cancelled += 1,
                (Mode::Interval, false) if is_new => self.counts.opened += 1,
                (Mode::Quorum, _) if was == Mode::Interval => {
                    self.counts.ended += 1;
                    self.counts.led_by_another += u64::from(self.closed_in != self.term);
                }
                _ => {}
            }
            if matches!(outcome, Some(Outcome::IntervalsEnded(_))) {
                let most_ns = self.now_ns as u64 + BOUND_NS as u64 + WINDOW_NS;
                let ceiling_ns = self.checked.ceiling.0;
                if ceiling_ns > most_ns {
                    self.violate(|| format!("AHEAD: the ceiling is {ceiling_ns}, above {most_ns}"));
                }
            }
        }
    }

    fn commit_some(&mut self) {
        let leads = self.leader.is_some_and(|it| self.can_lead(it));
        if leads && !self.proposed.is_empty() {
            let some = self.random.usize(1..=self.proposed.len());
            let some = self.proposed.drain(..some).collect();
            self.commit(some);
        }
    }

    fn can_lead(&self, at: usize) -> bool {
        !self.nodes[at].is_cut && self.nodes[at].run.is_some()
    }

    /// The leader, if it has applied the whole log and nothing that it proposed is under way.
    fn settled_leader(&self) -> Option<usize> {
        let at = self.leader.filter(|at| self.can_lead(*at))?;
        let run = self.nodes[at].run.as_ref()?;
        let is_member = self.checked.members.contains_key(&self.nodes[at].id);
        (run.applied == self.log.len() && self.proposed.is_empty() && is_member).then_some(at)
    }

    fn apply(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let Some(run) = node.run.as_mut().filter(|_| !node.is_cut) else { return };
        let Some(entry) = self.log.get(run.applied) else { return };
        // A removed node gets what was on its way to it when its removal was applied: here, anything.
        match entry {
            Entry::Command(term, command) => {
                let _outcome = node.apply(*term, command);
            }
            Entry::Members(_) => {
                apply_to(&mut run.state, entry);
                run.applied += 1;
            }
        }
    }

    fn install(&mut self, at: usize) {
        let from = self.drawn_node();
        let Some(run) = &self.nodes[from].run else { return };
        let (applied, state) = (run.applied, run.state.clone());
        let is_member = self.checked.members.contains_key(&self.nodes[at].id);
        if from != at && is_member && !self.nodes[at].is_cut && !self.nodes[from].is_cut {
            self.nodes[at].install(applied, &state);
        }
    }

    fn confirm(&mut self, at: usize) {
        let node = &self.nodes[at];
        let is_member = self.checked.members.contains_key(&node.id);
        if let Some(closed) = node.closed().filter(|_| !node.is_cut && is_member)
            && self.messages.len() < MESSAGES_MAX
        {
            self.messages.push((self.term, node.id, closed));
        }
    }

    /// A confirmation arrives, perhaps late and at a leader that has applied less. Or it is lost.
    fn receive(&mut self) {
        if self.messages.is_empty() {
            return;
        }
        let which = self.random.usize(..self.messages.len());
        let (term, from, mut closed) = self.messages.swap_remove(which);
        if term != self.term || self.random.u8(..8) == 0 {
            return;
        }
        let is_any = self.plant == Some(ModePlant::EarlierChangeConfirmed);
        let Some(at) = self.leader.filter(|at| self.can_lead(*at)) else { return };
        if let Some(run) = &mut self.nodes[at].run {
            if is_any {
                closed.change = run.state.closing().unwrap_or(closed.change);
            }
            run.confirmations.record(&run.state, from, closed);
        }
    }

    // The leader and operators.

    fn reserve(&mut self) {
        let Some(at) = self.settled_leader() else { return };
        let (id, clock_ns) = (self.nodes[at].id, self.nodes[at].clock_ns(self.now_ns));
        let Some(run) = &self.nodes[at].run else { return };
        let is_used = run.grant.is_none_or(|(term, range)| {
            term != self.term || range.high.0 < clock_ns + WINDOW_NS / 2
        });
        if is_used {
            let owner = Owner { term: self.term, node: id, boot: run.boot };
            let until = Epoch(clock_ns + WINDOW_NS);
            let command = Command::Reserve { owner, until, lease_ms: 0 };
            self.proposed.push(Entry::Command(self.term, command));
        }
    }

    fn end(&mut self) {
        let Some(at) = self.settled_leader() else { return };
        if let Some(command) = self.nodes[at].end(self.now_ns) {
            self.proposed.push(Entry::Command(self.term, command));
        }
    }

    fn set_mode(&mut self) {
        if self.settled_leader().is_none() {
            return;
        }
        let mode = if self.random.bool() { Mode::Quorum } else { Mode::Interval };
        // A change back is cancelled now and then only.
        if self.checked.closing().is_some() && mode == Mode::Interval && self.random.u8(..4) > 0 {
            return;
        }
        let settings = ClusterSettings { max_n: self.random.u64(1..100), ..settings(mode) };
        let command = Command::Settings { nonce: 1, is_seed: false, settings };
        self.proposed.push(Entry::Command(self.term, command));
    }

    fn change_members(&mut self) {
        let Some(leader) = self.settled_leader() else { return };
        let count = self.checked.members.len();
        let step = if self.random.bool() && self.nodes.len() < NODES_MAX {
            let node = NodeId(self.nodes.len() as u64 + 1);
            let Some(run) = &self.nodes[leader].run else { return };
            let record = (run.applied, run.state.clone());
            let change = MembershipChange {
                nonce: 1,
                steps: vec![MembershipStep::AddLearner(member(node))],
            };
            // It begins with the state in which it is a member.
            self.commit(vec![Entry::Members(change.clone())]);
            let mut state = record.1;
            apply_to(&mut state, &Entry::Members(change));
            let node = Node::new(node, (record.0 + 1, state), self.plant);
            self.nodes.push(node);
            return;
        } else {
            let at = self.drawn_node();
            let id = self.nodes[at].id;
            if at == leader || count <= 2 || !self.checked.members.contains_key(&id) {
                return;
            }
            self.counts.removed += u64::from(self.checked.mode() == Mode::Interval);
            MembershipStep::Remove(id)
        };
        let change = MembershipChange { nonce: 1, steps: vec![step] };
        self.proposed.push(Entry::Members(change));
    }

    /// An operator makes sure that removed nodes run no more, and states it.
    fn state_gone(&mut self) {
        let Some(at) = self.settled_leader() else { return };
        let removed = self.checked.intervals.iter().flat_map(|it| &it.removed).copied();
        let removed: Vec<_> = removed.collect();
        let lies = self.plant == Some(ModePlant::WorldStillRuns);
        for node in self.nodes.iter_mut().filter(|it| !lies && removed.contains(&it.id)) {
            node.crash(&mut self.random);
            node.is_gone = true;
        }
        self.nodes[at].record_gone(&removed, self.now_ns);
    }

    // Clients.

    fn begin_interval(&mut self) {
        let (node, floor) = (self.drawn_node(), self.highest);
        if self.operations.len() < OPERATIONS_MAX
            && let Some(opening) = self.nodes[node].opening()
        {
            // Some workers pause here for long.
            let pause = if self.random.u8(..6) == 0 { self.random.usize(..1_000) } else { 0 };
            let stage = Stage::Arrived { opening, from: self.steps + pause };
            self.operations.push(Operation { node, floor, stage });
        }
    }

    fn stamp(&mut self) {
        let steps = self.steps;
        let is_due = |it: &Stage| matches!(it, Stage::Arrived { from, .. } if *from <= steps);
        let Some(which) = self.drawn(is_due) else { return };
        let Operation { node, stage: Stage::Arrived { opening, .. }, .. } = self.operations[which]
        else {
            return;
        };
        match self.nodes[node].stamp(opening, self.now_ns, &mut self.random) {
            None => {
                self.operations.swap_remove(which);
                self.counts.overtaken += u64::from(self.nodes[node].opening().is_none());
            }
            Some(stamp) => {
                let (timestamp, left) = (stamp.timestamp(), stamp.wait_ns() as i64 * 8);
                self.operations[which].stage = Stage::Waiting { timestamp, left };
                self.check_unique(timestamp);
                self.given = self.given.max(Some(timestamp));
            }
        }
    }

    fn end_interval(&mut self) {
        let is_over = |it: &Stage| matches!(it, Stage::Waiting { left, .. } if *left <= 0);
        let Some(which) = self.drawn(is_over) else { return };
        let Operation { node, floor, stage } = self.operations.swap_remove(which);
        if let Stage::Waiting { timestamp, .. } = stage {
            self.counts.of_intervals += 1;
            self.check_order(timestamp, floor, &format!("n{}", self.nodes[node].id));
        }
    }

    /// A request that begins and ends here. A quorum has confirmed the leader.
    fn ask_leader(&mut self) {
        let (floor, term, now_ns) = (self.highest, self.term, self.now_ns);
        let Some(at) = self.leader.filter(|at| self.can_lead(*at)) else { return };
        if let Some(timestamp) = self.nodes[at].allocate(term, now_ns) {
            self.counts.of_quorum += 1;
            self.check_unique(timestamp);
            let given = self.given;
            if Some(timestamp) <= given {
                self.violate(|| format!("BELOW: the leader gave {timestamp} after {given:?}"));
            }
            self.check_order(timestamp, floor, "the leader");
        }
    }

    fn check_unique(&mut self, timestamp: Timestamp) {
        if !self.seen.insert(timestamp) {
            self.violate(|| format!("DUPLICATE: {timestamp}"));
        }
    }

    fn check_order(&mut self, timestamp: Timestamp, floor: Option<Timestamp>, by: &str) {
        if Some(timestamp) <= floor {
            self.violate(|| format!("ORDER: {by} gave {timestamp} after {floor:?}"));
        }
        self.highest = self.highest.max(Some(timestamp));
    }

    fn drawn(&mut self, is_at: impl Fn(&Stage) -> bool) -> Option<usize> {
        let found = (0..self.operations.len()).filter(|at| is_at(&self.operations[*at].stage));
        let found: Vec<_> = found.collect();
        if found.is_empty() { None } else { Some(found[self.random.usize(..found.len())]) }
    }

    fn crash(&mut self, at: usize) {
        let is_waiting = |it: &Operation| matches!(it.stage, Stage::Waiting { .. });
        self.operations.retain(|it| it.node != at || is_waiting(it));
        self.nodes[at].crash(&mut self.random);
    }

    fn step(&mut self) {
        self.steps += 1;
        self.advance();
        let at = self.drawn_node();
        match self.random.u32(..1_000) {
            0..=119 => self.begin_interval(),
            120..=229 => self.stamp(),
            230..=329 => self.end_interval(),
            330..=409 => self.ask_leader(),
            410..=579 => self.apply(at),
            580..=659 => self.commit_some(),
            660..=749 => self.confirm(at),
            750..=839 => self.receive(),
            840..=889 => self.nodes[at].sync_disk(),
            890..=919 => self.reserve(),
            920..=949 => self.end(),
            950..=954 => self.set_mode(),
            955 => self.change_members(),
            956..=959 => self.state_gone(),
            960..=962 => self.nodes[at].record(),
            963..=965 => self.install(at),
            966..=967 => self.elect(),
            968..=970 => self.crash(at),
            971..=985 => {
                self.counts.restarts += u64::from(self.nodes[at].run.is_none());
                self.nodes[at].start();
            }
            986 => self.nodes[at].is_cut = true,
            987..=991 => self.nodes[at].is_cut = false,
            _ => self.nodes[at].synchronize(&mut self.random),
        }
    }
}

/// Applies an entry to a state. `None` for a change of the members.
fn apply_to(state: &mut State, entry: &Entry) -> Option<Outcome> {
    match entry {
        Entry::Command(term, command) => Some(state.apply(*term, command)),
        Entry::Members(change) => {
            let mut voters: Vec<_> = state.members.keys().copied().collect();
            for step in &change.steps {
                match step {
                    MembershipStep::AddLearner(member) => voters.push(member.node),
                    MembershipStep::Promote(_) => {}
                    MembershipStep::Remove(node) => voters.retain(|it| it != node),
                }
            }
            state.apply_change(change, &Configuration { voters, ..Configuration::default() });
            None
        }
    }
}
