//! Client of the timestamp oracle. It finds the leader, sends requests straight to it, follows it
//! when it changes, and gives up at the caller's deadline. It never returns a timestamp of another
//! cluster. It returns no timestamp after the deadline. It never returns a timestamp below one that
//! it returned before the call began.
//!
//! Calls that wait at the same time share a request. A call never joins a request that was sent
//! already, because the timestamps of that request may have been allocated before the call began.
//!
//! The client has spans for `tracing`, at level debug: `connection` for each connection to a leader
//! and, inside it, `request` for each request (id, callers, timestamps, outcome). A call has no
//! span. Without a subscriber the spans cost nothing: a call took 6,401 instructions with them and
//! 6,406 without, counted by callgrind.
//!
//! Decisions are separate from IO. A session, which has no sockets and no clock, makes the
//! decisions. Thin loops carry them out.
//!
//! - [`client`]: the public type.
//! - [`blocking`]: the blocking client.
//! - [`error`]: the errors, one enum per operation.
//! - [`intervals`]: interval mode: timestamps from any node, and the wait that puts them in order.
//! - [`members`]: the cluster as a node describes it.
//! - [`observer`]: hooks for metrics.
//! - [`token`]: a token that may change while a client runs.
//! - [`tls`]: the authorities that a client trusts, and its certificate.
//! - [`dial`]: connections to nodes.
//! - `race`: one connection to a host of several addresses.
//! - `resolver`: lookups of names, which attempts to connect share.
//! - [`wall_time`]: timestamps and `SystemTime`.
//! - [`session`]: the decisions over the native protocol: which node to ask, what to send and when
//!   to send it again, and which caller gets which part of an answer. For drivers with their own
//!   IO, such as the simulator's.
//! - `waiters`: the waiting callers and the batches that they share.
//! - `pursuit`: the decisions of one call over HTTP.
//! - `directory`: what a client knows of its cluster.
//! - `driver`: the task that carries out a session; `link`: one native connection.
//! - `clock`: the clock of a client.
//! - `transport`: requests over HTTP, and idle connections; `connection`: one HTTP/1.1 connection.

pub mod blocking;
pub mod client;
mod clock;
mod connection;
pub mod dial;
mod directory;
mod driver;
pub mod error;
pub mod intervals;
mod link;
pub mod members;
pub mod observer;
mod pursuit;
mod race;
mod resolver;
pub mod session;
pub mod tls;
pub mod token;
mod transport;
mod waiters;
pub mod wall_time;

pub use client::{Client, Options, Readiness, Via};
pub use epicepoch_wire::http::ErrorCode;
pub use epicepoch_wire::native::Token;
pub use epicepoch_wire::{
    Epoch, EpochIndex, Guarantee, NodeId, Timestamp, TimestampFormat, TimestampRange,
};
pub use error::{
    AskError, BadAnswer, ConnectError, FailedAttempt, MembersError, NewClientError, OpenError,
    TimestampsError,
};
pub use intervals::{Interval, IntervalError};
pub use members::{Build, Member, Members};
pub use observer::Observer;
pub use tls::{Tls, TlsError};
pub use token::TokenSource;

/// Compiles the example of the crate's own page as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Page;
