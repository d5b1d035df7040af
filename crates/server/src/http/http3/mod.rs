//! HTTP/3 on the workers' threads: the same paths, batches and rounds as over TCP. Each worker has a
//! socket of the same UDP port and an endpoint of its own, so that a request is answered on the
//! thread that received its datagram ([decision 20](../../../../../docs/decisions/0020-http3.md)).
//! It holds no timestamp and decides nothing about one. There is no 0-RTT: what it carries can be
//! sent again by anybody who saw it.
//!
//! - `endpoint`: who may begin a connection, and when he has to prove his address first.
//! - `serving`: one connection, its requests, and how it ends.
//! - `streams`: QUIC's streams as HTTP/3 sees them, with limits on what they bring.
//! - `control`: how long control frames say that they are.
//! - `limits`: what a client may hold and how long.
//! - `runtime`: QUIC's own tasks, paced so that peers come first.

pub mod control;
pub mod endpoint;
pub mod limits;
mod runtime;
mod serving;
mod streams;
