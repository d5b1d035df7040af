//! Time that an operator moves on purpose, `clock advance-to`: from the moment that it is done, every
//! answer of the cluster is above what was asked for (S14). It has no command of its own in the log:
//! the leader reserves beyond it, as it always reserves, and then gives up what it owns below it.
//!
//! Why that is enough: the ceiling is above it once the reservation is applied, so every later
//! leader's range is, too; and this leader stamps in nothing else any more from the same step on. A
//! leader of an older term is refused by the rounds, as ever (S2).

use epicepoch_wire::Epoch;
use raft::StateRole;
use thiserror::Error;

use super::{Replica, Report};
use crate::planted::{self, Bug};
use crate::publication::{EpochRange, Grant};
use crate::state::WIDTH_MIN_NS;

/// How far ahead of trusted time the epoch is moved unless whoever asks allows more, nanoseconds: an
/// hour.
pub const ADVANCE_AHEAD_NS: u64 = 3_600 * 1_000_000_000;
/// How far at most, whatever is allowed, nanoseconds: 366 days. Beyond it is a slip rather than a
/// time, and nothing would take it back.
pub const ADVANCE_AHEAD_MAX_NS: u64 = 366 * 24 * 3_600 * 1_000_000_000;

/// What moving the epoch comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advance {
    /// What every answer will be above.
    pub to: Epoch,
    /// The ceiling now.
    pub ceiling: Epoch,
    /// The ceiling afterwards, at least.
    pub ceiling_after: Epoch,
    /// How far `to` is ahead of trusted time, nanoseconds: for so long epochs move by the least step
    /// or stand still. 0 when it is not ahead.
    pub ahead_ns: u64,
    /// Whether every answer is above `to` already, by what this leader owns, so that nothing has to be
    /// done. What was stamped from it is above more: only the plane knows that.
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
    /// Correct the time, or allow more.
    #[error(
        "it is {} s ahead of the clock, and {} s are allowed: correct it, or allow more with \
         --ahead-max, up to 366d",
        ahead_ns / 1_000_000_000, allowed_ns / 1_000_000_000
    )]
    TooFarAhead {
        /// How far, nanoseconds.
        ahead_ns: u64,
        /// How far it may be, nanoseconds.
        allowed_ns: u64,
    },
    /// Correct the time.
    #[error("no epoch would be left after it, before the year 2554")]
    Exhausted,
}

impl Replica {
    /// What it would come to if every answer had to be above `to`, at most `allowed_ns` ahead of
    /// trusted time, and whether that can be had now. Nothing is changed.
    ///
    /// # Errors
    /// Why it cannot be had.
    pub fn plan_advance(&self, to: Epoch, allowed_ns: u64) -> Result<Advance, AdvanceError> {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader {
            return Err(AdvanceError::NotLeader);
        }
        let Some(grant) = self.grant else { return Err(AdvanceError::NotServing) };
        if raft.lead_transferee.is_some() {
            return Err(AdvanceError::NotServing);
        }
        if self.reservation.advance.is_some() {
            return Err(AdvanceError::Busy);
        }
        let ahead_ns = to.0.saturating_sub(self.trusted_ns);
        let allowed_ns = allowed_ns.min(ADVANCE_AHEAD_MAX_NS);
        if ahead_ns > allowed_ns && !planted::is(Bug::AdvanceUnbounded) {
            return Err(AdvanceError::TooFarAhead { ahead_ns, allowed_ns });
        }
        let beyond = to.0.checked_add(WIDTH_MIN_NS).filter(|beyond| *beyond < u64::MAX);
        let beyond = Epoch(beyond.ok_or(AdvanceError::Exhausted)?);
        let ceiling = self.state.ceiling;
        let is_owned = to < grant.range.high;
        let ceiling_after = if is_owned { ceiling } else { ceiling.max(beyond) };
        let is_done = to <= grant.range.low;
        Ok(Advance { to, ceiling, ceiling_after, ahead_ns, is_done })
    }

    /// Moves the epoch: once [`Report::Advanced`] says so, every answer of the cluster is above `to`.
    /// A leader that loses leadership first reports nothing; the ceiling may have risen all the same,
    /// which does no harm.
    ///
    /// # Errors
    /// Why nothing was begun.
    pub fn advance(
        &mut self,
        now_ns: u64,
        to: Epoch,
        allowed_ns: u64,
    ) -> Result<Advance, AdvanceError> {
        self.now_ns = now_ns;
        let advance = self.plan_advance(to, allowed_ns)?;
        self.reservation.advance = Some(to);
        if planted::is(Bug::AdvanceEarlyAck) {
            self.reports.push_back(Report::Advanced { to });
        }
        self.take_advance_unreserved(to);
        self.take_advance();
        if self.reservation.advance.is_some() {
            // What is under way already may end below: then the next tick asks for more.
            self.reserve();
            self.settle();
        }
        Ok(advance)
    }

    /// Gives up what is owned below an advance that is asked for, once something above it is owned.
    pub(super) fn take_advance(&mut self) {
        let (Some(to), Some(grant)) = (self.reservation.advance, self.grant) else { return };
        if to >= grant.range.high {
            return;
        }
        self.reservation.advance = None;
        if to > grant.range.low && !planted::is(Bug::AdvanceKeepsRange) {
            let range = EpochRange { low: to, ..grant.range };
            self.grant = Some(Grant { range, ..grant });
            self.publish();
        }
        self.reports.push_back(Report::Advanced { to });
    }

    /// A planted bug: the leader stamps above what was asked for, before that is reserved.
    fn take_advance_unreserved(&mut self, to: Epoch) {
        if planted::is(Bug::AdvanceUnreserved) {
            let high = Epoch(to.0 + self.reservation.window_ns());
            self.grant = self.grant.map(|grant| {
                let range = EpochRange { high: high.max(grant.range.high), ..grant.range };
                Grant { range, ..grant }
            });
            self.publish();
        }
    }
}
