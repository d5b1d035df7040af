//! What messages say: whatever leaves a node is promised and durable before (S4, S6), a voter gives one
//! vote in a term, and a term has one leader (S8).

use epicepoch_core::durable::Restored;
use epicepoch_core::publication::Identity;
use epicepoch_core::replica::Outgoing;
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::{BootId, LogIndex, NodeId, Term};

use super::{History, Invariant};

impl History {
    /// A message leaves `me`, whose Promise and disk stand at `promise` and `disk`.
    pub(crate) fn released(
        &mut self,
        me: Identity,
        out: &Outgoing,
        promise: Term,
        disk: Option<&Restored>,
    ) {
        // Nothing is promised by asking in advance.
        let kind = out.message.kind;
        if matches!(kind, MessageKind::RequestPreVote | MessageKind::RequestPreVoteResponse) {
            return;
        }
        self.check_promise_first(me, out, promise);
        if kind == MessageKind::Append {
            self.note_sent(&out.message);
        }
        if let Some(disk) = disk {
            self.check_durable_first(me, out, disk);
        }
        let leads = [
            MessageKind::Append,
            MessageKind::Snapshot,
            MessageKind::Heartbeat,
            MessageKind::TimeoutNow,
        ];
        if leads.contains(&kind) {
            self.check_one_leader(out.message.term, (me.node, me.boot));
        }
    }

    fn check_promise_first(&mut self, me: Identity, out: &Outgoing, promise: Term) {
        if promise < out.message.term {
            self.violate(Invariant::PromiseFirst, || {
                format!("node {} sends {out:?} at promise {promise}", me.node)
            });
        }
    }

    fn check_durable_first(&mut self, me: Identity, out: &Outgoing, disk: &Restored) {
        let RaftMessage { kind, term, reject, index, .. } = out.message;
        let stored = disk.hard_state;
        let last = disk.entries.last().map_or(disk.record.index, |entry| entry.index);
        let is_later = stored.term > term;
        let is_durable = match kind {
            MessageKind::RequestVote => is_later || stored.vote == me.node,
            MessageKind::RequestVoteResponse => reject || is_later || stored.vote == out.to,
            MessageKind::AppendResponse => {
                reject || is_later || last >= index && self.is_as_sent(term, index, disk)
            }
            MessageKind::Append
            | MessageKind::Snapshot
            | MessageKind::Heartbeat
            | MessageKind::TimeoutNow
            | MessageKind::HeartbeatResponse
            | MessageKind::RequestPreVote
            | MessageKind::RequestPreVoteResponse => true,
        };
        if !is_durable || stored.term < term {
            self.violate(Invariant::DurableFirst, || {
                format!("node {} sends {out:?} holding {stored:?} and {last}", me.node)
            });
        }
    }

    /// Whether a disk holds the entry at `index` that the leader of `term` has sent: the same index
    /// and term, for there may be another one of an older term. What was compacted is not looked for.
    fn is_as_sent(&self, term: Term, index: LogIndex, disk: &Restored) -> bool {
        let entry = disk.entries.iter().rev().find(|entry| entry.index == index);
        let record = (disk.record.index == index).then_some(disk.record.term);
        let held = entry.map(|entry| entry.term).or(record);
        let sent = self.sent.get(&(term, index)).copied();
        held.zip(sent).is_none_or(|(held, sent)| held == sent)
    }

    /// A leader sends entries; the first follows one of `log_term` at `index`.
    pub(super) fn note_sent(&mut self, message: &RaftMessage) {
        let RaftMessage { term, log_term, index, .. } = *message;
        self.sent.insert((term, index), log_term);
        for entry in &message.entries {
            self.sent.insert((term, entry.index), entry.term);
        }
    }

    /// A message leaves `me`, which remembers what it has promised, and is taken for whom it is.
    pub(crate) fn promised(&mut self, me: Identity, out: &Outgoing) {
        let kind = out.message.kind;
        if !matches!(kind, MessageKind::RequestPreVote | MessageKind::RequestPreVoteResponse) {
            self.quorums.promise(me, out.message.term);
        }
        self.check_one_vote(me, out);
    }

    /// A voter gives one vote in a term, its own candidature included, whatever restarts there are.
    fn check_one_vote(&mut self, me: Identity, out: &Outgoing) {
        let RaftMessage { kind, term, reject, .. } = out.message;
        let candidate = match kind {
            MessageKind::RequestVote => me.node,
            MessageKind::RequestVoteResponse if !reject => out.to,
            _ => return,
        };
        let known = *self.votes.entry((me.store, term)).or_insert(candidate);
        if known != candidate {
            self.violate(Invariant::DurableFirst, || {
                format!("node {} votes in term {term} for {known} and for {candidate}", me.node)
            });
        }
    }

    /// A node has taken a message of a run of another.
    pub(crate) fn taken(&mut self, to: NodeId, by: (NodeId, BootId), message: &RaftMessage) {
        let kind = message.kind;
        if message.to != to {
            self.violate(Invariant::Possible, || format!("node {to} takes {message:?}"));
        }
        if !matches!(kind, MessageKind::RequestPreVote | MessageKind::RequestPreVoteResponse) {
            self.check_kept(by, message.term);
        }
    }

    /// A later run does not fall behind a term that an earlier one has named: it would have
    /// forgotten what it promised.
    fn check_kept(&mut self, (node, boot): (NodeId, BootId), term: Term) {
        let known = self.taken.entry(node).or_insert((term, boot));
        let (before, by) = *known;
        if term >= before {
            *known = (term, boot);
        } else if boot > by {
            self.violate(Invariant::DurableFirst, || {
                format!("node {node} speaks in term {term}, and an earlier run of it in {before}")
            });
        }
    }

    /// `me` acts as leader of a term. (To believe it, as a single voter may before its term is
    /// durable, is not to act.)
    fn check_one_leader(&mut self, term: Term, me: (NodeId, BootId)) {
        let leader = *self.leaders.entry(term).or_insert(me);
        if leader != me {
            self.violate(Invariant::OneLeader, || {
                format!("{leader:?} and {me:?} act in term {term}")
            });
        }
    }
}
