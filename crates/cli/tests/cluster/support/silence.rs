//! How long nobody answered, event by event: the figures of `docs/operations.md`,
//! "How long an outage lasts".

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

    /// The median, by nearest rank.
    fn median(&self) -> Duration {
        self.gaps[self.gaps.len().div_ceil(2) - 1]
    }

    /// Of a few dozen events the worst is all that can be said about the tail.
    fn worst(&self) -> Duration {
        self.gaps[self.gaps.len() - 1]
    }

    /// Prints the distribution.
    pub(crate) fn tell(&self) {
        let all: Vec<String> = self.gaps.iter().map(|gap| format!("{:.1}", millis(*gap))).collect();
        say(&format!(
            "longest silence, {}: {} events, p50 {:.1} ms, worst {:.1} ms, all: {}",
            self.event,
            self.gaps.len(),
            millis(self.median()),
            millis(self.worst()),
            all.join(" "),
        ));
    }

    /// Holds the median from below, in milliseconds: somebody answered who could not know that he
    /// may.
    #[track_caller]
    pub(crate) fn assert_at_least(&self, p50_ms: u64) {
        let p50 = self.median();
        assert!(p50 >= Duration::from_millis(p50_ms), "{}: only {p50:?} of silence", self.event);
    }

    /// Prints the distribution and holds it to bounds in milliseconds.
    #[track_caller]
    pub(crate) fn assert_within(&self, p50_ms: u64, worst_ms: u64) {
        self.tell();
        let (p50, worst) = (self.median(), self.worst());
        let event = self.event;
        assert!(p50 <= Duration::from_millis(p50_ms), "{event}: p50 {p50:?} > {p50_ms} ms");
        assert!(worst <= Duration::from_millis(worst_ms), "{event}: {worst:?} > {worst_ms} ms");
    }
}

#[test]
fn the_median_of_the_silences_is_the_nearest_rank() {
    let mut silence = Silence::new("test");
    (1..=20).rev().for_each(|ms| silence.add(Duration::from_millis(ms)));
    assert_eq!(silence.median(), Duration::from_millis(10));
    assert_eq!(silence.worst(), Duration::from_millis(20));
}
