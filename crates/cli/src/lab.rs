//! `epicepoch lab`: runs a topology of regions on this machine, and says what distance costs. The
//! crate `epicepoch-lab` does the work.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use clap::{Arg, ArgAction, ArgMatches, Command};
use epicepoch_bench::record::Program;
use epicepoch_lab::builtin::{self, BUILT_IN};
use epicepoch_lab::{
    Entry, LabError, LinkKind, Outcome, Plan, Running, Setup, Topology, file, page, picture,
    report, run, text,
};

use crate::arguments::{is_json, number, output as output_argument, switch, text as text_argument};
use crate::failure::Failure;
use crate::output_file::OutputFile;
use crate::{output, signals};

/// The name of this command.
const NAME_OF_COMMAND: &str = "lab";
/// The argument that names the topology.
const NAME: &str = "name";
/// The argument of the process that runs in a network namespace of its own.
const INSIDE: &str = "inside";

pub(crate) fn command() -> Command {
    Command::new(NAME_OF_COMMAND)
        .about("Try what distance costs: regions on this machine, behind delayed links")
        .long_about(
            "Try what distance costs, before a machine is rented: real nodes on this machine, behind \
             links with the delays of your regions. The command says what a timestamp costs from \
             each region, wherever the leader is, what the loss of a region costs, and what it \
             advises.\n\nIt verifies the delays before it measures, and checks every answer. It \
             needs no privileges, and contacts no other machine. Without NAME it lists the built-in \
             topologies.\n\nThe delays are made by TCP proxies. With --links netns they are made by \
             the kernel (network namespaces and netem), so TCP behaves as on a long path. That needs \
             a kernel with the module sch_netem, the tools ip, tc, unshare and nsenter, and root or \
             user namespaces. The command says which of them is missing.",
        )
        .after_help(
            "Steps: 0 floor, 1 at rest, 2 each leader, 3 a region is lost, 4 the leader is killed, \
             5 the leader is not heard, 6 modes.\n\n\
             Examples:\n  epicepoch lab two-dc-50ms\n  epicepoch lab three-regions --only 2,3 --html \
             lab.html\n  epicepoch lab mine.toml --dry\n\n\
             Exit codes: 0 all is as expected; 1 a median or a time without an answer is beyond its \
             bound (docs/lab.md), a request failed while nothing was broken, an answer was wrong, \
             leadership moved by itself, or the run failed; 2 wrong usage, or a wrong file.",
        )
        .arg(
            Arg::new(NAME)
                .value_name("NAME")
                .help("A built-in topology, or a TOML file (docs/lab.md)"),
        )
        .arg(
            number("seconds", Plan::SECONDS, "Length of each measurement")
                .default_value("5")
                .requires(NAME),
        )
        .arg(
            text_argument("only", "STEPS", "Only these steps, such as 1,2 [default: all]")
                .requires(NAME),
        )
        .arg(text_argument("seed", "S", "Seed of the jitter").default_value("1").requires(NAME))
        .arg(
            switch("dry", "Print what is expected, and start nothing")
                .requires(NAME)
                .conflicts_with_all(["seconds", "only", "seed", "links", "html"]),
        )
        .arg(
            text_argument("links", "KIND", "What delays the links: proxies, or netns (the kernel)")
                .value_parser([LinkKind::Proxies.name(), LinkKind::Netns.name()])
                .default_value(LinkKind::Proxies.name())
                .hide_possible_values(true)
                .requires(NAME),
        )
        .arg(Arg::new(INSIDE).long(INSIDE).action(ArgAction::SetTrue).hide(true))
        .arg(
            text_argument("html", "FILE", "Write a page with map, heat map and time lines")
                .requires(NAME),
        )
        .arg(text_argument("svg", "FILE", "Write the map and the heat map").requires(NAME))
        .arg(output_argument())
}

pub(crate) fn run_command(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let Some(name) = matches.get_one::<String>(NAME) else { return list(matches) };
    let topology = topology(name)?;
    let seconds = matches.get_one::<u64>("seconds").copied().unwrap_or(5);
    let mut plan = Plan::new(Duration::from_secs(seconds));
    if let Some(steps) = matches.get_one::<String>("only") {
        plan = plan.only(steps).map_err(|error| Failure::usage(anyhow!("--only: {error}")))?;
    }
    let seed = matches.get_one::<String>("seed").map_or("", String::as_str);
    let seed = seed
        .parse()
        .map_err(|_| Failure::usage(anyhow!("--seed is {seed:?}; allowed is a whole number")))?;
    if matches.get_flag("dry") {
        return dry(matches, &topology);
    }
    let program = std::env::current_exe().context("the path of this program")?;
    if matches.get_one::<String>("links").is_some_and(|it| it == LinkKind::Netns.name()) {
        plan.links = LinkKind::Netns;
        if !matches.get_flag(INSIDE) {
            return Err(enter(&program));
        }
    }
    // A file that cannot be written is known before minutes of measuring.
    let (html, svg) = (OutputFile::open(matches, "html")?, OutputFile::open(matches, "svg")?);
    let stop = Arc::new(AtomicBool::new(false));
    let stopping = stop.clone();
    let running = Running::default();
    let abandoned = running.clone();
    let stop_all = move || stopping.store(true, Ordering::Relaxed);
    signals::watch_and_leave(stop_all, move || abandoned.kill_all())?;
    let setup = Setup { program, plan, seed, stop, running, expected_factor: 1.0 };
    let outcome = measured(&topology, &setup)?;
    if let Some(file) = html {
        file.replace(&page::page(&outcome))?;
    }
    if let Some(file) = svg {
        let picture = picture::picture(&outcome.topology, Some(&outcome));
        file.replace(&picture)?;
    }
    let mut out = output::account();
    if is_json(matches) {
        writeln!(out, "{}", report::report(&outcome, &this_program()))?;
    } else {
        write!(out, "{}", text::outcome(&outcome))?;
    }
    let is_good = outcome.problems().is_empty();
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the topology, with a line on standard error for everything that begins or was measured.
fn measured(topology: &Topology, setup: &Setup) -> Result<Outcome, Failure> {
    let settings = run::node_settings(topology).map_err(wrong)?;
    let about = setup.plan.about(topology, run::election_ms(&settings));
    let began = Instant::now();
    let mut tell = |line: &str| {
        // If standard error is closed, the run goes on without progress.
        let _unread = writeln!(io::stderr(), "{:>4} s  {line}", began.elapsed().as_secs());
    };
    tell(&format!("{}: about {} s", topology.name, about.as_secs()));
    run::run(topology, setup, &mut tell).map_err(wrong)
}

/// Replaces this process by one that does the same in a network namespace of its own. Returns why
/// it cannot.
fn enter(program: &Path) -> Failure {
    let entry = match Entry::probe() {
        Ok(entry) => entry,
        Err(why) => {
            let without = "without it, proxies delay the links";
            return anyhow!("--links netns cannot be used on this machine: {why}; {without}")
                .into();
        }
    };
    let mut command = entry.command(program);
    command.args(inside(std::env::args_os().skip(1).collect()));
    anyhow::Error::from(command.exec()).context("unshare").into()
}

/// The same arguments for the process inside. Its own comes right behind the command's name, because
/// a `--` may follow.
fn inside(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let behind = arguments.iter().position(|it| it == NAME_OF_COMMAND).map_or(0, |at| at + 1);
    arguments.insert(behind, format!("--{INSIDE}").into());
    arguments
}

/// A failure of a run. A fault of the file is wrong usage.
fn wrong(error: LabError) -> Failure {
    match error {
        LabError::Settings(_) => Failure::usage(error),
        _ => Failure::from(anyhow::Error::from(error)),
    }
}

/// The topology of a name, or of a file.
fn topology(name: &str) -> Result<Topology, Failure> {
    if let Some(topology) = builtin::find(name) {
        return Ok(topology);
    }
    let path = Path::new(name);
    let is_file = path.extension().is_some() || path.exists();
    if !is_file {
        let names: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
        return Err(Failure::usage(anyhow!(
            "{name:?} is no topology; allowed are {}, or a TOML file",
            names.join(", ")
        )));
    }
    file::read(path).map_err(|error| Failure::usage(anyhow!("{name}: {error}")))
}

/// Prints the built-in topologies.
fn list(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let all = || BUILT_IN.iter().filter_map(|(name, _)| builtin::find(name));
    let mut out = output::product();
    if is_json(matches) {
        for topology in all() {
            writeln!(out, "{}", topology.document())?;
        }
    } else {
        for topology in all() {
            writeln!(out, "{:<18} {}", topology.name, topology.about)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what is expected.
fn dry(matches: &ArgMatches, topology: &Topology) -> Result<ExitCode, Failure> {
    if let Some(file) = OutputFile::open(matches, "svg")? {
        file.replace(&picture::picture(topology, None))?;
    }
    let mut out = output::product();
    if is_json(matches) {
        writeln!(out, "{}", topology.document())?;
    } else {
        write!(out, "{}", text::expectation(topology))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn this_program() -> Program {
    Program {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        // The nodes are this program, too.
        commit: Some(env!("BUILD_COMMIT").to_owned()).filter(|it| it != "unknown"),
        command: std::env::args_os().map(|it| it.to_string_lossy().into_owned()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_inside_is_told_so_before_the_other_arguments() {
        let of = |words: &[&str]| inside(words.iter().map(OsString::from).collect());
        let told = of(&["lab", "--links=netns", "--", "mine.toml"]);
        assert_eq!(told, ["lab", "--inside", "--links=netns", "--", "mine.toml"]);
        let parsed = command().try_get_matches_from(told);
        assert!(parsed.is_ok_and(|it| it.get_flag(INSIDE)));
    }
}
