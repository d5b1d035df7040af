//! The sets of voters that decide: a majority, or both majorities while membership is joint
//! (dissertation, 4.3). A voter is a node id bound to a store id; the same node id with another
//! store has no vote.

use epicepoch_wire::{NodeId, StoreId};

/// The voters of one configuration. A set of them is a bit mask over their positions.
///
/// Invariant: at most 64 voters, ordered by node id; every voter is incoming, outgoing, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Voters {
    all: Vec<(NodeId, StoreId)>,
    incoming: VoterSet,
    outgoing: VoterSet,
}

/// A set of voters of one [`Voters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VoterSet(u64);

impl VoterSet {
    /// No voter.
    pub(crate) const NONE: Self = Self(0);

    /// Adds the voter at `position`.
    pub const fn insert(&mut self, position: usize) {
        self.0 |= 1 << position;
    }

    /// Whether the voter at `position` is in the set.
    #[must_use]
    pub const fn contains(self, position: usize) -> bool {
        self.0 >> position & 1 == 1
    }

    /// The voters in this set or in `other`.
    pub(crate) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The voters in this set that are not in `other`.
    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The voters at these positions.
    #[cfg(test)]
    pub(crate) const fn of(positions: &[usize]) -> Self {
        let (mut set, mut at) = (Self(0), 0);
        while at < positions.len() {
            set.insert(positions[at]);
            at += 1;
        }
        set
    }

    fn is_majority_of(self, of: Self) -> bool {
        let (both, all) = ((self.0 & of.0).count_ones() * 2, of.0.count_ones());
        both > all
    }
}

impl Voters {
    /// At most this many voters of a configuration. In a joint configuration, the voters of both
    /// halves count together.
    pub const MAX: usize = 64;

    /// A configuration; `outgoing` is empty unless it is joint. `store_of` binds ids to stores.
    ///
    /// # Panics
    /// When there are more than [`Voters::MAX`] voters. The state machine refuses such a change
    /// earlier.
    pub fn new(
        incoming: &[NodeId],
        outgoing: &[NodeId],
        store_of: impl Fn(NodeId) -> StoreId,
    ) -> Self {
        let mut ids: Vec<NodeId> = incoming.iter().chain(outgoing).copied().collect();
        ids.sort_unstable();
        ids.dedup();
        assert!(ids.len() <= Self::MAX, "{} voters are over the limit", ids.len());
        let set = |half: &[NodeId]| {
            let mut set = VoterSet::default();
            for (position, id) in ids.iter().enumerate() {
                if half.contains(id) {
                    set.insert(position);
                }
            }
            set
        };
        let (incoming, outgoing) = (set(incoming), set(outgoing));
        let all = ids.iter().map(|id| (*id, store_of(*id))).collect();
        Self { all, incoming, outgoing }
    }

    /// The position of the voter with this node id and this store id; `None` if no voter has both.
    #[must_use]
    pub fn position(&self, node: NodeId, store: StoreId) -> Option<usize> {
        self.all.iter().position(|voter| *voter == (node, store))
    }

    /// Whether the voters in `yes` decide: they are a majority of each half. An empty configuration
    /// never decides.
    #[must_use]
    pub fn is_quorum(&self, yes: VoterSet) -> bool {
        let outgoing = self.outgoing.0 == 0 || yes.is_majority_of(self.outgoing);
        outgoing && yes.is_majority_of(self.incoming)
    }

    /// The voters of which more are needed for a quorum than those in `yes`: those of each half
    /// without a majority. None if the voters in `yes` decide.
    pub(crate) fn missing(&self, yes: VoterSet) -> VoterSet {
        let of_half = |half: VoterSet| {
            if yes.is_majority_of(half) { VoterSet::default() } else { half.without(yes) }
        };
        of_half(self.incoming).with(of_half(self.outgoing))
    }

    /// Whether a quorum has become impossible because the voters in `no` have refused.
    #[must_use]
    pub fn is_lost(&self, no: VoterSet) -> bool {
        !self.is_quorum(VoterSet(!no.0))
    }

    /// The voters, ordered by node id.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, StoreId)> {
        self.all.iter().copied()
    }

    /// The voters of the incoming half: all of them unless the configuration is joint.
    pub fn incoming(&self) -> impl Iterator<Item = (NodeId, StoreId)> {
        self.of(self.incoming)
    }

    /// The voters of the outgoing half; none unless the configuration is joint.
    pub fn outgoing(&self) -> impl Iterator<Item = (NodeId, StoreId)> {
        self.of(self.outgoing)
    }

    fn of(&self, set: VoterSet) -> impl Iterator<Item = (NodeId, StoreId)> {
        let all = self.all.iter().copied().enumerate();
        all.filter(move |(position, _)| set.contains(*position)).map(|(_, voter)| voter)
    }

    /// How many voters there are, both halves together.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is no voter: the node has no configuration yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether the configuration is joint.
    #[must_use]
    pub fn is_joint(&self) -> bool {
        self.outgoing.0 != 0
    }

    /// Whether a quorum of the voters satisfies `holds`.
    pub fn is_quorum_by(&self, holds: impl Fn(NodeId) -> bool) -> bool {
        let mut set = VoterSet::default();
        for (position, (node, _)) in self.all.iter().enumerate() {
            if holds(*node) {
                set.insert(position);
            }
        }
        self.is_quorum(set)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn voters(incoming: &[u64], outgoing: &[u64]) -> Voters {
        let ids = |list: &[u64]| list.iter().map(|id| NodeId(*id)).collect::<Vec<_>>();
        Voters::new(&ids(incoming), &ids(outgoing), |id| StoreId(u128::from(id.0)))
    }

    fn set(voters: &Voters, ids: &[u64]) -> VoterSet {
        let mut set = VoterSet::default();
        for id in ids {
            let store = StoreId(u128::from(*id));
            set.insert(voters.position(NodeId(*id), store).expect("a voter"));
        }
        set
    }

    #[test]
    fn a_simple_configuration_needs_a_majority() {
        let three = voters(&[1, 2, 3], &[]);
        assert!(!three.is_quorum(set(&three, &[2])));
        assert!(three.is_quorum(set(&three, &[2, 3])));
        assert!(!three.is_lost(set(&three, &[1])));
        assert!(three.is_lost(set(&three, &[1, 3])));
        assert!(!voters(&[], &[]).is_quorum(VoterSet::default()));
    }

    #[test]
    fn a_joint_configuration_needs_both_majorities() {
        let joint = voters(&[3, 4, 5], &[1, 2, 3]);
        assert!(!joint.is_quorum(set(&joint, &[3, 4, 5])));
        assert!(!joint.is_quorum(set(&joint, &[1, 2, 3])));
        assert!(joint.is_quorum(set(&joint, &[1, 3, 4])));
    }

    #[test]
    fn another_store_under_the_same_id_has_no_vote() {
        let three = voters(&[1, 2, 3], &[]);
        assert_eq!(three.position(NodeId(2), StoreId(99)), None);
        assert_eq!(three.position(NodeId(9), StoreId(9)), None);
    }

    proptest! {
        #[test]
        fn two_quorums_of_a_configuration_always_meet(
            incoming in prop::collection::btree_set(1_u64..9, 1..7),
            outgoing in prop::collection::btree_set(1_u64..9, 0..7),
            a: u64, b: u64,
        ) {
            let list = |set: &std::collections::BTreeSet<u64>| set.iter().copied().collect::<Vec<_>>();
            let voters = voters(&list(&incoming), &list(&outgoing));
            let mask = (1 << voters.len()) - 1;
            let (a, b) = (VoterSet(a & mask), VoterSet(b & mask));
            if voters.is_quorum(a) && voters.is_quorum(b) {
                prop_assert_ne!(a.0 & b.0, 0);
            }
            prop_assert_eq!(voters.is_lost(a), !voters.is_quorum(VoterSet(!a.0 & mask)));
        }
    }

    #[test]
    fn voters_are_named_with_their_stores_and_counted_once() {
        let joint = voters(&[3, 1], &[2, 3]);
        let named: Vec<_> = joint.iter().map(|(node, store)| (node.0, store.0)).collect();
        assert_eq!(named, [(1, 1), (2, 2), (3, 3)]);
        let ids =
            |half: Vec<(NodeId, StoreId)>| half.iter().map(|(id, _)| id.0).collect::<Vec<_>>();
        assert_eq!(ids(joint.incoming().collect()), [1, 3]);
        assert_eq!(ids(joint.outgoing().collect()), [2, 3]);
        assert_eq!((joint.len(), joint.is_empty(), joint.is_joint()), (3, false, true));
        let simple = voters(&[7], &[]);
        assert_eq!((simple.len(), simple.is_empty(), simple.is_joint()), (1, false, false));
        let none = voters(&[], &[]);
        assert_eq!((none.len(), none.is_empty(), none.is_joint()), (0, true, false));
    }

    #[test]
    fn a_quorum_by_a_property_is_the_quorum_of_those_that_have_it() {
        let joint = voters(&[3, 4, 5], &[1, 2, 3]);
        assert!(!joint.is_quorum_by(|node| node.0 >= 3));
        assert!(joint.is_quorum_by(|node| node.0 != 5 && node.0 != 2));
    }

    #[test]
    fn as_many_voters_as_a_mask_has_bits() {
        let all: Vec<u64> = (1..=Voters::MAX as u64).collect();
        let voters = voters(&all, &[]);
        assert!(voters.is_quorum(set(&voters, &all[..33])));
        assert!(!voters.is_quorum(set(&voters, &all[..32])));
        assert!(voters.is_lost(set(&voters, &all[32..])));
    }

    proptest! {
        /// Order survives a change of configuration. While membership is joint, every quorum shares
        /// a voter with every quorum of the old configuration, and with every quorum of the new
        /// one.
        #[test]
        fn a_joint_quorum_meets_every_quorum_of_the_old_and_of_the_new(
            incoming in prop::collection::btree_set(1_u64..12, 1..8),
            outgoing in prop::collection::btree_set(1_u64..12, 1..8),
            said_yes in prop::collection::btree_set(1_u64..12, 0..12),
            others in prop::collection::btree_set(1_u64..12, 0..12),
        ) {
            let list = |set: &std::collections::BTreeSet<u64>| set.iter().copied().collect::<Vec<_>>();
            let joint = voters(&list(&incoming), &list(&outgoing));
            let is_joint_quorum = joint.is_quorum_by(|node| said_yes.contains(&node.0));
            for half in [&incoming, &outgoing] {
                let simple = voters(&list(half), &[]);
                let is_quorum = simple.is_quorum_by(|node| others.contains(&node.0));
                let meet = half.iter().any(|id| said_yes.contains(id) && others.contains(id));
                prop_assert!(!(is_joint_quorum && is_quorum) || meet);
                // A joint quorum contains a majority of each half, counted here without bit masks.
                let count = half.iter().filter(|id| said_yes.contains(id)).count();
                prop_assert!(!is_joint_quorum || count * 2 > half.len());
            }
            let has_majority = |half: &std::collections::BTreeSet<u64>| {
                half.iter().filter(|id| said_yes.contains(id)).count() * 2 > half.len()
            };
            prop_assert_eq!(is_joint_quorum, has_majority(&incoming) && has_majority(&outgoing));
        }

        /// After one simple change, every old quorum and every new quorum share a voter.
        #[test]
        fn quorums_before_and_after_one_simple_change_meet(
            before in prop::collection::btree_set(1_u64..10, 1..8),
            changed in 1_u64..10,
            a in prop::collection::btree_set(1_u64..10, 0..10),
            b in prop::collection::btree_set(1_u64..10, 0..10),
        ) {
            let list = |set: &std::collections::BTreeSet<u64>| set.iter().copied().collect::<Vec<_>>();
            let mut after = before.clone();
            if !after.remove(&changed) {
                after.insert(changed);
            }
            let quorum = |of: &[u64], said: &std::collections::BTreeSet<u64>| {
                voters(of, &[]).is_quorum_by(|node| said.contains(&node.0))
            };
            if quorum(&list(&before), &a) && quorum(&list(&after), &b) {
                let met = a.iter().any(|id| b.contains(id) && before.contains(id) && after.contains(id));
                prop_assert!(met);
            }
        }
    }
}
