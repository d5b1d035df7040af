//! The replicated state: the ceiling, who owns the range below it, and who the members are.
//! `apply` is total and deterministic: a committed entry never fails, a stale one is a no-op with
//! a typed outcome. It reads no clock, and nobody computes a range before it.

use std::collections::{BTreeMap, BTreeSet};

use epicepoch_wire::bootstrap::{Genesis, MEMBERS_MAX, Member};
use epicepoch_wire::cursor::{Reader, Writer};
use epicepoch_wire::hello::ADDR_LEN_MAX;
use epicepoch_wire::raft_message::Configuration;
use epicepoch_wire::{BootId, ClusterId, DecodeError, Epoch, HistoryId, NodeId, StoreId, Term};

use crate::publication::EpochRange;

/// Least epochs that an assignment adds, nanoseconds: what a reservation gets while the clock is
/// behind the ceiling. Enough epochs for a hundred seconds at the default interval (after which the
/// epoch stands still and the index goes on), and small enough
/// that a thousand leaders in a row do not push the ceiling ahead by a millisecond.
pub const WIDTH_MIN_NS: u64 = 1_000;

/// Most removed node ids that are remembered. Ids are never used again.
pub const REMOVED_MAX: usize = 4_096;

/// Who proposed a reservation: the only one that may ever stamp in the range that it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The term that the proposer led.
    pub term: Term,
    /// The proposer.
    pub node: NodeId,
    /// Its run.
    pub boot: BootId,
}

/// A command of ours in the Raft log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Raises the ceiling to `until` and gives what lies between to the owner.
    Reserve {
        /// Who asks.
        owner: Owner,
        /// The last epoch asked for.
        until: Epoch,
    },
    /// A member is reached elsewhere from now on.
    Readdress(Member),
}

/// A change of the members, carried as our own encoding in a membership entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipChange {
    /// Drawn at random by whoever asks, so that exactly this change is acknowledged.
    pub nonce: u64,
    /// What changes; more than one step is done by joint consensus.
    pub steps: Vec<MembershipStep>,
}

/// One step of a [`MembershipChange`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipStep {
    /// Admits a member that receives the log and does not vote.
    AddLearner(Member),
    /// Makes a learner a voter.
    Promote(NodeId),
    /// Removes a member for ever: its id is never used again.
    Remove(NodeId),
}

/// What a committed entry did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The range was assigned to the owner.
    Assigned(Owner, EpochRange),
    /// The proposer's term was not the entry's: nothing was assigned.
    Stale,
    /// No epoch is left below 2^64 nanoseconds (the year 2554).
    Exhausted,
    /// A member's addresses were changed.
    Readdressed(NodeId),
    /// The membership change can never be made; the reason is for people.
    Refused(&'static str),
    /// The members changed as asked.
    Changed,
    /// A leader's empty first entry.
    Nothing,
}

/// The replicated state at one applied index.
///
/// Invariant: the ceiling never goes back (S5); every node id is bound to one store id for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The cluster.
    pub cluster: ClusterId,
    /// Its history.
    pub history: HistoryId,
    /// No epoch above it was ever assigned to anybody.
    pub ceiling: Epoch,
    /// Who was given the last range, and which.
    pub owner: Option<(Owner, EpochRange)>,
    /// The members, voters and learners.
    pub members: BTreeMap<NodeId, Member>,
    /// Ids that were removed.
    pub removed: BTreeSet<NodeId>,
}

impl State {
    /// The state of a cluster that begins.
    #[must_use]
    pub fn new(genesis: &Genesis) -> Self {
        let members = genesis.members.iter().map(|member| (member.node, member.clone()));
        Self {
            cluster: genesis.cluster,
            history: genesis.history,
            ceiling: Epoch(0),
            owner: None,
            members: members.collect(),
            removed: BTreeSet::new(),
        }
    }

    /// Applies a command that was committed in `term`.
    ///
    /// # Panics
    /// When an invariant is broken (S5).
    pub fn apply(&mut self, term: Term, command: &Command) -> Outcome {
        match command {
            Command::Reserve { owner, until } => self.reserve(term, *owner, *until),
            Command::Readdress(member) => match self.members.get_mut(&member.node) {
                Some(known) if known.store == member.store => {
                    known.clone_from(member);
                    Outcome::Readdressed(member.node)
                }
                _ => Outcome::Refused("no such member with this data directory"),
            },
        }
    }

    fn reserve(&mut self, term: Term, owner: Owner, until: Epoch) -> Outcome {
        // A proposal that reached the log in another term than it was made in owns nothing: its
        // proposer may have been deposed between.
        if owner.term != term {
            return Outcome::Stale;
        }
        let low = self.ceiling;
        let high = until.max(Epoch(low.0.saturating_add(WIDTH_MIN_NS)));
        if high == low {
            return Outcome::Exhausted;
        }
        // S5: a range begins where the last one ended, so that no two owners ever share an epoch.
        assert!(high > low, "S5: the ceiling went back");
        let range = EpochRange { low, high };
        self.ceiling = high;
        self.owner = Some((owner, range));
        Outcome::Assigned(owner, range)
    }

    /// Whether a membership change can be made at all, whatever the configuration.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn check_change(&self, change: &MembershipChange) -> Result<(), &'static str> {
        if change.steps.is_empty() {
            return Err("a change of nothing");
        }
        let mut named = BTreeSet::new();
        for step in &change.steps {
            let node = step.node();
            if !named.insert(node) {
                return Err("a node is named twice in one change");
            }
            match step {
                MembershipStep::AddLearner(member) => self.check_admission(member)?,
                MembershipStep::Promote(node) | MembershipStep::Remove(node) => {
                    if !self.members.contains_key(node) {
                        return Err("no such member");
                    }
                }
            }
        }
        Ok(())
    }

    fn check_admission(&self, member: &Member) -> Result<(), &'static str> {
        if member.node == NodeId(0) {
            return Err("0 names no node");
        }
        if self.removed.contains(&member.node) {
            return Err("the node id was removed, and ids are never used again");
        }
        if self.members.contains_key(&member.node) {
            return Err("the node id is a member already");
        }
        if self.members.values().any(|known| known.store == member.store) {
            return Err("the data directory belongs to another member");
        }
        if self.members.len() >= MEMBERS_MAX || self.removed.len() >= REMOVED_MAX {
            return Err("the limit of members is reached");
        }
        Ok(())
    }

    /// Records a change whose configuration the Raft library has taken.
    pub fn apply_change(
        &mut self,
        change: &MembershipChange,
        configuration: &Configuration,
    ) -> Outcome {
        for step in &change.steps {
            match step {
                MembershipStep::AddLearner(member) => {
                    self.members.insert(member.node, member.clone());
                }
                // Members leave below, once no half of a joint configuration names them.
                MembershipStep::Promote(_) | MembershipStep::Remove(_) => {}
            }
        }
        self.reconcile(configuration)
    }

    /// Forgets members that the configuration does not name any more, and remembers their ids.
    /// An outgoing voter of a joint configuration stays bound to its data directory until the
    /// joint configuration is left: its votes still count.
    pub fn reconcile(&mut self, configuration: &Configuration) -> Outcome {
        let lists = [
            &configuration.voters,
            &configuration.learners,
            &configuration.voters_outgoing,
            &configuration.learners_next,
        ];
        let removed = &mut self.removed;
        self.members.retain(|node, _| {
            let is_named = lists.iter().any(|list| list.contains(node));
            if !is_named {
                removed.insert(*node);
            }
            is_named
        });
        Outcome::Changed
    }

    /// The store that a node id is bound to; 0, which no directory has, for a stranger.
    #[must_use]
    pub fn store_of(&self, node: NodeId) -> StoreId {
        self.members.get(&node).map_or(StoreId(0), |member| member.store)
    }

    /// The state as stored in a record and sent in a snapshot.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u8(STATE_FORMAT);
        out.put_u128(self.cluster.0);
        out.put_u64(self.history.0);
        out.put_u64(self.ceiling.0);
        out.put_bool(self.owner.is_some());
        if let Some((owner, range)) = &self.owner {
            owner.encode(&mut out);
            out.put_u64(range.low.0);
            out.put_u64(range.high.0);
        }
        out.put_count(self.members.len());
        for member in self.members.values() {
            member.encode(&mut out);
        }
        out.put_count(self.removed.len());
        for node in &self.removed {
            out.put_u64(node.0);
        }
        out
    }

    /// Reads what [`State::encode`] wrote.
    ///
    /// # Errors
    /// When it is not a state, or one of a newer format.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let format = reader.u8("state format")?;
        if format != STATE_FORMAT {
            let value = u64::from(format);
            return Err(DecodeError::BadValue { field: "state format", value });
        }
        let cluster = ClusterId(reader.u128("cluster")?);
        let history = HistoryId(reader.u64("history")?);
        let ceiling = Epoch(reader.u64("ceiling")?);
        let owner = if reader.bool("has owner")? {
            let owner = Owner::read(&mut reader)?;
            let (low, high) = (Epoch(reader.u64("low")?), Epoch(reader.u64("high")?));
            Some((owner, EpochRange { low, high }))
        } else {
            None
        };
        let mut members = BTreeMap::new();
        for _ in 0..reader.count("members", MEMBERS_MAX)? {
            let member = Member::read(&mut reader)?;
            members.insert(member.node, member);
        }
        let mut removed = BTreeSet::new();
        for _ in 0..reader.count("removed", REMOVED_MAX)? {
            removed.insert(NodeId(reader.u64("removed")?));
        }
        reader.finish()?;
        Ok(Self { cluster, history, ceiling, owner, members, removed })
    }
}

const STATE_FORMAT: u8 = 1;

impl Owner {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.term.0);
        out.put_u64(self.node.0);
        out.put_u64(self.boot.0);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            term: Term(reader.u64("owner term")?),
            node: NodeId(reader.u64("owner node")?),
            boot: BootId(reader.u64("owner boot")?),
        })
    }
}

impl Command {
    /// The command as it stands in the log.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Reserve { owner, until } => {
                out.put_u8(1);
                owner.encode(&mut out);
                out.put_u64(until.0);
            }
            Self::Readdress(member) => {
                out.put_u8(2);
                member.encode(&mut out);
            }
        }
        out
    }

    /// Reads what [`Command::encode`] wrote.
    ///
    /// # Errors
    /// When it is no command.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let command = match reader.u8("command")? {
            1 => Self::Reserve {
                owner: Owner::read(&mut reader)?,
                until: Epoch(reader.u64("until")?),
            },
            2 => Self::Readdress(Member::read(&mut reader)?),
            value => {
                let value = u64::from(value);
                return Err(DecodeError::BadValue { field: "command", value });
            }
        };
        reader.finish()?;
        Ok(command)
    }
}

impl MembershipStep {
    /// The node that the step is about.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        match self {
            Self::AddLearner(member) => member.node,
            Self::Promote(node) | Self::Remove(node) => *node,
        }
    }
}

impl MembershipChange {
    /// The change as it stands in the log.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u64(self.nonce);
        out.put_count(self.steps.len());
        for step in &self.steps {
            match step {
                MembershipStep::AddLearner(member) => {
                    out.put_u8(1);
                    member.encode(&mut out);
                }
                MembershipStep::Promote(node) => {
                    out.put_u8(2);
                    out.put_u64(node.0);
                }
                MembershipStep::Remove(node) => {
                    out.put_u8(3);
                    out.put_u64(node.0);
                }
            }
        }
        out
    }

    /// Reads what [`MembershipChange::encode`] wrote.
    ///
    /// # Errors
    /// When it is no change.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let nonce = reader.u64("nonce")?;
        let mut steps = Vec::new();
        for _ in 0..reader.count("steps", MEMBERS_MAX)? {
            steps.push(match reader.u8("step")? {
                1 => MembershipStep::AddLearner(Member::read(&mut reader)?),
                2 => MembershipStep::Promote(NodeId(reader.u64("node")?)),
                3 => MembershipStep::Remove(NodeId(reader.u64("node")?)),
                value => {
                    let value = u64::from(value);
                    return Err(DecodeError::BadValue { field: "step", value });
                }
            });
        }
        reader.finish()?;
        Ok(Self { nonce, steps })
    }
}

/// Whether an address can be recorded: not empty, and within the limit of the wire.
#[must_use]
pub fn is_recordable(addr: &str) -> bool {
    !addr.is_empty() && addr.len() <= ADDR_LEN_MAX
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn member(node: u64, store: u128) -> Member {
        let addr = format!("n{node}:1");
        Member {
            node: NodeId(node),
            store: StoreId(store),
            raft_addr: addr.clone(),
            client_addr: addr,
        }
    }

    fn state() -> State {
        let members = vec![member(1, 11), member(2, 12), member(3, 13)];
        State::new(&Genesis { cluster: ClusterId(5), history: HistoryId(6), members })
    }

    fn reserve(term: u64, node: u64, until: u64) -> Command {
        let owner = Owner { term: Term(term), node: NodeId(node), boot: BootId(node) };
        Command::Reserve { owner, until: Epoch(until) }
    }

    fn assigned(outcome: &Outcome) -> (u64, u64) {
        match outcome {
            Outcome::Assigned(_, range) => (range.low.0, range.high.0),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn two_equal_proposals_never_own_the_same_range() {
        let mut state = state();
        let (a, b) = (reserve(1, 1, 5000), reserve(1, 1, 5000));
        assert_eq!(assigned(&state.apply(Term(1), &a)), (0, 5000));
        assert_eq!(assigned(&state.apply(Term(1), &b)), (5000, 5000 + WIDTH_MIN_NS));
    }

    #[test]
    fn a_proposal_of_another_term_owns_nothing() {
        let mut state = state();
        let before = state.clone();
        assert_eq!(state.apply(Term(2), &reserve(1, 1, 5000)), Outcome::Stale);
        assert_eq!(state, before);
    }

    #[test]
    fn a_clock_set_back_still_gets_a_range_above_the_ceiling() {
        let mut state = state();
        state.apply(Term(1), &reserve(1, 1, 1_000_000));
        let (low, high) = assigned(&state.apply(Term(2), &reserve(2, 2, 10)));
        assert_eq!((low, high), (1_000_000, 1_000_000 + WIDTH_MIN_NS));
    }

    #[test]
    fn at_the_end_of_time_nothing_is_assigned() {
        let mut state = state();
        state.apply(Term(1), &reserve(1, 1, u64::MAX));
        assert_eq!(state.apply(Term(1), &reserve(1, 1, u64::MAX)), Outcome::Exhausted);
    }

    #[test]
    fn a_removed_id_and_a_known_store_are_never_admitted_again() {
        let mut state = state();
        let change = |step| MembershipChange { nonce: 1, steps: vec![step] };
        let voters = |ids: &[u64]| Configuration {
            voters: ids.iter().map(|id| NodeId(*id)).collect(),
            ..Configuration::default()
        };
        let remove = change(MembershipStep::Remove(NodeId(3)));
        assert_eq!(state.check_change(&remove), Ok(()));
        state.apply_change(&remove, &voters(&[1, 2]));
        assert!(state.check_change(&remove).is_err());
        for refused in [member(3, 99), member(2, 99), member(4, 11), member(0, 99)] {
            let add = change(MembershipStep::AddLearner(refused));
            assert!(state.check_change(&add).is_err());
        }
        let add = change(MembershipStep::AddLearner(member(4, 14)));
        assert_eq!(state.check_change(&add), Ok(()));
        let learning = Configuration { learners: vec![NodeId(4)], ..voters(&[1, 2]) };
        state.apply_change(&add, &learning);
        assert_eq!(state.store_of(NodeId(4)), StoreId(14));
        assert_eq!(State::decode(&state.encode()), Ok(state));
    }

    #[test]
    fn an_outgoing_voter_stays_bound_until_the_joint_configuration_is_left() {
        let mut state = state();
        let joint = Configuration {
            voters: vec![NodeId(1), NodeId(2)],
            voters_outgoing: vec![NodeId(1), NodeId(2), NodeId(3)],
            ..Configuration::default()
        };
        let remove = MembershipChange { nonce: 1, steps: vec![MembershipStep::Remove(NodeId(3))] };
        state.apply_change(&remove, &joint);
        assert_eq!(state.store_of(NodeId(3)), StoreId(13));
        state.reconcile(&Configuration { voters_outgoing: vec![], ..joint });
        assert_eq!(state.store_of(NodeId(3)), StoreId(0));
        assert!(state.removed.contains(&NodeId(3)));
    }

    #[test]
    fn an_address_changes_only_for_the_bound_data_directory() {
        let mut state = state();
        let moved = Member { client_addr: "new:2".into(), ..member(2, 12) };
        let outcome = state.apply(Term(1), &Command::Readdress(moved.clone()));
        assert_eq!(outcome, Outcome::Readdressed(NodeId(2)));
        assert_eq!(state.members[&NodeId(2)], moved);
        let stranger = Command::Readdress(Member { store: StoreId(99), ..moved });
        assert!(matches!(state.apply(Term(1), &stranger), Outcome::Refused(_)));
    }

    proptest! {
        #[test]
        fn ranges_are_disjoint_and_rise(
            steps in prop::collection::vec((1_u64..4, 1_u64..4, 0_u64..u64::MAX, any::<bool>()), 1..50),
        ) {
            let mut state = state();
            let mut last_high = 0;
            for (term, node, until, is_stale) in steps {
                let committed = Term(if is_stale { term + 1 } else { term });
                match state.apply(committed, &reserve(term, node, until)) {
                    Outcome::Assigned(owner, range) => {
                        prop_assert!(!is_stale);
                        prop_assert_eq!(range.low.0, last_high);
                        prop_assert!(range.high > range.low);
                        prop_assert_eq!(state.owner, Some((owner, range)));
                        last_high = range.high.0;
                    }
                    Outcome::Stale => prop_assert!(is_stale),
                    other => prop_assert_eq!(other, Outcome::Exhausted),
                }
                prop_assert_eq!(state.ceiling.0, last_high);
            }
            prop_assert_eq!(State::decode(&state.encode()), Ok(state));
        }

        #[test]
        fn commands_round_trip_and_garbage_never_panics(
            term: u64, node: u64, until: u64, bytes: Vec<u8>,
        ) {
            let change = MembershipChange {
                nonce: until,
                steps: vec![
                    MembershipStep::AddLearner(member(node, 7)),
                    MembershipStep::Promote(NodeId(term)),
                    MembershipStep::Remove(NodeId(until)),
                ],
            };
            for command in [reserve(term, node, until), Command::Readdress(member(node, 3))] {
                prop_assert_eq!(Command::decode(&command.encode()), Ok(command));
            }
            prop_assert_eq!(MembershipChange::decode(&change.encode()), Ok(change));
            let _ = (State::decode(&bytes), Command::decode(&bytes));
            let _ = MembershipChange::decode(&bytes);
        }
    }
}
