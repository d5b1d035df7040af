//! How long nobody answered, event by event: the figures of `docs/operations.md`,
//! "How long an outage lasts".

use std::fmt;
use std::time::{Duration, Instant};

use super::watch::Seen;
use super::{millis, say};

/// The longest time without an answer around each of many equal events.
pub(crate) struct Silence {
    event: &'static str,
    gaps: Vec<Gap>,
}

/// How long it was, and how much of that can be the machine's ([`Stalls`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Gap {
    length: Duration,
    allowance: Duration,
}

impl Silence {
    pub(crate) fn new(event: &'static str) -> Self {
        Self { event, gaps: Vec::new() }
    }

    /// Measures the events, each from just before it happened until it was over.
    pub(crate) fn of(event: &'static str, seen: &Seen, windows: &[(Instant, Instant)]) -> Self {
        let mut silence = Self::new(event);
        for (from, to) in windows {
            silence.add(seen.times.gap_max(*from, *to), seen.stalls.allowance(*from, *to));
        }
        silence
    }

    pub(crate) fn add(&mut self, length: Duration, allowance: Duration) {
        self.gaps.push(Gap { length, allowance });
        self.gaps.sort_unstable();
    }

    /// The median, by nearest rank.
    fn median(&self) -> Duration {
        self.gaps[self.gaps.len().div_ceil(2) - 1].length
    }

    /// The 99th percentile, by nearest rank: the worst of up to a hundred events.
    fn p99(&self) -> Duration {
        self.gaps[(self.gaps.len() * 99).div_ceil(100) - 1].length
    }

    /// Of a few dozen events the worst is all that can be said about the tail.
    fn worst(&self) -> Duration {
        self.gaps[self.gaps.len() - 1].length
    }

    /// Prints the distribution.
    pub(crate) fn tell(&self) {
        let all: Vec<String> = self.gaps.iter().map(Gap::to_string).collect();
        say(&format!(
            "longest silence, {}: {} events, p50 {:.1} ms, p99 {:.1} ms, worst {:.1} ms, all: {}",
            self.event,
            self.gaps.len(),
            millis(self.median()),
            millis(self.p99()),
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

    /// Prints the distribution and holds it to bounds in milliseconds, each silence beside what
    /// the machine itself was held up meanwhile.
    #[track_caller]
    pub(crate) fn assert_within(&self, p50_ms: u64, worst_ms: u64) {
        self.tell();
        let event = self.event;
        let mut own: Vec<Duration> =
            self.gaps.iter().map(|gap| gap.length.saturating_sub(gap.allowance)).collect();
        own.sort_unstable();
        let (p50, worst) = (own[own.len().div_ceil(2) - 1], own[own.len() - 1]);
        assert!(p50 <= Duration::from_millis(p50_ms), "{event}: p50 {p50:?} > {p50_ms} ms");
        assert!(worst <= Duration::from_millis(worst_ms), "{event}: {worst:?} > {worst_ms} ms");
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:.1}", millis(self.length))?;
        if self.allowance > Duration::ZERO {
            write!(formatter, " (machine {:.1})", millis(self.allowance))?;
        }
        Ok(())
    }
}

#[test]
fn a_silence_is_held_to_its_bound_beside_what_the_machine_was_held_up() {
    let ms = Duration::from_millis;
    let is_within = |length, allowance| {
        let mut silence = Silence::new("test");
        silence.add(ms(length), ms(allowance));
        std::panic::catch_unwind(|| silence.assert_within(40, 40)).is_ok()
    };
    assert!(is_within(40, 0) && is_within(70, 30));
    assert!(!is_within(41, 0) && !is_within(70, 29));
}

#[test]
fn the_median_of_the_silences_is_the_nearest_rank() {
    let mut silence = Silence::new("test");
    (1..=20).rev().for_each(|ms| silence.add(Duration::from_millis(ms), Duration::ZERO));
    assert_eq!(silence.median(), Duration::from_millis(10));
    assert_eq!(silence.worst(), Duration::from_millis(20));
    assert_eq!(silence.p99(), Duration::from_millis(20));
    (21..=200).for_each(|ms| silence.add(Duration::from_millis(ms), Duration::ZERO));
    assert_eq!(silence.p99(), Duration::from_millis(198));
}
