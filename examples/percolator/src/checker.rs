//! Checks a history of transactions for snapshot isolation, from the clients' records and the final
//! rows of all stores. It also checks real-time order between transactions, by the clients' common
//! clock. It does not check that timestamps are unique; `epicepoch bench` checks this. Where Adya
//! (1999) or Berenson and others (1995) have a name for an anomaly, it is given.
//!
//! Pairs with write skew are counted but are not findings, because snapshot isolation allows them.

mod evidence;
mod skew;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};

use epicepoch_client::Timestamp;

use crate::bank::is_account;
use crate::history::{Outcome, Trying, Written};
use crate::protocol::Version;
use evidence::Stored;
pub use evidence::{Anomaly, Evidence, Finding, Verdict};

pub fn check(evidence: &Evidence) -> Verdict {
    let mut verdict = Verdict::default();
    let stored = Stored::of(&evidence.rows);
    verdict.versions = stored.rows.values().map(|versions| versions.len() as u64).sum();
    commits(&stored, &mut verdict);
    lost_updates(&stored, &mut verdict);
    reads(evidence, &stored, &mut verdict);
    stale(evidence, &mut verdict);
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

/// Checks that every commit timestamp is above the transaction's start timestamp.
fn commits(stored: &Stored<'_>, verdict: &mut Verdict) {
    for version in stored.rows.values().copied().flatten() {
        if version.commit <= version.start {
            let what = format!("{} committed at {}", version.start, version.commit);
            verdict.add(Anomaly::CommitNotAfterStart, what);
        }
    }
}

/// Checks that the first committer wins: if two transactions wrote the same row, one committed
/// before the other one started. Versions are sorted, so it is enough to check neighbours.
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

/// Checks that every read saw the newest version at or below its transaction's start timestamp.
/// Reads of aborted transactions are checked, too.
fn reads(evidence: &Evidence, stored: &Stored<'_>, verdict: &mut Verdict) {
    for ended in &evidence.ended {
        for seen in &ended.reads {
            verdict.reads += 1;
            let expected = stored.seen_at(&seen.row, ended.start);
            if expected != seen.version {
                let what = format!(
                    "{} read {} at {}: {}, not {}",
                    ended.client,
                    seen.row,
                    ended.start,
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
                    ended.client, ended.start, evidence.total
                );
                verdict.add(Anomaly::Total, what);
            }
        }
    }
}

/// Checks real-time order: a transaction that began after another one had ended starts above the
/// other's commit timestamp, so its snapshot has the other's writes.
fn stale(evidence: &Evidence, verdict: &mut Verdict) {
    let mut begins: Vec<_> = evidence.ended.iter().collect();
    begins.sort_by_key(|ended| ended.began);
    let mut ends: Vec<_> = evidence
        .ended
        .iter()
        .filter_map(|ended| match ended.outcome {
            Outcome::Committed { commit } => Some((ended.ended, commit, &ended.client)),
            Outcome::ReadOnly | Outcome::Aborted { .. } => None,
        })
        .collect();
    ends.sort_by_key(|(ended, ..)| *ended);
    let mut ends = ends.into_iter().peekable();
    // The highest commit timestamp of the transactions that had ended.
    let mut highest: Option<(Timestamp, &String)> = None;
    for later in begins {
        while let Some((_, commit, client)) = ends.next_if(|(ended, ..)| *ended < later.began) {
            if highest.is_none_or(|(known, _)| known < commit) {
                highest = Some((commit, client));
            }
        }
        let Some((commit, client)) = highest.filter(|(commit, _)| later.start <= *commit) else {
            continue;
        };
        let what = format!(
            "{} began after {client} had committed at {commit}, and started at {}",
            later.client, later.start
        );
        verdict.add(Anomaly::Stale, what);
    }
}

/// Checks that either all writes of a transaction are in the stores, at its commit timestamp, or
/// none.
fn fates(evidence: &Evidence, stored: &Stored<'_>, verdict: &mut Verdict) {
    let mut known = HashSet::new();
    for ended in &evidence.ended {
        known.insert(ended.start);
        let at = match &ended.outcome {
            Outcome::Committed { commit } => Some(*commit),
            Outcome::ReadOnly | Outcome::Aborted { .. } => None,
        };
        fate(&ended.client, ended.start, &ended.writes, Fate::Known(at), stored, verdict);
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
    /// The client recorded the transaction's commit timestamp, or that it did not commit.
    Known(Option<Timestamp>),
    /// The client died. So either all writes of the transaction are in the stores, or none.
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

/// Checks the sum of all accounts at every commit timestamp. Uses only the stores' versions, not
/// the clients' records.
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
        // Report a change once, not at every later snapshot.
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
