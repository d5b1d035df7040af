//! A replica: the Raft library behind `handle_*` and `poll_*`. Events go in with the time at which
//! they happened; writes, messages and reports come out. It never reads a clock, and its only
//! source of randomness is its seed. The same inputs give the same outputs.
//!
//! It adds to the library:
//! - The Promise and the publication change in the same step as term and configuration.
//! - A message leaves only when the data that it promises is durable.
//! - It reserves ranges of epochs.
//! - It hands leadership over when disk or data plane fail.
//!
//! The shape is that of etcd's raft, of which the library is the Rust port. Events are steps of one
//! function. Its result lists what to write first and which messages to send after that. Terms are
//! those of Ongaro's dissertation (2014).

mod advance;
mod apply;
mod barrier;
mod campaign;
mod clients;
mod closing;
mod config;
mod errors;
mod format;
mod give_back;
mod graceful_shutdown;
mod leader_checks;
mod lease;
mod offer;
mod operator;
mod outbox;
mod own_disk;
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
use epicepoch_wire::{LogIndex, Mode, NodeId, StoreId, Term};
use raft::{RawNode, StateRole};

use crate::durable::{Restored, Write};
use crate::lease::{LeaseWait, OwnLease};
use crate::log::Log;
use crate::publication::{Grant, Published, Role, Shared};
use crate::quorum::Voters;
use crate::state::{MembershipChange, State, is_recordable};
use crate::translate;

pub use advance::{ADVANCE_AHEAD_MAX_NS, ADVANCE_AHEAD_NS, Advance, AdvanceError};
pub use barrier::{Barrier, BarrierState};
use campaign::Campaigns;
use clients::Clients;
use closing::Closing;
pub use config::ReplicaConfig;
pub use errors::{ChangeError, LAG_MAX, MessageError, NotCaughtUp, RestoreError, TransferError};
use format::Gate;
use graceful_shutdown::GracefulShutdown;
use leader_checks::LeaderChecks;
use offer::Offers;
use outbox::Outbox;
pub use outbox::Outgoing;
use position::KnownPositions;
use preference::Preference;
pub use preference::{Placed, ZonesInDoubt};
pub use report::{Fatal, HandOver, PeerProgress, Report, Status};
use reservation::Reservation;
use settings::Settings;
pub use settings::SettingsError;

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
    /// Whether the last publication held back a grant (S20) or the right to interval timestamps (S24),
    /// because leases of others may run.
    is_held_back: bool,
    lease: OwnLease,
    lease_wait: LeaseWait,
    /// The clock of this node's own lease as it was last read, nanoseconds.
    lease_clock_ns: u64,
    /// Whether this node may take leases.
    is_lease_clock_fit: bool,
    /// When a request last asked for a lease, monotonic nanoseconds; 0 before the first.
    lease_asked_ns: u64,
    is_published: bool,

    /// The term and role for which the election timeout was last drawn.
    drawn_for: (u64, StateRole),
    election_draw: usize,

    outbox: Outbox,
    snapshot_to_apply: Option<LogIndex>,
    compaction: Option<Write>,
    positions: KnownPositions,
    reservation: Reservation,
    leader_checks: LeaderChecks,
    campaigns: Campaigns,
    offers: Offers,
    preference: Preference,
    clients: Clients,
    graceful_shutdown: GracefulShutdown,
    gate: Gate,
    settings: Settings,
    closing: Closing,
    reports: VecDeque<Report>,
}

impl Replica {
    /// A replica that starts from a data directory and publishes to `shared`. Raises the Promise
    /// there to the durable term.
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
            is_held_back: false,
            lease: OwnLease::default(),
            lease_wait: LeaseWait::new(
                config.identity.node,
                config.identity.boot,
                lease::longest_ms(&state, restored),
            ),
            lease_clock_ns: 0,
            is_lease_clock_fit: false,
            lease_asked_ns: 0,
            is_published: false,
            outbox: Outbox::new(restored.hard_state),
            snapshot_to_apply: None,
            compaction: None,
            positions: KnownPositions::new(&restored.positions),
            reservation: Reservation::new(&config),
            leader_checks: LeaderChecks::default(),
            campaigns: Campaigns::default(),
            offers: Offers::default(),
            preference: Preference::default(),
            clients: Clients::default(),
            graceful_shutdown: GracefulShutdown::default(),
            gate: Gate::default(),
            settings: Settings::default(),
            closing: Closing::default(),
            reports: VecDeque::new(),
            raw,
            shared,
            config,
            state,
            applied,
        };
        replica.shared.raise(Term(replica.raw.raft.term));
        replica.publish_positions();
        // The format is published together with the members, in the next line.
        replica.gate.begin(replica.state.format, &restored.entries);
        replica.apply_configuration();
        replica.apply_settings();
        replica.settle();
        Ok(replica)
    }

    /// Handles a message of the peer `from`, whose connection has proved the data directory
    /// `store`. An offer of leadership waits for [`Replica::follow_offer`].
    ///
    /// # Errors
    /// When the message was refused. [`MessageError::LostEntries`] is fatal for this node.
    pub fn handle_message(
        &mut self,
        now_ns: u64,
        from: NodeId,
        store: StoreId,
        message: &RaftMessage,
    ) -> Result<(), MessageError> {
        self.now_ns = now_ns;
        self.check_message(from, store, message)?;
        self.leader_checks.heard(from, now_ns);
        if message.kind == MessageKind::TimeoutNow {
            self.record_offer(from, message);
            return Ok(());
        }
        let mut message = translate::library_message(from, message);
        if message.get_msg_type() == raft::eraftpb::MessageType::MsgHeartbeatResponse {
            self.record_voter_status(from, &message.context);
            // With this context the library would take the message for an answer to its own
            // question.
            message.context.clear();
        }
        // An error means that the library ignored the message: an unknown peer, or a kind for
        // another role.
        let _ignored = self.step(|raw| raw.step(message));
        self.forget_snapshot_if_taken(from);
        Ok(())
    }

    /// Handles one tick. A tick that comes late still counts as one tick. Before this call, handle
    /// all messages that have arrived, and call [`Replica::follow_offer`].
    ///
    /// # Errors
    /// When this node must stop.
    pub fn handle_tick(&mut self, now_ns: u64, trusted_ns: u64) -> Result<(), Fatal> {
        self.now_ns = now_ns;
        self.trusted_ns = trusted_ns;
        self.record_tick();
        self.check_gate()?;
        self.forget_overwritten_formats();
        if self.may_tick() {
            let raft = &self.raw.raft;
            let fires = raft.state != StateRole::Leader
                && raft.election_elapsed + 1 >= raft.randomized_election_timeout();
            if fires {
                self.drawn_for = (0, StateRole::Leader);
            }
            if fires && self.is_stopping() {
                self.let_others_campaign();
            } else {
                self.step(RawNode::tick);
            }
            if fires && self.role() == Role::Candidate {
                self.campaign_again_later();
            }
        }
        self.campaign_if_due();
        self.tick_preference();
        self.tick_clients();
        self.tick_giving_back();
        self.end_intervals_if_due();
        self.look_after_leadership();
        self.reserve_if_due();
        self.check_limits()
    }

    /// The writes up to and including `number` are durable.
    ///
    /// # Panics
    /// When no write with this number was handed out.
    pub fn handle_persisted(&mut self, now_ns: u64, number: u64) {
        self.now_ns = now_ns;
        let ready = self.outbox.persisted(number);
        self.publish_positions();
        self.on_persisted(ready);
        self.settle();
    }

    /// Handles a report that a peer cannot be reached: its link is down or its queue is full.
    pub fn handle_unreachable(&mut self, now_ns: u64, node: NodeId) {
        self.now_ns = now_ns;
        if self.leader_checks.snapshot_done(node) {
            self.step(|raw| raw.report_snapshot(node.0, raft::SnapshotStatus::Failure));
        }
        self.step(|raw| raw.report_unreachable(node.0));
    }

    /// Hands leadership to `to`, or to the most up-to-date follower that is heard. Returns the
    /// successor, or `None` when this node does not lead, hands over already, or no voter can take
    /// over.
    pub fn hand_over(&mut self, now_ns: u64, to: Option<NodeId>, why: HandOver) -> Option<NodeId> {
        self.now_ns = now_ns;
        // A second offer would leave before the first handover has given back (S18).
        if self.raw.raft.state != StateRole::Leader || self.is_handing_over() {
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

    /// Proposes a membership change. [`Report::Changed`] with the change's nonce acknowledges it.
    ///
    /// # Errors
    /// When the change was not proposed.
    pub fn propose_change(
        &mut self,
        now_ns: u64,
        change: &MembershipChange,
    ) -> Result<(), ChangeError> {
        self.now_ns = now_ns;
        self.check_proposal(change)?;
        self.propose_checked(change)
    }

    /// Whether a membership change is under way. Also true if a change may be in the part of the
    /// log that this leader has not applied yet.
    #[must_use]
    pub fn is_changing_members(&self) -> bool {
        self.raw.raft.has_pending_conf() || self.voters.is_joint()
    }

    /// Checks that this node leads and that the change can be made now.
    fn check_proposal(&self, change: &MembershipChange) -> Result<(), ChangeError> {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader {
            return Err(ChangeError::NotLeader);
        }
        if self.is_changing_members() || self.is_handing_over() {
            return Err(ChangeError::Busy);
        }
        // By now the state has all changes that were in the log when this node became leader.
        self.state.check_change(change).map_err(ChangeError::Refused)
    }

    fn propose_checked(&mut self, change: &MembershipChange) -> Result<(), ChangeError> {
        let (context, library) = (change.encode(), apply::library_change(change));
        let proposed = self.step(|raw| raw.propose_conf_change(context, library));
        proposed.map_err(|_| ChangeError::Busy)
    }

    /// Handles the addresses that a member named in its hello. If the hello came from the data
    /// directory that the id is bound to, the addresses are published at once. Then peers and
    /// clients reach the member there. A leader records them.
    pub fn handle_peer_addresses(&mut self, member: Member) {
        let is_bound = self.state.store_of(member.node) == member.store
            && is_recordable(&member.raft_addr)
            && is_recordable(&member.client_addr);
        if !is_bound {
            return;
        }
        if self.state.members.get(&member.node) == Some(&member) {
            self.leader_checks.readdressed.remove(&member.node);
        } else {
            self.leader_checks.readdressed.insert(member.node, member);
        }
        self.apply_members();
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

    /// Whether anything was published since the last call. Then the workers must be notified.
    pub fn take_published(&mut self) -> bool {
        std::mem::take(&mut self.is_published)
    }

    /// The current publication.
    #[must_use]
    pub fn published(&self) -> Arc<Published> {
        self.shared.published()
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

    fn publish(&mut self) {
        // S4: a term is promised before it is published.
        let term = Term(self.raw.raft.term);
        assert!(self.shared.promise.load() >= term, "S4: published before promised");
        self.is_published = true;
        // S20: a new leader answers nobody while the lease of another may run.
        // S24: in interval mode, no leader gives timestamps. It goes on to reserve, and workers get
        // nothing of that.
        let (mode, is_over) = (self.state.mode(), self.lease_wait.is_over());
        let grant = self.grant.filter(|_| is_over && mode == Mode::Quorum);
        self.is_held_back = !is_over && (self.grant.is_some() || mode == Mode::Interval);
        let opening = self.opening().filter(|_| is_over);
        assert!(grant.is_none() || opening.is_none(), "S24: two modes at once");
        let lease = grant.and_then(|grant| self.lease.published(grant.term));
        self.shared.publish(Arc::new(Published {
            identity: self.config.identity,
            cluster: self.state.cluster,
            history: self.state.history,
            term,
            role: self.role(),
            leader: self.leader(),
            voters: self.voters.clone(),
            grant,
            lease,
            members: self.members.clone(),
            format: self.format_needed(),
            settings: self.published_settings(),
            epoch_interval_ns: self
                .state
                .settings
                .as_ref()
                .map(|it| it.epoch_interval_ms * 1_000_000),
            timestamp_format: self.state.timestamp_format(),
            mode,
            opening,
            closing: self.state.closing(),
        }));
    }
}

/// At most this many bytes of entries in one append: far below the frame limit.
const MESSAGE_SIZE_MAX: u64 = 128 << 10;
/// At most this many appends on their way to one peer.
const APPENDS_IN_FLIGHT_MAX: usize = 128;
/// At most this many bytes of entries wait for a quorum. Beyond it, proposals are dropped.
const UNCOMMITTED_SIZE_MAX: u64 = 1 << 20;
