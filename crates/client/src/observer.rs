//! Hooks for metrics of a client. The driver's task calls them, so they must not block.

use std::fmt::Debug;
use std::time::Duration;

use crate::error::FailedAttempt;

/// Hooks for metrics. Every method does nothing by default.
pub trait Observer: Debug + Send + Sync {
    /// A request that `callers` calls share was answered, `latency` after it was first sent.
    /// `timestamps` is how many they take together: 0 if all ask for the latest one.
    fn answered(&self, callers: usize, timestamps: u64, latency: Duration) {
        let _ = (callers, timestamps, latency);
    }

    /// An attempt failed and will be repeated.
    fn failed_attempt(&self, failed_attempt: &FailedAttempt) {
        let _ = failed_attempt;
    }

    /// A connection to the leader was made.
    fn connected(&self, addr: &str) {
        let _ = addr;
    }
}
