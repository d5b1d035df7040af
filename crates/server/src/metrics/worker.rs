//! What one worker counts. Every cell is written by that worker's thread alone and folded with
//! the other workers' at a scrape.

use epicepoch_core::confirm::RoundFailure;
use epicepoch_wire::http::ErrorCode;

use super::cell::{Count, Histogram};
use crate::http::frames::Abuse;

/// The cells of one worker, on cache lines of their own.
#[derive(Debug)]
#[repr(align(128))]
pub struct WorkerMetrics {
    /// Answers by path and status.
    pub(crate) answers: [[Count; STATUSES.len()]; PathLabel::ALL.len()],
    /// Refusals by error code, in the order of [`ErrorCode::ALL`].
    pub(crate) refusals: [Count; ErrorCode::ALL.len()],
    /// Requests of the native protocol that got timestamps.
    pub(crate) native_answers: Count,
    /// Requests of the native protocol that were refused.
    pub(crate) native_refusals: Count,
    /// Connections of the native protocol open now.
    pub(crate) native_connections: Count,
    /// Requests refused beyond what one address may ask.
    pub(crate) requests_over_rate: Count,
    /// Timestamps that were given to clients.
    pub(crate) timestamps: Count,
    /// Requests that wait for a round now.
    pub(crate) waiting: Count,
    /// From the arrival of a batch's first request to the begin of its round, per request.
    pub(crate) waiting_ns: Histogram,
    /// From the begin of a round to its confirmation, per request.
    pub(crate) confirm_ns: Histogram,
    /// Taking the timestamps of a batch, per request.
    pub(crate) allocate_ns: Histogram,
    /// From the allocation of a batch until its answers were written, per request.
    pub(crate) write_ns: Histogram,
    /// Requests per batch.
    pub(crate) batch_size: Histogram,
    /// Rounds begun, the empty ones of the probe included.
    pub(crate) rounds_begun: Count,
    /// Rounds that a quorum confirmed.
    pub(crate) rounds_confirmed: Count,
    /// Rounds that failed, in the order of [`FAILURES`].
    pub(crate) rounds_failed: [Count; FAILURES.len()],
    /// Confirms of other nodes answered with yes.
    pub(crate) confirms_yes: Count,
    /// Confirms of other nodes answered with no.
    pub(crate) confirms_no: Count,
    /// Confirm links to other members that are connected now.
    pub(crate) links: Count,
    /// Confirms sent over a sibling worker's link.
    pub(crate) confirms_borrowed: Count,
    /// Client connections open now.
    pub(crate) connections: Count,
    /// Client connections of HTTP/2 closed because the client went too far.
    http2_abuse: [Count; Abuse::ALL.len()],
    /// Connections of HTTP/3 open now.
    pub(crate) http3_connections: Count,
    /// Clients of HTTP/3 sent away for what they did.
    pub(crate) http3_abusers_closed: Count,
    /// Handshakes over QUIC that did not succeed.
    pub(crate) quic_handshakes_failed: Count,
    /// Clients over QUIC that were told to prove their address first.
    pub(crate) quic_retries: Count,
    /// Clients over QUIC that were refused.
    pub(crate) quic_refusals: Count,
    /// Client connections closed because they were idle or stuck.
    pub(crate) connections_idle_closed: Count,
    /// TLS handshakes of clients that were completed.
    pub(crate) handshakes_completed: Count,
    /// TLS handshakes of clients that failed, took too long or had to give way.
    pub(crate) handshakes_failed: Count,
    /// Client connections refused because they speak no TLS.
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
            rounds_begun: Count::default(),
            rounds_confirmed: Count::default(),
            rounds_failed: Default::default(),
            confirms_yes: Count::default(),
            confirms_no: Count::default(),
            links: Count::default(),
            confirms_borrowed: Count::default(),
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

    /// Counts a client that was sent away.
    pub(crate) fn count_abuse(&self, abuse: Abuse) {
        self.http2_abuse[abuse as usize].add_alone(1);
    }

    /// How many clients were sent away for it.
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

/// The statuses that a node answers with; [`ErrorCode::status`] gives no other.
pub(crate) const STATUSES: [u16; 11] = [200, 400, 401, 403, 404, 405, 409, 422, 500, 503, 504];

/// Why rounds fail, and their labels.
pub(crate) const FAILURES: [(RoundFailure, &str); 3] = [
    (RoundFailure::Deposed, "deposed"),
    (RoundFailure::TimedOut, "timed_out"),
    (RoundFailure::GrantLost, "grant_lost"),
];

/// The path of a request as metrics name it: never the client's own text, which has no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PathLabel {
    Timestamp,
    Up,
    Ready,
    Leader,
    Members,
    Metrics,
    Admin,
    Other,
}

impl PathLabel {
    pub(crate) const ALL: [Self; 8] = [
        Self::Timestamp,
        Self::Up,
        Self::Ready,
        Self::Leader,
        Self::Members,
        Self::Metrics,
        Self::Admin,
        Self::Other,
    ];

    /// The value of the label.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Timestamp => "timestamp",
            Self::Up => "up",
            Self::Ready => "ready",
            Self::Leader => "leader",
            Self::Members => "members",
            Self::Metrics => "metrics",
            Self::Admin => "admin",
            Self::Other => "other",
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
