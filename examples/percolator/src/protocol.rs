//! The protocol of a store: requests and replies.

use epicepoch_client::Timestamp;

/// A request to a store. The store executes it atomically on its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Reads the newest version at or below `at`. If the row has a lock at or below `at`, the reply
    /// is the lock.
    Get { row: String, at: Timestamp },
    /// Writes `value` and locks the row, unless the row has a lock or a commit above `start`.
    Prewrite {
        row: String,
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
        start: Timestamp,
        /// The commit timestamp.
        commit: Timestamp,
    },
    /// Removes the lock of the transaction `start`, and leaves a mark. The mark prevents the
    /// transaction from locking the row later.
    Rollback { row: String, start: Timestamp },
    /// Asks the primary row's store for the state of the transaction `start`. If the lock has
    /// expired, the store first rolls it back.
    Status { row: String, start: Timestamp },
}

impl Request {
    /// Returns the index of the request's store among `stores`. It comes from an FNV-1a hash of the
    /// row's name, which every client computes in the same way.
    pub fn store(&self, stores: usize) -> usize {
        let (Self::Get { row, .. }
        | Self::Prewrite { row, .. }
        | Self::Commit { row, .. }
        | Self::Rollback { row, .. }
        | Self::Status { row, .. }) = self;
        let hash = row
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        hash as usize % stores
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Value(Version),
    Missing,
    /// The row is locked by another transaction.
    Locked(Lock),
    /// The store has executed the request, now or earlier.
    Done,
    /// The row has a commit above `start`.
    Conflict {
        commit: Timestamp,
    },
    /// The transaction is rolled back for ever.
    RolledBack,
    Committed {
        commit: Timestamp,
    },
    /// The lock's owner may still be running.
    Alive {
        /// How many milliseconds longer the lock is respected.
        left_ms: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Commit timestamp. Snapshots at or above it see this version.
    pub commit: Timestamp,
    /// Start timestamp of the transaction that wrote the version.
    pub start: Timestamp,
    pub value: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    pub start: Timestamp,
    pub primary: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub row: String,
    pub versions: Vec<Version>,
    /// The lock of the row, if a transaction left one.
    pub lock: Option<Lock>,
}
