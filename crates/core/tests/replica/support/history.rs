//! What an observer outside the cluster may demand, checked at every step: timestamps are unique
//! and in real-time order, ranges are owned once, equal index means equal state, a term has one
//! leader, and nothing leaves before what it promises is durable.

use std::collections::BTreeMap;

use epicepoch_core::durable::Restored;
use epicepoch_core::publication::{EpochRange, Identity, Published, Role};
use epicepoch_core::replica::Outgoing;
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::{BootId, LogIndex, NodeId, Term, Timestamp, TimestampRange};

/// Everything that was seen, and what was wrong with it first.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Last timestamp of every batch by its first.
    stamped: BTreeMap<Timestamp, Timestamp>,
    completed_max: Option<Timestamp>,
    leaders: BTreeMap<Term, (NodeId, BootId)>,
    grants: BTreeMap<(Term, NodeId, BootId), EpochRange>,
    states: BTreeMap<LogIndex, Vec<u8>>,
    /// Violations, the first one first.
    pub(crate) violations: Vec<String>,
    /// Requests that were answered.
    pub(crate) answered: u64,
    /// Requests that were refused.
    pub(crate) refused: u64,
}

impl History {
    /// What every request that starts now must be above.
    pub(crate) const fn floor(&self) -> Option<Timestamp> {
        self.completed_max
    }

    /// How many terms had a leader.
    pub(crate) fn leaderships(&self) -> usize {
        self.leaders.len()
    }

    /// How many ranges were published.
    pub(crate) fn grants(&self) -> usize {
        self.grants.len()
    }

    /// A batch was answered; `floor` is what was completed before its youngest request.
    pub(crate) fn complete(
        &mut self,
        who: NodeId,
        range: TimestampRange,
        floor: Option<Timestamp>,
    ) {
        let (first, last) = (range.first(), range.last());
        if Some(first) <= floor {
            self.violation(format!(
                "ORDER: node {who} answered {first:?}, {floor:?} was completed before the request"
            ));
        }
        let below = self.stamped.range(..=last).next_back();
        if below.is_some_and(|(_, end)| *end >= first) {
            self.violation(format!("DUPLICATE: node {who} answered {first:?} to {last:?}"));
        }
        self.stamped.insert(first, last);
        self.completed_max = self.completed_max.max(Some(last));
    }

    pub(crate) fn published(&mut self, published: &Published) {
        let me = (published.identity.node, published.identity.boot);
        let Some(grant) = published.grant else { return };
        self.leads(grant.term, me);
        if published.role != Role::Leader || grant.term != published.term || grant.boot != me.1 {
            self.violation(format!("GRANT: {me:?} keeps {grant:?} in {}", published.term));
        }
        let key = (grant.term, me.0, me.1);
        let known = self.grants.insert(key, grant.range);
        if known.is_some_and(|known| known.low != grant.range.low) {
            self.violation(format!("GRANT: {me:?} owned {known:?}, now {grant:?}"));
        }
        let overlaps = self.grants.iter().any(|(other, range)| {
            *other != key && range.low < grant.range.high && grant.range.low < range.high
        });
        if overlaps {
            self.violation(format!("GRANT: {me:?} was given {grant:?}, owned by another"));
        }
    }

    /// `me` acts as leader of a term. (To believe it, as a single voter may before its term is
    /// durable, is not to act.)
    fn leads(&mut self, term: Term, me: (NodeId, BootId)) {
        let leader = *self.leaders.entry(term).or_insert(me);
        if leader != me {
            self.violation(format!("LEADERS: {leader:?} and {me:?} act in term {term}"));
        }
    }

    pub(crate) fn applied(&mut self, who: NodeId, index: LogIndex, state: Vec<u8>) {
        let known = self.states.entry(index).or_insert_with(|| state.clone());
        if *known != state {
            self.violation(format!("STATE: node {who} differs at {index}"));
        }
    }

    /// A message leaves `me`, whose promise and disk stand at `promise` and `disk`.
    pub(crate) fn released(
        &mut self,
        me: Identity,
        out: &Outgoing,
        promise: Term,
        disk: &Restored,
    ) {
        let (me, boot) = (me.node, me.boot);
        let RaftMessage { kind, term, reject, index, .. } = out.message;
        let stored = disk.hard_state;
        let last = disk.entries.last().map_or(disk.record.index, |entry| entry.index);
        let is_durable = match kind {
            // Nothing is promised by asking in advance.
            MessageKind::RequestPreVote | MessageKind::RequestPreVoteResponse => return,
            MessageKind::RequestVote => stored.term > term || stored.vote == me,
            MessageKind::RequestVoteResponse => {
                reject || stored.term > term || stored.vote == out.to
            }
            MessageKind::AppendResponse => reject || stored.term > term || last >= index,
            MessageKind::Append
            | MessageKind::Snapshot
            | MessageKind::Heartbeat
            | MessageKind::TimeoutNow => {
                self.leads(term, (me, boot));
                true
            }
            MessageKind::HeartbeatResponse => true,
        };
        if !is_durable || stored.term < term {
            self.violation(format!("DURABLE: node {me} sends {out:?} holding {stored:?}"));
        }
        if promise < term {
            self.violation(format!("PROMISE: node {me} sends {out:?} at promise {promise}"));
        }
    }

    pub(crate) fn violation(&mut self, what: String) {
        self.violations.push(what);
    }
}
