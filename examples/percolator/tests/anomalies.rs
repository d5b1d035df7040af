//! Tests the checker on whole runs in memory. If clients keep to the protocol, the checker has no
//! findings, even if clients are killed. With each planted mistake it has the expected finding.

mod arena;

use std::collections::BTreeSet;

use arena::{Oracle, Script, clients, conclude, evidence_of};
use percolator::bank::Bank;
use percolator::checker::{Anomaly, Verdict, check};
use percolator::history::{Kind, Outcome, Why};
use percolator::plant::Plant;
use percolator::transaction::transact;
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
    }
}

fn found(verdict: &Verdict) -> BTreeSet<Anomaly> {
    verdict.findings.iter().map(|finding| finding.anomaly).collect()
}

#[test]
fn clients_that_keep_to_the_protocol_show_no_anomaly_whichever_of_them_dies() {
    let (mut forward, mut back, mut dead, mut skews) = (0, 0, 0, 0);
    for seed in 0..20 {
        let evidence = evidence_of(script(seed));
        let verdict = check(&evidence);
        assert_eq!(verdict.findings, [], "seed {seed}");
        assert!(verdict.versions > 100, "seed {seed}: {verdict:?}");
        forward += evidence.ended.iter().map(|ended| ended.figures.forward).sum::<u64>();
        back += evidence.ended.iter().map(|ended| ended.figures.back).sum::<u64>();
        dead += verdict.cut_off_committed.min(verdict.cut_off_lost);
        skews += verdict.write_skews;
    }
    println!("{forward} locks of the dead made versions, {back} removed; {skews} write skews");
    // With fewer than these, the run would not have tested how locks of dead clients are resolved.
    assert!(forward > 20 && back > 20);
    assert!(dead > 10 && skews > 5, "{dead} {skews}");
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
    let [mut anna, mut boris] = clients(Script { deadly: 0, ..script(0) });
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
    let [mut anna, mut boris] = clients(Script { deadly: 0, ..script(0) });
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

/// A transfer makes six calls: two reads, two locks, the commit of the primary row, and the commit
/// of the other row. The client dies at each of them, before or after the call is executed. Only
/// the commit of the primary decides whether the transfer happens.
#[test]
fn a_transfer_that_dies_at_any_step_happens_entirely_or_not_at_all() {
    const COMMIT_OF_PRIMARY: usize = 4;
    for call in 0..6 {
        for is_done in [false, true] {
            let [mut dying, mut other] = clients(Script { deadly: 0, ..script(0) });
            dying.dies_at = Some((call, is_done));
            let died = transact(&mut dying, Kind::Transfer, |dying| {
                let (from, to) =
                    (dying.read("account/0")?.unwrap(), dying.read("account/1")?.unwrap());
                dying.write("account/0", from - 7);
                dying.write("account/1", to + 7);
                Ok(())
            });
            assert_eq!(died, Err(WorldError::Killed), "call {call}");
            let mut seen = None;
            let read = transact(&mut other, Kind::Audit, |other| {
                // The other transaction reads the secondary row first.
                seen = other.read("account/1")?;
                assert_eq!(seen.unwrap() + other.read("account/0")?.unwrap(), 200, "call {call}");
                Ok(())
            });
            assert_eq!(read, Ok(Outcome::ReadOnly), "call {call}");
            let has_happened = (call, is_done) >= (COMMIT_OF_PRIMARY, true);
            assert_eq!(seen == Some(107), has_happened, "call {call}, done {is_done}");
            assert_eq!(check(&conclude(&other)).findings, [], "call {call}");
        }
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
            Plant::IgnorePrimary => Anomaly::Torn,
        };
        for seed in 0..5 {
            let evidence = evidence_of(Script { plant: Some(plant), ..script(seed) });
            let found = found(&check(&evidence));
            if seed == 0 {
                println!("{plant}: {found:?}");
            }
            assert!(found.contains(&expected), "{plant}, seed {seed}: {found:?}");
        }
    }
}
