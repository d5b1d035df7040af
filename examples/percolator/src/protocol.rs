//! The protocol of a store. A request is one line with a JSON object, and the reply is one line,
//! too.

use epicepoch_client::Timestamp;
use serde::{Deserialize, Serialize};

/// A request to a store. The store executes it atomically on its row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// Reads the newest version at or below `at`. If the row has a lock at or below `at`, the reply
    /// is the lock.
    Get {
        row: String,
        #[serde(with = "crate::hex")]
        at: Timestamp,
    },
    /// Writes `value` and locks the row, unless the row has a lock or a commit above `start`.
    Prewrite {
        row: String,
        #[serde(with = "crate::hex")]
        start: Timestamp,
        value: i64,
        /// The row whose lock decides for the whole transaction.
        primary: String,
        /// How long other transactions respect the lock.
        ttl_ms: u64,
    },
    /// Removes the lock of the transaction `start`, and makes its value a version at `commit`.
    Commit {
        row: String,
        #[serde(with = "crate::hex")]
        start: Timestamp,
        /// The commit timestamp.
        #[serde(with = "crate::hex")]
        commit: Timestamp,
    },
    /// Removes the lock of the transaction `start`, and leaves a mark. The mark prevents the
    /// transaction from locking the row later.
    Rollback {
        row: String,
        #[serde(with = "crate::hex")]
        start: Timestamp,
    },
    /// Asks the primary row's store for the state of the transaction `start`. If the lock has
    /// expired, the store first rolls it back.
    Status {
        row: String,
        #[serde(with = "crate::hex")]
        start: Timestamp,
    },
    /// Asks for the first row with a name above `after`, with its versions.
    Dump {
        /// Empty for the first row.
        after: String,
    },
}

impl Request {
    /// Returns the index of the request's store among `stores`. A dump goes to the first store.
    pub fn store(&self, stores: usize) -> usize {
        match self {
            Self::Get { row, .. }
            | Self::Prewrite { row, .. }
            | Self::Commit { row, .. }
            | Self::Rollback { row, .. }
            | Self::Status { row, .. } => store_of(row, stores),
            Self::Dump { .. } => 0,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Reply {
    Value(Version),
    Missing,
    /// The row is locked by another transaction.
    Locked(Lock),
    /// The store has executed the request, now or earlier.
    Done,
    /// The row has a commit above `start`.
    Conflict {
        #[serde(with = "crate::hex")]
        commit: Timestamp,
    },
    /// The transaction is rolled back for ever.
    RolledBack,
    Committed {
        #[serde(with = "crate::hex")]
        commit: Timestamp,
    },
    /// The lock's owner may still be running.
    Alive {
        /// How many milliseconds longer the lock is respected.
        left_ms: u64,
    },
    Row(Row),
    End,
    /// The line is not a request.
    Refused {
        why: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Commit timestamp. Snapshots at or above it see this version.
    #[serde(with = "crate::hex")]
    pub commit: Timestamp,
    /// Start timestamp of the transaction that wrote the version.
    #[serde(with = "crate::hex")]
    pub start: Timestamp,
    pub value: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    #[serde(with = "crate::hex")]
    pub start: Timestamp,
    pub primary: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    pub row: String,
    pub versions: Vec<Version>,
    /// The lock of the row, if a transaction left one.
    pub lock: Option<Lock>,
}

/// Returns the index of the store of `row` among `stores`. It comes from an FNV-1a hash of the
/// row's name, which every client computes in the same way.
pub fn store_of(row: &str, stores: usize) -> usize {
    let hash = row
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash as usize % stores
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rust and Go clients must choose the same store for a row. The test of the Go client has the
    /// same numbers.
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
