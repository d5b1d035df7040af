//! Client of the timestamp oracle. It finds the leader, sends straight to it, follows it when it
//! moves, and gives up at the caller's deadline. It never returns a timestamp of another cluster,
//! one below a timestamp that it returned before the call, or anything after the deadline.
//!
//! Decisions and IO are apart: a session without sockets and clocks says whom to ask next, and a
//! thin loop in [`client`] carries that out over HTTP/1.1.
//!
//! - [`client`]: the public type, and the one place where session and transport meet.
//! - [`error`]: what can go wrong, one enum per operation.
//! - [`members`]: the cluster as a node describes it.
//! - `session`: whom to ask next, how long to wait, which answers to believe.
//! - `transport`: one request and its answer over a kept-alive HTTP/1.1 connection.

pub mod client;
pub mod error;
pub mod members;
mod session;
mod transport;

pub use client::{Client, Options, Readiness};
pub use error::{AskError, MembersError, NewClientError, Setback, TimestampsError};
pub use members::{Member, Members};

/// The README's example compiles, or its test fails.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
