//! A cluster whose faults the bytes say, with every checker of the simulator on: no panic, no
//! broken invariant, and when all has healed it answers.

use epicepoch_sim::script;

/// Runs the script.
pub(crate) fn cluster(data: &[u8]) {
    if let Err(failure) = script::run(data) {
        panic!("{failure}");
    }
}
