//! The hiccup meter measures how much the machine itself stalls. A thread sleeps 1 ms again and
//! again and records how much longer each sleep took (after G. Tene's jHiccup). A long stall delays
//! everything that would have happened during it. So it is recorded as many delays, from its whole
//! length down to zero.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::latency;
use crate::run::time_series::{self, Packed};

/// How much longer than 1 ms each sleep of 1 ms took, nanoseconds.
#[derive(Clone, Debug)]
pub struct Hiccups {
    /// All hiccups.
    pub all: Histogram<u64>,
    /// Hiccups by the number of the interval in which the sleep began.
    pub intervals: BTreeMap<u64, Packed>,
}

/// A running meter. Dropping it stops it.
#[derive(Debug)]
pub struct HiccupMeter {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Hiccups>>,
}

impl HiccupMeter {
    /// Starts the thread. Sleeps that begin in `window` count. The first interval begins with the
    /// window.
    ///
    /// # Panics
    /// If a thread cannot be started.
    #[must_use]
    pub fn start(window: Range<Instant>, interval: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let body = move || measure(&window, interval, &stopped);
        let thread = std::thread::Builder::new().name("hiccup".to_owned()).spawn(body);
        Self { stop, thread: Some(thread.expect("threads can be started")) }
    }

    /// Stops it and returns the hiccups.
    #[must_use]
    pub fn stop(mut self) -> Hiccups {
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

fn measure(window: &Range<Instant>, interval: Duration, stop: &AtomicBool) -> Hiccups {
    let mut hiccups = Hiccups { all: latency::histogram(), intervals: BTreeMap::new() };
    let (mut current, mut number) = (latency::histogram(), 0);
    while !stop.load(Ordering::Relaxed) {
        let before = Instant::now();
        std::thread::sleep(PAUSE);
        if window.contains(&before) {
            let hiccup = before.elapsed().saturating_sub(PAUSE);
            let present = time_series::number(window.start, before, interval);
            if present != number {
                hiccups.close(number, &mut current);
                number = present;
            }
            add(&mut current, hiccup);
        }
    }
    hiccups.close(number, &mut current);
    hiccups
}

impl Hiccups {
    fn close(&mut self, number: u64, current: &mut Histogram<u64>) {
        if !current.is_empty() {
            self.all.add(&*current).expect("the same bounds");
            self.intervals.insert(number, Packed::new(current));
            current.reset();
        }
    }
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

    #[test]
    fn a_meter_records_until_it_is_stopped() {
        let (from, interval) = (Instant::now(), Duration::from_millis(10));
        let meter = HiccupMeter::start(from..from + 5 * interval, interval);
        std::thread::sleep(Duration::from_millis(100));
        let hiccups = meter.stop();
        let mut sum = latency::histogram();
        for packed in hiccups.intervals.values() {
            sum.add(packed.unpack()).expect("the same bounds");
        }
        assert!(!sum.is_empty());
        assert!((1..=5).contains(&hiccups.intervals.len()), "{}", hiccups.intervals.len());
        assert_eq!(sum, hiccups.all);
    }
}
