//! The clock that a client uses.

use std::time::{Duration, Instant};

/// The longest duration of an option: 366 days. No call waits that long, and every clock can
/// represent a time that far away.
pub(crate) const DURATION_MAX: Duration = Duration::from_hours(366 * 24);

/// Returns the time of tokio's clock, which a test may pause.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
