//! HTTP/3 on the workers' threads, with the same paths, batches and rounds as over TCP. Each worker
//! has its own endpoint and its own socket of the same UDP port. So the thread that received a
//! datagram also answers the request ([decision 20](../../../../../docs/decisions/0020-http3.md)).
//! This module holds no timestamp and decides nothing about one. 0-RTT is off, because anyone who
//! saw its data could send them again.
//!
//! - `endpoint`: which clients may connect, and when a client must prove its address first.
//! - `serving`: one connection, its requests, and how it ends.
//! - `streams`: QUIC's streams as HTTP/3 sees them, with limits on their bytes.
//! - `control`: the length limit of control frames.
//! - `limits`: how much memory a client may hold, and for how long.
//! - `runtime`: the tasks of the QUIC library, paced so that peers come first.

pub mod control;
pub mod endpoint;
pub mod limits;
mod runtime;
mod serving;
mod streams;
