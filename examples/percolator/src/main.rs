//! The binary of the example. It runs everything, and prints the result.

mod arguments;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use arguments::Arguments;
use percolator::bank::Bank;
use percolator::checker::check;
use percolator::run::{Mode, Settings, run};
use percolator::summary::Summary;

fn main() -> ExitCode {
    match command() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::from(2)
        }
    }
}

fn command() -> Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| ["help", "--help", "-h"].contains(&word.as_str())) {
        println!("{USAGE}");
        return Ok(ExitCode::SUCCESS);
    }
    let mut settings = settings(words).context(USAGE)?;
    settings.oracle = match std::env::var_os("EPICEPOCH_BIN") {
        Some(binary) => binary.into(),
        None => build_oracle()?,
    };
    let result = run(&settings)?;
    let verdict = check(&result.evidence);
    println!("{}", Summary { settings: &settings, result: &result, verdict: &verdict });
    Ok(ExitCode::from(u8::from(!verdict.findings.is_empty())))
}

fn settings(words: Vec<String>) -> Result<Settings> {
    let mut arguments = Arguments::parse(words.into_iter(), &["intervals", "no-wait"])?;
    let mode = match (arguments.flag("intervals"), arguments.flag("no-wait")) {
        (false, false) => Mode::Quorum,
        (true, false) => Mode::Intervals,
        (true, true) => Mode::IntervalsWithoutWait,
        (false, true) => bail!("--no-wait needs --intervals: in quorum mode there is no wait"),
    };
    let settings = Settings {
        seconds: arguments.count("seconds", 20, [1, 3600])? as u64,
        stores: arguments.count("stores", 2, [1, 16])?,
        clients: arguments.count("clients", 12, [1, 256])?,
        bank: Bank {
            accounts: arguments.count("accounts", 40, [2, 10_000])?,
            pairs: arguments.count("pairs", 4, [0, 1000])?,
        },
        mode,
        seed: arguments.take("seed")?.unwrap_or_else(|| fastrand::u64(..)),
        plant: arguments.take("plant")?,
        oracle: PathBuf::new(),
    };
    arguments.finish()?;
    Ok(settings)
}

/// Builds the oracle from this source tree, with the profile and target directory of this binary.
fn build_oracle() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let dir = own.parent().context("a binary is in a directory")?;
    let mut build = Command::new("cargo");
    build.args(["build", "--quiet", "--locked", "--package", "epicepoch"]);
    if dir.ends_with("release") {
        build.arg("--release");
    }
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    let status =
        build.status().with_context(|| format!("set EPICEPOCH_BIN, or install {build:?}"))?;
    ensure!(status.success(), "{build:?} failed; EPICEPOCH_BIN may name a binary");
    Ok(dir.join("epicepoch"))
}

const USAGE: &str = "\
percolator [--seconds 20] [--stores 2] [--clients 12] [--accounts 40] [--pairs 4] [--seed N]
           [--plant MISTAKE] [--intervals [--no-wait]]
    the whole example: oracle, stores, clients, kills, and what came of it;
    ends with 0 if there is no anomaly, with 1 if there is one
    --intervals  the oracle is in interval mode; --no-wait: clients do not wait";
