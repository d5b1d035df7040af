//! A load for tests, which runs until it is stopped and keeps every answer. It is the closed loop
//! of [`super::run`]. It may drive *all* nodes, including followers and deposed leaders, to provoke
//! wrong answers. When it drives all nodes it never repeats a request, and a lost answer counts as
//! lost.

use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use epicepoch_wire::TimestampRange;

use super::config::RunConfig;
use super::counts::{self, Counts, Failures};
use super::kept::Kept;
use super::statistics::Shared;
use super::window::Window;
use super::{HEAD_START, start_endless};
use crate::answer_times::AnswerTimes;
use crate::history::{Operation, Outcome};
use crate::latency::{self, quantile};

/// A running load. Dropping it stops it.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Counts>>,
    began: Instant,
}

impl Load {
    /// Starts a load. The caller checks the answers. The settings `warmup`, `duration`, `interval`
    /// and `verify` are ignored.
    ///
    /// # Panics
    /// If a number of the configuration is out of its range, or a thread cannot be started.
    #[must_use]
    pub fn start(config: RunConfig) -> Self {
        let began = Instant::now() + HEAD_START;
        let window = Window::endless(began);
        let shared = Arc::new(Shared::keeping(window));
        let (threads, _) = start_endless(RunConfig { verify: false, ..config }, &shared);
        Self { shared, threads, began }
    }

    /// Answers so far.
    #[must_use]
    pub fn answers(&self) -> u64 {
        self.kept(|kept| kept.answers)
    }

    /// Whether a request that was sent after `at` has been answered, so the service works again.
    #[must_use]
    pub fn answered_since(&self, at: Instant) -> bool {
        self.kept(|kept| kept.start_max.is_some_and(|start| start > at))
    }

    /// Ends the load. Open requests still get their answer or time out.
    #[must_use]
    pub fn stop(mut self) -> Report {
        self.shared.end();
        for thread in self.threads.drain(..) {
            thread.join().expect("a load thread never panics");
        }
        let elapsed = self.began.elapsed();
        let Kept { operations, failures, .. } = self.kept(std::mem::take);
        Report { elapsed, operations, failures }
    }

    fn kept<T>(&self, with: impl FnOnce(&mut Kept) -> T) -> T {
        with(&mut self.shared.kept().expect("a load keeps answers"))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.end();
    }
}

/// What a load saw.
#[derive(Clone, Debug)]
pub struct Report {
    /// How long the load ran.
    pub elapsed: Duration,
    /// Every answer, also wrong ones.
    pub operations: Vec<Operation>,
    /// Requests that brought no timestamps.
    pub failures: Failures,
}

impl Report {
    /// The operations that brought timestamps.
    pub fn answered(&self) -> impl Iterator<Item = (&Operation, TimestampRange)> {
        self.operations.iter().filter_map(|operation| match operation.outcome {
            Outcome::Answered(range) => Some((operation, range)),
            Outcome::Latest(_) | Outcome::Refused(_) | Outcome::Unknown | Outcome::Broken(_) => {
                None
            }
        })
    }

    /// Number of requests that brought timestamps.
    #[must_use]
    pub fn answers(&self) -> u64 {
        self.answered().count() as u64
    }

    /// Requests that were refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        counts::refused(&self.failures)
    }

    /// Requests whose answer was not read.
    #[must_use]
    pub fn unknown(&self) -> u64 {
        counts::unknown(&self.failures)
    }

    /// When answers came.
    #[must_use]
    pub fn answer_times(&self) -> AnswerTimes {
        AnswerTimes::new(self.answered().map(|(operation, _)| operation.end).collect())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut latency_ns = latency::histogram();
        for (operation, _) in self.answered() {
            latency::record(&mut latency_ns, operation.end - operation.start);
        }
        let millis = |share| quantile(&latency_ns, share).as_secs_f64() * 1e3;
        write!(
            f,
            "{:.0} req/s, p50 {:.3} ms, p99 {:.3} ms, p99.9 {:.3} ms, max {:.3} ms, {} answers",
            latency_ns.len() as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE),
            millis(0.5),
            millis(0.99),
            millis(0.999),
            millis(1.0),
            latency_ns.len(),
        )?;
        for (kind, count) in &self.failures {
            write!(f, ", {count} {kind}")?;
        }
        Ok(())
    }
}
