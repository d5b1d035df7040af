//! The metrics of a node. Their cells are written where events happen and read at a scrape. Nothing
//! is formatted on the request path. No decision depends on a cell.
//!
//! - [`cell`]: counts and histograms.
//! - [`worker`]: the metrics of one worker.
//! - [`consensus`]: the metrics of the consensus plane.
//! - [`peers`]: what the consensus plane last saw of the other members.
//! - [`hiccup`]: the meter of the machine's stalls.
//! - `process`: what the operating system says about this process.

use std::sync::Arc;
use std::time::SystemTime;

pub mod cell;
pub mod consensus;
pub mod hiccup;
pub mod peers;
pub(crate) mod process;
pub mod worker;

use cell::Count;
use consensus::ConsensusMetrics;
use hiccup::Hiccups;
use worker::WorkerMetrics;

/// The metrics of a node.
#[derive(Debug)]
pub struct Metrics {
    workers: Vec<WorkerMetrics>,
    /// The metrics of the consensus plane.
    pub consensus: ConsensusMetrics,
    /// The stalls of the machine.
    pub hiccups: Arc<Hiccups>,
    /// Client connections that were accepted.
    pub(crate) connections_accepted: Count,
    /// Client connections that were closed when they were accepted, by reason.
    connections_refused: [Count; ConnectionRefusal::ALL.len()],
    /// Accepts of clients and peers that failed, because descriptors or memory were missing.
    pub(crate) accept_failures: Count,
    /// When the node was started, wall time. Never changes, also if the clock is set.
    pub(crate) started: SystemTime,
}

impl Metrics {
    /// Empty metrics for a node with `workers` workers.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        let workers = (0..workers).map(|_| WorkerMetrics::default()).collect();
        Self {
            workers,
            consensus: ConsensusMetrics::default(),
            hiccups: Arc::default(),
            connections_accepted: Count::default(),
            connections_refused: Default::default(),
            accept_failures: Count::default(),
            started: SystemTime::now(),
        }
    }

    /// The metrics of worker `worker`; the first is 0.
    ///
    /// # Panics
    /// When there is no such worker.
    pub(crate) fn worker(&self, worker: usize) -> &WorkerMetrics {
        &self.workers[worker]
    }

    /// The metrics of all workers.
    pub(crate) fn workers(&self) -> &[WorkerMetrics] {
        &self.workers
    }

    /// How many client connections were closed for this reason when they were accepted.
    pub(crate) fn connections_refused(&self, refusal: ConnectionRefusal) -> u64 {
        self.connections_refused[refusal as usize].load()
    }

    /// Counts a client connection that was closed when it was accepted.
    pub(crate) fn count_connection_refused(&self, refusal: ConnectionRefusal) {
        self.connections_refused[refusal as usize].add(1);
    }
}

/// Why a client's connection is closed when it is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ConnectionRefusal {
    /// The node has `CONNECTIONS_MAX` connections.
    All,
    /// The client's address has `ADDRESS_CONNECTIONS_MAX` connections.
    Address,
    /// The remaining descriptors are reserved for peers and storage.
    Descriptors,
    /// The worker's mailbox is full, or the worker is ending.
    Worker,
}

impl ConnectionRefusal {
    pub(crate) const ALL: [Self; 4] = [Self::All, Self::Address, Self::Descriptors, Self::Worker];

    /// The value of the metric's label.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Address => "address",
            Self::Descriptors => "descriptors",
            Self::Worker => "worker",
        }
    }
}
