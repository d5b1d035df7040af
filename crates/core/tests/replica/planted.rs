//! The checker finds bugs: every planted bug is caught within the seeds that it is given here, by
//! what an observer outside sees or by an assertion of the core. A checker that has never caught
//! anything proves nothing.

use crate::chaos;
use crate::support::Plant;

/// Seeds within which a planted bug must be caught.
const fn seeds(plant: Plant) -> u64 {
    match plant {
        Plant::Unconfirmed => 20,
        Plant::LateJoin => 400,
        Plant::AnyReplyCounts => 400,
        Plant::LatePromise => 100,
        Plant::RestartPromise => 1_000,
        Plant::KeptRange => 20,
        Plant::OldVoters => 4_000,
        Plant::WipedDisk => 400,
        Plant::LyingDisk => 400,
    }
}

#[test]
fn every_planted_bug_is_caught() {
    let mut missed = vec![];
    for plant in Plant::ALL {
        let caught = (0..seeds(plant)).find_map(|seed| {
            let what = chaos::run(seed, Some(plant), false).err()?;
            Some((seed, what))
        });
        #[expect(clippy::disallowed_macros, reason = "what was caught, and how soon")]
        match caught {
            Some((seed, what)) => {
                println!("{plant:?}: seed {seed}: {}", what.lines().next().unwrap_or_default());
            }
            None => missed.push(plant),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
