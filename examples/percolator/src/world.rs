//! All that a transaction touches. There is one world of real processes and one, in the tests, of
//! a single thread at a time whose order is drawn from a seed.

use std::time::Duration;

use epicepoch_client::Timestamp;
use thiserror::Error;

use crate::history::Line;
use crate::plant::{Plant, Purpose};
use crate::protocol::{Reply, Request};

/// Stores, oracle, time, and a place for what happened.
pub trait World {
    /// Who acts, for the record.
    fn name(&self) -> &str;

    /// Asks the store that keeps the request's row; the witness for a tick.
    ///
    /// # Errors
    /// See [`Setback`]. The request may have been carried out all the same.
    fn call(&mut self, request: Request) -> Result<Reply, Setback>;

    /// A timestamp that was asked for after this call began.
    ///
    /// # Errors
    /// See [`Setback`].
    fn timestamp(&mut self, purpose: Purpose) -> Result<Timestamp, Setback>;

    /// Lets others work for about so long.
    ///
    /// # Errors
    /// See [`Setback`].
    fn pause(&mut self, about: Duration) -> Result<(), Setback>;

    /// Writes a line of history so that it outlives this process.
    ///
    /// # Errors
    /// See [`Setback`].
    fn record(&mut self, line: &Line) -> Result<(), Setback>;

    /// Wall time, for how long things took; nothing is decided by it.
    fn now(&self) -> Duration;

    /// The mistake to make, if any.
    fn plant(&self) -> Option<Plant>;
}

/// Why the world did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Setback {
    /// Abort and try again: no timestamp before the deadline.
    #[error("{0}")]
    Unavailable(String),
    /// Stop: a store is gone, or somebody does not keep to the protocol.
    #[error("{0}")]
    Fatal(String),
    /// This client is dead, and has to leave everything as it is.
    #[error("killed")]
    Killed,
}

impl Setback {
    /// An answer that makes no sense where it came.
    pub fn unexpected(reply: &Reply) -> Self {
        Self::Fatal(format!("unexpected answer of a store: {reply:?}"))
    }
}
