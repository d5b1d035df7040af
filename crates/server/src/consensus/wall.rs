//! The wall clock of this node, and what the test switch does to it. It never decides whether the
//! clock is believed: [`epicepoch_core::clock`] does.

use std::time::{SystemTime, UNIX_EPOCH};

use epicepoch_core::clock::ClockReading;

use crate::faults::Faults;
use crate::shared::NodeClock;

/// Unix nanoseconds of the wall clock; 0 for a clock before 1970.
pub(crate) fn wall_ns(faults: &Faults) -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let wall_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    wall_ns.saturating_add_signed(faults.wall_offset_ns())
}

/// Both clocks, read together.
pub(crate) fn reading(clock: &NodeClock, faults: &Faults) -> ClockReading {
    ClockReading { monotonic_ns: clock.monotonic_ns(), wall_ns: wall_ns(faults) }
}
