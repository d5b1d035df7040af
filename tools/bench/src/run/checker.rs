//! Checks that answers are unique and in real-time order, on its own thread and in bounded memory.
//! It never delays a generator thread: answers beyond its limits count as not checked.

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
    /// Operations that this thread reports later start at or after this time; `None` if it reports
    /// no more.
    pub(super) horizon: Option<Instant>,
}

/// A thread's sender to the checker.
#[derive(Debug)]
pub(super) struct ToChecker {
    thread: usize,
    sender: SyncSender<(usize, Batch)>,
}

impl ToChecker {
    /// Sends a report unless the channel is full. Returns how many operations were not accepted.
    pub(super) fn send(&mut self, batch: Batch) -> u64 {
        match self.sender.try_send((self.thread, batch)) {
            Ok(()) => 0,
            Err(TrySendError::Full((_, batch)) | TrySendError::Disconnected((_, batch))) => {
                batch.operations.len() as u64
            }
        }
    }

    /// Sends the last report. If the channel is full this call waits, which disturbs nothing
    /// because the load is over.
    pub(super) fn finish(self, operations: Vec<Operation>) -> u64 {
        let count = operations.len() as u64;
        let batch = Batch { operations, horizon: None };
        self.sender.send((self.thread, batch)).map_or(count, |()| 0)
    }
}

/// What the checker found.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// Totals and violations.
    pub verdict: Verdict,
    /// Operations that were not checked, because the checker held too many answers already.
    pub left_out: u64,
    /// CPU time of the check, which competes with the service on a small machine.
    pub cpu: Duration,
}

/// The thread that checks answers.
#[derive(Debug)]
pub(super) struct Checker {
    thread: JoinHandle<()>,
    checked: Arc<Mutex<Checked>>,
}

impl Checker {
    /// Starts a checker and returns a sender for each thread. No operation starts before `origin`.
    pub(super) fn start(origin: Instant, threads: usize) -> (Self, Vec<ToChecker>) {
        let (sender, receiver) = sync_channel(WAITING_MAX * threads);
        let senders = (0..threads).map(|thread| ToChecker { thread, sender: sender.clone() });
        let checked = Arc::new(Mutex::default());
        let found = checked.clone();
        let body = move || check(origin, threads, &receiver, &found);
        let thread = std::thread::Builder::new().name("check".to_owned()).spawn(body);
        (Self { thread: thread.expect("threads can be started"), checked }, senders.collect())
    }

    /// Returns the findings so far.
    pub(super) fn checked(&self) -> Checked {
        self.checked.lock().expect("nobody panics with it").clone()
    }

    /// Waits until every sent report is checked. Drop all senders first.
    pub(super) fn wait(&self) {
        while !self.thread.is_finished() {
            std::thread::sleep(PAUSE);
        }
    }

    pub(super) fn join(self) -> Checked {
        self.thread.join().expect("the checker never panics");
        std::mem::take(&mut self.checked.lock().expect("nobody panics with it"))
    }
}

fn check(
    origin: Instant,
    threads: usize,
    receiver: &Receiver<(usize, Batch)>,
    found: &Mutex<Checked>,
) {
    let mut history = History::new(origin);
    let mut horizons = vec![Some(origin); threads];
    let mut is_over = false;
    while !is_over {
        std::thread::sleep(PAUSE);
        let mut left_out = 0;
        // Reads at most as many reports as the channel holds.
        for _ in 0..WAITING_MAX * threads {
            let (thread, batch) = match receiver.try_recv() {
                Ok(report) => report,
                Err(error) => {
                    is_over = error == TryRecvError::Disconnected;
                    break;
                }
            };
            horizons[thread] = batch.horizon;
            if history.held() + batch.operations.len() > HELD_MAX {
                left_out += batch.operations.len() as u64;
            } else {
                history.record_all(&batch.operations);
            }
        }
        let horizon = horizons.iter().flatten().min().copied();
        let settled = history.settle(horizon.unwrap_or_else(Instant::now));
        let mut checked = found.lock().expect("nobody panics with it");
        checked.left_out += left_out;
        checked.cpu = machine::thread_cpu();
        merge(&mut checked.verdict, settled);
    }
}

fn merge(verdict: &mut Verdict, next: Verdict) {
    verdict.totals = next.totals;
    verdict.violation_count += next.violation_count;
    let room = VIOLATIONS_KEPT_MAX - verdict.violations.len();
    verdict.violations.extend(next.violations.into_iter().take(room));
}

/// At most this many reports of one thread wait for the checker.
const WAITING_MAX: usize = 256;
/// At most this many answers are held, because a later one may contradict them. Each takes 48
/// bytes.
const HELD_MAX: usize = 1 << 20;
/// Pause between two reads of the channel: long enough not to disturb the load, short enough that
/// the channel does not fill up.
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
    fn answers_of_two_threads_are_checked_together() {
        for (second, clean) in [(2, true), (1, false), (0, false)] {
            let origin = Instant::now();
            let (checker, lines) = Checker::start(origin, 2);
            let mut lines = lines.into_iter();
            let (mut a, b) = (lines.next().unwrap(), lines.next().unwrap());
            let later = origin + Duration::from_micros(20);
            a.send(Batch { operations: vec![answered(origin, 1)], horizon: Some(later) });
            a.finish(Vec::new());
            b.finish(vec![answered(later, second)]);
            let found = checker.join();
            assert_eq!(found.verdict.is_clean(), clean, "{}", found.verdict);
            assert_eq!((found.verdict.totals.answered, found.left_out), (2, 0));
        }
    }
}
