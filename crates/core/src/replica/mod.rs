//! A replica: the Raft library behind `handle_*` and `poll_*`. Events go in with the time at which
//! they happened; writes, messages and reports come out. It never reads a clock, draws no chance
//! but from its seed, and the same inputs give the same outputs.
//!
//! What it adds to the library: the Promise and the published state change in the same step as
//! the term and the configuration do; a message leaves only after what it promises is durable;
//! reservations; giving leadership away when the disk or the data plane cannot carry it.
//!
//! The shape (step function, persist-then-send as data) is that of etcd's raft; the library is its
//! Rust port. Terms as in Ongaro's dissertation (2014).

mod advance;
mod apply;
mod campaign;
mod clients;
mod departure;
mod duties;
mod format;
mod operator;
mod outbox;
mod position;
mod preference;
mod refusal;
mod report;
mod reservation;
mod settings;
mod settle;
pub(crate) mod stopped;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::{DecodeError, LogIndex, NodeId, StoreId, Term};
use raft::{RawNode, StateRole};
use thiserror::Error;

use crate::durable::{Restored, Write};
use crate::log::Log;
use crate::planted::{self, Bug, safety_assert};
use crate::positions::SetBack;
use crate::publication::{Grant, Identity, Published, Role, Shared};
use crate::quorum::Voters;
use crate::state::{MembershipChange, State, is_recordable};
use crate::translate;

pub use advance::{ADVANCE_AHEAD_MAX_NS, ADVANCE_AHEAD_NS, Advance, AdvanceError};
use campaign::Campaigns;
use clients::Clients;
use departure::Departure;
use duties::Duties;
use format::Gate;
pub use operator::{LAG_MAX, NotCaughtUp, TransferError};
use outbox::Outbox;
use position::Places;
use preference::Preference;
pub use preference::{Placed, ZonesInDoubt};
pub use report::{Fatal, HandOver, PeerProgress, Report, Status};
use reservation::Reservation;
use settings::Settings;
pub use settings::SettingsError;

/// How a replica behaves. All durations in its own ticks or in nanoseconds of the caller's clock.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaConfig {
    /// Who this node is, in this run.
    pub identity: Identity,
    /// Seed of every draw.
    pub seed: u64,
    /// Shortest silence after which a follower campaigns, ticks; each draw is from `[E, 2E)`.
    pub election_ticks: usize,
    /// Between two heartbeats of a leader, ticks; below `election_ticks`.
    pub heartbeat_ticks: usize,
    /// Length of a tick, nanoseconds.
    pub tick_ns: u64,
    /// How far ahead of trusted time a leader reserves, nanoseconds.
    pub reservation_ns: u64,
    /// Consecutive reservations that may be late before this replica gives up.
    pub deadline_limit: u32,
    /// The newest format that this node reads, as its hello says: what this version reads, or less.
    pub format_max: u32,
}

/// A message that may leave now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The receiver.
    pub to: NodeId,
    /// The message.
    pub message: RaftMessage,
}

/// Why a replica could not be made from what a data directory holds.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The record is damaged: restore the node from its peers.
    #[error("the stored state cannot be read")]
    Record(#[from] DecodeError),
    /// The library refuses the log: restore the node from its peers.
    #[error("the stored log is refused")]
    Log(#[from] raft::Error),
}

/// Why a peer's message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The message is for another node: close the connection.
    #[error("the message is for another node")]
    WrongReceiver,
    /// The sender's data directory is not the one its node id is bound to: close the connection.
    #[error("the sender's data directory is not the one its node id is bound to")]
    WrongStore,
    /// Only a known member may send this kind: drop it.
    #[error("only a member may send this kind of message")]
    NotAMember,
    /// The sender's data directory was set back to an older state: refuse it.
    #[error(
        "the sender's data directory was set back to an older state: it names {} durable writes \
         and has named {}", .0.named, .0.remembered
    )]
    SetBack(SetBack),
    /// The message carries what this node cannot read: run a version that does.
    #[error("the message carries what cannot be read here, at index {index}: {error}")]
    Unreadable {
        /// Of the entry, or of the snapshot.
        index: LogIndex,
        /// Why not.
        error: DecodeError,
    },
    /// The message claims what no correct peer claims: close the connection.
    #[error("the message claims what no correct peer claims")]
    Impossible,
    /// This node's disk has lost entries that it had acknowledged: it must stop.
    #[error(
        "a leader knows {commit} entries to be committed here, this disk holds {last}: it was set \
         back to an older state"
    )]
    LostEntries {
        /// What the leader knows this node to hold.
        commit: LogIndex,
        /// What it holds.
        last: LogIndex,
    },
}

/// Why a membership change was not proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// Ask the leader.
    #[error("this node does not lead")]
    NotLeader,
    /// Wait until the change that is under way is done, or until this leader has applied those that it
    /// found in its log.
    #[error("another membership change is under way")]
    Busy,
    /// The change can never be made.
    #[error("{0}")]
    Refused(&'static str),
    /// Wait until the member is caught up; see [`Replica::propose_prudent_change`].
    #[error(transparent)]
    NotCaughtUp(#[from] NotCaughtUp),
    /// Hand leadership over first, then ask the new leader.
    #[error("node {0} leads: hand leadership over first, then remove it")]
    Leads(NodeId),
    /// Bring voters back, add others or remove those that are gone first.
    #[error(
        "only {there} of the {voters} voters that there would be are there, which is no majority: \
         nobody could answer any more"
    )]
    Stranded {
        /// Voters of the new configuration that were heard within an election timeout.
        there: usize,
        /// All of them.
        voters: usize,
    },
}

/// One replica of the cluster.
pub struct Replica {
    raw: RawNode<Log>,
    shared: Arc<Shared>,
    config: ReplicaConfig,
    random: fastrand::Rng,
    now_ns: u64,
    trusted_ns: u64,

    state: State,
    applied: (LogIndex, Term),
    members: Arc<BTreeMap<NodeId, Member>>,
    voters: Voters,
    grant: Option<Grant>,
    is_published: bool,

    /// Term and role when the election timeout was last drawn, and the draw.
    drawn_for: (u64, StateRole),
    election_draw: usize,

    outbox: Outbox,
    snapshot_to_apply: Option<LogIndex>,
    compaction: Option<Write>,
    positions: Places,
    reservation: Reservation,
    memory: planted::Memory,
    duties: Duties,
    campaigns: Campaigns,
    preference: Preference,
    clients: Clients,
    departure: Departure,
    gate: Gate,
    settings: Settings,
    reports: VecDeque<Report>,
}

impl Replica {
    /// A replica of what a data directory holds, publishing to `shared`, whose promise must stand
    /// at the durable term already or is raised to it here.
    ///
    /// # Errors
    /// When the stored state cannot be read.
    ///
    /// # Panics
    /// When the configuration's ticks are impossible.
    pub fn new(
        config: ReplicaConfig,
        restored: &Restored,
        shared: Arc<Shared>,
    ) -> Result<Self, RestoreError> {
        let state = State::decode_up_to(&restored.record.data, config.format_max)?;
        let log = Log::new(restored);
        let applied = (restored.record.index, restored.record.term);
        let library = raft::Config {
            id: config.identity.node.0,
            election_tick: config.election_ticks,
            heartbeat_tick: config.heartbeat_ticks,
            applied: applied.0.0,
            max_size_per_msg: MESSAGE_SIZE_MAX,
            max_inflight_msgs: APPENDS_IN_FLIGHT_MAX,
            max_uncommitted_size: UNCOMMITTED_SIZE_MAX,
            check_quorum: true,
            pre_vote: true,
            ..raft::Config::default()
        };
        let raw = RawNode::new(&library, log, &slog::Logger::root(slog::Discard, slog::o!()))?;
        let mut replica = Self {
            drawn_for: (0, StateRole::Leader),
            election_draw: config.election_ticks,
            random: fastrand::Rng::with_seed(config.seed),
            now_ns: 0,
            trusted_ns: 0,
            members: Arc::new(BTreeMap::new()),
            voters: Voters::default(),
            grant: None,
            is_published: false,
            outbox: Outbox::new(restored.hard_state),
            snapshot_to_apply: None,
            compaction: None,
            positions: Places::new(&restored.positions),
            reservation: Reservation::new(&config),
            memory: planted::Memory::default(),
            duties: Duties::default(),
            campaigns: Campaigns::default(),
            preference: Preference::default(),
            clients: Clients::default(),
            departure: Departure::default(),
            gate: Gate::default(),
            settings: Settings::default(),
            reports: VecDeque::new(),
            raw,
            shared,
            config,
            state,
            applied,
        };
        replica.shared.raise(Term(replica.raw.raft.term));
        replica.publish_positions();
        // Published with the members below, and not before.
        replica.gate.begin(replica.state.format, &restored.entries);
        replica.take_in_configuration();
        replica.take_in_settings();
        replica.settle();
        Ok(replica)
    }

    /// Takes in a message of the peer `from`, whose connection proved the data directory `store`.
    ///
    /// # Errors
    /// When the message was not taken. [`MessageError::LostEntries`] is fatal for this node.
    pub fn handle_message(
        &mut self,
        now_ns: u64,
        from: NodeId,
        store: StoreId,
        message: &RaftMessage,
    ) -> Result<(), MessageError> {
        self.now_ns = now_ns;
        self.check_message(from, store, message)?;
        self.duties.heard(from, now_ns);
        if message.kind == MessageKind::TimeoutNow && !self.may_take_over() {
            return Ok(());
        }
        let mut message = translate::library_message(from, message);
        if message.get_msg_type() == raft::eraftpb::MessageType::MsgHeartbeatResponse {
            self.note_standing(from, &message.context);
            // The library would take it for an answer to a question of its own.
            message.context.clear();
        }
        // The library's errors here say that it ignored the message: a peer it does not know, a
        // kind for another role. Nothing has changed then.
        let _ignored = self.step(|raw| raw.step(message));
        self.forget_snapshot_if_taken(from);
        Ok(())
    }

    /// One tick has passed, or more: a late tick is one tick. Drain the inbox before.
    ///
    /// # Errors
    /// When this node must stop.
    pub fn handle_tick(&mut self, now_ns: u64, trusted_ns: u64) -> Result<(), Fatal> {
        self.now_ns = now_ns;
        self.trusted_ns = trusted_ns;
        self.check_gate()?;
        self.forget_overwritten_formats();
        if planted::is(Bug::LatePromise) {
            self.shared.raise(Term(self.raw.raft.term));
        }
        self.memory.tick(now_ns);
        if planted::is(Bug::LateVoters) && self.memory.is_look() {
            self.publish();
        }
        if self.may_tick() {
            let raft = &self.raw.raft;
            let fires = raft.state != StateRole::Leader
                && raft.election_elapsed + 1 >= raft.randomized_election_timeout();
            if fires {
                self.drawn_for = (0, StateRole::Leader);
            }
            let hands_over = self.raw.raft.lead_transferee.is_some();
            if fires && self.is_departing() {
                self.let_others_campaign();
            } else {
                self.step(RawNode::tick);
            }
            if planted::is(Bug::TransfereeKept) && hands_over && self.role() == Role::Leader {
                self.raw.raft.lead_transferee.get_or_insert(u64::MAX);
            }
            if fires && self.role() == Role::Candidate {
                self.campaign_again_later();
            }
        }
        self.campaign_if_due();
        self.tick_preference();
        self.tick_clients();
        self.look_after_leadership();
        self.reserve_if_due();
        self.check_limits()
    }

    /// The writes up to and including `number` are durable.
    ///
    /// # Panics
    /// When a write is reported that was not handed out.
    pub fn handle_persisted(&mut self, now_ns: u64, number: u64) {
        self.now_ns = now_ns;
        let ready = self.outbox.persisted(number);
        self.publish_positions();
        self.on_persisted(ready);
        self.settle();
    }

    /// A peer cannot be reached: its link is down or its queue is full.
    pub fn handle_unreachable(&mut self, now_ns: u64, node: NodeId) {
        self.now_ns = now_ns;
        if self.duties.snapshot_done(node) {
            self.step(|raw| raw.report_snapshot(node.0, raft::SnapshotStatus::Failure));
        }
        self.step(|raw| raw.report_unreachable(node.0));
    }

    /// Hands leadership to `to`, or to the most up-to-date follower that is heard. Returns to
    /// whom, or `None` when this node does not lead or nobody can take it.
    pub fn hand_over(&mut self, now_ns: u64, to: Option<NodeId>, why: HandOver) -> Option<NodeId> {
        self.now_ns = now_ns;
        if self.raw.raft.state != StateRole::Leader {
            return None;
        }
        let me = self.config.identity.node;
        let to = match to {
            Some(node) if node != me && self.voters.iter().any(|(voter, _)| voter == node) => node,
            Some(_) => return None,
            None => self.next_successor(|_| true)?,
        };
        self.transfer(to, why);
        Some(to)
    }

    /// Proposes a membership change. It is acknowledged by [`Report::Changed`] with its nonce.
    ///
    /// # Errors
    /// When it was not proposed.
    pub fn propose_change(
        &mut self,
        now_ns: u64,
        change: &MembershipChange,
    ) -> Result<(), ChangeError> {
        self.now_ns = now_ns;
        self.check_proposal(change)?;
        self.propose_checked(change)
    }

    /// Whether a change of members is under way, or may wait in the log that this leader came to: what
    /// it has applied does not say yet who the members are.
    #[must_use]
    pub fn is_changing_members(&self) -> bool {
        self.raw.raft.has_pending_conf() || self.voters.is_joint()
    }

    /// Whether this node leads, and the change is one that could be made, and made now.
    fn check_proposal(&self, change: &MembershipChange) -> Result<(), ChangeError> {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader {
            return Err(ChangeError::NotLeader);
        }
        if self.is_changing_members() || raft.lead_transferee.is_some() {
            return Err(ChangeError::Busy);
        }
        // Only now: the state has all changes that were in the log when this node came to lead.
        if !planted::is(Bug::MistakesProposed) {
            self.state.check_change(change).map_err(ChangeError::Refused)?;
        }
        Ok(())
    }

    fn propose_checked(&mut self, change: &MembershipChange) -> Result<(), ChangeError> {
        let (context, library) = (change.encode(), apply::library_change(change));
        let proposed = self.step(|raw| raw.propose_conf_change(context, library));
        proposed.map_err(|_| ChangeError::Busy)
    }

    /// A member introduced itself, from the data directory that its id is bound to: its addresses
    /// are published at once, so that it is reached where it is now, and a leader records them.
    pub fn handle_introduction(&mut self, member: Member) {
        let is_bound = self.state.store_of(member.node) == member.store
            && is_recordable(&member.raft_addr)
            && is_recordable(&member.client_addr);
        if !is_bound {
            return;
        }
        if self.state.members.get(&member.node) == Some(&member) {
            self.duties.introduced.remove(&member.node);
        } else {
            self.duties.introduced.insert(member.node, member);
        }
        self.take_in_members();
    }

    /// The next write for the storage thread.
    pub fn poll_write(&mut self) -> Option<Write> {
        self.outbox.poll_write()
    }

    /// The next message that may leave.
    pub fn poll_message(&mut self) -> Option<Outgoing> {
        self.outbox.poll_message()
    }

    /// The next report, for logs, metrics and acknowledgements.
    pub fn poll_report(&mut self) -> Option<Report> {
        self.reports.pop_front()
    }

    /// Whether anything was published since this was last asked: tell the workers.
    pub fn take_published(&mut self) -> bool {
        std::mem::take(&mut self.is_published)
    }

    /// The replicated state at the applied index.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    fn role(&self) -> Role {
        match self.raw.raft.state {
            StateRole::Follower => Role::Follower,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
            StateRole::Leader => Role::Leader,
        }
    }

    fn leader(&self) -> Option<NodeId> {
        Some(NodeId(self.raw.raft.leader_id)).filter(|leader| *leader != NodeId(0))
    }

    /// The voters that the workers see: those of the applied configuration, but for planted bugs.
    fn published_voters(&self) -> Voters {
        let is_late = planted::is(Bug::LateVoters) && !self.memory.is_look();
        if planted::is(Bug::OldVoters) || is_late {
            let kept = &self.shared.published().voters;
            return if kept.is_empty() { self.voters.clone() } else { kept.clone() };
        }
        self.voters.clone()
    }

    fn publish(&mut self) {
        // S4: whoever reads of a term here finds it promised.
        let term = Term(self.raw.raft.term);
        safety_assert!(self.shared.promise.load() >= term, "S4: published before promised");
        self.is_published = true;
        let voters = self.published_voters();
        self.shared.publish(Arc::new(Published {
            identity: self.config.identity,
            cluster: self.state.cluster,
            history: self.state.history,
            term,
            role: self.role(),
            leader: self.leader(),
            voters,
            grant: self.grant,
            members: self.members.clone(),
            format: self.format_needed(),
            settings: self.published_settings(),
            epoch_interval_ns: self
                .state
                .settings
                .as_ref()
                .map(|it| it.epoch_interval_ms * 1_000_000),
        }));
    }
}

/// Most bytes of entries in one append; far below the frame limit.
const MESSAGE_SIZE_MAX: u64 = 128 << 10;
/// Appends that may be on their way to one peer.
const APPENDS_IN_FLIGHT_MAX: usize = 128;
/// Bytes of entries that may wait for a quorum before proposals are dropped.
const UNCOMMITTED_SIZE_MAX: u64 = 1 << 20;
