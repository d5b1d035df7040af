//! What a program may want to count about its client. Called from the driver's task; it must not
//! block.

use std::fmt::Debug;
use std::time::Duration;

use crate::error::Setback;

/// Hooks for metrics. Every method does nothing unless it is implemented.
pub trait Observer: Debug + Send + Sync {
    /// A request was answered that so many callers shared, `latency` after it was sent.
    fn answered(&self, callers: usize, timestamps: u64, latency: Duration) {
        let _ = (callers, timestamps, latency);
    }

    /// An attempt failed and will be repeated.
    fn setback(&self, setback: &Setback) {
        let _ = setback;
    }

    /// A connection to the leader was made.
    fn connected(&self, addr: &str) {
        let _ = addr;
    }
}
