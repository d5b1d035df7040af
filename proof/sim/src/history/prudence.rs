//! S12: a node that gets a vote, or leadership, is live. Live means two things: the leader that
//! decides has lately accepted a message from the node, and the node's disk has all but a few of
//! the committed entries. The leader's own view is not used.

use epicepoch_core::publication::Identity;
use epicepoch_core::state::{MembershipChange, MembershipStep};
use epicepoch_wire::{BootId, LogIndex, NodeId};

use super::{History, Invariant};
use crate::parameters::{ELECTION_TICKS, TICK_NS};

/// A leader's view when it decides.
#[derive(Clone, Debug)]
pub(crate) struct Deciding {
    pub(crate) who: Identity,
    /// The leader's monotonic clock, nanoseconds.
    pub(crate) monotonic_ns: u64,
    /// The leader's commit index.
    pub(crate) committed: LogIndex,
    /// The voters after any change under way.
    pub(crate) voters: Vec<NodeId>,
}

impl History {
    /// A process has accepted a message of a node.
    pub(crate) fn heard(&mut self, by: BootId, node: NodeId, monotonic_ns: u64) {
        self.heard_ns.entry(by).or_default().insert(node, monotonic_ns);
    }

    /// A leader has accepted an operator's change of the members.
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

    /// A leader gives a node a vote, or gives it leadership for an operator or because of its zone.
    /// The node's disk holds entries up to `last`; `None` for a rolled-back disk, which proves
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

    /// A leader has accepted an operator's command to hand over leadership. The command may name
    /// the next leader or leave the choice to the leader.
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

/// A live node may lack at most this many committed entries. The number is that of S12. It is not
/// read from the core, because the core's own number may be wrong.
const LACKING_MAX: u64 = 16;
/// A node counts as live if the leader has heard it within this time, nanoseconds: an election
/// timeout.
const HEARD_NS_MAX: u64 = ELECTION_TICKS as u64 * TICK_NS;
