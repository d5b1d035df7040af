//! A set of nodes of a run, as bits.

use epicepoch_wire::NodeId;

use crate::parameters::NODES_MAX;

/// A set of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeSet(u16);

impl NodeSet {
    /// Every node that a run may have.
    pub(crate) const ALL: Self = Self(u16::MAX);

    /// Node `n` is in the set if bit `n - 1` is set.
    pub(crate) const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    pub(crate) const fn of(node: NodeId) -> Self {
        Self(1 << (node.0 - 1))
    }

    pub(crate) const fn contains(self, node: NodeId) -> bool {
        self.0 & Self::of(node).0 != 0
    }

    /// Whether the two sets have a node in common.
    pub(crate) const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) const fn add(&mut self, nodes: Self) {
        self.0 |= nodes.0;
    }

    pub(crate) const fn remove(&mut self, nodes: Self) {
        self.0 &= !nodes.0;
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = NodeId> {
        (1..=NODES_MAX as u64).map(NodeId).filter(move |node| self.contains(*node))
    }

    /// The bits as a number, for the hash of a run.
    pub(crate) const fn digest(self) -> u64 {
        self.0 as u64
    }
}
