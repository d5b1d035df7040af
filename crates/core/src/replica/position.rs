//! Positions of data directories at a replica. The replica numbers its writes over all boots,
//! records the positions that peers name, and refuses a peer that was rolled back. Positions of
//! peers are stored with the next write, so that they need no write of their own.

use epicepoch_wire::{BootId, NodeId, StorePosition};

use super::Replica;
use crate::durable::Write;
use crate::positions::{Positions, RolledBack};

/// The known positions, and whether they have to be stored.
#[derive(Debug)]
pub(super) struct KnownPositions {
    /// The position before this boot's first write.
    base: StorePosition,
    pub(super) known: Positions,
    /// Whether a peer has named a newer position since positions were last handed out to be stored.
    is_news: bool,
}

impl KnownPositions {
    pub(super) fn new(restored: &Positions) -> Self {
        Self { base: restored.own, known: restored.clone(), is_news: false }
    }
}

impl Replica {
    /// Handles the hello of a member: its boot, and the position at which that boot began.
    ///
    /// # Errors
    /// When the member was rolled back to an older state: refuse it, and every connection of that
    /// boot.
    pub fn handle_peer_hello(
        &mut self,
        from: NodeId,
        boot: BootId,
        began: StorePosition,
    ) -> Result<(), RolledBack> {
        if !self.state.members.contains_key(&from) {
            return Ok(());
        }
        let heard = self.positions.known.handle_hello(from, boot, began);
        self.take_heard(heard)
    }

    /// Handles the position that a member names in an answer. `since` is the highest position of
    /// that member that this node knew when it sent the question.
    ///
    /// # Errors
    /// When the member was rolled back: refuse it. Its messages are refused until a later boot of
    /// it names a position that is high enough.
    pub fn handle_position(
        &mut self,
        from: NodeId,
        boot: BootId,
        named: StorePosition,
        since: StorePosition,
    ) -> Result<(), RolledBack> {
        if !self.state.members.contains_key(&from) {
            return Ok(());
        }
        let heard = self.positions.known.hear(from, boot, named, since);
        self.take_heard(heard)
    }

    fn take_heard(&mut self, heard: Result<bool, RolledBack>) -> Result<(), RolledBack> {
        if heard != Ok(false) {
            self.positions.is_news |= heard == Ok(true);
            self.publish_positions();
        }
        heard.map(drop)
    }

    /// The position of this node's data directory: its last durable write.
    #[must_use]
    pub fn position(&self) -> StorePosition {
        StorePosition(self.positions.base.0 + self.outbox.written())
    }

    /// The position at which this boot began.
    #[must_use]
    pub fn began(&self) -> StorePosition {
        self.positions.base
    }

    pub(super) fn publish_positions(&mut self) {
        self.positions.known.own = self.position();
        self.shared.set_positions(self.positions.known.clone());
    }

    /// Numbers a write over all boots, and adds new positions of peers to the same transaction.
    pub(super) fn attach_positions(&mut self, write: &mut Write) {
        if write.is_empty() {
            return;
        }
        let positions = &mut self.positions;
        write.position = StorePosition(positions.base.0 + write.number);
        if std::mem::take(&mut positions.is_news) {
            let members = &self.state.members;
            positions.known.peers.retain(|node, _| members.contains_key(node));
            write.peer_positions = Some(positions.known.peers.clone());
        }
    }
}
