//! The consensus plane of a node without its IO: the replica, trusted time, and the decisions about
//! peers that refuse this node or cannot be reached. Events go in with the time at which they
//! happened; actions come out of [`Node::poll_action`] in one fixed order. Nothing here reads a
//! clock, opens a connection or writes a file.
//!
//! The server and the simulator run loops around a [`Node`]. Each passes all events that have
//! arrived, then lets the node follow an offer of leadership ([`Node::follow_offer`]), then makes
//! one call a tick ([`Node::handle_tick`]), then does all actions. So both follow the rules of this
//! module.

mod removal_notice;

use std::collections::BTreeMap;
use std::sync::Arc;

use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::gossip::Pong;
use epicepoch_wire::peer_hello::{Formats, RefusalCode};
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::{BootId, Epoch, NodeId, StoreId, StorePosition};

use crate::clock::{ClockReading, ClockStatus, TrustedClock, clocks_of};
use crate::durable::{Restored, Write};
use crate::lease::LeaseClocks;
use crate::positions::RolledBack;
use crate::publication::{Published, Shared};
use crate::quorum::Voters;
use crate::replica::{Fatal, MessageError, Outgoing, Replica, ReplicaConfig, Report, RestoreError};
use removal_notice::RemovalNotice;

/// The decisions of one node's consensus plane.
pub struct Node {
    replica: Replica,
    clock: TrustedClock,
    me: NodeId,
    removal_notice: RemovalNotice,
    /// When the replica last got the report that a peer is unreachable.
    unreachable_at_ns: BTreeMap<NodeId, u64>,
    /// How often in a row each peer has refused this node as a duplicate.
    duplicate_refusals: BTreeMap<NodeId, u32>,
}

/// The health of the data plane at a tick.
#[derive(Clone, Copy, Debug)]
pub struct Health {
    /// When a worker last completed a confirm round, by the data plane's clock. Only a change of
    /// the value matters.
    pub round_completed_ns: u64,
    /// Whether every accept of a client since the last success has failed.
    pub are_accepts_failing: bool,
    /// When a request last asked for a lease, by the data plane's clock; 0 before the first.
    pub lease_asked_ns: u64,
}

/// The result of a tick, for workers, status pages and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The new verdict on the wall clock, if this tick changed it.
    pub clock_changed: Option<ClockStatus>,
    /// Trusted minus monotonic time, nanoseconds.
    pub trusted_offset_ns: i64,
    /// Whether this node is connected to a quorum ([`Replica::is_quorum_reached`]).
    pub is_quorum_reached: bool,
    /// Whether this node cannot lead now ([`Replica::is_impaired`]).
    pub is_impaired: bool,
}

/// What the driver must do, in the order in which [`Node::poll_action`] returns it.
#[derive(Clone, Debug)]
pub enum Action {
    /// The publication has changed, and workers see it already: notify them, and close links that
    /// it does not allow.
    Published(Arc<Published>),
    /// Stop the allocator ([`Allocator::stop`]), and pass the result to
    /// [`Node::handle_allocator_stopped`]. Workers see already that there is no grant.
    ///
    /// [`Allocator::stop`]: crate::allocator::Allocator::stop
    StopAllocator,
    /// Write this. Pass its number to [`Node::handle_persisted`] when it is durable.
    Write(Write),
    /// Send this. Everything that it promises is durable. If it cannot be sent, call
    /// [`Node::handle_unsent`].
    Send(Outgoing),
    /// Log and count this result, and answer the operator who waits for it.
    Report(Report),
}

/// The meaning of a peer's refusal of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The refusal may pass, or concerns one wrong address: dial again.
    ForNow,
    /// The peer confirms that this node was removed. The node goes on until
    /// [`Fatal::Removed`].
    Removed {
        /// Whether this is the first confirmation.
        is_first: bool,
    },
    /// Waiting does not help: end the process.
    ForGood,
}

impl Node {
    /// A node that starts from a data directory, publishes to `shared`, and has read its clocks.
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
        clock: TrustedClock,
    ) -> Result<Self, RestoreError> {
        let me = config.identity.node;
        Ok(Self {
            replica: Replica::new(config, restored, shared)?,
            clock,
            me,
            removal_notice: RemovalNotice::default(),
            unreachable_at_ns: BTreeMap::new(),
            duplicate_refusals: BTreeMap::new(),
        })
    }

    /// Handles one tick. A tick that comes late still counts as one tick. Before this call, handle
    /// all events that have arrived, and call [`Node::follow_offer`].
    ///
    /// # Errors
    /// When this node must stop.
    pub fn handle_tick(
        &mut self,
        reading: ClockReading,
        health: Health,
    ) -> Result<Observation, Fatal> {
        let now_ns = reading.monotonic_ns;
        let published = self.replica.published();
        if self.removal_notice.is_over(self.me, &published.voters, now_ns) {
            return Err(Fatal::Removed { node: self.me });
        }
        let clock_changed = self.compare_clocks(reading, &published.voters);
        self.replica.handle_rounds(health.round_completed_ns);
        self.replica.handle_clients(health.are_accepts_failing);
        self.replica.handle_lease_asked(health.lease_asked_ns);
        self.replica.handle_tick(now_ns, self.clock.trusted_ns(now_ns))?;
        Ok(Observation {
            clock_changed,
            trusted_offset_ns: self.clock.offset_ns(),
            is_quorum_reached: self.replica.is_quorum_reached(),
            is_impaired: self.replica.is_impaired(),
        })
    }

    /// Decides which clock to follow, and tells the replica which voters' clocks are right. Returns
    /// the verdict on the wall clock if it has changed.
    fn compare_clocks(&mut self, reading: ClockReading, voters: &Voters) -> Option<ClockStatus> {
        let voters = || voters.iter().map(|(node, _)| node);
        let clocks = clocks_of(voters(), self.me);
        let before = self.clock.status();
        self.clock.retain_peers(|node| voters().any(|voter| voter == node));
        let status = self.clock.observe(reading, clocks, self.replica.trusted_before_ns());
        let sound: Vec<_> = voters().filter(|node| self.clock.is_peer_trusted(*node)).collect();
        let is_outvoted = status == ClockStatus::Outvoted;
        self.replica.handle_clock(is_outvoted.then(|| sound.clone()));
        self.replica.handle_sound_clocks(sound);
        self.replica.handle_compared(self.clock.is_compared(clocks));
        (status != before).then_some(status)
    }

    /// Handles a reading of the clocks of the leases: [`Replica::handle_lease_clocks`].
    pub fn handle_lease_clocks(&mut self, clocks: LeaseClocks) {
        self.replica.handle_lease_clocks(clocks);
    }

    /// Handles a message of the peer `from`, whose connection has proved the data directory
    /// `store`. An offer of leadership waits for [`Node::follow_offer`].
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
        self.replica.handle_message(now_ns, from, store, message)
    }

    /// Follows the offer of leadership that has arrived, if it is still current. Call this when all
    /// events that have arrived are handled, before a tick.
    pub fn follow_offer(&mut self, now_ns: u64) {
        self.replica.follow_offer(now_ns);
    }

    /// The writes up to and including `number` are durable.
    ///
    /// # Panics
    /// When no write with this number was handed out.
    pub fn handle_persisted(&mut self, now_ns: u64, number: u64) {
        self.replica.handle_persisted(now_ns, number);
    }

    /// Handles the hello of a peer: its boot, the position at which that boot began, and the
    /// formats that it reads.
    ///
    /// # Errors
    /// When the peer was rolled back to an older state: refuse it, and every connection of that
    /// boot.
    pub fn handle_peer_hello(
        &mut self,
        from: NodeId,
        boot: BootId,
        began: StorePosition,
        formats: Formats,
    ) -> Result<(), RolledBack> {
        let heard = self.replica.handle_peer_hello(from, boot, began);
        self.replica.handle_formats(from, formats);
        heard
    }

    /// Handles the addresses that a member named in its hello.
    pub fn handle_peer_addresses(&mut self, member: Member) {
        self.replica.handle_peer_addresses(member);
    }

    /// Handles the answer of the peer `from`, in its run `boot`, to a ping. `since` is the peer's
    /// position as this node knew it when it sent the ping. The answer came at `received_ns`, by
    /// the same clock as `now_ns`.
    ///
    /// # Errors
    /// When the peer was rolled back: refuse it.
    pub fn handle_pong(
        &mut self,
        now_ns: u64,
        from: NodeId,
        boot: BootId,
        since: StorePosition,
        pong: &Pong,
        received_ns: u64,
    ) -> Result<(), RolledBack> {
        let heard = self.replica.handle_position(from, boot, pong.position, since);
        self.duplicate_refusals.remove(&from);
        self.replica.handle_reached(now_ns, from);
        self.clock.handle_sample(from, pong.wall_ns, pong.sent_ns, received_ns);
        heard
    }

    /// Handles the closed connection of a peer, whose process may have ended.
    pub fn handle_closed(&mut self, now_ns: u64, node: NodeId) {
        self.replica.handle_closed(now_ns, node);
        self.report_unreachable(now_ns, node);
    }

    /// Handles a peer that is unreachable, or whose link has broken.
    pub fn handle_unreachable(&mut self, now_ns: u64, node: NodeId) {
        let at_ns = self.unreachable_at_ns.get(&node).copied().unwrap_or(0);
        if now_ns.saturating_sub(at_ns) >= UNREACHABLE_INTERVAL_NS {
            self.report_unreachable(now_ns, node);
        }
    }

    /// Handles a message of this kind to `to` that could not be sent. A lost snapshot is reported
    /// at once, because until then the library sends nothing more to that peer.
    pub fn handle_unsent(&mut self, now_ns: u64, to: NodeId, kind: MessageKind) {
        if kind == MessageKind::Snapshot {
            self.report_unreachable(now_ns, to);
        } else {
            self.handle_unreachable(now_ns, to);
        }
    }

    /// Handles the refusal of this node by the peer `by`.
    pub fn handle_refused(&mut self, now_ns: u64, by: NodeId, code: RefusalCode) -> Refused {
        let refused = self.judge_refusal(now_ns, by, code);
        if refused != Refused::ForGood {
            self.handle_unreachable(now_ns, by);
        }
        refused
    }

    fn judge_refusal(&mut self, now_ns: u64, by: NodeId, code: RefusalCode) -> Refused {
        let duplicate_refusals = self.duplicate_refusals.entry(by).or_default();
        let is_duplicate = code == RefusalCode::DuplicateNode;
        *duplicate_refusals = if is_duplicate { *duplicate_refusals + 1 } else { 0 };
        match code {
            RefusalCode::Removed => {
                Refused::Removed { is_first: self.removal_notice.record(by, now_ns) }
            }
            // Another process with this id may be about to end, so this node waits a little.
            RefusalCode::DuplicateNode if *duplicate_refusals < DUPLICATE_REFUSALS_MAX => {
                Refused::ForNow
            }
            RefusalCode::DuplicateNode
            | RefusalCode::WrongStore
            | RefusalCode::RolledBack
            | RefusalCode::EndedHistory => Refused::ForGood,
            // Other refusals may be temporary, or concern one wrong address. The same holds for
            // refusal codes of later versions.
            _ => Refused::ForNow,
        }
    }

    /// Begins the shutdown: this node declines leadership, and offers its own until another node
    /// has taken it.
    pub fn handle_shutdown_request(&mut self, now_ns: u64) {
        self.replica.handle_shutdown_request(now_ns);
    }

    /// Handles the result of [`Action::StopAllocator`]: the epoch of the last timestamp of this
    /// node, or `None` if the allocator has not stopped. Call it before anything else.
    pub fn handle_allocator_stopped(&mut self, now_ns: u64, last: Option<Epoch>) {
        self.replica.handle_allocator_stopped(now_ns, last);
    }

    fn report_unreachable(&mut self, now_ns: u64, node: NodeId) {
        self.unreachable_at_ns.insert(node, now_ns);
        self.replica.handle_unreachable(now_ns, node);
    }

    /// The next action, or `None` when all are done. Do all of them after every event and tick.
    ///
    /// A publication comes before the messages that it concerns. For example, a link is closed
    /// before it would carry a format that its peer does not read (S15). A message waits for its
    /// write, and is sent only when the write is durable (S6). The step that made the action has
    /// already raised the Promise and swapped the publication (S4, S7).
    pub fn poll_action(&mut self) -> Option<Action> {
        let replica = &mut self.replica;
        if replica.take_published() {
            if let Some(settings) = replica.settings() {
                self.clock.set_bound_ns(settings.clock_offset_max_ms * 1_000_000);
            }
            return Some(Action::Published(replica.published()));
        }
        if replica.take_stop() {
            return Some(Action::StopAllocator);
        }
        if let Some(write) = replica.poll_write() {
            return Some(Action::Write(write));
        }
        if let Some(outgoing) = replica.poll_message() {
            return Some(Action::Send(outgoing));
        }
        replica.poll_report().map(Action::Report)
    }

    /// The replica, to read its state.
    #[must_use]
    pub const fn replica(&self) -> &Replica {
        &self.replica
    }

    /// The replica, to carry out the command of an operator.
    pub const fn replica_mut(&mut self) -> &mut Replica {
        &mut self.replica
    }

    /// Trusted time.
    #[must_use]
    pub const fn clock(&self) -> &TrustedClock {
        &self.clock
    }
}

/// Shortest time between two reports to the replica that the same peer is unreachable, nanoseconds.
/// Urgent reports are always made.
const UNREACHABLE_INTERVAL_NS: u64 = 50_000_000;
/// How many times in a row one peer may refuse this node as a duplicate before this node ends: a
/// few seconds of refusals.
const DUPLICATE_REFUSALS_MAX: u32 = 12;

#[cfg(test)]
mod tests;
