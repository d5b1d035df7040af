//! Target of a simulated cluster. The bytes decide its faults, and every checker is on. The cluster
//! must not panic or break an invariant, and must answer after all faults have healed.

use epicepoch_sim::script;

/// Runs the bytes as a script.
pub(crate) fn cluster(data: &[u8]) {
    if let Err(failure) = script::run(data) {
        panic!("{failure}");
    }
}
