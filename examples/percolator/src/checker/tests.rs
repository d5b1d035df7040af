//! Tests rules of the checker by hand. Each test changes a correct history of two transactions, and
//! the checker must find the change. The first transaction starts at 10, commits at 20 and sets
//! both accounts. The second one starts at 30, commits at 40 and moves 5 between them. Planted
//! mistakes (`tests/anomalies.rs`) cover the other rules.

use std::time::Duration;

use epicepoch_client::Timestamp;

use super::{Anomaly, Evidence, check};
use crate::history::{Ended, Figures, Kind, Outcome, Seen, Trying, Why, Written};
use crate::protocol::{Lock, Row, Version};

fn at(number: u128) -> Timestamp {
    Timestamp::from(number)
}

fn version(commit: u128, start: u128, value: i64) -> Version {
    Version { commit: at(commit), start: at(start), value }
}

fn written(values: [i64; 2]) -> Vec<Written> {
    let rows = ["account/0", "account/1"];
    rows.iter().zip(values).map(|(row, value)| Written { row: (*row).to_owned(), value }).collect()
}

/// A transaction that began and ended at the times of its timestamps.
fn ended(start: u64, commit: Option<u64>, reads: Vec<Seen>, writes: Vec<Written>) -> Ended {
    let (began, ended) = (start, commit.unwrap_or(start));
    let (start, commit) = (u128::from(start), commit.map(u128::from));
    let outcome =
        commit.map_or(Outcome::ReadOnly, |commit| Outcome::Committed { commit: at(commit) });
    Ended {
        client: "test".to_owned(),
        kind: Kind::Transfer,
        start: at(start),
        reads,
        writes,
        outcome,
        figures: Figures::default(),
        began: Duration::from_millis(began),
        ended: Duration::from_millis(ended),
    }
}

fn seen(row: &str, version: Version) -> Seen {
    Seen { row: row.to_owned(), version: Some(version) }
}

fn sound() -> Evidence {
    let first = [version(20, 10, 100), version(20, 10, 100)];
    let second = [version(40, 30, 95), version(40, 30, 105)];
    let rows = ["account/0", "account/1"];
    let reads = |from: [Version; 2]| rows.iter().zip(from).map(|(row, v)| seen(row, v)).collect();
    Evidence {
        ended: vec![
            ended(10, Some(20), vec![], written([100, 100])),
            ended(30, Some(40), reads(first), written([95, 105])),
            ended(50, None, reads(second), vec![]),
        ],
        rows: (0..2)
            .map(|row| Row {
                row: rows[row].to_owned(),
                versions: vec![first[row], second[row]],
                lock: None,
            })
            .collect(),
        total: 200,
        ..Evidence::default()
    }
}

/// Changes the correct history, and returns the kinds of the checker's findings, each kind once.
fn found(change: impl FnOnce(&mut Evidence)) -> Vec<Anomaly> {
    let mut evidence = sound();
    change(&mut evidence);
    let mut found: Vec<_> =
        check(&evidence).findings.iter().map(|finding| finding.anomaly).collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[test]
fn a_sound_history_has_no_findings_and_is_looked_at() {
    let verdict = check(&sound());
    assert_eq!(verdict.findings, []);
    assert_eq!((verdict.reads, verdict.versions), (4, 4));
    // The four snapshots are those of the two commits in the stores, and those of the two
    // transactions, which read every account.
    assert_eq!((verdict.snapshots, verdict.write_skews), (4, 0));
}

#[test]
fn a_read_of_what_was_never_committed_is_found() {
    let change = |e: &mut Evidence| {
        e.ended[2].reads = vec![seen("account/0", version(44, 43, 7))];
    };
    assert_eq!(found(change), [Anomaly::WrongRead]);
}

#[test]
fn half_a_transaction_of_a_client_that_died_is_found() {
    let change = |e: &mut Evidence| {
        e.rows[1].versions.pop();
        let (client, writes) = ("dead".to_owned(), written([95, 105]));
        e.trying.push(Trying { client, start: at(30), writes });
        e.ended.truncate(1);
    };
    assert_eq!(found(change), [Anomaly::Torn, Anomaly::Total]);
}

#[test]
fn a_client_that_died_may_have_committed_or_not() {
    let committed = |e: &mut Evidence| {
        let (client, writes) = ("dead".to_owned(), written([95, 105]));
        e.trying.push(Trying { client, start: at(30), writes });
        e.ended.remove(1);
    };
    let mut evidence = sound();
    committed(&mut evidence);
    let client = "dead".to_owned();
    evidence.trying.push(Trying { client, start: at(45), writes: written([0, 200]) });
    let verdict = check(&evidence);
    assert_eq!(verdict.findings, []);
    assert_eq!((verdict.cut_off_committed, verdict.cut_off_lost), (1, 1));
}

#[test]
fn a_write_of_an_aborted_transaction_is_found() {
    let change = |e: &mut Evidence| e.ended[1].outcome = Outcome::Aborted { why: Why::Conflict };
    assert_eq!(found(change), [Anomaly::Torn]);
}

#[test]
fn a_write_that_no_client_made_is_found() {
    assert_eq!(found(|e| drop(e.ended.remove(1))), [Anomaly::Torn]);
}

#[test]
fn money_from_nowhere_is_found_in_a_snapshot_and_in_the_stores() {
    let change = |e: &mut Evidence| {
        e.rows[1].versions[1].value = 106;
        e.ended[1].writes[1].value = 106;
        e.ended[2].reads[1] = seen("account/1", version(40, 30, 106));
    };
    assert_eq!(found(change), [Anomaly::Total]);
    let mut evidence = sound();
    change(&mut evidence);
    assert_eq!(check(&evidence).count(Anomaly::Total), 2);
}

#[test]
fn a_lock_that_stays_is_found() {
    let change = |e: &mut Evidence| {
        e.rows[0].lock = Some(Lock { start: at(60), primary: "account/0".to_owned() });
    };
    assert_eq!(found(change), [Anomaly::Leftover]);
}

/// The last transaction began at 50, and its snapshot is the one of 35. What it read is right for
/// that.
#[test]
fn a_snapshot_from_before_a_commit_that_had_ended_is_found() {
    let stale = |began: u64| {
        found(|e| {
            e.ended[2].began = Duration::from_millis(began);
            e.ended[2].start = at(35);
            e.ended[2].reads = e.ended[1].reads.clone();
        })
    };
    assert_eq!(stale(50), [Anomaly::Stale]);
    assert_eq!(stale(40), [], "it began while the other one ended");
}
