//! Mistakes that the checker must find.

#[cfg(test)]
use crate::check::Rule;

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// One timestamp of 20 comes from a clock that is 20 ms ahead.
    LocalClock,
    /// A snapshot takes its timestamp before the lock.
    NoOrder,
    /// Commits do not look for conflicts.
    NoConflicts,
    /// Audits believe a snapshot without `confirm`.
    NoConfirm,
}

impl Plant {
    /// All mistakes.
    pub const ALL: [Self; 4] =
        [Self::LocalClock, Self::NoOrder, Self::NoConflicts, Self::NoConfirm];

    /// The word for `--plant`.
    pub fn name(self) -> &'static str {
        match self {
            Self::LocalClock => "local-clock",
            Self::NoOrder => "no-order",
            Self::NoConflicts => "no-conflicts",
            Self::NoConfirm => "no-confirm",
        }
    }

    /// What the checker finds at least.
    #[cfg(test)]
    pub fn finding(self) -> Rule {
        match self {
            Self::LocalClock => Rule::OutOfOrder,
            Self::NoOrder | Self::NoConfirm => Rule::WrongSnapshot,
            Self::NoConflicts => Rule::LostUpdate,
        }
    }
}
