//! A node in the simulator of the changes of the mode: what it has applied, its stamper, its disk and
//! its clock. The rules that a replica has for itself are written here as they are there
//! (`core/src/replica/closing.rs`).

use epicepoch_core::closing::Confirmations;
use epicepoch_core::interval::peers::PeerIntervals;
use epicepoch_core::interval::{Opening, Reading, STAMP_AHEAD_NS_MAX, Stamper};
use epicepoch_core::publication::EpochRange;
use epicepoch_core::state::{Command, Outcome, Owner, State};
use epicepoch_wire::interval::IntervalStamp;
use epicepoch_wire::voter_status::Closed;
use epicepoch_wire::{BootId, Epoch, EpochIndex, Mode, NodeId, Term, Timestamp};
use fastrand::Rng;

use super::plant::ModePlant;

/// A clock is off by at most this, nanoseconds.
pub(super) const BOUND_NS: i64 = 50_000_000;
/// A leader reserves this far ahead, nanoseconds.
pub(super) const WINDOW_NS: u64 = 500_000_000;

/// A leader's epoch moves this often, nanoseconds.
const EPOCH_INTERVAL_NS: u64 = 100_000_000;

/// What is on a disk.
#[derive(Clone)]
struct Disk {
    mark_ns: u64,
    closed: u64,
    /// An applied state, and how many entries of the log are in it.
    record: (usize, State),
}

/// The process of a node.
pub(super) struct Run {
    pub(super) boot: BootId,
    pub(super) applied: usize,
    pub(super) state: State,
    stamper: Stamper,
    /// The last change for which the stamper has stopped.
    closing: Option<Closed>,
    /// The same, if it is durable.
    closed: Option<Closed>,
    pub(super) confirmations: Confirmations,
    /// The right to quorum timestamps, and the last one of this run.
    pub(super) grant: Option<(Term, EpochRange)>,
    last: Timestamp,
    // On their way to the disk.
    mark_due_ns: Option<u64>,
    closed_due: Option<u64>,
}

pub(super) struct Node {
    pub(super) id: NodeId,
    plant: Option<ModePlant>,
    offset_ns: i64,
    disk: Disk,
    boots: u64,
    /// `None` while the process is down.
    pub(super) run: Option<Run>,
    /// Whether the node is cut off: it applies nothing and says nothing.
    pub(super) is_cut: bool,
    /// Whether it never starts again.
    pub(super) is_gone: bool,
}

impl Node {
    pub(super) fn new(id: NodeId, record: (usize, State), plant: Option<ModePlant>) -> Self {
        let disk = Disk { mark_ns: 0, closed: 0, record };
        let (offset_ns, boots, run) = (0, 0, None);
        let mut node =
            Self { id, plant, offset_ns, disk, boots, run, is_cut: false, is_gone: false };
        node.start();
        node
    }

    fn is(&self, plant: ModePlant) -> bool {
        self.plant == Some(plant)
    }

    pub(super) fn start(&mut self) {
        if self.is_gone || self.run.is_some() {
            return;
        }
        self.boots += 1;
        let closed = if self.is(ModePlant::StoppedForgotten) { 0 } else { self.disk.closed };
        let stamper = Stamper::new(self.id, self.disk.mark_ns, closed, BOUND_NS as u64);
        let (applied, state) = self.disk.record.clone();
        self.run = Some(Run {
            boot: BootId(self.boots),
            applied,
            state,
            stamper: stamper.expect("a low node id"),
            closing: None,
            closed: None,
            confirmations: Confirmations::default(),
            grant: None,
            last: Timestamp::new(Epoch(0), EpochIndex(0)),
            mark_due_ns: None,
            closed_due: None,
        });
    }

    /// The process ends. A write on its way may be on the disk or not.
    pub(super) fn crash(&mut self, random: &mut Rng) {
        if random.bool() {
            self.sync_disk();
        }
        self.run = None;
    }

    /// The daemon corrects the clock. Often it is off as far as it may be.
    pub(super) fn synchronize(&mut self, random: &mut Rng) {
        self.offset_ns = match random.u8(..4) {
            0 => -BOUND_NS,
            1 => BOUND_NS,
            _ => random.i64(-BOUND_NS..=BOUND_NS),
        };
    }

    pub(super) const fn clock_ns(&self, now_ns: i64) -> u64 {
        (now_ns + self.offset_ns) as u64
    }

    /// Applies the next entry of the log.
    pub(super) fn apply(&mut self, term: Term, command: &Command) -> Option<Outcome> {
        let is_kept = self.is(ModePlant::RangeKept);
        let id = self.id;
        let run = self.run.as_mut()?;
        let outcome = run.state.apply(term, command);
        run.applied += 1;
        match &outcome {
            Outcome::Assigned(Owner { term, node, boot }, range)
                if (*node, *boot) == (id, run.boot) =>
            {
                let held = run.grant.filter(|(of, it)| of == term && it.high == range.low);
                let low = held.map_or(range.low, |(_, it)| it.low);
                run.grant = Some((*term, EpochRange { low, high: range.high }));
            }
            Outcome::IntervalsEnded(_) if !is_kept => run.grant = None,
            _ => {}
        }
        self.close_if_due();
        Some(outcome)
    }

    /// Takes the state of another node. It gives no grant.
    pub(super) fn install(&mut self, applied: usize, state: &State) {
        let Some(run) = &mut self.run else { return };
        if applied > run.applied {
            run.state = State::decode(&state.encode()).expect("a state");
            (run.applied, run.grant) = (applied, None);
            self.disk.record = (applied, run.state.clone());
            self.close_if_due();
        }
    }

    pub(super) fn record(&mut self) {
        if let Some(run) = &self.run {
            self.disk.record = (run.applied, run.state.clone());
        }
    }

    /// Stops for the change by which interval mode closes.
    fn close_if_due(&mut self) {
        let is_told = !self.is(ModePlant::StoppedByPublicationOnly);
        let is_early = self.is(ModePlant::ConfirmedBeforeDurable);
        let Some(run) = &mut self.run else { return };
        let Some(change) = run.state.closing() else { return };
        if run.closing.is_some_and(|it| it.change == change) {
            return;
        }
        let given_ns = run.stamper.close(if is_told { change } else { 0 });
        run.closing = Some(Closed { change, given_ns });
        run.closed_due = Some(change);
        if is_early {
            run.closed = run.closing;
        }
    }

    /// What is on its way to the disk is durable now, and the process hears of it.
    pub(super) fn sync_disk(&mut self) {
        let Some(run) = &mut self.run else { return };
        if let Some(mark_ns) = run.mark_due_ns.take() {
            self.disk.mark_ns = mark_ns;
            run.stamper.handle_mark(mark_ns);
        }
        if let Some(change) = run.closed_due.take() {
            self.disk.closed = self.disk.closed.max(change);
            run.closed = run.closing;
        }
    }

    /// What this node says to its leader.
    pub(super) fn closed(&self) -> Option<Closed> {
        let is_unnamed = self.is(ModePlant::GivenUnnamed);
        let run = self.run.as_ref()?;
        let closed = run.closed.filter(|it| run.state.closing() == Some(it.change))?;
        Some(if is_unnamed { Closed { given_ns: 0, ..closed } } else { closed })
    }

    /// Interval mode as a worker reads it when a request arrives.
    pub(super) fn opening(&self) -> Option<Opening> {
        let state = &self.run.as_ref()?.state;
        let is_member = state.members.contains_key(&self.id) || self.is(ModePlant::RemovedGoesOn);
        let open = state.intervals.as_ref().filter(|it| !it.is_closing && is_member)?;
        let is_any = self.is(ModePlant::EarlierChangeOpens);
        let change = if is_any { u64::MAX } else { state.mode_changes };
        let ceiling = if self.is(ModePlant::CeilingForgotten) { Epoch(0) } else { open.ceiling };
        Some(Opening { ceiling, change })
    }

    /// Gives an interval timestamp to a request that arrived when `opening` was read.
    pub(super) fn stamp(
        &mut self,
        opening: Opening,
        now_ns: i64,
        random: &mut Rng,
    ) -> Option<IntervalStamp> {
        let clock_ns = self.clock_ns(now_ns);
        let bound_ns = BOUND_NS as u64;
        let reading = Reading {
            earliest_ns: clock_ns - bound_ns,
            latest_ns: clock_ns + bound_ns,
            disruption: 0,
            raw_from_ns: clock_ns,
            raw_until_ns: clock_ns,
        };
        // Nodes tell each other nothing of the time here; the simulator of interval mode has that.
        let mut peers = PeerIntervals::new(self.id);
        peers.set_voters([self.id].into_iter());
        let run = self.run.as_mut()?;
        let outcome = run.stamper.stamp(opening, reading, &peers, 1);
        if let Some(mark_ns) = run.stamper.poll_mark() {
            run.mark_due_ns = Some(mark_ns);
            if random.u8(..8) > 0 {
                self.sync_disk();
            }
        }
        outcome.ok()
    }

    /// A leader that has applied all of the log ends interval mode, if it may.
    pub(super) fn end(&mut self, now_ns: i64) -> Option<Command> {
        let (own, id, clock_ns) = (self.closed(), self.id, self.clock_ns(now_ns));
        let is_ahead = self.is(ModePlant::EndAheadOfClock);
        let (is_majority, is_removed) =
            (self.is(ModePlant::MajorityConfirms), self.is(ModePlant::RemovedNotAwaited));
        let run = self.run.as_mut()?;
        if let Some(closed) = own {
            run.confirmations.record(&run.state, id, closed);
        }
        let mut known = run.confirmations.clone();
        let progress = known.progress(&run.state)?;
        let change = run.state.closing()?;
        let members = run.state.members.len();
        let mut stand_in = vec![];
        if is_majority && progress.missing.len() * 2 < members {
            stand_in.extend(&progress.missing);
        }
        if is_removed {
            stand_in.extend(&progress.removed);
        }
        for node in stand_in {
            known.record(&run.state, node, Closed { change, given_ns: 0 });
        }
        known.end(&run.state, if is_ahead { u64::MAX } else { clock_ns })
    }

    /// The operator states that nodes are gone.
    pub(super) fn record_gone(&mut self, gone: &[NodeId], now_ns: i64) {
        let clock_ns = self.clock_ns(now_ns);
        let early_ns = 2 * BOUND_NS as u64 + STAMP_AHEAD_NS_MAX;
        let is_early = self.is(ModePlant::GoneWithoutMargin);
        let clock_ns = if is_early { clock_ns - early_ns } else { clock_ns };
        if let Some(run) = &mut self.run {
            run.confirmations.record_gone(&run.state, gone, clock_ns, 2 * BOUND_NS as u64);
        }
    }

    /// Gives a quorum timestamp as the leader of `term`, which a quorum has just confirmed.
    pub(super) fn allocate(&mut self, term: Term, now_ns: i64) -> Option<Timestamp> {
        let clock_ns = self.clock_ns(now_ns);
        let run = self.run.as_mut()?;
        let (_, range) = run.grant.filter(|(of, _)| *of == term)?;
        if run.state.mode() != Mode::Quorum {
            return None;
        }
        let lowest = run.last.epoch.max(Epoch(range.low.0 + 1));
        let clock = Epoch(clock_ns.min(range.high.0));
        // The epoch moves at intervals.
        let is_due = clock.0 > run.last.epoch.0 + EPOCH_INTERVAL_NS;
        let epoch = if is_due { lowest.max(clock) } else { lowest };
        if epoch > range.high {
            return None;
        }
        let is_same = epoch == run.last.epoch;
        let index = if is_same { run.last.index.0 + 1 } else { 0 };
        run.last = Timestamp::new(epoch, EpochIndex(index));
        Some(run.last)
    }
}
