//! A node that serves: it does, and never decides; the decisions are made in the core.
//!
//! - [`config`]: what a node is told before it starts, with bounds and checks.
//! - [`faults`]: the documented test switch; a release build has none.
//! - [`framed`]: peer frames over a byte stream.
//! - [`http`]: the HTTP interface of a worker.
//! - [`listener`]: the client port.
//! - [`metrics`]: what a node tells about itself.
//! - [`node`]: starts and stops one node.
//! - [`shared`]: what the planes of one node share.
//! - [`storage`]: the data directory: who it belongs to, and what must survive.
//! - [`worker`]: the data plane: requests, batches, confirm rounds, answers.

pub mod config;
pub mod faults;
pub mod framed;
pub mod http;
pub mod listener;
pub mod metrics;
pub mod node;
pub mod shared;
pub mod storage;
pub mod worker;

pub use config::{Config, ConfigError};
pub use node::{Node, RunError, StartError};
