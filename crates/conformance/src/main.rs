//! Runs the suite against any client: `conformance [--only NAME] -- DRIVER [ARGUMENT...]`.

use std::process::ExitCode;

use epicepoch_conformance::DriverCommand;
use epicepoch_conformance::scenarios;
use epicepoch_conformance::suite::{Played, play_all};

const USAGE: &str = "\
usage: conformance [--only NAME]... -- DRIVER [ARGUMENT...]
       conformance --list

Plays every scenario, or those named, against the client that DRIVER drives.
How to write a driver: clients/README.md.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Whether the client holds everything that was played.
fn run(arguments: &[String]) -> Result<bool, String> {
    if arguments == ["--list"] {
        for scenario in scenarios::all() {
            println!("{scenario:?}");
        }
        return Ok(true);
    }
    let mut words = arguments.iter();
    let mut only = Vec::new();
    loop {
        match words.next().map(String::as_str) {
            Some("--only") => only.push(words.next().ok_or("--only needs a name")?.as_str()),
            Some("--") => break,
            Some(other) => return Err(format!("{other:?} is not expected here")),
            None => return Err("no driver is named".to_owned()),
        }
    }
    let words: Vec<String> = words.cloned().collect();
    let name = words.join(" ");
    let scenarios = if only.is_empty() { scenarios::all() } else { scenarios::named(&only)? };
    let played =
        play_all(&DriverCommand { name, words }, &scenarios, |played| println!("{played}"));
    let broken = played.iter().filter(|played: &&Played| played.verdict.is_err()).count();
    println!("{} scenarios, {broken} broken", played.len());
    Ok(broken == 0)
}
