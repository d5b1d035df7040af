//! When a leader asks for the next range: early enough that it is committed before half of the
//! current one is used, and never twice at once. It never computes a range: apply does.

use super::{Replica, ReplicaConfig, Report};
use crate::planted::{self, Bug, safety_assert};
use crate::state::{Command, Owner, WIDTH_MIN_NS};
use epicepoch_wire::{Epoch, Term};
use raft::StateRole;

/// The reservation of the current term that is under way, if any.
#[derive(Debug)]
pub(super) struct Reservation {
    window_ns: u64,
    /// Half a window, ticks: what a reservation may take.
    deadline_ticks: usize,
    pending: Option<Pending>,
    /// Consecutive reservations that missed their deadline.
    pub(super) missed: u32,
    /// What the next range has to reach beyond, because an operator moves the epoch.
    pub(super) advance: Option<Epoch>,
}

/// A reservation that was proposed.
#[derive(Debug)]
struct Pending {
    proposed_at_ns: u64,
    /// Ticks since then in which a quorum was heard.
    ticks: usize,
    /// Whether it has missed a deadline.
    is_late: bool,
}

impl Reservation {
    pub(super) fn new(config: &ReplicaConfig) -> Self {
        let mut reservation =
            Self { window_ns: 0, deadline_ticks: 1, pending: None, missed: 0, advance: None };
        reservation.set_window(config.reservation_ns, config.tick_ns);
        reservation
    }

    /// How far ahead the next range is asked for, nanoseconds.
    pub(super) const fn set_window(&mut self, window_ns: u64, tick_ns: u64) {
        self.window_ns = window_ns;
        let ticks = (window_ns / 2 / tick_ns) as usize;
        self.deadline_ticks = if ticks == 0 { 1 } else { ticks };
    }

    pub(super) const fn window_ns(&self) -> u64 {
        self.window_ns
    }

    /// Leadership ended: nothing is under way any more. Misses are counted per leadership.
    pub(super) fn forget(&mut self) {
        if !planted::is(Bug::LostReservation) {
            self.pending = None;
        }
        self.missed = 0;
        self.advance = None;
    }

    /// The range was assigned; returns how long it took, nanoseconds.
    pub(super) fn done(&mut self, now_ns: u64) -> u64 {
        let Some(pending) = self.pending.take() else { return 0 };
        if !pending.is_late {
            self.missed = 0;
        }
        now_ns.saturating_sub(pending.proposed_at_ns)
    }

    /// Whether the next range must be asked for while `trusted_ns` approaches the end, `high`.
    /// Three fifths of the window remain then: the commit has a tenth of the window before half
    /// is used, and two election timeouts remain for a transfer that drops proposals.
    fn is_due(&self, high: Epoch, trusted_ns: u64) -> bool {
        let remaining_ns = high.0.saturating_sub(trusted_ns);
        let is_used = remaining_ns <= self.window_ns / 5 * 3;
        self.pending.is_none() && (is_used || self.advance.is_some())
    }

    /// One more tick in which a quorum was heard: counts the deadline, half a window, that the
    /// pending reservation misses with it. A pause of the whole process is one tick. Returns
    /// whether one was missed.
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
    /// Asks for the next range if it is time to.
    pub(super) fn reserve_if_due(&mut self) {
        if self.raw.raft.state != StateRole::Leader {
            return;
        }
        let high = self.grant.map_or(Epoch(0), |grant| grant.range.high);
        if self.reservation.is_due(high, self.trusted_ns) {
            self.reserve();
            self.settle();
        }
        // A leader that has lost its quorum cannot reserve, and that is no reason to exit.
        if self.is_quorum_heard() && self.reservation.count_tick() {
            let missed = self.reservation.missed;
            self.reports.push_back(Report::ReservationLate { missed });
        }
    }

    /// Proposes a reservation, only while leading, from the same step: on a follower the library
    /// would forward it and answer Ok.
    pub(super) fn reserve(&mut self) {
        let raft = &self.raw.raft;
        safety_assert!(raft.state == StateRole::Leader, "S3: only a leader reserves");
        let is_busy = self.reservation.pending.is_some() || raft.lead_transferee.is_some();
        if is_busy || !self.may_reserve() {
            return;
        }
        let me = self.config.identity;
        let owner = Owner { term: Term(raft.term), node: me.node, boot: me.boot };
        let window_ns = self.reservation.window_ns();
        let until = Epoch(self.trusted_ns.saturating_add(window_ns));
        let beyond = self.reservation.advance.map(|to| Epoch(to.0.saturating_add(WIDTH_MIN_NS)));
        let until = beyond.map_or(until, |beyond| until.max(beyond));
        let command = Command::Reserve { owner, until };
        // A dropped proposal (too much uncommitted) is tried again at the next tick.
        if self.call(|raw| raw.propose(Vec::new(), command.encode())).is_ok() {
            let proposed_at_ns = self.now_ns;
            self.memory.propose_above(self.state.ceiling);
            self.reservation.pending = Some(Pending { proposed_at_ns, ticks: 0, is_late: false });
        }
    }
}
