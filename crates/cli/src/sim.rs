//! `epicepoch sim`: the simulator on the command line. It runs seeds, tells what was exercised,
//! and for the first failure its seed, the invariant and the story of the last events.

use std::io::{IsTerminal, Write};
use std::panic;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::ArgMatches;
use epicepoch_sim::plant::Plant;
use epicepoch_sim::run::{Failure as RunFailure, Options, Outcome, run as run_seed};
use epicepoch_sim::summary::Summary;

use crate::failure::Failure;
use crate::output;

/// Events of the story of a failure.
const STORY_LEN: usize = 200;
/// Events that `--trace` keeps: more than a run of an hour has.
const TRACE_LEN: usize = 100_000_000;
/// Outcomes that a thread may be ahead of the others by: then it waits for them.
const AHEAD_MAX: usize = 64;
/// How often a terminal is told how far it is.
const PROGRESS: Duration = Duration::from_secs(1);
/// Of which kind of build this is. A seed is a run of one kind: debug assertions compact logs sooner.
const BUILD: &str = if cfg!(debug_assertions) { "debug build" } else { "release build" };
/// Exit codes: an invariant was broken; a healed cluster did not answer; code under test panicked.
const SAFETY: u8 = 3;
const LIVENESS: u8 = 4;
const CRASH: u8 = 5;

pub(crate) fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let number = |name: &str| matches.get_one::<u64>(name).copied();
    let (seed, is_traced) = (number("seed"), matches.get_flag("trace"));
    let first = seed.unwrap_or_else(fresh_seed);
    let count = number("seeds").unwrap_or(if seed.is_some() { 1 } else { 100 });
    let count = count.min((u64::MAX - first).max(1));
    let options = Options {
        seed: first,
        seconds: number("seconds").unwrap_or(60),
        nodes: number("nodes"),
        is_real: matches.get_flag("real-storage").then_some(true),
        plant: plant(matches)?,
        story_len: if is_traced { TRACE_LEN } else { 0 },
    };
    // Whatever comes of it, even of a run that never ends: the seed is known.
    let last = first + (count - 1);
    let _unread =
        writeln!(std::io::stderr(), "begins with seed {first}, ends with {last} ({BUILD})");
    // A panic of the code under test is a result here, and told below.
    panic::set_hook(Box::new(|_| {}));
    // A trace is long: one at a time.
    let jobs = if is_traced { 1 } else { number("jobs").unwrap_or(1).min(count) };
    let started = Instant::now();
    let sum = thread::scope(|scope| {
        // Each thread has every so many-th seed, so that asking them in turn gives all in their order.
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

/// Runs the `job`-th seed and every `jobs`-th after it, until nobody listens any more.
fn run_every(job: u64, jobs: u64, count: u64, options: Options, tell: &SyncSender<Outcome>) {
    for at in (job..count).step_by(jobs as usize) {
        let outcome = run_seed(Options { seed: options.seed + at, ..options });
        if tell.send(outcome).is_err() {
            return;
        }
    }
}

/// What came of all seeds, or of those up to the first that failed.
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
        if options.story_len > 0 {
            for line in &outcome.story {
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

/// Tells whoever looks at a terminal how far it is; nothing else.
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
    if options.story_len == 0 {
        // The same seed gives the same run: again, with a story.
        for line in run_seed(Options { story_len: STORY_LEN, ..options }).story {
            writeln!(out, "{line}")?;
        }
    }
    let Options { seed, seconds, nodes, is_real, plant, .. } = options;
    writeln!(out, "\nseed {seed}: {failure}\ntrace hash {hash:016x}")?;
    let nodes = nodes.map(|nodes| format!(" --nodes {nodes}")).unwrap_or_default();
    let real = if is_real == Some(true) { " --real-storage" } else { "" };
    let plant = plant.map(|plant| format!(" --plant {}", plant.name())).unwrap_or_default();
    writeln!(
        out,
        "replay ({BUILD}): epicepoch sim --seed {seed} --seconds {seconds}{nodes}{real}{plant} --trace"
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
            "--plant: a release build has no planted bugs"
        )));
    }
    let names = || Plant::all().map(Plant::name).collect::<Vec<_>>().join(", ");
    let plant = Plant::named(name);
    let plant = plant.ok_or_else(|| anyhow::anyhow!("--plant {name}: not one of {}", names()));
    plant.map(Some).map_err(Failure::usage)
}

/// A seed that was hardly used before; it is printed, so that the run can be repeated.
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
