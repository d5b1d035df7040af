//! Whoever is given a vote, or leadership, is there (S12).

use epicepoch_core::replica::LAG_MAX;
use epicepoch_wire::{LogIndex, NodeId};

use super::{History, Invariant};

impl History {
    /// A leader that knows `committed` entries to be committed has taken an operator's order to
    /// promote a node whose disk holds entries up to `last`.
    pub(crate) fn promotes(&mut self, node: NodeId, last: LogIndex, committed: LogIndex) {
        if last.0 + LAG_MAX < committed.0 {
            self.violate(Invariant::CaughtUp, || {
                format!("{node} is promoted and holds {last} of {committed} committed entries")
            });
        }
    }

    /// A leader that knows `committed` entries to be committed hands over, because of its place, to a
    /// node whose disk holds entries up to `last`.
    pub(crate) fn prefers(&mut self, node: NodeId, last: LogIndex, committed: LogIndex) {
        if last.0 + LAG_MAX < committed.0 {
            self.violate(Invariant::CaughtUp, || {
                format!("{node} is preferred and holds {last} of {committed} committed entries")
            });
        }
    }
}
