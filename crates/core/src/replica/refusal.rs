//! Checks a peer's message before the library sees it. The checks refuse messages for another node,
//! from strangers, or from another data directory. They also refuse messages on which the library
//! would panic; no correct peer sends these. The checks change nothing.

use std::collections::BTreeSet;

use epicepoch_wire::raft_message::{Configuration, INDEX_MAX, MessageKind, RaftMessage, TERM_MAX};
use epicepoch_wire::{DecodeError, LogIndex, NodeId, StoreId, Term};

use raft::StateRole;

use super::{MessageError, Replica};
use crate::quorum::Voters;
use crate::state::{State, check_readable};

/// Whether an append's entries follow each other, in terms that never go back. For the library a
/// missing entry has term 0, so without this check it would append across a gap.
fn is_consecutive(message: &RaftMessage) -> bool {
    let mut before = (message.index, message.log_term);
    let is_start = before == (LogIndex(0), Term(0));
    let has_entry_before = before.0 > LogIndex(0) && before.1 > Term(0);
    (is_start || has_entry_before)
        && message.entries.iter().all(|entry| {
            let last = std::mem::replace(&mut before, (entry.index, entry.term));
            entry.index.0 == last.0.0 + 1
                && (last.1.max(Term(1))..=message.term).contains(&entry.term)
        })
}

/// Highest term that is accepted from a peer. A node at this term can still campaign four billion
/// times before its terms exceed the encoding.
const TERM_BELIEVED_MAX: Term = Term(TERM_MAX.0 - (1 << 32));

/// The highest index in a message. The entries are not examined, because their indexes follow the
/// message's own index.
fn highest_index(message: &RaftMessage) -> LogIndex {
    let snapshot = message.snapshot.as_ref().map_or(LogIndex(0), |snapshot| snapshot.index);
    message.index.max(message.commit).max(message.reject_hint).max(snapshot)
}

/// Whether our own changes of members can lead to this configuration. On many others the library
/// panics.
fn is_sound(configuration: &Configuration, state: &State) -> bool {
    let Configuration { voters, learners, voters_outgoing, learners_next, auto_leave } =
        configuration;
    let is_set = |list: &[NodeId]| list.is_sorted_by(|a, b| a < b);
    let voting: BTreeSet<&NodeId> = voters.iter().chain(voters_outgoing).collect();
    let learning: BTreeSet<&NodeId> = learners.iter().collect();
    !voters.is_empty()
        && [voters, learners, voters_outgoing].into_iter().all(|list| is_set(list))
        && learners_next.is_empty()
        && !auto_leave
        && voting.len() <= Voters::MAX
        && voting.is_disjoint(&learning)
        && voting.union(&learning).all(|node| state.members.contains_key(node))
}

impl Replica {
    pub(super) fn check_message(
        &self,
        from: NodeId,
        store: StoreId,
        message: &RaftMessage,
    ) -> Result<(), MessageError> {
        let me = self.config.identity.node;
        if message.to != me || from == me {
            return Err(MessageError::WrongReceiver);
        }
        // The library would take a message of term 0 for its own, and rewrite leader and log.
        let is_believable = (Term(1)..=TERM_BELIEVED_MAX).contains(&message.term)
            && highest_index(message) <= INDEX_MAX;
        if !is_believable {
            return Err(MessageError::Impossible);
        }
        let is_answer = match message.kind {
            MessageKind::AppendResponse
            | MessageKind::RequestVoteResponse
            | MessageKind::HeartbeatResponse
            | MessageKind::RequestPreVoteResponse => true,
            MessageKind::Append
            | MessageKind::RequestVote
            | MessageKind::Snapshot
            | MessageKind::Heartbeat
            | MessageKind::TimeoutNow
            | MessageKind::RequestPreVote => false,
        };
        match self.state.members.get(&from) {
            Some(member) if member.store != store => return Err(MessageError::WrongStore),
            _ if let Some(rolled_back) = self.positions.known.rolled_back.get(&from).copied() => {
                return Err(MessageError::RolledBack(rolled_back));
            }
            // A node that is not a known member may lead. But it has no vote, so its answers are
            // refused.
            None if is_answer || self.state.removed.contains(&from) => {
                return Err(MessageError::NotAMember);
            }
            Some(_) | None => {}
        }
        let log = &self.raw.raft.raft_log;
        let last = LogIndex(log.last_index());
        let is_current = message.term.0 >= self.raw.raft.term;
        match message.kind {
            // The library panics on a commit index beyond the log, and on an ack beyond the log.
            MessageKind::Heartbeat if is_current && message.commit > last => {
                Err(MessageError::LostEntries { commit: message.commit, last })
            }
            MessageKind::AppendResponse if !message.reject && message.index > last => {
                // A follower may get an ack of an entry that it has lost. It sent the entry as
                // leader of the same term, and then a restart lost the entry. The library ignores
                // that ack.
                let raft = &self.raw.raft;
                let is_mine = raft.state == StateRole::Leader && message.term.0 == raft.term;
                if is_mine { Err(MessageError::Impossible) } else { Ok(()) }
            }
            MessageKind::Append if !is_consecutive(message) => Err(MessageError::Impossible),
            MessageKind::Append if is_current && self.unreadable(message).is_some() => {
                self.unreadable(message).map_or(Ok(()), Err)
            }
            MessageKind::Append if is_current && self.contradicts_commit(message) => {
                Err(MessageError::ContradictsCommit)
            }
            MessageKind::Snapshot => self.check_snapshot(message),
            // No vote was requested yet: a request leaves only when the log is durable. A leader
            // whose log is not durable would make the library panic.
            MessageKind::RequestVoteResponse
                if is_current
                    && self.raw.raft.state == StateRole::Candidate
                    && log.persisted < last.0 =>
            {
                Err(MessageError::Impossible)
            }
            // A single voter has no leader to take over from. If it campaigned with a write
            // outstanding, the library would panic. A node that does not know yet that it votes may
            // get this message: the library ignores it.
            MessageKind::TimeoutNow if self.is_only_voter() => Err(MessageError::Impossible),
            _ if message.request_snapshot != LogIndex(0) => Err(MessageError::Impossible),
            _ => Ok(()),
        }
    }

    fn is_only_voter(&self) -> bool {
        let me = self.config.identity.node;
        self.voters.len() <= 1 && self.voters.iter().any(|(node, _)| node == me)
    }

    /// Whether an append would overwrite a committed entry. On such an append the library panics.
    /// Messages of elections tell a node what is committed, and those of pre-votes change no term. So
    /// a node may know what a leader of a term has committed that the node has not reached, and get a
    /// late append of a leader in between.
    fn contradicts_commit(&self, message: &RaftMessage) -> bool {
        let log = &self.raw.raft.raft_log;
        // A leader holds every entry that an earlier leader has committed. So the entry before its
        // append never has an older term than the last of these.
        let committed_term = log.term(log.committed).unwrap_or(0);
        if message.index.0 > log.committed && message.log_term.0 < committed_term
            || message.index.0 == log.committed && message.log_term.0 != committed_term
        {
            return true;
        }
        message.entries.iter().any(|entry| {
            entry.index.0 <= log.committed
                && log.term(entry.index.0).is_ok_and(|term| term != 0 && term != entry.term.0)
        })
    }

    /// The error for the first entry of an append that this node could not apply. The append is
    /// refused, so the entry is not acknowledged (S15).
    fn unreadable(&self, message: &RaftMessage) -> Option<MessageError> {
        let newest = self.config.format_max;
        message.entries.iter().find_map(|entry| {
            let error = check_readable(entry, newest).err()?;
            Some(MessageError::Unreadable { index: entry.index, error })
        })
    }

    fn check_snapshot(&self, message: &RaftMessage) -> Result<(), MessageError> {
        let snapshot = message.snapshot.as_ref().ok_or(MessageError::Impossible)?;
        let state = State::decode_up_to(&snapshot.data, self.config.format_max);
        let state = state.map_err(|error| match error {
            DecodeError::Format { .. } => MessageError::Unreadable { index: snapshot.index, error },
            _ => MessageError::Impossible,
        })?;
        let log = &self.raw.raft.raft_log;
        let contradicts_commit = snapshot.index.0 <= log.committed
            && log.term(snapshot.index.0).is_ok_and(|term| term != 0 && term != snapshot.term.0);
        let is_ours = (state.cluster, state.history) == (self.state.cluster, self.state.history)
            && is_sound(&snapshot.configuration, &state)
            && snapshot.index > LogIndex(0)
            && (Term(1)..=message.term).contains(&snapshot.term)
            && !contradicts_commit
            && (snapshot.index <= self.applied.0
                || state.ceiling >= self.state.ceiling && state.format >= self.state.format);
        if is_ours { Ok(()) } else { Err(MessageError::Impossible) }
    }
}
