//! `epicepoch bench html`: draws existing reports as an HTML page. `bench run --html` writes the
//! same page.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Arg, ArgMatches, Command, value_parser};
use epicepoch_bench::html::{self, Named};
use epicepoch_bench::record::Run;

use crate::arguments::text;
use crate::failure::Failure;

pub(crate) fn command() -> Command {
    Command::new("html")
        .about("Draw reports as one page: percentile curves, latency and rate over time")
        .after_help(
            "Examples:\n  epicepoch bench html run.json --out run.html\n  \
             epicepoch bench html before.json after.json --out both.html",
        )
        .arg(
            Arg::new("report")
                .value_name("FILE")
                .required(true)
                .num_args(1..=2)
                .value_parser(value_parser!(PathBuf))
                .help("Report of bench run --json; two reports are drawn over each other"),
        )
        .arg(
            text("out", "PAGE", "The page to write")
                .required(true)
                .value_parser(value_parser!(PathBuf)),
        )
}

pub(crate) fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let paths: Vec<PathBuf> = matches.get_many("report").into_iter().flatten().cloned().collect();
    let mut reports = Vec::with_capacity(paths.len());
    for path in &paths {
        reports.push((name(path), Run::read(path).with_context(|| path.display().to_string())?));
    }
    let runs: Vec<Named<'_>> = reports.iter().map(|(name, run)| Named { name, run }).collect();
    let page = html::page(TITLE, &runs, "");
    let out: &PathBuf = matches.get_one("out").expect("clap requires it");
    fs::write(out, page).with_context(|| out.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// Draws the page of one run.
pub(crate) fn of_run(run: &Run) -> String {
    html::page(TITLE, &[Named { name: "run", run }], "")
}

/// Draws the page of a comparison. Each set is represented by its median run, by p99.
pub(crate) fn of_sets(base: &[Run], new: &[Run], verdict: &str) -> String {
    let runs = [("base", base), ("new", new)].map(|(name, set)| {
        let mut set: Vec<&Run> = set.iter().collect();
        set.sort_by_key(|run| run.latency_ns.0.value_at_quantile(0.99));
        Named { name, run: set[set.len() / 2] }
    });
    html::page(TITLE, &runs, verdict)
}

/// Returns the name of a report for legends.
fn name(path: &Path) -> String {
    path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

const TITLE: &str = "EpicEpoch: a measurement";
