//! The findings of a [`crate::history`], described for people: which nodes gave which timestamps,
//! when, and why that is wrong. [`crate::history`] decides what a violation is.

use std::fmt;
use std::time::Duration;

use epicepoch_wire::TimestampRange;

use crate::answer::BrokenAnswer;

/// At most this many violations are kept and described. Further ones are only counted.
pub const VIOLATIONS_KEPT_MAX: usize = 32;

/// Totals of a history, including answers that are not checked yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Operations that returned timestamps.
    pub answered: u64,
    /// Timestamps in those operations.
    pub timestamps: u128,
    /// Operations that were refused.
    pub refused: u64,
    /// Operations without an answer.
    pub unknown: u64,
}

/// An answer and the interval in which its operation was open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Nanoseconds since the history's origin. `start < end`.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) range: TimestampRange,
    /// Whether it is the latest timestamp, which is nobody's own.
    pub(crate) is_latest: bool,
    pub(crate) node: u64,
}

impl Answer {
    /// The timestamps.
    #[must_use]
    pub fn range(&self) -> TimestampRange {
        self.range
    }

    /// The node that answered.
    #[must_use]
    pub fn node(&self) -> u64 {
        self.node
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, end) = (Duration::from_nanos(self.start), Duration::from_nanos(self.end));
        let first = self.range.first();
        write!(
            f,
            "node {} between {:.6} s and {:.6} s: epoch {} index {}",
            self.node,
            start.as_secs_f64(),
            end.as_secs_f64(),
            first.epoch,
            first.index,
        )?;
        if self.range.count() > 1 {
            write!(f, "..={}", self.range.last().index)?;
        }
        Ok(())
    }
}

/// A violation, with the operations that show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Both answers contain the same timestamp.
    Repeated {
        /// The answer whose operation started first.
        earlier: Answer,
        /// The other answer.
        later: Answer,
    },
    /// `earlier` completed before `later` started, but its timestamps are not all below.
    OutOfOrder {
        /// The answer that completed first.
        earlier: Answer,
        /// The answer whose operation started after that.
        later: Answer,
    },
    /// One answer that is wrong by itself.
    Broken {
        /// The answer, with its node and times.
        answer: Answer,
        /// The fault of this answer.
        why: BrokenAnswer,
    },
}

impl Violation {
    pub(crate) fn ordered(self) -> Self {
        match self {
            Self::Repeated { earlier, later } if later.start < earlier.start => {
                Self::Repeated { earlier: later, later: earlier }
            }
            other => other,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Repeated { earlier, later } => {
                let twice = earlier.range.first().max(later.range.first());
                write!(f, "given twice: {twice}\n    by {earlier}\n    by {later}")
            }
            Self::OutOfOrder { earlier, later } => {
                let apart = Duration::from_nanos(later.start.saturating_sub(earlier.end));
                write!(
                    f,
                    "out of order: the second was asked {:.1} us after the first was complete, \
                     and is not above it\n    first  {earlier}\n    second {later}",
                    apart.as_secs_f64() * 1e6,
                )
            }
            Self::Broken { answer, why } => {
                write!(f, "broken answer: {why}\n    by node {}", answer.node)
            }
        }
    }
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Totals since the history began.
    pub totals: Totals,
    /// The first [`VIOLATIONS_KEPT_MAX`] violations.
    pub violations: Vec<Violation>,
    /// Number of all violations.
    pub violation_count: u64,
}

impl Verdict {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.violation_count == 0
    }

    /// # Panics
    /// If there is a violation; the message has all descriptions.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(self.is_clean(), "{self}");
    }

    pub(crate) fn add(&mut self, violation: Violation) {
        self.violation_count += 1;
        if self.violations.len() < VIOLATIONS_KEPT_MAX {
            self.violations.push(violation);
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { answered, timestamps, refused, unknown } = self.totals;
        write!(
            f,
            "{answered} answers with {timestamps} timestamps, {refused} refused, \
             {unknown} without an answer: {} violations",
            self.violation_count
        )?;
        for violation in &self.violations {
            write!(f, "\n  {violation}")?;
        }
        let untold = self.violation_count - self.violations.len() as u64;
        if untold > 0 {
            write!(f, "\n  and {untold} more")?;
        }
        Ok(())
    }
}
