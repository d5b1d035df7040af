//! Refusals for a missing right. Every refusal is counted. For each reason, at most one refusal a
//! second is logged, so that refused requests cannot fill a disk.

use std::net::IpAddr;

use super::right::{Reason, Right};
use crate::metrics::cell::Count;
use crate::security::line_limit::LineLimit;

/// Counts and logs refusals.
#[derive(Debug, Default)]
pub struct Denials {
    counts: [[Count; Reason::ALL.len()]; Right::ALL.len()],
    /// The log lines of each reason.
    lines: [LineLimit; Reason::ALL.len()],
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
        let Some(others) = self.lines[reason as usize].due(now_ns) else { return };
        let addr = from.map_or_else(|| "unknown".to_owned(), |from| from.to_string());
        let (right, reason) = (right.name(), reason.name());
        tracing::warn!(addr, right, reason, detail, others, "refused: missing right");
    }

    /// How often a right was refused for a reason.
    #[must_use]
    pub fn count(&self, right: Right, reason: Reason) -> u64 {
        self.counts[right as usize][reason as usize].load()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_counted_although_it_is_not_logged() {
        let denials = Denials::default();
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
