//! Decides when a leader reserves the next range: early enough that it is committed before half of
//! the current one is used, and one reservation at a time. Apply computes the range itself.

use super::give_back::GivingBack;
use super::{Replica, ReplicaConfig, Report};
use crate::publication::Grant;
use crate::state::{COMPACT_WIDTH_MIN_NS, Command};
use epicepoch_wire::{Epoch, LogIndex, TimestampFormat};
use raft::StateRole;

/// The reservation of the current term that is under way, if any.
#[derive(Debug)]
pub(super) struct Reservation {
    window_ns: u64,
    /// A reservation may take at most this many ticks: half a window.
    deadline_ticks: usize,
    pending: Option<Pending>,
    /// Consecutive reservations that missed their deadline.
    pub(super) missed: u32,
    /// An operator's advance: the next range must end above it.
    pub(super) advance: Option<Epoch>,
    /// The highest low end of the grants that this leader has withdrawn for handovers.
    pub(super) withdrawn_low: Epoch,
    /// The handover for which this leader gives back the end of its range.
    pub(super) giving_back: Option<GivingBack>,
}

/// A reservation that was proposed.
#[derive(Debug)]
struct Pending {
    proposed_at_ns: u64,
    /// Ticks since the proposal in which a quorum was heard.
    ticks: usize,
    /// Whether the reservation has missed a deadline.
    is_late: bool,
}

impl Reservation {
    pub(super) fn new(config: &ReplicaConfig) -> Self {
        let mut reservation = Self {
            window_ns: 0,
            deadline_ticks: 1,
            pending: None,
            missed: 0,
            advance: None,
            withdrawn_low: Epoch(0),
            giving_back: None,
        };
        reservation.set_window(config.reservation_ns, config.tick_ns);
        reservation
    }

    /// Sets how far ahead the next range is reserved, nanoseconds.
    pub(super) const fn set_window(&mut self, window_ns: u64, tick_ns: u64) {
        self.window_ns = window_ns;
        let ticks = (window_ns / 2 / tick_ns) as usize;
        self.deadline_ticks = if ticks == 0 { 1 } else { ticks };
    }

    pub(super) const fn window_ns(&self) -> u64 {
        self.window_ns
    }

    /// Forgets the pending reservation as leadership ends. Misses are counted per leadership.
    pub(super) fn forget(&mut self) {
        self.pending = None;
        self.missed = 0;
        self.advance = None;
        self.withdrawn_low = Epoch(0);
        self.giving_back = None;
    }

    /// Whether a reservation is proposed and not applied.
    pub(super) const fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Ends the pending reservation: its range was assigned. Returns how long that took,
    /// nanoseconds.
    pub(super) fn done(&mut self, now_ns: u64) -> u64 {
        let Some(pending) = self.pending.take() else { return 0 };
        if !pending.is_late {
            self.missed = 0;
        }
        now_ns.saturating_sub(pending.proposed_at_ns)
    }

    /// Whether to reserve the next range now: at most three fifths of the window remain until the
    /// end `high`. So a tenth of the window is left for the commit before half of the window is
    /// used. Two election timeouts are also left for a transfer, during which proposals are
    /// dropped.
    fn is_due(&self, high: Epoch, trusted_ns: u64) -> bool {
        let remaining_ns = high.0.saturating_sub(trusted_ns);
        let is_used = remaining_ns <= self.window_ns / 5 * 3;
        self.pending.is_none() && (is_used || self.advance.is_some())
    }

    /// Counts a tick in which a quorum was heard. The deadline of the pending reservation is half a
    /// window. A pause of the whole process counts as one tick. Returns whether a deadline was
    /// missed.
    fn count_tick(&mut self) -> bool {
        let Some(pending) = &mut self.pending else { return false };
        pending.ticks += 1;
        if !pending.ticks.is_multiple_of(self.deadline_ticks) {
            return false;
        }
        pending.is_late = true;
        self.missed += 1;
        true
    }
}

impl Replica {
    /// Reserves the next range if it is time.
    pub(super) fn reserve_if_due(&mut self) {
        if self.raw.raft.state != StateRole::Leader {
            return;
        }
        if self.reserve_if_used() || self.renew_lease_if_due() {
            self.settle();
        }
        // A leader without a quorum cannot reserve. Its tick does not count, because that is no
        // reason to exit.
        if self.is_quorum_heard() && self.reservation.count_tick() {
            let missed = self.reservation.missed;
            self.reports.push_back(Report::ReservationLate { missed });
        }
    }

    /// Proposes a reservation if too little of the range is left. Returns whether that is so.
    pub(super) fn reserve_if_used(&mut self) -> bool {
        let high = self.grant.map_or(Epoch(0), |grant| grant.range.high);
        let is_due = self.reservation.is_due(high, self.trusted_ns)
            || self.grant.is_some() && self.needs_width() && !self.reservation.is_pending();
        if is_due {
            self.reserve();
        }
        is_due
    }

    /// Whether the next range must have the least width of compact timestamps: at most three fifths
    /// of it remain above the last timestamp. That is so before the first range, when milliseconds
    /// were used up ahead of the clock, and if a range was assigned before timestamps were compact,
    /// or when a leader did not know yet where it would begin.
    fn needs_width(&self) -> bool {
        let is_compact = self.state.timestamp_format() == TimestampFormat::Compact;
        let remaining_ns = |grant: Grant| {
            let used = self.shared.stamped().max(grant.range.low);
            grant.range.high.0.saturating_sub(used.0)
        };
        is_compact && self.grant.map_or(0, remaining_ns) <= COMPACT_WIDTH_MIN_NS / 5 * 3
    }

    /// Proposes a reservation. The role is checked in the same step, because a follower's library
    /// would forward the proposal and answer Ok.
    pub(super) fn reserve(&mut self) {
        let raft = &self.raw.raft;
        assert!(raft.state == StateRole::Leader, "S3: only a leader reserves");
        let is_busy = self.reservation.is_pending() || self.is_handing_over();
        if is_busy || !self.may_reserve() {
            return;
        }
        let owner = self.as_owner();
        let window_ns = self.reservation.window_ns();
        let until = Epoch(self.trusted_ns.saturating_add(window_ns));
        let width_ns = self.state.width_min_ns();
        let beyond = self.reservation.advance.map(|to| Epoch(to.0.saturating_add(width_ns)));
        let until = beyond.map_or(until, |beyond| until.max(beyond));
        // S5: apply begins the range at the end of the last one, here or later.
        let wide = Epoch(self.state.range_end().0.saturating_add(width_ns));
        let until = if self.needs_width() { until.max(wide) } else { until };
        // The clock of a lease is read before the proposal.
        let (lease_ms, clock_ns) = (self.lease_to_mark_ms(), self.lease_wait.clock_ns());
        let command = Command::Reserve { owner, until, lease_ms };
        // If the proposal is dropped (too much is uncommitted), it is made again at the next tick.
        if self.call(|raw| raw.propose(Vec::new(), command.encode())).is_ok() {
            let proposed_at_ns = self.now_ns;
            self.reservation.pending = Some(Pending { proposed_at_ns, ticks: 0, is_late: false });
            if lease_ms > 0 {
                let index = LogIndex(self.raw.raft.raft_log.last_index());
                self.lease.propose(index, clock_ns, lease_ms);
            }
        }
    }
}
