//! The hiccup meter: by how much this machine stalls, so that a slow answer of the machine is not
//! blamed on the service. A thread of its own sleeps for a fixed time, again and again, and
//! records how much longer that took (after G. Tene's jHiccup). It does nothing else, takes no
//! lock and never waits for another thread of the node, so what it sees is not the node's doing,
//! but where the node itself takes all processors. The consensus thread's timer would be cheaper
//! and would lie: it is late whenever that thread is busy.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::metrics::Metrics;
use crate::metrics::cell::{Count, Histogram};

/// Between two looks at the clock. Each costs about 16 us of a virtual machine's core, 0.03 % of it
/// (the thread's `schedstat` over 20 s of an idle release build: 5.8 to 6.2 ms on three nodes), and
/// an idle leader has 1 % of one for everything: 20 ms were measured to cost 0.11 %. A stall that
/// is shorter is seen as often as it falls on the end of a sleep, a longer one always.
pub const PERIOD: Duration = Duration::from_millis(50);
/// Longer stalls count as this: a machine that stood still for a minute was gone.
const STALL_MAX: Duration = Duration::from_mins(1);

/// What was seen.
#[derive(Debug)]
pub struct Hiccups {
    /// How much longer than [`PERIOD`] sleeps took, nanoseconds.
    pub lateness_ns: Histogram,
    /// The longest of them since the node started.
    pub max_ns: Count,
}

impl Default for Hiccups {
    fn default() -> Self {
        Self { lateness_ns: Histogram::of_durations(), max_ns: Count::default() }
    }
}

impl Hiccups {
    /// Records one sleep that took `late` too long. What would have been looked at meanwhile
    /// was late, too: a stall of three periods counts four times, each a period shorter. Only
    /// one thread may call this.
    fn record(&self, late: Duration) {
        let mut late = late.min(STALL_MAX);
        self.max_ns.set(self.max_ns.load().max(late.as_nanos() as u64));
        loop {
            self.lateness_ns.observe_alone(late.as_nanos() as u64, 1);
            match late.checked_sub(PERIOD) {
                Some(left) => late = left,
                None => return,
            }
        }
    }
}

/// A meter under way. Dropping it stops it.
#[derive(Debug)]
pub struct HiccupMeter {
    stop: Arc<AtomicBool>,
    thread: Thread,
}

impl HiccupMeter {
    /// Starts the thread, which writes to `metrics`.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn spawn(metrics: Arc<Metrics>) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let body = move || {
            while !stopped.load(Ordering::Relaxed) {
                let before = Instant::now();
                thread::park_timeout(PERIOD);
                // A sleep that was cut short says nothing.
                if let Some(late) = before.elapsed().checked_sub(PERIOD) {
                    metrics.hiccups.record(late);
                }
            }
        };
        let thread = thread::Builder::new().name("hiccup".into()).spawn(body)?.thread().clone();
        Ok(Self { stop, thread })
    }
}

impl Drop for HiccupMeter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_stall_counts_for_everything_that_was_due_inside_it() {
        let hiccups = Hiccups::default();
        hiccups.record(Duration::from_micros(60));
        assert_eq!((hiccups.lateness_ns.count(), hiccups.max_ns.load()), (1, 60_000));
        // 100, 50 and 0 ms.
        hiccups.record(Duration::from_millis(100));
        assert_eq!((hiccups.lateness_ns.count(), hiccups.max_ns.load()), (4, 100_000_000));
        hiccups.record(Duration::from_millis(1));
        assert_eq!(hiccups.max_ns.load(), 100_000_000);
    }

    #[test]
    fn an_hour_is_counted_in_bounded_time() {
        let hiccups = Hiccups::default();
        hiccups.record(Duration::from_hours(1));
        assert_eq!(hiccups.lateness_ns.count(), 1201);
    }
}
