//! What one generator thread has seen. It is written by that thread alone; only the live figures
//! and the order of answers meet those of other threads.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use epicepoch_wire::TimestampRange;
use hdrhistogram::Histogram;
use tokio::sync::watch;

use super::checker::{ToChecker, Told};
use super::course::{self, Exchange, Piece};
use super::pacer::Ticket;
use super::window::Window;
use crate::history::{BrokenAnswer, Operation, Outcome};
use crate::latency;

/// Requests that brought no timestamps, by a stable name: an error code of the interface, or one
/// of the names in [`failure`].
pub type Failures = BTreeMap<&'static str, u64>;

/// Names of failures that no answer names.
pub mod failure {
    /// No connection could be opened. An attempt, and not a request.
    pub const CONNECT: &str = "connect";
    /// The connection broke, or was given up, while the request was open.
    pub const LOST: &str = "lost";
    /// No answer within the request's timeout.
    pub const TIMEOUT: &str = "timeout";
    /// A status without an error code that is known here.
    pub const STATUS: &str = "status";
    /// What came is not what the transport allows, and the connection was given up. Not a request:
    /// what was open on the connection is `lost`.
    pub const PROTOCOL: &str = "protocol";
    /// Timestamps that are not what was asked for, or that nobody waits for.
    pub const BROKEN: &str = "broken";

    /// Whether it is a request that failed, and not a connection.
    #[must_use]
    pub fn is_of_a_request(name: &str) -> bool {
        name != CONNECT && name != PROTOCOL
    }

    /// Share of the requests that failed, `0.0..=1.0`. Without an answer it is all of them: whoever
    /// gets no connection sends none.
    #[must_use]
    pub fn share(failed: u64, answers: u64) -> f64 {
        if answers == 0 { 1.0 } else { failed as f64 / (failed + answers) as f64 }
    }
}

/// What all threads share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) window: Window,
    /// Index of the target that led last.
    pub(super) leader: AtomicUsize,
    /// End of the latest answer, ns since the measurement began to count.
    end_ns_max: AtomicU64,
    gap_ns_max: AtomicU64,
    pub(super) exchange: Exchange,
    /// The node that answered last; 0 before the first answer.
    answered_by: AtomicU64,
    leader_changes: AtomicU64,
    is_stopped: watch::Sender<bool>,
}

impl Shared {
    pub(super) fn new(window: Window) -> Self {
        Self {
            window,
            exchange: Exchange::default(),
            leader: AtomicUsize::new(0),
            end_ns_max: AtomicU64::new(0),
            gap_ns_max: AtomicU64::new(0),
            answered_by: AtomicU64::new(0),
            leader_changes: AtomicU64::new(0),
            is_stopped: watch::Sender::new(false),
        }
    }

    /// Cuts the measurement short.
    pub(super) fn stop(&self) {
        self.is_stopped.send_replace(true);
    }

    /// Returns when the measurement is cut short.
    pub(super) async fn stopped(&self) {
        let mut stopped = self.is_stopped.subscribe();
        // It fails when the sender is gone, which lives as long as this.
        let _is_stopped = stopped.wait_for(|stopped| *stopped).await.is_ok();
    }

    /// The node that answered last; 0 before the first answer.
    pub(super) fn answered_by(&self) -> u64 {
        self.answered_by.load(Ordering::Relaxed)
    }

    /// How often another node answered than before.
    pub(super) fn leader_changes(&self) -> u64 {
        self.leader_changes.load(Ordering::Relaxed)
    }

    fn led_by(&self, node: u64) {
        // Written only when it changes, so that threads do not fight for it.
        if self.answered_by() != node && self.answered_by.swap(node, Ordering::Relaxed) != 0 {
            self.leader_changes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Time since the last answer, or since the measurement began to count.
    pub(super) fn silence(&self, now: Instant) -> Duration {
        let last = Duration::from_nanos(self.end_ns_max.load(Ordering::Relaxed));
        now.saturating_duration_since(self.window.from + last)
    }

    fn answered(&self, end: Instant) {
        // What comes after the end of the window ends the last gap; it begins none.
        let Some(end) = end.checked_duration_since(self.window.from) else { return };
        let end = end.as_nanos() as u64;
        let before = self.end_ns_max.fetch_max(end, Ordering::Relaxed);
        if Duration::from_nanos(before) < self.window.end - self.window.from {
            self.gap_ns_max.fetch_max(end.saturating_sub(before), Ordering::Relaxed);
        }
    }

    /// The longest time without an answer. What lies open at the end counts until `over`.
    pub(super) fn gap_max(&self, over: Instant) -> Duration {
        let last = self.window.from + Duration::from_nanos(self.end_ns_max.load(Ordering::Relaxed));
        let open = if last < self.window.end {
            over.saturating_duration_since(last)
        } else {
            Duration::ZERO
        };
        Duration::from_nanos(self.gap_ns_max.load(Ordering::Relaxed)).max(open)
    }

    /// When the last answer came, at least the end of the window.
    pub(super) fn last_answer(&self) -> Instant {
        let last = Duration::from_nanos(self.end_ns_max.load(Ordering::Relaxed));
        (self.window.from + last).max(self.window.end)
    }
}

/// What happened since somebody looked last.
#[derive(Clone, Debug)]
pub struct Live {
    /// Requests that brought timestamps.
    pub answers: u64,
    /// Requests that brought none.
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

/// What went over the wire, warm-up included: what a request costs there does not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wire {
    /// Requests sent; one that was redirected was sent more than once.
    pub requests: u64,
    /// Bytes sent, headers and all that the transport adds included, nothing below TCP.
    pub sent: u64,
    /// Bytes received, the same way.
    pub received: u64,
}

impl Wire {
    /// Bytes sent and received for each request; `None` where the transport counts none, which
    /// is the client library: its connections are its own.
    #[must_use]
    pub fn per_request(&self) -> Option<(f64, f64)> {
        let requests = self.requests.max(1) as f64;
        (self.sent > 0).then(|| (self.sent as f64 / requests, self.received as f64 / requests))
    }
}

/// The counts of one thread, or of all of them. Answers, failures and latency of a thread are in
/// its pieces ([`super::course`]) until they are added up.
#[derive(Clone, Debug)]
pub struct Counts {
    /// Requests that brought timestamps, warm-up excluded, as everywhere here.
    pub answers: u64,
    /// Timestamps in them.
    pub timestamps: u64,
    /// Answers by node id.
    pub answers_by_node: BTreeMap<u64, u64>,
    /// Requests that brought none.
    pub failures: Failures,
    /// Times that a request was sent on: to the leader named by a 409, or because the node said
    /// that it had not looked at it. The wait is part of its latency.
    pub redirects: u64,
    /// Open loop: requests that were due while every connection was in use or lost, and waited for
    /// one. The wait is part of their latency.
    pub backlogged: u64,
    /// Open loop: requests that were due and could not be sent before the measurement was given
    /// up.
    pub unsent: u64,
    /// Answers that could not be checked, because too much was open or the checker fell behind.
    pub unverified: u64,
    /// Bytes on the wire.
    pub wire: Wire,
    /// From when the request was due, in a closed loop from when it was sent, until the last byte
    /// of its answer, nanoseconds.
    pub latency_ns: Histogram<u64>,
    /// Open loop: how late the generator itself sent what a free connection waited to send, and for
    /// how long it left lie what became due before it came to that.
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
        self.wire.requests += other.wire.requests;
        self.wire.sent += other.wire.sent;
        self.wire.received += other.wire.received;
        self.latency_ns.add(&other.latency_ns).expect("the same bounds");
        self.lateness_ns.add(&other.lateness_ns).expect("the same bounds");
    }

    /// Requests that failed, of whatever kind, and those that were never sent. Connections that
    /// failed are no requests.
    #[must_use]
    pub fn failed(&self) -> u64 {
        let failures = self.failures.iter().filter(|(name, _)| failure::is_of_a_request(name));
        failures.map(|(_, count)| count).sum::<u64>() + self.unsent
    }

    /// Requests that were refused with a word of why.
    pub(super) fn refused(&self) -> u64 {
        let broken = self.failures.get(failure::BROKEN).copied().unwrap_or(0);
        self.failed() - self.unsent - unknown(&self.failures) - broken
    }
}

/// A request that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    /// Number in the open requests of this thread.
    number: u64,
    pub(super) ticket: Ticket,
    at: Instant,
}

/// The account of one thread.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) counts: Counts,
    shared: Arc<Shared>,
    /// What came since the last piece was handed over.
    piece: Piece,
    /// When its interval ends.
    piece_end: Instant,
    /// When the last answers came.
    heard_at: Option<Instant>,
    interval: Duration,
    /// Open loop: latency counts from the intended time and lateness is a word that means
    /// something.
    open_loop: bool,
    /// When each request was sent and whether it is open, oldest first; the front is open. It
    /// tells the checker what can still come.
    open: VecDeque<(Instant, bool)>,
    /// Number of the front.
    first: u64,
    told: Vec<Operation>,
    checker: Option<ToChecker>,
}

impl Ledger {
    pub(super) fn new(
        shared: Arc<Shared>,
        open_loop: bool,
        interval: Duration,
        checker: Option<ToChecker>,
    ) -> Self {
        Self {
            counts: Counts::new(),
            piece: Piece::new(),
            piece_end: shared.window.from,
            heard_at: None,
            interval,
            shared,
            open_loop,
            open: VecDeque::new(),
            first: 0,
            told: Vec::new(),
            checker,
        }
    }

    /// To be called before the first byte of a request is written, which is at `at` or later.
    pub(super) fn sent(&mut self, mut ticket: Ticket, timeout: Duration, at: Instant) -> Sent {
        self.counts.wire.requests += 1;
        if !self.open_loop && ticket.deadline.is_none() {
            ticket.intended = at;
        }
        if self.open_loop && ticket.deadline.is_none() && self.shared.window.counts(ticket.intended)
        {
            if ticket.in_time {
                let late = at.saturating_duration_since(ticket.intended);
                latency::record(&mut self.counts.lateness_ns, late);
            } else if let Some(late) = ticket.stood_still {
                latency::record(&mut self.counts.lateness_ns, late);
            } else {
                self.counts.backlogged += 1;
            }
        }
        // Whoever waited for a connection until the end has waited already.
        ticket.deadline.get_or_insert((at + timeout).min(self.shared.window.given_up));
        if self.checker.is_some() {
            if self.open.len() == OPEN_MAX {
                // Its answer, if one comes, will not be checked.
                self.open.pop_front();
                self.first += 1;
            }
            self.open.push_back((at, true));
        }
        Sent { number: self.first + (self.open.len() as u64).saturating_sub(1), ticket, at }
    }

    pub(super) fn answered(&mut self, sent: &Sent, node: u64, range: TimestampRange) {
        self.answered_at(sent, node, range, Instant::now());
    }

    /// [`Self::answered`] for answers that came together, at `now` or earlier.
    pub(super) fn answered_at(
        &mut self,
        sent: &Sent,
        node: u64,
        range: TimestampRange,
        now: Instant,
    ) {
        let latency = now.saturating_duration_since(sent.ticket.intended);
        if self.heard_at != Some(now) {
            self.heard_at = Some(now);
            self.shared.answered(now);
            self.shared.led_by(node);
            self.turn(now);
        }
        let counts = self.shared.window.counts(sent.ticket.intended);
        if counts || self.piece.number.is_none() {
            self.piece.answers += 1;
            self.piece.timestamps += range.count();
            latency::record(&mut self.piece.latency_ns, latency);
        } else {
            self.piece.late_answers += 1;
        }
        if counts {
            *self.counts.answers_by_node.entry(node).or_default() += 1;
        }
        self.tell(sent, now, node, Outcome::Answered(range));
    }

    pub(super) fn broken(&mut self, sent: &Sent, node: u64, why: BrokenAnswer) {
        self.fail(failure::BROKEN, sent.ticket.intended);
        self.tell(sent, Instant::now(), node, Outcome::Broken(why));
    }

    /// An answer came that nobody waits for. Not tied to a request.
    pub(super) fn unasked(&mut self, node: u64, id: u64) {
        let now = Instant::now();
        self.fail(failure::BROKEN, now);
        if self.checker.is_some() {
            let outcome = Outcome::Broken(BrokenAnswer::Unasked(id));
            self.told.push(Operation { start: now, end: now, node, outcome });
        }
    }

    /// The request brought nothing.
    pub(super) fn failed(&mut self, sent: &Sent, name: &'static str) {
        self.fail(name, sent.ticket.intended);
        self.close(sent);
    }

    /// The request was refused, or not looked at, and will be sent again.
    pub(super) fn redirected(&mut self, sent: &Sent) {
        if self.shared.window.counts(sent.ticket.intended) {
            self.counts.redirects += 1;
        }
        self.close(sent);
    }

    /// Counts a failure at `at`.
    pub(super) fn fail(&mut self, name: &'static str, at: Instant) {
        self.turn(Instant::now());
        if self.shared.window.counts(at) || self.piece.number.is_none() {
            *self.piece.failures.entry(name).or_default() += 1;
        } else {
            self.piece.late_failures += 1;
        }
    }

    /// Begins a new piece if the interval of the present one is over.
    fn turn(&mut self, now: Instant) {
        if now < self.piece_end {
            return;
        }
        let number = course::number(self.shared.window.from, now, self.interval);
        self.shared.exchange.hand_over(&mut self.piece, Some(number));
        let ends = self.interval * u32::try_from(number + 1).unwrap_or(u32::MAX);
        self.piece_end = self.shared.window.from + ends;
    }

    /// Hands over what came. To be called a few times per second.
    pub(super) fn hand_over(&mut self) {
        let number = self.piece.number;
        self.shared.exchange.hand_over(&mut self.piece, number);
    }

    /// The last word to the checker: nothing is open any more.
    pub(super) fn finish(mut self) -> Counts {
        self.hand_over();
        self.tell_checker();
        if let Some(checker) = self.checker.take() {
            self.counts.unverified += checker.finish(std::mem::take(&mut self.told));
        }
        self.counts
    }

    fn tell(&mut self, sent: &Sent, end: Instant, node: u64, outcome: Outcome) {
        if self.checker.is_none() {
            return;
        }
        if sent.number < self.first {
            self.counts.unverified += 1;
            return;
        }
        self.told.push(Operation { start: sent.at, end, node, outcome });
        self.close(sent);
        if self.told.len() >= TOLD_AT_ONCE {
            self.tell_checker();
        }
    }

    fn close(&mut self, sent: &Sent) {
        let Some(at) = sent.number.checked_sub(self.first) else { return };
        if let Some(entry) = self.open.get_mut(at as usize) {
            entry.1 = false;
        }
        while self.open.front().is_some_and(|(_, open)| !open) {
            self.open.pop_front();
            self.first += 1;
        }
    }

    /// To be called a few times per second, even if nothing came.
    pub(super) fn tell_checker(&mut self) {
        let Some(checker) = &mut self.checker else { return };
        let horizon = self.open.front().map_or_else(Instant::now, |(at, _)| *at);
        let told = Told { operations: std::mem::take(&mut self.told), horizon };
        self.counts.unverified += checker.tell(told);
        self.told = Vec::with_capacity(TOLD_AT_ONCE);
    }
}

/// Open requests of one thread that are remembered for the checker.
const OPEN_MAX: usize = 1 << 18;
/// Answers that are handed to the checker together.
const TOLD_AT_ONCE: usize = 2048;

/// Requests whose answer nobody read.
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
        // Nobody could be asked: that is no service without errors.
        assert_eq!(failure::share(0, 0).to_bits(), 1_f64.to_bits());
    }
}
