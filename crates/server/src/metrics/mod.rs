//! What a node tells about itself at `/metrics`. Cells are written where things happen and
//! folded when somebody asks: nothing is formatted on the request path. Metrics inform people;
//! no decision reads one.
//!
//! - [`cell`]: counts and histograms.
//! - [`worker`]: the cells of one worker.
//! - [`consensus`]: the cells of the consensus plane.
//! - `text`: the names, the help texts, the fold.

use std::sync::Arc;

use prometheus_client::registry::Registry;

use crate::hiccup::Hiccups;
use crate::shared::NodeShared;

pub mod cell;
pub mod consensus;
mod text;
pub mod worker;

use cell::Count;
use consensus::ConsensusMetrics;
use worker::WorkerMetrics;

/// Everything that a node counts.
#[derive(Debug)]
pub struct Metrics {
    shared: Arc<NodeShared>,
    workers: Vec<WorkerMetrics>,
    /// The consensus plane's cells.
    pub consensus: ConsensusMetrics,
    /// The hiccup meter's cells.
    pub hiccups: Hiccups,
    /// Client connections accepted.
    pub(crate) connections_accepted: Count,
    /// Client connections closed at once, by reason.
    connections_refused: [Count; ConnectionRefusal::ALL.len()],
    /// Times that the listener could not accept, for want of descriptors or memory.
    pub(crate) accept_failures: Count,
}

impl Metrics {
    /// Empty cells for a node and its workers.
    #[must_use]
    pub fn new(shared: Arc<NodeShared>) -> Self {
        let workers = (0..shared.config.workers).map(|_| WorkerMetrics::default()).collect();
        Self {
            shared,
            workers,
            consensus: ConsensusMetrics::default(),
            hiccups: Hiccups::default(),
            connections_accepted: Count::default(),
            connections_refused: Default::default(),
            accept_failures: Count::default(),
        }
    }

    /// The cells of worker `worker`, counted from 0.
    ///
    /// # Panics
    /// When there is no such worker.
    pub(crate) fn worker(&self, worker: usize) -> &WorkerMetrics {
        &self.workers[worker]
    }

    /// Counts a client connection that was closed at once.
    pub(crate) fn count_connection_refused(&self, refusal: ConnectionRefusal) {
        self.connections_refused[refusal as usize].add(1);
    }

    /// The text that a Prometheus server scrapes, in the `OpenMetrics` format.
    #[must_use]
    pub fn render(self: &Arc<Self>) -> String {
        let mut registry = Registry::with_prefix("epicepoch");
        registry.register_collector(Box::new(text::Scrape(self.clone())));
        let mut text = String::with_capacity(TEXT_LEN_EXPECTED);
        // Writing to a string does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
        text
    }
}

/// Why a client's connection is closed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ConnectionRefusal {
    /// `CONNECTIONS_MAX`.
    All,
    /// `ADDRESS_CONNECTIONS_MAX`.
    Address,
    /// The descriptors that are left are those of peers and storage.
    Descriptors,
    /// The worker is full, or ends.
    Worker,
}

impl ConnectionRefusal {
    pub(crate) const ALL: [Self; 4] = [Self::All, Self::Address, Self::Descriptors, Self::Worker];

    /// The value of the label.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Address => "address",
            Self::Descriptors => "descriptors",
            Self::Worker => "worker",
        }
    }
}

/// The media type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Bytes of a scrape, about.
const TEXT_LEN_EXPECTED: usize = 24 << 10;
