//! The records of clients: one before a transaction takes locks, and one when it has ended.

use std::time::Duration;

use epicepoch_client::Timestamp;

use crate::protocol::Version;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// The transaction is about to take locks. If no [`Ended`] follows, the client died. Then
    /// either all writes of the transaction are in the stores, or none.
    Trying(Trying),
    /// The transaction has ended.
    Ended(Ended),
    /// A transaction could not begin.
    NoTimestamp { why: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trying {
    pub client: String,
    pub start: Timestamp,
    pub writes: Vec<Written>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub client: String,
    pub kind: Kind,
    pub start: Timestamp,
    pub reads: Vec<Seen>,
    pub writes: Vec<Written>,
    pub outcome: Outcome,
    pub figures: Figures,
    /// When the transaction began, before it asked for its start timestamp. Time since the run
    /// began.
    pub began: Duration,
    /// When it had ended, and its caller heard of the outcome.
    pub ended: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Writes initial values.
    Load,
    /// Moves money between accounts.
    Transfer,
    /// Reads all accounts.
    Audit,
    /// Changes who is on duty. Two such transactions at once may show write skew.
    Duty,
}

/// A row as a transaction read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub row: String,
    /// The version that was read; `None` if the row had none.
    pub version: Option<Version>,
}

/// A row as a transaction wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub row: String,
    /// The row's value if the transaction commits.
    pub value: i64,
}

/// How a transaction ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The transaction's writes are visible from `commit` on.
    Committed { commit: Timestamp },
    /// The transaction wrote nothing, so it needed no commit timestamp.
    ReadOnly,
    /// None of the transaction's writes is visible.
    Aborted { why: Why },
}

/// Why a transaction was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Why {
    /// Another transaction has committed to a row since this one started.
    Conflict,
    /// A row is locked.
    Locked,
    /// Another transaction has rolled this one back because it took too long.
    RolledBack,
    /// No commit timestamp came in time.
    NoTimestamp,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Number of locks of committed transactions that were rolled forward.
    pub forward: u64,
    /// Number of locks of dead transactions that were rolled back.
    pub back: u64,
}
