//! The counts of a run by intervals of time. Each thread records into its own pieces and hands them
//! over. One thread adds them up and compresses closed intervals, so that a day fits into memory.
//! An interval holds what was *answered* in it, whenever it was due. All intervals together are
//! exactly the counts of the run.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::counts::{Counts, Failures, Live};
use super::window::Window;
use crate::{encoded, latency};

/// One interval of a run.
#[derive(Clone, Debug)]
pub struct Interval {
    /// Number of the interval. Number 0 begins at the end of the warm-up.
    pub number: u64,
    /// Requests that brought no timestamps.
    pub failures: Failures,
    /// The answers and their latency.
    pub latency: Packed,
}

/// A compressed histogram of latencies ([`encoded`]). The figures that a report shows are stored
/// beside it, so that it need not be decoded. They are nanoseconds, and 0 if there was no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packed {
    /// Number of values: requests that brought timestamps.
    pub answers: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// The highest value.
    pub max_ns: u64,
    /// The whole histogram.
    pub histogram: String,
}

impl Packed {
    /// Packs a histogram with the bounds of [`latency`].
    #[must_use]
    pub fn new(histogram: &Histogram<u64>) -> Self {
        Self {
            answers: histogram.len(),
            p50_ns: histogram.value_at_quantile(0.5),
            p99_ns: histogram.value_at_quantile(0.99),
            p999_ns: histogram.value_at_quantile(0.999),
            max_ns: histogram.max(),
            histogram: encoded::encode(histogram),
        }
    }

    /// Returns the histogram.
    ///
    /// # Panics
    /// If it was not packed by this program.
    #[must_use]
    pub fn unpack(&self) -> Histogram<u64> {
        encoded::decode(&self.histogram).expect("it was packed here")
    }
}

/// The counts of one thread since its last piece, all in one interval.
#[derive(Debug)]
pub(super) struct Piece {
    /// Number of the interval; `None` in the warm-up, which does not count.
    pub(super) number: Option<u64>,
    pub(super) answers: u64,
    pub(super) timestamps: u64,
    pub(super) failures: Failures,
    pub(super) latency_ns: Histogram<u64>,
    /// Answers after the warm-up to requests of the warm-up. They are shown live, but never
    /// counted.
    pub(super) late_answers: u64,
    /// Failures of requests of the warm-up that happened after it, and connections that failed
    /// outside the measured time.
    pub(super) late_failures: u64,
}

impl Piece {
    pub(super) fn new() -> Self {
        Self {
            number: None,
            answers: 0,
            timestamps: 0,
            failures: Failures::new(),
            latency_ns: latency::histogram(),
            late_answers: 0,
            late_failures: 0,
        }
    }

    fn clear(&mut self) {
        self.answers = 0;
        self.timestamps = 0;
        self.failures.clear();
        self.latency_ns.reset();
        self.late_answers = 0;
        self.late_failures = 0;
    }

    fn is_empty(&self) -> bool {
        self.answers + self.late_answers + self.late_failures == 0 && self.failures.is_empty()
    }
}

/// Where threads hand over their pieces. Its lock is held for a few instructions.
#[derive(Debug, Default)]
pub(super) struct Exchange(Mutex<Handed>);

#[derive(Debug, Default)]
struct Handed {
    full: Vec<Piece>,
    empty: Vec<Piece>,
}

impl Exchange {
    /// Hands over a piece unless it is empty, and replaces it with an empty one of interval
    /// `number`.
    pub(super) fn hand_over(&self, piece: &mut Piece, number: Option<u64>) {
        if !piece.is_empty() {
            let spare = self.0.lock().expect("nobody panics with it").empty.pop();
            let full = std::mem::replace(piece, spare.unwrap_or_else(Piece::new));
            self.0.lock().expect("nobody panics with it").full.push(full);
        }
        piece.number = number;
    }

    /// Takes all pieces that were handed over. Give them back after reading.
    pub(super) fn take(&self) -> Vec<Piece> {
        std::mem::take(&mut self.0.lock().expect("nobody panics with it").full)
    }

    pub(super) fn give_back(&self, mut pieces: Vec<Piece>) {
        pieces.iter_mut().for_each(Piece::clear);
        let mut handed = self.0.lock().expect("nobody panics with it");
        handed.empty.append(&mut pieces);
    }
}

/// Adds up pieces.
#[derive(Debug)]
pub(super) struct TimeSeries {
    open: VecDeque<Open>,
    closed: BTreeMap<u64, Interval>,
}

#[derive(Debug)]
struct Open {
    number: u64,
    failures: Failures,
    latency_ns: Histogram<u64>,
}

impl TimeSeries {
    pub(super) fn new() -> Self {
        Self { open: VecDeque::new(), closed: BTreeMap::new() }
    }

    /// Adds the pieces that were handed over to the series, to the counts of the run, and to
    /// `live`.
    pub(super) fn take(&mut self, exchange: &Exchange, counts: &mut Counts, live: &mut Live) {
        let pieces = exchange.take();
        for piece in &pieces {
            live.answers += piece.answers + piece.late_answers;
            live.failures += piece.failures.values().sum::<u64>() + piece.late_failures;
            live.latency_ns.add(&piece.latency_ns).expect("the same bounds");
            let Some(number) = piece.number else { continue };
            counts.answers += piece.answers;
            counts.timestamps += piece.timestamps;
            counts.latency_ns.add(&piece.latency_ns).expect("the same bounds");
            let open = self.open(number);
            open.latency_ns.add(&piece.latency_ns).expect("the same bounds");
            for (name, count) in &piece.failures {
                *counts.failures.entry(name).or_default() += count;
                *open.failures.entry(name).or_default() += count;
            }
        }
        exchange.give_back(pieces);
    }

    /// Returns the interval with this number. Compresses the oldest one if more than [`OPEN_MAX`]
    /// are open.
    fn open(&mut self, number: u64) -> &mut Open {
        if let Some(at) = self.open.iter().position(|open| open.number == number) {
            return &mut self.open[at];
        }
        if self.open.len() >= OPEN_MAX {
            self.close_oldest();
        }
        // A thread that was delayed for long may still hand over counts of an interval that is
        // already compressed. It is then opened again.
        let (failures, latency_ns) = match self.closed.remove(&number) {
            None => (Failures::new(), latency::histogram()),
            Some(closed) => (closed.failures, closed.latency.unpack()),
        };
        self.open.push_back(Open { number, failures, latency_ns });
        self.open.back_mut().expect("it was added")
    }

    fn close_oldest(&mut self) {
        let Some(open) = self.open.pop_front() else { return };
        let Open { number, failures, latency_ns } = open;
        let latency = Packed::new(&latency_ns);
        self.closed.insert(number, Interval { number, failures, latency });
    }

    /// Returns all intervals, at least until the end of the window, also those without an answer.
    pub(super) fn finish(mut self, window: &Window, interval: Duration) -> Vec<Interval> {
        while !self.open.is_empty() {
            self.close_oldest();
        }
        let spanned = number(window.from, window.end, interval);
        let whole = interval * u32::try_from(spanned).unwrap_or(u32::MAX);
        let least = spanned + u64::from(whole < window.end - window.from);
        let answered = self.closed.keys().next_back().map_or(0, |number| number + 1);
        let latency = Packed::new(&latency::histogram());
        let empty =
            |number| Interval { number, failures: Failures::new(), latency: latency.clone() };
        (0..least.max(answered))
            .map(|number| self.closed.remove(&number).unwrap_or_else(|| empty(number)))
            .collect()
    }
}

/// Number of the interval that contains `at`; 0 before `from`.
pub(crate) fn number(from: Instant, at: Instant, interval: Duration) -> u64 {
    let since = at.saturating_duration_since(from).as_nanos();
    u64::try_from(since / interval.as_nanos().max(1)).unwrap_or(u64::MAX)
}

/// At most this many intervals are not compressed, because threads still add to them.
const OPEN_MAX: usize = 3;

#[cfg(test)]
mod tests {
    use super::super::config::RunConfig;
    use super::*;

    /// Hands over one answer of `nanos` in interval `number`.
    fn answer(exchange: &Exchange, number: u64, nanos: u64) {
        let mut piece = Piece::new();
        piece.number = Some(number);
        piece.answers = 1;
        latency::record(&mut piece.latency_ns, Duration::from_nanos(nanos));
        exchange.hand_over(&mut piece, None);
    }

    #[test]
    fn intervals_add_up_to_the_whole_in_whatever_order_they_come() {
        let mut config = RunConfig::new(Vec::new());
        config.duration = Duration::from_millis(10_500);
        let window = Window::new(&config, Instant::now());
        let (exchange, mut time_series) = (Exchange::default(), TimeSeries::new());
        let (mut counts, mut live) = (Counts::new(), Live::new());
        let mut random = fastrand::Rng::with_seed(9);
        for _ in 0..500 {
            answer(&exchange, random.u64(0..9), random.u64(1000..1_000_000_000));
            if random.bool() {
                time_series.take(&exchange, &mut counts, &mut live);
            }
        }
        time_series.take(&exchange, &mut counts, &mut live);
        let intervals = time_series.finish(&window, Duration::from_secs(1));
        // 10.5 s have eleven intervals, and the last one is half as long. No answer is in the last
        // two.
        assert_eq!(intervals.len(), 11);
        let mut whole = latency::histogram();
        for (at, interval) in intervals.iter().enumerate() {
            assert_eq!(interval.number, at as u64);
            whole.add(interval.latency.unpack()).unwrap();
        }
        assert_eq!(whole, counts.latency_ns);
        assert_eq!((counts.answers, live.answers), (500, 500));
        assert_eq!(intervals[10].latency.answers, 0);
    }

    #[test]
    fn an_answer_after_the_end_has_an_interval_of_its_own() {
        let mut config = RunConfig::new(Vec::new());
        config.duration = Duration::from_secs(2);
        let window = Window::new(&config, Instant::now());
        let (exchange, mut time_series) = (Exchange::default(), TimeSeries::new());
        let (mut counts, mut live) = (Counts::new(), Live::new());
        answer(&exchange, 4, 1000);
        time_series.take(&exchange, &mut counts, &mut live);
        let intervals = time_series.finish(&window, Duration::from_secs(1));
        let answers: Vec<u64> = intervals.iter().map(|it| it.latency.answers).collect();
        assert_eq!(answers, [0, 0, 0, 0, 1]);
    }

    #[test]
    fn nothing_of_the_warm_up_counts() {
        let (exchange, mut time_series) = (Exchange::default(), TimeSeries::new());
        let (mut counts, mut live) = (Counts::new(), Live::new());
        let mut piece = Piece::new();
        piece.answers = 7;
        piece.failures.insert("lost", 2);
        exchange.hand_over(&mut piece, Some(0));
        assert_eq!((piece.number, piece.answers), (Some(0), 0));
        time_series.take(&exchange, &mut counts, &mut live);
        assert_eq!((counts.answers, counts.failed()), (0, 0));
        assert_eq!((live.answers, live.failures), (7, 2));
    }
}
