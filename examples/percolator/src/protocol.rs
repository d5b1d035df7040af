//! What a client says to a store: one JSON object per line, and one line back. It decides nothing.

use epicepoch_client::Timestamp;
use serde::{Deserialize, Serialize};

/// What a store is asked to do. Everything that names a row is atomic on that row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// The newest version at or below `at`, unless a lock at or below it is in the way.
    Get {
        /// Which row.
        row: String,
        /// The snapshot.
        #[serde(with = "crate::hex")]
        at: Timestamp,
    },
    /// Writes `value` beside the row and locks it, unless somebody committed above `start` or
    /// holds a lock.
    Prewrite {
        /// Which row.
        row: String,
        /// Whose transaction.
        #[serde(with = "crate::hex")]
        start: Timestamp,
        /// What the row shall be.
        value: i64,
        /// The row whose lock decides over the whole transaction.
        primary: String,
        /// How long others wait for the owner.
        ttl_ms: u64,
    },
    /// Turns the lock of `start` into a version at `commit`.
    Commit {
        /// Which row.
        row: String,
        /// Whose lock.
        #[serde(with = "crate::hex")]
        start: Timestamp,
        /// Where readers see it from.
        #[serde(with = "crate::hex")]
        commit: Timestamp,
    },
    /// Removes the lock of `start` and sees to it that it never comes back.
    Rollback {
        /// Which row.
        row: String,
        /// Whose lock.
        #[serde(with = "crate::hex")]
        start: Timestamp,
    },
    /// Asks the primary what became of `start`. A lock whose time is over is rolled back first.
    Status {
        /// The primary row.
        row: String,
        /// Whose transaction.
        #[serde(with = "crate::hex")]
        start: Timestamp,
    },
    /// The next number of the witness: see [`crate::history::Stamp`].
    Tick,
    /// The first row whose name is above `after`, with everything in it.
    Dump {
        /// Empty for the first row.
        after: String,
    },
}

impl Request {
    /// Which of `stores` it goes to. The first one is the witness.
    pub fn store(&self, stores: usize) -> usize {
        match self {
            Self::Get { row, .. }
            | Self::Prewrite { row, .. }
            | Self::Commit { row, .. }
            | Self::Rollback { row, .. }
            | Self::Status { row, .. } => store_of(row, stores),
            Self::Tick | Self::Dump { .. } => 0,
        }
    }
}

/// What a store answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Reply {
    /// The version that a snapshot sees.
    Value(Version),
    /// The snapshot sees no version of this row.
    Missing,
    /// Somebody's lock is in the way.
    Locked(Lock),
    /// It is so, now or since earlier.
    Done,
    /// Somebody has committed above `start`.
    Conflict {
        /// Where.
        #[serde(with = "crate::hex")]
        commit: Timestamp,
    },
    /// The transaction was rolled back, for ever.
    RolledBack,
    /// The transaction is committed.
    Committed {
        /// Where.
        #[serde(with = "crate::hex")]
        commit: Timestamp,
    },
    /// The owner may still be at work.
    Alive {
        /// How long others wait yet.
        left_ms: u64,
    },
    /// The witness's number.
    Tick {
        /// Above every number given before.
        tick: u64,
    },
    /// A row of a dump.
    Row(Row),
    /// No more rows.
    End,
    /// The line was no request.
    Refused {
        /// What is wrong with it.
        why: String,
    },
}

/// One committed version of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Snapshots at or above it see this version.
    #[serde(with = "crate::hex")]
    pub commit: Timestamp,
    /// The transaction that wrote it.
    #[serde(with = "crate::hex")]
    pub start: Timestamp,
    /// What it wrote.
    pub value: i64,
}

/// A row that is locked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// Whose transaction.
    #[serde(with = "crate::hex")]
    pub start: Timestamp,
    /// The row that decides.
    pub primary: String,
}

/// A row with all its versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub row: String,
    /// By commit timestamp, lowest first.
    pub versions: Vec<Version>,
    /// A lock that nobody has resolved.
    pub lock: Option<Lock>,
}

/// Which of `stores` keeps `row`: FNV-1a over its name, as clients in every language compute it.
pub fn store_of(row: &str, stores: usize) -> usize {
    let hash = row
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash as usize % stores
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The Go client has the same numbers in its test.
    #[test]
    fn rows_are_spread_as_in_every_language() {
        let found: Vec<usize> =
            ["", "account/0", "account/39", "duty/1/0"].map(|row| store_of(row, 1000)).into();
        assert_eq!(found, [261, 963, 237, 830]);
    }

    #[test]
    fn a_request_is_one_flat_object() {
        let start = Timestamp::from(0x2a);
        let request = Request::Rollback { row: "account/1".to_owned(), start };
        let line =
            r#"{"op":"rollback","row":"account/1","start":"0000000000000000000000000000002a"}"#;
        assert_eq!(serde_json::to_string(&request).unwrap(), line);
        assert_eq!(serde_json::from_str::<Request>(line).unwrap(), request);
    }
}
