//! The threads, sockets and files around [`epicepoch_core`]. The core decides what may be answered,
//! promised or forgotten; this crate holds no rule of the protocol.
//!
//! The modules, from the lowest up. A module imports only modules above it in this list:
//!
//! - [`config`], [`mod@build`], [`reload`], [`faults`], [`framed`]: settings, the build of the
//!   program, files that change, the documented test switch, frames over a byte stream.
//! - [`metrics`]: the metrics of both planes.
//! - [`security`]: authorization, TLS, limits of addresses.
//! - [`lease_clock`]: the clocks of leases; [`intervals`]: interval mode of this node; [`shared`]: the state that the planes of one node share;
//!   [`admin_queue`]: commands of operators on their way to the consensus plane.
//! - [`peers`]: connections between nodes, plain or with mutual TLS.
//! - [`worker`]: the data plane: one event loop per thread; rounds, batches, confirm links.
//! - [`storage`], [`consensus`]: the data directory, and the thread that runs the replica.
//! - [`front`]: the protocols of clients, on the workers' threads.
//! - [`node`]: starts and stops one node.

mod abort;
pub mod addresses;
pub mod admin_queue;
pub mod build;
// The settings of a node, for programs that embed it.
pub use epicepoch_config as config;
pub mod consensus;
pub mod faults;
pub mod framed;
pub mod front;
pub mod intervals;
pub mod lease_clock;
pub mod metrics;
pub mod node;
pub mod peers;
pub mod reload;
pub mod security;
pub mod shared;
pub mod storage;
mod sync;
pub mod worker;

pub use config::{Config, ConfigError};
pub use node::{Node, RunError, StartError};
