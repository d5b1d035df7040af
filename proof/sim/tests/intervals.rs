//! Interval mode in its own simulator: runs without a planted bug break no rule and meet every kind
//! of fault, each planted bug is found, and a seed replays a run.

use epicepoch_sim::intervals::{IntervalCounts, IntervalPlant, run_intervals};

/// Seeds of the test without a planted bug.
const SEEDS: u64 = 2_000;
/// Each planted bug is found within this many seeds.
const SEEDS_OF_PLANTS: u64 = 20_000;

#[test]
fn nodes_whose_clocks_drift_step_and_are_disrupted_keep_every_rule() {
    let mut sum = IntervalCounts::default();
    for seed in 0..SEEDS {
        let (counts, violation) = run_intervals(seed, None);
        assert_eq!(violation, None, "seed {seed}");
        sum.add(&counts);
    }
    println!("{sum:?}");
    let IntervalCounts { ended, refused, behind_mark, disrupted, restarts, stops, .. } = sum;
    let IntervalCounts { of_quorum, reports, contradicted, unheard, .. } = sum;
    let all = [ended / 10, refused, behind_mark, disrupted, restarts, stops];
    let all = [&all[..], &[of_quorum, reports, contradicted, unheard]].concat();
    assert!(all.iter().all(|count| *count > SEEDS / 20), "{all:?}");
}

#[test]
fn every_planted_bug_of_interval_mode_is_found() {
    for plant in IntervalPlant::ALL {
        let found = (0..SEEDS_OF_PLANTS).find_map(|seed| {
            let (_, violation) = run_intervals(seed, Some(*plant));
            violation.map(|violation| (seed, violation))
        });
        let Some((seed, violation)) = found else { panic!("{plant:?} is not found") };
        println!("{:18} after {:4} seeds: {violation}", plant.text().0, seed + 1);
    }
}

#[test]
fn a_seed_replays_a_run() {
    for plant in [None, Some(IntervalPlant::NoWait)] {
        assert_eq!(run_intervals(7, plant), run_intervals(7, plant));
    }
    assert_ne!(run_intervals(7, None), run_intervals(8, None));
}
