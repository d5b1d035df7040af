//! The lease of a leader, and the wait for the leases of others (S20).
//!
//! - *Propose*: a leader marks a reservation while requests ask for a lease. The clock was read
//!   before that.
//! - *Take*: applying the marked reservation publishes the lease together with the grant.
//! - *Wait*: a new leader publishes no grant until the leases of all other runs are over, or
//!   released.
//! - *Release*: before a handover, and when leases are switched off, workers lose the lease first.
//!   Then the release is proposed. Both are one step: no reservation is marked or taken between
//!   them. Otherwise the next leader would not wait for it.
//! - *Forget*: the lease ends with the grant, in the step that ends leadership.

use epicepoch_wire::{LogIndex, Mode, Term};
use raft::StateRole;

use super::Replica;
use crate::durable::Restored;
use crate::lease::LeaseClocks;
use crate::state::{Command, FORMAT_OF_LEASES, State};

impl Replica {
    /// Sets the clocks of the leases. Read them after an event has arrived, and call this before the
    /// event is handled: an entry counts from this reading.
    pub fn handle_lease_clocks(&mut self, clocks: LeaseClocks) {
        self.lease_clock_ns = self.lease_clock_ns.max(clocks.own_ns);
        self.lease_wait.set_clock(clocks.wait_ns);
    }

    /// Allows leases to this node: its clock of the leases never stands still while the process
    /// runs, and its rate is right within a ninth. Without this call, the node waits for leases of
    /// others, and takes none.
    pub const fn allow_leases(&mut self) {
        self.is_lease_clock_fit = true;
    }

    /// Takes the right to leases away: the clock of the leases may have stood still. If this node has
    /// a lease, workers lose it now.
    pub fn forbid_leases(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.is_lease_clock_fit = false;
        self.release_lease();
        self.settle();
    }

    /// Whether this node may take leases.
    #[must_use]
    pub const fn may_take_leases(&self) -> bool {
        self.is_lease_clock_fit
    }

    /// Records when a request last asked for a lease, by the same clock as `now_ns`; 0 before the
    /// first.
    pub fn handle_lease_asked(&mut self, asked_ns: u64) {
        self.lease_asked_ns = asked_ns;
    }

    /// For how long this leader holds its grant back because of leases of others, nanoseconds; 0 if
    /// it does not.
    #[must_use]
    pub fn lease_wait_ns(&self) -> u64 {
        let left_ns = self.lease_wait.until_ns().saturating_sub(self.lease_wait.clock_ns());
        if self.is_held_back { left_ns } else { 0 }
    }

    /// For how long this leader's lease goes on, nanoseconds; 0 without one.
    #[must_use]
    pub fn lease_left_ns(&self) -> u64 {
        let lease = self.lease.published(Term(self.raw.raft.term));
        lease.map_or(0, |lease| lease.until_ns.saturating_sub(self.lease_clock_ns))
    }

    /// Whether this node would wait for leases if it led now. The lease of the present leader does
    /// not count, because that leader releases it before it hands over.
    pub(super) fn would_wait_for_leases(&self) -> bool {
        let leader = Term(self.raw.raft.term);
        self.lease_wait.until_ns_besides(leader) > self.lease_wait.clock_ns()
    }

    /// Publishes what was held back because of leases of others, once these are over: a grant, or the
    /// right to interval timestamps.
    pub(super) fn publish_held_grant(&mut self) {
        if self.is_held_back && self.lease_wait.is_over() {
            self.publish();
        }
    }

    /// For how long the next reservation is to be a lease, milliseconds. 0 if leases are off or
    /// not allowed to this node, if no request has asked for one lately, and while this node is going
    /// to stop.
    pub(super) fn lease_to_mark_ms(&self) -> u64 {
        let is_asked =
            self.lease_asked_ns > 0 && self.now_ns.saturating_sub(self.lease_asked_ns) <= ASKED_NS;
        let may_mark = is_asked
            && self.is_lease_clock_fit
            && self.state.format >= FORMAT_OF_LEASES
            && self.state.mode() == Mode::Quorum
            && !self.is_stopping();
        self.state.settings.as_ref().filter(|_| may_mark).map_or(0, |settings| settings.lease_ms)
    }

    /// Reserves again to renew the lease, if it is time. Returns whether that is so.
    pub(super) fn renew_lease_if_due(&mut self) -> bool {
        let lease_ms = self.lease_to_mark_ms();
        let is_due = lease_ms > 0
            && self.grant.is_some()
            && self.lease.is_due(self.lease_clock_ns, lease_ms);
        if is_due {
            self.reserve();
        }
        is_due
    }

    /// Ends the lease of this leader, and tells the next leader not to wait for it. If the proposal
    /// is dropped, the next leader waits.
    pub(super) fn release_lease(&mut self) {
        if self.raw.raft.state != StateRole::Leader || !self.lease.is_marked() {
            return;
        }
        self.lease.withdraw();
        self.publish();
        let command = Command::Release { owner: self.as_owner() }.encode();
        if self.call(|raw| raw.propose(Vec::new(), command)).is_ok() {
            self.lease.release(LogIndex(self.raw.raft.raft_log.last_index()));
        }
    }
}

/// The longest lease that may run when a process starts: in the state, or in the log behind it.
pub(super) fn longest_ms(state: &State, restored: &Restored) -> u64 {
    let marked = restored.entries.iter().filter_map(|entry| match Command::decode(&entry.data) {
        Ok(Command::Reserve { lease_ms, .. }) => Some(lease_ms),
        _ => None,
    });
    marked.fold(state.lease_longest_ms, u64::max)
}

/// A leader renews its lease as long as a request has asked for one in this time, nanoseconds.
const ASKED_NS: u64 = 1_000_000_000;
