//! The hiccup meter measures how long this machine stalls, so that its stalls are not blamed on the
//! service. A thread sleeps for a fixed time again and again, and records how much longer each
//! sleep took (after G. Tene's jHiccup). It takes no lock and waits for no other thread. So the
//! node affects it only by keeping all processors busy. The timer of the consensus thread would be
//! cheaper but wrong: it is late whenever that thread is busy.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::cell::{Count, Histogram};

/// Length of one sleep. It costs about 16 us of a virtual machine's core, which is 0.03 % of it
/// (the thread's `schedstat` over 20 s of an idle release build: 5.8 to 6.2 ms on three nodes).
/// Sleeps of 20 ms cost 0.11 %, and an idle leader may use 1 % for everything. The meter sees every
/// stall that is longer than a sleep; it sees a shorter one only if a sleep ends during it.
pub const PERIOD: Duration = Duration::from_millis(50);
/// Longer stalls are recorded as this long: a machine that stood still for a minute was down.
const STALL_MAX: Duration = Duration::from_mins(1);

/// The stalls that were measured.
#[derive(Debug)]
pub struct Hiccups {
    /// How much longer than [`PERIOD`] each sleep took, nanoseconds.
    pub lateness_ns: Histogram,
    /// The longest stall since the node started, nanoseconds.
    pub max_ns: Count,
}

impl Default for Hiccups {
    fn default() -> Self {
        Self { lateness_ns: Histogram::of_durations(), max_ns: Count::default() }
    }
}

impl Hiccups {
    /// Records a sleep that took `late` too long. More sleeps would have ended in that time, and
    /// they count, too. So a stall of three periods is counted four times: as three periods, two,
    /// one and none. Only one thread may call this.
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

/// A running meter; dropping it stops it.
#[derive(Debug)]
pub struct HiccupMeter {
    stop: Arc<AtomicBool>,
    thread: Thread,
}

impl HiccupMeter {
    /// Starts the thread, which writes to `hiccups`.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn spawn(hiccups: Arc<Hiccups>) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let body = move || {
            while !stopped.load(Ordering::Relaxed) {
                let before = Instant::now();
                thread::park_timeout(PERIOD);
                // A sleep that was interrupted measures nothing.
                if let Some(late) = before.elapsed().checked_sub(PERIOD) {
                    hiccups.record(late);
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
    fn a_long_stall_counts_every_sleep_that_would_have_ended_in_it() {
        let hiccups = Hiccups::default();
        hiccups.record(Duration::from_micros(60));
        assert_eq!((hiccups.lateness_ns.count(), hiccups.max_ns.load()), (1, 60_000));
        // A stall of two periods, 100 ms, is counted three times: as 100, 50 and 0 ms.
        hiccups.record(Duration::from_millis(100));
        assert_eq!((hiccups.lateness_ns.count(), hiccups.max_ns.load()), (4, 100_000_000));
        hiccups.record(Duration::from_millis(1));
        assert_eq!(hiccups.max_ns.load(), 100_000_000);
    }

    #[test]
    fn counting_an_hour_takes_bounded_time() {
        let hiccups = Hiccups::default();
        hiccups.record(Duration::from_hours(1));
        assert_eq!(hiccups.lateness_ns.count(), 1201);
    }
}
