//! What this node last saw of the other members. The consensus plane writes it, and `/status` shows
//! it, also while the consensus plane does not answer. No decision depends on it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use epicepoch_wire::NodeId;

/// The other members, as this node last saw them.
#[derive(Debug, Default)]
pub struct Peers(Mutex<BTreeMap<NodeId, Peer>>);

/// Another member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Peer {
    /// When it last answered a ping, monotonic nanoseconds; `None` before the first answer.
    pub(crate) answered_ns: Option<u64>,
    /// The version of its program, by its last hello; empty before that.
    pub(crate) version: Arc<str>,
    /// What only the leader knows; `None` while this node does not lead.
    pub(crate) progress: Option<Progress>,
}

/// The progress of a member, as the leader knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The number of committed log entries that the member may not hold yet; `None` before the
    /// member has told this leader what it holds.
    pub behind: Option<u64>,
    /// Whether the leader heard the member within an election timeout.
    pub is_heard: bool,
}

impl Peers {
    /// Records that a peer answered a ping.
    pub fn record_answer(&self, node: NodeId, now_ns: u64) {
        self.peers().entry(node).or_default().answered_ns = Some(now_ns);
    }

    /// Records the version in a peer's hello.
    pub fn record_version(&self, node: NodeId, version: String) {
        self.peers().entry(node).or_default().version = version.into();
    }

    /// Replaces the progress of all members. It is empty on a node that does not lead.
    pub fn set_progress(&self, progress: &BTreeMap<NodeId, Progress>) {
        let mut peers = self.peers();
        for (node, peer) in &mut *peers {
            peer.progress = progress.get(node).copied();
        }
        for (node, progress) in progress {
            peers.entry(*node).or_default().progress = Some(*progress);
        }
    }

    /// Forgets peers that are no longer members.
    pub fn retain(&self, is_member: impl Fn(NodeId) -> bool) {
        self.peers().retain(|node, _| is_member(*node));
    }

    /// What is known of each peer now. The consensus plane waits while this copies, so the texts
    /// are shared.
    pub(crate) fn all(&self) -> BTreeMap<NodeId, Peer> {
        self.peers().clone()
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<NodeId, Peer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_no_longer_leads_knows_no_progress() {
        let (peers, node) = (Peers::default(), NodeId(2));
        peers.record_answer(node, 5);
        peers.record_version(node, "0.3.0".to_owned());
        let progress = Progress { behind: Some(7), is_heard: true };
        peers.set_progress(&BTreeMap::from([(node, progress), (NodeId(3), progress)]));
        let known = peers.all();
        assert_eq!(known[&NodeId(3)], Peer { progress: Some(progress), ..Peer::default() });
        assert_eq!((known[&node].answered_ns, known[&node].progress), (Some(5), Some(progress)));
        peers.set_progress(&BTreeMap::new());
        peers.retain(|member| member == node);
        let rest = Peer { answered_ns: Some(5), version: "0.3.0".into(), progress: None };
        assert_eq!(peers.all(), BTreeMap::from([(node, rest)]));
    }
}
