//! How long the way to each peer and back takes, by the questions about clocks that are asked
//! anyway. Nothing is decided by it but a word in the log, and what people are told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use epicepoch_wire::NodeId;

use crate::config::is_too_tight;

/// Round trips that are kept of each peer: the last 13 seconds.
const KEPT_MAX: usize = 64;
/// Round trips of a peer before anything is said of it.
const KEPT_MIN: usize = 16;

/// The last round trips to each peer.
#[derive(Debug, Default)]
pub(super) struct RoundTrips {
    peers: BTreeMap<NodeId, VecDeque<u64>>,
    /// Peers that it was said of that the settings do not suit the way to them.
    told: BTreeSet<NodeId>,
}

impl RoundTrips {
    /// Takes one in, and returns the usual one now.
    pub(super) fn note(&mut self, node: NodeId, round_trip_ns: u64) -> u64 {
        let kept = self.peers.entry(node).or_default();
        if kept.len() == KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back(round_trip_ns);
        rank(kept, 90)
    }

    /// Forgets who is no member any more.
    pub(super) fn retain(&mut self, is_member: impl Fn(NodeId) -> bool) {
        self.peers.retain(|node, _| is_member(*node));
        self.told.retain(|node| is_member(*node));
    }

    /// The usual and the longest of the last round trips to a peer, nanoseconds: nine of ten are no
    /// longer than the usual one.
    pub(super) fn of(&self, node: NodeId) -> Option<(u64, u64)> {
        let kept = self.peers.get(&node)?;
        Some((rank(kept, 90), rank(kept, 100)))
    }

    /// Warns of a way that is too long for the election timeout, once until it is well again.
    pub(super) fn warn(&mut self, node: NodeId, election_timeout: Duration) {
        let Some(kept) = self.peers.get(&node).filter(|kept| kept.len() >= KEPT_MIN) else {
            return;
        };
        let usual = Duration::from_nanos(rank(kept, 90));
        if !is_too_tight(election_timeout, usual) {
            self.told.remove(&node);
        } else if self.told.insert(node) {
            tracing::warn!(
                peer = node.0,
                round_trip_ms = usual.as_secs_f64() * 1e3,
                election_timeout_ms = election_timeout.as_millis() as u64,
                "ELECTION_TIMEOUT_MS is too short for the way to a peer: an election takes longer \
                 than its turn; see what the links need with: epicepoch tune"
            );
        }
    }
}

/// The value that so many of a hundred do not exceed; 0 of none.
fn rank(values: &VecDeque<u64>, percent: usize) -> u64 {
    let mut sorted: Vec<u64> = values.iter().copied().collect();
    sorted.sort_unstable();
    let at = (sorted.len() * percent).div_ceil(100);
    sorted.get(at.saturating_sub(1)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_round_trip_is_not_moved_by_one_that_was_held_up() {
        let mut trips = RoundTrips::default();
        let node = NodeId(2);
        assert_eq!(trips.of(node), None);
        for sample in 1..=19 {
            trips.note(node, sample);
        }
        assert_eq!(trips.note(node, 1_000), 18);
        assert_eq!(trips.of(node), Some((18, 1_000)));
        for _ in 0..KEPT_MAX {
            trips.note(node, 5);
        }
        assert_eq!(trips.of(node), Some((5, 5)), "what was long ago is forgotten");
        trips.retain(|_| false);
        assert_eq!(trips.of(node), None);
    }

    #[test]
    fn a_way_that_is_too_long_is_told_once_until_it_is_well() {
        let mut trips = RoundTrips::default();
        let (node, election) = (NodeId(2), Duration::from_millis(200));
        let mut after = |round_trip_ms: u64| {
            for _ in 0..KEPT_MAX {
                trips.note(node, round_trip_ms * 1_000_000);
                trips.warn(node, election);
            }
            trips.told.contains(&node)
        };
        assert!(!after(25) && after(30) && after(30) && !after(1));
    }
}
