//! `epicepoch bench compare`: judges two sets of reports. It measures nothing.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use epicepoch_bench::compare::{self, Overall, RUNS_MAX, Rule};
use epicepoch_bench::record::Run;

use crate::arguments::{is_json, output as output_argument};
use crate::failure::Failure;
use crate::output;

pub(crate) fn command() -> Command {
    Command::new("compare")
        .about("Judge the difference between two sets of repeated runs")
        .long_about(
            "Judge the difference between two sets of repeated runs with equal settings: first the \
             base, then, after --, the new ones. Each run is one observation. Rate (of closed \
             loops), p50, p99, p99.9 and the share of failures are compared by the exact rank-sum \
             permutation test, which assumes no shape of distributions, with Holm's correction, so \
             that with --confidence 95 at least 95 of 100 comparisons of equal services claim no \
             difference. That needs five runs in each set; single runs prove nothing.\n\n\
             Alternate the runs (base, new, base, new, ...), so that a drift of the machine affects \
             both.",
        )
        .after_help(
            "Examples:\n  epicepoch bench compare base-*.json -- new-*.json\n  \
             epicepoch bench compare --tolerance 5 base-*.json -- new-*.json || exit 1\n  \
             epicepoch bench compare a.json b.json           side by side, without a verdict\n\n\
             Exit codes: 0 nothing is worse, 1 the runs cannot be compared, 2 wrong usage, or a file that \
             is no report,\n3 something is worse, 4 no verdict.",
        )
        .arg(files("base", "Reports of the base").required(true))
        .arg(files("new", "Reports of the new runs, after --").last(true))
        .arg(percent("confidence", "Confidence of a claim, 50 to 99.9 %", "95"))
        .arg(percent("tolerance", "Changes of up to this many % count as equal", "0"))
        .arg(output_argument())
}

fn files(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .value_name("FILE")
        .num_args(1..=RUNS_MAX)
        .action(ArgAction::Append)
        .value_parser(value_parser!(PathBuf))
        .help(help)
}

fn percent(name: &'static str, help: &'static str, default: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name("PERCENT")
        .value_parser(value_parser!(f64))
        .default_value(default)
        .help(help)
}

pub(crate) fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let share = |name, range: std::ops::RangeInclusive<f64>| {
        let given = matches.get_one::<f64>(name).copied().unwrap_or_default();
        let wrong = || {
            let (low, high) = (range.start(), range.end());
            Failure::usage(anyhow!("--{name} is {given}; allowed are {low} to {high} percent"))
        };
        range.contains(&given).then_some(given / 100.0).ok_or_else(wrong)
    };
    let rule = Rule {
        confidence: share("confidence", 50.0..=99.9)?,
        tolerance: share("tolerance", 0.0..=1000.0)?,
    };
    // The files after -- are read first, so that wrong usage there is reported first.
    let mut new = read(matches, "new")?;
    let mut base = read(matches, "base")?;
    if new.is_empty() {
        if base.len() != 2 {
            return Err(Failure::usage(anyhow!("the new runs are missing: give them after --")));
        }
        new.extend(base.pop());
    }
    let comparison = compare::compare(&base, &new, rule)?;
    if is_json(matches) {
        writeln!(output::account(), "{}", compare::document(&comparison))?;
    } else {
        write!(output::account(), "{}", compare::table(&comparison))?;
    }
    Ok(match comparison.verdict {
        Overall::Same | Overall::Better => ExitCode::SUCCESS,
        Overall::Worse => ExitCode::from(CODE_WORSE),
        Overall::None => ExitCode::from(CODE_NO_VERDICT),
    })
}

fn read(matches: &ArgMatches, name: &str) -> Result<Vec<Run>, Failure> {
    let paths = matches.get_many::<PathBuf>(name).into_iter().flatten();
    let read = |path: &PathBuf| {
        // The parser takes everything after -- as a file, even an option that the user put there.
        if path.to_string_lossy().starts_with("--") && !path.exists() {
            let path = path.display();
            return Err(Failure::usage(anyhow!("{path} is not a file; options go before --")));
        }
        Run::read(path).with_context(|| shown(path)).map_err(Failure::usage)
    };
    paths.map(read).collect()
}

fn shown(path: &Path) -> String {
    // A directory is a common mistake, and the system's error does not mention it.
    let what = if fs::metadata(path).is_ok_and(|it| it.is_dir()) { " (a directory)" } else { "" };
    format!("{}{what}", path.display())
}

/// Exit code: a figure is worse.
const CODE_WORSE: u8 = 3;
/// Exit code of a comparison that cannot be decided from the given runs.
const CODE_NO_VERDICT: u8 = 4;
