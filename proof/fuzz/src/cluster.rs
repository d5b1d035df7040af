//! A simulated cluster whose faults come from the bytes, with every checker on. It must not panic
//! or break an invariant, and it must answer after all faults have healed.

use epicepoch_sim::script;

/// Runs the bytes as a script.
pub(crate) fn cluster(data: &[u8]) {
    if let Err(failure) = script::run(data) {
        panic!("{failure}");
    }
}
