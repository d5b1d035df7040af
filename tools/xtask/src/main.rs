//! The checks of this repository, in tiers. `cargo xtask --help` lists them.

mod builds;
mod catalogue;
mod changes;
mod clients;
mod dependencies;
mod documents;
mod imports;
mod layers;
mod planted;
mod processes;
mod shell;
mod smoke;
mod source;
mod steps;
mod test_commands;
mod tiers;

use std::process::ExitCode;

use steps::Tier;

const HELP: &str = "\
The checks of this repository, in tiers.

    cargo xtask check             after an edit: format, documents, imports, lints, the tests of the crates that
                                  changed (against main, or the commit before) and of those that need them,
                                  planted bugs near the change; under 5 minutes once everything is built
    cargo xtask check --all       the same, as if everything had changed
    cargo xtask ci                before a change is taken: .ci/run; under 25 minutes from nothing, on two cores
    cargo xtask nightly           everything: all planted bugs, the fuzzing engine, loom, measurements, comparison

    --only STEP                   of these, this step alone; can be given again
    --fail-fast                   ends after the first step that fails

    cargo xtask steps             every step: its tiers, its bound, its commands
    cargo xtask documents         what documents name and does not exist: links, paths, tests, metrics, messages;
                                  and `cargo test` commands that run no test
    cargo xtask clients           names, defaults and errors of the clients that are not as clients/README.md says
    cargo xtask catalogue         writes docs/testing-catalogue.md; with --check, says whether it is stale
    cargo xtask imports [CRATE]   circles between files of a crate, imports that point uphill, and what ships and
                                  speaks of planted bugs
    cargo xtask planted           builds a copy of the sources with all planted bugs of proof/planted, in
                                  target/planted, and looks for each bug with its checker
    cargo xtask planted [BUG...] [--share K/N]
                                  these bugs alone, and every Nth from the Kth on
    cargo xtask planted --tree    makes the copy, target/planted/tree, and builds nothing
    cargo xtask planted --refresh writes the patches again from what was edited in target/planted/tree

A step's output is in target/xtask/STEP.log. Its environment is cleared and set: settings of the shell do not reach it.
If a signal ends this program, its steps end too.
The steps are in tools/xtask/src/steps.rs, the layers in layers.rs beside it. Exit code 0: all of it holds; 1: it does
not; 2: wrong usage.";

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
    let mut choice = tiers::Choice { tier, only: vec![], is_to_go_on: true, is_all: false };
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
            _ => return Err(format!("unknown argument {argument}: cargo xtask --help")),
        }
    }
    Ok(choice)
}
