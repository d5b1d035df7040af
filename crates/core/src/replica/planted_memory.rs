//! The memory of a replica's planted bugs between steps. A release build has none.

use epicepoch_wire::Epoch;

use crate::publication::Grant;

/// The memory of a replica's planted bugs; empty in a release build.
#[derive(Debug, Default)]
pub(super) struct Memory {
    #[cfg(debug_assertions)]
    proposed_above: Epoch,
    #[cfg(debug_assertions)]
    look: (u64, bool),
    #[cfg(debug_assertions)]
    hidden: Option<Grant>,
}

#[cfg(debug_assertions)]
impl Memory {
    /// Remembers the ceiling that this replica knows as it proposes a reservation.
    pub(super) fn propose_above(&mut self, ceiling: Epoch) {
        self.proposed_above = ceiling;
    }

    /// The ceiling that was known when the last reservation was proposed.
    pub(super) fn proposed_above(&self) -> Epoch {
        self.proposed_above
    }

    /// Remembers a grant as it is revoked.
    pub(super) fn hide(&mut self, grant: Option<Grant>) {
        self.hidden = grant;
    }

    /// The grant that was revoked last.
    pub(super) fn hidden(&self) -> Option<Grant> {
        self.hidden
    }

    /// Begins a tick.
    pub(super) fn tick(&mut self, now_ns: u64) {
        let slot = now_ns / LOOK_NS;
        self.look = (slot, slot != self.look.0);
    }

    /// Whether this tick is one of the few at which some bugs look at their input.
    pub(super) fn is_look(&self) -> bool {
        self.look.1
    }
}

#[cfg(not(debug_assertions))]
impl Memory {
    #[inline]
    pub(super) fn propose_above(&mut self, _ceiling: Epoch) {}

    #[inline]
    pub(super) fn proposed_above(&self) -> Epoch {
        Epoch(0)
    }

    #[inline]
    pub(super) fn hide(&mut self, _grant: Option<Grant>) {}

    #[inline]
    pub(super) fn hidden(&self) -> Option<Grant> {
        None
    }

    #[inline]
    pub(super) fn tick(&mut self, _now_ns: u64) {}

    #[inline]
    pub(super) fn is_look(&self) -> bool {
        false
    }
}

/// Time between two such looks, nanoseconds.
#[cfg(debug_assertions)]
const LOOK_NS: u64 = 500_000_000;
