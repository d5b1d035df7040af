//! Compact timestamps in simulated clusters: which runs have them, and how many a request asks for.

use epicepoch_wire::{COMPACT_INDEXES, TimestampFormat};

use crate::plant::Plant;
use crate::world::World;
use crate::world::features::{COMPACT, Feature};

/// This many of a thousand requests ask for a large part of a millisecond, or for one timestamp more
/// than it has.
const LARGE: u32 = 100;
/// This many of a thousand changes of settings are about the format of timestamps.
const CHANGES: u32 = 300;

impl World {
    /// Whether the cluster may give compact timestamps. With a planted bug, each worker has a part of
    /// an epoch's indexes, and a millisecond does not have that many.
    pub(crate) fn may_be_compact(&self) -> bool {
        self.has(Feature::Compact) && !self.is_planted(Plant::WorkerIndexes)
    }

    /// The format of timestamps in the configuration of all nodes. Half of the clusters with compact
    /// timestamps have them from their foundation.
    pub(crate) fn initial_timestamp_format(&self) -> TimestampFormat {
        if self.may_be_compact() && self.is_in(COMPACT, 2) {
            TimestampFormat::Compact
        } else {
            TimestampFormat::Wide
        }
    }

    /// Whether an operator changes the format of timestamps now.
    pub(crate) fn changes_timestamp_format(&mut self) -> bool {
        self.may_be_compact() && self.chance(CHANGES)
    }

    /// A large count for a request, in some cases.
    pub(crate) fn draw_large_count(&mut self) -> Option<u64> {
        let is_large = self.may_be_compact() && self.chance(LARGE);
        is_large.then(|| self.random.u64(COMPACT_INDEXES / 4..=COMPACT_INDEXES + 1))
    }
}
