//! The checks of this repository, in tiers. `cargo xtask --help` lists them.

mod alerts;
mod book;
mod builds;
mod catalogue;
mod changes;
mod clients;
mod dependencies;
mod documents;
mod imports;
mod layers;
mod night;
mod planted;
mod processes;
mod shell;
mod site;
mod smoke;
mod source;
mod steps;
mod test_commands;
mod tiers;

use std::process::ExitCode;
use std::time::Duration;

use steps::Tier;

/// The longest `--minutes`: a day.
const MINUTES_MAX: u64 = 1440;

const HELP: &str = "\
Runs the checks of this repository, in three tiers.

    cargo xtask check             after an edit: formatting, documents, imports, lints; the tests of crates that differ
                                  from main (on main: from the commit before), and of crates that depend on them;
                                  the planted bugs near the change. Less than 5 minutes once everything is built
    cargo xtask check --all       the same, as if every file had changed
    cargo xtask ci                before a change is merged; .ci/run calls it. Less than half an hour in a fresh clone
                                  on two cores
    cargo xtask nightly           every night: also all planted bugs, the fuzzing engine, loom, measurements, and the
                                  comparison with other systems. Some hours
    cargo xtask nightly --minutes N
                                  the same, with N minutes more (default 1) for fresh seeds, random faults and cut
                                  links; each fuzz target gets 1/300 of N, at least 5 s

    --only STEP                   runs only this step; can be repeated
    --fail-fast                   stops after the first step that fails

    cargo xtask steps             lists every step: its tiers, its time limit, its commands
    cargo xtask documents         lists links, paths, tests, metrics and messages in documents that do not exist,
                                  and `cargo test` commands that run no test
    cargo xtask clients           lists names, defaults and errors of the clients that differ from clients/README.md
    cargo xtask alerts            writes the table of docs/alerts.md; --check only says whether it is up to date
    cargo xtask book DIR          makes the documents a site in DIR, which must be new or empty, and checks all its links.
                                  If mdbook 0.5 is not installed, builds it in target/ci-tools
    cargo xtask book --check      only lists documents that are not in docs/book/SUMMARY.md, and links to nothing
    cargo xtask catalogue         writes docs/testing-catalogue.md; --check only says whether it is up to date
    cargo xtask imports [CRATE]   lists files of a crate that import each other in a circle, imports of a higher layer,
                                  and planted bugs in crates that ship
    cargo xtask planted           copies the sources to target/planted, adds all planted bugs of proof/planted there,
                                  builds the copy, and looks for each bug with its checker
    cargo xtask planted [BUG...] [--share K/N] [--target-dir DIR]
                                  looks only for these bugs, and for every Nth bug from the Kth on. Cargo builds in DIR,
                                  or else in target/planted/build
    cargo xtask planted --tree    only makes the copy, target/planted/tree
    cargo xtask planted --refresh writes the patches again, from your edits in target/planted/tree

The output of a step is in target/xtask/STEP.log. Steps do not see the environment variables of your shell, except those
in tools/xtask/src/shell.rs. If a signal ends this program, its steps end too.
tools/xtask/src/steps.rs has the steps, layers.rs beside it has the layers.
Exit code 0: all steps succeeded; 1: a step failed; 2: wrong usage.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.split_first() {
        Some((command, rest)) => run(command, rest),
        None => Err(HELP.to_owned()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn run(command: &str, rest: &[String]) -> Result<bool, String> {
    // All paths are relative to the root, wherever this program is started.
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    std::env::set_current_dir(root).map_err(|error| format!("{root}: {error}"))?;
    if let Some(tier) = Tier::of(command) {
        return tiers::run(&choice(tier, rest)?);
    }
    match command {
        "alerts" => alerts::command(rest),
        "book" => site::command(rest),
        "catalogue" => catalogue::command(rest),
        "clients" => clients::command(),
        "documents" => documents::command(),
        // The tiers start this program with this command, as their guard.
        processes::Guard::COMMAND => {
            processes::Guard::run().map(|()| true).map_err(|error| error.to_string())
        }
        "imports" => imports::command(rest),
        "planted" => planted::command(rest),
        "steps" => {
            tiers::list();
            Ok(true)
        }
        "-h" | "--help" | "help" => {
            println!("{HELP}");
            Ok(true)
        }
        _ => Err(format!("no command is named {command}: cargo xtask --help")),
    }
}

fn choice(tier: Tier, arguments: &[String]) -> Result<tiers::Choice, String> {
    let mut choice = tiers::Choice {
        tier,
        only: vec![],
        is_to_go_on: true,
        is_all: false,
        night: Duration::from_mins(if tier == Tier::Nightly { night::MINUTES } else { 0 }),
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--all" => choice.is_all = true,
            "--fail-fast" => choice.is_to_go_on = false,
            "--only" => {
                choice
                    .only
                    .push(arguments.next().ok_or("--only needs the name of a step")?.clone());
            }
            "--minutes" if tier == Tier::Nightly => {
                let minutes = arguments.next().and_then(|minutes| minutes.parse().ok());
                let minutes = minutes.filter(|minutes| (1..=MINUTES_MAX).contains(minutes));
                let minutes =
                    minutes.ok_or(format!("--minutes needs a number from 1 to {MINUTES_MAX}"))?;
                choice.night = Duration::from_mins(minutes);
            }
            _ => return Err(format!("unknown argument {argument}: cargo xtask --help")),
        }
    }
    Ok(choice)
}
