//! Runs in which nodes that do not lead send requests on to the leader. No invariant is violated
//! without a planted bug, and each bug of a forwarder is found.

use std::collections::BTreeMap;

use epicepoch_sim::plant::Plant;
use epicepoch_sim::run::{Failure, Options, run};
use epicepoch_sim::summary::Summary;

const SEEDS: u64 = 30;
/// What these runs must include.
const KINDS: [&str; 7] = [
    "answer over an ended connection",
    "answer to a forwarder lost",
    "client of a forwarder gone",
    "frame to the leader lost",
    "request answered through the leader",
    "request sent on",
    "request sent on again",
];

#[test]
fn clusters_whose_nodes_forward_keep_every_invariant() {
    let mut summary = Summary::default();
    for seed in 0..SEEDS {
        let outcome = run(Options { forwards: true, seconds: 30, ..Options::new(seed) });
        let replay = format!("epicepoch sim --forward --seconds 30 --seed {seed}");
        assert_eq!(outcome.failure, None, "seed {seed}: replay with {replay}");
        summary.add(&outcome.summary);
    }
    println!("{summary}");
    let missing = KINDS.iter().filter(|kind| !summary.faults.contains_key(*kind));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&&str>::new());
}

#[test]
fn each_bug_of_a_forwarder_is_found() {
    if !cfg!(debug_assertions) {
        return;
    }
    let mut found = BTreeMap::new();
    for plant in Plant::all().filter(|plant| plant.is_in_forwarder()) {
        let broken = (0..20).find_map(|seed| {
            let outcome = run(Options { plant: Some(plant), ..Options::new(seed) });
            match outcome.failure {
                Some(Failure::Safety(violation)) => Some((seed, violation.invariant)),
                Some(Failure::Crash(what)) => panic!("{}: {what}", plant.name()),
                Some(Failure::Liveness(_)) | None => None,
            }
        });
        found.insert(plant.name(), broken.unwrap_or_else(|| panic!("{} not found", plant.name())));
    }
    println!("{found:?}");
    assert_eq!(found.len(), 4);
}
