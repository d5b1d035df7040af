//! Refusals for a missing right. Every refusal is counted. For each reason, at most one refusal a
//! second is logged, so that refused requests cannot fill a disk.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::right::{Reason, Right};
use crate::metrics::cell::Count;

/// Shortest time between two log lines for one reason.
const LINE_INTERVAL_NS: u64 = 1_000_000_000;

/// Counts and logs refusals.
#[derive(Debug, Default)]
pub struct Denials {
    counts: [[Count; Reason::ALL.len()]; Right::ALL.len()],
    /// When each reason may be logged again, monotonic nanoseconds.
    next_ns: [AtomicU64; Reason::ALL.len()],
    /// For each reason, the refusals since its last log line.
    untold: [AtomicU64; Reason::ALL.len()],
}

impl Denials {
    /// Counts a refusal, and logs it if a line is due.
    pub(crate) fn record(
        &self,
        (right, reason): (Right, Reason),
        from: Option<IpAddr>,
        detail: &str,
        now_ns: u64,
    ) {
        self.counts[right as usize][reason as usize].add(1);
        let at = reason as usize;
        let Some(untold) = self.due(at, now_ns) else { return };
        let addr = from.map_or_else(|| "unknown".to_owned(), |from| from.to_string());
        let (right, reason) = (right.name(), reason.name());
        tracing::warn!(addr, right, reason, detail, others = untold, "refused: missing right");
    }

    /// How often a right was refused for a reason.
    #[must_use]
    pub fn count(&self, right: Right, reason: Reason) -> u64 {
        self.counts[right as usize][reason as usize].load()
    }

    /// If a log line is due, returns how many refusals were not logged since the last line.
    fn due(&self, at: usize, now_ns: u64) -> Option<u64> {
        let next_ns = self.next_ns[at].load(Ordering::Relaxed);
        let claim = || {
            let next = now_ns + LINE_INTERVAL_NS;
            self.next_ns[at].compare_exchange(next_ns, next, Ordering::Relaxed, Ordering::Relaxed)
        };
        if now_ns >= next_ns && claim().is_ok() {
            return Some(self.untold[at].swap(0, Ordering::Relaxed));
        }
        self.untold[at].fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_is_counted_whole_and_logged_once_a_second() {
        let denials = Denials::default();
        let lines = (0..5_000).filter_map(|ms| denials.due(1, ms * 1_000_000));
        let lines: Vec<_> = lines.collect();
        assert_eq!(lines, [0, 999, 999, 999, 999]);
        for _ in 0..3 {
            denials.record((Right::Change, Reason::NoToken), None, "", 0);
        }
        assert_eq!(denials.count(Right::Change, Reason::NoToken), 3);
        assert_eq!(denials.count(Right::Operations, Reason::NoToken), 0);
    }

    #[test]
    fn rights_and_reasons_are_counted_under_their_own_names() {
        for (position, right) in Right::ALL.into_iter().enumerate() {
            assert_eq!(right as usize, position);
        }
        for (position, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, position);
        }
    }
}
