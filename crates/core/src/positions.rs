//! Detects a data directory that was rolled back to an older state (a restored copy, a snapshot of
//! a virtual machine). Every durable write has a rising number, its position. Nodes name their
//! positions to each other, and each remembers durably the highest position that each peer has
//! named. A directory that names a lower position has forgotten promises, and is refused. Nothing
//! here reads a clock.
//!
//! Positions travel over several connections, so an older one may arrive after a newer one. Only
//! two cases show that a directory was rolled back. In the first, a boot *began* below a position
//! that an earlier boot had named. In the second, an answer names less than the position that was
//! known when the question was sent.
//!
//! Raft assumes that a disk loses only writes that it never acknowledged. This check notices when
//! the assumption is broken, as long as a peer remembers the directory's position.

use std::collections::BTreeMap;

use epicepoch_wire::{BootId, NodeId, StorePosition};

/// The positions that a data directory knows: its own, and those that peers have named.
///
/// Invariant: no position ever goes back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Positions {
    /// The number of this directory's last durable write, over all boots.
    pub own: StorePosition,
    /// The highest position that each other member has named.
    pub peers: BTreeMap<NodeId, Heard>,
    /// Peers that were found rolled back in this boot, until a later boot of theirs names a
    /// position that is high enough. Never stored.
    pub rolled_back: BTreeMap<NodeId, RolledBack>,
}

/// The highest position that a peer has named, and in which boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The boot.
    pub boot: BootId,
    /// The position.
    pub position: StorePosition,
}

/// A peer has named a position below one that it named before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolledBack {
    /// The position that it names now.
    pub named: StorePosition,
    /// The position that it named before.
    pub remembered: StorePosition,
}

/// A boot of a peer, as its hello names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerBoot {
    /// The peer.
    pub node: NodeId,
    /// The boot.
    pub boot: BootId,
    /// The position at which the boot began.
    pub began: StorePosition,
}

impl Positions {
    /// The highest position that a peer has named; 0 for an unknown peer.
    #[must_use]
    pub fn of(&self, node: NodeId) -> StorePosition {
        self.peers.get(&node).map_or(StorePosition(0), |heard| heard.position)
    }

    /// Checks that a peer has forgotten nothing. An unknown peer passes.
    ///
    /// # Errors
    /// When another boot has named a higher position, or this boot was found rolled back.
    pub fn check(&self, peer: PeerBoot) -> Result<(), RolledBack> {
        let PeerBoot { node, boot, began } = peer;
        match self.peers.get(&node) {
            Some(heard) if heard.boot != boot && began < heard.position => {
                Err(RolledBack { named: began, remembered: heard.position })
            }
            Some(heard) if heard.boot == boot => {
                self.rolled_back.get(&node).copied().map_or(Ok(()), Err)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Handles the hello of a peer. Returns whether it names a new position.
    ///
    /// # Errors
    /// When the peer was rolled back: it must not count as that member.
    pub fn handle_hello(
        &mut self,
        node: NodeId,
        boot: BootId,
        began: StorePosition,
    ) -> Result<bool, RolledBack> {
        self.check(PeerBoot { node, boot, began })?;
        self.rolled_back.remove(&node);
        let position = began.max(self.of(node));
        Ok(self.peers.insert(node, Heard { boot, position }) != Some(Heard { boot, position }))
    }

    /// Handles an answer of a peer that names its position. The question was sent when `since` was
    /// the highest known. Returns whether the position is new.
    ///
    /// # Errors
    /// When the peer names less than `since`: its machine was rolled back while it ran.
    pub fn hear(
        &mut self,
        node: NodeId,
        boot: BootId,
        named: StorePosition,
        since: StorePosition,
    ) -> Result<bool, RolledBack> {
        if named < since {
            let rolled_back = RolledBack { named, remembered: self.of(node) };
            self.rolled_back.insert(node, rolled_back);
            return Err(rolled_back);
        }
        let is_news = named > self.of(node);
        if is_news {
            self.peers.insert(node, Heard { boot, position: named });
        }
        Ok(is_news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: NodeId = NodeId(2);
    const OLD: BootId = BootId(1);
    const NEW: BootId = BootId(2);

    fn at(position: u64) -> StorePosition {
        StorePosition(position)
    }

    fn peer(boot: BootId, began: u64) -> PeerBoot {
        PeerBoot { node: PEER, boot, began: at(began) }
    }

    #[test]
    fn a_boot_that_begins_below_a_named_position_was_rolled_back() {
        let mut positions = Positions::default();
        assert_eq!(positions.handle_hello(PEER, OLD, at(5)), Ok(true));
        assert_eq!(positions.hear(PEER, OLD, at(9), at(5)), Ok(true));
        let rolled_back = RolledBack { named: at(8), remembered: at(9) };
        assert_eq!(positions.handle_hello(PEER, NEW, at(8)), Err(rolled_back));
        assert_eq!(
            positions.handle_hello(PEER, NEW, at(9)),
            Ok(true),
            "what was refused left no trace"
        );
    }

    #[test]
    fn older_words_of_the_same_run_that_come_late_say_nothing() {
        let mut positions = Positions::default();
        positions.handle_hello(PEER, OLD, at(5)).unwrap();
        positions.hear(PEER, OLD, at(9), at(5)).unwrap();
        assert_eq!(positions.handle_hello(PEER, OLD, at(5)), Ok(false), "another connection");
        assert_eq!(positions.hear(PEER, OLD, at(7), at(5)), Ok(false), "asked before 9 was heard");
        assert_eq!(positions.hear(PEER, OLD, at(9), at(9)), Ok(false), "nothing was written since");
        assert_eq!(positions.of(PEER), at(9));
    }

    #[test]
    fn a_run_that_says_less_than_was_known_when_it_was_asked_was_set_back_while_it_ran() {
        let mut positions = Positions::default();
        positions.handle_hello(PEER, OLD, at(5)).unwrap();
        positions.hear(PEER, OLD, at(9), at(5)).unwrap();
        let rolled_back = RolledBack { named: at(6), remembered: at(9) };
        assert_eq!(positions.hear(PEER, OLD, at(6), at(9)), Err(rolled_back));
        assert_eq!(positions.check(peer(OLD, 5)), Err(rolled_back), "its next connection, too");
        assert_eq!(
            positions.handle_hello(PEER, NEW, at(9)),
            Ok(true),
            "the newest directory is back"
        );
        assert_eq!(positions.check(peer(NEW, 9)), Ok(()));
    }
}
