//! Faults that are planted in clients: a scenario of the broken clause must find each. The faults
//! are patches in `proof/planted/clients`. They are planted in copies of the clients, and the
//! drivers are built from the copies. The sources themselves have no fault, and `scripted.rs` shows
//! that they pass the same scenarios.
//!
//! A copy of another client has one fault. The copy of the Rust client has all faults at once,
//! because it takes longer to build, and a variable of the environment turns on one of them.

mod drivers;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use epicepoch_conformance::DriverCommand;
use epicepoch_conformance::kills;
use epicepoch_conformance::scenarios;
use epicepoch_conformance::suite::{Clause, play};

use drivers::{
    Sources, binary, faulty_rust, go, holds_the_contract, java, python, rust, rust_copy, turn,
    typescript,
};

/// A fault and a scenario that finds it: the name of the fault, the clause that it breaks, the
/// scenario, and a part of the scenario's message. The patch `LANGUAGE-FAULT.patch` plants it.
type Fault = (&'static str, u8, &'static str, &'static str);

/// The faults of every client.
const FAULTS: [Fault; 3] = [
    ("join-sent", 1, "a_caller_joins_no_request_that_was_sent", "before the caller asked"),
    ("burnt-to-caller", 2, "the_second_answer_to_a_hedged_request_goes_to_no_caller", "was burnt"),
    ("went-back", 7, "an_answer_that_goes_back_is_refused", "was answered"),
];

/// The faults of the Rust client, besides [`FAULTS`].
const RUST_FAULTS: &[Fault] = &[
    ("prefetch", 1, "nothing_is_fetched_ahead", "came to 3 requests"),
    (
        "latest-joins-sent",
        1,
        "a_caller_of_the_latest_timestamp_joins_no_request_that_was_sent",
        "before the caller asked",
    ),
    ("lose-calls", 2, "a_lost_answer_is_asked_for_again", "a call failed"),
    ("stay-put", 3, "a_leader_that_steps_down_is_followed_to_the_next", "Deadline"),
    (
        "follow-silent",
        3,
        "a_hint_about_a_node_that_has_just_fallen_silent_is_not_followed",
        "connections to a silent node",
    ),
    ("old-members", 4, "a_member_that_was_added_is_found_when_the_others_are_gone", "Deadline"),
    ("late", 5, "deadlines_are_honoured_while_a_node_is_silent", "ended after"),
    ("late", 5, "a_call_without_time_is_not_answered", "was answered"),
    ("by-order", 5, "a_late_answer_goes_to_nobody", "before the caller asked"),
    ("any-history", 6, "an_answer_of_another_history_is_refused", "was answered"),
    ("went-back", 7, "an_answer_that_was_given_before_is_refused", "was answered"),
    (
        "latest-forgotten",
        7,
        "a_timestamp_must_be_above_a_latest_one_that_was_returned",
        "was answered",
    ),
    (
        "lease-unchecked",
        8,
        "an_answer_that_a_lease_has_proved_is_refused_if_it_was_not",
        "was answered",
    ),
    ("rigid", 8, "frames_and_fields_of_a_later_version_are_passed_over", "an unknown frame"),
    ("no-pong", 8, "a_ping_is_answered", "in vain"),
    ("retry-all", 8, "a_field_that_must_be_understood_is_not_passed_over", "Deadline"),
    ("no-pause", 9, "nodes_that_name_each_other_are_not_asked_without_pause", "frames came"),
    ("no-pause", 9, "a_node_that_hangs_up_is_not_asked_without_pause", "frames came"),
    ("no-pause", 9, "an_overloaded_leader_is_asked_again_after_a_pause", "no pause"),
    ("wide-as-compact", 8, "a_wide_timestamp_is_not_returned_as_a_compact_one", "was answered"),
    (
        "old-limit",
        10,
        "requests_keep_to_the_limit_once_the_cluster_is_compact",
        "a call failed: Refused",
    ),
    ("any-count", 10, "an_answer_of_another_count_is_refused", "was answered"),
    ("by-order", 11, "an_answer_to_nothing_is_refused", "was answered"),
    ("retry-all", 12, "a_request_that_is_wrong_is_not_repeated", "Deadline"),
];

/// Faults of one other client, besides [`FAULTS`].
const OTHER_FAULTS: [(&str, Fault); 3] = [
    (
        "go",
        (
            "wait-from-request",
            1,
            "the_wait_of_an_interval_counts_from_its_answer",
            "the wait was over after",
        ),
    ),
    (
        "python",
        (
            "old-limit",
            10,
            "requests_keep_to_the_limit_once_the_cluster_is_compact",
            "a call failed: Refused",
        ),
    ),
    ("typescript", ("double", 8, "compact_timestamps_are_exact_in_64_bits", " is not ")),
];

/// Patches of the Rust client that plant no fault.
const HARMLESS: [&str; 2] = ["rust-simple", "rust-switch"];

const LANGUAGES: [&str; 4] = ["go", "java", "python", "typescript"];

#[test]
#[ignore = "builds a copy of the client: cargo xtask nightly runs it"]
fn every_fault_that_is_planted_in_the_rust_client_is_found() {
    let _turn = turn();
    let program = faulty_rust_program();
    for fault in FAULTS.iter().chain(RUST_FAULTS) {
        finds("rust", *fault, &faulty_rust(program, fault.0));
    }
}

/// The simplest client keeps the contract and does no more: only one request is in flight, for one
/// caller. So this test fails if a scenario demands more than the contract. The client is a copy of
/// the Rust client with a patch.
#[test]
#[ignore = "builds a copy of the client: cargo xtask nightly runs it"]
fn the_simplest_possible_client_holds_the_contract() {
    holds_the_contract(|| faulty_rust(faulty_rust_program(), "simple"));
}

/// Tests the check of the order. A client that fetches ahead returns timestamps from before the
/// call, so the check must find it.
#[test]
#[ignore = "builds a copy of the client: cargo xtask nightly runs it"]
fn a_client_that_fetches_ahead_is_found_in_the_common_order() {
    let _turn = turn();
    let clients = [rust(), faulty_rust(faulty_rust_program(), "prefetch")];
    let seen = kills::run(&binary(), &clients, &[], false).expect("a run that can be judged");
    let said = seen.disorder.first().expect("the planted fault is found");
    assert!(said.starts_with("all clients: "), "{said}");
}

#[test]
#[ignore = "needs Go: cargo xtask nightly runs it"]
fn every_fault_that_is_planted_in_the_go_client_is_found() {
    finds_every_fault("go", |sources| go(sources, false));
}

#[test]
#[ignore = "needs a JDK: cargo xtask nightly runs it"]
fn every_fault_that_is_planted_in_the_java_client_is_found() {
    finds_every_fault("java", |sources| java(sources, false));
}

#[test]
#[ignore = "needs Python: cargo xtask nightly runs it"]
fn every_fault_that_is_planted_in_the_python_client_is_found() {
    finds_every_fault("python", python);
}

#[test]
#[ignore = "needs Node.js: cargo xtask nightly runs it"]
fn every_fault_that_is_planted_in_the_typescript_client_is_found() {
    finds_every_fault("typescript", typescript);
}

/// A patch that no test plants would rot, and so would one that does not apply.
#[test]
fn every_patch_of_a_client_applies_and_names_the_scenarios_that_find_its_fault() {
    let mut known = BTreeSet::from(HARMLESS.map(|name| format!("{name}.patch")));
    let others = LANGUAGES.iter().flat_map(|language| FAULTS.map(|fault| (*language, fault)));
    let rust = FAULTS.iter().chain(RUST_FAULTS).map(|fault| ("rust", *fault));
    for (language, (fault, clause, scenario, _)) in others.chain(rust).chain(OTHER_FAULTS) {
        let name = format!("{language}-{fault}.patch");
        let text = fs::read_to_string(patches().join(&name)).expect("a patch of each fault");
        let finding = format!("Breaks C{clause}; found by `{scenario}`.\n");
        assert!(text.contains(&finding), "{name} does not say: {finding}");
        known.insert(name);
    }
    let entries = fs::read_dir(patches()).expect("the patches are there");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string());
    let names: BTreeSet<_> = names.map(|name| name.expect("a name in UTF-8")).collect();
    assert_eq!(names, known);
    for name in names {
        let root = Sources::of_repository().root;
        let mut check = git(&root);
        check.args(["apply", "--check"]).arg(patches().join(&name));
        assert!(check.status().expect("git is installed").success(), "{name}: {DOES_NOT_APPLY}");
    }
    let clauses: BTreeSet<u8> = FAULTS.iter().chain(RUST_FAULTS).map(|fault| fault.1).collect();
    assert_eq!(clauses, (1..=12).collect(), "each clause catches something");
}

/// Plants one fault after another in a copy of the client, and plays the scenario that must find
/// it.
fn finds_every_fault(language: &str, driver: fn(&Sources) -> DriverCommand) {
    let _turn = turn();
    let own = OTHER_FAULTS.into_iter().filter(|(of, _)| *of == language).map(|(_, fault)| fault);
    for fault in FAULTS.into_iter().chain(own) {
        let name = format!("{language}-{}", fault.0);
        let root = copy(&name, &[&format!("clients/{language}")]);
        plant(&root, &name);
        let faulty = Sources { built: root.clone(), root };
        finds(language, fault, &driver(&faulty));
    }
}

/// Plays the scenario that must find the fault of this driver.
fn finds(language: &str, (fault, clause, name, said): Fault, driver: &DriverCommand) {
    let scenario = scenarios::named(&[name]).expect("a scenario of that name")[0];
    assert_eq!(scenario.clause, Clause(clause), "{name}");
    let played = play(driver, &scenario);
    println!("{language}-{fault}: {played}");
    let Err(found) = played.verdict else { panic!("{language}-{fault} was not found") };
    assert!(found.contains(said), "{language}-{fault} was found, but for another reason: {found}");
}

/// Builds the driver of a copy of the Rust client that has all patches. Builds it only once.
fn faulty_rust_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let root =
            copy("rust", &["Cargo.toml", "Cargo.lock", "crates", "proof", "tools", "examples"]);
        let faults = FAULTS.iter().chain(RUST_FAULTS).map(|fault| format!("rust-{}", fault.0));
        for name in faults.chain(HARMLESS.map(str::to_owned)).collect::<BTreeSet<_>>() {
            plant(&root, &name);
        }
        // The copy has another version, so that Cargo does not confuse its packages with ours. The
        // packages that depend on each other name it exactly.
        let manifest = root.join("Cargo.toml");
        let text = fs::read_to_string(&manifest).expect("to read the manifest");
        assert!(text.contains("\nversion = \"") && text.contains("\", version = \"="), "a version");
        let text = text.replacen("\nversion = \"", "\nversion = \"0.0.0-planted+", 1);
        let text = text.replace("\", version = \"=", "\", version = \"=0.0.0-planted+");
        fs::write(manifest, text).expect("to write it");
        rust_copy(&Sources { built: root.join("target"), root })
    })
}

/// Copies these files and directories of the repository to an empty directory, and returns it.
fn copy(name: &str, paths: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("planted-clients").join(name);
    if root.exists() {
        fs::remove_dir_all(&root).expect("to remove the last copy");
    }
    let ours = Sources::of_repository().root;
    let listed = git(&ours)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"])
        .args(paths)
        .output()
        .expect("git is installed");
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    for path in String::from_utf8_lossy(&listed.stdout).split_terminator('\0') {
        let (from, to) = (ours.join(path), root.join(path));
        // Git still lists a file that was deleted but not committed.
        if from.is_file() {
            fs::create_dir_all(to.parent().expect("a directory")).expect("to make a directory");
            fs::copy(from, to).expect("to copy a file");
        }
    }
    root
}

/// Applies a patch to a copy.
fn plant(root: &Path, name: &str) {
    let patch = patches().join(format!("{name}.patch"));
    let applied = git(root).arg("apply").arg(&patch).output().expect("git is installed");
    assert!(
        applied.status.success(),
        "{name}: {DOES_NOT_APPLY}\n{}",
        String::from_utf8_lossy(&applied.stderr)
    );
}

/// Git in a directory.
fn git(directory: &Path) -> Command {
    let mut git = Command::new("git");
    git.current_dir(directory);
    // A copy is no repository. Inside one, `git apply` silently leaves out ignored files.
    git.env("GIT_CEILING_DIRECTORIES", env!("CARGO_TARGET_TMPDIR"));
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
        git.env_remove(variable);
    }
    git
}

const DOES_NOT_APPLY: &str = "the patch does not apply. The client has changed where the fault is \
                              planted: proof/planted/README.md says what to do.";

fn patches() -> PathBuf {
    Sources::of_repository().root.join("proof/planted/clients")
}
