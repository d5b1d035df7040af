//! One load generator for several systems that serve as a timestamp oracle, each through its usual
//! client. The callers run a closed loop on one thread. At the end the program prints one line of
//! JSON. `scripts/compare` starts the servers.
//!
//! The systems' own tools count different things. Here a request is always what a caller waits for,
//! however many timestamps it brings. Every caller checks that its answers rise.

mod load;
mod systems;

use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;

use crate::load::Plan;
use crate::systems::System;

/// Asks one system for timestamps and reports rate and latency as a line of JSON.
#[derive(Debug, Parser)]
#[command(name = "epicepoch-compare", version)]
struct Arguments {
    /// The system.
    #[arg(long, value_enum)]
    system: System,
    /// Addresses as host:port, separated by commas; for postgres a connection string.
    #[arg(long)]
    addr: String,
    /// Callers that each wait for one answer at a time, 1 to 100000.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    callers: u32,
    /// Timestamps in each request, 1 to 65536.
    #[arg(short, long, default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_536))]
    n: u32,
    /// Seconds that are measured, after one second of warm-up.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    seconds: u32,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let plan = Plan {
        callers: arguments.callers,
        n: arguments.n,
        warmup: Duration::from_secs(1),
        measured: Duration::from_secs(arguments.seconds.into()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")?;
    let report = runtime.block_on(load::run(arguments.system, &arguments.addr, &plan))?;
    println!("{}", report.to_json(arguments.system, &plan));
    anyhow::ensure!(report.violations == 0, "{} answers did not rise", report.violations);
    anyhow::ensure!(report.answers() > 0, "nothing was answered: {}", report.last_error);
    Ok(())
}
