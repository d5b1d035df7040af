//! The client side of a node, on the workers' threads: from the port to the answer.
//!
//! - [`listener`]: the client port, and the port of operators.
//! - `door`: the entry of a worker's clients.
//! - `clients`: the connections of one worker, from the first byte to the end.
//! - `sniff`: which protocol a connection speaks.
//! - `deadlines`: since when a connection is silent.
//! - `pipeline`: read, admit, join a batch, settle, answer, write.
//! - [`http1`], [`http2`], `native`: the protocols of the pipeline. [`http3`]: served by libraries.
//! - [`routes`]: the table of paths, and the service that answers all of them.

mod clients;
mod deadlines;
mod door;
pub mod http1;
pub mod http2;
pub mod http3;
pub mod listener;
mod native;
mod pipeline;
pub mod routes;
mod sniff;

pub use door::{serve_http3, spawn_workers};
