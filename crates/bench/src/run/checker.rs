//! Checks what the generator threads received, on a thread of its own and in bounded memory: was
//! any timestamp given twice, did any answer come out of real-time order? It never holds up a
//! generator: what it cannot take is counted as not checked.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::history::{History, Operation};
use crate::machine;
use crate::verdict::{VIOLATIONS_KEPT_MAX, Verdict};

/// What one thread tells the checker.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) operations: Vec<Operation>,
    /// Whatever this thread tells later has started at or after this.
    pub(super) horizon: Instant,
}

/// A thread's end of the line.
#[derive(Debug)]
pub(super) struct ToChecker {
    sender: SyncSender<Told>,
}

impl ToChecker {
    /// Tells, unless the checker is behind. Gives how many operations were not taken.
    pub(super) fn tell(&mut self, told: Told) -> u64 {
        match self.sender.try_send(told) {
            Ok(()) => 0,
            Err(TrySendError::Full(told) | TrySendError::Disconnected(told)) => {
                told.operations.len() as u64
            }
        }
    }

    /// The last word. It may wait, because the load is over.
    pub(super) fn finish(self, operations: Vec<Operation>) -> u64 {
        let count = operations.len() as u64;
        let told = Told { operations, horizon: Instant::now() };
        self.sender.send(told).map_or(count, |()| 0)
    }
}

/// What the checker found.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// Totals and violations.
    pub verdict: Verdict,
    /// Operations that were told and had to be left out, because too many were held.
    pub left_out: u64,
    /// CPU time that checking took; it competes with what is measured on a small machine.
    pub cpu: Duration,
}

/// What the checker has found so far.
#[derive(Clone, Debug, Default)]
pub(super) struct News {
    /// Since the beginning.
    pub(super) violations: u64,
    /// Answers that were taken, since the beginning.
    pub(super) checked: u64,
    /// Since somebody looked last; a few of them at most.
    pub(super) stories: Vec<String>,
}

/// The thread that checks.
#[derive(Debug)]
pub(super) struct Checker {
    thread: JoinHandle<Checked>,
    news: Arc<Mutex<News>>,
}

impl Checker {
    /// A checker for as many threads as lines are returned. No operation starts before `origin`.
    pub(super) fn start(origin: Instant, threads: usize) -> (Self, Vec<ToChecker>) {
        let lines = (0..threads).map(|_| sync_channel(LINE_MAX));
        let (senders, receivers): (Vec<_>, Vec<_>) = lines.unzip();
        let news = Arc::new(Mutex::new(News::default()));
        let told = news.clone();
        let body = move || check(origin, receivers, &told);
        let thread = std::thread::Builder::new().name("check".to_owned()).spawn(body);
        let thread = thread.expect("threads can be started");
        (Self { thread, news }, senders.into_iter().map(|sender| ToChecker { sender }).collect())
    }

    /// What was found so far; stories are told once.
    pub(super) fn news(&self) -> News {
        let mut news = self.news.lock().expect("nobody panics with it");
        let stories = std::mem::take(&mut news.stories);
        News { stories, ..*news }
    }

    /// Waits until everything that was told is checked. Its lines must be gone.
    pub(super) fn wait(&self) {
        while !self.thread.is_finished() {
            std::thread::sleep(PAUSE);
        }
    }

    pub(super) fn join(self) -> Checked {
        self.thread.join().expect("the checker never panics")
    }
}

struct Line {
    receiver: Receiver<Told>,
    horizon: Instant,
    over: bool,
}

fn check(origin: Instant, receivers: Vec<Receiver<Told>>, news: &Mutex<News>) -> Checked {
    let mut history = History::new(origin);
    let mut checked = Checked::default();
    let mut lines: VecDeque<Line> = receivers
        .into_iter()
        .map(|receiver| Line { receiver, horizon: origin, over: false })
        .collect();
    while lines.iter().any(|line| !line.over) {
        std::thread::sleep(PAUSE);
        for line in &mut lines {
            take(line, &mut history, &mut checked.left_out);
        }
        // A thread that is over tells nothing more, so it holds nobody back.
        let open = lines.iter().filter(|line| !line.over).map(|line| line.horizon).min();
        let horizon = open.unwrap_or_else(Instant::now);
        let settled = history.settle_before(horizon);
        tell(news, &settled);
        merge(&mut checked.verdict, settled);
    }
    checked.cpu = machine::thread_cpu();
    checked
}

/// Takes what a line holds, at most what fits into it.
fn take(line: &mut Line, history: &mut History, left_out: &mut u64) {
    for _ in 0..LINE_MAX {
        let told = match line.receiver.try_recv() {
            Ok(told) => told,
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Disconnected) => {
                line.over = true;
                return;
            }
        };
        line.horizon = told.horizon;
        if history.held() + told.operations.len() > HELD_MAX {
            *left_out += told.operations.len() as u64;
        } else {
            history.record_all(&told.operations);
        }
    }
}

fn tell(news: &Mutex<News>, settled: &Verdict) {
    let mut news = news.lock().expect("nobody panics with it");
    news.checked = settled.totals.answered;
    news.violations += settled.violation_count;
    let room = VIOLATIONS_KEPT_MAX.saturating_sub(news.stories.len());
    news.stories.extend(settled.violations.iter().take(room).map(ToString::to_string));
}

fn merge(verdict: &mut Verdict, next: Verdict) {
    verdict.totals = next.totals;
    verdict.violation_count += next.violation_count;
    let room = VIOLATIONS_KEPT_MAX - verdict.violations.len();
    verdict.violations.extend(next.violations.into_iter().take(room));
}

/// Batches that wait on one line.
const LINE_MAX: usize = 256;
/// Answers that are held because something may still contradict them, 48 bytes each.
const HELD_MAX: usize = 1 << 20;
/// How often the checker looks: seldom enough not to disturb, often enough for its lines.
const PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use epicepoch_wire::{Epoch, EpochIndex, Timestamp, TimestampRange};

    use super::*;
    use crate::history::Outcome;

    fn answered(at: Instant, index: u64) -> Operation {
        let first = Timestamp::new(Epoch(7), EpochIndex(index));
        let range = TimestampRange::new(first, 1).expect("a range");
        let end = at + Duration::from_micros(10);
        Operation { start: at, end, node: 1, outcome: Outcome::Answered(range) }
    }

    #[test]
    fn what_two_threads_saw_is_judged_together() {
        for (second, clean) in [(2, true), (1, false), (0, false)] {
            let origin = Instant::now();
            let (checker, lines) = Checker::start(origin, 2);
            let mut lines = lines.into_iter();
            let (mut a, b) = (lines.next().unwrap(), lines.next().unwrap());
            let later = origin + Duration::from_micros(20);
            a.tell(Told { operations: vec![answered(origin, 1)], horizon: later });
            a.finish(Vec::new());
            b.finish(vec![answered(later, second)]);
            let found = checker.join();
            assert_eq!(found.verdict.is_clean(), clean, "{}", found.verdict);
            assert_eq!((found.verdict.totals.answered, found.left_out), (2, 0));
        }
    }
}
