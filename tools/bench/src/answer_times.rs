//! The moments at which answers came, and the silences between them.

use std::time::{Duration, Instant};

/// The moments at which answers came, in order.
#[derive(Clone, Debug)]
pub struct AnswerTimes(Vec<Instant>);

impl AnswerTimes {
    /// Sorts the moments, which may be in any order.
    #[must_use]
    pub fn new(mut times: Vec<Instant>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    /// The longest silence between two answers that overlaps `from..=to`. If there is no answer
    /// before `from`, the first silence begins at `from`. If there is none after `to`, the last
    /// silence ends at `to`.
    #[must_use]
    pub fn gap_max(&self, from: Instant, to: Instant) -> Duration {
        let first = self.0.partition_point(|at| *at <= from).saturating_sub(1);
        let mut last = self.0.get(first).copied().filter(|at| *at <= from).unwrap_or(from);
        let mut longest = Duration::ZERO;
        for at in self.0[first..].iter().copied() {
            longest = longest.max(at.saturating_duration_since(last));
            last = last.max(at);
            if at >= to {
                return longest;
            }
        }
        longest.max(to.saturating_duration_since(last))
    }

    /// Number of answers that came after `from`, but not after `to`.
    #[must_use]
    pub fn count(&self, from: Instant, to: Instant) -> usize {
        let until = |end: Instant| self.0.partition_point(|at| *at <= end);
        until(to).saturating_sub(until(from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_is_the_one_that_touches_the_window() {
        let origin = Instant::now();
        let at = |millis: u64| origin + Duration::from_millis(millis);
        let times = AnswerTimes::new([900, 10, 20, 300, 310, 320].map(at).to_vec());
        let gap = |from, to| times.gap_max(at(from), at(to)).as_millis();
        assert_eq!(gap(15, 18), 10);
        assert_eq!(gap(15, 25), 280);
        assert_eq!(gap(305, 315), 10);
        assert_eq!(gap(0, 25), 280);
        assert_eq!(gap(0, 9), 10);
        assert_eq!(gap(305, 1000), 580);
        assert_eq!(gap(950, 1000), 100);
        assert_eq!(AnswerTimes::new(Vec::new()).gap_max(at(5), at(9)).as_millis(), 4);
        assert_eq!(times.count(at(10), at(310)), 3);
        assert_eq!((times.count(at(0), at(9)), times.count(at(900), at(10))), (0, 0));
    }
}
