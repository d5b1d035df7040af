//! The conformance suite for clients in any language: scenarios for each clause of
//! `clients/README.md`.
//!
//! A client joins through a *driver*: a small program that reads commands and writes replies, one
//! JSON object per line ([`protocol`]). The suite never links a client. It starts the driver, plays
//! the nodes, and judges the replies.
//!
//! - [`protocol`]: commands and replies.
//! - [`driver`]: a driver as a process, and its clock.
//! - [`node`]: a scripted node of the native protocol; [`oracle`]: the timestamps that it gave.
//! - [`scene`]: the nodes and the driver of a scenario; [`scenarios`]: all scenarios; [`suite`]:
//!   runs them.
//! - [`cluster`]: three real nodes; [`callers`]: callers that ask repeatedly; [`kills`]: both
//!   together, while leaders are killed or stopped.

pub mod callers;
pub mod cluster;
pub mod driver;
pub mod kills;
pub mod node;
pub mod oracle;
pub mod protocol;
pub mod scenarios;
pub mod scene;
pub mod suite;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use driver::{Call, Driver, DriverCommand, Refusal, Settings};
pub use protocol::Fault;

/// The result of a scenario: an error if the client breaks the contract.
pub type Verdict = Result<(), String>;

/// Longest wait for an expected event. It is generous, because only a failure waits so long.
pub const WAIT_MAX: Duration = Duration::from_secs(20);
/// Interval at which a condition is checked.
const POLL_PAUSE: Duration = Duration::from_millis(2);

/// Waits until `condition` holds.
///
/// # Errors
/// `what` did not happen within `limit`.
pub fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) -> Verdict {
    let deadline = Instant::now() + limit;
    while !condition() {
        if Instant::now() >= deadline {
            return Err(format!("waited {limit:?} in vain until {what}"));
        }
        std::thread::sleep(POLL_PAUSE);
    }
    Ok(())
}

/// Ignores a poisoned lock, because the thread that panicked reports its own panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Compiles the example of the repository's README as a test. It is here and not in the client,
/// because the client's package does not have that file.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
