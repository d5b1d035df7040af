//! An operator moves the epoch with `clock advance-to`. A request that begins after success was
//! reported is answered above the requested epoch (S14). A request that began earlier may be
//! answered below it. The log needs no command for this. The leader makes an ordinary reservation
//! that ends beyond the epoch, and then gives up the part of its range below.
//!
//! That is enough. When the reservation is applied, the range ends above the epoch, and what is given
//! back later is above the epoch, too (S18). So is every later leader's range. From the same step on,
//! this leader stamps nothing below the epoch. Rounds refuse a leader of an older term, as always
//! (S2). While this leader waits for leases of others (S20), it reports no advance as done.

use epicepoch_wire::{Epoch, Mode};
use raft::StateRole;
use thiserror::Error;

use super::{Replica, Report};
use crate::publication::{EpochRange, Grant};

/// How far ahead of trusted time the epoch may be moved by default, nanoseconds: an hour.
pub const ADVANCE_AHEAD_NS: u64 = 3_600 * 1_000_000_000;
/// A request may allow at most this far ahead of trusted time, nanoseconds: 366 days. A larger
/// value is a typing error, and could never be undone.
pub const ADVANCE_AHEAD_MAX_NS: u64 = 366 * 24 * 3_600 * 1_000_000_000;

/// The effect of moving the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advance {
    /// Every request that begins after the move is answered above this epoch.
    pub to: Epoch,
    /// The ceiling now.
    pub ceiling: Epoch,
    /// The ceiling afterwards, at least.
    pub ceiling_after: Epoch,
    /// How far `to` is ahead of trusted time, nanoseconds; 0 when it is not. During this time
    /// epochs rise by the least step or stand still.
    pub ahead_ns: u64,
    /// Whether the whole range of this leader is already above `to`, so that every request that
    /// begins now is answered above it.
    pub is_done: bool,
}

/// Why the epoch is not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AdvanceError {
    /// Ask the leader.
    #[error("this node does not lead")]
    NotLeader,
    /// Ask again in a moment.
    #[error("the leader has no range yet, or hands leadership over; ask again")]
    NotServing,
    /// Ask again in a moment.
    #[error("the epoch is being moved already; ask again")]
    Busy,
    /// The requested time is too far ahead: correct it, or allow more.
    #[error(
        "it is {} s ahead of the clock, and at most {} s are allowed: correct it, or allow more with \
         --ahead-max, up to 366d",
        ahead_ns / 1_000_000_000, allowed_ns / 1_000_000_000
    )]
    TooFarAhead {
        /// How far `to` is ahead of trusted time, nanoseconds.
        ahead_ns: u64,
        /// How far ahead of trusted time `to` may be, nanoseconds.
        allowed_ns: u64,
    },
    /// Leave the epoch as it is: interval timestamps have none.
    #[error(
        "MODE is interval: the nodes give timestamps by their own clocks, and there is no epoch to move"
    )]
    Intervals,
    /// Correct the requested time.
    #[error("no epoch would be left after it: epochs end in the year 2554")]
    Exhausted,
}

impl Replica {
    /// Plans a move of the epoch above `to`, at most `allowed_ns` ahead of trusted time. Changes
    /// nothing.
    ///
    /// # Errors
    /// Why the epoch cannot be moved now.
    pub fn plan_advance(&self, to: Epoch, allowed_ns: u64) -> Result<Advance, AdvanceError> {
        if self.raw.raft.state != StateRole::Leader {
            return Err(AdvanceError::NotLeader);
        }
        if self.state.mode() == Mode::Interval {
            return Err(AdvanceError::Intervals);
        }
        let Some(grant) = self.grant else { return Err(AdvanceError::NotServing) };
        if self.is_handing_over() || self.is_held_back {
            return Err(AdvanceError::NotServing);
        }
        if self.reservation.advance.is_some() {
            return Err(AdvanceError::Busy);
        }
        let ahead_ns = to.0.saturating_sub(self.trusted_ns);
        let allowed_ns = allowed_ns.min(ADVANCE_AHEAD_MAX_NS);
        if ahead_ns > allowed_ns {
            return Err(AdvanceError::TooFarAhead { ahead_ns, allowed_ns });
        }
        let beyond =
            to.0.checked_add(self.state.width_min_ns()).filter(|beyond| *beyond < u64::MAX);
        let beyond = Epoch(beyond.ok_or(AdvanceError::Exhausted)?);
        let ceiling = self.state.ceiling;
        let is_owned = to < grant.range.high;
        let ceiling_after = if is_owned { ceiling } else { ceiling.max(beyond) };
        let is_done = to <= grant.range.low;
        Ok(Advance { to, ceiling, ceiling_after, ahead_ns, is_done })
    }

    /// Moves the epoch: every request that begins after [`Report::Advanced`] is answered above
    /// `to`. A leader that loses leadership first reports nothing. Even then the ceiling may have
    /// risen, which is harmless.
    ///
    /// # Errors
    /// Why the epoch is not moved.
    pub fn advance(
        &mut self,
        now_ns: u64,
        to: Epoch,
        allowed_ns: u64,
    ) -> Result<Advance, AdvanceError> {
        self.now_ns = now_ns;
        let advance = self.plan_advance(to, allowed_ns)?;
        self.reservation.advance = Some(to);
        self.take_advance();
        if self.reservation.advance.is_some() {
            // A pending reservation may end below `to`. Then the next tick reserves more.
            self.reserve();
            self.settle();
        }
        Ok(advance)
    }

    /// Gives up the part of the range below a requested advance, once the range reaches above it.
    pub(super) fn take_advance(&mut self) {
        let (Some(to), Some(grant)) = (self.reservation.advance, self.grant) else { return };
        if to >= grant.range.high {
            return;
        }
        self.reservation.advance = None;
        if to > grant.range.low {
            let range = EpochRange { low: to, ..grant.range };
            self.grant = Some(Grant { range, ..grant });
            self.publish();
        }
        self.reports.push_back(Report::Advanced { to });
    }
}
