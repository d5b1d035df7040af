//! What a report says about the measured nodes and the wire, as it is kept. Times are
//! nanoseconds.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::run::{Measurement, NodeReport, Wire};

/// What went over the wire, warm-up included; all 0 over the client library, which does not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireRecord {
    /// Requests sent; one that was redirected was sent more than once.
    pub requests: u64,
    /// Bytes sent, headers and all that the transport adds included, nothing below TCP.
    pub bytes_sent: u64,
    /// Bytes received, the same way.
    pub bytes_received: u64,
}

impl WireRecord {
    pub(crate) fn new(wire: &Wire) -> Self {
        let Wire { requests, sent, received } = *wire;
        if wire.per_request().is_none() {
            return Self::default();
        }
        Self { requests, bytes_sent: sent, bytes_received: received }
    }

    /// Adds what another generator has sent and received.
    pub(crate) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
    }

    /// Bytes sent and received for each request, if they were counted.
    #[must_use]
    pub fn per_request(&self) -> Option<(f64, f64)> {
        let Self { requests, bytes_sent: sent, bytes_received: received } = *self;
        Wire { requests, sent, received }.per_request()
    }
}

/// What the process of one or more measured nodes told about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Ids of the nodes in it.
    #[serde(rename = "nodeIDs")]
    pub ids: Vec<u64>,
    /// Process id, as its machine counts.
    pub pid: u32,
    /// Processors that it kept busy.
    pub cores: f64,
    /// Processor time for each answer.
    pub cpu_per_answer_ns: u64,
    /// Median stall of its machine; as the others an upper bound, because nodes count in buckets.
    pub hiccup_p50_ns: u64,
    /// 99th percentile.
    pub hiccup_p99_ns: u64,
    /// 99.9th percentile.
    pub hiccup_p999_ns: u64,
    /// The longest.
    pub hiccup_max_ns: u64,
}

impl NodeRecord {
    pub(crate) fn new(run: &Measurement, node: &NodeReport) -> Self {
        let stall = |share| nanos(node.hiccup(share));
        Self {
            ids: node.ids.clone(),
            pid: node.pid,
            // Short enough that reading it back gives the same number.
            cores: (node.cores() * 1e6).round() / 1e6,
            cpu_per_answer_ns: nanos(run.node_cpu_per_request(node)),
            hiccup_p50_ns: stall(0.5),
            hiccup_p99_ns: stall(0.99),
            hiccup_p999_ns: stall(0.999),
            hiccup_max_ns: nanos(node.hiccup_max),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
