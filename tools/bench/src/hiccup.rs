//! The hiccup meter measures how much the machine itself stalls. A thread sleeps 1 ms again and
//! again and records how much longer each sleep took (after G. Tene's jHiccup). A long stall delays
//! everything that would have happened during it. So it is recorded as many delays, from its whole
//! length down to zero.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::latency;

/// A running meter. Dropping it stops it.
#[derive(Debug)]
pub struct HiccupMeter {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Histogram<u64>>>,
}

impl HiccupMeter {
    /// Starts the thread. Sleeps that begin in `window` count.
    ///
    /// # Panics
    /// If a thread cannot be started.
    #[must_use]
    pub fn start(window: Range<Instant>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let body = move || measure(&window, &stopped);
        let thread = std::thread::Builder::new().name("hiccup".to_owned()).spawn(body);
        Self { stop, thread: Some(thread.expect("threads can be started")) }
    }

    /// Stops the meter. Returns how much longer than 1 ms each sleep of 1 ms took, nanoseconds.
    #[must_use]
    pub fn stop(mut self) -> Histogram<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it is taken only here");
        thread.join().expect("the meter never panics")
    }
}

impl Drop for HiccupMeter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn measure(window: &Range<Instant>, stop: &AtomicBool) -> Histogram<u64> {
    let mut hiccups = latency::histogram();
    while !stop.load(Ordering::Relaxed) {
        let before = Instant::now();
        std::thread::sleep(PAUSE);
        if window.contains(&before) {
            add(&mut hiccups, before.elapsed().saturating_sub(PAUSE));
        }
    }
    hiccups
}

fn add(hiccups: &mut Histogram<u64>, hiccup: Duration) {
    let nanos = (hiccup.as_nanos() as u64).min(latency::LATENCY_NS_MAX);
    hiccups
        .record_correct(nanos, PAUSE.as_nanos() as u64)
        .expect("the value was brought below the bound");
}

/// Length of each sleep.
const PAUSE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_hiccup_counts_for_everything_inside_it() {
        let mut hiccups = latency::histogram();
        add(&mut hiccups, Duration::from_micros(60));
        assert_eq!(hiccups.len(), 1);
        add(&mut hiccups, Duration::from_millis(100));
        assert!((99..=101).contains(&hiccups.len()), "{}", hiccups.len());
        let median = latency::quantile(&hiccups, 0.5).as_millis();
        assert!((48..=52).contains(&median), "{median}");
    }
}
