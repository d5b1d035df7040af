//! The records that the checker reads, and its findings.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use epicepoch_client::Timestamp;

use crate::history::{Ended, Line, Trying};
use crate::protocol::{Row, Version};

/// The records of a run.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    pub ended: Vec<Ended>,
    /// Transactions that were about to take locks. Most of them ended; the clients of the others
    /// were killed.
    pub trying: Vec<Trying>,
    /// Transactions that could not begin.
    pub without_timestamp: u64,
    pub rows: Vec<Row>,
    pub total: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The anomalies that were found.
    pub findings: Vec<Finding>,
    /// Number of reads that were compared with the stores.
    pub reads: u64,
    pub versions: u64,
    /// Number of snapshots of all accounts whose sum was checked.
    pub snapshots: u64,
    /// Transactions of killed clients that committed.
    pub cut_off_committed: u64,
    /// Transactions of killed clients that did not commit.
    pub cut_off_lost: u64,
    /// Pairs of transactions with write skew, which is allowed.
    pub write_skews: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub anomaly: Anomaly,
    /// The transactions and the row of the anomaly, and what was expected.
    pub what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Anomaly {
    /// A commit timestamp is not above its start timestamp.
    CommitNotAfterStart,
    /// Two concurrent transactions wrote the same row and both committed (P4, lost update).
    LostUpdate,
    /// A read did not see the newest version at or below its transaction's start timestamp (G-SI,
    /// or a dirty read: G1).
    WrongRead,
    /// A transaction began after another one had ended, and its snapshot does not have the other's
    /// commit timestamp. Snapshots of which none is stale are called strong (Daudjee and Salem,
    /// VLDB 2006).
    Stale,
    /// Only some writes of a transaction are in the stores, or they are there at different
    /// timestamps. Writes of an aborted transaction also count (G1a).
    Torn,
    /// The sum of all accounts changed.
    Total,
    /// A lock remained at the end.
    Leftover,
}

impl Evidence {
    /// Adds the records of a client.
    pub fn add(&mut self, lines: impl IntoIterator<Item = Line>) {
        for line in lines {
            match line {
                Line::Ended(ended) => self.ended.push(ended),
                Line::Trying(trying) => self.trying.push(trying),
                Line::NoTimestamp { .. } => self.without_timestamp += 1,
            }
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.anomaly, self.what)
    }
}

impl Verdict {
    pub fn count(&self, anomaly: Anomaly) -> usize {
        self.findings.iter().filter(|finding| finding.anomaly == anomaly).count()
    }

    pub(super) fn add(&mut self, anomaly: Anomaly, what: String) {
        self.findings.push(Finding { anomaly, what });
    }
}

/// The stores' versions, by row and by transaction.
pub(super) struct Stored<'a> {
    pub(super) rows: BTreeMap<&'a str, &'a [Version]>,
    pub(super) by_start: HashMap<Timestamp, Vec<(&'a str, Version)>>,
}

impl<'a> Stored<'a> {
    pub(super) fn of(rows: &'a [Row]) -> Self {
        let mut by_start: HashMap<Timestamp, Vec<(&str, Version)>> = HashMap::new();
        for row in rows {
            for version in &row.versions {
                by_start.entry(version.start).or_default().push((&row.row, *version));
            }
        }
        let rows = rows.iter().map(|row| (row.row.as_str(), row.versions.as_slice())).collect();
        Self { rows, by_start }
    }

    pub(super) fn of_row(&self, row: &str) -> &'a [Version] {
        self.rows.get(row).copied().unwrap_or_default()
    }

    pub(super) fn seen_at(&self, row: &str, at: Timestamp) -> Option<Version> {
        let versions = self.of_row(row);
        let above = versions.partition_point(|version| version.commit <= at);
        above.checked_sub(1).map(|newest| versions[newest])
    }
}
