//! A test of the checkers. The default generator finds every planted bug, with the checker and
//! within the number of seeds that this file names. Other findings do not count: a violation that
//! another checker finds, or a panic of the core. The check of what a node publishes to its workers
//! is off. `docs/testing-catalogue.md` has the same checkers and seeds, and is compared with this
//! file.
//!
//! A release build has no planted bugs, and nothing to test here.
#![cfg(debug_assertions)]

use std::num::NonZero;
use std::sync::Mutex;
use std::thread;

use epicepoch_core::planted::Bug;
use epicepoch_sim::history::Invariant;
use epicepoch_sim::plant::Plant;
use epicepoch_sim::run::{Failure, Options, run};

/// Number of seeds, from 0, within which a planted bug must be found: several times the number that
/// it took.
const fn seeds(plant: Plant) -> u64 {
    match plant {
        Plant::JoinAtCompletion => 1_500,
        Plant::Core(
            Bug::TransfereeKept
            | Bug::MedianOfKnown
            | Bug::SnapshotNeverFailed
            | Bug::UnfitPreferred
            | Bug::MomentaryGrant
            | Bug::LongestWindowForgotten,
        ) => 1_000,
        Plant::Core(Bug::HalfOfJoint | Bug::CreepFollowed) => 800,
        Plant::LateJoin
        | Plant::WipedDisk
        | Plant::LyingDisk
        | Plant::TermFromLog
        | Plant::Unremembered
        | Plant::UncheckedFormat
        | Plant::Core(
            Bug::OwnClock
            | Bug::RestartTrustsWall
            | Bug::JumpFollowed
            | Bug::NeverBelievesAgain
            | Bug::PromotesBehind
            | Bug::AlreadyUnconfirmed
            | Bug::RemovedAtOnce
            | Bug::ForgottenVote,
        ) => 300,
        Plant::RestartPromise
        | Plant::GenesisOfToday
        | Plant::Core(
            Bug::IncomingHalf
            | Bug::HandsOverBehind
            | Bug::AnyClockProves
            | Bug::EarlyOverwrite
            | Bug::OldVoters
            | Bug::LateVoters
            | Bug::SnapshotForgetsOwner
            | Bug::RestoreForgetsRemoved
            | Bug::SnapshotForgetsCeiling
            | Bug::RaisedUnread
            | Bug::RestlessHandover
            | Bug::EveryVoterAwaited
            | Bug::SettingsAtProposal
            | Bug::IndexReset
            | Bug::IntervalRestarts
            | Bug::CoalescedRoles
            | Bug::AdvanceEarlyAck
            | Bug::BeyondRange,
        ) => 100,
        Plant::Unconfirmed
        | Plant::CheckedAtArrival
        | Plant::PromiseBeforeFrame
        | Plant::RecentRound
        | Plant::RealLyingDisk
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

/// The invariant whose checker finds the bug. `None` for a bug that breaks no invariant. Such a bug
/// must be found by the end of the run: all faults have healed, but the cluster does not answer or
/// does not fully recover.
#[expect(clippy::too_many_lines, reason = "a table of all bugs")]
const fn checker(plant: Plant) -> Option<Invariant> {
    Some(match plant {
        Plant::Unconfirmed
        | Plant::CheckedAtArrival
        | Plant::RecentRound
        | Plant::LateJoin
        | Plant::JoinAtCompletion => Invariant::Order,
        Plant::PromiseBeforeFrame
        | Plant::RestartPromise
        | Plant::Core(
            Bug::AnyReplyCounts
            | Bug::CountedTwice
            | Bug::RemovedCounts
            | Bug::LearnerCounts
            | Bug::EvenHalf
            | Bug::IncomingHalf,
        ) => Invariant::Quorum,
        Plant::LyingDisk | Plant::WipedDisk | Plant::Core(Bug::HalfOfJoint) => Invariant::OneLeader,
        Plant::GenesisOfToday | Plant::Core(Bug::OldVoters | Bug::LateVoters) => Invariant::Voters,
        Plant::Core(Bug::ReusedId | Bug::RestoreForgetsRemoved) => Invariant::Ids,
        Plant::Core(
            Bug::PromotesBehind | Bug::HandsOverBehind | Bug::UnfitPreferred | Bug::RemovedAtOnce,
        ) => Invariant::CaughtUp,
        Plant::Core(Bug::LatePromise) => Invariant::PromiseFirst,
        Plant::RealLyingDisk
        | Plant::TermFromLog
        | Plant::Core(
            Bug::EarlyVote
            | Bug::EarlyAck
            | Bug::EarlyOverwrite
            | Bug::AnyCompletion
            | Bug::ForgottenVote,
        ) => Invariant::DurableFirst,
        Plant::NoChecksum
        | Plant::Core(
            Bug::EqualProposals
            | Bug::RangeFromClock
            | Bug::SnapshotForgetsOwner
            | Bug::SnapshotForgetsCeiling
            | Bug::SnapshotForgetsFormat
            | Bug::SnapshotForgetsSettings
            | Bug::SettingsAtProposal,
        ) => Invariant::Ranges,
        Plant::Unremembered | Plant::Core(Bug::MistakesProposed | Bug::OvertakenAccuses) => {
            Invariant::Possible
        }
        Plant::Core(
            Bug::KeptRange
            | Bug::HiddenRange
            | Bug::CoalescedRoles
            | Bug::ProposerRange
            | Bug::LaggingCeiling
            | Bug::MomentaryGrant
            | Bug::LateCompletion
            | Bug::RestartedRange
            | Bug::FollowerAnswers
            | Bug::BeyondRange
            | Bug::AdvanceUnreserved,
        ) => Invariant::InsideOwnedRange,
        Plant::Core(Bug::ChangeEarlyAck | Bug::AlreadyUnconfirmed) => Invariant::Told,
        Plant::UncheckedFormat => Invariant::Readable,
        Plant::Core(Bug::SettingsIgnored) => Invariant::Settings,
        Plant::WorkerIndexes
        | Plant::Core(
            Bug::IndexReset
            | Bug::NextOffByOne
            | Bug::CountOverflow
            | Bug::ClockReadTwice
            | Bug::EpochFollowsClock,
        ) => Invariant::AllocatorRises,
        Plant::SplitOffByOne => Invariant::Unique,
        Plant::RefusedAndAnswered => Invariant::ToldOnce,
        Plant::Core(
            Bug::OwnClock
            | Bug::IntervalRestarts
            | Bug::MedianOfKnown
            | Bug::RestartTrustsWall
            | Bug::JumpFollowed
            | Bug::CreepFollowed
            | Bug::NeverBelievesAgain
            | Bug::AdvanceUnbounded
            | Bug::EarliestBelieved,
        ) => Invariant::Bound,
        Plant::Core(Bug::AdvanceKeepsRange | Bug::AdvanceEarlyAck) => Invariant::Advanced,
        Plant::Core(
            Bug::AnyClockProves
            | Bug::RestoreFloorOfBackup
            | Bug::RestoreWithoutWindow
            | Bug::LongestWindowForgotten,
        ) => Invariant::Restored,
        Plant::PublishedFirst
        | Plant::ReleasedFirst
        | Plant::RevokedLate
        | Plant::TransferKeepsGrant
        | Plant::CoalescedPublication
        | Plant::Core(Bug::CurrentTermAsked) => panic!("it is harmless"),
        Plant::LostTurn
        | Plant::UnheardRefusal
        | Plant::Core(
            Bug::LostReservation
            | Bug::EveryVoterAwaited
            | Bug::RaisedUnread
            | Bug::SnapshotNeverFailed
            | Bug::JointNeverLeft
            | Bug::RestlessHandover
            | Bug::TransfereeKept,
        ) => return None,
    })
}

/// The name of a checker in the documents.
const fn name_of(checker: Option<Invariant>) -> &'static str {
    match checker {
        None => "liveness",
        Some(Invariant::Unique) => "unique",
        Some(Invariant::Order) => "order",
        Some(Invariant::Bound) => "promise 3",
        Some(Invariant::Quorum) => "quorum",
        Some(Invariant::OneLeader) => "one leader",
        Some(Invariant::AllocatorRises) => "S1",
        Some(Invariant::InsideOwnedRange) => "S3",
        Some(Invariant::PromiseFirst) => "S4",
        Some(Invariant::Ranges) => "S5",
        Some(Invariant::DurableFirst) => "S6",
        Some(Invariant::Voters) => "S7",
        Some(Invariant::Ids) => "S8",
        Some(Invariant::Possible) => "S9",
        Some(Invariant::ToldOnce) => "S10",
        Some(Invariant::CaughtUp) => "S12",
        Some(Invariant::Restored) => "S13",
        Some(Invariant::Advanced) => "S14",
        Some(Invariant::Readable) => "S15",
        Some(Invariant::Settings) => "S16",
        Some(Invariant::Caller) => "caller",
        Some(Invariant::Told) => "S17",
        Some(Invariant::Publication) => "publication",
    }
}

/// Number of seeds in which a harmless bug must do no harm. The variable `HARMLESS_SEEDS` sets
/// another number, as `scripts/night` does.
const HARMLESS_SEEDS: u64 = 100;

/// The first seed in which the checker of a bug finds it, and the failure. A run ends with its
/// first violation. If another checker finds that one, the seed does not count.
fn caught(plant: Plant, seeds: u64) -> Option<(u64, Failure)> {
    let checker = checker(plant);
    (0..seeds).find_map(|seed| {
        let failure = run(Options { plant: Some(plant), ..Options::new(seed) }).failure?;
        let is_found = match (&failure, checker) {
            (Failure::Safety(violation), Some(invariant)) => violation.invariant == invariant,
            (Failure::Safety(violation), None) => panic!("{}: {violation}", plant.name()),
            (Failure::Liveness(_), None) => true,
            (Failure::Liveness(_) | Failure::Crash(_), _) => false,
        };
        is_found.then_some((seed, failure))
    })
}

/// The first seed in which anything fails: a violation, a cluster that does not recover, or a
/// panic.
fn harm(plant: Plant, seeds: u64) -> Option<(u64, Failure)> {
    (0..seeds).find_map(|seed| {
        let failure = run(Options { plant: Some(plant), ..Options::new(seed) }).failure;
        failure.map(|failure| (seed, failure))
    })
}

/// Runs in every `cargo test`, unlike the test of all planted bugs.
#[test]
fn planted_bugs_that_show_at_once_are_found_at_once() {
    find_all(|plant| seeds(plant) <= 20);
}

#[test]
fn a_healed_cluster_that_does_not_answer_is_found() {
    find_all(|plant| checker(plant).is_none());
}

#[test]
#[ignore = "minutes in a development build: cargo test --profile planted -- --ignored"]
fn every_planted_bug_is_found_by_its_checker() {
    let chosen = Chosen::from_environment();
    find_all(|plant| chosen.has(plant));
}

/// Which planted bugs to look for: all, unless the environment selects some. `EPICEPOCH_PLANTED`
/// lists names, separated by commas; unknown names are refused. `EPICEPOCH_PLANTED_SHARE=2/8` adds
/// every eighth bug, from the third on.
struct Chosen {
    plants: Vec<Plant>,
    share: Option<(usize, usize)>,
}

impl Chosen {
    fn from_environment() -> Self {
        let value = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let share = value("EPICEPOCH_PLANTED_SHARE").map(|share| {
            let (part, parts) = share.split_once('/').expect("a share is written as 2/8");
            (part.parse().expect("a number"), parts.parse().expect("a number of parts"))
        });
        let names = value("EPICEPOCH_PLANTED").unwrap_or_default();
        Self {
            plants: names.split(',').filter(|name| !name.is_empty()).map(named).collect(),
            share,
        }
    }

    fn has(&self, plant: Plant) -> bool {
        let at = Plant::harmful().position(|other| other == plant);
        let is_shared = |(part, parts): (usize, usize)| at.is_some_and(|at| at % parts == part);
        let is_all = self.plants.is_empty() && self.share.is_none();
        is_all || self.plants.contains(&plant) || self.share.is_some_and(is_shared)
    }
}

/// The planted bug with this name.
fn named(name: &str) -> Plant {
    Plant::named(name).unwrap_or_else(|| {
        let all: Vec<&str> = Plant::all().map(Plant::name).collect();
        panic!("no planted bug is named {name:?}. These are: {}", all.join(", "))
    })
}

fn find_all(is_meant: impl Fn(Plant) -> bool) {
    let plants = Plant::harmful().filter(|plant| is_meant(*plant)).collect();
    let mut missed = vec![];
    let look = |plant: Plant| {
        let caught = caught(plant, seeds(plant));
        let said = caught.map(|(seed, what)| format!("seed {seed}: {:.100}", what.to_string()));
        println!("{}: {}", plant.name(), said.as_deref().unwrap_or("not found"));
        said.is_some()
    };
    for (plant, is_found) in on_all_processors(plants, look) {
        if !is_found {
            missed.push(plant.name());
        }
    }
    assert!(missed.is_empty(), "not found by their checkers: {missed:?}");
}

/// Runs the simulator with each of them.
#[test]
#[ignore = "minutes in a development build: cargo test --profile planted -- --ignored"]
fn bugs_that_this_design_makes_harmless_do_no_harm() {
    let said = std::env::var("HARMLESS_SEEDS");
    let seeds = said.map_or(HARMLESS_SEEDS, |said| said.parse().expect("a number of seeds"));
    let plants = Plant::HARMLESS.iter().map(|(plant, _)| *plant).collect();
    for (plant, harm) in on_all_processors(plants, |plant| harm(plant, seeds)) {
        let why = Plant::HARMLESS.iter().find(|(other, _)| *other == plant).map(|(_, why)| why);
        assert_eq!(harm, None, "{}: {why:?}", plant.name());
    }
}

#[test]
fn the_catalogue_names_each_planted_bug_its_seeds_and_its_checker() {
    let catalogue = include_str!("../../../docs/testing-catalogue.md");
    let (_, section) = catalogue.split_once("## Planted bugs\n").expect("a section of bugs");
    let (section, _) = section.split_once("\n## ").expect("another section");
    let (harmful, harmless) = section.split_once("\n### ").expect("a part for harmless bugs");
    let mut rows = vec![];
    for line in harmful.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, _, _, checker, seeds, _] = cells[..] else { panic!("not six cells: {line}") };
        rows.push(format!("{name} {seeds} {checker}"));
    }
    let row = |plant: Plant| {
        let seeds = match seeds(plant) {
            seeds @ ..1_000 => seeds.to_string(),
            seeds => format!("{},{:03}", seeds / 1_000, seeds % 1_000),
        };
        format!("`{}` {seeds} {}", plant.name(), name_of(checker(plant)))
    };
    let mut plants: Vec<String> = Plant::harmful().map(row).collect();
    rows.sort();
    plants.sort();
    assert_eq!(rows, plants);
    let mut rows: Vec<&str> =
        harmless.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let mut plants: Vec<&str> = Plant::HARMLESS.iter().map(|(plant, _)| plant.name()).collect();
    rows.sort_unstable();
    plants.sort_unstable();
    assert_eq!(rows, plants);
}

/// The result of `look` for each bug, in no order. A thread plants one bug at a time, so each
/// processor works on another bug. The bugs that need the most seeds come first.
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
