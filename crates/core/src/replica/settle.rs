//! The one place where the library is called: after every call the Promise is raised, the election
//! timeout is our own, a lost grant is revoked, and whatever the library has ready is taken. It
//! never lets a message of a call out before the Promise shows the call's term.

use epicepoch_wire::raft_message::MessageKind;
use epicepoch_wire::{Epoch, LogIndex, Term};
use raft::{RawNode, StateRole, Storage as _};

use super::{Replica, Report};
use crate::durable::Write;
use crate::log::Log;
use crate::planted::{self, Bug, safety_assert};
use crate::publication::{EpochRange, Grant};
use crate::translate;

impl Replica {
    /// Calls the library, then settles everything that follows from it.
    pub(super) fn step<R>(&mut self, call: impl FnOnce(&mut RawNode<Log>) -> R) -> R {
        let result = self.call(call);
        self.settle();
        result
    }

    /// Takes whatever the library has ready, until it has nothing more.
    pub(super) fn settle(&mut self) {
        self.observe();
        while self.raw.has_ready() {
            self.take_ready();
        }
        self.outbox.limit_held(HELD_MAX);
    }

    /// Calls the library and observes what the call changed.
    pub(super) fn call<R>(&mut self, call: impl FnOnce(&mut RawNode<Log>) -> R) -> R {
        let result = call(&mut self.raw);
        self.observe();
        result
    }

    /// After every call: first the Promise (S4), then our own draw of the election timeout, then
    /// the grant.
    fn observe(&mut self) {
        let raft = &mut self.raw.raft;
        let term = Term(raft.term);
        if !planted::is(Bug::LatePromise) {
            self.shared.raise(term);
        }
        // The library draws from a generator of its thread whenever it resets; ours replaces it
        // after every call, so that a run can be replayed from its seed.
        if self.drawn_for != (raft.term, raft.state) {
            self.drawn_for = (raft.term, raft.state);
            let shortest = self.config.election_ticks;
            self.election_draw = self.random.usize(shortest..2 * shortest);
        }
        raft.set_randomized_election_timeout(self.election_draw);

        let is_leader = raft.state == StateRole::Leader;
        // S3: the range is forgotten the moment this node stops leading the term it is of.
        if self.grant.is_some_and(|grant| !is_leader || grant.term != term) && !self.keeps_grant() {
            self.memory.hide(self.grant.take());
            self.reservation.forget();
            self.publish();
        }
        self.observe_leadership();
    }

    /// Whether a grant outlives the term that it is of: never, but for planted bugs.
    fn keeps_grant(&mut self) -> bool {
        let (is_leader, term) =
            (self.raw.raft.state == StateRole::Leader, Term(self.raw.raft.term));
        let is_kept = planted::is(Bug::KeptRange)
            || planted::is(Bug::CoalescedRoles) && (is_leader || !self.memory.is_look());
        if is_kept && is_leader {
            self.grant = self.grant.map(|grant| Grant { term, ..grant });
        }
        let is_current = self.grant.is_some_and(|grant| grant.term == term);
        is_kept
            || is_current
                && (planted::is(Bug::LateCompletion)
                    || planted::is(Bug::RestartedRange)
                    || planted::is(Bug::FollowerAnswers))
    }

    /// A planted bug: a new leader takes what lies above the ceiling that it knows.
    fn take_unapplied(&mut self) {
        let low = self.state.ceiling;
        let window_ns = self.reservation.window_ns();
        let high = Epoch(self.trusted_ns.max(low.0).saturating_add(window_ns));
        let range = EpochRange { low, high };
        let boot = self.config.identity.boot;
        self.grant = Some(Grant { term: Term(self.raw.raft.term), boot, range });
        self.publish();
    }

    fn observe_leadership(&mut self) {
        let before = self.duties.seen;
        let seen = (Term(self.raw.raft.term), self.role(), self.leader());
        if before == Some(seen) {
            return;
        }
        self.duties.seen = Some(seen);
        self.publish();
        let (term, role, leader) = seen;
        self.reports.push_back(Report::Leadership { term, role, leader });
        let led = before.is_some_and(|(_, role, _)| role == super::Role::Leader);
        if role == super::Role::Leader && !led {
            self.duties.begin_term();
            self.clients.begin_term();
            self.departure.begin_term();
            // In the same step, so that the first entry and the reservation share a round trip.
            self.reserve();
            if planted::is(Bug::LaggingCeiling) {
                self.take_unapplied();
            }
            if planted::is(Bug::MomentaryGrant) {
                self.take_unapplied();
                self.grant = None;
                self.publish();
            }
            if planted::is(Bug::HiddenRange) {
                self.grant = self.memory.hidden().map(|grant| Grant { term, ..grant });
                self.publish();
            }
        } else if role != super::Role::Leader {
            self.reservation.forget();
        }
        if leader.is_some() {
            self.campaigns.forget();
        }
    }

    fn take_ready(&mut self) {
        // S4: what leaves from here on was promised before.
        let term = Term(self.raw.raft.term);
        safety_assert!(self.shared.promise.load() >= term, "S4: the Promise is behind the term");
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
            self.gate.note_overwritten();
            write.snapshot = Some(record);
        }
        // S15: published before a message can carry them.
        self.note_formats(&write.entries);
        let last = self.raw.store().last_index().unwrap_or(0);
        if write.entries.first().is_some_and(|first| first.index.0 <= last) {
            self.gate.note_overwritten();
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
                self.note_message(&message);
                if message.kind == MessageKind::HeartbeatResponse
                    && let Some(standing) = self.standing()
                {
                    message.context = standing.encode();
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
        self.take_in_applied();
    }

    /// Every step up to `number` is durable.
    pub(super) fn on_persisted(&mut self, number: u64) {
        self.call(|raw| raw.on_persist_ready(number));
        // The library takes a snapshot for applied only once it is durable.
        let persisted = self.raw.raft.raft_log.persisted;
        if let Some(index) = self.snapshot_to_apply.filter(|index| index.0 <= persisted) {
            self.snapshot_to_apply = None;
            self.call(|raw| raw.advance_apply_to(index.0));
        }
    }

    /// Adds a compaction that is due to a write, in the same transaction. A snapshot replaces the
    /// record anyway.
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

    /// Compacts the log once it is long: the record at the applied index replaces its head.
    pub(super) fn compact_if_due(&mut self) {
        let log = self.raw.store();
        let to = LogIndex(self.applied.0.0.saturating_sub(LOG_KEPT));
        if log.len() <= LOG_LEN_MAX || to > log.record().index || self.compaction.is_some() {
            return;
        }
        let record = log.record().clone();
        self.raw.mut_store().compact(to);
        self.gate.note_record(self.state.format);
        self.compaction =
            Some(Write { record: Some(record), compact_to: Some(to), ..Write::default() });
        self.reports.push_back(Report::Compacted { to });
    }

    /// Has the record written with the next write when the format has risen (S15): a version that does
    /// not read it ends at the record, when it starts, and might pass over what it cannot read in the
    /// log. A whole cluster that is set back to such a version is refused by nobody else.
    pub(super) fn record_if_raised(&mut self) {
        if self.compaction.is_none() && self.gate.is_record_older(self.state.format) {
            self.gate.note_record(self.state.format);
            let record = self.raw.store().record().clone();
            self.compaction = Some(Write { record: Some(record), ..Write::default() });
        }
    }
}

/// Entries of the log before it is compacted: a few hundred KiB on disk at most, and a replay that
/// is done in milliseconds. Debug builds compact sooner, so that a test on real processes comes to
/// compactions and snapshots within seconds.
pub(super) const LOG_LEN_MAX: usize = if cfg!(debug_assertions) { 128 } else { 1_024 };
/// Applied entries that are kept after a compaction, for followers that lag by less.
pub(super) const LOG_KEPT: u64 = if cfg!(debug_assertions) { 32 } else { 256 };
/// Messages that may wait for the disk; beyond it the oldest are dropped, and Raft sends again.
const HELD_MAX: usize = 4_096;
