//! The result of a load, merged from all its threads.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::history::{Operation, Outcome};

/// The longest distinct latency, nanoseconds. Longer ones count as this.
const LATENCY_NS_MAX: u64 = 120_000_000_000;

/// Why a request brought no timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureKind {
    /// No connection could be opened.
    Connect,
    /// The connection broke while the request was open.
    Lost,
    /// No answer came within the request's timeout.
    Timeout,
    /// 409: the node is not the leader. This is no failure of a load that follows the leader.
    NotLeader,
    /// 503: no quorum, no leader, overloaded or shutting down.
    Unavailable,
    /// Any other status.
    Status(u16),
    /// 200 with a body that does not answer the request.
    Broken,
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect => f.write_str("connect"),
            Self::Lost => f.write_str("connection lost"),
            Self::Timeout => f.write_str("timeout"),
            Self::NotLeader => f.write_str("not the leader"),
            Self::Unavailable => f.write_str("unavailable"),
            Self::Status(status) => write!(f, "status {status}"),
            Self::Broken => f.write_str("broken answer"),
        }
    }
}

/// The figures of a load.
#[derive(Clone, Debug)]
pub struct Report {
    /// When the load began.
    pub began: Instant,
    /// How long the load ran.
    pub elapsed: Duration,
    /// Requests that brought timestamps.
    pub answers: u64,
    /// Timestamps in those answers.
    pub timestamps: u64,
    /// Answers with timestamps, by node.
    pub answers_by_node: BTreeMap<u64, u64>,
    /// Requests that brought no timestamps.
    pub failures: BTreeMap<FailureKind, u64>,
    /// Latency of requests that brought timestamps, nanoseconds: from before the first byte is sent
    /// to the last byte of the answer.
    pub latency_ns: Histogram<u64>,
    /// The longest time between two answers, from any node.
    pub gap_max: Duration,
    /// Every answer if the load keeps them. Wrong answers are always kept.
    pub operations: Vec<Operation>,
}

impl Report {
    pub(crate) fn new(began: Instant) -> Self {
        let latency_ns = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3);
        Self {
            began,
            elapsed: Duration::ZERO,
            answers: 0,
            timestamps: 0,
            answers_by_node: BTreeMap::new(),
            failures: BTreeMap::new(),
            latency_ns: latency_ns.expect("the bounds are constants that fit"),
            gap_max: Duration::ZERO,
            operations: Vec::new(),
        }
    }

    pub(crate) fn fail(&mut self, kind: FailureKind) {
        *self.failures.entry(kind).or_default() += 1;
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.answers += other.answers;
        self.timestamps += other.timestamps;
        for (node, count) in other.answers_by_node {
            *self.answers_by_node.entry(node).or_default() += count;
        }
        for (kind, count) in other.failures {
            *self.failures.entry(kind).or_default() += count;
        }
        self.latency_ns.add(&other.latency_ns).expect("all histograms have the same bounds");
        self.operations.extend(other.operations);
    }

    /// Number of failed requests. A 409 is an answer, not a failure.
    #[must_use]
    pub fn failure_count(&self) -> u64 {
        let kinds = self.failures.iter().filter(|(kind, _)| **kind != FailureKind::NotLeader);
        kinds.map(|(_, count)| count).sum()
    }

    /// Requests that were refused with a status.
    #[must_use]
    pub fn refused(&self) -> u64 {
        let refused = |kind: &FailureKind| {
            matches!(
                kind,
                FailureKind::NotLeader | FailureKind::Unavailable | FailureKind::Status(_)
            )
        };
        self.failures.iter().filter(|(kind, _)| refused(kind)).map(|(_, count)| count).sum()
    }

    /// Number of requests whose answer was not read.
    #[must_use]
    pub fn unknown(&self) -> u64 {
        let count = |kind| self.failures.get(&kind).copied().unwrap_or(0);
        count(FailureKind::Lost) + count(FailureKind::Timeout)
    }

    /// Answers per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.answers as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// The latency at this quantile, `0.0..=1.0`.
    #[must_use]
    pub fn latency(&self, share: f64) -> Duration {
        Duration::from_nanos(self.latency_ns.value_at_quantile(share))
    }

    /// When answers came; empty unless the load keeps operations.
    #[must_use]
    pub fn answer_times(&self) -> AnswerTimes {
        let answered = |it: &&Operation| matches!(it.outcome, Outcome::Answered(_));
        AnswerTimes::new(self.operations.iter().filter(answered).map(|it| it.end).collect())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        write!(
            f,
            "{:.0} req/s, p50 {:.3} ms, p99 {:.3} ms, p99.9 {:.3} ms, max {:.3} ms, {} answers, \
             {} failed, longest silence {:.1} ms",
            self.rate(),
            millis(self.latency(0.5)),
            millis(self.latency(0.99)),
            millis(self.latency(0.999)),
            millis(Duration::from_nanos(self.latency_ns.max())),
            self.answers,
            self.failure_count(),
            millis(self.gap_max),
        )?;
        for (kind, count) in &self.failures {
            write!(f, ", {count} {kind}")?;
        }
        Ok(())
    }
}

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

    /// The longest time between two answers that overlaps `from..=to`. Without an earlier answer it
    /// counts from `from`; without a later one, until `to`.
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

    /// Answers that came after `from`, and not after `to`.
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
