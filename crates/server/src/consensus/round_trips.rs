//! How long the way to each peer and back takes, by the questions about clocks that are asked
//! anyway. Nothing is decided by it but a word in the log, and what people are told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use epicepoch_wire::NodeId;

use crate::config::is_too_tight;

/// Round trips that are kept of each peer: the last 13 seconds.
const KEPT_MAX: usize = 64;
/// What is older says nothing of the links as they are, nanoseconds.
const KEPT_NS: u64 = 13_000_000_000;
/// Round trips of a peer before anything is said of it.
const KEPT_MIN: usize = 16;

/// The last round trips to each peer.
#[derive(Debug, Default)]
pub(super) struct RoundTrips {
    /// When each was measured, and how long it was, nanoseconds.
    peers: BTreeMap<NodeId, VecDeque<(u64, u64)>>,
    /// Peers that it was said of that the settings do not suit the way to them.
    told: BTreeSet<NodeId>,
}

impl RoundTrips {
    /// Takes one in, and returns the usual one now.
    pub(super) fn note(&mut self, now_ns: u64, node: NodeId, round_trip_ns: u64) -> u64 {
        let kept = self.peers.entry(node).or_default();
        while kept.len() >= KEPT_MAX || kept.front().is_some_and(|it| !is_fresh(it.0, now_ns)) {
            kept.pop_front();
        }
        kept.push_back((now_ns, round_trip_ns));
        rank(kept, now_ns, 90).unwrap_or(0)
    }

    /// Forgets who is no member any more.
    pub(super) fn retain(&mut self, is_member: impl Fn(NodeId) -> bool) {
        self.peers.retain(|node, _| is_member(*node));
        self.told.retain(|node| is_member(*node));
    }

    /// The usual and the longest of the last round trips to a peer, nanoseconds: nine of ten are no
    /// longer than the usual one. `None` of a peer that has not answered lately.
    pub(super) fn of(&self, now_ns: u64, node: NodeId) -> Option<(u64, u64)> {
        let kept = self.peers.get(&node)?;
        Some((rank(kept, now_ns, 90)?, rank(kept, now_ns, 100)?))
    }

    /// Warns of a way that is too long for the election timeout, once until it is well again.
    pub(super) fn warn(&mut self, now_ns: u64, node: NodeId, election_timeout: Duration) {
        let Some(kept) = self.peers.get(&node).filter(|kept| kept.len() >= KEPT_MIN) else {
            return;
        };
        let usual = Duration::from_nanos(rank(kept, now_ns, 90).unwrap_or(0));
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

const fn is_fresh(at_ns: u64, now_ns: u64) -> bool {
    now_ns.saturating_sub(at_ns) <= KEPT_NS
}

/// What so many of a hundred of those that are fresh do not exceed.
fn rank(kept: &VecDeque<(u64, u64)>, now_ns: u64, percent: usize) -> Option<u64> {
    let fresh = kept.iter().filter(|it| is_fresh(it.0, now_ns));
    let mut sorted: Vec<u64> = fresh.map(|it| it.1).collect();
    sorted.sort_unstable();
    let at = (sorted.len() * percent).div_ceil(100);
    sorted.get(at.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_round_trip_is_not_moved_by_one_that_was_held_up() {
        let mut trips = RoundTrips::default();
        let node = NodeId(2);
        assert_eq!(trips.of(0, node), None);
        for sample in 1..=19 {
            trips.note(0, node, sample);
        }
        assert_eq!(trips.note(0, node, 1_000), 18);
        assert_eq!(trips.of(0, node), Some((18, 1_000)));
        for _ in 0..KEPT_MAX {
            trips.note(0, node, 5);
        }
        assert_eq!(trips.of(0, node), Some((5, 5)), "what was long ago is forgotten");
        trips.retain(|_| false);
        assert_eq!(trips.of(0, node), None);
    }

    #[test]
    fn what_was_measured_before_a_peer_went_silent_is_not_told_for_ever() {
        let mut trips = RoundTrips::default();
        let node = NodeId(2);
        trips.note(1, node, 100);
        trips.note(3, node, 7);
        assert_eq!(trips.of(1 + KEPT_NS, node), Some((100, 100)));
        assert_eq!(trips.of(2 + KEPT_NS, node), Some((7, 7)));
        assert_eq!(trips.of(4 + KEPT_NS, node), None);
        assert_eq!(trips.note(4 + KEPT_NS, node, 9), 9);
    }

    #[test]
    fn a_way_that_is_too_long_is_told_once_until_it_is_well() {
        let mut trips = RoundTrips::default();
        let (node, election) = (NodeId(2), Duration::from_millis(200));
        let mut after = |round_trip_ms: u64| {
            for _ in 0..KEPT_MAX {
                trips.note(0, node, round_trip_ms * 1_000_000);
                trips.warn(0, node, election);
            }
            trips.told.contains(&node)
        };
        assert!(!after(25) && after(30) && after(30) && !after(1));
    }
}
