//! The binary of the example. The command `run` starts everything. It starts the processes `store`
//! and `client`, which are commands of the same binary.

mod arguments;

use std::io::Read as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use arguments::Arguments;
use percolator::bank::Bank;
use percolator::checker::check;
use percolator::network::{Work, run_client};
use percolator::run::{Settings, build_go_client, run};
use percolator::server;
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
    let mut words = std::env::args().skip(1);
    let Some(what) = words.next() else { bail!("{USAGE}") };
    if matches!(what.as_str(), "help" | "--help" | "-h") {
        println!("{USAGE}");
        return Ok(ExitCode::SUCCESS);
    }
    let arguments = Arguments::parse(words).context(USAGE)?;
    match what.as_str() {
        "run" => run_all(arguments),
        "store" => store(arguments).map(|()| ExitCode::SUCCESS),
        "client" => client(arguments).map(|()| ExitCode::SUCCESS),
        _ => bail!("{USAGE}"),
    }
}

fn run_all(mut arguments: Arguments) -> Result<ExitCode> {
    let kept: Option<PathBuf> = arguments.take("dir")?;
    let temporary = if kept.is_none() { Some(tempfile::tempdir()?) } else { None };
    let dir = kept.as_deref().or(temporary.as_ref().map(tempfile::TempDir::path));
    let dir = dir.context("one of both is there")?.to_owned();
    std::fs::create_dir_all(&dir)?;
    ensure!(std::fs::read_dir(&dir)?.next().is_none(), "{} is not empty", dir.display());
    let own = std::env::current_exe()?;
    let mut settings = Settings {
        seconds: arguments.count("seconds", 20, [1, 3600])? as u64,
        stores: arguments.count("stores", 2, [1, 16])?,
        clients: arguments.count("clients", 2, [1, 16])?,
        threads: arguments.count("threads", 4, [1, 64])?,
        bank: bank(&mut arguments)?,
        seed: arguments.take("seed")?.unwrap_or_else(|| fastrand::u64(..)),
        plant: arguments.take("plant")?,
        oracle: PathBuf::new(),
        go_client: None,
        own: own.clone(),
        dir,
    };
    arguments.finish()?;
    settings.oracle = match std::env::var_os("EPICEPOCH_BIN") {
        Some(binary) => binary.into(),
        None => build_oracle(&own)?,
    };
    settings.go_client = build_go_client(&settings.dir)?;
    let result = match run(&settings) {
        Ok(result) => result,
        Err(error) => {
            if let Some(temporary) = temporary {
                eprintln!("logs and histories are in {}", temporary.keep().display());
            }
            return Err(error);
        }
    };
    let verdict = check(&result.evidence);
    println!("{}", Summary { settings: &settings, result: &result, verdict: &verdict });
    if verdict.findings.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(temporary) = temporary {
        println!("logs and histories are in {}", temporary.keep().display());
    }
    Ok(ExitCode::from(1))
}

fn store(mut arguments: Arguments) -> Result<()> {
    let plant = arguments.take("plant")?;
    arguments.finish()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    thread::spawn(|| {
        await_end_of_input();
        std::process::exit(0);
    });
    server::serve(&listener, plant)
}

fn client(mut arguments: Arguments) -> Result<()> {
    let list = |text: String| text.split(',').map(str::to_owned).collect();
    let work = Work {
        name: arguments.need("name")?,
        stores: list(arguments.need("stores")?),
        oracle: list(arguments.need("oracle")?),
        threads: arguments.count("threads", 4, [1, 64])?,
        bank: bank(&mut arguments)?,
        seed: arguments.need("seed")?,
        plant: arguments.take("plant")?,
    };
    let history: PathBuf = arguments.need("history")?;
    arguments.finish()?;
    let stop = Arc::new(AtomicBool::new(false));
    let asked = stop.clone();
    thread::spawn(move || {
        await_end_of_input();
        asked.store(true, Ordering::Relaxed);
    });
    run_client(&work, std::fs::File::create(history)?, &stop)
}

fn bank(arguments: &mut Arguments) -> Result<Bank> {
    Ok(Bank {
        accounts: arguments.count("accounts", 40, [2, 10_000])?,
        pairs: arguments.count("pairs", 4, [0, 1000])?,
    })
}

/// Builds the oracle from this source tree, with the profile and target directory of this binary.
fn build_oracle(own: &Path) -> Result<PathBuf> {
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

/// Waits until the parent closes this process's input, or ends.
fn await_end_of_input() {
    let mut rest = Vec::new();
    // A read error counts as the end too.
    drop(std::io::stdin().read_to_end(&mut rest));
}

const USAGE: &str = "\
percolator run [--seconds 20] [--stores 2] [--clients 2] [--threads 4] [--accounts 40] [--pairs 4]
               [--seed N] [--plant MISTAKE] [--dir EMPTY]
    the whole example: oracle, stores, clients, kills, and what came of it;
    ends with 0 if there is no anomaly, with 1 if there is one
percolator store [--plant MISTAKE]
    one store on a port of loopback, which it prints
percolator client --name NAME --stores ADDR,... --oracle ADDR,... --history FILE --seed N
                  [--threads 4] [--accounts 40] [--pairs 4] [--plant MISTAKE]
    transactions until its input ends";
