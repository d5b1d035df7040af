//! The cells of the metrics: a count, and a histogram with fixed bounds. A cell is a relaxed
//! atomic. Writing one formats nothing, allocates nothing and takes no lock. No decision depends on
//! a cell.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter or a gauge. Any thread may read it.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds `n`. Any thread may call this.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Adds `n` with a load and a store. That is cheaper than an atomic addition, but only one
    /// thread may write this cell.
    pub fn add_alone(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Sets the number. This is for gauges.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// Returns the number.
    #[must_use]
    pub fn load(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A histogram: how many values lie between fixed bounds.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// One count for each bound, and one for values above the last bound.
    buckets: Box<[Count]>,
    sum: Count,
}

impl Histogram {
    /// An empty histogram of durations, nanoseconds.
    #[must_use]
    pub fn of_durations() -> Self {
        Self::new(&DURATION_BOUNDS_NS)
    }

    /// An empty histogram of sizes.
    #[must_use]
    pub fn of_sizes() -> Self {
        Self::new(&SIZE_BOUNDS)
    }

    fn new(bounds: &'static [u64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| Count::default()).collect();
        Self { bounds, buckets, sum: Count::default() }
    }

    /// Counts `value`. Any thread may call this.
    pub fn observe(&self, value: u64) {
        self.buckets[self.bucket(value)].add(1);
        self.sum.add(value);
    }

    /// Counts `value` `weight` times. Only one thread may write this histogram.
    pub fn observe_alone(&self, value: u64, weight: u64) {
        self.buckets[self.bucket(value)].add_alone(weight);
        self.sum.add_alone(value.wrapping_mul(weight));
    }

    /// How many values were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(Count::load).sum()
    }

    fn bucket(&self, value: u64) -> usize {
        self.bounds.partition_point(|bound| *bound < value)
    }
}

/// The sum of histograms with the same bounds, for a scrape.
#[derive(Debug)]
pub(crate) struct Sum {
    /// Sum of all values, in the unit of the metric.
    pub(crate) sum: f64,
    /// How many values were counted.
    pub(crate) count: u64,
    /// One pair for each bucket: its upper bound, in the unit of the metric, and the number of its
    /// values. A bucket has the values above the bound before it, up to its own bound. The last
    /// bound is `f64::MAX`.
    pub(crate) buckets: Vec<(f64, u64)>,
}

impl Sum {
    /// Adds up the histograms `parts`. Divides values and bounds by `per_unit`.
    pub(crate) fn new<'a>(parts: impl Iterator<Item = &'a Histogram>, per_unit: f64) -> Self {
        let mut all = Self { sum: 0.0, count: 0, buckets: Vec::new() };
        for part in parts {
            if all.buckets.is_empty() {
                let bounds = part.bounds.iter().map(|bound| *bound as f64 / per_unit);
                all.buckets = bounds.chain([f64::MAX]).map(|bound| (bound, 0)).collect();
            }
            for (into, from) in all.buckets.iter_mut().zip(&part.buckets) {
                into.1 += from.load();
            }
            all.sum += part.sum.load() as f64 / per_unit;
        }
        // The count is taken from the buckets as read, because other threads still write the
        // histograms.
        all.count = all.buckets.iter().map(|(_, count)| count).sum();
        all
    }
}

/// Bounds from a microsecond to ten seconds, three for each factor of ten. Shorter times are the
/// noise of reading a clock; longer ones exceed every timeout of a node.
const DURATION_BOUNDS_NS: [u64; 22] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// Bounds at powers of two, up to the largest useful request buffer.
const SIZE_BOUNDS: [u64; 15] =
    [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_belongs_to_it() {
        let histogram = Histogram::of_sizes();
        for (value, weight) in [(1, 2), (2, 1), (3, 1), (1 << 40, 5)] {
            histogram.observe_alone(value, weight);
        }
        let sum = Sum::new([&histogram, &histogram].into_iter(), 1.0);
        assert_eq!(sum.buckets[..3], [(1.0, 4), (2.0, 2), (4.0, 2)]);
        assert_eq!(sum.buckets.last(), Some(&(f64::MAX, 10)));
        assert_eq!(sum.count, 18);
    }
}
