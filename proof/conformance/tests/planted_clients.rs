//! Planted faults in the clients of other languages: the scenario of the broken clause must find
//! each. The faults are patches in `proof/planted/clients`. Each is planted in a copy of its client,
//! and the driver is built from the copy. The sources themselves have no fault, and `scripted.rs`
//! shows that they pass the same scenarios.
//!
//! No patch is for the Rust client: to build its driver from a copy, Cargo would also build all of
//! its dependencies again.

#[allow(dead_code, reason = "shared with the tests of the clients without faults")]
mod drivers;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use epicepoch_conformance::DriverCommand;
use epicepoch_conformance::scenarios;
use epicepoch_conformance::suite::{Clause, play};

use drivers::{Sources, go, java, python, turn, typescript};

/// The faults, each planted in every client by the patch `LANGUAGE-FAULT.patch`: the clause that it
/// breaks, the scenario that finds it, and its message.
const FAULTS: [(&str, u8, &str, &str); 3] = [
    ("join-sent", 1, "a_caller_joins_no_request_that_was_sent", "before the caller asked"),
    ("burnt-to-caller", 2, "the_second_answer_to_a_hedged_request_goes_to_no_caller", "was burnt"),
    ("went-back", 7, "an_answer_that_goes_back_is_refused", "the call was answered with"),
];

const LANGUAGES: [&str; 4] = ["go", "java", "python", "typescript"];

#[test]
#[ignore = "needs Go: cargo xtask ci runs it"]
fn every_fault_that_is_planted_in_the_go_client_is_found() {
    finds_every_fault("go", go);
}

#[test]
#[ignore = "needs a JDK: cargo xtask ci runs it"]
fn every_fault_that_is_planted_in_the_java_client_is_found() {
    finds_every_fault("java", |sources| java(sources, false));
}

#[test]
#[ignore = "needs Python: cargo xtask ci runs it"]
fn every_fault_that_is_planted_in_the_python_client_is_found() {
    finds_every_fault("python", python);
}

#[test]
#[ignore = "needs Node.js: cargo xtask ci runs it"]
fn every_fault_that_is_planted_in_the_typescript_client_is_found() {
    finds_every_fault("typescript", typescript);
}

/// A patch that no test plants would rot.
#[test]
fn every_patch_of_a_client_is_planted_by_a_test_and_names_the_scenario_that_finds_it() {
    let mut known = BTreeSet::new();
    for language in LANGUAGES {
        for (fault, clause, scenario, _) in FAULTS {
            let name = format!("{language}-{fault}.patch");
            let text = fs::read_to_string(patches().join(&name)).expect("a patch of each fault");
            let finding = format!("Breaks C{clause}; found by `{scenario}`.\n");
            assert!(text.contains(&finding), "{name} does not say: {finding}");
            known.insert(name);
        }
    }
    let entries = fs::read_dir(patches()).expect("the patches are there");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string());
    let names: BTreeSet<_> = names.map(|name| name.expect("a name in UTF-8")).collect();
    assert_eq!(names, known);
}

/// Plants one fault after another in a copy of the client, and plays the scenario that must find
/// it.
fn finds_every_fault(language: &str, driver: fn(&Sources) -> DriverCommand) {
    let _turn = turn();
    for (fault, clause, name, said) in FAULTS {
        let scenario = scenarios::named(&[name]).expect("a scenario of that name")[0];
        assert_eq!(scenario.clause, Clause(clause), "{name}");
        let faulty = with_fault(language, fault);
        let played = play(&driver(&faulty), &scenario);
        println!("{language}-{fault}: {played}");
        let Err(found) = played.verdict else { panic!("{language}-{fault} was not found") };
        assert!(
            found.contains(said),
            "{language}-{fault} was found, but for another reason: {found}"
        );
    }
}

/// Makes a copy of a client and plants a fault there.
fn with_fault(language: &str, fault: &str) -> Sources {
    let name = format!("{language}-{fault}");
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("planted-clients").join(&name);
    if root.exists() {
        fs::remove_dir_all(&root).expect("to remove the last copy");
    }
    let ours = Sources::of_repository().root;
    let listed = git(&ours)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"])
        .arg(format!("clients/{language}"))
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
    let patch = patches().join(format!("{name}.patch"));
    let applied = git(&root).arg("apply").arg(&patch).output().expect("git is installed");
    assert!(
        applied.status.success(),
        "{name} does not apply. The client has changed where the fault is planted: \
         proof/planted/README.md says what to do.\n{}",
        String::from_utf8_lossy(&applied.stderr)
    );
    Sources { built: root.clone(), root }
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

fn patches() -> PathBuf {
    Sources::of_repository().root.join("proof/planted/clients")
}
