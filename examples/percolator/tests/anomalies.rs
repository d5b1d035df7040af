//! Tests the checker on whole runs in memory. If clients keep to the protocol, the checker has no
//! findings, even if clients are killed or sleep longer than their locks are respected. With each
//! planted mistake it has the expected finding.

mod arena;

use std::collections::BTreeSet;

use arena::{Client, Fault, Oracle, Script, clients, conclude, evidence_of};
use percolator::bank::Bank;
use percolator::checker::{Anomaly, Evidence, Verdict, check};
use percolator::history::{Kind, Outcome, Why};
use percolator::plant::Plant;
use percolator::transaction::{outcome_of, transact};
use percolator::world::WorldError;

fn script(seed: u64) -> Script {
    let bank = Bank { accounts: 6, pairs: 2 };
    Script {
        oracle: Oracle::Quorum,
        seed,
        plant: None,
        clients: 5,
        transactions: 60,
        bank,
        deadly: 150,
        sleepy: 150,
    }
}

/// Clients that neither die nor sleep, unless a test says so.
fn awake<const N: usize>() -> [Client; N] {
    clients(Script { deadly: 0, sleepy: 0, ..script(0) })
}

fn found(verdict: &Verdict) -> BTreeSet<Anomaly> {
    verdict.findings.iter().map(|finding| finding.anomaly).collect()
}

/// Counts the transfers that committed.
fn transfers(evidence: &Evidence) -> usize {
    let transfers = evidence.ended.iter().filter(|ended| ended.kind == Kind::Transfer);
    transfers.filter(|ended| matches!(ended.outcome, Outcome::Committed { .. })).count()
}

/// Counts the transactions of slow clients that others rolled back.
fn rolled_back(evidence: &Evidence) -> usize {
    let why = Outcome::Aborted { why: Why::RolledBack };
    evidence.ended.iter().filter(|ended| ended.outcome == why).count()
}

#[test]
fn clients_that_keep_to_the_protocol_show_no_anomaly_whichever_of_them_dies_or_sleeps() {
    let (mut forward, mut back, mut dead, mut late, mut skews) = (0, 0, 0, 0, 0);
    for seed in 0..30 {
        let evidence = evidence_of(script(seed));
        let verdict = check(&evidence);
        assert_eq!(verdict.findings, [], "seed {seed}");
        assert!(verdict.versions > 100, "seed {seed}: {verdict:?}");
        assert!(transfers(&evidence) > 50, "seed {seed}");
        late += rolled_back(&evidence);
        forward += evidence.ended.iter().map(|ended| ended.figures.forward).sum::<u64>();
        back += evidence.ended.iter().map(|ended| ended.figures.back).sum::<u64>();
        dead += verdict.cut_off_committed.min(verdict.cut_off_lost);
        skews += verdict.write_skews;
    }
    println!("{forward} locks of the dead made versions, {back} removed; {skews} write skews");
    println!("{late} transactions of slow clients were rolled back");
    // With fewer than these, the run would not have tested how locks of dead and slow clients are
    // resolved.
    assert!(forward > 20 && back > 20);
    assert!(dead > 10 && skews > 5 && late > 15, "{dead} {skews} {late}");
}

/// Three nodes answer alone, with clocks that differ. Clients that wait out both timestamps of each
/// transaction show no anomaly, whichever of them dies.
#[test]
fn in_interval_mode_clients_that_wait_show_no_anomaly() {
    let oracle = Oracle::Intervals { waits: true };
    let (mut dead, mut resolved) = (0, 0);
    for seed in 0..20 {
        let evidence = evidence_of(Script { oracle, ..script(seed) });
        let verdict = check(&evidence);
        assert_eq!(verdict.findings, [], "seed {seed}");
        assert!(verdict.versions > 100, "seed {seed}: {verdict:?}");
        assert!(transfers(&evidence) > 50, "seed {seed}");
        dead += verdict.cut_off_committed.min(verdict.cut_off_lost);
        let counted = evidence.ended.iter().map(|ended| ended.figures);
        resolved += counted.map(|figures| figures.forward + figures.back).sum::<u64>();
    }
    println!("{dead} of either kind were cut off, {resolved} locks were resolved");
    assert!(dead > 5 && resolved > 20, "{dead} {resolved}");
}

/// The same nodes keep to their promise. The clients do not.
#[test]
fn in_interval_mode_clients_that_do_not_wait_are_found() {
    let oracle = Oracle::Intervals { waits: false };
    let mut wrong = 0;
    for seed in 0..5 {
        let verdict = check(&evidence_of(Script { oracle, ..script(seed) }));
        let found = found(&verdict);
        println!("seed {seed}: {} findings, {found:?}", verdict.findings.len());
        assert!(found.contains(&Anomaly::Stale), "seed {seed}: {found:?}");
        wrong += verdict.count(Anomaly::WrongRead);
    }
    assert!(wrong > 0, "snapshots changed after they had been read");
}

/// Two people are on duty. Each goes off duty because the other one is still on duty. This is write
/// skew.
#[test]
fn write_skew_is_allowed_and_no_finding() {
    let [mut anna, mut boris] = awake();
    let mine = transact(&mut anna, Kind::Duty, |anna| {
        assert_eq!((anna.read("duty/0/0")?, anna.read("duty/0/1")?), (Some(1), Some(1)));
        let his = transact(&mut boris, Kind::Duty, |boris| {
            assert_eq!((boris.read("duty/0/0")?, boris.read("duty/0/1")?), (Some(1), Some(1)));
            boris.write("duty/0/1", 0);
            Ok(())
        })?;
        assert!(matches!(his, Outcome::Committed { .. }));
        anna.write("duty/0/0", 0);
        Ok(())
    });
    assert!(matches!(mine, Ok(Outcome::Committed { .. })));
    let evidence = conclude(&anna);
    let on_duty = evidence.rows.iter().filter(|row| row.row.starts_with("duty/0/"));
    // Nobody is on duty. If the transactions had run one after the other, one person would have
    // stayed.
    assert_eq!(on_duty.map(|row| row.versions.last().unwrap().value).sum::<i64>(), 0);
    let verdict = check(&evidence);
    assert_eq!(verdict.findings, []);
    assert_eq!(verdict.write_skews, 1);
}

/// Two transactions change the same row. The second one to commit must abort. Otherwise the update
/// of the first one would be lost.
#[test]
fn the_first_committer_wins() {
    let [mut anna, mut boris] = awake();
    let mine = transact(&mut anna, Kind::Transfer, |anna| {
        let before = anna.read("account/0")?.unwrap();
        let his = transact(&mut boris, Kind::Transfer, |boris| {
            boris.write("account/0", before - 1);
            boris.write("account/1", 101);
            Ok(())
        })?;
        assert!(matches!(his, Outcome::Committed { .. }));
        anna.write("account/0", before - 2);
        anna.write("account/2", 102);
        Ok(())
    });
    assert_eq!(mine, Ok(Outcome::Aborted { why: Why::Conflict }));
    assert_eq!(check(&conclude(&anna)).findings, []);
}

/// Moves 7. This makes six calls: two reads, two locks, the commit of the primary row, and the
/// commit of the other row.
fn transfer(client: &mut Client) -> Result<Outcome, WorldError> {
    transact(client, Kind::Transfer, |client| {
        let (from, to) = (client.read("account/0")?.unwrap(), client.read("account/1")?.unwrap());
        client.write("account/0", from - 7);
        client.write("account/1", to + 7);
        Ok(())
    })
}

/// The number of calls of [`transfer`], and how many come before the one that decides.
const CALLS: usize = 6;
const COMMIT_OF_PRIMARY: usize = 4;

/// Reads both rows of [`transfer`], the secondary row first. Returns whether the transfer has
/// happened. If only a part has happened, it panics.
fn has_happened(other: &mut Client) -> bool {
    let mut seen = (None, None);
    let read = transact(other, Kind::Audit, |other| {
        let second = other.read("account/1")?;
        seen = (other.read("account/0")?, second);
        Ok(())
    });
    assert_eq!(read, Ok(Outcome::ReadOnly));
    assert!([(Some(93), Some(107)), (Some(100), Some(100))].contains(&seen), "{seen:?}");
    seen == (Some(93), Some(107))
}

/// The client dies at each call, before or after the call is executed. Only the commit of the
/// primary decides whether the transfer happens.
#[test]
fn a_transfer_that_dies_at_any_step_happens_entirely_or_not_at_all() {
    for (call, is_done) in (0..CALLS).flat_map(|call| [(call, false), (call, true)]) {
        let [mut dying, mut other] = awake();
        dying.fault_at = Some((call, Fault::Dies { is_done }));
        assert_eq!(transfer(&mut dying), Err(WorldError::Killed), "call {call}");
        let expected = (call, is_done) >= (COMMIT_OF_PRIMARY, true);
        assert_eq!(has_happened(&mut other), expected, "call {call}, done {is_done}");
        assert_eq!(check(&conclude(&other)).findings, [], "call {call}");
    }
}

/// The reply to each call is lost, or the store was down and has not executed it. The caller may try
/// again only if the transfer has not happened and never will.
#[test]
fn a_transfer_with_a_lost_reply_is_not_called_aborted_if_it_may_have_happened() {
    for (call, is_done) in (0..CALLS).flat_map(|call| [(call, false), (call, true)]) {
        let [mut unlucky, mut other] = awake();
        unlucky.fault_at = Some((call, Fault::Lost { is_done }));
        let ended = transfer(&mut unlucky);
        let expected = (call, is_done) >= (COMMIT_OF_PRIMARY, true);
        match ended {
            Err(WorldError::Unavailable(_)) => assert!(call < COMMIT_OF_PRIMARY, "call {call}"),
            Err(WorldError::Unknown { start, primary, .. }) => {
                assert_eq!(call, COMMIT_OF_PRIMARY);
                let commit = outcome_of(&mut unlucky, start, &primary).unwrap();
                assert_eq!(commit.is_some(), expected, "done {is_done}");
            }
            Ok(Outcome::Committed { .. }) => assert!(call > COMMIT_OF_PRIMARY, "call {call}"),
            other => panic!("call {call}, done {is_done}: {other:?}"),
        }
        assert_eq!(has_happened(&mut other), expected, "call {call}, done {is_done}");
        // Now the caller may try again, if nothing has happened. So it pays once.
        if !expected {
            let again = transfer(&mut unlucky);
            assert!(matches!(again, Ok(Outcome::Committed { .. })), "call {call}: {again:?}");
            assert!(has_happened(&mut other), "call {call}");
        }
        assert_eq!(check(&conclude(&other)).findings, [], "call {call}");
    }
}

/// Before each call, the client sleeps longer than its locks are respected. Meanwhile another one
/// reads. Then the client goes on, as if nothing had happened.
#[test]
fn a_transfer_that_sleeps_at_any_step_happens_entirely_or_not_at_all() {
    const LOCK_OF_SECONDARY: usize = 3;
    for call in 0..CALLS {
        let [mut slow, mut other, mut last] = awake();
        let (seen, was_seen) = std::sync::mpsc::channel();
        let meanwhile = move || seen.send(has_happened(&mut other)).unwrap();
        slow.fault_at = Some((call, Fault::Sleeps(Box::new(meanwhile))));
        let ended = transfer(&mut slow);
        // The primary is locked and not committed, so the reader rolled the transfer back.
        let is_late = (LOCK_OF_SECONDARY..=COMMIT_OF_PRIMARY).contains(&call);
        if is_late {
            assert_eq!(ended, Ok(Outcome::Aborted { why: Why::RolledBack }), "call {call}");
        } else {
            assert!(matches!(ended, Ok(Outcome::Committed { .. })), "call {call}: {ended:?}");
        }
        assert_eq!(was_seen.recv(), Ok(call > COMMIT_OF_PRIMARY), "call {call}");
        assert_eq!(has_happened(&mut last), !is_late, "call {call}");
        assert_eq!(check(&conclude(&last)).findings, [], "call {call}");
    }
}

#[test]
fn a_run_can_be_had_again() {
    assert_eq!(check(&evidence_of(script(7))), check(&evidence_of(script(7))));
}

#[test]
fn every_planted_mistake_is_found() {
    for plant in Plant::ALL {
        let expected = match plant {
            Plant::ClockAhead => Anomaly::CommitNotAfterStart,
            Plant::CommitBeforeLocks | Plant::ReadPastLocks => Anomaly::WrongRead,
            Plant::NoConflictCheck => Anomaly::LostUpdate,
            Plant::IgnorePrimary | Plant::LateCommit => Anomaly::Torn,
        };
        // Only a slow client commits late.
        let sleepy = if plant == Plant::LateCommit { 40 } else { script(0).sleepy };
        for seed in 0..5 {
            let evidence = evidence_of(Script { plant: Some(plant), sleepy, ..script(seed) });
            let found = found(&check(&evidence));
            if seed == 0 {
                println!("{plant}: {found:?}");
            }
            assert!(transfers(&evidence) > 0, "{plant}, seed {seed}");
            assert!(found.contains(&expected), "{plant}, seed {seed}: {found:?}");
        }
    }
}
