//! The conditions of network, disks and workers that last until all faults heal. Single faults come
//! on top of them.

use crate::parameters::MS;

/// Delays and losses. Chances are per thousand messages or transactions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetworkConditions {
    pub(crate) delay_ns: (u64, u64),
    pub(crate) lost: u32,
    pub(crate) doubled: u32,
    /// Chance that a Raft message arrives at another node, as when a node has taken another's
    /// address.
    pub(crate) astray: u32,
    /// Chance that a message is delayed much more than others: by up to `late_ns` more.
    pub(crate) late: u32,
    pub(crate) late_ns: u64,
    /// Chance that a transaction also includes all writes that were queued after it began.
    pub(crate) together: u32,
    /// The longest time between two steps of a worker on the same request.
    pub(crate) step_ns: u64,
    /// Longest time that a round may take before it fails.
    pub(crate) round_ns: u64,
}

impl NetworkConditions {
    /// Every message arrives once, after a millisecond.
    pub(crate) const FAIR: Self = Self {
        delay_ns: (MS, MS),
        lost: 0,
        doubled: 0,
        astray: 0,
        late: 0,
        late_ns: 0,
        together: 0,
        step_ns: 0,
        round_ns: 200 * MS,
    };
}
