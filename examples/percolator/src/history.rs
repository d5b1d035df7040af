//! The records of clients: one line of JSON before a transaction takes locks, and one when it has
//! ended.

use std::io::{BufRead, BufReader, Read as _};
use std::path::Path;

use anyhow::{Context, Result};
use epicepoch_client::Timestamp;
use serde::{Deserialize, Serialize};

use crate::protocol::Version;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
pub enum Line {
    /// The transaction is about to take locks. If no [`Ended`] follows, the client died. Then
    /// either all writes of the transaction are in the stores, or none.
    Trying(Trying),
    /// The transaction has ended.
    Ended(Ended),
    /// A transaction could not begin.
    NoTimestamp { why: String },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trying {
    pub client: String,
    #[serde(with = "crate::hex")]
    pub start: Timestamp,
    pub writes: Vec<Written>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    pub client: String,
    pub kind: Kind,
    #[serde(with = "crate::hex")]
    pub start: Timestamp,
    pub reads: Vec<Seen>,
    pub writes: Vec<Written>,
    pub outcome: Outcome,
    pub figures: Figures,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    pub row: String,
    /// The version that was read; `None` if the row had none.
    pub version: Option<Version>,
}

/// A row as a transaction wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    pub row: String,
    /// The row's value if the transaction commits.
    pub value: i64,
}

/// How a transaction ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Outcome {
    /// The transaction's writes are visible from `commit` on.
    Committed {
        #[serde(with = "crate::hex")]
        commit: Timestamp,
    },
    /// The transaction wrote nothing, so it needed no commit timestamp.
    ReadOnly,
    /// None of the transaction's writes is visible.
    Aborted { why: Why },
}

/// Why a transaction was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Number of locks of committed transactions that were rolled forward.
    pub forward: u64,
    /// Number of locks of dead transactions that were rolled back.
    pub back: u64,
}

/// Reads the file of one process. An incomplete last line was cut off by a kill.
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
