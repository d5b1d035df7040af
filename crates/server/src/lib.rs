//! A node that serves: it does, and never decides; the decisions are made in the core.
//!
//! - [`config`]: what a node is told before it starts, with bounds and checks.
//! - [`node`]: starts and stops one node.
//! - [`shared`]: what the planes of one node share.

pub mod config;
pub mod node;
pub mod shared;

pub use config::{Config, ConfigError};
pub use node::{Node, RunError, StartError};
