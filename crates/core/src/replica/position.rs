//! Positions of data directories at a replica: numbers its writes over all runs, takes in what
//! peers name, and refuses whoever was set back. What it remembers of others is stored with the
//! next write, so that it costs no write of its own.

use epicepoch_wire::{BootId, NodeId, StorePosition};

use super::Replica;
use crate::durable::Write;
use crate::positions::{Positions, SetBack};

/// See the module.
#[derive(Debug)]
pub(super) struct Places {
    /// Before this run's first write.
    base: StorePosition,
    pub(super) known: Positions,
    /// Whether what is known of peers is newer than what was handed out to be stored.
    is_news: bool,
}

impl Places {
    pub(super) fn new(restored: &Positions) -> Self {
        Self { base: restored.own, known: restored.clone(), is_news: false }
    }
}

impl Replica {
    /// A member introduces itself, with where its run began.
    ///
    /// # Errors
    /// When it was set back to an older state: refuse it, and every connection of that run.
    pub fn handle_greeting(
        &mut self,
        from: NodeId,
        boot: BootId,
        began: StorePosition,
    ) -> Result<(), SetBack> {
        if !self.state.members.contains_key(&from) {
            return Ok(());
        }
        let heard = self.positions.known.greet(from, boot, began);
        self.take_heard(heard)
    }

    /// A member answers where its data directory stands, to a question that was sent when this node
    /// knew `since` of it.
    ///
    /// # Errors
    /// When it was set back: refuse it. Its messages are not taken until another run of it
    /// introduces itself with enough.
    pub fn handle_position(
        &mut self,
        from: NodeId,
        boot: BootId,
        named: StorePosition,
        since: StorePosition,
    ) -> Result<(), SetBack> {
        if !self.state.members.contains_key(&from) {
            return Ok(());
        }
        let heard = self.positions.known.hear(from, boot, named, since);
        self.take_heard(heard)
    }

    fn take_heard(&mut self, heard: Result<bool, SetBack>) -> Result<(), SetBack> {
        if heard != Ok(false) {
            self.positions.is_news |= heard == Ok(true);
            self.publish_positions();
        }
        heard.map(drop)
    }

    /// How far this node's data directory has come: durable, whatever happens now.
    #[must_use]
    pub fn position(&self) -> StorePosition {
        StorePosition(self.positions.base.0 + self.outbox.written())
    }

    /// How far it had come when this run began.
    #[must_use]
    pub fn began(&self) -> StorePosition {
        self.positions.base
    }

    pub(super) fn publish_positions(&mut self) {
        self.positions.known.own = self.position();
        self.shared.set_positions(self.positions.known.clone());
    }

    /// Numbers a write over all runs, and adds to it what is news of peers, in the same
    /// transaction.
    pub(super) fn attach_positions(&mut self, write: &mut Write) {
        if write.is_empty() {
            return;
        }
        let places = &mut self.positions;
        write.position = StorePosition(places.base.0 + write.number);
        if std::mem::take(&mut places.is_news) {
            let members = &self.state.members;
            places.known.peers.retain(|node, _| members.contains_key(node));
            write.peer_positions = Some(places.known.peers.clone());
        }
    }
}
