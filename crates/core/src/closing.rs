//! The way back from interval mode (S26), without IO: what a node says when it has stopped giving
//! interval timestamps, and what a leader knows of these nodes. When every node that may give them
//! has stopped, the leader ends interval mode above all that they have given.
//!
//! A confirmation is of one change of the mode. It never expires: the node gives nothing more until
//! it has applied a later change, in later runs, too. It never decides whether a node may stamp.

use std::collections::{BTreeMap, BTreeSet};

use epicepoch_wire::NodeId;
use epicepoch_wire::voter_status::Closed;

use crate::interval::STAMP_AHEAD_NS_MAX;
use crate::state::{Command, State};

/// What a leader knows of the nodes that have stopped for the change by which interval mode closes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confirmations {
    change: u64,
    /// The highest time that each of them has given, Unix nanoseconds.
    given: BTreeMap<NodeId, u64>,
    /// The nodes of which an operator has stated that they run no more, each with a time that none of
    /// its timestamps is above. That holds for every change.
    gone: BTreeMap<NodeId, u64>,
}

/// How far the end of interval mode has come, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The members that are not known to have stopped.
    pub missing: Vec<NodeId>,
    /// The nodes that were removed in interval mode, and are not known to have stopped.
    pub removed: Vec<NodeId>,
    /// The highest time that any of the others has given, Unix nanoseconds. Quorum mode begins above
    /// it, once the clock has passed it.
    pub highest_ns: u64,
}

impl Confirmations {
    /// A node says that it has stopped. `closed` came from the data directory that its id is bound to.
    /// A confirmation of another change than that of the state is ignored.
    pub fn record(&mut self, state: &State, node: NodeId, closed: Closed) {
        if state.closing() != Some(closed.change) {
            return;
        }
        if self.change != closed.change {
            self.change = closed.change;
            self.given.clear();
        }
        self.given.insert(node, closed.given_ns);
    }

    /// An operator states that these nodes, which were removed in interval mode, run no more and never
    /// will. `trusted_ns` is trusted time now, and a right clock is off it by at most `offset_ns`.
    /// Other nodes are ignored.
    ///
    /// Nothing has a mark of such a node. While its clock was within its bound, it gave nothing
    /// further ahead of true time than [`STAMP_AHEAD_NS_MAX`].
    pub fn record_gone(&mut self, state: &State, gone: &[NodeId], trusted_ns: u64, offset_ns: u64) {
        let Some(intervals) = &state.intervals else { return };
        let given_ns = trusted_ns.saturating_add(offset_ns).saturating_add(STAMP_AHEAD_NS_MAX);
        for node in gone.iter().filter(|node| intervals.removed.contains(node)) {
            // Repeating the statement does not move the time.
            self.gone.entry(*node).or_insert(given_ns);
        }
    }

    /// The entry that ends interval mode, if all have stopped, and trusted time has passed what they
    /// have given. So the ceiling is not ahead of the clock afterwards, as S11 and S13 assume.
    #[must_use]
    pub fn end(&self, state: &State, trusted_ns: u64) -> Option<Command> {
        let Progress { missing, removed, highest_ns } = self.progress(state)?;
        let is_due = missing.is_empty() && removed.is_empty() && trusted_ns >= highest_ns;
        let stopped: BTreeSet<_> = self.named(state).into_keys().collect();
        let change = state.closing()?;
        is_due.then_some(Command::EndIntervals { change, highest_ns, stopped })
    }

    /// How far the end of interval mode has come; `None` if it does not close.
    #[must_use]
    pub fn progress(&self, state: &State) -> Option<Progress> {
        state.closing()?;
        let given = self.named(state);
        let is_missing = |node: &NodeId| !given.contains_key(node);
        let missing = state.members.keys().copied().filter(is_missing).collect();
        let removed = state.intervals.iter().flat_map(|it| &it.removed).copied();
        let removed = removed.filter(is_missing).collect();
        let highest_ns = given.values().copied().max().unwrap_or(0);
        Some(Progress { missing, removed, highest_ns })
    }

    /// The confirmations of the nodes that must have stopped, for the change of the state.
    fn named(&self, state: &State) -> BTreeMap<NodeId, u64> {
        let is_current = state.closing() == Some(self.change);
        let confirmed = |node| self.given.get(&node).filter(|_| is_current);
        // What a node itself has confirmed is exact.
        let of = |node| confirmed(node).or_else(|| self.gone.get(&node));
        state.may_give_intervals().filter_map(|node| Some((node, *of(node)?))).collect()
    }
}

#[cfg(test)]
mod tests;
