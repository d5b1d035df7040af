//! A measurement without an end: the generator of [`super::run`] in an open loop, looked at again
//! and again, in constant memory. `epicepoch probe` is made of it.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::checker::Checker;
use super::config::{Pace, RunConfig};
use super::ledger::{Counts, Failures, Shared};
use super::window::Window;
use super::{HEAD_START, Kernel, start};
use crate::latency;

/// A generator under way. Dropping it leaves its threads running; [`Vigil::stop`] ends them.
#[derive(Debug)]
pub struct Vigil {
    shared: Arc<Shared>,
    checker: Option<Checker>,
    threads: Vec<JoinHandle<Counts>>,
}

/// What came since the last look, and what holds since the beginning.
#[derive(Clone, Debug)]
pub struct Glance {
    /// Requests that brought timestamps, since the last look.
    pub answers: u64,
    /// Requests that brought none, by kind, since the last look.
    pub failures: Failures,
    /// Latency of the answers since the last look: from when a request was due.
    pub latency_ns: Histogram<u64>,
    /// Stories of answers that were wrong, since the last look.
    pub stories: Vec<String>,
    /// Answers that were wrong, since the beginning.
    pub violations: u64,
    /// Answers that were checked, since the beginning.
    pub checked: u64,
    /// The node that answered last; 0 before the first answer.
    pub leader: u64,
    /// How often another node answered than before, since the beginning.
    pub leader_changes: u64,
    /// The longest time without an answer since the beginning, what lies open included.
    pub gap_max: Duration,
    /// Since the last answer, or the beginning.
    pub silence: Duration,
}

impl Vigil {
    /// Begins. Of the configuration, `warmup` and `duration` mean nothing here.
    ///
    /// # Panics
    /// If a number of the configuration is out of its range, if it is no open loop, or if a thread
    /// cannot be started.
    #[must_use]
    pub fn start(config: RunConfig) -> Self {
        config.assert_sound();
        assert!(matches!(config.pace, Pace::Open { .. }), "a vigil has a rate");
        let began = Instant::now() + HEAD_START;
        let end = began + ENDLESS;
        let window = Window { began, from: began, end, given_up: end };
        let shared = Arc::new(Shared::new(window));
        let threads = config.threads_used();
        let checking = config.verify.then(|| Checker::start(Instant::now(), threads));
        let (checker, lines) = checking.unzip();
        let mut lines = lines.unwrap_or_default().into_iter();
        let config = Arc::new(config);
        let threads = (0..threads).map(|thread| {
            // Nobody asks the kernel about these threads.
            let (names, released) = (channel().0, channel().1);
            start(thread, &config, &shared, lines.next(), Kernel { names, released })
        });
        let threads = threads.collect();
        Self { shared, checker, threads }
    }

    /// What came since the last look.
    #[must_use]
    pub fn look(&self) -> Glance {
        let now = Instant::now();
        let mut glance = Glance {
            answers: 0,
            failures: Failures::new(),
            latency_ns: latency::histogram(),
            stories: Vec::new(),
            violations: 0,
            checked: 0,
            leader: self.shared.answered_by(),
            leader_changes: self.shared.leader_changes(),
            gap_max: self.shared.gap_max(now),
            silence: self.shared.silence(now),
        };
        let pieces = self.shared.exchange.take();
        for piece in &pieces {
            glance.answers += piece.answers;
            glance.latency_ns.add(&piece.latency_ns).expect("the same bounds");
            for (name, count) in &piece.failures {
                *glance.failures.entry(name).or_default() += count;
            }
        }
        self.shared.exchange.give_back(pieces);
        if let Some(checker) = &self.checker {
            let news = checker.news();
            glance.violations = news.violations;
            glance.checked = news.checked;
            glance.stories = news.stories;
        }
        glance
    }

    /// Ends it: what is open gets no answer any more. What came until then is in the last look.
    #[must_use]
    pub fn stop(self) -> Glance {
        self.shared.stop();
        let last = |thread: JoinHandle<Counts>| thread.join().expect("a generator never panics");
        let Self { shared, checker, threads } = self;
        threads.into_iter().map(last).for_each(drop);
        if let Some(checker) = &checker {
            checker.wait();
        }
        Self { shared, checker, threads: Vec::new() }.look()
    }
}

/// Longer than any machine runs.
const ENDLESS: Duration = Duration::from_hours(50 * 365 * 24);
