//! Where a node's timestamps come from: the core's allocator, or one with a planted bug. The
//! planted one repeats the core's rules in the fewest words, but for the one that it breaks; it
//! has no asserts, so that it is the checkers that find it.

use std::sync::Arc;

use epicepoch_core::allocator::{AllocateError, Allocator, Now};
use epicepoch_core::confirm::Confirmed;
use epicepoch_core::publication::Shared;
use epicepoch_wire::{Epoch, EpochIndex, Timestamp, TimestampRange};

use crate::plant::Plant;

/// How often the epoch advances.
pub(crate) const EPOCH_INTERVAL_NS: u64 = 100_000_000;

/// See the module.
#[derive(Debug)]
pub(crate) enum Stamper {
    Core(Allocator),
    Planted(Planted),
}

impl Stamper {
    pub(crate) fn new(shared: Arc<Shared>, plant: Option<Plant>) -> Self {
        match plant {
            Some(plant) if plant.is_in_allocator() => Self::Planted(Planted::new(shared, plant)),
            _ => Self::Core(Allocator::new(shared, EPOCH_INTERVAL_NS)),
        }
    }

    /// `again` is a second reading of the clocks, some time later, for whoever should not take one.
    pub(crate) fn allocate(
        &mut self,
        worker: usize,
        key: &Confirmed,
        count: u64,
        [now, again]: [Now; 2],
    ) -> Result<TimestampRange, AllocateError> {
        match self {
            Self::Core(allocator) => allocator.allocate(key, count, now),
            Self::Planted(planted) => planted.allocate(worker, key, count, [now, again]),
        }
    }
}

/// An allocator with a bug.
#[derive(Debug)]
pub(crate) struct Planted {
    shared: Arc<Shared>,
    plant: Plant,
    epoch: u64,
    moved_at_ns: u64,
    /// By worker, for the bug that has more than one.
    next_index: [u64; 8],
}

impl Planted {
    fn new(shared: Arc<Shared>, plant: Plant) -> Self {
        Self { shared, plant, epoch: 0, moved_at_ns: 0, next_index: [0; 8] }
    }

    fn allocate(
        &mut self,
        worker: usize,
        key: &Confirmed,
        count: u64,
        [now, again]: [Now; 2],
    ) -> Result<TimestampRange, AllocateError> {
        let plant = self.plant;
        let grant = self.shared.published().grant.ok_or(AllocateError::NoGrant)?;
        if (grant.term, grant.boot) != (key.term(), key.boot()) {
            return Err(AllocateError::OtherTerm);
        }
        let (low, high) = (grant.range.low.0, grant.range.high.0);
        let high = if plant == Plant::BeyondRange { u64::MAX } else { high };
        let is_due = now.monotonic_ns.saturating_sub(self.moved_at_ns) >= EPOCH_INTERVAL_NS;
        if self.epoch <= low || is_due {
            let least = match plant {
                Plant::EpochFollowsClock => low + 1,
                _ => (low + 1).max(self.epoch + 1),
            };
            let next = now.trusted_ns.max(least).min(high);
            if next != self.epoch || plant == Plant::IndexReset {
                self.next_index = [0; 8];
            }
            (self.epoch, self.moved_at_ns) = (next, now.monotonic_ns);
        }
        if plant == Plant::IntervalRestarts {
            self.moved_at_ns = now.monotonic_ns;
        }
        let by_worker = plant == Plant::WorkerIndexes;
        let slot = if by_worker { worker } else { 0 };
        let share = (slot as u64) << 32;
        let epoch = match plant {
            // Past the end of the interval between the two, it is the next epoch already.
            Plant::ClockReadTwice if again.monotonic_ns - self.moved_at_ns > EPOCH_INTERVAL_NS => {
                again.trusted_ns.max(low + 1).min(high)
            }
            _ => self.epoch,
        };
        let first = Timestamp::new(Epoch(epoch), EpochIndex(share + self.next_index[slot]));
        let range = TimestampRange::new(first, count).ok_or(AllocateError::Exhausted)?;
        self.next_index[slot] += match plant {
            Plant::SplitOffByOne => count.saturating_sub(1).max(1),
            Plant::CountOverflow => count & 0xff,
            _ => count,
        };
        Ok(range)
    }
}
