//! Whether the monitor sees what it must see: every rule is checked in runs of the default
//! generator. `proof/spec/places.py` compares the rules with those of the specifications.

use std::collections::BTreeSet;
use std::ops::Range;
use std::thread;

use crate::run::{Options, run};

/// Seeds of the default generator.
const SEEDS: u64 = 60;

/// The names of rules in the sources of the monitor.
fn names() -> BTreeSet<&'static str> {
    let sources = [
        include_str!("elections.rs"),
        include_str!("raft_log.rs"),
        include_str!("ranges.rs"),
        include_str!("rounds.rs"),
    ];
    let quoted = sources.into_iter().flat_map(|source| source.split('"'));
    let is_name = |it: &&str| it.split('/').count() == 3 && !it.contains([' ', '\n']);
    quoted.filter(is_name).collect()
}

#[test]
fn every_rule_is_checked_in_runs_without_a_bug() {
    let names = names();
    assert!(names.len() > 140, "{} rules", names.len());
    let never_checked = |seeds: Range<u64>| {
        let mut left = names.clone();
        for seed in seeds {
            let outcome = run(Options::new(seed));
            assert_eq!(outcome.failure, None, "seed {seed}");
            left.retain(|name| !outcome.checked.contains(name));
        }
        left
    };
    let left = thread::scope(|scope| {
        let half = scope.spawn(|| never_checked(0..SEEDS / 2));
        &never_checked(SEEDS / 2..SEEDS) & &half.join().expect("no seed fails")
    });
    assert!(left.is_empty(), "never checked: {left:?}");
}

#[test]
fn a_run_without_the_monitor_is_the_same_run() {
    for seed in 0..3 {
        let options = Options { seconds: 20, ..Options::new(seed) };
        let outcome = run(Options { is_watched: false, ..options });
        assert!(outcome.checked.is_empty());
        assert_eq!(outcome.hash, run(options).hash, "seed {seed}");
    }
}
