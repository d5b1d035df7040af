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
    /// so at once. It is a wait by a local clock, so it cannot fail after a commit.
    fn commit_wait(&mut self);

    /// Returns the time since the run began, by one clock for all clients.
    fn now(&mut self) -> Duration;

    /// Waits for about this time.
    fn pause(&mut self, about: Duration);

    /// Writes a line of history. The line outlives the client.
    fn record(&mut self, line: &Line);

    fn plant(&self) -> Option<Plant>;
}

/// Why a call of a [`World`], or a transaction, failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WorldError {
    /// No timestamp or no reply of a store came before the deadline. The store may have executed
    /// the request. A transaction that ends with this error has not committed and never will: try
    /// again.
    #[error("{0}")]
    Unavailable(String),
    /// The reply to the commit of the primary row was lost, so the transaction may have committed.
    /// Do not repeat it: ask the primary with [`outcome_of`](crate::transaction::outcome_of).
    #[error(
        "the transaction that started at {start} may have committed ({why}). Do not repeat it \
         before its primary {primary} has told the outcome"
    )]
    Unknown { start: Timestamp, primary: String, why: String },
    /// A store violates the protocol, or the oracle failed for good. Stop the client. If it was
    /// committing, the outcome is not known.
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
