//! The moments of a measurement, the same for all of its threads.

use std::time::Instant;

use super::config::RunConfig;

/// `began <= from < end < given_up`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// The first request is due.
    pub(super) began: Instant,
    /// The warm-up is over: requests that are due from here on count.
    pub(super) from: Instant,
    /// No request is due any more.
    pub(super) end: Instant,
    /// Nothing that was due is sent any more.
    pub(super) given_up: Instant,
}

impl Window {
    pub(super) fn new(config: &RunConfig, began: Instant) -> Self {
        let from = began + config.warmup;
        let end = from + config.duration;
        Self { began, from, end, given_up: end + config.request_timeout }
    }

    pub(super) fn counts(&self, intended: Instant) -> bool {
        intended >= self.from && intended < self.end
    }
}
