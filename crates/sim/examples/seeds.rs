//! Seeds of the default generator, as `epicepoch sim` runs them, without the rest of the binary:
//! what `scripts/coverage` counts lines of. Arguments: the first seed, and how many; then, in a build
//! that has planted bugs, the name of one, to see which of the seeds find it.

use std::process::ExitCode;

use epicepoch_sim::plant::Plant;
use epicepoch_sim::run::{Options, run};
use epicepoch_sim::summary::Summary;

fn main() -> ExitCode {
    let numbers: Option<Vec<u64>> =
        std::env::args().skip(1).take(2).map(|it| it.parse().ok()).collect();
    let plant = std::env::args().nth(3);
    let Some([first, count]) = numbers.as_deref() else {
        eprintln!("usage: seeds FIRST COUNT [BUG]");
        return ExitCode::from(2);
    };
    if let Some(name) = plant {
        return find(&name, *first..first.saturating_add(*count));
    }
    let mut summary = Summary::default();
    let mut hash = 0_u64;
    for seed in *first..first.saturating_add(*count) {
        let outcome = run(Options::new(seed));
        hash = hash.rotate_left(1) ^ outcome.hash;
        if let Some(failure) = outcome.failure {
            eprintln!("seed {seed}: {failure}");
            return ExitCode::FAILURE;
        }
        summary.add(&outcome.summary);
    }
    println!("{summary}\ntrace hash {hash:016x}");
    ExitCode::SUCCESS
}

/// Which of these seeds find a planted bug.
fn find(name: &str, seeds: std::ops::Range<u64>) -> ExitCode {
    let Some(plant) = Plant::named(name).filter(|_| cfg!(debug_assertions)) else {
        eprintln!("no planted bug {name} in this build");
        return ExitCode::from(2);
    };
    for seed in seeds {
        let outcome = run(Options { plant: Some(plant), ..Options::new(seed) });
        if let Some(failure) = outcome.failure {
            println!("seed {seed}: {failure}");
        }
    }
    ExitCode::SUCCESS
}
