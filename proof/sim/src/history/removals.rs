//! S12: a removed node keeps its vote until a majority of the other voters has confirmed the
//! removal. It waits at most ten seconds for them, because they may be gone.

use std::collections::BTreeSet;

use epicepoch_core::publication::Identity;
use epicepoch_core::quorum::Voters;
use epicepoch_wire::{BootId, NodeId};

use super::{History, Invariant};
use crate::parameters::SECOND;

/// The members that have confirmed a node's removal to one run of that node. `since_ns` is the time
/// of the first confirmation on the node's own clock.
#[derive(Debug)]
pub(super) struct Confirmed {
    by: BTreeSet<NodeId>,
    since_ns: u64,
}

impl History {
    /// A member has applied the removal of a node, and has told the node's run `boot`.
    pub(crate) fn confirms_removal(&mut self, boot: BootId, by: NodeId, monotonic_ns: u64) {
        let first = Confirmed { by: BTreeSet::new(), since_ns: monotonic_ns };
        self.removals.entry(boot).or_insert(first).by.insert(by);
    }

    /// A removed node ends by itself, and `voters` are the voters that it knows. Checks that it was
    /// allowed to end.
    pub(crate) fn ends_removed(&mut self, who: Identity, voters: &Voters, monotonic_ns: u64) {
        let others: BTreeSet<NodeId> =
            voters.iter().map(|(node, _)| node).filter(|node| *node != who.node).collect();
        let confirmed = self.removals.get(&who.boot);
        let is_over = confirmed.is_some_and(|confirmed| {
            let count = confirmed.by.intersection(&others).count();
            let waited_ns = monotonic_ns.saturating_sub(confirmed.since_ns);
            count > others.len() / 2 || waited_ns >= WAIT_MAX_NS
        });
        if !is_over {
            let what = format!("{who:?} ends as removed, after {confirmed:?} of {others:?}");
            self.violate(Invariant::CaughtUp, || what);
        }
    }
}

/// Longest wait of a removed node. It is not read from the core, because the core's value may be
/// wrong.
const WAIT_MAX_NS: u64 = 10 * SECOND;
