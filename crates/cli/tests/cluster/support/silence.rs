//! How long nobody answered, event by event: the figures of SPEC section 2.

use std::time::{Duration, Instant};

use epicepoch_bench::AnswerTimes;

use super::{millis, say};

/// The longest time without an answer around each of many equal events.
pub(crate) struct Silence {
    event: &'static str,
    gaps: Vec<Duration>,
}

impl Silence {
    pub(crate) fn new(event: &'static str) -> Self {
        Self { event, gaps: Vec::new() }
    }

    /// Measures the events, each from just before it happened until it was over.
    pub(crate) fn of(
        event: &'static str,
        times: &AnswerTimes,
        windows: &[(Instant, Instant)],
    ) -> Self {
        let mut silence = Self::new(event);
        for (from, to) in windows {
            silence.add(times.gap_max(*from, *to));
        }
        silence
    }

    pub(crate) fn add(&mut self, gap: Duration) {
        self.gaps.push(gap);
        self.gaps.sort_unstable();
    }

    /// The nearest-rank percentile.
    fn share(&self, share: f64) -> Duration {
        let rank = (self.gaps.len() as f64 * share).ceil() as usize;
        self.gaps[rank.clamp(1, self.gaps.len()) - 1]
    }

    /// Prints the distribution.
    pub(crate) fn tell(&self) {
        let all: Vec<String> = self.gaps.iter().map(|gap| format!("{:.1}", millis(*gap))).collect();
        say(&format!(
            "longest silence, {}: {} events, p50 {:.1} ms, p99 {:.1} ms, all: {}",
            self.event,
            self.gaps.len(),
            millis(self.share(0.5)),
            millis(self.share(0.99)),
            all.join(" "),
        ));
    }

    /// Prints the distribution and holds it to bounds in milliseconds.
    #[track_caller]
    pub(crate) fn assert_within(&self, p50_ms: u64, p99_ms: u64) {
        self.tell();
        let (p50, p99) = (self.share(0.5), self.share(0.99));
        let event = self.event;
        assert!(p50 <= Duration::from_millis(p50_ms), "{event}: p50 {p50:?} > {p50_ms} ms");
        assert!(p99 <= Duration::from_millis(p99_ms), "{event}: p99 {p99:?} > {p99_ms} ms");
    }
}

#[test]
fn a_share_of_the_silences_is_the_nearest_rank() {
    let mut silence = Silence::new("test");
    (1..=20).rev().for_each(|ms| silence.add(Duration::from_millis(ms)));
    assert_eq!(silence.share(0.5), Duration::from_millis(10));
    assert_eq!(silence.share(0.99), Duration::from_millis(20));
}
