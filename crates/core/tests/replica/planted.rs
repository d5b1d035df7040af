//! The checker finds bugs: every planted bug is caught within the seeds that it is given here, by
//! what is checked from outside; an assertion of the core that fires says nothing about the checks. A
//! checker that has never caught
//! anything proves nothing.

use crate::chaos;
use crate::support::Plant;

/// Seeds within which a planted bug must be caught.
const fn seeds(plant: Plant) -> u64 {
    match plant {
        Plant::Unconfirmed | Plant::KeptRange => 20,
        Plant::LatePromise => 100,
        Plant::LateJoin | Plant::AnyReplyCounts | Plant::WipedDisk | Plant::LyingDisk => 400,
        Plant::RestartPromise => 1_000,
        Plant::OldVoters => 4_000,
    }
}

#[test]
fn every_planted_bug_is_caught() {
    let mut missed = vec![];
    for plant in Plant::ALL {
        let caught = (0..seeds(plant)).find_map(|seed| {
            let what = chaos::run(seed, Some(plant), false).err()?;
            (!what.starts_with(chaos::PANIC)).then_some((seed, what))
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
