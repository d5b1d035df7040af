//! Which offers of leadership this node follows.
//!
//! To follow an offer is to campaign at once, without a pre-vote. That deposes the leader. The
//! leader waits for its successor only for a moment; then it answers again, and reserves. A
//! successor that follows the offer after that deposes a leader that answers, and loses the
//! election if its log lacks the reservation. So a node follows an offer only while it is current:
//! - All events that have arrived are handled, and the entry that the offer names is still the last
//!   of the log.
//! - The node was not paused a moment ago. Otherwise the offer may have waited in a socket for as
//!   long as the pause.
//! - The node's own disk is free, so that its vote is durable in time.
//!
//! These rules cannot exclude that an offer comes too late, because a link may delay it. Order and
//! uniqueness do not depend on them (S18).

use epicepoch_wire::raft_message::RaftMessage;
use epicepoch_wire::{LogIndex, NodeId, Term};

use super::Replica;
use crate::translate;

/// The offer that is to be followed, and whether this node was paused.
#[derive(Debug)]
pub(super) struct Offers {
    /// The offer of the newest term, with its sender, until all events that have arrived are
    /// handled.
    waiting: Option<(NodeId, RaftMessage)>,
    /// When the last tick came; `None` before the first.
    ticked_ns: Option<u64>,
    /// How many ticks have come in time since the last late one.
    in_time: usize,
}

impl Default for Offers {
    fn default() -> Self {
        // No message can have waited for a process that has just started.
        Self { waiting: None, ticked_ns: None, in_time: IN_TIME_MIN }
    }
}

impl Replica {
    /// Keeps an offer of leadership until all events that have arrived are handled.
    pub(super) fn record_offer(&mut self, from: NodeId, offer: &RaftMessage) {
        let is_older = |(_, known): &(NodeId, RaftMessage)| known.term > offer.term;
        if !self.offers.waiting.as_ref().is_some_and(is_older) {
            self.offers.waiting = Some((from, offer.clone()));
        }
    }

    /// Follows the offer of leadership that has arrived, if it is still current. Call this when all
    /// events that have arrived are handled, before a tick.
    pub fn follow_offer(&mut self, now_ns: u64) {
        let Some((from, offer)) = self.offers.waiting.take() else { return };
        self.now_ns = now_ns;
        if self.may_take_over()
            && self.is_last_entry_of(&offer)
            && self.is_disk_free_for(&offer)
            && !self.was_paused()
        {
            let message = translate::library_message(from, &offer);
            // An error means that the library ignored the offer.
            let _ignored = self.step(|raw| raw.step(message));
        }
    }

    /// Names the last entry of the log in an offer of leadership.
    pub(super) fn name_last_entry(&self, offer: &mut RaftMessage) {
        let log = &self.raw.raft.raft_log;
        (offer.index, offer.log_term) = (LogIndex(log.last_index()), Term(log.last_term()));
    }

    /// Whether the entry that an offer names is the last one of this node's log. Without the entry,
    /// this node would lose the election. A later entry shows that the leader has gone on since.
    /// The offers of a leader that steps down, and those of older versions, name no entry.
    fn is_last_entry_of(&self, offer: &RaftMessage) -> bool {
        let log = &self.raw.raft.raft_log;
        let last = (LogIndex(log.last_index()), Term(log.last_term()));
        offer.index == LogIndex(0) || (offer.index, offer.log_term) == last
    }

    /// Whether this node's disk has no old write. The rule is that of the sender: leadership is
    /// offered right behind an entry only to a voter whose disk is fast. If the entry is durable
    /// here, the leader has waited for that, and only [`Replica::may_take_over`] counts.
    fn is_disk_free_for(&self, offer: &RaftMessage) -> bool {
        let is_durable = offer.index.0 <= self.raw.raft.raft_log.persisted;
        is_durable || self.outbox.oldest_ticks() <= self.fast_write_ticks()
    }

    /// Records a tick, and whether it came in time.
    pub(super) fn record_tick(&mut self) {
        let in_time = self.offers.in_time.saturating_add(1);
        self.offers.in_time = if self.is_tick_late() { 0 } else { in_time };
        self.offers.ticked_ns = Some(self.now_ns);
    }

    /// Whether this node was paused a moment ago: its next tick is late, or one of the last ones
    /// was.
    fn was_paused(&self) -> bool {
        self.is_tick_late() || self.offers.in_time < IN_TIME_MIN
    }

    fn is_tick_late(&self) -> bool {
        let limit_ns = self.config.tick_ns + self.election_ns() / LATE_PARTS;
        self.offers.ticked_ns.is_some_and(|at| self.now_ns.saturating_sub(at) > limit_ns)
    }
}

/// A node counts as paused if a tick comes too late by more than an election timeout divided by
/// this: 50 ms by default, half of the time for which a leader waits for its successor.
const LATE_PARTS: u64 = 4;
/// After a late tick, a node follows no offer until so many ticks have come in time. By then it has
/// read all that waited in its sockets.
const IN_TIME_MIN: usize = 2;
