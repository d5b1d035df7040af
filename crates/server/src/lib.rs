//! Does, never decides: the threads, sockets and files around [`epicepoch_core`]. What may be
//! answered, promised or forgotten is decided there; nothing here holds a rule of the protocol.
//!
//! - [`config`]: what a node is told before it starts, with bounds and checks.
//! - [`node`]: starts and stops one node.
//! - [`shared`]: what the planes of one node share.
//! - [`storage`]: the data directory: who it belongs to, and what must survive.
//! - [`framed`]: peer frames over a byte stream.
//! - [`faults`]: the documented test switch; a release build has none.

pub mod config;
pub mod faults;
pub mod framed;
pub mod node;
pub mod shared;
pub mod storage;

pub use config::{Config, ConfigError};
pub use node::{Node, RunError, StartError};
