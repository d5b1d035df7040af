//! A node that serves: it does, and never decides; the decisions are made in the core.
//!
//! - [`config`]: what a node is told before it starts, with bounds and checks.
//! - [`faults`]: the documented test switch; a release build has none.
//! - [`framed`]: peer frames over a byte stream.
//! - [`node`]: starts and stops one node.
//! - [`shared`]: what the planes of one node share.
//! - [`storage`]: the data directory: who it belongs to, and what must survive.

pub mod config;
pub mod faults;
pub mod framed;
pub mod node;
pub mod shared;
pub mod storage;

pub use config::{Config, ConfigError};
pub use node::{Node, RunError, StartError};
