//! What must be true of a history of transactions under snapshot isolation, given what clients
//! wrote down and all that the stores hold in the end. It trusts no clock, and no client's opinion
//! about order. The names of the anomalies are those of Adya (1999) and of Berenson and others
//! (1995), where there is one.
//!
//! Write skew is none of them: snapshot isolation allows it. It is counted, and no more.

mod order;
mod skew;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use epicepoch_client::Timestamp;

use crate::bank::is_account;
use crate::history::{Ended, Line, Outcome, Trying, Written};
use crate::protocol::{Row, Version};

/// All that is known of a run.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// What ended.
    pub ended: Vec<Ended>,
    /// What was begun; most of it ended.
    pub trying: Vec<Trying>,
    /// How often a transaction could not begin.
    pub without_timestamp: u64,
    /// What the stores hold.
    pub rows: Vec<Row>,
    /// What all accounts must have together.
    pub total: i64,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Nothing, if all is well.
    pub findings: Vec<Finding>,
    /// Timestamps whose order was looked at.
    pub timestamps: u64,
    /// Reads that were compared with what the stores hold.
    pub reads: u64,
    /// Versions that the stores hold.
    pub versions: u64,
    /// Snapshots of all accounts whose sum was looked at.
    pub snapshots: u64,
    /// Transactions whose client died before it knew, and which have happened.
    pub cut_off_committed: u64,
    /// And which have not.
    pub cut_off_lost: u64,
    /// Pairs of transactions of which each read what the other wrote: allowed.
    pub write_skews: u64,
}

/// Something that snapshot isolation, or the oracle, excludes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What kind.
    pub anomaly: Anomaly,
    /// Who, where, and what was expected.
    pub what: String,
}

/// Kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Anomaly {
    /// A timestamp was given twice.
    Duplicate,
    /// A call for a timestamp was complete before another began, and got the higher one.
    RealTime,
    /// A commit timestamp is not above its start timestamp.
    CommitNotAfterStart,
    /// Two transactions at the same time wrote the same row and both committed (P4, lost update).
    LostUpdate,
    /// A read saw another version than the newest at its start (G-SI, or a dirty read: G1).
    WrongRead,
    /// Some writes of a transaction are there and some are not, or at different places; or those of
    /// an aborted one are (G1a).
    Torn,
    /// Money came or went.
    Total,
    /// A lock that nobody has resolved.
    Leftover,
}

impl Evidence {
    /// Takes what a client wrote down.
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

/// Looks at everything.
pub fn check(evidence: &Evidence) -> Verdict {
    let mut verdict = Verdict::default();
    let stored = Stored::of(&evidence.rows);
    verdict.versions = stored.rows.values().map(|versions| versions.len() as u64).sum();
    order::check(evidence, &stored, &mut verdict);
    lost_updates(&stored, &mut verdict);
    reads(evidence, &stored, &mut verdict);
    fates(evidence, &stored, &mut verdict);
    totals(evidence, &stored, &mut verdict);
    for row in &evidence.rows {
        if let Some(lock) = &row.lock {
            let what = format!("{} is locked by {} to the end", row.row, lock.start);
            verdict.add(Anomaly::Leftover, what);
        }
    }
    verdict.write_skews = skew::count(evidence, &stored);
    verdict
}

impl Verdict {
    /// How often an anomaly was found.
    pub fn count(&self, anomaly: Anomaly) -> usize {
        self.findings.iter().filter(|finding| finding.anomaly == anomaly).count()
    }

    fn add(&mut self, anomaly: Anomaly, what: String) {
        self.findings.push(Finding { anomaly, what });
    }
}

/// The stores' versions, by row and by transaction.
struct Stored<'a> {
    /// By commit timestamp, lowest first.
    rows: BTreeMap<&'a str, &'a [Version]>,
    by_start: HashMap<Timestamp, Vec<(&'a str, Version)>>,
}

impl<'a> Stored<'a> {
    fn of(rows: &'a [Row]) -> Self {
        let mut by_start: HashMap<Timestamp, Vec<(&str, Version)>> = HashMap::new();
        for row in rows {
            for version in &row.versions {
                by_start.entry(version.start).or_default().push((&row.row, *version));
            }
        }
        let rows = rows.iter().map(|row| (row.row.as_str(), row.versions.as_slice())).collect();
        Self { rows, by_start }
    }

    fn of_row(&self, row: &str) -> &'a [Version] {
        self.rows.get(row).copied().unwrap_or_default()
    }

    /// The version that a snapshot sees.
    fn seen_at(&self, row: &str, at: Timestamp) -> Option<Version> {
        let versions = self.of_row(row);
        let above = versions.partition_point(|version| version.commit <= at);
        above.checked_sub(1).map(|newest| versions[newest])
    }
}

/// First committer wins: from start to commit, no two writers of a row overlap. Neighbours tell all.
fn lost_updates(stored: &Stored<'_>, verdict: &mut Verdict) {
    for (row, versions) in &stored.rows {
        for pair in versions.windows(2) {
            if pair[1].start <= pair[0].commit {
                let what = format!(
                    "{row}: {} committed at {}, and {}, which began before that, at {}",
                    pair[0].start, pair[0].commit, pair[1].start, pair[1].commit
                );
                verdict.add(Anomaly::LostUpdate, what);
            }
        }
    }
}

/// Every read saw the newest version at or below its start, also if its transaction was aborted.
fn reads(evidence: &Evidence, stored: &Stored<'_>, verdict: &mut Verdict) {
    for ended in &evidence.ended {
        for seen in &ended.reads {
            verdict.reads += 1;
            let expected = stored.seen_at(&seen.row, ended.start.at);
            if expected != seen.version {
                let what = format!(
                    "{} read {} at {}: {}, not {}",
                    ended.client,
                    seen.row,
                    ended.start.at,
                    shown(seen.version),
                    shown(expected)
                );
                verdict.add(Anomaly::WrongRead, what);
            }
        }
        let accounts = ended.reads.iter().filter(|seen| is_account(&seen.row));
        let (mut rows, mut sum) = (HashSet::new(), 0);
        for seen in accounts {
            if rows.insert(&seen.row) {
                sum += seen.version.map_or(0, |version| version.value);
            }
        }
        let all = stored.rows.keys().filter(|row| is_account(row)).count();
        if rows.len() == all && all > 0 {
            verdict.snapshots += 1;
            if sum != evidence.total {
                let what = format!(
                    "{} counted {sum} at {}, not {}",
                    ended.client, ended.start.at, evidence.total
                );
                verdict.add(Anomaly::Total, what);
            }
        }
    }
}

/// All of a transaction's writes are there, at its commit timestamp, or none.
fn fates(evidence: &Evidence, stored: &Stored<'_>, verdict: &mut Verdict) {
    let mut known = HashSet::new();
    for ended in &evidence.ended {
        known.insert(ended.start.at);
        let at = match &ended.outcome {
            Outcome::Committed { commit } => Some(commit.at),
            Outcome::ReadOnly | Outcome::Aborted { .. } => None,
        };
        fate(&ended.client, ended.start.at, &ended.writes, Fate::Known(at), stored, verdict);
    }
    for trying in &evidence.trying {
        if known.insert(trying.start) {
            if stored.by_start.contains_key(&trying.start) {
                verdict.cut_off_committed += 1;
            } else {
                verdict.cut_off_lost += 1;
            }
            let Trying { client, start, writes } = trying;
            fate(client, *start, writes, Fate::AllOrNothing, stored, verdict);
        }
    }
    for (start, versions) in &stored.by_start {
        if !known.contains(start) {
            let what = format!("nobody says to have written {versions:?}");
            verdict.add(Anomaly::Torn, what);
        }
    }
}

#[derive(Clone, Copy)]
enum Fate {
    /// What its client says: where it committed, or that it did not.
    Known(Option<Timestamp>),
    /// Its client died.
    AllOrNothing,
}

fn fate(
    client: &str,
    start: Timestamp,
    writes: &[Written],
    fate: Fate,
    stored: &Stored<'_>,
    verdict: &mut Verdict,
) {
    let there = stored.by_start.get(&start).map_or(&[][..], Vec::as_slice);
    let at = match fate {
        Fate::Known(at) => at,
        Fate::AllOrNothing => there.first().map(|(_, version)| version.commit),
    };
    let expected = if at.is_some() { writes.len() } else { 0 };
    let is_whole = there.len() == expected
        && there.iter().all(|(row, version)| {
            Some(version.commit) == at
                && writes
                    .iter()
                    .any(|written| written.row == *row && written.value == version.value)
        });
    if !is_whole {
        let what = match at {
            Some(at) => format!(
                "{client}: {start} committed {writes:?} at {at}, and the stores have {there:?}"
            ),
            None => format!("{client}: {start} was aborted, and the stores have {there:?}"),
        };
        verdict.add(Anomaly::Torn, what);
    }
}

/// The sum over all accounts at every commit timestamp, from the stores alone.
fn totals(evidence: &Evidence, stored: &Stored<'_>, verdict: &mut Verdict) {
    let mut commits: BTreeMap<Timestamp, i64> = BTreeMap::new();
    for (_, versions) in stored.rows.iter().filter(|(row, _)| is_account(row)) {
        let mut before = 0;
        for version in *versions {
            *commits.entry(version.commit).or_default() += version.value - before;
            before = version.value;
        }
    }
    let mut sum = 0;
    for (commit, change) in commits {
        verdict.snapshots += 1;
        sum += change;
        // One word about a loss, not one about every snapshot after it.
        let is_new = change != 0;
        if is_new && sum != evidence.total {
            let total = evidence.total;
            verdict.add(Anomaly::Total, format!("the stores have {sum} at {commit}, not {total}"));
        }
    }
}

fn shown(version: Option<Version>) -> String {
    version.map_or_else(
        || "no version".to_owned(),
        |version| format!("{} of {} at {}", version.value, version.start, version.commit),
    )
}
