//! The prover is proved: every planted bug is found by a checker, by the default generator, within
//! the seeds that are stated here. A panic of the core does not count. The table of
//! `docs/testing.md` is this one.
//!
//! A release build has no planted bugs, and nothing to test here.
#![cfg(debug_assertions)]

use epicepoch_sim::plant::Plant;
use epicepoch_sim::run::{Failure, Options, run};

/// Seeds within which a planted bug must be found, counted from 0.
const fn seeds(plant: Plant) -> u64 {
    match plant {
        Plant::TermFromLog => 300,
        Plant::JoinAtCompletion
        | Plant::AnyReplyCounts
        | Plant::CountedTwice
        | Plant::RestartPromise
        | Plant::OldVoters
        | Plant::LyingDisk => 100,
        Plant::Unconfirmed
        | Plant::RecentRound
        | Plant::LateJoin
        | Plant::LatePromise
        | Plant::KeptRange
        | Plant::RestartedRange
        | Plant::FollowerAnswers
        | Plant::ProposerRange
        | Plant::StrangerCounts
        | Plant::WipedDisk
        | Plant::WorkerIndexes
        | Plant::IndexReset
        | Plant::SplitOffByOne
        | Plant::CountOverflow
        | Plant::ClockReadTwice
        | Plant::IntervalRestarts
        | Plant::EpochFollowsClock
        | Plant::BeyondRange => 10,
        // Enough to show that nothing comes of it.
        Plant::RevokedLate => 50,
    }
}

/// The first seed whose run breaks an invariant, and which.
fn caught(plant: Plant) -> Option<(u64, String)> {
    (0..seeds(plant)).find_map(|seed| {
        match run(Options { plant: Some(plant), ..Options::new(seed) }).failure {
            Some(Failure::Safety(violation)) => Some((seed, format!("{:?}", violation.invariant))),
            Some(Failure::Liveness(_) | Failure::Crash(_)) | None => None,
        }
    })
}

#[test]
fn every_planted_bug_is_found_by_a_checker() {
    let mut missed = vec![];
    for plant in Plant::ALL.iter().filter(|plant| !Plant::HARMLESS.contains(plant)) {
        match caught(*plant) {
            Some((seed, what)) => println!("{}: seed {seed}: {what}", plant.name()),
            None => missed.push(plant.name()),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn what_this_design_makes_harmless_does_no_harm() {
    for plant in Plant::HARMLESS {
        assert_eq!(caught(*plant), None, "{}", plant.name());
    }
}
