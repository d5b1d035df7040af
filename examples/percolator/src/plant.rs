//! Planted mistakes: a checker that never found anything proves nothing.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// Start timestamps come from a local clock that is ahead.
    ClockAhead,
    /// The commit timestamp is taken before the rows are locked.
    CommitBeforeLocks,
    /// A store locks a row although the row has a commit after the transaction's start.
    NoConflictCheck,
    /// A store ignores locks on reads.
    ReadPastLocks,
    /// A client removes a lock without asking the lock's primary.
    IgnorePrimary,
    /// A store commits a row although the transaction's lock was removed.
    LateCommit,
}

#[derive(Debug, Error)]
#[error("there is no plant {0:?}; there are: {list}", list = names())]
pub struct UnknownPlant(String);

impl Plant {
    pub const ALL: [Self; 6] = [
        Self::ClockAhead,
        Self::CommitBeforeLocks,
        Self::NoConflictCheck,
        Self::ReadPastLocks,
        Self::IgnorePrimary,
        Self::LateCommit,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::ClockAhead => "clock-ahead",
            Self::CommitBeforeLocks => "commit-before-locks",
            Self::NoConflictCheck => "no-conflict-check",
            Self::ReadPastLocks => "read-past-locks",
            Self::IgnorePrimary => "ignore-primary",
            Self::LateCommit => "late-commit",
        }
    }
}

impl FromStr for Plant {
    type Err = UnknownPlant;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|plant| plant.name() == name);
        known.ok_or_else(|| UnknownPlant(name.to_owned()))
    }
}

impl fmt::Display for Plant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn names() -> String {
    Plant::ALL.map(Plant::name).join(", ")
}
