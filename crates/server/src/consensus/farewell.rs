//! When a node that was removed may end. Its vote may still be needed by members that have not
//! applied its removal, so it stays until a majority of the voters has said that it is removed; each
//! says so once it has applied that itself.

use std::collections::BTreeSet;
use std::time::Duration;

use epicepoch_core::quorum::Voters;
use epicepoch_wire::NodeId;

/// How long a node that was told of its removal waits for a majority to say the same: those whom it
/// knows may all be gone, too.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a node was told of its own removal.
#[derive(Debug, Default)]
pub(super) struct Farewell {
    said_by: BTreeSet<NodeId>,
    since_ns: u64,
}

impl Farewell {
    /// A member says that this node was removed. Returns whether it is the first one.
    pub(super) fn said(&mut self, by: NodeId, now_ns: u64) -> bool {
        let is_first = self.said_by.is_empty();
        if is_first {
            self.since_ns = now_ns;
        }
        self.said_by.insert(by);
        is_first
    }

    /// Whether `me` may end, one of `voters` or none of them.
    pub(super) fn is_over(&self, me: NodeId, voters: &Voters, now_ns: u64) -> bool {
        if self.said_by.is_empty() {
            return false;
        }
        let others = || voters.iter().map(|(node, _)| node).filter(|node| *node != me);
        let said = others().filter(|node| self.said_by.contains(node)).count();
        let is_late = now_ns.saturating_sub(self.since_ns) >= PATIENCE.as_nanos() as u64;
        said * 2 > others().count() || is_late
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
    fn a_removed_node_stays_until_a_majority_of_the_others_has_said_so() {
        // Whether it has applied its removal or not.
        for voters in [voters(&[2, 3, 4, 5]), voters(&[1, 2, 3, 4, 5])] {
            let mut farewell = Farewell::default();
            assert!(!farewell.is_over(NodeId(1), &voters, u64::MAX), "nobody has said so");
            assert!(farewell.said(NodeId(2), 7));
            assert!(!farewell.said(NodeId(2), 8));
            farewell.said(NodeId(9), 8);
            farewell.said(NodeId(3), 8);
            assert!(!farewell.is_over(NodeId(1), &voters, 9), "two of four, and a stranger");
            farewell.said(NodeId(4), 9);
            assert!(farewell.is_over(NodeId(1), &voters, 9));
        }
    }

    #[test]
    fn a_removed_node_does_not_wait_for_ever_for_those_whom_it_knows() {
        let mut farewell = Farewell::default();
        farewell.said(NodeId(2), 7);
        assert!(!farewell.is_over(NodeId(1), &voters(&[6, 7, 8]), 9));
        let late = 7 + PATIENCE.as_nanos() as u64;
        assert!(farewell.is_over(NodeId(1), &voters(&[6, 7, 8]), late), "they may be gone, too");
    }
}
