//! Client of the timestamp oracle. It finds the leader, sends straight to it, follows it when it
//! moves, and gives up at the caller's deadline. It never returns a timestamp of another cluster,
//! one below a timestamp that it returned before the call, or anything after the deadline.
//!
//! Calls that wait at the same time share a request; a call never joins a request that was sent,
//! whose timestamps may have been taken before it began.
//!
//! For `tracing` there is a span `connection` for each connection to a leader and, inside of it, a
//! span `request` for each request (its id, callers, timestamps and outcome), at level debug. A
//! call has none. Where nobody subscribes, one caller's calls took as many instructions with them
//! as before they came: 6,401 and 6,406 each, counted by callgrind.
//!
//! Decisions and IO are apart: a session without sockets and clocks says whom to ask next, and thin
//! loops carry that out.
//!
//! - [`client`]: the public type.
//! - [`blocking`]: the same for threads that block.
//! - [`error`]: what can go wrong, one enum per operation.
//! - [`members`]: the cluster as a node describes it.
//! - [`observer`]: hooks for metrics.
//! - [`token`]: a token that may change under a running client.
//! - [`tls`]: whom a client trusts, and what it shows.
//! - [`dial`]: connections to nodes, for what speaks a protocol of its own.
//! - [`wall_time`]: timestamps and `SystemTime`.
//! - `session`: whom to ask next, how long to wait, which answers to believe.
//! - `waiters`: who waits for what, and the requests that callers share.
//! - `driver`: where session, waiters and a native connection meet; `link`: that connection.
//! - `transport`: one request and its answer over a kept-alive HTTP/1.1 connection.

pub mod blocking;
pub mod client;
pub mod dial;
mod driver;
pub mod error;
mod link;
pub mod members;
pub mod observer;
mod session;
pub mod tls;
pub mod token;
mod transport;
mod waiters;
pub mod wall_time;

pub use client::{Client, Options, Readiness, Via};
pub use epicepoch_wire::native::Token;
pub use epicepoch_wire::{Epoch, EpochIndex, Timestamp, TimestampRange};
pub use error::{
    AskError, BadAnswer, ConnectError, MembersError, NewClientError, Setback, TimestampsError,
};
pub use members::{Member, Members};
pub use observer::Observer;
pub use tls::{Tls, TlsError};
pub use token::TokenSource;

/// The README's example compiles, or its test fails.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
