//! Histograms of latency. All have the same bounds, so adding them up loses nothing.

use std::time::Duration;

use hdrhistogram::Histogram;

/// The shortest distinct latency, nanoseconds.
pub const LATENCY_NS_MIN: u64 = 100;
/// The longest latency that is recorded, nanoseconds. A longer latency is recorded with this value.
pub const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Significant decimal digits.
pub const DIGITS: u8 = 3;

/// An empty histogram of nanoseconds, 100 ns to 60 s with 3 significant digits.
#[must_use]
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(LATENCY_NS_MIN, LATENCY_NS_MAX, DIGITS)
        .expect("the bounds are constants that fit")
}

/// Adds one latency.
pub fn record(histogram: &mut Histogram<u64>, latency: Duration) {
    let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
    histogram.saturating_record(nanos.min(LATENCY_NS_MAX));
}

/// The latency at this quantile, `0.0..=1.0`; 0 if the histogram is empty.
#[must_use]
pub fn quantile(histogram: &Histogram<u64>, share: f64) -> Duration {
    Duration::from_nanos(histogram.value_at_quantile(share))
}

/// The quantiles that reports show.
pub const QUANTILES: [(&str, f64); 7] = [
    ("p50", 0.5),
    ("p90", 0.9),
    ("p95", 0.95),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
    ("p99.999", 0.99999),
];

/// A time with three significant digits and a suitable unit.
#[must_use]
pub fn shown(time: Duration) -> String {
    let nanos = time.as_nanos() as f64;
    let (value, unit) = match nanos {
        ..1e3 => (nanos, "ns"),
        ..1e6 => (nanos / 1e3, "us"),
        ..1e9 => (nanos / 1e6, "ms"),
        _ => (nanos / 1e9, "s"),
    };
    let places = if unit == "ns" || value >= 100.0 { 0 } else { 1 + usize::from(value < 10.0) };
    format!("{value:.places$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_of_four_threads_merged_equal_that_of_all_samples() {
        let mut random = fastrand::Rng::with_seed(4);
        let mut parts = [histogram(), histogram(), histogram(), histogram()];
        let mut whole = histogram();
        for sample in 0..100_000_usize {
            // The latencies have every order of magnitude, from below the shortest recorded latency
            // to above the longest.
            let latency = Duration::from_nanos(10_u64.pow(random.u32(0..12)) * random.u64(1..10));
            record(&mut parts[sample % 4], latency);
            record(&mut whole, latency);
        }
        let mut merged = histogram();
        for part in &parts {
            merged.add(part).expect("the same bounds");
        }
        assert_eq!(merged, whole);
        assert_eq!(merged.len(), 100_000);
        for (_, share) in QUANTILES {
            assert_eq!(quantile(&merged, share), quantile(&whole, share));
        }
    }

    #[test]
    fn three_digits_are_kept_from_the_lowest_to_the_highest() {
        for nanos in [100, 12_300, 999_000, 123_000_000, LATENCY_NS_MAX] {
            let mut histogram = histogram();
            record(&mut histogram, Duration::from_nanos(nanos));
            let error = quantile(&histogram, 1.0).as_nanos().abs_diff(u128::from(nanos));
            // Below 65 us, the width of a bucket is the resolution of the histogram, 64 ns.
            assert!(error <= u128::from(nanos / 1000).max(64), "{nanos}: {error}");
        }
    }

    #[test]
    fn times_are_shown_with_their_unit() {
        let shown = |nanos| shown(Duration::from_nanos(nanos));
        assert_eq!(
            [0, 999, 1_500, 15_000, 150_000, 1_234_567, 60_000_000_000].map(shown),
            ["0 ns", "999 ns", "1.50 us", "15.0 us", "150 us", "1.23 ms", "60.0 s"]
        );
    }
}
