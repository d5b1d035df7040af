//! The way back from interval mode in a replica (S26): this node says that it has stopped, and a
//! leader that knows it of every node ends interval mode. What the leader knows is lost with its
//! leadership. The nodes say it in each answer to a heartbeat, so the next leader soon knows it.

use epicepoch_wire::voter_status::Closed;
use epicepoch_wire::{Epoch, NodeId};

use super::{Replica, Report};
use crate::closing::{Confirmations, Progress};
use crate::interval::Opening;

/// This node's part in the end of interval mode.
#[derive(Debug, Default)]
pub(super) struct Closing {
    /// This node has stopped for this change, durably.
    closed: Option<Closed>,
    /// What this leader knows of all nodes.
    confirmations: Confirmations,
    /// Ticks until the end may be proposed again.
    pause: usize,
}

impl Replica {
    /// Interval mode as applied here, if this node may give timestamps in it. A node that has applied
    /// its own removal may not: nobody would wait for it.
    pub(super) fn opening(&self) -> Option<Opening> {
        let is_member = self.state.members.contains_key(&self.config.identity.node);
        let open = self.state.intervals.as_ref().filter(|it| !it.is_closing && is_member)?;
        Some(Opening { ceiling: open.ceiling, change: self.state.mode_changes })
    }

    /// The change for which this node must stop giving interval timestamps, durably. Then call
    /// [`Replica::handle_intervals_closed`].
    #[must_use]
    pub fn closing_due(&self) -> Option<u64> {
        let change = self.state.closing()?;
        (self.closing.closed.map(|it| it.change) != Some(change)).then_some(change)
    }

    /// This node has stopped giving interval timestamps, and the data directory has it.
    pub fn handle_intervals_closed(&mut self, closed: Closed) {
        self.closing.closed = Some(closed);
    }

    /// What this node says of itself to its leader.
    pub(super) fn closed(&self) -> Option<Closed> {
        let closing = self.state.closing()?;
        self.closing.closed.filter(|it| it.change == closing)
    }

    /// Records what a member says of itself. Its connection has proved its data directory.
    pub(super) fn record_closed(&mut self, node: NodeId, closed: Option<Closed>) {
        if let Some(closed) = closed {
            self.closing.confirmations.record(&self.state, node, closed);
        }
    }

    /// Records an operator's statement that these nodes run no more, after the change that it belongs
    /// to was proposed. Those that were removed in interval mode count as stopped for this run of the
    /// node.
    pub fn record_gone(&mut self, gone: &[NodeId]) {
        // As in S13: trusted time is within one and a half bounds of right time.
        let offset_ns = self.state.clock_offset_widest_ms * 1_500_000;
        let (state, trusted_ns) = (&self.state, self.trusted_ns);
        self.closing.confirmations.record_gone(state, gone, trusted_ns, offset_ns);
    }

    /// How far the end of interval mode has come, as this leader knows; `None` if it does not close.
    #[must_use]
    pub fn closing_progress(&self) -> Option<Progress> {
        let mut progress = self.closing.confirmations.progress(&self.state)?;
        if self.closed().is_some() {
            let me = self.config.identity.node;
            progress.missing.retain(|node| *node != me);
        }
        Some(progress)
    }

    /// Trusted time of the last tick, Unix nanoseconds.
    #[must_use]
    pub const fn trusted_ns(&self) -> u64 {
        self.trusted_ns
    }

    /// Proposes the end of interval mode once it is due. A leader that has not applied its whole log
    /// does not know which change closes it.
    pub(super) fn end_intervals_if_due(&mut self) {
        self.closing.pause = self.closing.pause.saturating_sub(1);
        if self.state.closing().is_none() || self.closing.pause > 0 || !self.may_settle() {
            return;
        }
        let me = self.config.identity.node;
        self.record_closed(me, self.closed());
        let end = self.closing.confirmations.end(&self.state, self.trusted_ns);
        if let Some(command) = end {
            self.closing.pause = self.config.election_ticks;
            // If the proposal is dropped, it is made again after the pause.
            let _again = self.step(|raw| raw.propose(Vec::new(), command.encode()));
        }
    }

    /// Interval mode has ended. What this leader reserved in it may be below what nodes have given,
    /// so it is forgotten before anything is published (S26). The next tick reserves a new range.
    pub(super) fn begin_quorum_mode(&mut self, floor: Epoch) {
        self.grant = None;
        if let Some(it) = &mut self.reservation.giving_back {
            it.withdrawn = None;
        }
        assert!(self.state.range_end() >= floor, "S26: a range would begin below the floor");
        self.reports.push_back(Report::IntervalsEnded { floor });
        self.publish();
    }
}
