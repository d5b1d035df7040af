//! Where the allocator goes if timestamps are compact (S21). Every epoch is a whole millisecond, and
//! an epoch has 2^18 indexes. When these are used up, the next millisecond is taken, also ahead of
//! the clock, but only by so much and never beyond the range. Then requests are refused until the
//! clock has come closer. TiKV's Placement Driver also takes the next millisecond; it has no bound of
//! its own.
//!
//! # The first milliseconds of a range are not used
//! Timestamps from before, up to the low end of the range, may be wide: those of this node, and those
//! of an earlier leader that gave its last one before the setting was applied. The first whole
//! millisecond above them is left out, so that it can be shown as the latest timestamp (S19): it is
//! above all of them, and has a compact spelling. Timestamps begin with the second one.
//!
//! # How far ahead
//! The allocator remembers an epoch that the clock had reached, and when. From then on it may be as
//! far as that epoch, the time that has passed since, and [`COMPACT_LEAD_NS`]. A range may begin ahead
//! of the clock, after a change of leader or an operator's advance. Then its first epoch counts as
//! reached, because a cluster that is an hour ahead of its clocks must answer during that hour, too.

use epicepoch_wire::{COMPACT_EPOCH_NS, COMPACT_INDEXES, Epoch, EpochIndex, Timestamp};

use super::{AllocateError, Now, Position};
use crate::publication::Grant;

/// How far ahead of the clock compact timestamps may be because milliseconds are used up,
/// nanoseconds: 50 milliseconds, which have 13 million timestamps. They absorb a burst. A lasting rate
/// above 2^18 a millisecond, which is 262 million a second, is refused in part.
pub const COMPACT_LEAD_NS: u64 = 50 * COMPACT_EPOCH_NS;

impl Position {
    /// The position where `count` compact timestamps start: in this millisecond, or in a later one of
    /// the grant. `None` if they do not fit into this millisecond and may be divided.
    pub(super) fn advanced_compact(
        self,
        grant: &Grant,
        interval_ns: u64,
        count: u64,
        may_divide: bool,
        now: Now,
    ) -> Result<Option<Self>, AllocateError> {
        if count > COMPACT_INDEXES {
            return if may_divide { Ok(None) } else { Err(AllocateError::TooMany) };
        }
        let last = floor(grant.range.high);
        let trusted = floor(Epoch(now.trusted_ns)).min(last);
        let at = |epoch| Self {
            epoch,
            next_index: 0,
            term: grant.term,
            moved_at_ns: now.monotonic_ns,
            pace: (epoch, now.monotonic_ns),
            ..self
        };
        if let Some(wide) = self.wide_end(grant)? {
            let lowest = above(wide, 2)?;
            let is_inside = lowest <= last;
            return if is_inside {
                Ok(Some(at(trusted.max(lowest))))
            } else {
                Err(AllocateError::Ahead)
            };
        }
        let is_due = now.monotonic_ns.saturating_sub(self.moved_at_ns) >= interval_ns;
        let is_full = self.next_index + count > COMPACT_INDEXES;
        if (is_due || is_full) && trusted > self.epoch {
            return Ok(Some(at(trusted)));
        }
        if !is_full {
            return Ok(Some(self));
        }
        if may_divide {
            return Ok(None);
        }
        let next = above(self.epoch, 1)?;
        let (reached, reached_ns) = self.pace;
        let passed_ns = now.monotonic_ns.saturating_sub(reached_ns);
        let limit = reached.0.saturating_add(passed_ns).saturating_add(COMPACT_LEAD_NS);
        if next > last || next.0 > limit {
            return Err(AllocateError::Ahead);
        }
        Ok(Some(Self { pace: self.pace, ..at(next) }))
    }

    /// The latest compact timestamp of a leader with this grant; see [`Position::latest`].
    pub(super) fn latest_compact(self, grant: &Grant) -> Result<Timestamp, AllocateError> {
        if let Some(wide) = self.wide_end(grant)? {
            let epoch = above(wide, 1)?;
            let is_inside = epoch <= grant.range.high;
            let latest = Timestamp::new(epoch, EpochIndex(COMPACT_INDEXES - 1));
            return if is_inside { Ok(latest) } else { Err(AllocateError::Ahead) };
        }
        // A position above the low end is behind a timestamp, so its index is not 0.
        let index = self.next_index.checked_sub(1).ok_or(AllocateError::BehindLast)?;
        Ok(Timestamp::new(self.epoch, EpochIndex(index)))
    }

    /// An epoch that no timestamp so far is above, if there may be wide timestamps in its
    /// millisecond. `None` if this position is behind a compact timestamp of the grant.
    fn wide_end(self, grant: &Grant) -> Result<Option<Epoch>, AllocateError> {
        let range = grant.range;
        if self.epoch <= range.low {
            return Ok(Some(range.low));
        }
        // Apply assigns only two kinds of range: see `advanced`.
        if self.term != grant.term || self.epoch > range.high {
            return Err(AllocateError::BehindLast);
        }
        // Only compact timestamps have a pace. A wide epoch may be a whole millisecond by chance.
        let is_compact = self.pace.0 != Epoch(0);
        Ok((!is_compact).then_some(self.epoch))
    }
}

/// The whole millisecond of an epoch.
const fn floor(epoch: Epoch) -> Epoch {
    Epoch(epoch.0 - epoch.0 % COMPACT_EPOCH_NS)
}

/// The whole millisecond that is `steps` milliseconds above that of an epoch.
fn above(epoch: Epoch, steps: u64) -> Result<Epoch, AllocateError> {
    let above = floor(epoch).0.checked_add(steps * COMPACT_EPOCH_NS);
    above.map(Epoch).ok_or(AllocateError::Exhausted)
}

#[cfg(test)]
mod tests;
