//! The prover is proved: every planted bug is found by a checker, by the default generator, within
//! the seeds that are stated here. A panic of the core does not count. The table of
//! `docs/testing.md` is this one.
//!
//! A release build has no planted bugs, and nothing to test here.
#![cfg(debug_assertions)]

use std::num::NonZero;
use std::sync::Mutex;
use std::thread;

use epicepoch_core::planted::Bug;
use epicepoch_sim::plant::Plant;
use epicepoch_sim::run::{Failure, Options, run};

/// Seeds within which a planted bug must be found, counted from 0: several times what it took.
const fn seeds(plant: Plant) -> u64 {
    match plant {
        Plant::JoinAtCompletion => 1_500,
        Plant::Core(Bug::MedianOfKnown | Bug::SnapshotNeverFailed | Bug::UnfitPreferred) => 1_000,
        Plant::Core(Bug::HalfOfJoint | Bug::CreepFollowed) => 800,
        Plant::LateJoin
        | Plant::LyingDisk
        | Plant::TermFromLog
        | Plant::Unremembered
        | Plant::UncheckedFormat
        | Plant::OwnClock
        | Plant::Core(
            Bug::RestartTrustsWall | Bug::JumpFollowed | Bug::PromotesBehind | Bug::ForgottenVote,
        ) => 300,
        Plant::WipedDisk
        | Plant::GenesisOfToday
        | Plant::Core(
            Bug::IncomingHalf
            | Bug::EarlyOverwrite
            | Bug::OldVoters
            | Bug::LateVoters
            | Bug::SnapshotForgetsOwner
            | Bug::RestoreForgetsRemoved
            | Bug::SnapshotForgetsCeiling
            | Bug::RaisedUnread
            | Bug::SettingsAtProposal
            | Bug::IndexReset
            | Bug::IntervalRestarts
            | Bug::BeyondRange,
        ) => 100,
        Plant::Unconfirmed
        | Plant::CheckedAtArrival
        | Plant::PromiseBeforeFrame
        | Plant::RestartPromise
        | Plant::RecentRound
        | Plant::NoChecksum
        | Plant::WorkerIndexes
        | Plant::SplitOffByOne
        | Plant::RefusedAndAnswered
        | Plant::UnheardRefusal
        | Plant::LostTurn
        | Plant::Core(_) => 20,
        Plant::PublishedFirst
        | Plant::ReleasedFirst
        | Plant::RevokedLate
        | Plant::TransferKeepsGrant
        | Plant::CoalescedPublication => 0,
    }
}

/// Seeds that show that nothing comes of a harmless one.
const HARMLESS_SEEDS: u64 = 60;

/// The first seed whose run breaks an invariant, and which. A bug that breaks none must be found by
/// the end of the run: all has healed, and nobody answers.
fn caught(plant: Plant, seeds: u64) -> Option<(u64, String)> {
    let is_of_liveness = plant.is_of_liveness();
    (0..seeds).find_map(|seed| {
        match run(Options { plant: Some(plant), ..Options::new(seed) }).failure {
            Some(Failure::Safety(violation)) if !is_of_liveness => {
                Some((seed, format!("{:?}", violation.invariant)))
            }
            Some(Failure::Safety(violation)) => panic!("{}: {violation}", plant.name()),
            Some(Failure::Liveness(_)) if is_of_liveness => Some((seed, "Liveness".into())),
            Some(Failure::Liveness(_) | Failure::Crash(_)) | None => None,
        }
    })
}

#[test]
fn planted_bugs_that_show_at_once_are_found_at_once() {
    find_all(|plant| seeds(plant) <= 20);
}

#[test]
fn a_healed_cluster_that_does_not_answer_is_found() {
    find_all(Plant::is_of_liveness);
}

#[test]
#[ignore = "minutes in a development build: cargo test --profile planted -- --ignored"]
fn every_planted_bug_is_found_by_a_checker() {
    assert!(Plant::harmful().count() >= 24);
    find_all(|_| true);
}

fn find_all(is_meant: impl Fn(Plant) -> bool) {
    let plants = Plant::harmful().filter(|plant| is_meant(*plant)).collect();
    let mut missed = vec![];
    for (plant, caught) in on_all_processors(plants, |plant| caught(plant, seeds(plant))) {
        match caught {
            Some((seed, what)) => println!("{}: seed {seed}: {what}", plant.name()),
            None => missed.push(plant.name()),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
#[ignore = "minutes in a development build: cargo test --profile planted -- --ignored"]
fn what_this_design_makes_harmless_does_no_harm() {
    let plants = Plant::HARMLESS.iter().map(|(plant, _)| *plant).collect();
    for (plant, caught) in on_all_processors(plants, |plant| caught(plant, HARMLESS_SEEDS)) {
        let why = Plant::HARMLESS.iter().find(|(other, _)| *other == plant).map(|(_, why)| why);
        assert_eq!(caught, None, "{}: {why:?}", plant.name());
    }
}

/// What `look` says of each, in no order. A bug is planted in one thread at a time, so each
/// processor has a bug of its own; those that need the most seeds come first.
fn on_all_processors<T: Send>(
    mut plants: Vec<Plant>,
    look: impl Fn(Plant) -> T + Sync,
) -> Vec<(Plant, T)> {
    plants.sort_by_key(|plant| seeds(*plant));
    let left = Mutex::new(plants);
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let work = || {
        let mut done = vec![];
        loop {
            let next = left.lock().unwrap().pop();
            let Some(plant) = next else { return done };
            done.push((plant, look(plant)));
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..processors).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}
