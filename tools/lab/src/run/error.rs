//! Why a run has no outcome, and times of a topology.

use std::io;
use std::time::Duration;

use epicepoch_link::{FrontError, StartError};
use thiserror::Error;

/// Why a run has no outcome.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LabError {
    /// The run was told to stop.
    #[error("stopped")]
    Stopped,
    /// The settings of the file are refused by the nodes, or no setting suits the links. The same
    /// file fails again.
    #[error("{0}")]
    Settings(String),
    /// The system refuses a file, a process or a port.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// A proxy cannot be started.
    #[error(transparent)]
    Proxy(#[from] StartError),
    /// A proxy cannot listen.
    #[error(transparent)]
    Front(#[from] FrontError),
    /// Namespaces or the kernel's delays cannot be set up.
    #[error("--links netns: {0}")]
    Netns(String),
    /// A node ended, or did not do what it should within the time.
    #[error("{0}")]
    Node(String),
    /// Links are not as asked, so nothing was measured.
    #[error(
        "links are not as asked, so nothing was measured: {0}. Is the machine busy with other work?"
    )]
    Links(String),
}

/// A time in milliseconds, at most an hour.
pub(super) fn millis(ms: f64) -> Duration {
    Duration::from_secs_f64((ms / 1e3).clamp(0.0, 3600.0))
}
