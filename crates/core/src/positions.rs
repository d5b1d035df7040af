//! What tells a data directory that was set back to an older state (a restored copy, a snapshot of a
//! virtual machine): every durable write has a number that only rises, nodes name theirs to each
//! other, and each remembers, durably, the highest that each peer has named. A store that names
//! less than it did has forgotten promises: it is refused. Nothing here reads a clock, or decides
//! anything about a store that says enough.
//!
//! What a node says travels over several connections, so that older words may come after newer
//! ones. Two things are never explained by that: a run that *began* with less than an earlier run
//! had named, and an answer that says less than was known when the question was sent.
//!
//! Raft assumes a disk that only loses what it never acknowledged; this is what notices that the
//! assumption is broken, as long as anybody remembers.

use std::collections::BTreeMap;

use epicepoch_wire::{BootId, NodeId, StorePosition};

use crate::planted::{self, Bug};

/// What a data directory knows of writes: its own, and its peers' as they named them.
///
/// Invariant: no position in it ever goes back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Positions {
    /// The number of its own last durable write, over all runs.
    pub own: StorePosition,
    /// What each other member has named.
    pub peers: BTreeMap<NodeId, Heard>,
    /// Peers that were found set back in this run, until another run of them names enough. Never
    /// stored.
    pub set_back: BTreeMap<NodeId, SetBack>,
}

/// The highest position that a peer has named, and in which run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The run.
    pub boot: BootId,
    /// The position.
    pub position: StorePosition,
}

/// A peer names a position below one that it has named before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetBack {
    /// What it names now.
    pub named: StorePosition,
    /// What it named before.
    pub remembered: StorePosition,
}

impl Positions {
    /// The highest position that a peer has named; 0 for one that was never heard.
    #[must_use]
    pub fn of(&self, node: NodeId) -> StorePosition {
        self.peers.get(&node).map_or(StorePosition(0), |heard| heard.position)
    }

    /// Whether a peer whose run `boot` began at `began` may still have what it had. A peer that was
    /// never heard is believed.
    ///
    /// # Errors
    /// When an earlier run of it has named more, or this run was found set back.
    pub fn check(&self, node: NodeId, boot: BootId, began: StorePosition) -> Result<(), SetBack> {
        match self.peers.get(&node) {
            Some(heard) if heard.boot != boot && began < heard.position => {
                Err(SetBack { named: began, remembered: heard.position })
            }
            Some(heard) if heard.boot == boot => {
                self.set_back.get(&node).copied().map_or(Ok(()), Err)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// A peer introduces itself. Says whether that is news.
    ///
    /// # Errors
    /// When it was set back; then it is not taken for whom it was.
    pub fn greet(
        &mut self,
        node: NodeId,
        boot: BootId,
        began: StorePosition,
    ) -> Result<bool, SetBack> {
        self.check(node, boot, began)?;
        self.set_back.remove(&node);
        let position = began.max(self.of(node));
        Ok(self.peers.insert(node, Heard { boot, position }) != Some(Heard { boot, position }))
    }

    /// A peer answers where it stands, to a question that was sent when `since` was known of it.
    /// Says whether that is news.
    ///
    /// # Errors
    /// When it names less than that: its machine was set back while it ran.
    pub fn hear(
        &mut self,
        node: NodeId,
        boot: BootId,
        named: StorePosition,
        since: StorePosition,
    ) -> Result<bool, SetBack> {
        let known = self.of(node);
        if named < since || planted::is(Bug::OvertakenAccuses) && named < known {
            let set_back = SetBack { named, remembered: self.of(node) };
            self.set_back.insert(node, set_back);
            return Err(set_back);
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

    #[test]
    fn a_run_that_begins_below_what_an_earlier_one_named_was_set_back() {
        let mut positions = Positions::default();
        assert_eq!(positions.greet(PEER, OLD, at(5)), Ok(true));
        assert_eq!(positions.hear(PEER, OLD, at(9), at(5)), Ok(true));
        let set_back = SetBack { named: at(8), remembered: at(9) };
        assert_eq!(positions.greet(PEER, NEW, at(8)), Err(set_back));
        assert_eq!(positions.greet(PEER, NEW, at(9)), Ok(true), "what was refused left no trace");
    }

    #[test]
    fn older_words_of_the_same_run_that_come_late_say_nothing() {
        let mut positions = Positions::default();
        positions.greet(PEER, OLD, at(5)).unwrap();
        positions.hear(PEER, OLD, at(9), at(5)).unwrap();
        assert_eq!(positions.greet(PEER, OLD, at(5)), Ok(false), "another connection");
        assert_eq!(positions.hear(PEER, OLD, at(7), at(5)), Ok(false), "asked before 9 was heard");
        assert_eq!(positions.hear(PEER, OLD, at(9), at(9)), Ok(false), "nothing was written since");
        assert_eq!(positions.of(PEER), at(9));
    }

    #[test]
    fn a_run_that_says_less_than_was_known_when_it_was_asked_was_set_back_while_it_ran() {
        let mut positions = Positions::default();
        positions.greet(PEER, OLD, at(5)).unwrap();
        positions.hear(PEER, OLD, at(9), at(5)).unwrap();
        let set_back = SetBack { named: at(6), remembered: at(9) };
        assert_eq!(positions.hear(PEER, OLD, at(6), at(9)), Err(set_back));
        assert_eq!(positions.check(PEER, OLD, at(5)), Err(set_back), "its next connection, too");
        assert_eq!(positions.greet(PEER, NEW, at(9)), Ok(true), "the newest directory is back");
        assert_eq!(positions.check(PEER, NEW, at(9)), Ok(()));
    }
}
