//! The counts of one generator thread. Only that thread writes them. The live figures and the times
//! of answers are shared by all threads.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use epicepoch_wire::TimestampRange;
use tokio::sync::watch;

use super::checker::{Batch, ToChecker};
use super::counts::{Counts, failure};
use super::kept::Kept;
use super::pacer::Ticket;
use super::time_series::{self, Exchange, Piece};
use super::window::Window;
use crate::history::{BrokenAnswer, Operation, Outcome};
use crate::latency;

/// State that all threads share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) window: Window,
    /// Index of the target that was the leader last.
    pub(super) leader: AtomicUsize,
    /// When the latest answer came, nanoseconds since the end of the warm-up.
    end_ns_max: AtomicU64,
    gap_ns_max: AtomicU64,
    pub(super) exchange: Exchange,
    /// The node that answered last; 0 before the first answer.
    answered_by: AtomicU64,
    leader_changes: AtomicU64,
    restores: AtomicU64,
    /// The newest history that a restore has begun, as the header `epicepoch-cluster` names it.
    restored: Mutex<String>,
    is_stopped: watch::Sender<bool>,
    /// Whether no further request may be sent. Open requests still get their answers.
    is_ending: AtomicBool,
    /// The answers of a load of tests, instead of counts by interval.
    kept: Option<Mutex<Kept>>,
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
            restores: AtomicU64::new(0),
            restored: Mutex::default(),
            is_stopped: watch::Sender::new(false),
            is_ending: AtomicBool::new(false),
            kept: None,
        }
    }

    /// The state of a load that keeps its answers.
    pub(super) fn keeping(window: Window) -> Self {
        Self { kept: Some(Mutex::default()), ..Self::new(window) }
    }

    /// Sends no further requests.
    pub(super) fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// What a load of tests keeps.
    pub(super) fn kept(&self) -> Option<MutexGuard<'_, Kept>> {
        self.kept.as_ref().map(|kept| kept.lock().expect("nobody panics with it"))
    }

    /// Ends the measurement early. Open requests get no answer.
    pub(super) fn stop(&self) {
        self.is_stopped.send_replace(true);
    }

    /// Waits until the measurement is ended early.
    pub(super) async fn stopped(&self) {
        let mut stopped = self.is_stopped.subscribe();
        // `wait_for` fails only without a sender, and `self` holds the sender.
        let _is_stopped = stopped.wait_for(|stopped| *stopped).await.is_ok();
    }

    /// The node that answered last; 0 before the first answer.
    pub(super) fn answered_by(&self) -> u64 {
        self.answered_by.load(Ordering::Relaxed)
    }

    /// Counts that the cluster was restored from a backup, and has begun this history. Every
    /// connection notices that; it counts once.
    pub(super) fn record_restore(&self, history: &str) {
        let mut known = self.restored.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != history {
            history.clone_into(&mut known);
            self.restores.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often the cluster was restored from a backup, as far as a client has noticed.
    pub(super) fn restores(&self) -> u64 {
        self.restores.load(Ordering::Relaxed)
    }

    pub(super) fn leader_changes(&self) -> u64 {
        self.leader_changes.load(Ordering::Relaxed)
    }

    fn led_by(&self, node: u64) {
        // The shared value is written only when it changes, so that threads do not compete for its
        // cache line.
        if self.answered_by() != node && self.answered_by.swap(node, Ordering::Relaxed) != 0 {
            self.leader_changes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Time since the last answer, or since the end of the warm-up if there was none.
    pub(super) fn silence(&self, now: Instant) -> Duration {
        let last = Duration::from_nanos(self.end_ns_max.load(Ordering::Relaxed));
        now.saturating_duration_since(self.window.from + last)
    }

    fn answered(&self, end: Instant) {
        // An answer in the warm-up does not count. An answer after the end of the window ends the
        // last gap and begins none.
        let Some(end) = end.checked_duration_since(self.window.from) else { return };
        let end = end.as_nanos() as u64;
        let before = self.end_ns_max.fetch_max(end, Ordering::Relaxed);
        if Duration::from_nanos(before) < self.window.end - self.window.from {
            self.gap_ns_max.fetch_max(end.saturating_sub(before), Ordering::Relaxed);
        }
    }

    /// The longest time without an answer. A gap that is open at the end counts until `over`.
    pub(super) fn gap_max(&self, over: Instant) -> Duration {
        let last = self.window.from + Duration::from_nanos(self.end_ns_max.load(Ordering::Relaxed));
        let open = if last < self.window.end {
            over.saturating_duration_since(last)
        } else {
            Duration::ZERO
        };
        Duration::from_nanos(self.gap_ns_max.load(Ordering::Relaxed)).max(open)
    }

    /// When the last answer came, but not before the end of the window.
    pub(super) fn last_answer(&self) -> Instant {
        let last = Duration::from_nanos(self.end_ns_max.load(Ordering::Relaxed));
        (self.window.from + last).max(self.window.end)
    }
}

/// A request that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    /// The number of this request in the thread's memory of requests.
    number: u64,
    pub(super) ticket: Ticket,
    at: Instant,
}

/// The counts of one thread while it runs.
#[derive(Debug)]
pub(super) struct Statistics {
    pub(super) counts: Counts,
    shared: Arc<Shared>,
    /// Counts since the last piece was handed over.
    piece: Piece,
    /// When the interval of the piece ends.
    piece_end: Instant,
    /// When the last group of answers came.
    heard_at: Option<Instant>,
    interval: Duration,
    /// In an open loop, latency counts from the due time, and lateness is recorded.
    open_loop: bool,
    /// When each request was sent and whether it is open, oldest first. The front one is open. Its
    /// start tells the checker how early an operation may have started that is reported later.
    open: VecDeque<(Instant, bool)>,
    /// Number of the front request.
    first: u64,
    unreported: Vec<Operation>,
    checker: Option<ToChecker>,
}

impl Statistics {
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
            unreported: Vec::new(),
            checker,
        }
    }

    /// Records that a request is sent, at `at` or later. Call it before its first byte is written.
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
        // The timeout counts from the first time that the request is sent, and ends at the latest
        // when the run stops waiting for answers.
        ticket.deadline.get_or_insert((at + timeout).min(self.shared.window.given_up));
        if self.checker.is_some() {
            if self.open.len() == OPEN_MAX {
                // The oldest request is dropped from this memory, so its answer will not be
                // checked.
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

    /// Records one answer like [`Self::answered`], with a time that several answers share: they
    /// came at `now` or earlier.
    pub(super) fn answered_at(
        &mut self,
        sent: &Sent,
        node: u64,
        range: TimestampRange,
        now: Instant,
    ) {
        if self.heard_at != Some(now) {
            self.heard_at = Some(now);
            self.shared.answered(now);
            self.shared.led_by(node);
            self.turn(now);
        }
        if self.shared.kept.is_none() {
            self.count(sent, node, range, now);
        }
        self.record(sent, now, node, Outcome::Answered(range));
    }

    fn count(&mut self, sent: &Sent, node: u64, range: TimestampRange, now: Instant) {
        let latency = now.saturating_duration_since(sent.ticket.intended);
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
    }

    pub(super) fn broken(&mut self, sent: &Sent, node: u64, why: BrokenAnswer) {
        self.fail(failure::BROKEN, sent.ticket.intended);
        self.record(sent, Instant::now(), node, Outcome::Broken(why));
    }

    /// Counts an answer that no open request has asked for.
    pub(super) fn unasked(&mut self, node: u64, id: u64) {
        let now = Instant::now();
        self.fail(failure::BROKEN, now);
        let outcome = Outcome::Broken(BrokenAnswer::Unasked(id));
        let operation = Operation { start: now, end: now, node, outcome };
        if let Some(mut kept) = self.shared.kept() {
            kept.record(operation);
        } else if self.checker.is_some() {
            self.unreported.push(operation);
        }
    }

    /// Counts a request that brought no timestamps.
    pub(super) fn failed(&mut self, sent: &Sent, name: &'static str) {
        self.fail(name, sent.ticket.intended);
        self.close(sent);
    }

    /// Counts a request that was refused or not processed, and that will be sent again.
    pub(super) fn redirected(&mut self, sent: &Sent) {
        if self.shared.window.counts(sent.ticket.intended) {
            self.counts.redirects += 1;
        }
        self.close(sent);
    }

    /// Counts a failure that happened at `at`.
    pub(super) fn fail(&mut self, name: &'static str, at: Instant) {
        if let Some(mut kept) = self.shared.kept() {
            return kept.fail(name);
        }
        self.turn(Instant::now());
        if self.shared.window.counts(at) || self.piece.number.is_none() {
            *self.piece.failures.entry(name).or_default() += 1;
        } else {
            self.piece.late_failures += 1;
        }
    }

    /// Begins a new piece if the interval of the current one is over.
    fn turn(&mut self, now: Instant) {
        if now < self.piece_end {
            return;
        }
        let number = time_series::number(self.shared.window.from, now, self.interval);
        self.shared.exchange.hand_over(&mut self.piece, Some(number));
        let ends = self.interval * u32::try_from(number + 1).unwrap_or(u32::MAX);
        self.piece_end = self.shared.window.from + ends;
    }

    /// Hands over the counts since the last call. Call it a few times per second.
    pub(super) fn hand_over(&mut self) {
        let number = self.piece.number;
        self.shared.exchange.hand_over(&mut self.piece, number);
    }

    /// Sends the last report to the checker. No request may be open any more.
    pub(super) fn finish(mut self) -> Counts {
        self.hand_over();
        self.report_to_checker();
        if let Some(checker) = self.checker.take() {
            self.counts.unverified += checker.finish(std::mem::take(&mut self.unreported));
        }
        self.counts
    }

    fn record(&mut self, sent: &Sent, end: Instant, node: u64, outcome: Outcome) {
        if let Some(mut kept) = self.shared.kept() {
            return kept.record(Operation { start: sent.at, end, node, outcome });
        }
        if self.checker.is_none() {
            return;
        }
        if sent.number < self.first {
            self.counts.unverified += 1;
            return;
        }
        self.unreported.push(Operation { start: sent.at, end, node, outcome });
        self.close(sent);
        if self.unreported.len() >= BATCH_LEN {
            self.report_to_checker();
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

    /// Reports answers to the checker. Call it a few times per second, even if no answer came.
    pub(super) fn report_to_checker(&mut self) {
        let Some(checker) = &mut self.checker else { return };
        let horizon = self.open.front().map_or_else(Instant::now, |(at, _)| *at);
        let operations = std::mem::take(&mut self.unreported);
        let batch = Batch { operations, horizon: Some(horizon) };
        self.counts.unverified += checker.send(batch);
        self.unreported = Vec::with_capacity(BATCH_LEN);
    }
}

/// A thread remembers at most this many requests for the checker.
const OPEN_MAX: usize = 1 << 18;
/// A thread reports to the checker at once when it has this many answers to report.
const BATCH_LEN: usize = 2048;
