//! The clocks of the machine, read and never set. `CLOCK_MONOTONIC` is slewed with the wall clock,
//! so corrections are only seen against `CLOCK_MONOTONIC_RAW`.

use rustix::time::{ClockId, clock_gettime};

use crate::Unknown;

fn read(id: ClockId) -> Option<u64> {
    let time = clock_gettime(id);
    nanoseconds(time.tv_sec, time.tv_nsec)
}

/// The nanoseconds of a `timespec`, or `None` if it is negative or out of range.
pub(crate) fn nanoseconds(seconds: i64, nanoseconds: i64) -> Option<u64> {
    let fraction = u64::try_from(nanoseconds).ok().filter(|it| *it < 1_000_000_000)?;
    u64::try_from(seconds).ok()?.checked_mul(1_000_000_000)?.checked_add(fraction)
}

/// `CLOCK_REALTIME`, Unix nanoseconds.
pub(crate) fn realtime() -> Result<u64, Unknown> {
    read(ClockId::Realtime).ok_or(Unknown::BeforeEpoch)
}

/// `CLOCK_MONOTONIC_RAW`, nanoseconds: the clock of the machine's oscillator, which nobody sets and
/// which is not slewed. It stands still while the machine is suspended.
#[must_use]
pub fn raw_ns() -> u64 {
    read(ClockId::MonotonicRaw).unwrap_or(0)
}

/// `CLOCK_MONOTONIC_COARSE`, nanoseconds: the clock of ClockBound's segment.
pub(crate) fn coarse() -> u64 {
    read(ClockId::MonotonicCoarse).unwrap_or(0)
}

/// The wall clock and the raw clock at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) real_ns: u64,
    pub(crate) raw_ns: u64,
    /// How far apart the two may have been read.
    pub(crate) gap_ns: u64,
}

impl Moment {
    /// Reads both clocks. A thread that is interrupted between them has a wider gap, and tries
    /// again.
    pub(crate) fn now() -> Result<Self, Unknown> {
        let mut best: Option<Self> = None;
        for _ in 0..TRIES {
            let before = read(ClockId::MonotonicRaw).unwrap_or(0);
            let real_ns = realtime()?;
            let gap_ns = read(ClockId::MonotonicRaw).unwrap_or(0).saturating_sub(before);
            if best.is_none_or(|it| gap_ns < it.gap_ns) {
                best = Some(Self { real_ns, raw_ns: before, gap_ns });
            }
            if gap_ns <= GAP_NS_FINE {
                break;
            }
        }
        best.ok_or(Unknown::BeforeEpoch)
    }

    /// How far the wall clock moved from the raw clock between `self` and a later moment, at most.
    pub(crate) fn disagreement_ns(&self, later: &Self) -> u64 {
        let real = i128::from(later.real_ns) - i128::from(self.real_ns);
        let raw = i128::from(later.raw_ns) - i128::from(self.raw_ns);
        let moved = u64::try_from((real - raw).unsigned_abs()).unwrap_or(u64::MAX);
        moved.saturating_add(self.gap_ns).saturating_add(later.gap_ns)
    }
}

/// How often both clocks are read for one moment.
const TRIES: usize = 4;
/// A gap that needs no other try.
const GAP_NS_FINE: u64 = 5_000;
