//! A measurement without an end: the generator of [`super::run`] in an open loop. Its counts are
//! read at intervals, and its memory is bounded. `epicepoch probe` uses it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::checker::Checker;
use super::config::{Pace, RunConfig};
use super::counts::{Counts, Failures};
use super::statistics::Shared;
use super::window::Window;
use super::{HEAD_START, start_endless};
use crate::latency;

/// A running generator. Dropping it leaves its threads running; [`Monitor::stop`] ends them.
#[derive(Debug)]
pub struct Monitor {
    shared: Arc<Shared>,
    checker: Option<Checker>,
    threads: Vec<JoinHandle<Counts>>,
    /// Number of wrong answers that snapshots have described.
    told: AtomicUsize,
}

/// Counts since the last snapshot, and totals since the beginning.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Requests that brought timestamps, since the last snapshot.
    pub answers: u64,
    /// Requests that brought no timestamps, by kind, since the last snapshot.
    pub failures: Failures,
    /// Latency of the answers since the last snapshot, from the time when the request was due.
    pub latency_ns: Histogram<u64>,
    /// Descriptions of wrong answers since the last snapshot. Only the first ones are described.
    pub descriptions: Vec<String>,
    /// Wrong answers since the beginning.
    pub violations: u64,
    /// Answers checked since the beginning.
    pub checked: u64,
    /// The node that answered last; 0 before the first answer.
    pub leader: u64,
    /// How often the answering node changed, since the beginning.
    pub leader_changes: u64,
    /// How often the cluster was restored from a backup since the beginning. Only the Rust client
    /// notices that.
    pub restores: u64,
    /// The longest time without an answer since the beginning, up to now.
    pub gap_max: Duration,
    /// Time since the last answer, or since the beginning if there is none.
    pub silence: Duration,
}

impl Monitor {
    /// Starts the generator. `warmup` and `duration` of the configuration are ignored.
    ///
    /// # Panics
    /// If a number of the configuration is out of its range, if the pace is not an open loop, or if
    /// a thread cannot be started.
    #[must_use]
    pub fn start(config: RunConfig) -> Self {
        assert!(matches!(config.pace, Pace::Open { .. }), "a monitor has a rate");
        let shared = Arc::new(Shared::new(Window::endless(Instant::now() + HEAD_START)));
        let (threads, checker) = start_endless(config, &shared);
        Self { shared, checker, threads, told: AtomicUsize::new(0) }
    }

    /// Returns the counts since the last snapshot.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let now = Instant::now();
        let mut snapshot = Snapshot {
            answers: 0,
            failures: Failures::new(),
            latency_ns: latency::histogram(),
            descriptions: Vec::new(),
            violations: 0,
            checked: 0,
            leader: self.shared.answered_by(),
            leader_changes: self.shared.leader_changes(),
            restores: self.shared.restores(),
            gap_max: self.shared.gap_max(now),
            silence: self.shared.silence(now),
        };
        let pieces = self.shared.exchange.take();
        for piece in &pieces {
            snapshot.answers += piece.answers;
            snapshot.latency_ns.add(&piece.latency_ns).expect("the same bounds");
            for (name, count) in &piece.failures {
                *snapshot.failures.entry(name).or_default() += count;
            }
        }
        self.shared.exchange.give_back(pieces);
        if let Some(checker) = &self.checker {
            let verdict = checker.checked().verdict;
            snapshot.violations = verdict.violation_count;
            snapshot.checked = verdict.totals.answered;
            let told = self.told.swap(verdict.violations.len(), Ordering::Relaxed);
            snapshot.descriptions =
                verdict.violations[told..].iter().map(ToString::to_string).collect();
        }
        snapshot
    }

    /// Ends the generator. Open requests get no answer. Returns the last snapshot, with everything
    /// since the one before.
    #[must_use]
    pub fn stop(self) -> Snapshot {
        self.shared.stop();
        let last = |thread: JoinHandle<Counts>| thread.join().expect("a generator never panics");
        let Self { shared, checker, threads, told } = self;
        threads.into_iter().map(last).for_each(drop);
        if let Some(checker) = &checker {
            checker.wait();
        }
        Self { shared, checker, threads: Vec::new(), told }.snapshot()
    }
}
