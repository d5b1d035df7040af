//! The rule "persist, then send" as data. A message is held until the write that it depends on is
//! durable. It waits for no other write, so a slow disk does not silence a healthy leader.

use std::collections::VecDeque;

use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::{NodeId, Term};

use crate::durable::{HardState, Write};

/// A message that may leave now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The receiver.
    pub to: NodeId,
    /// The message.
    pub message: RaftMessage,
}

/// Writes and messages on their way out.
#[derive(Debug)]
pub(super) struct Outbox {
    writes: VecDeque<Write>,
    /// Numbers of the writes that are not durable yet, each with how many ticks it has waited.
    outstanding: VecDeque<(u64, usize)>,
    /// Number of the last step, with or without a write.
    last: u64,
    /// The last durable step; all steps before it are durable, too.
    durable: u64,
    /// Number of the last durable write.
    written: u64,
    /// The step that wrote the latest term and vote.
    vote_at: u64,
    vote: (Term, NodeId),
    held: VecDeque<(u64, Outgoing)>,
    slowest: Slowest,
}

/// The slowest of the last writes, in ticks. Each period covers [`SLOWEST_PERIOD_ELECTIONS`]
/// election timeouts, and the one before it counts, too.
#[derive(Clone, Copy, Debug, Default)]
struct Slowest {
    period: usize,
    before: usize,
    ticks: usize,
}

impl Outbox {
    pub(super) fn new(stored: HardState) -> Self {
        Self {
            writes: VecDeque::new(),
            outstanding: VecDeque::new(),
            last: 0,
            durable: 0,
            written: 0,
            vote_at: 0,
            vote: (stored.term, stored.vote),
            held: VecDeque::new(),
            slowest: Slowest::default(),
        }
    }

    /// Queues the write of a step. Returns whether the step is durable at once: it is empty, and no
    /// earlier write is outstanding.
    pub(super) fn push_write(&mut self, write: Write) -> bool {
        assert!(write.number == self.last + 1, "steps are numbered one after the other");
        self.last = write.number;
        if let Some(hard_state) = write.hard_state {
            let vote = (hard_state.term, hard_state.vote);
            // S6: a term or a vote that was promised is never taken back.
            assert!(vote.0 >= self.vote.0, "S6: the term went back");
            if vote != self.vote {
                self.vote = vote;
                self.vote_at = write.number;
            }
        }
        if write.is_empty() {
            if self.outstanding.is_empty() {
                self.durable = write.number;
                return true;
            }
            return false;
        }
        self.outstanding.push_back((write.number, 0));
        self.writes.push_back(write);
        false
    }

    /// Queues a message of the step `number`. The library hands out a leader's messages before
    /// their step is written. For a follower's messages, `is_after_write` is true.
    pub(super) fn push_message(&mut self, number: u64, message: RaftMessage, is_after_write: bool) {
        let promises_vote_only = match message.kind {
            // These messages depend on the sender's term, and on no part of its log.
            MessageKind::Heartbeat
            | MessageKind::HeartbeatResponse
            | MessageKind::Snapshot
            | MessageKind::TimeoutNow => true,
            // A leader replicates while it writes (dissertation, 10.2.1): its own copy counts only
            // once it is durable.
            MessageKind::Append => !is_after_write,
            // A rejection promises no entry.
            MessageKind::AppendResponse => message.reject,
            MessageKind::RequestVote
            | MessageKind::RequestVoteResponse
            | MessageKind::RequestPreVote
            | MessageKind::RequestPreVoteResponse => false,
        };
        let after = if promises_vote_only { self.vote_at } else { number };
        // S6: the term of every message that leaves is durable.
        assert!(after >= self.vote_at, "S6: a message would leave before its term is durable");
        self.held.push_back((after, Outgoing { to: message.to, message }));
    }

    /// Queues an offer of leadership that the library does not send: behind the entry that a leader
    /// gives its range back with, or as the last message of a leader that gives up. It leaves after
    /// the appends that were queued before it.
    pub(super) fn push_offer(&mut self, message: RaftMessage) {
        // The message promises only its term.
        self.held.push_back((self.vote_at, Outgoing { to: message.to, message }));
    }

    /// The writes up to `number` are durable. Returns the last durable step, including empty steps
    /// after the write.
    pub(super) fn persisted(&mut self, number: u64) -> u64 {
        assert!(number <= self.last, "a write is durable that was never handed out");
        while let Some((_, ticks)) = self.outstanding.pop_front_if(|(first, _)| *first <= number) {
            self.slowest.period = self.slowest.period.max(ticks);
        }
        self.written = self.written.max(number);
        self.durable = match self.outstanding.front() {
            Some((next, _)) => next - 1,
            None => self.last,
        };
        self.durable
    }

    /// The number of the last durable write; 0 before the first.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    pub(super) fn poll_write(&mut self) -> Option<Write> {
        self.writes.pop_front()
    }

    pub(super) fn poll_message(&mut self) -> Option<Outgoing> {
        let position = self.held.iter().position(|(after, _)| *after <= self.durable)?;
        self.held.remove(position).map(|(_, outgoing)| outgoing)
    }

    /// Counts a tick for the outstanding writes.
    pub(super) fn tick(&mut self, election_ticks: usize) {
        for (_, ticks) in &mut self.outstanding {
            *ticks += 1;
        }
        let slowest = &mut self.slowest;
        slowest.ticks += 1;
        if slowest.ticks >= SLOWEST_PERIOD_ELECTIONS * election_ticks {
            *slowest = Slowest { before: slowest.period, ..Slowest::default() };
        }
    }

    /// For how many ticks the slowest of the last writes was outstanding, or is until now.
    pub(super) fn slowest_ticks(&self) -> usize {
        self.slowest.period.max(self.slowest.before).max(self.oldest_ticks())
    }

    /// How many writes are outstanding.
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// For how many ticks the oldest write has been outstanding.
    pub(super) fn oldest_ticks(&self) -> usize {
        self.outstanding.front().map_or(0, |(_, ticks)| *ticks)
    }

    /// How many messages are held.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Drops held messages beyond `limit`, the oldest first; Raft sends them again.
    pub(super) fn limit_held(&mut self, limit: usize) {
        while self.held.len() > limit {
            self.held.pop_front();
        }
    }
}

/// Election timeouts of one period of [`Slowest`]: 1 s by default.
const SLOWEST_PERIOD_ELECTIONS: usize = 5;
