//! The native protocol of a worker (`docs/protocol.md`): fixed-size frames, as many requests in
//! flight as a connection allows, and no memory taken per request once buffers have grown. It
//! holds no timestamp and no proof: requests join the batches of the worker's sequencer, beside
//! those of HTTP, and the requests of one read join as one run.
//!
//! - `connection`: one client's connection: reads, answers, limits, how it ends.
//! - `greeting`: who may connect, and what they are told.
//! - `answers`: answers as bytes.

mod answers;
pub(crate) mod connection;
mod greeting;
