//! What clients write down: one line of JSON for what a transaction is about to commit, and one for
//! what came of it. It decides nothing.

use std::io::{BufRead, BufReader, Read as _};
use std::path::Path;

use anyhow::{Context, Result};
use epicepoch_client::Timestamp;
use serde::{Deserialize, Serialize};

use crate::protocol::Version;

/// A line of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
pub enum Line {
    /// Locks are about to be taken. Without an [`Ended`] the client died, and the transaction has
    /// happened entirely or not at all.
    Trying(Trying),
    /// The client knows how it ended.
    Ended(Ended),
    /// A transaction that could not begin.
    NoTimestamp {
        /// In the client's words.
        why: String,
    },
}

/// A transaction before its first lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trying {
    /// Which client.
    pub client: String,
    /// Which transaction.
    #[serde(with = "crate::hex")]
    pub start: Timestamp,
    /// What it writes.
    pub writes: Vec<Written>,
}

/// A transaction that came to an end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Which client.
    pub client: String,
    /// What it was about.
    pub kind: Kind,
    /// Its snapshot.
    pub start: Stamp,
    /// What it saw.
    pub reads: Vec<Seen>,
    /// What it wanted to write.
    pub writes: Vec<Written>,
    /// What came of it.
    pub outcome: Outcome,
    /// How it went, for the summary.
    pub course: Course,
}

/// A timestamp and when it was got. The numbers are the witness's: a counter in the first store
/// that every client raises before it asks and after it was answered. If one call's `answered` is
/// below another's `asked`, it was complete before the other began, whoever made them, and no clock
/// had to be trusted to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Before the oracle was asked.
    pub asked: u64,
    /// After it had answered.
    pub answered: u64,
    /// What it gave.
    #[serde(with = "crate::hex")]
    pub at: Timestamp,
}

/// What a transaction is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// All rows get their first value.
    Load,
    /// Money goes from one account to another.
    Transfer,
    /// All accounts are read.
    Audit,
    /// One of two on duty goes home if the other one stays: room for write skew.
    Duty,
}

/// A row as a transaction saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Which row.
    pub row: String,
    /// Nothing, if there was no version.
    pub version: Option<Version>,
}

/// A row as a transaction wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// Which row.
    pub row: String,
    /// What it became, if the transaction committed.
    pub value: i64,
}

/// How a transaction ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Outcome {
    /// Its writes are there from `commit` on.
    Committed {
        /// Where.
        commit: Stamp,
    },
    /// It wrote nothing, so it needed no commit timestamp.
    ReadOnly,
    /// None of its writes is there.
    Aborted {
        /// Because.
        why: Why,
    },
}

/// Why a transaction was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Somebody committed to a row since its start.
    Conflict,
    /// Somebody else is at the row.
    Locked,
    /// It took so long that somebody rolled it back.
    RolledBack,
    /// No commit timestamp in time.
    NoTimestamp,
}

/// How a transaction went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Course {
    /// When it ended, Unix time.
    pub ended_ms: u64,
    /// From its begin to its end.
    pub took_us: u64,
    /// The longest wait for a timestamp.
    pub oracle_us: u64,
    /// Locks of others whose transaction had committed, made versions.
    pub forward: u64,
    /// Locks of others whose transaction is no more, removed.
    pub back: u64,
}

/// Reads the file of one process. A last line without an end was cut off by a kill.
///
/// # Errors
/// No such file, or a line that is no line of a history.
pub fn read(path: &Path) -> Result<Vec<Line>> {
    let file = std::fs::File::open(path).with_context(|| format!("{}", path.display()))?;
    let mut text = Vec::new();
    BufReader::new(file).read_to_end(&mut text)?;
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    text.truncate(whole);
    let mut lines = Vec::new();
    for line in text.lines() {
        let line = line?;
        let parsed = serde_json::from_str(&line);
        lines.push(parsed.with_context(|| format!("{}: {line}", path.display()))?);
    }
    Ok(lines)
}
