//! Configurations, derived from the entries of the log alone. Nothing here asks the core or the
//! library what a change does.

use std::collections::{BTreeMap, BTreeSet};

use epicepoch_core::publication::Published;
use epicepoch_core::quorum::Voters;
use epicepoch_core::state::{MembershipChange, MembershipStep};
use epicepoch_wire::raft_message::Configuration as Recorded;
use epicepoch_wire::{NodeId, StoreId};

use crate::node_set::NodeSet;

/// The voters and learners after an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Configuration {
    pub(super) incoming: BTreeSet<NodeId>,
    pub(super) outgoing: BTreeSet<NodeId>,
    pub(super) learners: BTreeSet<NodeId>,
    /// The data directory to which each member's id is bound.
    pub(super) bound: BTreeMap<NodeId, StoreId>,
    pub(super) removed: BTreeSet<NodeId>,
}

impl Configuration {
    /// The configuration of a record.
    pub(super) fn recorded(
        recorded: &Recorded,
        bound: BTreeMap<NodeId, StoreId>,
        removed: BTreeSet<NodeId>,
    ) -> Self {
        let set = |list: &[NodeId]| list.iter().copied().collect();
        Self {
            incoming: set(&recorded.voters),
            outgoing: set(&recorded.voters_outgoing),
            learners: set(&recorded.learners),
            bound,
            removed,
        }
    }

    fn is_joint(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// The configuration that an entry makes; `None` if the entry changes nothing. An entry without
    /// a change leaves a joint configuration.
    pub(super) fn after(&self, change: Option<&MembershipChange>) -> Option<Self> {
        let mut next = self.clone();
        let Some(MembershipChange { steps, .. }) = change else {
            next.outgoing.clear();
            return self.is_joint().then(|| next.forgetting());
        };
        let named: BTreeSet<NodeId> = steps.iter().map(MembershipStep::node).collect();
        if steps.is_empty() || named.len() < steps.len() || self.is_joint() {
            return None;
        }
        if steps.len() > 1 {
            next.outgoing.clone_from(&self.incoming);
        }
        for step in steps {
            match step {
                MembershipStep::AddLearner(member) => {
                    let node = member.node;
                    let is_known = self.removed.contains(&node) || self.bound.contains_key(&node);
                    let is_taken = self.bound.values().any(|store| *store == member.store);
                    if node == NodeId(0) || is_known || is_taken {
                        return None;
                    }
                    next.learners.insert(node);
                    next.bound.insert(node, member.store);
                }
                MembershipStep::Promote(node) | MembershipStep::Remove(node) => {
                    if self.removed.contains(node) || !self.bound.contains_key(node) {
                        return None;
                    }
                    next.learners.remove(node);
                    if matches!(step, MembershipStep::Promote(_)) {
                        next.incoming.insert(*node);
                    } else {
                        next.incoming.remove(node);
                    }
                }
            }
        }
        (!next.incoming.is_empty()).then(|| next.forgetting())
    }

    /// Without the members that it no longer names.
    fn forgetting(mut self) -> Self {
        let Self { incoming, outgoing, learners, bound, removed } = &mut self;
        bound.retain(|node, _| {
            let is_named = [&*incoming, &*outgoing, &*learners].iter().any(|it| it.contains(node));
            if !is_named {
                removed.insert(*node);
            }
            is_named
        });
        self
    }

    /// Whether each quorum of one configuration meets each quorum of the other: the cases that
    /// `arithmetic.py` proves.
    pub(super) fn is_next_to(
        incoming: [&BTreeSet<NodeId>; 2],
        outgoing: [&BTreeSet<NodeId>; 2],
    ) -> bool {
        let [before, after] = incoming;
        let is_simple = |half: &BTreeSet<NodeId>| half.is_empty();
        match outgoing.map(is_simple) {
            [true, true] => before.symmetric_difference(after).count() <= 1,
            [true, false] => outgoing[1] == before,
            [false, true] => before == after,
            [false, false] => before == after && outgoing[0] == outgoing[1],
        }
    }

    /// Whether these nodes are a quorum.
    pub(super) fn is_quorum(&self, nodes: NodeSet) -> bool {
        is_majority(&self.incoming, nodes)
            && (self.outgoing.is_empty() || is_majority(&self.outgoing, nodes))
    }

    /// Whether a publication has these voters, each with its data directory.
    pub(super) fn is_published(&self, published: &Published) -> bool {
        let store = |node: &NodeId| (*node, self.bound.get(node).copied().unwrap_or_default());
        published.voters.incoming().eq(self.incoming.iter().map(store))
            && published.voters.outgoing().eq(self.outgoing.iter().map(store))
    }
}

fn is_majority(half: &BTreeSet<NodeId>, nodes: NodeSet) -> bool {
    half.iter().filter(|node| nodes.contains(**node)).count() * 2 > half.len()
}

/// Whether these nodes are a quorum of published voters. It counts from plain lists, not with the
/// core's masks.
pub(super) fn is_quorum_of(voters: &Voters, nodes: NodeSet) -> bool {
    let count = |half: &mut dyn Iterator<Item = (NodeId, StoreId)>| {
        half.fold((0, 0), |(all, said), (node, _)| {
            (all + 1, said + usize::from(nodes.contains(node)))
        })
    };
    let (all, said) = count(&mut voters.incoming());
    let (outgoing, of_them) = count(&mut voters.outgoing());
    2 * said > all && (outgoing == 0 || 2 * of_them > outgoing)
}
