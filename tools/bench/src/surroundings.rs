//! The measured nodes, the wire and the machine's floor in a report. Times are nanoseconds.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::encoded::Times;
use crate::floor::Floor;
use crate::run::{Measurement, NodeReport, Wire};

/// Bytes on the wire, warm-up included. All are 0 for the client library, which does not count
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireRecord {
    /// Requests sent. A redirected request counts each time that it is sent.
    pub requests: u64,
    /// Bytes sent. They include headers and framing, but nothing below TCP.
    pub bytes_sent: u64,
    /// Bytes received, counted in the same way.
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

    /// Adds the bytes of another generator.
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

/// The report of a process with one or more measured nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Ids of the nodes in the process.
    #[serde(rename = "nodeIDs")]
    pub ids: Vec<u64>,
    /// Process id on its machine.
    pub pid: u32,
    /// Average number of processors that the process kept busy.
    pub cores: f64,
    /// Processor time for each answer.
    pub cpu_per_answer_ns: u64,
    /// Median stall of the machine. This and the other stalls are upper bounds, because nodes count
    /// them in buckets.
    pub hiccup_p50_ns: u64,
    /// 99th percentile of the stalls.
    pub hiccup_p99_ns: u64,
    /// 99.9th percentile of the stalls.
    pub hiccup_p999_ns: u64,
    /// The longest stall.
    pub hiccup_max_ns: u64,
}

impl NodeRecord {
    pub(crate) fn new(run: &Measurement, node: &NodeReport) -> Self {
        let stall = |share| nanos(node.hiccup(share));
        Self {
            ids: node.ids.clone(),
            pid: node.pid,
            // Rounded, so that reading it back gives the same number.
            cores: (node.cores() * 1e6).round() / 1e6,
            cpu_per_answer_ns: nanos(run.node_cpu_per_request(node)),
            hiccup_p50_ns: stall(0.5),
            hiccup_p99_ns: stall(0.99),
            hiccup_p999_ns: stall(0.999),
            hiccup_max_ns: nanos(node.hiccup_max),
        }
    }
}

/// What the machine itself can do. [`Floor`] explains the figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FloorRecord {
    /// Round trips while both ends sleep.
    pub echo_sleeping_ns: Times,
    /// Round trips while both ends spin.
    pub echo_spinning_ns: Times,
    /// Echoes per second with one message per system call.
    pub echo_rate_plain: f64,
    /// Echoes per second with many messages per system call.
    pub echo_rate_pipelined: f64,
    /// The pipelined rate with the message sizes of the native protocol.
    pub frame_rate_pipelined: f64,
    /// Time of a write of 4 KiB and its fsync.
    pub fsync_ns: Times,
    /// Time of one clock reading.
    pub clock_read_ns: u64,
    /// Time to wake a sleeping thread.
    pub wake_ns: Times,
}

impl FloorRecord {
    /// The record of a measurement.
    #[must_use]
    pub fn new(floor: &Floor) -> Self {
        Self {
            echo_sleeping_ns: Times(floor.echo_sleeping_ns.clone()),
            echo_spinning_ns: Times(floor.echo_spinning_ns.clone()),
            echo_rate_plain: floor.rate_plain,
            echo_rate_pipelined: floor.rate_pipelined,
            frame_rate_pipelined: floor.rate_frames,
            fsync_ns: Times(floor.fsync_ns.clone()),
            clock_read_ns: nanos(floor.clock),
            wake_ns: Times(floor.wake_ns.clone()),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
