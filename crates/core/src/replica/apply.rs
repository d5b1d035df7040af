//! Applies committed entries. The state changes, and the consequences for this node (a grant, other
//! voters, its own removal) follow in the same step, before the library is called again. A
//! committed entry never fails.

use std::collections::BTreeMap;
use std::sync::Arc;

use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::raft_message::{EntryKind, LogEntry};
use epicepoch_wire::{Epoch, LogIndex, NodeId, TimestampFormat};
use raft::StateRole;
use raft::eraftpb::{ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, Entry};

use super::{Replica, Report};
use crate::durable::Record;
use crate::publication::{EpochRange, Grant};
use crate::quorum::Voters;
use crate::state::{
    COMPACT_WIDTH_MIN_NS, Command, MembershipChange, MembershipStep, Outcome, Owner, State,
};
use crate::translate;

impl Replica {
    pub(super) fn apply_entry(&mut self, entry: &Entry) {
        let entry = translate::entry(entry);
        // S15: the replica stops here if it cannot read the entry.
        if !self.may_apply(&entry) {
            return;
        }
        // S5: entries are applied once, in order.
        assert!(entry.index.0 == self.applied.0.0 + 1, "S5: an entry is applied out of order");
        self.applied = (entry.index, entry.term);
        match entry.kind {
            EntryKind::Normal => self.apply_normal(&entry),
            EntryKind::Membership => self.apply_membership(&entry),
        }
        let index = entry.index.0;
        self.call(|raw| raw.advance_apply_to(index));
    }

    fn apply_normal(&mut self, entry: &LogEntry) {
        if entry.data.is_empty() {
            return;
        }
        let Ok(command) = Command::decode(&entry.data) else {
            unreachable!("S15: an entry is read before it is applied")
        };
        let outcome = self.state.apply(entry.term, &command);
        if let Command::Settings { nonce, .. } = command {
            return self.record_settings(nonce, outcome);
        }
        match outcome {
            Outcome::Assigned(owner, range) => self.assign(entry.index, owner, range),
            Outcome::GivenBack(owner, range) => {
                self.reports.push_back(Report::GivenBack { owner, range });
            }
            Outcome::Readdressed(node) => {
                // If the member has named a newer address since the proposal, that address stays,
                // and is proposed next.
                if self.leader_checks.readdressed.get(&node) == self.state.members.get(&node) {
                    self.leader_checks.readdressed.remove(&node);
                }
                self.apply_members();
            }
            Outcome::Raised(to) => self.reports.push_back(Report::FormatRaised { to }),
            Outcome::Exhausted => self.reports.push_back(Report::Exhausted),
            Outcome::IntervalsEnded(floor) => self.begin_quorum_mode(floor),
            Outcome::Stale
            | Outcome::Refused(_)
            | Outcome::Changed
            | Outcome::Set
            | Outcome::Nothing => {}
        }
    }

    /// Publishes a grant if the range was assigned to this boot, in the term that it leads now
    /// (S3). An entry that is replayed after a restart carries another boot. A snapshot does not
    /// come here.
    fn assign(&mut self, index: LogIndex, owner: Owner, range: EpochRange) {
        let raft = &self.raw.raft;
        let is_mine = owner == self.as_owner() && raft.state == StateRole::Leader;
        if !is_mine {
            return;
        }
        let (term, me) = (owner.term, self.config.identity);
        let held = match &self.reservation.giving_back {
            Some(it) => it.withdrawn,
            None => self.grant,
        };
        // A range that follows the current one extends it: this node owns both.
        let range = match held {
            Some(held) if held.term == term && held.range.high == range.low => {
                EpochRange { low: held.range.low, high: range.high }
            }
            _ => range,
        };
        assert!(range.low < range.high, "S3: an empty range was assigned");
        let grant = Some(Grant { term, boot: me.boot, range });
        let took_ns = self.reservation.done(self.now_ns);
        self.reports.push_back(Report::Granted { term, range, took_ns });
        // S20: only a reservation that assigns its range here becomes a lease.
        self.lease.take(index);
        // S18: workers see no grant while this leader gives its range back.
        if let Some(it) = &mut self.reservation.giving_back {
            it.withdrawn = grant;
            return;
        }
        self.grant = grant;
        self.publish();
        self.take_advance();
    }

    fn apply_membership(&mut self, entry: &LogEntry) {
        // An empty change means: leave the joint configuration.
        if entry.context.is_empty() {
            if self.voters.is_joint() {
                let left = self.raw.apply_conf_change(&ConfChangeV2::default());
                // S7: every node leaves the same joint configuration at the same entry.
                assert!(left.is_ok(), "S7: a joint configuration cannot be left");
                self.publish_change(None);
            }
            return;
        }
        let Ok(change) = MembershipChange::decode(&entry.context) else {
            unreachable!("S15: an entry is read before it is applied")
        };
        let outcome = self.apply_change(&change);
        self.reports.push_back(Report::Changed { nonce: change.nonce, outcome });
    }

    fn apply_change(&mut self, change: &MembershipChange) -> Outcome {
        if let Err(reason) = self.state.check_change(change) {
            return Outcome::Refused(reason);
        }
        if self.voters.len() + change.steps.len() > Voters::MAX {
            return Outcome::Refused("the limit of voters is reached");
        }
        // Every node has the same configuration and the same change here, so all get the same
        // answer.
        if self.raw.apply_conf_change(&library_change(change)).is_err() {
            return Outcome::Refused("the configuration does not allow the change");
        }
        self.publish_change(Some(change));
        Outcome::Changed
    }

    /// Publishes the voters of the library's new configuration to all workers at once. A leader
    /// that is no longer a voter steps down before the library is called again (S7).
    fn publish_change(&mut self, change: Option<&MembershipChange>) {
        let configuration = translate::configuration(&self.raw.raft.prs().conf().to_conf_state());
        match change {
            Some(change) => self.state.apply_change(change, &configuration),
            None => self.state.reconcile(&configuration),
        };
        self.apply_configuration();
        let me = self.config.identity.node;
        let raft = &mut self.raw.raft;
        if raft.prs().get(me.0).is_none() {
            if raft.state == StateRole::Leader {
                let term = raft.term;
                raft.become_follower(term, raft::INVALID_ID);
            }
            self.reports.push_back(Report::Removed);
        }
    }

    /// Publishes the members and voters of the library's configuration.
    pub(super) fn apply_configuration(&mut self) {
        let conf = self.raw.raft.prs().conf().to_conf_state();
        let conf = translate::configuration(&conf);
        let state = &self.state;
        self.voters = Voters::new(&conf.voters, &conf.voters_outgoing, |node| state.store_of(node));
        self.leader_checks.readdressed.retain(|node, member| state.store_of(*node) == member.store);
        self.members = Arc::new(self.members_where_heard());
        self.publish();
    }

    /// Publishes the members if an address has changed.
    pub(super) fn apply_members(&mut self) {
        let members = self.members_where_heard();
        if *self.members != members {
            self.members = Arc::new(members);
            self.publish();
        }
    }

    /// The members of the state, each with the addresses in its last hello.
    fn members_where_heard(&self) -> BTreeMap<NodeId, Member> {
        let mut members = self.state.members.clone();
        let readdressed = self.leader_checks.readdressed.iter();
        members.extend(readdressed.map(|(node, member)| (*node, member.clone())));
        members
    }

    /// Installs a snapshot of the leader, which replaces the state and the log. It gives no grant.
    pub(super) fn install(&mut self, record: &Record) {
        let state = State::decode(&record.data).expect("a snapshot is read before it is taken");
        // S5: neither the ceiling nor the applied index goes back.
        assert!(state.ceiling >= self.state.ceiling, "S5: a snapshot would lower the ceiling");
        assert!(record.index >= self.applied.0, "S5: a snapshot would go back");
        assert!(state.format >= self.state.format, "S15: the format would go back");
        self.state = state;
        self.applied = (record.index, record.term);
        self.snapshot_to_apply = Some(record.index);
        self.lease_wait.handle_snapshot(self.state.lease_longest_ms);
        self.gate.record_format_of(self.state.format);
        self.raw.mut_store().install(record.clone());
        self.apply_configuration();
        self.apply_settings();
        self.reports.push_back(Report::Installed { index: record.index });
    }

    /// Gives the log the state at the applied index. A peer may get it as a snapshot.
    pub(super) fn apply_committed(&mut self) {
        if self.raw.store().record().index >= self.applied.0 {
            return;
        }
        let record = self.record();
        self.raw.mut_store().record_applied(record);
        self.compact_if_due();
        self.record_if_raised();
    }

    /// The ceiling: no epoch above it was ever assigned to a leader.
    #[must_use]
    pub const fn ceiling(&self) -> Epoch {
        self.state.ceiling
    }

    /// A lower bound of true time, Unix nanoseconds. A right clock is behind it by at most the
    /// current clock bound. The value is the ceiling minus two terms: the longest reservation
    /// window so far, and the difference between the widest clock bound so far and the current one.
    /// If timestamps are compact, it is also minus the least width of a range, by which a leader may
    /// have raised the ceiling ahead of the clock.
    #[must_use]
    pub fn trusted_before_ns(&self) -> u64 {
        let State { reservation_longest_ms, clock_offset_widest_ms, settings, .. } = &self.state;
        let window_ns = (reservation_longest_ms * 1_000_000).max(self.reservation.window_ns());
        let bound_ms =
            settings.as_ref().map_or(*clock_offset_widest_ms, |it| it.clock_offset_max_ms);
        let wider_ns = clock_offset_widest_ms.saturating_sub(bound_ms) * 1_000_000;
        let ahead_ns = match self.state.timestamp_format() {
            TimestampFormat::Wide => 0,
            TimestampFormat::Compact => COMPACT_WIDTH_MIN_NS,
        };
        let margin_ns = window_ns + wider_ns + ahead_ns;
        self.state.ceiling.0.saturating_sub(margin_ns)
    }

    /// The last applied entry.
    #[must_use]
    pub const fn applied(&self) -> LogIndex {
        self.applied.0
    }
}

/// The change in the library's types. One step is a simple change. Several steps make a joint
/// configuration, which is left explicitly.
pub(super) fn library_change(change: &MembershipChange) -> ConfChangeV2 {
    let singles = change.steps.iter().map(|step| {
        let mut single = ConfChangeSingle { node_id: step.node().0, ..ConfChangeSingle::default() };
        single.set_change_type(match step {
            MembershipStep::AddLearner(_) => ConfChangeType::AddLearnerNode,
            MembershipStep::Promote(_) => ConfChangeType::AddNode,
            MembershipStep::Remove(_) => ConfChangeType::RemoveNode,
        });
        single
    });
    let mut library = ConfChangeV2::default();
    library.set_changes(singles.collect::<Vec<_>>().into());
    library.set_transition(if change.steps.len() > 1 {
        ConfChangeTransition::Explicit
    } else {
        ConfChangeTransition::Auto
    });
    library
}
