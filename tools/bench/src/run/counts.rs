//! The counts of requests and answers, and the names of failures.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::latency;

/// Requests without timestamps, by a stable name: an error code of the service, or a name in
/// [`failure`].
pub type Failures = BTreeMap<&'static str, u64>;

/// Names of failures without an error code.
pub mod failure {
    /// No connection could be opened. This counts a connection, not a request.
    pub const CONNECT: &str = "connect";
    /// The connection broke or was closed while the request was open.
    pub const LOST: &str = "lost";
    /// No answer came within the request's timeout.
    pub const TIMEOUT: &str = "timeout";
    /// The answer has a status other than 200 and no known error code.
    pub const STATUS: &str = "status";
    /// The answer is of another cluster, or of another history of the cluster.
    pub const CLUSTER: &str = "cluster";
    /// The server broke the transport's protocol, and the connection was closed. This counts a
    /// connection; its open requests count as `lost`.
    pub const PROTOCOL: &str = "protocol";
    /// The answer has other timestamps than the request asked for, or belongs to no request.
    pub const BROKEN: &str = "broken";

    /// Whether a failure of this name counts a request. Other failures count a connection.
    #[must_use]
    pub fn is_of_a_request(name: &str) -> bool {
        name != CONNECT && name != PROTOCOL
    }

    /// Share of the requests that failed, `0.0..=1.0`. It is 1 if there is no answer: without a
    /// connection, no request is sent that could fail.
    #[must_use]
    pub fn share(failed: u64, answers: u64) -> f64 {
        if answers == 0 { 1.0 } else { failed as f64 / (failed + answers) as f64 }
    }
}

/// Counts since the last call.
#[derive(Clone, Debug)]
pub struct Live {
    /// Requests that brought timestamps.
    pub answers: u64,
    /// Requests that brought no timestamps.
    pub failures: u64,
    /// Latency of the answers, nanoseconds.
    pub latency_ns: Histogram<u64>,
}

impl Live {
    pub(super) fn new() -> Self {
        Self { answers: 0, failures: 0, latency_ns: latency::histogram() }
    }

    pub(super) fn clear(&mut self) {
        self.answers = 0;
        self.failures = 0;
        self.latency_ns.reset();
    }
}

/// Bytes on the wire, warm-up included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wire {
    /// Requests sent. A redirected request counts each time that it is sent.
    pub requests: u64,
    /// Bytes sent. They include headers and framing, but nothing below TCP.
    #[serde(rename = "bytes_sent")]
    pub sent: u64,
    /// Bytes received, counted in the same way.
    #[serde(rename = "bytes_received")]
    pub received: u64,
}

impl Wire {
    /// Bytes sent and received per request; `None` for the client library, which does not count
    /// them.
    #[must_use]
    pub fn per_request(&self) -> Option<(f64, f64)> {
        let requests = self.requests.max(1) as f64;
        (self.sent > 0).then(|| (self.sent as f64 / requests, self.received as f64 / requests))
    }
}

/// The counts of one thread, or of all threads. The answers, failures and latency of a thread are
/// in its pieces ([`super::time_series`]) until they are added up.
#[derive(Clone, Debug)]
pub struct Counts {
    /// Requests that brought timestamps. Like all other counts of this type except `wire`, this one
    /// leaves out the warm-up.
    pub answers: u64,
    /// Timestamps in those answers.
    pub timestamps: u64,
    /// Answers by node id.
    pub answers_by_node: BTreeMap<u64, u64>,
    /// Requests that brought no timestamps.
    pub failures: Failures,
    /// How often a request was sent again, after a 409 or because the node had not processed it.
    /// The wait is part of its latency.
    pub redirects: u64,
    /// Open loop: requests that were due while no connection was free. The wait is part of their
    /// latency.
    pub backlogged: u64,
    /// Open loop: requests that were due and could not be sent in time.
    pub unsent: u64,
    /// Answers that were not checked, because too many requests were open or the checker was too
    /// slow.
    pub unverified: u64,
    /// Bytes on the wire.
    pub wire: Wire,
    /// Share of the time between the warm-up and the end in which the busiest thread ran or waited
    /// for a processor.
    pub busy: Option<f64>,
    /// Nanoseconds until the last byte of the answer: in an open loop from the due time, in a
    /// closed loop from the time of sending.
    pub latency_ns: Histogram<u64>,
    /// Open loop: how late the generator sent requests although a connection was free.
    pub lateness_ns: Histogram<u64>,
}

impl Counts {
    pub(super) fn new() -> Self {
        Self {
            answers: 0,
            timestamps: 0,
            answers_by_node: BTreeMap::new(),
            failures: Failures::new(),
            redirects: 0,
            backlogged: 0,
            unsent: 0,
            unverified: 0,
            wire: Wire::default(),
            busy: None,
            latency_ns: latency::histogram(),
            lateness_ns: latency::histogram(),
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.answers += other.answers;
        self.timestamps += other.timestamps;
        for (node, count) in &other.answers_by_node {
            *self.answers_by_node.entry(*node).or_default() += count;
        }
        for (name, count) in &other.failures {
            *self.failures.entry(name).or_default() += count;
        }
        self.redirects += other.redirects;
        self.backlogged += other.backlogged;
        self.unsent += other.unsent;
        self.unverified += other.unverified;
        self.busy = self.busy.into_iter().chain(other.busy).max_by(f64::total_cmp);
        self.wire.requests += other.wire.requests;
        self.wire.sent += other.wire.sent;
        self.wire.received += other.wire.received;
        self.latency_ns.add(&other.latency_ns).expect("the same bounds");
        self.lateness_ns.add(&other.lateness_ns).expect("the same bounds");
    }

    /// Failed and unsent requests. Failed connections are not requests.
    #[must_use]
    pub fn failed(&self) -> u64 {
        failed(&self.failures) + self.unsent
    }

    /// Requests that were refused with an error code.
    pub(super) fn refused(&self) -> u64 {
        refused(&self.failures)
    }
}

fn failed(failures: &Failures) -> u64 {
    let failures = failures.iter().filter(|(name, _)| failure::is_of_a_request(name));
    failures.map(|(_, count)| count).sum()
}

/// Requests that were refused with an error code.
pub(super) fn refused(failures: &Failures) -> u64 {
    let broken = failures.get(failure::BROKEN).copied().unwrap_or(0);
    failed(failures) - unknown(failures) - broken
}

/// Requests that were lost or timed out, so that no answer was read.
pub(super) fn unknown(failures: &Failures) -> u64 {
    [failure::LOST, failure::TIMEOUT].iter().filter_map(|name| failures.get(name)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_failed_is_no_request_that_failed() {
        let mut counts = Counts::new();
        let kinds = ["connect", "protocol", "lost", "timeout", "status", "broken", "OVERLOADED"];
        for (power, kind) in kinds.into_iter().enumerate() {
            counts.failures.insert(kind, 10_u64.pow(power as u32));
        }
        counts.unsent = 7;
        assert_eq!(counts.failed(), 1_111_100 + 7);
        assert_eq!(counts.refused(), 1_010_000);
        assert_eq!(failure::share(1, 3).to_bits(), 0.25_f64.to_bits());
        // Without a connection, the service counts as failed even if there are no errors.
        assert_eq!(failure::share(0, 0).to_bits(), 1_f64.to_bits());
    }
}
