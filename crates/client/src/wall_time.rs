//! Conversion between timestamps and the system's wall time, for range queries over keys. It never
//! reads the clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use epicepoch_wire::Timestamp;

/// Returns the lowest timestamp of the wall time `time`. Use it as the inclusive start of a range
/// query. Returns `None` before 1970 and after 2554.
#[must_use]
pub fn lowest_at(time: SystemTime) -> Option<Timestamp> {
    unix_ns(time).map(Timestamp::lowest_at)
}

/// Returns the highest timestamp of the wall time `time`. Use it as the inclusive end of a range
/// query. Returns `None` before 1970 and after 2554.
#[must_use]
pub fn highest_at(time: SystemTime) -> Option<Timestamp> {
    unix_ns(time).map(Timestamp::highest_at)
}

/// Returns the wall time of a timestamp's epoch.
#[must_use]
pub fn of(timestamp: Timestamp) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(timestamp.epoch.0)
}

fn unix_ns(time: SystemTime) -> Option<u64> {
    u64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_nanos()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_time_goes_to_its_bounds_and_back() {
        let time = UNIX_EPOCH + Duration::from_nanos(1_700_000_000_123_456_789);
        let (low, high) = (lowest_at(time).unwrap(), highest_at(time).unwrap());
        assert_eq!((low.index.0, high.index.0), (0, u64::MAX));
        assert_eq!((of(low), of(high)), (time, time));
        assert_eq!(lowest_at(UNIX_EPOCH - Duration::from_nanos(1)), None);
        assert_eq!(highest_at(UNIX_EPOCH + Duration::from_secs(1 << 40)), None);
    }
}
