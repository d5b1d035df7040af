//! What a transaction uses: stores, oracle, time, and a record. [`crate::run`] uses a real oracle
//! and real time. The tests have another implementation, which runs one client at a time, in an
//! order that comes from a seed.

use std::time::Duration;

use epicepoch_client::Timestamp;
use thiserror::Error;

use crate::history::Line;
use crate::plant::Plant;
use crate::protocol::{Reply, Request};

/// Stores, oracle, time, and a record of transactions.
pub trait World {
    fn name(&self) -> &str;

    /// Sends a request to the store of its row.
    fn call(&mut self, request: Request) -> Result<Reply, WorldError>;

    /// Returns a timestamp that was requested after this call began.
    fn timestamp(&mut self) -> Result<Timestamp, WorldError>;

    /// Waits until this client's last timestamp is in the past everywhere: every later call of
    /// [`timestamp`](Self::timestamp), of any client, returns a higher one. In quorum mode this is
    /// so at once.
    fn commit_wait(&mut self) -> Result<(), WorldError>;

    /// Returns the time since the run began, by one clock for all clients.
    fn now(&mut self) -> Duration;

    /// Waits for about this time.
    fn pause(&mut self, about: Duration) -> Result<(), WorldError>;

    /// Writes a line of history. The line outlives the client.
    fn record(&mut self, line: &Line) -> Result<(), WorldError>;

    fn plant(&self) -> Option<Plant>;
}

/// Why a call of a [`World`] failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WorldError {
    /// No timestamp came before the deadline. Abort the transaction and try again.
    #[error("{0}")]
    Unavailable(String),
    /// A store violates the protocol, or the oracle failed for good. Stop the client.
    #[error("{0}")]
    Fatal(String),
    /// This client is dead and must leave everything as it is.
    #[error("killed")]
    Killed,
}

impl WorldError {
    /// An error for a reply that makes no sense for its request.
    pub fn unexpected(reply: &Reply) -> Self {
        Self::Fatal(format!("unexpected answer of a store: {reply:?}"))
    }
}
