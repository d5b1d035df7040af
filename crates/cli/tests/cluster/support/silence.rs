//! Measures for each event how long clients got no answer (the silence), or how long it took until
//! another node led. Checks that these times are within the promises of
//! `docs/operations/outages.md`.
//!
//! With `EPICEPOCH_OUTAGES_FACTOR=1`, no time may be longer than the promise. This is for release
//! builds on a dedicated machine (`scripts/outages`). Without the variable, twice the promise is
//! allowed, plus the time for which the machine itself stalled ([`Stalls`](super::stalls::Stalls)).
//! This is for debug builds on a shared machine.

use std::fmt;
use std::time::{Duration, Instant};

use super::watch::Seen;
use super::{millis, say};

/// Without `EPICEPOCH_OUTAGES_FACTOR`, a silence may last this many times as long as promised.
const FACTOR: u32 = 2;

/// How strictly a measured time is compared with the promise.
#[derive(Clone, Copy)]
struct Strictness {
    /// A silence may last this many times as long as promised.
    factor: u32,
    /// Whether stalls of the machine itself are subtracted.
    is_machine_allowed_for: bool,
}

impl Strictness {
    /// Reads it from the environment.
    fn set() -> Self {
        let setting = std::env::var("EPICEPOCH_OUTAGES_FACTOR").ok();
        let factor = setting.map_or(FACTOR, |text| {
            let factor = text.parse().ok().filter(|factor| *factor > 0);
            factor.unwrap_or_else(|| panic!("EPICEPOCH_OUTAGES_FACTOR is from 1, not {text:?}"))
        });
        Self::of(factor)
    }

    fn of(factor: u32) -> Self {
        Self { factor, is_machine_allowed_for: factor > 1 }
    }
}

/// The results of many events of the same kind: for each, the longest time without an answer, or
/// the time until another node led.
pub(crate) struct Silence {
    what: &'static str,
    event: &'static str,
    strictness: Strictness,
    gaps: Vec<Gap>,
}

/// The length of a silence, and how much of it may be due to stalls of the machine ([`Stalls`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Gap {
    length: Duration,
    allowance: Duration,
}

impl Silence {
    pub(crate) fn new(event: &'static str) -> Self {
        let strictness = Strictness::set();
        Self { what: "longest silence", event, strictness, gaps: Vec::new() }
    }

    /// Measures for each event the time until the test saw another node lead.
    pub(crate) fn until_another_leads(
        event: &'static str,
        seen: &Seen,
        windows: &[(Instant, Instant)],
    ) -> Self {
        let mut times = Self { what: "until another leads", ..Self::new(event) };
        for (from, to) in windows {
            times.add(*to - *from, seen.stalls.allowance(*from, *to));
        }
        times
    }

    /// Measures the longest silence of each event, from just before it until it was over.
    pub(crate) fn of(event: &'static str, seen: &Seen, windows: &[(Instant, Instant)]) -> Self {
        let mut silence = Self::new(event);
        for (from, to) in windows {
            silence.add(seen.times.gap_max(*from, *to), seen.stalls.allowance(*from, *to));
        }
        silence
    }

    /// Whether no time may be longer than the promise.
    pub(crate) fn is_strict(&self) -> bool {
        !self.strictness.is_machine_allowed_for
    }

    pub(crate) fn add(&mut self, length: Duration, allowance: Duration) {
        self.gaps.push(Gap { length, allowance });
        self.gaps.sort_unstable();
    }

    fn lengths(&self) -> Vec<Duration> {
        self.gaps.iter().map(|gap| gap.length).collect()
    }

    /// Returns the part of each silence that is compared with the bound. It is the whole silence,
    /// or the silence without the part that may be due to the machine.
    fn held(&self) -> Vec<Duration> {
        if !self.strictness.is_machine_allowed_for {
            return self.lengths();
        }
        let own = |gap: &Gap| gap.length.saturating_sub(gap.allowance);
        let mut own: Vec<Duration> = self.gaps.iter().map(own).collect();
        own.sort_unstable();
        own
    }

    /// Prints the distribution.
    fn print(&self) {
        let all: Vec<String> = self.gaps.iter().map(Gap::to_string).collect();
        let lengths = self.lengths();
        say(&format!(
            "{}, {}: {} events, p50 {:.1} ms, p99 {:.1} ms, worst {:.1} ms, all: {}",
            self.what,
            self.event,
            self.gaps.len(),
            millis(rank(&lengths, 50)),
            millis(rank(&lengths, 99)),
            millis(rank(&lengths, 100)),
            all.join(" "),
        ));
    }

    /// Checks that the median is at least `p50_ms`. If the silences are shorter, a node answered
    /// before it could be sure that it leads.
    #[track_caller]
    pub(crate) fn assert_at_least(&self, p50_ms: u64) {
        let p50 = rank(&self.lengths(), 50);
        assert!(p50 >= Duration::from_millis(p50_ms), "{}: only {p50:?} of silence", self.event);
    }

    /// Prints the distribution. Checks the promised `(p50, p99)`, in milliseconds, multiplied by
    /// the factor that is allowed. With fewer than a hundred events, the 99th percentile is the
    /// longest silence.
    #[track_caller]
    pub(crate) fn assert_promised(&self, (p50_ms, p99_ms): (u64, u64)) {
        self.print();
        self.assert_rank(50, p50_ms * u64::from(self.strictness.factor));
        self.assert_rank(99, p99_ms * u64::from(self.strictness.factor));
    }

    /// Checks that every silence is at most `ms` milliseconds, multiplied by the factor that is
    /// allowed.
    #[track_caller]
    pub(crate) fn assert_each_promised(&self, ms: u64) {
        self.assert_rank(100, ms * u64::from(self.strictness.factor));
    }

    /// Prints the distribution, and checks that every silence is at most `ms` milliseconds. The
    /// factor is not applied.
    #[track_caller]
    pub(crate) fn assert_within(&self, ms: u64) {
        self.print();
        self.assert_rank(100, ms);
    }

    #[track_caller]
    fn assert_rank(&self, percent: usize, ms: u64) {
        let held = rank(&self.held(), percent);
        let name = if percent == 100 { "worst".to_owned() } else { format!("p{percent}") };
        assert!(
            held <= Duration::from_millis(ms),
            "{}, {}: {name} {held:?} > {ms} ms",
            self.what,
            self.event
        );
    }
}

/// Returns a percentile of a sorted list, by the nearest-rank method.
fn rank(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent).div_ceil(100) - 1]
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
fn a_silence_is_held_to_its_bound_without_the_stalls_of_the_machine() {
    let ms = Duration::from_millis;
    let is_within = |length, allowance| {
        let mut silence = Silence { strictness: Strictness::of(2), ..Silence::new("test") };
        silence.add(ms(length), ms(allowance));
        let promised = std::panic::catch_unwind(|| silence.assert_promised((20, 20))).is_ok();
        let within = std::panic::catch_unwind(|| silence.assert_within(40)).is_ok();
        assert_eq!(promised, within);
        promised
    };
    assert!(is_within(40, 0) && is_within(70, 30));
    assert!(!is_within(41, 0) && !is_within(70, 29));
}

#[test]
fn with_a_factor_of_one_the_promise_is_held_to_the_millisecond() {
    let ms = Duration::from_millis;
    let mut silence = Silence { strictness: Strictness::of(1), ..Silence::new("test") };
    (1..=100).for_each(|length| silence.add(ms(length), ms(50)));
    let holds = |bounds| std::panic::catch_unwind(|| silence.assert_promised(bounds)).is_ok();
    assert!(holds((50, 99)));
    assert!(!holds((49, 99)) && !holds((50, 98)), "the machine is not allowed for");
    let is_each = |ms| std::panic::catch_unwind(|| silence.assert_each_promised(ms)).is_ok();
    assert!(is_each(100) && !is_each(99), "the 99th percentile is not the worst of a hundred");
}

#[test]
fn percentiles_are_by_nearest_rank() {
    let up_to = |count| (1..=count).map(Duration::from_millis).collect::<Vec<_>>();
    assert_eq!(rank(&up_to(20), 50), Duration::from_millis(10));
    assert_eq!(rank(&up_to(20), 99), Duration::from_millis(20));
    assert_eq!(rank(&up_to(200), 99), Duration::from_millis(198));
    assert_eq!(rank(&up_to(200), 100), Duration::from_millis(200));
}
