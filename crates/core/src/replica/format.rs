//! The format gate (S15): state and log have a format that every member reads. The leader raises it
//! by one once every member reads the next one and is heard; before that it proposes nothing of a
//! newer format. A node that cannot read the format gets nothing: its hello must name at least
//! [`Published::format`]. A node stops at a committed entry that it cannot read, because it must
//! not skip what others apply.
//!
//! The raise is automatic, because a cluster whose operators forgot it would stay old for ever. A
//! node that is configured to read no newer format prevents the raise.
//!
//! [`Published::format`]: crate::publication::Published::format

use std::collections::BTreeMap;

use epicepoch_wire::peer_hello::Formats;
use epicepoch_wire::raft_message::{EntryKind, LogEntry};
use epicepoch_wire::{DecodeError, LogIndex, NodeId, Term};
use raft::StateRole;

use super::{Fatal, Replica};
use crate::state::{Command, check_readable};

/// The formats of this node's log and record, and those that each peer reads.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// The highest format of the state and of all entries in the log, applied or not.
    needed: u32,
    /// Whether entries of the log were overwritten. Then the format that they needed may no longer
    /// be needed.
    is_overwritten: bool,
    /// The newest format that each peer reads, by its last hello.
    named: BTreeMap<NodeId, u32>,
    /// The format of the newest record that is durable, or will be with the next write.
    recorded: u32,
    /// Ticks until a raise may be proposed again.
    pause: usize,
    /// The first committed entry that this node cannot read, and why. This entry and all later ones
    /// are not applied.
    unreadable: Option<(LogIndex, DecodeError)>,
}

impl Gate {
    /// Records that a record of the state in this format is durable, or will be with the next
    /// write.
    pub(super) const fn record_format_of(&mut self, format: u32) {
        self.recorded = format;
    }

    /// Sets the format that the state and log of a starting node need.
    pub(super) fn begin(&mut self, format: u32, entries: &[LogEntry]) {
        self.needed = newest_format(entries).max(format);
        self.recorded = format;
    }

    /// Records that entries of the log were overwritten.
    pub(super) const fn record_overwritten(&mut self) {
        self.is_overwritten = true;
    }

    /// Whether no record of this format has been written yet.
    pub(super) const fn is_record_older(&self, format: u32) -> bool {
        self.recorded < format
    }
}

impl Replica {
    /// Handles the formats that a peer names in its hello. The last hello counts.
    pub fn handle_formats(&mut self, node: NodeId, formats: Formats) {
        self.gate.named.insert(node, formats.newest);
        let members = &self.state.members;
        self.gate.named.retain(|peer, _| *peer == node || members.contains_key(peer));
    }

    /// The format that receivers of log entries or of the state must read: the format of the state,
    /// or the next one if a raise is in the log.
    #[must_use]
    pub const fn format_needed(&self) -> u32 {
        self.gate.needed
    }

    /// Members that are not known to read `format`: they run an older version, their operator
    /// limits their format, or they are silent.
    #[must_use]
    pub fn not_reading(&self, format: u32) -> Vec<NodeId> {
        let me = self.config.identity.node;
        let reads = |node: NodeId| {
            node == me && format <= self.config.format_max
                || self.gate.named.get(&node).is_some_and(|newest| *newest >= format)
                    && self.is_heard(node)
        };
        self.state.members.keys().copied().filter(|node| !reads(*node)).collect()
    }

    /// The newest format that a member reads, by its last hello; `None` if it has sent none.
    #[must_use]
    pub fn format_of(&self, node: NodeId) -> Option<u32> {
        let is_me = node == self.config.identity.node;
        let own = is_me.then_some(self.config.format_max);
        own.or_else(|| self.gate.named.get(&node).copied())
    }

    /// Proposes the next format if every member reads it, then waits an election timeout. The
    /// leader needs a grant of its term, because it has then applied all of its log. No change of
    /// members may be under way, so that later members begin with a state of the new format.
    pub(super) fn raise_format(&mut self) {
        if self.gate.pause > 0 {
            self.gate.pause -= 1;
            return;
        }
        let to = self.state.format + 1;
        if to > self.config.format_max {
            return;
        }
        let raft = &self.raw.raft;
        let is_settled = raft.state == StateRole::Leader
            && self.grant.is_some_and(|grant| grant.term == Term(raft.term))
            && !self.voters.is_joint()
            && !raft.has_pending_conf()
            && !self.is_handing_over();
        if is_settled && self.not_reading(to).is_empty() {
            self.gate.pause = self.config.election_ticks;
            let command = Command::Raise(to).encode();
            // If the proposal is dropped, it is made again after the pause.
            let _again = self.step(|raw| raw.propose(Vec::new(), command));
        }
    }

    /// Records the formats of new entries of the log, before a message can carry them.
    pub(super) fn record_formats(&mut self, entries: &[LogEntry]) {
        let needed = newest_format(entries).max(self.state.format);
        if needed > self.gate.needed {
            self.gate.needed = needed;
            self.publish();
        }
    }

    /// Forgets formats that only overwritten entries needed, such as the uncommitted raise of a
    /// deposed leader. Waits until no held message may carry such an entry.
    pub(super) fn forget_overwritten_formats(&mut self) {
        if !self.gate.is_overwritten || self.outbox.held() > 0 {
            return;
        }
        self.gate.is_overwritten = false;
        let applied = self.applied.0;
        let unapplied: Vec<_> =
            self.raw.store().iter().filter(|entry| entry.index > applied).collect();
        let needed = newest_format(&unapplied).max(self.state.format);
        if needed != self.gate.needed {
            self.gate.needed = needed;
            self.publish();
        }
    }

    /// Whether this node can apply a committed entry. If it cannot, it stops before this entry.
    pub(super) fn may_apply(&mut self, entry: &LogEntry) -> bool {
        if self.gate.unreadable.is_none() {
            let checked = check_readable(entry, self.config.format_max);
            self.gate.unreadable = checked.err().map(|error| (entry.index, error));
        }
        self.gate.unreadable.is_none()
    }

    pub(super) fn check_gate(&self) -> Result<(), Fatal> {
        let unreadable = self.gate.unreadable;
        unreadable.map_or(Ok(()), |(index, error)| Err(Fatal::Unreadable { index, error }))
    }
}

/// The newest format of a command among these entries; 0 for none.
fn newest_format(entries: &[LogEntry]) -> u32 {
    let entries = entries.iter().filter(|entry| entry.kind == EntryKind::Normal);
    let of = |entry: &LogEntry| Command::decode(&entry.data).map_or(0, |it| it.format());
    entries.map(of).max().unwrap_or(0)
}
