//! Measures stalls of the machine while a test runs: how late a sleeping thread wakes on each
//! processor, and how long the disk takes for a small durable write. Nodes on the same machine must
//! wait for as long. So this time is subtracted from the time in which they did not answer.
//! Otherwise a test would measure the machine and not the nodes.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// How long a thread sleeps at a time.
const PAUSE: Duration = Duration::from_millis(1);
/// At most this many processors are watched. On a machine with more processors, the stall of one
/// processor stops no node.
const PROCESSORS_MAX: usize = 16;
/// The thread for the disk sleeps this many times between two durable writes. That is short enough
/// to notice a disk that hangs for 10 ms, and long enough to put little load on it.
const SLEEPS_PER_WRITE: u32 = 5;
/// When the file has this length, in bytes, a new one is begun. Each write makes the file longer.
/// So the write also waits for the file system's journal, as a database sometimes does.
const FILE_LEN_MAX: u64 = 1 << 20;
/// Bytes of one write.
const WRITE_LEN: usize = 4096;
/// A thread that wakes this late or later was stalled. Smaller delays are normal.
const LATE_WAKE_MIN: Duration = Duration::from_millis(2);
/// A durable write that takes this long or longer counts as a stall. The promised times are for a
/// disk that needs 0.1 to 0.2 ms.
const SLOW_WRITE_MIN: Duration = Duration::from_micros(500);
/// When leadership moves, this many writes come one after the other: the candidate's vote, the vote
/// of another node, and the new leader's first entry.
const WRITES_IN_A_ROW: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// A thread woke late, because its processor was busy.
    Wake,
    /// A write took long, because the disk was busy.
    Write,
}

#[derive(Debug)]
struct Stall {
    from: Instant,
    to: Instant,
    cause: Cause,
}

/// Watches the machine until it is stopped.
pub(crate) struct StallMeter {
    is_over: Arc<AtomicBool>,
    /// One thread for each processor, pinned to it, and one thread for the disk. A thread that is
    /// not pinned would notice only stalls of the processor on which it happens to run.
    threads: Vec<JoinHandle<Stalls>>,
}

impl StallMeter {
    /// Starts to watch. The file that it writes is on the same disk as the data of the nodes.
    pub(crate) fn start() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let file = tempfile::tempfile().expect("a temporary file");
        let mut threads = vec![std::thread::spawn(move || watch_disk(&file, &over))];
        for processor in processors() {
            let over = is_over.clone();
            threads.push(std::thread::spawn(move || watch_processor(processor, &over)));
        }
        Self { is_over, threads }
    }

    pub(crate) fn stop(self) -> Stalls {
        self.is_over.store(true, Ordering::SeqCst);
        let seen = self.threads.into_iter().flat_map(|it| it.join().expect("it could watch").0);
        Stalls(seen.collect())
    }
}

/// Returns the processors on which this process and its nodes may run.
fn processors() -> Vec<usize> {
    let allowed = sched_getaffinity(None).expect("our own processors are known");
    (0..CpuSet::MAX_CPU).filter(|it| allowed.is_set(*it)).take(PROCESSORS_MAX).collect()
}

fn watch_processor(processor: usize, is_over: &AtomicBool) -> Stalls {
    let mut only = CpuSet::new();
    only.set(processor);
    sched_setaffinity(None, &only).expect("one of our own processors can be chosen");
    let mut stalls = Stalls::default();
    while !is_over.load(Ordering::SeqCst) {
        let due = Instant::now() + PAUSE;
        std::thread::sleep(PAUSE);
        stalls.record(Cause::Wake, due, Instant::now());
    }
    stalls
}

fn watch_disk(file: &File, is_over: &AtomicBool) -> Stalls {
    let mut stalls = Stalls::default();
    let mut length = 0;
    while !is_over.load(Ordering::SeqCst) {
        std::thread::sleep(PAUSE * SLEEPS_PER_WRITE);
        let from = Instant::now();
        file.write_all_at(&[0; WRITE_LEN], length)
            .and_then(|()| file.sync_data())
            .expect("a durable write");
        stalls.record(Cause::Write, from, Instant::now());
        length += WRITE_LEN as u64;
        if length > FILE_LEN_MAX {
            file.set_len(0).expect("a shorter file");
            length = 0;
        }
    }
    stalls
}

/// The stalls of the machine.
#[derive(Debug, Default)]
pub(crate) struct Stalls(Vec<Stall>);

impl Stalls {
    fn record(&mut self, cause: Cause, from: Instant, to: Instant) {
        let stall_min = match cause {
            Cause::Wake => LATE_WAKE_MIN,
            Cause::Write => SLOW_WRITE_MIN,
        };
        if to.saturating_duration_since(from) >= stall_min {
            self.0.push(Stall { from, to, cause });
        }
    }

    /// Returns how much of a silence between `from` and `to` may be due to the machine. That is one
    /// late wake-up, and the writes of a handover. Each write counts as much as the slowest one in
    /// that time.
    pub(crate) fn allowance(&self, from: Instant, to: Instant) -> Duration {
        let longest = |cause| {
            let met =
                self.0.iter().filter(|it| it.cause == cause && it.from <= to && it.to >= from);
            met.map(|it| it.to - it.from).max().unwrap_or_default()
        };
        longest(Cause::Wake) + longest(Cause::Write) * WRITES_IN_A_ROW
    }
}

#[test]
fn every_processor_is_watched_by_a_pinned_thread() {
    let meter = StallMeter::start();
    assert_eq!(meter.threads.len(), 1 + processors().len());
    drop(meter.stop());
    let chosen: Vec<usize> = processors();
    let alone = std::thread::spawn(move || {
        watch_processor(chosen[0], &AtomicBool::new(true));
        processors()
    });
    assert_eq!(alone.join().expect("it could watch").len(), 1, "it may go nowhere else");
}

#[test]
fn only_stalls_in_a_window_are_allowed_for() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let mut stalls = Stalls::default();
    stalls.record(Cause::Wake, at(0), at(1));
    assert_eq!(stalls.allowance(at(0), at(100)), Duration::ZERO, "as it always is");
    stalls.record(Cause::Wake, at(10), at(15));
    stalls.record(Cause::Write, at(20), at(30));
    stalls.record(Cause::Write, at(40), at(44));
    assert_eq!(stalls.allowance(at(0), at(100)), Duration::from_millis(5 + 3 * 10));
    assert_eq!(stalls.allowance(at(35), at(100)), Duration::from_millis(3 * 4));
    assert_eq!(stalls.allowance(at(50), at(100)), Duration::ZERO);
}
