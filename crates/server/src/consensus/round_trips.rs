//! The round trips to the peers, measured by the pings that sample their clocks. No decision uses
//! them; they only become a warning and a document for people.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use epicepoch_wire::NodeId;

use crate::config::is_too_tight;

/// At most this many round trips are kept for each peer. At one ping every 200 ms, they cover 13
/// seconds.
const KEPT_MAX: usize = 64;
/// Round trips older than this are ignored, because links change; nanoseconds.
const KEPT_NS: u64 = 13_000_000_000;
/// A warning about a peer needs at least this many round trips.
const KEPT_MIN: usize = 16;

/// The recent round trips to each peer.
#[derive(Debug, Default)]
pub(super) struct RoundTrips {
    /// For each peer: when a round trip was measured and how long it took, both in nanoseconds.
    peers: BTreeMap<NodeId, VecDeque<(u64, u64)>>,
    /// Peers for which a warning was logged.
    warned: BTreeSet<NodeId>,
}

impl RoundTrips {
    /// Records a round trip. Returns the peer's usual round trip, nanoseconds.
    pub(super) fn record(&mut self, now_ns: u64, node: NodeId, round_trip_ns: u64) -> u64 {
        let kept = self.peers.entry(node).or_default();
        while kept.len() >= KEPT_MAX || kept.front().is_some_and(|it| !is_fresh(it.0, now_ns)) {
            kept.pop_front();
        }
        kept.push_back((now_ns, round_trip_ns));
        rank(kept, now_ns, 90).unwrap_or(0)
    }

    /// Forgets peers that are no longer members.
    pub(super) fn retain(&mut self, is_member: impl Fn(NodeId) -> bool) {
        self.peers.retain(|node, _| is_member(*node));
        self.warned.retain(|node| is_member(*node));
    }

    /// The usual and the longest recent round trip to a peer, nanoseconds. The usual one is the
    /// 90th percentile. `None` when the peer has not answered recently.
    pub(super) fn of(&self, now_ns: u64, node: NodeId) -> Option<(u64, u64)> {
        let kept = self.peers.get(&node)?;
        Some((rank(kept, now_ns, 90)?, rank(kept, now_ns, 100)?))
    }

    /// Warns when the usual round trip is too long for the election timeout. It warns again only
    /// after the round trip has been short enough in between.
    pub(super) fn warn(&mut self, now_ns: u64, node: NodeId, election_timeout: Duration) {
        let Some(kept) = self.peers.get(&node).filter(|kept| kept.len() >= KEPT_MIN) else {
            return;
        };
        let usual = Duration::from_nanos(rank(kept, now_ns, 90).unwrap_or(0));
        if !is_too_tight(election_timeout, usual) {
            self.warned.remove(&node);
        } else if self.warned.insert(node) {
            tracing::warn!(
                peer = node.0,
                round_trip_ms = usual.as_secs_f64() * 1e3,
                election_timeout_ms = election_timeout.as_millis() as u64,
                "ELECTION_TIMEOUT_MS is too short for the round trip to a peer: an election takes longer \
                 than its turn; get a value that suits the links with: epicepoch tune"
            );
        }
    }
}

const fn is_fresh(at_ns: u64, now_ns: u64) -> bool {
    now_ns.saturating_sub(at_ns) <= KEPT_NS
}

/// The round trip that `percent` percent of the recent ones do not exceed, nanoseconds.
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
    fn one_slow_round_trip_does_not_change_the_usual_one() {
        let mut trips = RoundTrips::default();
        let node = NodeId(2);
        assert_eq!(trips.of(0, node), None);
        for sample in 1..=19 {
            trips.record(0, node, sample);
        }
        assert_eq!(trips.record(0, node, 1_000), 18);
        assert_eq!(trips.of(0, node), Some((18, 1_000)));
        for _ in 0..KEPT_MAX {
            trips.record(0, node, 5);
        }
        assert_eq!(trips.of(0, node), Some((5, 5)), "old round trips are forgotten");
        trips.retain(|_| false);
        assert_eq!(trips.of(0, node), None);
    }

    #[test]
    fn round_trips_of_a_silent_peer_expire() {
        let mut trips = RoundTrips::default();
        let node = NodeId(2);
        trips.record(1, node, 100);
        trips.record(3, node, 7);
        assert_eq!(trips.of(1 + KEPT_NS, node), Some((100, 100)));
        assert_eq!(trips.of(2 + KEPT_NS, node), Some((7, 7)));
        assert_eq!(trips.of(4 + KEPT_NS, node), None);
        assert_eq!(trips.record(4 + KEPT_NS, node, 9), 9);
    }

    #[test]
    fn a_round_trip_that_is_too_long_is_warned_of_once_until_it_is_short() {
        let mut trips = RoundTrips::default();
        let (node, election) = (NodeId(2), Duration::from_millis(200));
        let mut after = |round_trip_ms: u64| {
            for _ in 0..KEPT_MAX {
                trips.record(0, node, round_trip_ms * 1_000_000);
                trips.warn(0, node, election);
            }
            trips.warned.contains(&node)
        };
        assert!(!after(25) && after(30) && after(30) && !after(1));
    }
}
