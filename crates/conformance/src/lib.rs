//! What every client of the oracle is held to, in whatever language it is written: the clauses of
//! `clients/README.md`, each proved by scenarios.
//!
//! A client joins by a *driver*: a small program that reads commands and writes replies, a line
//! each ([`protocol`]). The suite never links a client; it starts the driver, plays the nodes, and
//! judges what the driver says. Never part of the `epicepoch` binary.
//!
//! - [`protocol`]: what suite and driver say to each other.
//! - [`driver`]: a driver as a process, and its clock.
//! - [`node`]: a scripted node of the native protocol; [`ledger`]: what it gave, and to whom.
//! - [`stage`]: what a scenario plays on; [`scenarios`]: all of them; [`suite`]: how they are run.
//! - [`cluster`]: three real nodes as processes; [`crowd`]: callers that never stop asking;
//!   [`kills`]: both together, while leaders are killed and told to stop.

pub mod cluster;
pub mod crowd;
pub mod driver;
pub mod kills;
pub mod ledger;
pub mod node;
pub mod protocol;
pub mod scenarios;
pub mod stage;
pub mod suite;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use driver::{Call, Driver, DriverCommand, Refusal, Settings};
pub use protocol::Fault;

/// What came of a scenario: the reason if a client does not hold the contract.
pub type Verdict = Result<(), String>;

/// How long anything may take that is expected to happen: generous, because it only matters when
/// something is broken.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks at a condition.
const POLL_PAUSE: Duration = Duration::from_millis(2);

/// Waits until `condition` holds.
///
/// # Errors
/// With `what` was waited for, after `limit`.
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

/// A thread that panicked has told its story; the others go on.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
