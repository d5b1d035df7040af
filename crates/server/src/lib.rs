//! Does, never decides: the threads, sockets and files around [`epicepoch_core`]. What may be
//! answered, promised or forgotten is decided there; nothing here holds a rule of the protocol.
//!
//! - [`config`]: what a node is told before it starts, with bounds and checks.
//! - [`node`]: starts and stops one node.
//! - [`shared`]: what the planes of one node share.
//! - [`worker`]: the data plane: one event loop per thread; rounds, batches, confirm links.
//! - [`http`]: what clients see, on the workers' threads.
//! - `native`: the native protocol, on the workers' threads and the same port.
//! - `outbox`: answers of one connection that wait to be written.
//! - [`listener`]: the client port; `origins`: where clients come from.
//! - [`consensus`]: the thread that runs the replica, its peers' links and their clocks.
//! - [`storage`]: the data directory: who it belongs to, and what must survive.
//! - [`tls`]: TLS on the client port, and certificates that are kept up to date.
//! - [`framed`]: peer frames over a byte stream.
//! - [`rights`]: who may do what.
//! - [`peers`]: connections between nodes, plain or with mutual TLS.
//! - [`reload`]: files that change under a running node.
//! - [`metrics`]: what both planes count, as Prometheus reads it.
//! - [`hiccup`]: by how much the machine stalls.
//! - [`faults`]: the documented test switch; a release build has none.

mod abort;
pub mod config;
pub mod consensus;
pub mod faults;
pub mod framed;
pub mod hiccup;
pub mod http;
pub mod listener;
pub mod metrics;
mod native;
pub mod node;
mod origins;
mod outbox;
pub mod peers;
pub mod reload;
pub mod rights;
pub mod shared;
pub mod storage;
mod sync;
pub mod tls;
pub mod worker;

pub use config::{Config, ConfigError};
pub use node::{Node, RunError, StartError};
