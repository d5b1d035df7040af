//! The only place that calls the library. After every call it raises the Promise, sets our own
//! election timeout, revokes a lost grant, and handles what the library has ready. No message of a
//! call leaves before the Promise shows the call's term.

use epicepoch_wire::raft_message::MessageKind;
use epicepoch_wire::{LogIndex, Term};
use raft::{RawNode, StateRole, Storage as _};

use super::{Replica, Report};
use crate::durable::Write;
use crate::lease::OwnLease;
use crate::log::Log;
use crate::translate;

impl Replica {
    /// Calls the library, then does everything that follows from the call.
    pub(super) fn step<R>(&mut self, call: impl FnOnce(&mut RawNode<Log>) -> R) -> R {
        let result = self.call(call);
        self.settle();
        result
    }

    /// Handles everything that the library has ready.
    pub(super) fn settle(&mut self) {
        self.observe();
        while self.raw.has_ready() {
            self.take_ready();
        }
        if self.give_back_if_stopped() {
            while self.raw.has_ready() {
                self.take_ready();
            }
            self.offer_behind_entry();
        }
        self.publish_held_grant();
        self.outbox.limit_held(HELD_MAX);
    }

    /// Calls the library and observes what the call changed.
    pub(super) fn call<R>(&mut self, call: impl FnOnce(&mut RawNode<Log>) -> R) -> R {
        let result = call(&mut self.raw);
        self.observe();
        result
    }

    /// Runs after every call: first the Promise (S4), then our own draw of the election timeout,
    /// then the grant.
    fn observe(&mut self) {
        let raft = &mut self.raw.raft;
        let term = Term(raft.term);
        self.shared.raise(term);
        // The library draws its timeout from a random generator of its thread. After every call our
        // own draw replaces the library's, so a seed replays everything.
        if self.drawn_for != (raft.term, raft.state) {
            self.drawn_for = (raft.term, raft.state);
            let shortest = self.config.election_ticks;
            self.election_draw = self.random.usize(shortest..2 * shortest);
        }
        raft.set_randomized_election_timeout(self.election_draw);

        let is_leader = raft.state == StateRole::Leader;
        // S3: the grant ends the moment this node stops leading the grant's term.
        if self.grant.is_some_and(|grant| !is_leader || grant.term != term) {
            self.grant = None;
            self.lease = OwnLease::default();
            self.reservation.forget();
            self.publish();
        }
        self.observe_leadership();
    }

    fn observe_leadership(&mut self) {
        let before = self.leader_checks.seen;
        let seen = (Term(self.raw.raft.term), self.role(), self.leader());
        if before == Some(seen) {
            return;
        }
        self.leader_checks.seen = Some(seen);
        self.publish();
        let (term, role, leader) = seen;
        self.reports.push_back(Report::Leadership { term, role, leader });
        let led = before.is_some_and(|(_, role, _)| role == super::Role::Leader);
        if role == super::Role::Leader && !led {
            self.leader_checks.begin_term();
            self.clients.begin_term();
            self.graceful_shutdown.begin_term();
            // The leader reserves in the same step, so that its first entry and the reservation
            // share a round trip.
            self.reserve();
        } else if role != super::Role::Leader {
            self.lease = OwnLease::default();
            self.reservation.forget();
        }
        if leader.is_some() {
            self.campaigns.forget();
        }
    }

    fn take_ready(&mut self) {
        // S4: the term of every message that leaves from here on is promised already.
        let term = Term(self.raw.raft.term);
        assert!(self.shared.promise.load() >= term, "S4: the Promise is behind the term");
        let mut ready = self.raw.ready();
        let number = ready.number();
        let mut write = Write {
            number,
            hard_state: ready.hs().map(translate::hard_state),
            entries: ready.entries().iter().map(translate::entry).collect(),
            ..Write::default()
        };
        if !ready.snapshot().is_empty() {
            let record = translate::snapshot(ready.snapshot());
            self.install(&record);
            self.gate.record_overwritten();
            write.snapshot = Some(record);
        }
        // S15: the formats are published before a message can carry the entries.
        self.record_formats(&write.entries);
        // S20: entries count from now on, and before any of them is applied.
        self.lease_wait.handle_entries(&write.entries);
        let last = self.raw.store().last_index().unwrap_or(0);
        if write.entries.first().is_some_and(|first| first.index.0 <= last) {
            self.gate.record_overwritten();
        }
        self.raw.mut_store().append(ready.entries());
        let early = ready.take_messages();
        let late = ready.take_persisted_messages();
        let committed = ready.take_committed_entries();
        self.attach_compaction(&mut write);
        self.attach_positions(&mut write);
        let is_durable = self.outbox.push_write(write);
        for (messages, is_after_write) in [(early, false), (late, true)] {
            for mut message in messages.iter().filter_map(translate::message) {
                self.record_message(&message);
                if message.kind == MessageKind::HeartbeatResponse {
                    message.context = self.own_status().encode();
                }
                if message.kind == MessageKind::TimeoutNow {
                    self.name_last_entry(&mut message);
                }
                self.outbox.push_message(number, message, is_after_write);
            }
        }
        self.call(|raw| raw.advance_append_async(ready));
        if is_durable {
            self.on_persisted(number);
        }
        for entry in &committed {
            self.apply_entry(entry);
        }
        self.apply_committed();
    }

    /// Every step up to `number` is durable.
    pub(super) fn on_persisted(&mut self, number: u64) {
        self.call(|raw| raw.on_persist_ready(number));
        // The library treats a snapshot as applied only once it is durable.
        let persisted = self.raw.raft.raft_log.persisted;
        if let Some(index) = self.snapshot_to_apply.filter(|index| index.0 <= persisted) {
            self.snapshot_to_apply = None;
            self.call(|raw| raw.advance_apply_to(index.0));
        }
    }

    /// Adds a due compaction to a write, in the same transaction. A write with a snapshot needs
    /// none, because the snapshot replaces the record and the log.
    fn attach_compaction(&mut self, write: &mut Write) {
        if write.is_empty() {
            return;
        }
        if let Some(due) = self.compaction.take()
            && write.snapshot.is_none()
        {
            write.record = due.record;
            write.compact_to = due.compact_to;
        }
    }

    /// Compacts the log once it is long: the record at the applied index replaces its oldest part.
    pub(super) fn compact_if_due(&mut self) {
        let log = self.raw.store();
        let to = LogIndex(self.applied.0.0.saturating_sub(LOG_KEPT));
        if log.len() <= LOG_LEN_MAX || to > log.record().index || self.compaction.is_some() {
            return;
        }
        let record = log.record().clone();
        self.raw.mut_store().compact(to);
        self.gate.record_format_of(self.state.format);
        self.compaction =
            Some(Write { record: Some(record), compact_to: Some(to), ..Write::default() });
        self.reports.push_back(Report::Compacted { to });
    }

    /// Writes the record with the next write when the format has risen (S15). A version that cannot
    /// read the format then stops at the record when it starts. If the raise were only in the log,
    /// that version might miss it. No other check works when a whole cluster is rolled back to such
    /// a version.
    pub(super) fn record_if_raised(&mut self) {
        if self.compaction.is_none() && self.gate.is_record_older(self.state.format) {
            self.gate.record_format_of(self.state.format);
            let record = self.raw.store().record().clone();
            self.compaction = Some(Write { record: Some(record), ..Write::default() });
        }
    }
}

/// How many entries the log may have before it is compacted: a few hundred KiB on disk at most,
/// replayed in milliseconds. Debug builds compact sooner, so that tests with real processes see
/// compactions and snapshots within seconds.
pub(super) const LOG_LEN_MAX: usize = if cfg!(debug_assertions) { 128 } else { 1_024 };
/// Applied entries that a compaction keeps, for followers that lag by less.
pub(super) const LOG_KEPT: u64 = if cfg!(debug_assertions) { 32 } else { 256 };
/// At most this many messages wait for the disk. Beyond this, the oldest are dropped, and Raft
/// sends them again.
const HELD_MAX: usize = 4_096;
