//! Whoever is given a vote, or leadership, is there (S12): heard by the leader that decides, as the
//! messages say that it has taken, and with all but a few of the committed entries on its disk. What a
//! leader believes of the others is not asked.

use epicepoch_core::publication::Identity;
use epicepoch_core::state::{MembershipChange, MembershipStep};
use epicepoch_wire::{BootId, LogIndex, NodeId};

use super::{History, Invariant};
use crate::node::{ELECTION_TICKS, TICK_NS};

/// A leader when it decides.
#[derive(Clone, Debug)]
pub(crate) struct Deciding {
    pub(crate) who: Identity,
    /// Its own clock, nanoseconds.
    pub(crate) monotonic_ns: u64,
    /// What it knows to be committed.
    pub(crate) committed: LogIndex,
    /// Those that vote once no change is under way.
    pub(crate) voters: Vec<NodeId>,
}

impl History {
    /// A run has taken a message of a node.
    pub(crate) fn heard(&mut self, by: BootId, node: NodeId, monotonic_ns: u64) {
        self.heard_ns.entry(by).or_default().insert(node, monotonic_ns);
    }

    /// A leader has taken an operator's order to change the members.
    pub(crate) fn changes(&mut self, leader: &Deciding, change: &MembershipChange) {
        let mut after = leader.voters.clone();
        for step in &change.steps {
            match step {
                MembershipStep::AddLearner(_) => {}
                MembershipStep::Promote(node) => after.push(*node),
                MembershipStep::Remove(node) => after.retain(|voter| voter != node),
            }
        }
        let me = leader.who.node;
        if leader.voters.contains(&me) && !after.contains(&me) {
            self.violate(Invariant::CaughtUp, || format!("{me} leads and is to be removed"));
        }
        let is_there = |node: &&NodeId| **node == me || self.is_heard(leader, **node);
        let there = after.iter().filter(is_there).count();
        if after != leader.voters && there * 2 <= after.len() {
            self.violate(Invariant::CaughtUp, || {
                format!("{leader:?} makes {after:?} voters and has heard {there} of them")
            });
        }
    }

    /// Somebody is given a vote, or leadership: as operators ask for it, or because of its place. Its disk
    /// holds entries up to `last`; that of a node that was set back, for which there is `None`, says
    /// nothing.
    pub(crate) fn trusts_with(
        &mut self,
        leader: &Deciding,
        given: &'static str,
        node: NodeId,
        last: Option<LogIndex>,
    ) {
        if !self.is_heard(leader, node) {
            self.violate(Invariant::CaughtUp, || {
                format!("{node} is given {given} and was not heard by {leader:?}")
            });
        }
        let committed = leader.committed;
        if let Some(last) = last
            && last.0 + LACKING_MAX < committed.0
        {
            self.violate(Invariant::CaughtUp, || {
                format!("{node} is given {given} and holds {last} of {committed} entries")
            });
        }
    }

    /// An operator's order to hand leadership over, to a node or to anybody, was taken.
    pub(crate) fn hands_over(&mut self, leader: &Deciding, to: NodeId, last: Option<LogIndex>) {
        if !leader.voters.contains(&to) {
            self.violate(Invariant::CaughtUp, || {
                format!("{to} is given leadership by {leader:?} and is no voter")
            });
        }
        self.trusts_with(leader, "leadership", to, last);
    }

    fn is_heard(&self, leader: &Deciding, node: NodeId) -> bool {
        let heard = self.heard_ns.get(&leader.who.boot).and_then(|heard| heard.get(&node));
        heard.is_some_and(|at| leader.monotonic_ns.saturating_sub(*at) <= HEARD_NS_MAX)
    }
}

/// Most committed entries that he may lack who is given a vote or leadership. S12 says how many: not taken
/// from the core, whose own number may be wrong.
const LACKING_MAX: u64 = 16;
/// Within which he has to have been heard, nanoseconds: an election timeout.
const HEARD_NS_MAX: u64 = ELECTION_TICKS as u64 * TICK_NS;
