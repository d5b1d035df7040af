//! The metrics of one worker. Only that worker's thread writes them. A scrape adds up the metrics
//! of all workers.

use epicepoch_core::confirm::RoundFailure;
use epicepoch_wire::http::ErrorCode;

use super::cell::{Count, Histogram};

/// The metrics of one worker. They share no cache line with those of another worker.
#[derive(Debug)]
#[repr(align(128))]
pub struct WorkerMetrics {
    /// Answers by path and HTTP status.
    pub(crate) answers: [[Count; STATUSES.len()]; PathLabel::ALL.len()],
    /// Refusals by error code, in the order of [`ErrorCode::ALL`]. Requests over the rate of their
    /// address are not among them.
    pub(crate) refusals: [Count; ErrorCode::ALL.len()],
    /// Requests of the native protocol that got timestamps.
    pub(crate) native_answers: Count,
    /// Requests of the native protocol that were refused.
    pub(crate) native_refusals: Count,
    /// Connections of the native protocol that are open now.
    pub(crate) native_connections: Count,
    /// Requests that were refused because their address exceeded its rate.
    pub(crate) requests_over_rate: Count,
    /// Timestamps given to clients.
    pub(crate) timestamps: Count,
    /// Requests that wait for a round now.
    pub(crate) waiting: Count,
    /// Time from the arrival of a batch's first request to the start of its round, counted once per
    /// request.
    pub(crate) waiting_ns: Histogram,
    /// Time from the start of a round to its confirmation, counted once per request.
    pub(crate) confirm_ns: Histogram,
    /// Time to allocate the timestamps of a batch, counted once per request.
    pub(crate) allocate_ns: Histogram,
    /// Time from the allocation of a batch until its answers were written, counted once per
    /// request.
    pub(crate) write_ns: Histogram,
    /// Requests per batch.
    pub(crate) batch_size: Histogram,
    /// Batches that a round has proved.
    pub(crate) proved_by_round: Count,
    /// Batches that a lease has proved.
    pub(crate) proved_by_lease: Count,
    /// Rounds that were begun, including the empty rounds of the probe.
    pub(crate) rounds_begun: Count,
    /// Rounds that a quorum confirmed.
    pub(crate) rounds_confirmed: Count,
    /// Rounds that failed, in the order of [`FAILURES`].
    pub(crate) rounds_failed: [Count; FAILURES.len()],
    /// Confirms from other nodes that this worker answered with yes.
    pub(crate) confirms_yes: Count,
    /// Confirms from other nodes that this worker answered with no.
    pub(crate) confirms_no: Count,
    /// Confirm links to other members that are connected now.
    pub(crate) links: Count,
    /// Confirms that were sent over a sibling worker's link.
    pub(crate) confirms_borrowed: Count,
    /// Rounds that asked further voters, because an answer was late or a no.
    pub(crate) rounds_widened: Count,
    /// Requests that were sent on to the leader, in the order of [`FORWARDED`].
    pub(crate) forwarded: [Count; FORWARDED.len()],
    /// Time from the arrival of the first request of a frame to the leader until the answer, counted
    /// once per request.
    pub(crate) forward_ns: Histogram,
    /// Requests per frame to the leader.
    pub(crate) forward_size: Histogram,
    /// Client connections that are open now.
    pub(crate) connections: Count,
    /// HTTP/2 client connections that were closed for abuse, by kind of abuse.
    http2_abuse: [Count; Abuse::ALL.len()],
    /// HTTP/3 connections that are open now.
    pub(crate) http3_connections: Count,
    /// HTTP/3 clients that were disconnected for abuse.
    pub(crate) http3_abusers_closed: Count,
    /// QUIC handshakes that failed.
    pub(crate) quic_handshakes_failed: Count,
    /// QUIC clients that had to prove their address first.
    pub(crate) quic_retries: Count,
    /// QUIC clients that were refused.
    pub(crate) quic_refusals: Count,
    /// Client connections that were closed because they were idle or stuck.
    pub(crate) connections_idle_closed: Count,
    /// TLS handshakes of clients that succeeded.
    pub(crate) handshakes_completed: Count,
    /// TLS handshakes of clients that failed, timed out, or gave way to other handshakes.
    pub(crate) handshakes_failed: Count,
    /// Client connections that were refused because they do not use TLS.
    pub(crate) plain_refused: Count,
}

impl Default for WorkerMetrics {
    fn default() -> Self {
        Self {
            answers: Default::default(),
            refusals: Default::default(),
            native_answers: Count::default(),
            native_refusals: Count::default(),
            native_connections: Count::default(),
            requests_over_rate: Count::default(),
            timestamps: Count::default(),
            waiting: Count::default(),
            waiting_ns: Histogram::of_durations(),
            confirm_ns: Histogram::of_durations(),
            allocate_ns: Histogram::of_durations(),
            write_ns: Histogram::of_durations(),
            batch_size: Histogram::of_sizes(),
            proved_by_round: Count::default(),
            proved_by_lease: Count::default(),
            rounds_begun: Count::default(),
            rounds_confirmed: Count::default(),
            rounds_failed: Default::default(),
            confirms_yes: Count::default(),
            confirms_no: Count::default(),
            links: Count::default(),
            confirms_borrowed: Count::default(),
            rounds_widened: Count::default(),
            forwarded: Default::default(),
            forward_ns: Histogram::of_durations(),
            forward_size: Histogram::of_sizes(),
            connections: Count::default(),
            http2_abuse: Default::default(),
            http3_connections: Count::default(),
            http3_abusers_closed: Count::default(),
            quic_handshakes_failed: Count::default(),
            quic_retries: Count::default(),
            quic_refusals: Count::default(),
            connections_idle_closed: Count::default(),
            handshakes_completed: Count::default(),
            handshakes_failed: Count::default(),
            plain_refused: Count::default(),
        }
    }
}

impl WorkerMetrics {
    /// Counts an answer.
    pub(crate) fn count_answer(&self, path: PathLabel, status: u16) {
        self.count_answers(path, status, 1);
    }

    /// Counts answers with one status.
    pub(crate) fn count_answers(&self, path: PathLabel, status: u16, answers: u64) {
        if let Some(position) = STATUSES.iter().position(|known| *known == status) {
            self.answers[path as usize][position].add_alone(answers);
        }
    }

    /// Counts a refusal.
    pub(crate) fn count_refusal(&self, code: ErrorCode) {
        self.count_refusals(code, 1);
    }

    /// Counts refusals with one code.
    pub(crate) fn count_refusals(&self, code: ErrorCode, refusals: u64) {
        if let Some(position) = ErrorCode::ALL.iter().position(|known| *known == code) {
            self.refusals[position].add_alone(refusals);
        }
    }

    /// Counts a client that was disconnected for abuse.
    pub(crate) fn count_abuse(&self, abuse: Abuse) {
        self.http2_abuse[abuse as usize].add_alone(1);
    }

    /// How many clients were disconnected for this abuse.
    pub(crate) fn abuses(&self, abuse: Abuse) -> &Count {
        &self.http2_abuse[abuse as usize]
    }

    /// Counts a failed round.
    pub(crate) fn count_failure(&self, failure: RoundFailure) {
        if let Some(position) = FAILURES.iter().position(|(known, _)| *known == failure) {
            self.rounds_failed[position].add_alone(1);
        }
    }
}

/// The HTTP statuses that a node answers with: 200, 303 for a browser that asks for `/`, and those
/// of [`ErrorCode::status`].
pub(crate) const STATUSES: [u16; 12] = [200, 303, 400, 401, 403, 404, 405, 409, 422, 500, 503, 504];

/// The reasons why rounds fail, and their labels.
pub(crate) const FAILURES: [(RoundFailure, &str); 3] = [
    (RoundFailure::Deposed, "deposed"),
    (RoundFailure::TimedOut, "timed_out"),
    (RoundFailure::GrantLost, "grant_lost"),
];

/// What became of requests that were sent on to the leader: the label.
pub(crate) const FORWARDED: [&str; 3] = ["answered", "refused", "sent_again"];

/// The path of a request as a label. The path that a client sends is never a label, because clients
/// can invent any number of paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PathLabel {
    Timestamp,
    Latest,
    Interval,
    Up,
    Ready,
    Leader,
    Members,
    Metrics,
    Status,
    Page,
    Admin,
    Grpc,
    Other,
}

impl PathLabel {
    pub(crate) const ALL: [Self; 13] = [
        Self::Timestamp,
        Self::Latest,
        Self::Interval,
        Self::Up,
        Self::Ready,
        Self::Leader,
        Self::Members,
        Self::Metrics,
        Self::Status,
        Self::Page,
        Self::Admin,
        Self::Grpc,
        Self::Other,
    ];

    /// The value of the metric's label.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Timestamp => "timestamp",
            Self::Latest => "latest",
            Self::Interval => "interval",
            Self::Up => "up",
            Self::Ready => "ready",
            Self::Leader => "leader",
            Self::Members => "members",
            Self::Metrics => "metrics",
            Self::Status => "status",
            Self::Page => "page",
            Self::Admin => "admin",
            Self::Grpc => "grpc",
            Self::Other => "other",
        }
    }
}

/// Why an HTTP/2 client was disconnected for abuse. Most reasons name the kind of frame of which
/// the client sent too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Abuse {
    /// Requests whose answers the client did not read.
    Requests,
    /// DATA frames.
    Data,
    /// `RST_STREAM` frames: cancelled requests.
    Resets,
    /// SETTINGS frames.
    Settings,
    /// PING frames.
    Pings,
    /// `WINDOW_UPDATE` frames.
    Windows,
    /// CONTINUATION frames.
    Continuations,
    /// Frames of other kinds.
    Other,
    /// The client exceeded a limit of the session. The connection ended with `ENHANCE_YOUR_CALM`.
    Calm,
    /// The client sent a frame that the protocol forbids, or bytes that are not a frame.
    Protocol,
}

impl Abuse {
    /// All values, for tables.
    pub const ALL: [Self; 10] = [
        Self::Requests,
        Self::Data,
        Self::Resets,
        Self::Settings,
        Self::Pings,
        Self::Windows,
        Self::Continuations,
        Self::Other,
        Self::Calm,
        Self::Protocol,
    ];

    /// The value of the metric's label.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Data => "data",
            Self::Resets => "resets",
            Self::Settings => "settings",
            Self::Pings => "pings",
            Self::Windows => "windows",
            Self::Continuations => "continuations",
            Self::Other => "other",
            Self::Calm => "calm",
            Self::Protocol => "protocol",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_and_path_has_a_cell() {
        for code in ErrorCode::ALL {
            assert!(STATUSES.contains(&code.status()), "{code}");
        }
        for (position, path) in PathLabel::ALL.into_iter().enumerate() {
            assert_eq!(path as usize, position);
        }
    }
}
