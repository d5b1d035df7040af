//! Checks of messages: a message leaves only once its content is promised and durable (S4, S6); a
//! voter gives one vote in a term; a term has one leader (S8).

use epicepoch_core::durable::Restored;
use epicepoch_core::publication::Identity;
use epicepoch_core::replica::Outgoing;
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::{BootId, LogIndex, NodeId, Term};

use super::{History, Invariant};

impl History {
    /// Checks a message that leaves `me`, while its Promise is `promise` and its disk holds `disk`.
    pub(crate) fn released(
        &mut self,
        me: Identity,
        out: &Outgoing,
        promise: Term,
        disk: Option<&Restored>,
    ) {
        // A pre-vote promises nothing.
        let kind = out.message.kind;
        if matches!(kind, MessageKind::RequestPreVote | MessageKind::RequestPreVoteResponse) {
            return;
        }
        self.check_promise_first(me, out, promise);
        self.record_campaign(me, out);
        if kind == MessageKind::Append {
            self.record_sent(&out.message);
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

    /// Whether a disk holds the entry at `index` with the same term as the leader of `term` sent
    /// it. The disk may still hold an entry of an older term there. Compacted entries are not
    /// checked.
    fn is_as_sent(&self, term: Term, index: LogIndex, disk: &Restored) -> bool {
        let entry = disk.entries.iter().rev().find(|entry| entry.index == index);
        let record = (disk.record.index == index).then_some(disk.record.term);
        let held = entry.map(|entry| entry.term).or(record);
        let sent = self.sent.get(&(term, index)).copied();
        held.zip(sent).is_none_or(|(held, sent)| held == sent)
    }

    /// Records the entries that a leader sends. The first of these follows the entry at `index`,
    /// whose term is `log_term`.
    pub(super) fn record_sent(&mut self, message: &RaftMessage) {
        let RaftMessage { term, log_term, index, .. } = *message;
        self.sent.insert((term, index), log_term);
        for entry in &message.entries {
            self.sent.insert((term, entry.index), entry.term);
        }
    }

    /// Checks a message that leaves `me` against the promises that the node has made in earlier
    /// messages. The caller leaves out a node whose messages peers refuse.
    pub(crate) fn promised(&mut self, me: Identity, out: &Outgoing) {
        let kind = out.message.kind;
        if !matches!(kind, MessageKind::RequestPreVote | MessageKind::RequestPreVoteResponse) {
            self.quorums.promise(me, out.message.term);
        }
        self.check_one_vote(me, out);
    }

    /// A voter gives one vote in a term, even if it restarts. A node that campaigns votes for
    /// itself.
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

    /// A node has accepted a message of a peer's process.
    pub(crate) fn taken(&mut self, to: NodeId, by: (NodeId, BootId), message: &RaftMessage) {
        let kind = message.kind;
        if message.to != to {
            self.violate(Invariant::Possible, || format!("node {to} takes {message:?}"));
        }
        if !matches!(kind, MessageKind::RequestPreVote | MessageKind::RequestPreVoteResponse) {
            self.check_kept(by, message.term);
        }
    }

    /// A node's later boot must not name a lower term than an earlier boot has named. A lower term
    /// shows that the node has forgotten its promises.
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

    /// Records that `me` acts as leader of a term. A node that only believes that it leads does not
    /// count: a single voter may believe so before its term is durable.
    fn check_one_leader(&mut self, term: Term, me: (NodeId, BootId)) {
        let leader = *self.leaders.entry(term).or_insert(me);
        if leader != me {
            self.violate(Invariant::OneLeader, || {
                format!("{leader:?} and {me:?} act in term {term}")
            });
        }
    }
}
