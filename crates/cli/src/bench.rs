//! `epicepoch bench`: measures a cluster from outside, and the limits of the machine. The crate
//! `epicepoch-bench` does the measuring.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use clap::{ArgMatches, Command};
use epicepoch_bench::floor::{self, Wait};
use epicepoch_bench::latency::{quantile, shown};
use epicepoch_bench::record::{self, Program};
use epicepoch_bench::run::{self, Live, RunConfig, Target};
use epicepoch_bench::{hlog, text};
use epicepoch_config::Environment;
use indicatif::{ProgressBar, ProgressStyle};

use crate::addresses::TokenFor;
use crate::arguments::{is_json, output as output_argument, switch, text as text_argument};
use crate::failure::Failure;
use crate::output_file::OutputFile;
use crate::{addresses, compare, load, output};

pub(crate) fn command() -> Command {
    Command::new("bench")
        .about("Measure a cluster from outside, and the limits of this machine")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommands([run_command(), floor_command(), compare::command()])
}

fn floor_command() -> Command {
    Command::new("floor")
        .about("Measure bare echoes over loopback, fsync, clock and thread wake-up")
        .arg(text_argument("duration", "TIME", "How long for each figure").default_value("1s"))
        .arg(load::floor_dir())
        .arg(output_argument())
}

fn run_command() -> Command {
    let command = Command::new("run")
        .about("Put a cluster under load and report latency, rate, failures and order")
        .long_about(
            "Put a cluster under load and report latency, rate, failures and order.\n\nWithout \
             --rate the load is a closed loop: each connection sends the next request when the answer \
             has come. With --rate it is an open loop: requests are due at fixed times and latency \
             counts from then on, so that a stall counts for every request that was due meanwhile.",
        )
        .after_help(
            "Examples:\n  epicepoch bench run --rate 5000 --duration 60s\n  \
             epicepoch bench run --connections 256 --duration 10s\n  \
             epicepoch bench run --rate 1000 --report run.json\n\n\
             Exit codes: 0 done; 1 it failed, nothing was answered, or an answer was wrong; 2 wrong \
             usage.",
        );
    load::arguments(command, "1s", "10s")
        .arg(text_argument("report", "FILE", "Write everything as JSON; times are nanoseconds"))
        .arg(output_argument())
        .arg(switch(
            "spin",
            "Threads spin instead of sleeping, so that latency is the service's alone",
        ))
        .arg(text_argument(
            "interval",
            "TIME",
            "Length of the report's intervals [default: 1s, or longer]",
        ))
        .arg(text_argument("commit", "TEXT", "Commit of the measured version, for the report"))
        .arg(text_argument(
            "hlog",
            "FILE",
            "Write interval histograms for HdrHistogram's tools, in ns",
        ))
}

pub(crate) fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    match matches.subcommand() {
        Some(("floor", matches)) => run_floor(matches),
        Some(("run", matches)) => run_load(matches, environment),
        Some(("compare", matches)) => compare::run(matches),
        _ => Err(Failure::usage(anyhow!("no measurement given; see epicepoch bench --help"))),
    }
}

fn run_floor(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let floor = load::floor(matches, load::duration(matches, "duration", FLOOR_TIME_MAX)?)?;
    let mut out = output::account();
    if is_json(matches) {
        writeln!(out, "{}", floor.json())?;
    } else {
        write!(out, "{}", text::floor_table(&floor))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn run_load(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    let config = load::config(matches)?;
    // The files are opened before the run, because an error after it would waste the run.
    let report_file = OutputFile::open(matches, "report")?;
    let hlog_file = OutputFile::open(matches, "hlog")?;
    let targets = targets(matches, environment, config.path.is_some())?;
    let tls = addresses::tls(matches, environment)?;
    let token = addresses::token(matches, environment, TokenFor::Clients)?;
    let config = RunConfig { targets, tls, token, ..config };

    // The bare echo is measured just before the run, because the speed of a machine changes over
    // time.
    let floor = floor::echo(Wait::Sleeping, FLOOR_TIME)?;
    let bar = progress(&config);
    let mut shown_at = Duration::ZERO;
    let measured = run::run(config, |live, at| {
        show(&bar, live, at, at.saturating_sub(shown_at));
        shown_at = at;
    });
    bar.finish_and_clear();

    let program = program(matches);
    let report = record::report(&measured, Some(&floor), &program);
    if is_json(matches) {
        writeln!(output::account(), "{report}")?;
    } else {
        write!(output::account(), "{}", text::run_table(&measured, Some(&floor)))?;
    }
    if let Some(file) = report_file {
        file.replace(&format!("{report:#}\n"))?;
    }
    if let Some(file) = hlog_file {
        file.replace(&hlog::hlog(&measured, &program))?;
    }
    let wrong = measured.checked.as_ref().is_some_and(|it| !it.verdict.is_clean());
    Ok(if wrong || measured.counts.answers == 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns what is measured: the members of the cluster, or another service at the given addresses.
fn targets(
    matches: &ArgMatches,
    environment: &Environment,
    is_another_service: bool,
) -> Result<Vec<Target>, Failure> {
    if is_another_service {
        let (addrs, _) = addresses::given(matches, environment)?;
        return (1..).zip(addrs).map(|(id, name)| load::target(id, name)).collect();
    }
    load::members(matches, environment, |text| {
        let _unread = writeln!(io::stderr(), "warning: left out: {text}");
    })
}

/// Returns the version and build of this program, for the report.
fn program(matches: &ArgMatches) -> Program {
    let built = option_env!("EPICEPOCH_COMMIT").map(str::to_owned);
    Program {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: matches.get_one::<String>("commit").cloned().or(built),
        command: std::env::args_os().map(|it| it.to_string_lossy().into_owned()).collect(),
    }
}

/// Shows one line on standard error during the run, only on a terminal.
fn progress(config: &RunConfig) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let length = (config.warmup + config.duration).as_secs();
    let bar = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template("{bar:20} {pos}/{len} s  {msg}") {
        bar.set_style(style);
    }
    bar
}

/// Shows the figures of an interval of the run: it ended at `at` and was as long as `span`.
fn show(bar: &ProgressBar, live: &Live, at: Duration, span: Duration) {
    bar.set_position(at.as_secs());
    let of = |share| shown(quantile(&live.latency_ns, share));
    bar.set_message(format!(
        "{:.0} req/s, p50 {}, p99 {}, p99.9 {}, max {}, {} failed",
        live.answers as f64 / span.as_secs_f64().max(f64::MIN_POSITIVE),
        of(0.5),
        of(0.99),
        of(0.999),
        of(1.0),
        live.failures,
    ));
}

/// How long the bare echo is measured before every run.
const FLOOR_TIME: Duration = Duration::from_millis(300);
/// One figure of the machine's floor is measured for at most this time.
const FLOOR_TIME_MAX: Duration = Duration::from_mins(1);

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_run_that_cannot_begin_leaves_the_report_of_an_earlier_run() {
        let home = tempfile::tempdir().expect("a directory");
        let named = |name: &str| home.path().join(name).display().to_string();
        let files = [named("run.json"), named("run.hlog")];
        for file in &files {
            fs::write(file, "an earlier run").expect("written");
        }
        // The authority is missing, so nothing is sent.
        let line = format!(
            "bench run --path /x --verify off --addr 127.0.0.1:1 --ca-file {} --report {} --hlog {}",
            named("missing.pem"),
            files[0],
            files[1]
        );
        let matches = command().try_get_matches_from(line.split(' ')).expect("it parses");
        assert!(run(&matches, &Environment::new()).is_err());
        for file in &files {
            assert_eq!(fs::read_to_string(file).expect("it is there"), "an earlier run");
        }
    }
}
