//! The cells that numbers are kept in between scrapes: a count, and a histogram with fixed
//! bounds. A cell is a relaxed atomic; nothing is formatted, allocated or locked when one is
//! written. Decisions are never made from them.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that any thread reads.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds `n`, from any thread.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Adds `n` where only one thread ever writes: a load and a store, no bus lock.
    pub fn add_alone(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Replaces the number, for a gauge.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// The number.
    #[must_use]
    pub fn load(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How often a value fell below each of some fixed bounds.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// One for each bound, and one for what lies above the last.
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

    /// Counts `value`, from any thread.
    pub fn observe(&self, value: u64) {
        self.buckets[self.bucket(value)].add(1);
        self.sum.add(value);
    }

    /// Counts `value` `weight` times, where only one thread ever writes.
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

/// Histograms of the same bounds, added up for a scrape.
#[derive(Debug)]
pub(crate) struct Folded {
    /// Sum of all values, in the unit of the metric.
    pub(crate) sum: f64,
    /// How many values there were.
    pub(crate) count: u64,
    /// Upper bound in the unit of the metric, and how many values fell between it and the one
    /// before; the last bound is `f64::MAX`.
    pub(crate) buckets: Vec<(f64, u64)>,
}

impl Folded {
    /// Adds up `parts`, whose values are divided by `per_unit` to get the unit of the metric.
    pub(crate) fn new<'a>(parts: impl Iterator<Item = &'a Histogram>, per_unit: f64) -> Self {
        let mut folded = Self { sum: 0.0, count: 0, buckets: Vec::new() };
        for part in parts {
            if folded.buckets.is_empty() {
                let bounds = part.bounds.iter().map(|bound| *bound as f64 / per_unit);
                folded.buckets = bounds.chain([f64::MAX]).map(|bound| (bound, 0)).collect();
            }
            for (into, from) in folded.buckets.iter_mut().zip(&part.buckets) {
                into.1 += from.load();
            }
            folded.sum += part.sum.load() as f64 / per_unit;
        }
        // From the buckets as they were read: others go on writing them.
        folded.count = folded.buckets.iter().map(|(_, count)| count).sum();
        folded
    }
}

/// From a microsecond to ten seconds, three to a decade: below is the noise of a clock read,
/// above every timeout of a node.
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

/// Powers of two up to the largest request buffer that makes sense.
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
        let folded = Folded::new([&histogram, &histogram].into_iter(), 1.0);
        assert_eq!(folded.buckets[..3], [(1.0, 4), (2.0, 2), (4.0, 2)]);
        assert_eq!(folded.buckets.last(), Some(&(f64::MAX, 10)));
        assert_eq!(folded.count, 18);
    }
}
