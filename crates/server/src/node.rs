//! A node of the cluster: starts its planes and stops them. PLACEHOLDER that only holds the
//! shape of the entry points for the binary; it serves nothing.

use std::net::SocketAddr;
use std::sync::{Condvar, Mutex, PoisonError};

use epicepoch_wire::NodeId;
use thiserror::Error;

use crate::config::{Config, ConfigError};

/// A running node.
#[derive(Debug)]
pub struct Node {
    config: Config,
    stopping: Mutex<bool>,
    stopped: Condvar,
}

/// Why a node did not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// Correct the configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Why a node stopped by itself.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {}

impl Node {
    /// Starts the node.
    ///
    /// # Errors
    /// A configuration that does not pass its check.
    pub fn start(config: Config) -> Result<Self, StartError> {
        config.check()?;
        Ok(Self { config, stopping: Mutex::new(false), stopped: Condvar::new() })
    }

    /// Where clients reach this node on this machine.
    pub fn http_addr(&self) -> SocketAddr {
        SocketAddr::from((self.config.http_bind, self.config.http_port))
    }

    /// Asks the node to stop; returns at once.
    pub fn request_shutdown(&self) {
        *self.stopping.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stopped.notify_all();
    }

    /// Blocks until the node has stopped.
    ///
    /// # Errors
    /// None yet.
    pub fn wait(&self) -> Result<(), RunError> {
        let stopping = self.stopping.lock().unwrap_or_else(PoisonError::into_inner);
        let stopped = self.stopped.wait_while(stopping, |stopping| !*stopping);
        drop(stopped.unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }

    /// Whether this node leads and may serve.
    pub fn is_leader(&self) -> bool {
        self.config.peers.keys().next() == Some(&self.config.node_id)
    }

    /// Asks this leader to hand leadership to `_target`.
    pub fn transfer_leader_to(&self, _target: NodeId) {}
}
