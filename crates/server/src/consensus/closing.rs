//! The end of interval mode at this node (S26): its stamper stops, the data directory has it, and then
//! the replica may say so. Which change it stops for, and what follows, the core decides.

use epicepoch_core::node::Node;
use epicepoch_wire::voter_status::Closed;

use crate::intervals::Intervals;
use crate::storage::WriterHandle;

/// The last change of the mode for which this node has stopped, perhaps not durably yet.
#[derive(Debug, Default)]
pub(super) struct Closing {
    closed: Option<Closed>,
}

impl Closing {
    /// Stops giving interval timestamps if interval mode closes, and has that written. Called at each
    /// tick, because a worker may hold the lock of the stamper.
    pub(super) fn begin_if_due(
        &mut self,
        node: &Node,
        intervals: &Intervals,
        writer: &WriterHandle,
    ) {
        let Some(change) = node.replica().closing_due() else { return };
        if self.closed.is_some_and(|it| it.change == change) {
            // It is on its way to the disk.
            return;
        }
        if let Some(given_ns) = intervals.close(change) {
            self.closed = Some(Closed { change, given_ns });
            writer.close_intervals(change);
        }
    }

    /// The data directory has it that this node has stopped for `change`.
    pub(super) fn handle_durable(&self, node: &mut Node, change: u64) {
        if let Some(closed) = self.closed.filter(|it| it.change == change) {
            tracing::info!(
                change,
                "this node gives no more interval timestamps: MODE becomes quorum"
            );
            node.replica_mut().handle_intervals_closed(closed);
        }
    }
}
