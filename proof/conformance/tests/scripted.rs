//! Tests every client with every scripted scenario. Also tests the scenarios themselves, with
//! clients that have planted bugs.
//!
//! `-- --include-ignored` adds the clients that need the tools of their languages.

mod drivers;

use epicepoch_conformance::DriverCommand;
use epicepoch_conformance::scenarios;
use epicepoch_conformance::suite::{Clause, play, play_all};

use drivers::{Sources, go, hedging_rust, java, naive, python, rust, turn, typescript};

/// Checks that a client passes all scenarios. It builds the driver only when it is this test's
/// turn. A build at another time would disturb the times of other tests, and might replace files
/// that they run.
#[track_caller]
fn holds_the_contract(driver: impl FnOnce() -> DriverCommand) {
    let _turn = turn();
    let driver = driver();
    let played = play_all(&driver, &scenarios::all(), |played| println!("{played}"));
    let broken: Vec<_> = played.iter().filter(|played| played.verdict.is_err()).collect();
    assert!(broken.is_empty(), "{}: {broken:#?}", driver.name);
    let unsupported: Vec<_> = played.iter().filter(|played| !played.is_supported).collect();
    assert!(unsupported.is_empty(), "{}: {unsupported:#?}", driver.name);
}

#[test]
fn the_rust_client_holds_the_contract() {
    holds_the_contract(rust);
}

#[test]
fn the_rust_client_holds_the_contract_with_hedged_requests() {
    holds_the_contract(hedging_rust);
}

#[test]
#[ignore = "needs a JDK: cargo xtask ci runs it"]
fn the_java_client_holds_the_contract() {
    holds_the_contract(|| java(&Sources::of_repository(), false));
}

#[test]
#[ignore = "needs a JDK: cargo xtask ci runs it"]
fn the_java_client_holds_the_contract_with_futures() {
    holds_the_contract(|| java(&Sources::of_repository(), true));
}

#[test]
#[ignore = "needs Go, which a build in Rust alone does not: cargo xtask ci runs it"]
fn the_go_client_holds_the_contract() {
    holds_the_contract(|| go(&Sources::of_repository()));
}

#[test]
#[ignore = "needs Python: cargo xtask ci runs it"]
fn the_python_client_holds_the_contract() {
    holds_the_contract(|| python(&Sources::of_repository()));
}

#[test]
#[ignore = "needs Node.js: cargo xtask ci runs it"]
fn the_typescript_client_holds_the_contract() {
    holds_the_contract(|| typescript(&Sources::of_repository()));
}

/// The simplest client keeps the contract and does no more. So this test fails if a scenario
/// demands more than the contract.
#[test]
fn the_simplest_possible_client_holds_the_contract() {
    holds_the_contract(|| naive("none"));
}

/// The planted bugs of the simplest client. Each has its name, the clause that it breaks, the
/// scenario that finds it, and a part of that scenario's message.
const PLANTS: &[(&str, u8, &str, &str)] = &[
    ("join-sent", 1, "a_caller_joins_no_request_that_was_sent", "before the caller asked"),
    ("prefetch", 1, "nothing_is_fetched_ahead", "came to 3 requests"),
    ("prefetch", 1, "a_caller_joins_no_request_that_was_sent", "before the caller asked"),
    ("keep-burnt", 2, "the_second_answer_to_a_hedged_request_goes_to_no_caller", "was burnt"),
    ("lose-calls", 2, "a_lost_answer_is_asked_for_again", "closed the connection"),
    ("stay-put", 3, "a_leader_that_steps_down_is_followed_to_the_next", "Deadline"),
    ("old-members", 4, "a_member_that_was_added_is_found_when_the_others_are_gone", "Deadline"),
    ("late", 5, "deadlines_are_honoured_while_a_node_is_silent", "ended after"),
    ("late", 5, "a_call_without_time_is_not_answered", "was answered"),
    ("by-order", 5, "a_late_answer_goes_to_nobody", "before the caller asked"),
    ("any-history", 6, "an_answer_of_another_history_is_refused", "was answered"),
    ("no-floor", 7, "an_answer_that_goes_back_is_refused", "was answered"),
    ("no-floor", 7, "an_answer_that_was_given_before_is_refused", "was answered"),
    ("rigid", 8, "frames_and_fields_of_a_later_version_are_passed_over", "unknown frame"),
    ("no-pong", 8, "a_ping_is_answered", "in vain"),
    ("retry-all", 8, "a_field_that_must_be_understood_is_not_passed_over", "Deadline"),
    ("no-pause", 9, "nodes_that_name_each_other_are_not_asked_without_pause", "frames came"),
    ("no-pause", 9, "a_node_that_hangs_up_is_not_asked_without_pause", "frames came"),
    ("no-pause", 9, "an_overloaded_leader_is_asked_again_after_a_pause", "no pause"),
    ("any-count", 10, "an_answer_of_another_count_is_refused", "was answered"),
    ("by-order", 11, "an_answer_to_nothing_is_refused", "was answered"),
    ("retry-all", 12, "a_request_that_is_wrong_is_not_repeated", "Deadline"),
];

#[test]
fn every_planted_fault_is_found_by_the_clause_that_it_breaks() {
    let _turn = turn();
    for (plant, clause, name, said) in PLANTS {
        let scenario = scenarios::named(&[name]).expect("a scenario of that name")[0];
        assert_eq!(scenario.clause, Clause(*clause), "{name}");
        let played = play(&naive(plant), &scenario);
        println!("{plant}: {played}");
        let why = played.verdict.expect_err("a planted fault is found");
        assert!(why.contains(said), "{plant} was found, but for another reason: {why}");
    }
    let clauses: std::collections::BTreeSet<u8> = PLANTS.iter().map(|plant| plant.1).collect();
    assert_eq!(clauses, (1..=12).collect(), "each clause has caught something");
}
