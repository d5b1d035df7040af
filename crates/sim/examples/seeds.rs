//! Seeds of the default generator, as `epicepoch sim` runs them, without the rest of the binary:
//! what `scripts/coverage` counts lines of. Arguments: the first seed, and how many.

use std::process::ExitCode;

use epicepoch_sim::run::{Options, run};
use epicepoch_sim::summary::Summary;

fn main() -> ExitCode {
    let numbers: Option<Vec<u64>> = std::env::args().skip(1).map(|it| it.parse().ok()).collect();
    let Some([first, count]) = numbers.as_deref() else {
        eprintln!("usage: seeds FIRST COUNT");
        return ExitCode::from(2);
    };
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
