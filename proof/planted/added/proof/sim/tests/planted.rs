//! A test of the checkers. With the default generator of runs, the simulator must find every
//! planted bug. It must find the bug with the checker, and within the number of seeds, that the
//! bug's doc comment names. A violation that another checker finds does not count, and neither does
//! a panic of the core. The check of what a node publishes to its workers is off. The monitor is on
//! only for bugs that it must find, at a rule of the specification. `cargo xtask planted` runs this
//! test in a copy of the sources that has all bugs.

use std::collections::BTreeSet;
use std::num::NonZero;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::thread;

use epicepoch_core::durable::{HardState, Record, Restored, Write};
use epicepoch_core::planted::{self, Bug};
use epicepoch_core::positions::Positions;
use epicepoch_sim::history::Invariant;
use epicepoch_sim::plant::Plant;
use epicepoch_sim::run::{Failure, Options, run};
use epicepoch_wire::raft_message::Configuration;
use epicepoch_wire::{LogIndex, Term};

/// What the doc comment of a bug claims.
#[derive(Clone, Copy, Debug)]
enum Claim {
    /// The checker of this invariant finds the bug within this number of seeds, from 0 on. The
    /// number is several times what the search needed. A bug without an invariant must be found at
    /// the end of a run: all faults have healed, but the cluster does not answer or does not fully
    /// recover.
    Found(Finder, u64),
    /// The bug breaks a rule, but a second rule prevents the harm.
    Harmless,
}

/// What must find a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finder {
    /// The checker of this invariant, or the end of a run.
    Checker(Option<Invariant>),
    /// The monitor, at the rule of this name in this specification.
    Rule(&'static str, &'static str),
}

impl Finder {
    /// `S3`, `liveness`, or a rule such as `rounds: kept-grant`.
    fn named(name: &'static str) -> Option<Self> {
        if let Some((specification, rule)) = name.split_once(": ") {
            return Some(Self::Rule(specification, rule));
        }
        let checker = CHECKERS.iter().find(|(_, other)| *other == name)?.0;
        Some(Self::Checker(checker))
    }

    fn finds(self, plant: Plant, failure: &Failure) -> bool {
        match (failure, self) {
            (Failure::Safety(violation), Self::Checker(Some(invariant))) => {
                violation.invariant == invariant
            }
            (Failure::Safety(violation), Self::Checker(None)) => {
                panic!("{}: {violation}", plant.name())
            }
            (Failure::Safety(violation), Self::Rule(specification, rule)) => {
                let Invariant::Specification(name) = violation.invariant else { return false };
                let mut parts = name.split('/');
                parts.next() == Some(specification) && parts.nth(1) == Some(rule)
            }
            (Failure::Liveness(_), Self::Checker(None)) => true,
            (Failure::Liveness(_) | Failure::Crash(_), _) => false,
        }
    }
}

/// Reads "Breaks RULE; found by `CHECKER` within N seeds." or "Harmless: WHY."
fn claim(plant: Plant) -> Claim {
    let story = plant.story();
    if story.contains(" Harmless: ") {
        return Claim::Harmless;
    }
    let found = || {
        let (_, rest) = story.split_once("; found by `")?;
        let (name, rest) = rest.split_once("` within ")?;
        let (seeds, _) = rest.split_once(" seeds. Seen: ")?;
        Some(Claim::Found(Finder::named(name)?, seeds.replace(',', "").parse().ok()?))
    };
    found().unwrap_or_else(|| panic!("{}: claims nothing: {story}", plant.name()))
}

/// The checkers, with their names in doc comments.
const CHECKERS: &[(Option<Invariant>, &str)] = &[
    (None, "liveness"),
    (Some(Invariant::Unique), "unique"),
    (Some(Invariant::Order), "order"),
    (Some(Invariant::Bound), "promise 3"),
    (Some(Invariant::Quorum), "quorum"),
    (Some(Invariant::OneLeader), "one leader"),
    (Some(Invariant::AllocatorRises), "S1"),
    (Some(Invariant::InsideOwnedRange), "S3"),
    (Some(Invariant::PromiseFirst), "S4"),
    (Some(Invariant::Ranges), "S5"),
    (Some(Invariant::DurableFirst), "S6"),
    (Some(Invariant::Voters), "S7"),
    (Some(Invariant::Ids), "S8"),
    (Some(Invariant::Possible), "S9"),
    (Some(Invariant::ToldOnce), "S10"),
    (Some(Invariant::CaughtUp), "S12"),
    (Some(Invariant::Restored), "S13"),
    (Some(Invariant::Advanced), "S14"),
    (Some(Invariant::Readable), "S15"),
    (Some(Invariant::Settings), "S16"),
    (Some(Invariant::Told), "S17"),
    (Some(Invariant::GivenBack), "S18"),
    (Some(Invariant::Latest), "S19"),
    (Some(Invariant::Lease), "S20"),
    (Some(Invariant::Compact), "S21"),
    (Some(Invariant::Forwarded), "S22"),
    (Some(Invariant::Caller), "caller"),
    (Some(Invariant::Asked), "asked"),
    (Some(Invariant::Publication), "publication"),
];

/// Returns the first seed in which the bug's own checker finds the bug, and the failure. A run ends
/// with its first violation. If another checker finds that violation, the seed does not count.
fn caught(plant: Plant, finder: Finder, seeds: u64) -> Option<(u64, Failure)> {
    let is_watched = matches!(finder, Finder::Rule(..));
    (0..seeds).find_map(|seed| {
        let options = Options { plant: Some(plant), is_watched, ..Options::new(seed) };
        let failure = run(options).failure?;
        finder.finds(plant, &failure).then_some((seed, failure))
    })
}

/// Returns the first seed in which anything fails, and the failure: a violation, a cluster that
/// does not recover, or a panic. The monitor is off.
fn harm(plant: Plant, seeds: u64) -> Option<(u64, Failure)> {
    (0..seeds).find_map(|seed| {
        let options = Options { plant: Some(plant), is_watched: false, ..Options::new(seed) };
        let failure = run(options).failure;
        failure.map(|failure| (seed, failure))
    })
}

#[test]
fn every_planted_bug_is_found_by_its_checker() {
    let look = |(plant, finder, seeds): (Plant, Finder, u64)| {
        let caught = caught(plant, finder, seeds);
        let said = caught.map(|(seed, what)| format!("seed {seed}: {:.100}", what.to_string()));
        println!("{}: {}", plant.name(), said.as_deref().unwrap_or("not found"));
        said.is_none().then(|| plant.name())
    };
    let missed: Vec<&str> = on_all_processors(chosen(), look).into_iter().flatten().collect();
    assert!(missed.is_empty(), "not found by their checkers: {missed:?}");
}

/// Returns the bugs to look for. The bugs that need the most seeds come last. By default these are
/// all bugs that are not harmless. `EPICEPOCH_PLANTED` lists names, separated by commas.
/// `EPICEPOCH_PLANTED_SHARE=2/8` adds every eighth bug, from the third on, without those that need
/// more than [`SHARED_SEEDS_MAX`] seeds.
fn chosen() -> Vec<(Plant, Finder, u64)> {
    let value = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let named = value("EPICEPOCH_PLANTED").map(|names| {
        let known = |name: &str| {
            let all = || Plant::all().map(Plant::name).collect::<Vec<_>>().join(", ");
            Plant::named(name).unwrap_or_else(|| panic!("no bug {name:?}; there are: {}", all()))
        };
        names.split(',').map(known).collect::<Vec<_>>()
    });
    let share = value("EPICEPOCH_PLANTED_SHARE").map(|share| {
        let (part, parts) = share.split_once('/').expect("a share is written as 2/8");
        let number = |text: &str| text.parse::<usize>().expect("a share is written as 2/8");
        (number(part), number(parts))
    });
    let is_chosen = |at: usize, plant: Plant, seeds: u64| match (&named, share) {
        (None, None) => true,
        (named, share) => {
            let is_shared = |(part, parts)| at % parts == part && seeds <= SHARED_SEEDS_MAX;
            named.as_ref().is_some_and(|named| named.contains(&plant))
                || share.is_some_and(is_shared)
        }
    };
    let harmful = Plant::all().filter_map(|plant| match claim(plant) {
        Claim::Found(finder, seeds) => Some((plant, finder, seeds)),
        Claim::Harmless => None,
    });
    let mut chosen: Vec<_> = harmful
        .enumerate()
        .filter(|(at, it)| is_chosen(*at, it.0, it.2))
        .map(|(_, it)| it)
        .collect();
    chosen.sort_by_key(|(_, _, seeds)| *seeds);
    chosen
}

/// Bugs that need more seeds than this are looked for at night, and near a change.
const SHARED_SEEDS_MAX: u64 = 300;
/// Number of seeds in which a harmless bug must do no harm. The environment variable
/// `HARMLESS_SEEDS` sets another number; long runs of `cargo xtask nightly` do.
const HARMLESS_SEEDS: u64 = 100;
/// The doc comment of a bug that breaks one of two rules has these words.
const SECOND_LOCK: &str = " A second lock prevents the harm: ";

#[test]
fn bugs_that_this_design_makes_harmless_do_no_harm() {
    let said = std::env::var("HARMLESS_SEEDS");
    let seeds = said.map_or(HARMLESS_SEEDS, |said| said.parse().expect("a number of seeds"));
    // A second lock is a bug that breaks one of two rules: only the monitor finds it.
    let is_harmless = |plant: &Plant| {
        matches!(claim(*plant), Claim::Harmless) || plant.story().contains(SECOND_LOCK)
    };
    let plants = Plant::all().filter(is_harmless).collect();
    for (plant, harm) in on_all_processors(plants, |plant| (plant, harm(plant, seeds))) {
        assert_eq!(harm, None, "{}: {}", plant.name(), plant.story());
    }
}

#[test]
fn names_are_unique_and_every_bug_claims_what_it_breaks() {
    let names: BTreeSet<&str> = Plant::all().map(Plant::name).collect();
    assert_eq!(names.len(), Plant::all().map(claim).count());
}

#[test]
fn a_bug_is_planted_on_its_own_thread_and_only_while_it_is_held() {
    let guard = planted::plant(Some(Bug::EarlyVote));
    assert!(planted::is(Bug::EarlyVote) && planted::is_any() && !planted::is(Bug::EarlyAck));
    thread::spawn(|| assert!(!planted::is_any())).join().unwrap();
    drop(guard);
    assert!(!planted::is(Bug::EarlyVote) && !planted::is_any());
}

#[test]
fn asserts_that_cite_an_invariant_are_silent_only_while_a_bug_is_planted() {
    let lower = Write { hard_state: Some(HardState::default()), ..Write::default() };
    let apply = || {
        let mut restored = Restored {
            hard_state: HardState { term: Term(2), ..HardState::default() },
            record: Record {
                index: LogIndex(0),
                term: Term(0),
                configuration: Configuration::default(),
                data: vec![],
            },
            entries: vec![],
            positions: Positions::default(),
        };
        panic::catch_unwind(AssertUnwindSafe(|| restored.apply(&lower)))
    };
    assert!(apply().is_err());
    let _planted = planted::plant(None);
    assert!(apply().is_ok());
}

/// Calls `look` for each item, on one thread per processor, and returns the results. A thread can
/// plant only one bug at a time, so each processor works on its own bug. The last items, which take
/// longest, come first.
fn on_all_processors<T: Send, R: Send>(all: Vec<T>, look: impl Fn(T) -> R + Sync) -> Vec<R> {
    let left = Mutex::new(all);
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let work = || {
        let mut done = vec![];
        loop {
            let next = left.lock().unwrap().pop();
            let Some(next) = next else { return done };
            done.push(look(next));
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..processors).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}
