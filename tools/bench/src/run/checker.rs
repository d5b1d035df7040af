//! Checks that answers are unique and in real-time order, on its own thread and in bounded memory.
//! It never delays a generator thread: answers beyond its limits count as not checked.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::history::{History, Operation};
use crate::machine;
use crate::verdict::{VIOLATIONS_KEPT_MAX, Verdict};

/// A report of one thread to the checker.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) operations: Vec<Operation>,
    /// Operations that this thread reports later start at or after this time.
    pub(super) horizon: Instant,
}

/// A thread's sender to the checker.
#[derive(Debug)]
pub(super) struct ToChecker {
    sender: SyncSender<Batch>,
}

impl ToChecker {
    /// Sends a report unless the channel is full. Returns how many operations were not accepted.
    pub(super) fn send(&mut self, batch: Batch) -> u64 {
        match self.sender.try_send(batch) {
            Ok(()) => 0,
            Err(TrySendError::Full(batch) | TrySendError::Disconnected(batch)) => {
                batch.operations.len() as u64
            }
        }
    }

    /// Sends the last report. It may wait, because the load is over.
    pub(super) fn finish(self, operations: Vec<Operation>) -> u64 {
        let count = operations.len() as u64;
        let batch = Batch { operations, horizon: Instant::now() };
        self.sender.send(batch).map_or(count, |()| 0)
    }
}

/// What the checker found.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// Totals and violations.
    pub verdict: Verdict,
    /// Operations that were not checked because too many were held.
    pub left_out: u64,
    /// CPU time of the check, which competes with the service on a small machine.
    pub cpu: Duration,
}

/// Findings so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    /// Wrong answers since the beginning.
    pub(super) violations: u64,
    /// Answers checked since the beginning.
    pub(super) checked: u64,
    /// Descriptions of wrong answers since the last call; a few at most.
    pub(super) descriptions: Vec<String>,
}

/// The thread that checks answers.
#[derive(Debug)]
pub(super) struct Checker {
    thread: JoinHandle<Checked>,
    findings: Arc<Mutex<Findings>>,
}

impl Checker {
    /// Starts a checker and returns a sender for each thread. No operation starts before `origin`.
    pub(super) fn start(origin: Instant, threads: usize) -> (Self, Vec<ToChecker>) {
        let lines = (0..threads).map(|_| sync_channel(LINE_MAX));
        let (senders, receivers): (Vec<_>, Vec<_>) = lines.unzip();
        let findings = Arc::new(Mutex::new(Findings::default()));
        let published = findings.clone();
        let body = move || check(origin, receivers, &published);
        let thread = std::thread::Builder::new().name("check".to_owned()).spawn(body);
        let thread = thread.expect("threads can be started");
        (
            Self { thread, findings },
            senders.into_iter().map(|sender| ToChecker { sender }).collect(),
        )
    }

    /// Returns the findings so far. Each violation is described only once.
    pub(super) fn findings(&self) -> Findings {
        let mut findings = self.findings.lock().expect("nobody panics with it");
        let descriptions = std::mem::take(&mut findings.descriptions);
        Findings { descriptions, ..*findings }
    }

    /// Waits until every sent report is checked. Drop all senders first.
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
    receiver: Receiver<Batch>,
    horizon: Instant,
    over: bool,
}

fn check(origin: Instant, receivers: Vec<Receiver<Batch>>, findings: &Mutex<Findings>) -> Checked {
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
        // A thread that has ended reports nothing more, so its horizon does not count.
        let open = lines.iter().filter(|line| !line.over).map(|line| line.horizon).min();
        let horizon = open.unwrap_or_else(Instant::now);
        let settled = history.settle(horizon);
        publish(findings, &settled);
        merge(&mut checked.verdict, settled);
    }
    checked.cpu = machine::thread_cpu();
    checked
}

/// Reads at most as many reports as a channel holds.
fn take(line: &mut Line, history: &mut History, left_out: &mut u64) {
    for _ in 0..LINE_MAX {
        let batch = match line.receiver.try_recv() {
            Ok(batch) => batch,
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Disconnected) => {
                line.over = true;
                return;
            }
        };
        line.horizon = batch.horizon;
        if history.held() + batch.operations.len() > HELD_MAX {
            *left_out += batch.operations.len() as u64;
        } else {
            history.record_all(&batch.operations);
        }
    }
}

fn publish(findings: &Mutex<Findings>, settled: &Verdict) {
    let mut findings = findings.lock().expect("nobody panics with it");
    findings.checked = settled.totals.answered;
    findings.violations += settled.violation_count;
    let room = VIOLATIONS_KEPT_MAX.saturating_sub(findings.descriptions.len());
    findings.descriptions.extend(settled.violations.iter().take(room).map(ToString::to_string));
}

fn merge(verdict: &mut Verdict, next: Verdict) {
    verdict.totals = next.totals;
    verdict.violation_count += next.violation_count;
    let room = VIOLATIONS_KEPT_MAX - verdict.violations.len();
    verdict.violations.extend(next.violations.into_iter().take(room));
}

/// Most reports that wait in one channel.
const LINE_MAX: usize = 256;
/// Most answers that are held because a later one may contradict them, 48 bytes each.
const HELD_MAX: usize = 1 << 20;
/// Pause between two reads of the channels: long enough not to disturb the load, short enough that
/// no channel fills up.
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
            a.send(Batch { operations: vec![answered(origin, 1)], horizon: later });
            a.finish(Vec::new());
            b.finish(vec![answered(later, second)]);
            let found = checker.join();
            assert_eq!(found.verdict.is_clean(), clean, "{}", found.verdict);
            assert_eq!((found.verdict.totals.answered, found.left_out), (2, 0));
        }
    }
}
