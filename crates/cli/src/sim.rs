//! `epicepoch sim`: runs the simulator from the command line. It runs seeds and prints what they
//! exercised. For the first failure it prints the seed, the invariant and the last events.

use std::io::{IsTerminal, Write};
use std::panic;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{Arg, ArgMatches, Command, value_parser};
use epicepoch_sim::plant::Plant;
use epicepoch_sim::run::{Failure as RunFailure, Options, Outcome, run as run_seed};
use epicepoch_sim::summary::Summary;

use crate::arguments::switch;
use crate::failure::Failure;
use crate::output;

/// How many events before a failure are printed.
const FAILURE_TRACE_LEN: usize = 200;
/// How many events `--trace` keeps: more than an hour of simulated time produces.
const TRACE_LEN: usize = 100_000_000;
/// A thread that has finished this many seeds more than the others waits for them.
const AHEAD_MAX: usize = 64;
/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(1);
/// The kind of build. The same seed runs differently in the two kinds, because debug builds compact
/// logs sooner.
const BUILD: &str = if cfg!(debug_assertions) { "debug build" } else { "release build" };
/// The exit codes of a run that failed. `SAFETY`: an invariant was broken. `LIVENESS`: a healed
/// cluster did not answer. `CRASH`: the code under test panicked.
const SAFETY: u8 = 3;
const LIVENESS: u8 = 4;
const CRASH: u8 = 5;

pub(crate) fn command() -> Command {
    let number = |name: &'static str, value: &'static str, help: &'static str| {
        let parser = value_parser!(u64);
        Arg::new(name).long(name).value_name(value).value_parser(parser).help(help)
    };
    Command::new("sim")
        .about("Run whole clusters of the core in a simulator, under every fault at once")
        .long_about(
            "Run whole clusters of the core, each in one thread, with simulated links, disks, clocks, \
             processes and clients, under every fault at once, and check every step. The same seed \
             gives the same run.",
        )
        .after_help(
            "Exit codes: 0 no violation, 3 an invariant was broken, 4 a healed cluster did not \
             answer, 5 code under test panicked.\n\n\
             Examples:\n  epicepoch sim --seeds 1000 --jobs 2\n  epicepoch sim --seed 7 --trace",
        )
        .arg(
            number("seeds", "N", "How many seeds [default: 100; 1 with --seed]")
                .value_parser(value_parser!(u64).range(1..)),
        )
        .arg(number("seed", "S", "The first seed [default: drawn, and printed]"))
        .arg(
            number("jobs", "K", "Threads, each with its own seeds, 1 to 256 [default: 1]")
                .value_parser(value_parser!(u64).range(1..=256)),
        )
        .arg(number("seconds", "T", "Simulated seconds with faults, per seed [default: 60]"))
        .arg(
            number("nodes", "COUNT", "First voters, 1 to 7 [default: drawn per seed]")
                .value_parser(value_parser!(u64).range(1..=7)),
        )
        .arg(switch("trace", "Print every event"))
        .arg(switch("forward", "Nodes that do not lead send requests on to the leader, in every run"))
        .arg(switch("real-storage", "Members' disks hold the database of production, in every run"))
        .arg(
            Arg::new("plant")
                .long("plant")
                .value_name("BUG")
                .hide(!cfg!(debug_assertions))
                .help("Plant a bug around the core for the checkers to find (debug builds only)"),
        )
}

pub(crate) fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let number = |name: &str| matches.get_one::<u64>(name).copied();
    let (seed, is_traced) = (number("seed"), matches.get_flag("trace"));
    let first = seed.unwrap_or_else(fresh_seed);
    let count = number("seeds").unwrap_or(if seed.is_some() { 1 } else { 100 });
    let count = count.min((u64::MAX - first).max(1));
    let options = Options {
        seconds: number("seconds").unwrap_or(60),
        nodes: number("nodes"),
        is_real: matches.get_flag("real-storage").then_some(true),
        plant: plant(matches)?,
        forwards: matches.get_flag("forward"),
        trace_len: if is_traced { TRACE_LEN } else { 0 },
        ..Options::new(first)
    };
    // This line is printed first, so that the seed is known even if the run never ends.
    let last = first + (count - 1);
    let _unread =
        writeln!(std::io::stderr(), "begins with seed {first}, ends with {last} ({BUILD})");
    // A panic of the code under test is one of the results, which are reported below. So the hook
    // that prints panics is replaced by one that does nothing.
    panic::set_hook(Box::new(|_| {}));
    // A trace is long, so only one seed runs at a time.
    let jobs = if is_traced { 1 } else { number("jobs").unwrap_or(1).min(count) };
    let started = Instant::now();
    let sum = thread::scope(|scope| {
        // Thread k runs the seeds k, k + jobs, and so on. So reading from the threads in turn gives
        // the seeds in order.
        let outcomes = |job| {
            let (tell, told) = sync_channel(if is_traced { 0 } else { AHEAD_MAX });
            scope.spawn(move || run_every(job, jobs, count, options, &tell));
            told
        };
        let told: Vec<Receiver<Outcome>> = (0..jobs).map(outcomes).collect();
        add_up(&told, count, options)
    })?;
    let mut out = output::account();
    writeln!(out, "{}", sum.summary)?;
    if let Some(Failed { seed, failure, hash }) = sum.failed {
        return tell(&mut out, Options { seed, ..options }, &failure, hash);
    }
    let elapsed = started.elapsed().as_secs_f64();
    writeln!(out, "seeds {first} to {}, trace hash {:016x}", first + (count - 1), sum.hash)?;
    writeln!(out, "no violation; {elapsed:.1} s, {:.1} seeds/s", count as f64 / elapsed)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the `job`-th seed and every `jobs`-th one after it, until the receiver is dropped.
fn run_every(job: u64, jobs: u64, count: u64, options: Options, tell: &SyncSender<Outcome>) {
    for at in (job..count).step_by(jobs as usize) {
        let outcome = run_seed(Options { seed: options.seed + at, ..options });
        if tell.send(outcome).is_err() {
            return;
        }
    }
}

/// The sum of all outcomes, or of those up to the first failure.
#[derive(Default)]
struct Sum {
    summary: Summary,
    hash: u64,
    failed: Option<Failed>,
}

struct Failed {
    seed: u64,
    failure: RunFailure,
    hash: u64,
}

fn add_up(told: &[Receiver<Outcome>], count: u64, options: Options) -> Result<Sum, Failure> {
    let mut out = output::account();
    let mut progress = Progress::new(count);
    let mut sum = Sum::default();
    for (at, told) in (0..count).zip(told.iter().cycle()) {
        let outcome =
            told.recv().map_err(|_| anyhow::anyhow!("a thread of the simulator ended"))?;
        sum.summary.add(&outcome.summary);
        sum.hash = sum.hash.rotate_left(1) ^ outcome.hash;
        if options.trace_len > 0 {
            for line in &outcome.trace {
                writeln!(out, "{line}")?;
            }
        }
        if let Some(failure) = outcome.failure {
            sum.failed = Some(Failed { seed: options.seed + at, failure, hash: outcome.hash });
            break;
        }
        progress.tell(at + 1);
    }
    Ok(sum)
}

/// Shows progress on a terminal.
struct Progress {
    count: u64,
    started: Instant,
    told: Option<Instant>,
}

impl Progress {
    fn new(count: u64) -> Self {
        let now = Instant::now();
        Self { count, started: now, told: std::io::stderr().is_terminal().then_some(now) }
    }

    fn tell(&mut self, done: u64) {
        let Some(told) = self.told.filter(|told| told.elapsed() >= PROGRESS) else { return };
        let rate = done as f64 / self.started.elapsed().as_secs_f64();
        eprint!("\r{done} of {} seeds, {rate:.1} per second\x1b[K", self.count);
        self.told = Some(told + PROGRESS);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.told.is_some_and(|told| told > self.started) {
            eprint!("\r\x1b[K");
        }
    }
}

fn tell(
    out: &mut impl Write,
    options: Options,
    failure: &RunFailure,
    hash: u64,
) -> Result<ExitCode, Failure> {
    if options.trace_len == 0 {
        // The same seed gives the same run, so it runs again to print its events.
        for line in run_seed(Options { trace_len: FAILURE_TRACE_LEN, ..options }).trace {
            writeln!(out, "{line}")?;
        }
    }
    let Options { seed, seconds, nodes, is_real, plant, forwards, .. } = options;
    writeln!(out, "\nseed {seed}: {failure}\ntrace hash {hash:016x}")?;
    let nodes = nodes.map(|nodes| format!(" --nodes {nodes}")).unwrap_or_default();
    let forward = if forwards { " --forward" } else { "" };
    let real = if is_real == Some(true) { " --real-storage" } else { "" };
    let plant = plant.map(|plant| format!(" --plant {}", plant.name())).unwrap_or_default();
    writeln!(
        out,
        "replay ({BUILD}): epicepoch sim --seed {seed} --seconds {seconds}{nodes}{real}{forward}{plant} --trace"
    )?;
    Ok(ExitCode::from(exit_code(failure)))
}

const fn exit_code(failure: &RunFailure) -> u8 {
    match failure {
        RunFailure::Safety(_) => SAFETY,
        RunFailure::Liveness(_) => LIVENESS,
        RunFailure::Crash(_) => CRASH,
    }
}

fn plant(matches: &ArgMatches) -> Result<Option<Plant>, Failure> {
    let Some(name) = matches.get_one::<String>("plant") else { return Ok(None) };
    if !cfg!(debug_assertions) {
        return Err(Failure::usage(anyhow::anyhow!(
            "--plant: a release build has no bugs to plant"
        )));
    }
    let names = || Plant::all().map(Plant::name).collect::<Vec<_>>().join(", ");
    let plant = Plant::named(name);
    let plant = plant.ok_or_else(|| anyhow::anyhow!("--plant {name}: not one of {}", names()));
    plant.map(Some).map_err(Failure::usage)
}

/// Returns a seed from the clock; it is probably new.
fn fresh_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_micros() as u64 % 1_000_000_000_000
}

#[cfg(test)]
mod tests {
    use epicepoch_sim::history::{Invariant, Violation};

    use super::*;

    #[test]
    fn exit_codes_tell_safety_liveness_and_crash_apart() {
        let violation = Violation { invariant: Invariant::Unique, what: String::new() };
        assert_eq!(exit_code(&RunFailure::Safety(violation)), 3);
        assert_eq!(exit_code(&RunFailure::Liveness(String::new())), 4);
        assert_eq!(exit_code(&RunFailure::Crash(String::new())), 5);
    }
}
