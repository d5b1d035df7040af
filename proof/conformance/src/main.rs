//! Runs the suite against any client: `conformance [--only NAME] -- DRIVER [ARGUMENT...]`. With
//! `--kills` it runs the client against a real cluster whose leaders are killed.

use std::path::PathBuf;
use std::process::ExitCode;

use epicepoch_conformance::DriverCommand;
use epicepoch_conformance::kills::{self, Loss};
use epicepoch_conformance::scenarios;
use epicepoch_conformance::suite::{Played, play_all};

const USAGE: &str = "\
usage: conformance [--only NAME]... [--compact] -- DRIVER [ARGUMENT...]
       conformance --kills K [--compact] -- DRIVER [ARGUMENT...]
       conformance --list

Plays every scenario but those of interval mode, or those named, against the client that DRIVER
drives. With --kills the
client asks three real nodes, beside HTTP, while K leaders are killed and K told to stop: all
answers must have one order, and no call may fail. With --compact the nodes
give compact timestamps, and the client asks for their spelling in 64 bits. EPICEPOCH_BIN names the binary of the nodes.
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

/// Plays scenarios. Returns whether the client passed all of them.
fn run(arguments: &[String]) -> Result<bool, String> {
    if arguments == ["--list"] {
        for scenario in [scenarios::all(), scenarios::intervals()].concat() {
            println!("{scenario:?}");
        }
        return Ok(true);
    }
    let mut words = arguments.iter();
    let mut only = Vec::new();
    let mut kills = None;
    let mut is_compact = false;
    loop {
        match words.next().map(String::as_str) {
            Some("--kills") => {
                let number = words.next().ok_or("--kills needs a number")?;
                let is_allowed = |kills: &usize| (1..=KILLS_MAX).contains(kills);
                kills = number.parse().ok().filter(is_allowed);
                kills.ok_or_else(|| format!("{number:?} leaders: allowed are 1 to {KILLS_MAX}"))?;
            }
            Some("--compact") => is_compact = true,
            Some("--only") => only.push(words.next().ok_or("--only needs a name")?.as_str()),
            Some("--") => break,
            Some(other) => return Err(format!("{other:?} is not expected here")),
            None => return Err("no driver is named".to_owned()),
        }
    }
    let words: Vec<String> = words.cloned().collect();
    let driver = DriverCommand { name: words.join(" "), words, hedge: None, is_compact };
    if let Some(kills) = kills {
        if !only.is_empty() {
            return Err("--only names scenarios, and --kills plays none".to_owned());
        }
        return lose_leaders(driver, kills, is_compact);
    }
    let scenarios = if only.is_empty() { scenarios::all() } else { scenarios::named(&only)? };
    let played = play_all(&driver, &scenarios, |played| println!("{played}"));
    let broken = played.iter().filter(|played: &&Played| played.verdict.is_err()).count();
    println!("{} scenarios, {broken} broken", played.len());
    Ok(broken == 0)
}

/// Runs the client beside HTTP while leaders are lost. Returns whether it keeps the order and
/// answers every call.
fn lose_leaders(driver: DriverCommand, kills: usize, is_compact: bool) -> Result<bool, String> {
    let binary = std::env::var_os("EPICEPOCH_BIN").map(PathBuf::from);
    let binary = binary.ok_or("EPICEPOCH_BIN names no binary: build one with cargo build")?;
    // The nodes run in other directories, so the path must be absolute.
    let binary = binary.canonicalize().map_err(|error| format!("{}: {error}", binary.display()))?;
    let losses = [Loss::Killed, Loss::Stopped].repeat(kills);
    let seen = kills::run(&binary, &[driver], &losses, is_compact)?;
    for client in &seen.clients {
        println!("{}: {} calls", client.name, client.calls.len());
        for loss in [Loss::Killed, Loss::Stopped] {
            println!("  longest call, leader {loss:?}: {}", seen.longest(client, loss));
        }
    }
    println!("http: {} answers", seen.http_answers);
    let mut broken = seen.disorder.clone();
    broken.extend(seen.failures());
    broken.iter().take(BROKEN_SHOWN).for_each(|it| println!("BROKEN: {it}"));
    println!("{} leaders lost, {} broken", losses.len(), broken.len());
    Ok(broken.is_empty())
}

/// At most this many leaders are killed. Each kill takes some seconds.
const KILLS_MAX: usize = 1000;
/// At most this many violations are described.
const BROKEN_SHOWN: usize = 10;
