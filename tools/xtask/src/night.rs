//! Steps of `nightly` that find more the longer they run. Each takes a share of the time that
//! `--minutes` sets.

use std::thread;
use std::time::{Duration, Instant};

use crate::shell::Shell;

/// Minutes if `--minutes` is not given.
pub(crate) const MINUTES: u64 = 1;
/// At least this many fresh seeds are simulated. On a slow machine this may take up to `SLOW` times
/// the share of the seeds.
const SEEDS_MIN: u64 = 200;
const SLOW: u32 = 3;
/// A night of at least this length is long: it has more seeds in each call of the simulator, all
/// tests that cut links, and more seeds with harmless bugs.
const LONG: Duration = Duration::from_mins(30);
/// Seven tests cut a leader's links. One cut in each, with the recovery, takes about this long.
const CUTS: Duration = Duration::from_secs(10);
const CUTS_MAX: u64 = 1000;
/// Least seconds for a target of the fuzzing engine.
const FUZZ_SECONDS_MIN: u64 = 5;

/// Simulates fresh seeds. Some runs are ten times as long, to have messages that are minutes old.
pub(crate) fn seeds(sh: &Shell) -> Result<(), String> {
    let (share, start) = (sh.night * 4 / 10, Instant::now());
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    let sim = format!("target/release/epicepoch sim --jobs {jobs} --seeds");
    let (many, mut seeds) = (if sh.night < LONG { 20 } else { 2000 }, 0);
    while start.elapsed() < share || (seeds < SEEDS_MIN && start.elapsed() < share * SLOW) {
        sh.run(&format!("{sim} {many}"))?;
        sh.run(&format!("{sim} {} --seconds 600", many / 20))?;
        seeds += many + many / 20;
    }
    sh.say(&format!("{seeds} fresh seeds without a violation"));
    if seeds < SEEDS_MIN {
        Err(format!("{seeds} seeds are fewer than {SEEDS_MIN}"))
    } else {
        Ok(())
    }
}

/// Breaks real processes at random.
pub(crate) fn nemesis(sh: &Shell) -> Result<(), String> {
    let seconds = (sh.night * 3 / 10).as_secs();
    sh.run(&format!(
        "EPICEPOCH_NEMESIS_SECONDS={seconds} \
         cargo test --workspace --locked --test cluster nemesis:: -- --nocapture"
    ))
}

/// Cuts the links of leaders, and measures how long no node answers. A short night has one test:
/// the step `tests` has run all of them.
pub(crate) fn links(sh: &Shell) -> Result<(), String> {
    let cuts = ((sh.night * 3 / 10).as_secs() / CUTS.as_secs()).clamp(2, CUTS_MAX);
    let all = "measuring::links::";
    let one = "measuring::links::a_leader_cut_off_silently_is_replaced_and_answers_nothing";
    let tests = if sh.night < LONG { one } else { all };
    sh.run(&format!(
        "EPICEPOCH_OUTAGES={cuts} \
         cargo test --workspace --locked --test cluster {tests} -- --nocapture"
    ))
}

/// Looks for all planted bugs. In a long night the harmless ones run on more seeds.
pub(crate) fn planted(sh: &Shell) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let seeds = if sh.night < LONG { "" } else { "HARMLESS_SEEDS=3000 " };
    sh.run(&format!("{seeds}{} planted", program.display()))
}

/// Runs the fuzzing engine on each target.
pub(crate) fn fuzz(sh: &Shell) -> Result<(), String> {
    let seconds = (sh.night.as_secs() / 300).max(FUZZ_SECONDS_MIN);
    sh.run(&format!("scripts/fuzz all {seconds}"))
}
