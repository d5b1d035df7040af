//! The gate of formats (S15): state and log are of a format that every member reads. A leader raises
//! it, by one, once every member has said that it reads the next one and is heard; nothing of a format
//! is proposed below it. A node that does not reach it is sent nothing ([`Published::format`] says what
//! its hello must reach), and a committed entry that cannot be read stops a node: it is never passed
//! over, because a node that applies it would differ from then on.
//!
//! The raise is not asked for: a cluster whose operators forget it would stay old for ever. A node that
//! is told to read no format above some other holds it back.
//!
//! [`Published::format`]: crate::publication::Published::format

use std::collections::BTreeMap;

use epicepoch_wire::hello::Formats;
use epicepoch_wire::raft_message::{EntryKind, LogEntry};
use epicepoch_wire::{DecodeError, LogIndex, NodeId, Term};
use raft::StateRole;

use super::{Fatal, Replica};
use crate::planted::{self, Bug};
use crate::state::{Command, check_readable};

/// What the gate remembers.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// The highest format of the state or of anything in the log, applied or not.
    needed: u32,
    /// Whether entries of the log have made way for others since: what was needed for them may be no more.
    is_overwritten: bool,
    /// The newest format that each peer reads, as it last said.
    named: BTreeMap<NodeId, u32>,
    /// The format of the newest record that is written, or is to be with the next write.
    recorded: u32,
    /// Ticks until a raise may be proposed again.
    pause: usize,
    /// The committed entry that cannot be read here, and why. Nothing is applied from it on.
    unreadable: Option<(LogIndex, DecodeError)>,
}

impl Gate {
    /// A record of the state in this format is durable, or will be with the next write.
    pub(super) const fn note_record(&mut self, format: u32) {
        self.recorded = format;
    }

    /// What is needed by the state and the log of a node that starts.
    pub(super) fn begin(&mut self, format: u32, entries: &[LogEntry]) {
        self.needed = newest_format(entries).max(format);
        self.recorded = format;
    }

    /// Entries of the log have made way for others.
    pub(super) const fn note_overwritten(&mut self) {
        self.is_overwritten = true;
    }

    /// Whether no record of that format has been written yet.
    pub(super) const fn is_record_older(&self, format: u32) -> bool {
        self.recorded < format
    }
}

impl Replica {
    /// A peer says, in its hello, which formats it reads. Its latest word counts.
    pub fn handle_formats(&mut self, node: NodeId, formats: Formats) {
        self.gate.named.insert(node, formats.newest);
        let members = &self.state.members;
        self.gate.named.retain(|peer, _| *peer == node || members.contains_key(peer));
    }

    /// The format that whoever is sent entries of the log or the state must read: that of the state, or
    /// one that it is about to be raised to.
    #[must_use]
    pub const fn format_needed(&self) -> u32 {
        self.gate.needed
    }

    /// Members of which it is not known that they read `format`: they run an older version, are held
    /// back by their operator, or are not heard.
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

    /// The newest format that a member reads, as it last said; `None` for one that said nothing yet.
    #[must_use]
    pub fn format_of(&self, node: NodeId) -> Option<u32> {
        let is_me = node == self.config.identity.node;
        let own = is_me.then_some(self.config.format_max);
        own.or_else(|| self.gate.named.get(&node).copied())
    }

    /// Proposes the next format if every member reads it, and gives that an election timeout to come
    /// about. With a grant of its term, a leader has applied all that was in its log before; without a
    /// change of members under way, whoever is admitted later begins with a state of that format.
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
            && raft.lead_transferee.is_none();
        let is_asked = planted::is(Bug::RaisedUnread) || self.not_reading(to).is_empty();
        if is_settled && is_asked {
            self.gate.pause = self.config.election_ticks;
            let command = Command::Raise(to).encode();
            // A proposal that is dropped is made again after the pause.
            let _again = self.step(|raw| raw.propose(Vec::new(), command));
        }
    }

    /// Takes in the formats of entries that the log holds from now on, before a message can carry them.
    pub(super) fn note_formats(&mut self, entries: &[LogEntry]) {
        let needed = newest_format(entries).max(self.state.format);
        if needed > self.gate.needed {
            self.gate.needed = needed;
            self.publish();
        }
    }

    /// Forgets what was needed for entries that are not in the log any more: a raise of a leader that
    /// was deposed before it was committed. Only while no message waits that may hold one of them.
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

    /// Whether a committed entry may be applied here; if not, this replica ends with it.
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
