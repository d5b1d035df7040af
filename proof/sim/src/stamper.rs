//! A node's timestamp allocator. It is the core's allocator, one per node. With a planted bug each
//! worker has its own.

use std::sync::Arc;

use epicepoch_core::allocator::{AllocateError, Allocator, Now};
use epicepoch_core::confirm::Confirmed;
use epicepoch_core::publication::Shared;
use epicepoch_wire::{Epoch, EpochIndex, Timestamp, TimestampRange};

use crate::parameters::{EPOCH_INTERVAL_NS, WORKERS};
use crate::plant::Plant;

/// The allocators of a node.
#[derive(Debug)]
pub(crate) struct Stamper {
    allocators: Vec<Allocator>,
}

impl Stamper {
    pub(crate) fn new(shared: &Arc<Shared>, plant: Option<Plant>) -> Self {
        let count = if plant == Some(Plant::WorkerIndexes) { WORKERS } else { 1 };
        let allocators = (0..count).map(|_| Allocator::new(shared.clone(), EPOCH_INTERVAL_NS));
        Self { allocators: allocators.collect() }
    }

    /// The last epoch that was stamped.
    pub(crate) fn epoch(&self) -> Epoch {
        let epochs = self.allocators.iter().map(Allocator::epoch);
        epochs.max().unwrap_or(Epoch(0))
    }

    /// Stops the allocators of a node that has withdrawn its grant, and returns the last epoch that
    /// was stamped; `None` if an allocator is in use.
    pub(crate) fn stop(&self) -> Option<Epoch> {
        let last = self.allocators.iter().map(Allocator::stop).collect::<Option<Vec<_>>>()?;
        last.into_iter().max()
    }

    /// The answer to a batch: its timestamps, or the latest one.
    pub(crate) fn answer(
        &self,
        worker: usize,
        key: Confirmed,
        now: Now,
    ) -> Result<TimestampRange, AllocateError> {
        let [allocator] = &self.allocators[..] else {
            // With the planted bug, each worker gives timestamps from its own part of an epoch's
            // indexes.
            let range = self.allocators[worker].answer(key, now)?;
            let first = range.first();
            let index = EpochIndex((worker as u64) << 32 | first.index.0);
            return TimestampRange::new(Timestamp { index, ..first }, range.count())
                .ok_or(AllocateError::Exhausted);
        };
        allocator.answer(key, now)
    }
}
