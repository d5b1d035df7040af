//! Second locks: bugs that break one of two rules that protect each other. No answer becomes wrong,
//! so no checker finds them. The monitor finds each at the rule of the specification that it breaks.
//! `cargo xtask planted` has more of them, in a copy of the core. The last test is the opposite:
//! correct runs that must not be found.
#![cfg(debug_assertions)]

use epicepoch_sim::history::Invariant;
use epicepoch_sim::plant::Plant;
use epicepoch_sim::run::{Failure, Options, run};

const SEEDS: u64 = 20;

#[test]
fn a_grant_that_outlives_leadership_is_found_although_no_answer_is_wrong() {
    for plant in [Plant::RevokedLate, Plant::TransferKeepsGrant, Plant::CoalescedPublication] {
        let failure = |seed, is_watched| {
            run(Options { plant: Some(plant), is_watched, ..Options::new(seed) }).failure
        };
        let found = (0..SEEDS).find_map(|seed| Some((seed, failure(seed, true)?)));
        let Some((seed, Failure::Safety(violation))) = found else {
            panic!("{plant:?}: {found:?}")
        };
        let rule = "rounds/step_down/kept-grant";
        assert_eq!(violation.invariant, Invariant::Specification(rule), "{plant:?}: {violation}");
        let is_named =
            violation.what.starts_with("the rule `kept-grant` of the action `step_down`");
        assert!(is_named && violation.what.contains(&format!("seed {seed}:")), "{violation}");
        assert_eq!(failure(seed, false), None, "{plant:?}, seed {seed}, without the monitor");
    }
}

/// These runs are correct, and checkers once took them for wrong. `docs/test-results.md` says why.
#[test]
fn runs_that_were_taken_for_wrong_are_clean() {
    for seed in [307_032_365, 307_045_018, 307_149_064, 307_178_740, 307_489_312] {
        assert_eq!(run(Options::new(seed)).failure, None, "seed {seed}");
    }
}
