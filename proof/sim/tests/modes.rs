//! The changes between quorum mode and interval mode in their own simulator: runs without a planted
//! bug break no rule and meet every kind of change, each planted bug is found, and a seed replays a
//! run.

use epicepoch_sim::modes::{ModeCounts, ModePlant, run_modes};

/// Seeds of the test without a planted bug.
const SEEDS: u64 = 1_000;
/// Each planted bug is found within this many seeds.
const SEEDS_OF_PLANTS: u64 = 2_000;

#[test]
fn clusters_whose_mode_changes_in_both_directions_keep_every_rule() {
    let mut sum = ModeCounts::default();
    for seed in 0..SEEDS {
        let (counts, violation) = run_modes(seed, None);
        assert_eq!(violation, None, "seed {seed}");
        sum.add(&counts);
    }
    println!("{sum:?}");
    assert!(sum.all().iter().all(|count| *count > SEEDS / 20), "{sum:?}");
}

#[test]
fn every_planted_bug_of_the_changes_of_the_mode_is_found() {
    for plant in ModePlant::ALL {
        let found = (0..SEEDS_OF_PLANTS).find_map(|seed| {
            let (_, violation) = run_modes(seed, Some(*plant));
            violation.map(|violation| (seed, violation))
        });
        let Some((seed, violation)) = found else { panic!("{plant:?} is not found") };
        println!("{:26} after {:4} seeds: {violation}", plant.text().0, seed + 1);
    }
}

#[test]
fn a_seed_replays_a_run() {
    for plant in [None, Some(ModePlant::StoppedForgotten)] {
        assert_eq!(run_modes(7, plant), run_modes(7, plant));
    }
    assert_ne!(run_modes(7, None), run_modes(8, None));
}
