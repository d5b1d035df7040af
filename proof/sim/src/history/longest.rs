//! The longest window, interval and clock bound that leaders have used. The checkers' limits depend
//! on these settings.

use epicepoch_wire::LogIndex;
use epicepoch_wire::settings::ClusterSettings;

use crate::parameters::{CLOCK_OFFSET_MAX_NS, EPOCH_INTERVAL_NS, MS, RESERVATION_NS};

/// The longest settings that were in effect in a history of a cluster, nanoseconds, and the lowest
/// index at which each was seen. Index 0 stands for the nodes' configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Longest {
    window: (u64, LogIndex),
    bound: (u64, LogIndex),
    interval: (u64, LogIndex),
}

impl Default for Longest {
    fn default() -> Self {
        let told = |ns| (ns, LogIndex(0));
        Self {
            window: told(RESERVATION_NS),
            bound: told(CLOCK_OFFSET_MAX_NS),
            interval: told(EPOCH_INTERVAL_NS),
        }
    }
}

impl Longest {
    /// A node has applied the log up to `index`, and uses these settings now.
    pub(crate) fn record(&mut self, index: LogIndex, settings: &ClusterSettings) {
        for (longest, ms) in [
            (&mut self.window, settings.reservation_ms),
            (&mut self.bound, settings.clock_offset_max_ms),
            (&mut self.interval, settings.epoch_interval_ms),
        ] {
            let ns = ms * MS;
            if ns > longest.0 || ns == longest.0 && index < longest.1 {
                *longest = (ns, index);
            }
        }
    }

    pub(crate) const fn window_ns(&self) -> u64 {
        self.window.0
    }

    pub(crate) const fn bound_ns(&self) -> u64 {
        self.bound.0
    }

    pub(crate) const fn interval_ns(&self) -> u64 {
        self.interval.0
    }

    /// The first index whose state has both the longest window and the widest clock bound.
    pub(crate) fn known_from(&self) -> LogIndex {
        self.window.1.max(self.bound.1)
    }
}
