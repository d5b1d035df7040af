//! Runs seeds of the default generator, as `epicepoch sim` does, without the rest of the binary.
//! `scripts/coverage` counts the lines that these runs cover. Arguments: the first seed and the
//! number of seeds. A build with planted bugs takes the name of a bug as a third argument, and
//! shows which of the seeds find that bug. A single seed that fails also prints its trace. With
//! `--unwatched` at the end, the monitor of the specification is off. With `--intervals` at the end,
//! the seeds are of interval mode, and the third argument is one of its planted bugs, in any build.
//! With `--modes`, they are of the changes between the modes, in the same way.

use std::process::ExitCode;

use epicepoch_sim::intervals::{IntervalCounts, IntervalPlant, run_intervals};
use epicepoch_sim::modes::{ModeCounts, ModePlant, run_modes};
use epicepoch_sim::plant::Plant;
use epicepoch_sim::run::{Options, run};
use epicepoch_sim::summary::Summary;

/// The allocator of `epicepoch sim`: with the system's, a third of a run was allocations.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_of_intervals = arguments.pop_if(|last| last == "--intervals").is_some();
    let is_of_modes = arguments.pop_if(|last| last == "--modes").is_some();
    let is_watched = arguments.pop_if(|last| last == "--unwatched").is_none();
    let numbers: Option<Vec<u64>> = arguments.iter().take(2).map(|it| it.parse().ok()).collect();
    let Some([first, count]) = numbers.as_deref() else {
        eprintln!("usage: seeds FIRST COUNT [BUG] [--unwatched | --intervals | --modes]");
        return ExitCode::from(2);
    };
    if is_of_intervals {
        return intervals(*first..first.saturating_add(*count), arguments.get(2));
    }
    if is_of_modes {
        return modes(*first..first.saturating_add(*count), arguments.get(2));
    }
    let options = |seed| Options { is_watched, ..Options::new(seed) };
    if let Some(name) = arguments.get(2) {
        return find(name, *first..first.saturating_add(*count), is_watched);
    }
    let mut summary = Summary::default();
    let (mut hash, mut failures) = (0_u64, 0);
    for seed in *first..first.saturating_add(*count) {
        let outcome = run(options(seed));
        hash = hash.rotate_left(1) ^ outcome.hash;
        if let Some(failure) = outcome.failure {
            if *count == 1 {
                print_trace(options(seed));
            }
            eprintln!("seed {seed}: {failure}");
            failures += 1;
        }
        summary.add(&outcome.summary);
    }
    println!("{summary}\ntrace hash {hash:016x}");
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs seeds of interval mode, up to the first violation.
fn intervals(seeds: std::ops::Range<u64>, plant: Option<&String>) -> ExitCode {
    let found = plant.map(|name| IntervalPlant::named(name));
    if found == Some(None) {
        let names = IntervalPlant::ALL.iter().map(|it| it.text().0);
        eprintln!("the planted bugs are {}", names.collect::<Vec<_>>().join(" "));
        return ExitCode::from(2);
    }
    let mut sum = IntervalCounts::default();
    for seed in seeds {
        let (counts, violation) = run_intervals(seed, found.flatten());
        sum.add(&counts);
        if let Some(violation) = violation {
            println!("seed {seed}: {violation}");
            return ExitCode::FAILURE;
        }
    }
    println!("{sum:?}");
    ExitCode::SUCCESS
}

/// Runs seeds of the changes between the modes, up to the first violation.
fn modes(seeds: std::ops::Range<u64>, plant: Option<&String>) -> ExitCode {
    let found = plant.map(|name| ModePlant::named(name));
    if found == Some(None) {
        let names = ModePlant::ALL.iter().map(|it| it.text().0);
        eprintln!("the planted bugs are {}", names.collect::<Vec<_>>().join(" "));
        return ExitCode::from(2);
    }
    let mut sum = ModeCounts::default();
    for seed in seeds {
        let (counts, violation) = run_modes(seed, found.flatten());
        sum.add(&counts);
        if let Some(violation) = violation {
            println!("seed {seed}: {violation}");
            return ExitCode::FAILURE;
        }
    }
    println!("{sum:?}");
    ExitCode::SUCCESS
}

/// Prints the last events of a run that failed.
fn print_trace(options: Options) {
    for line in run(Options { trace_len: TRACE_LEN, ..options }).trace {
        println!("{line}");
    }
}

/// A printed trace has at most this many events: the last ones.
const TRACE_LEN: usize = 20_000;

/// Prints which of these seeds find a planted bug.
fn find(name: &str, seeds: std::ops::Range<u64>, is_watched: bool) -> ExitCode {
    let Some(plant) = Plant::named(name).filter(|_| cfg!(debug_assertions)) else {
        eprintln!("no planted bug {name} in this build");
        return ExitCode::from(2);
    };
    let is_single = seeds.end - seeds.start == 1;
    for seed in seeds {
        let options = Options { plant: Some(plant), is_watched, ..Options::new(seed) };
        if let Some(failure) = run(options).failure {
            if is_single {
                print_trace(options);
            }
            println!("seed {seed}: {failure}");
        }
    }
    ExitCode::SUCCESS
}
