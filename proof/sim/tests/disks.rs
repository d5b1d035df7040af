//! Whole clusters with the production database on disks that tear writes, flip bits and fill up.
//! Every promise is kept, and every kind of fault occurs.

use epicepoch_sim::run::{Options, run};
use epicepoch_sim::summary::Summary;

/// Seeds with the real database. They take some ten seconds in a development build.
const SEEDS: u64 = 30;

/// In each run, disks tear writes, flip bits and fill up.
#[test]
fn clusters_on_the_real_database_lose_nothing_on_faulty_disks() {
    let mut summary = Summary::default();
    for seed in 0..SEEDS {
        let outcome = run(Options { is_real: Some(true), ..Options::new(seed) });
        let replay = format!("replay with epicepoch sim --real-storage --seed {seed}");
        assert_eq!(outcome.failure, None, "{replay}");
        summary.add(&outcome.summary);
    }
    println!("{summary}");
    assert_eq!(summary.real, SEEDS);
    for fault in [
        "commit torn",
        "disk bit flipped",
        "start refused: damaged disk",
        "start on a damaged disk: harmless",
        "no room for a write",
        "start refused: full disk",
        "sync failed",
    ] {
        assert!(summary.faults.contains_key(fault), "{fault}: {:?}", summary.faults);
    }
}

#[test]
fn the_same_seed_gives_the_same_run_on_the_real_database() {
    let options = Options { is_real: Some(true), seconds: 20, ..Options::new(3) };
    assert_eq!(run(options).hash, run(options).hash);
}
