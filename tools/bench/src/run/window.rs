//! The times at which the phases of a measurement begin, the same for all of its threads.

use std::time::{Duration, Instant};

use super::config::RunConfig;

/// The times that divide a measurement: `began <= from < end < given_up`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// The first request is due at this time.
    pub(super) began: Instant,
    /// The warm-up ends: requests that are due from here on count.
    pub(super) from: Instant,
    /// No request is due from here on.
    pub(super) end: Instant,
    /// From here on, no request is sent, even if it was due earlier, and the run waits for no
    /// answer.
    pub(super) given_up: Instant,
}

impl Window {
    pub(super) fn new(config: &RunConfig, began: Instant) -> Self {
        let from = began + config.warmup;
        let end = from + config.duration;
        Self { began, from, end, given_up: end + config.request_timeout }
    }

    /// A measurement without a warm-up and without an end.
    pub(super) fn endless(began: Instant) -> Self {
        let end = began + ENDLESS;
        Self { began, from: began, end, given_up: end }
    }

    pub(super) fn counts(&self, intended: Instant) -> bool {
        intended >= self.from && intended < self.end
    }
}

/// The length of a measurement without an end: longer than any machine runs.
const ENDLESS: Duration = Duration::from_hours(50 * 365 * 24);
