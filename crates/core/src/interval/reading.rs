//! What a source of the time says: an interval, and when it was read by the raw clock.

/// A reading is told to others for this long, nanoseconds.
const TOLD_AGE_NS_MAX: u64 = 1_000_000_000;
/// How far the rate of a raw clock may be from true, parts per million.
const RAW_PPM_MAX: u64 = 500;

/// What a raw clock may have drifted in a time that it measured, nanoseconds. A clock that is slow by
/// 500 ppm has measured 999,500 of a million.
pub(super) const fn drift_ns(age_ns: u64) -> u64 {
    // `age_ns` is at most a few seconds where this matters.
    age_ns.saturating_mul(RAW_PPM_MAX) / (1_000_000 - RAW_PPM_MAX) + 1
}

/// An interval that holds true time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// True time is not below this, Unix nanoseconds.
    pub earliest_ns: u64,
    /// True time is not above this, Unix nanoseconds.
    pub latest_ns: u64,
    /// Another number than in the last reading: the machine was paused or moved in between.
    pub disruption: u64,
    /// The clock was read between these two times of the machine's raw clock, which is never set or
    /// slewed, nanoseconds.
    pub raw_from_ns: u64,
    /// See `raw_from_ns`.
    pub raw_until_ns: u64,
}

impl Reading {
    /// The interval at a later time of the raw clock: earliest and latest, to tell others. `None` if
    /// the reading is too old, or from later.
    #[must_use]
    pub fn at(&self, raw_ns: u64) -> Option<(u64, u64)> {
        let shortest_ns = raw_ns.checked_sub(self.raw_until_ns)?;
        let longest_ns = raw_ns.checked_sub(self.raw_from_ns)?;
        if longest_ns > TOLD_AGE_NS_MAX {
            return None;
        }
        let earliest_ns = self.earliest_ns.checked_add(shortest_ns)?;
        let latest_ns = self.latest_ns.checked_add(longest_ns)?;
        let latest_ns = latest_ns.checked_add(drift_ns(longest_ns))?;
        Some((earliest_ns.saturating_sub(drift_ns(shortest_ns)), latest_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_reading_is_told_as_of_a_later_moment_and_not_for_long() {
        const RAW: u64 = 50_000 * MS;
        let (earliest_ns, latest_ns) = (1_000_000 * MS, 1_000_002 * MS);
        let (raw_from_ns, raw_until_ns) = (RAW, RAW + 10);
        let it = Reading { earliest_ns, latest_ns, disruption: 0, raw_from_ns, raw_until_ns };
        let told = it.at(RAW + 100 * MS).unwrap();
        let expected = (it.earliest_ns + 100 * MS - 10, it.latest_ns + 100 * MS);
        assert_eq!((expected.0 - told.0, told.1 - expected.1), (50_026, 50_026));
        assert_eq!(it.at(RAW + TOLD_AGE_NS_MAX + 1), None);
        assert_eq!(it.at(RAW), None, "before the reading");
    }
}
