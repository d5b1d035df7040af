//! When a removed node may end. Members that have not applied its removal may still need its vote.
//! So the node runs until a majority of the other voters has confirmed the removal. A voter
//! confirms the removal when it has applied it.

use std::collections::BTreeSet;

use epicepoch_wire::NodeId;

use crate::quorum::Voters;

/// A removed node waits at most this long for the majority, nanoseconds. The voters that it knows
/// may be gone.
const WAIT_MAX_NS: u64 = 10_000_000_000;

/// The members that have confirmed this node's removal, and when the first of them did.
#[derive(Debug, Default)]
pub(super) struct RemovalNotice {
    confirmed_by: BTreeSet<NodeId>,
    since_ns: u64,
}

impl RemovalNotice {
    /// Records that a member confirms the removal. Returns whether it is the first to do so.
    pub(super) fn record(&mut self, by: NodeId, now_ns: u64) -> bool {
        let is_first = self.confirmed_by.is_empty();
        if is_first {
            self.since_ns = now_ns;
        }
        self.confirmed_by.insert(by);
        is_first
    }

    /// Whether this node (`me`) may end. `voters` may still contain `me`, or no longer.
    pub(super) fn is_over(&self, me: NodeId, voters: &Voters, now_ns: u64) -> bool {
        if self.confirmed_by.is_empty() {
            return false;
        }
        let others = || voters.iter().map(|(node, _)| node).filter(|node| *node != me);
        let confirmed = others().filter(|node| self.confirmed_by.contains(node)).count();
        let is_late = now_ns.saturating_sub(self.since_ns) >= WAIT_MAX_NS;
        confirmed * 2 > others().count() || is_late
    }
}

#[cfg(test)]
mod tests {
    use epicepoch_wire::StoreId;

    use super::*;

    fn voters(ids: &[u64]) -> Voters {
        let ids: Vec<_> = ids.iter().map(|id| NodeId(*id)).collect();
        Voters::new(&ids, &[], |id| StoreId(u128::from(id.0)))
    }

    #[test]
    fn a_removed_node_stays_until_a_majority_of_the_others_confirms_it() {
        // The voters after the node has applied its own removal, and before.
        for voters in [voters(&[2, 3, 4, 5]), voters(&[1, 2, 3, 4, 5])] {
            let mut notice = RemovalNotice::default();
            assert!(!notice.is_over(NodeId(1), &voters, u64::MAX), "no confirmation");
            assert!(notice.record(NodeId(2), 7));
            assert!(!notice.record(NodeId(2), 8));
            notice.record(NodeId(9), 8);
            notice.record(NodeId(3), 8);
            assert!(!notice.is_over(NodeId(1), &voters, 9), "two of four, and no voter");
            notice.record(NodeId(4), 9);
            assert!(notice.is_over(NodeId(1), &voters, 9));
        }
    }

    #[test]
    fn a_removed_node_does_not_wait_for_ever() {
        let mut notice = RemovalNotice::default();
        notice.record(NodeId(2), 7);
        assert!(!notice.is_over(NodeId(1), &voters(&[6, 7, 8]), 9));
        let late = 7 + WAIT_MAX_NS;
        assert!(notice.is_over(NodeId(1), &voters(&[6, 7, 8]), late), "they may be gone, too");
    }
}
