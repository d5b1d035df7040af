//! When a leader asks for the next range: early enough that it is committed before half of the
//! current one is used, and never twice at once. It never computes a range: apply does.

use super::{Replica, ReplicaConfig, Report};
use crate::state::{Command, Owner};
use epicepoch_wire::{Epoch, Term};
use raft::StateRole;

/// The reservation of the current term that is under way, if any.
#[derive(Debug)]
pub(super) struct Reservation {
    window_ns: u64,
    /// Proposed at, and deadlines missed since.
    pending: Option<(u64, u32)>,
    /// Consecutive reservations that missed their deadline.
    pub(super) missed: u32,
}

impl Reservation {
    pub(super) fn new(config: &ReplicaConfig) -> Self {
        Self { window_ns: config.reservation_ns, pending: None, missed: 0 }
    }

    /// Leadership ended: nothing is under way any more. Misses are counted per leadership.
    pub(super) fn forget(&mut self) {
        self.pending = None;
        self.missed = 0;
    }

    /// The range was assigned; returns how long it took, nanoseconds.
    pub(super) fn done(&mut self, now_ns: u64) -> u64 {
        let Some((proposed_at_ns, missed)) = self.pending.take() else { return 0 };
        if missed == 0 {
            self.missed = 0;
        }
        now_ns.saturating_sub(proposed_at_ns)
    }

    /// Whether the next range must be asked for while `trusted_ns` approaches the end, `high`.
    /// Three fifths of the window remain then: the commit has a tenth of the window before half
    /// is used, and two election timeouts remain for a transfer that drops proposals.
    fn is_due(&self, high: Epoch, trusted_ns: u64) -> bool {
        let remaining_ns = high.0.saturating_sub(trusted_ns);
        self.pending.is_none() && remaining_ns <= self.window_ns / 5 * 3
    }

    /// Counts the deadlines, half a window each, that the pending reservation has missed by now.
    /// Returns whether one was missed since it was last asked.
    fn count_missed(&mut self, now_ns: u64) -> bool {
        let Some((proposed_at_ns, missed)) = &mut self.pending else { return false };
        let waited_ns = now_ns.saturating_sub(*proposed_at_ns);
        let deadline_ns = (self.window_ns / 2).max(1) * (u64::from(*missed) + 1);
        if waited_ns <= deadline_ns {
            return false;
        }
        *missed += 1;
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
        if self.is_quorum_heard() && self.reservation.count_missed(self.now_ns) {
            let missed = self.reservation.missed;
            self.reports.push_back(Report::ReservationLate { missed });
        }
    }

    /// Proposes a reservation, only while leading, from the same step: on a follower the library
    /// would forward it and answer Ok.
    pub(super) fn reserve(&mut self) {
        let raft = &self.raw.raft;
        assert!(raft.state == StateRole::Leader, "S3: only a leader reserves");
        let is_busy = self.reservation.pending.is_some() || raft.lead_transferee.is_some();
        if is_busy || !self.may_reserve() {
            return;
        }
        let me = self.config.identity;
        let owner = Owner { term: Term(raft.term), node: me.node, boot: me.boot };
        let until = Epoch(self.trusted_ns.saturating_add(self.config.reservation_ns));
        let command = Command::Reserve { owner, until };
        // A dropped proposal (too much uncommitted) is tried again at the next tick.
        if self.call(|raw| raw.propose(Vec::new(), command.encode())).is_ok() {
            self.reservation.pending = Some((self.now_ns, 0));
        }
    }
}
