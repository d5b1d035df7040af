//! The event loop of the consensus plane. It passes events to the replica, and does the writes and
//! sends that the replica asks for. Before each tick it handles the events that have arrived. So
//! neither load nor a slow disk makes a follower believe that its leader is gone.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use epicepoch_core::clock::{ClockStatus, TrustedClock, clocks_of};
use epicepoch_core::durable::Restored;
use epicepoch_core::publication::Identity;
use epicepoch_core::replica::{HandOver, MessageError, Outgoing, Replica, ReplicaConfig, Report};
use epicepoch_wire::NodeId;
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::peer_hello::RefusalCode;
use epicepoch_wire::raft_message::MessageKind;
use epicepoch_wire::settings::ClusterSettings;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::accept::Accepted;
use super::admin_commands::AdminCommands;
use super::error::ConsensusError;
use super::inbox::{Event, Inbox};
use super::link::{Link, is_fatal};
use super::removal_notice::RemovalNotice;
use super::reports::{Reports, log_rolled_back, log_settings_that_differ, warn_of_short_window};
use super::restore::{LongestHeard, Restore};
use super::round_trips::RoundTrips;
use super::wall::{self, reading};
use super::{bootstrap, restore};
use crate::admin_queue::{AdminRequest, AdminRequests};
use crate::config::Config;
use crate::faults::Faults;
use crate::metrics::Metrics;
use crate::peers::handshake::differing_settings;
use crate::shared::NodeShared;
use crate::storage::{Completion, Storage, WriterHandle};
use crate::worker::Workers;

/// Length of a tick. Every timeout is a whole number of ticks.
const TICK: Duration = Duration::from_millis(10);
/// Most events handled in one turn before writes and messages go out.
const EVENTS_PER_TURN_MAX: usize = 256;
/// Shortest time between two reports to the replica that the same peer is unreachable.
const UNREACHABLE_INTERVAL_NS: u64 = 50_000_000;

/// The parts that the consensus plane needs to run.
#[derive(Debug)]
pub struct Parts {
    /// The state shared with the data plane.
    pub shared: Arc<NodeShared>,
    /// The workers. The plane tells them of each publication and passes them confirm links.
    pub workers: Workers,
    /// The open data directory.
    pub storage: Storage,
    /// The content of the data directory; `None` when it is empty.
    pub restored: Option<Restored>,
    /// The listener of the peer port.
    pub listener: std::net::TcpListener,
    /// The backup or floor above which a new history begins, on an empty first member.
    pub restore: Restore,
    /// The faults that tests inject.
    pub faults: Faults,
    /// Seed of the replica's random numbers.
    pub seed: u64,
    /// The metrics of the node.
    pub metrics: Arc<Metrics>,
    /// The admin commands of operators.
    pub admin_requests: AdminRequests,
}

/// An order from another thread of this node.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    /// Hand leadership to this voter, if this node leads.
    HandOver { to: NodeId },
    /// Hand leadership over and do not become the leader again: the node is about to stop.
    PrepareStop,
    /// End the plane.
    Stop,
}

struct Plane {
    shared: Arc<NodeShared>,
    workers: Workers,
    metrics: Arc<Metrics>,
    faults: Faults,
    replica: Replica,
    clock: TrustedClock,
    writer: WriterHandle,
    inbox: Rc<Inbox>,
    accepted: Rc<Accepted>,
    links: BTreeMap<NodeId, Link>,
    /// When the replica last got the report that a peer is unreachable.
    unreachable_at_ns: BTreeMap<NodeId, u64>,
    /// How often in a row each peer has refused this node as a duplicate.
    duplicate_refusals: BTreeMap<NodeId, u32>,
    admin_commands: AdminCommands,
    removal_notice: RemovalNotice,
    heard: LongestHeard,
    round_trips: RoundTrips,
    reports: Reports,
    /// The cluster's settings; `None` while the replicated state has none.
    settings: Option<Arc<ClusterSettings>>,
}

/// Runs the plane until it gets the order to stop, or cannot go on.
pub(super) async fn run(
    parts: Parts,
    mut orders: mpsc::UnboundedReceiver<Order>,
) -> Result<(), ConsensusError> {
    let Parts {
        shared,
        workers,
        mut storage,
        restored,
        listener,
        restore,
        faults,
        seed,
        metrics,
        mut admin_requests,
    } = parts;
    listener.set_nonblocking(true)?;
    let listener = Rc::new(TcpListener::from_std(listener)?);
    let restore = Rc::new(restore);
    let restored = if let Some(restored) = restored {
        restored
    } else {
        tokio::select! {
            record = bootstrap::run(&shared, &listener, &mut storage, &restore) => record?,
            () = until_stopped(&mut orders) => return Ok(()),
        }
    };
    // The channel needs no limit of its own: the replica limits its outstanding writes.
    let (completed, mut completions) = mpsc::unbounded_channel();
    let writer = storage.into_writer(move |completion| {
        // This fails only when the plane has ended.
        let _ended = completed.send(completion);
    })?;
    let (inbox, mut events) = Inbox::open();
    let accepted = Accepted::new(shared.clone(), workers.clone(), faults.clone(), inbox.clone());
    let replica = replica(&shared, &restored, seed)?;
    let bound_ns = shared.config.clock_offset_max.as_nanos() as u64;
    let clock = TrustedClock::new(bound_ns, reading(&shared.clock, &faults));
    let reports = Reports::new(shared.clone(), metrics.clone());
    let mut plane = Plane {
        shared,
        workers,
        metrics,
        faults,
        replica,
        clock,
        writer,
        inbox,
        accepted: accepted.clone(),
        links: BTreeMap::new(),
        unreachable_at_ns: BTreeMap::new(),
        duplicate_refusals: BTreeMap::new(),
        admin_commands: AdminCommands::default(),
        removal_notice: RemovalNotice::default(),
        heard: LongestHeard::default(),
        round_trips: RoundTrips::default(),
        reports,
        settings: None,
    };
    plane.replica.seed_settings(plane.shared.config.shared());
    plane.replica.place(plane.shared.config.placement.clone());
    plane.announce_own_addresses();
    plane.flush()?;
    tokio::task::spawn_local(accepted.run(listener));

    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut is_tick = false;
        let mut order = None;
        tokio::select! {
            biased;
            Some(completion) = completions.recv() => plane.on_completion(completion)?,
            received = orders.recv() => match received {
                Some(Order::Stop) | None => break,
                // The order is carried out below, after the events that have arrived.
                received => order = received,
            },
            Some(request) = admin_requests.next() => plane.on_admin_request(request),
            // The tick comes before events, so that a peer that never stops sending cannot stop
            // time.
            _ = ticks.tick() => is_tick = true,
            Some(event) = events.recv() => plane.on_event(event)?,
        }
        if is_tick || order.is_some() {
            // After a pause of this thread, the links' tasks first read the bytes that wait in
            // their sockets.
            tokio::task::yield_now().await;
        }
        // Events that arrived while this thread was paused are handled before the tick.
        while let Ok(completion) = completions.try_recv() {
            plane.on_completion(completion)?;
        }
        for _ in 0..EVENTS_PER_TURN_MAX {
            let Ok(event) = events.try_recv() else { break };
            plane.on_event(event)?;
        }
        plane.on_order(order);
        if is_tick {
            plane.tick()?;
        }
        plane.flush()?;
    }
    if !plane.writer.shutdown() {
        tracing::warn!("the disk did not answer before the consensus plane ended");
    }
    Ok(())
}

/// Waits for the order to stop. A node without a record cannot lead, so it ignores the other
/// orders.
async fn until_stopped(orders: &mut mpsc::UnboundedReceiver<Order>) {
    while let Some(order) = orders.recv().await {
        match order {
            Order::Stop => return,
            Order::HandOver { .. } | Order::PrepareStop => {}
        }
    }
}

fn replica(shared: &NodeShared, restored: &Restored, seed: u64) -> Result<Replica, ConsensusError> {
    let config: &Config = &shared.config;
    let ticks = |duration: Duration| (duration.as_millis() / TICK.as_millis()).max(1) as usize;
    let identity: Identity = shared.identity;
    let election_ticks = ticks(config.election_timeout);
    let config = ReplicaConfig {
        identity,
        seed,
        election_ticks,
        heartbeat_ticks: ticks(config.heartbeat).min(election_ticks - 1),
        tick_ns: TICK.as_nanos() as u64,
        reservation_ns: config.reservation.as_nanos() as u64,
        deadline_limit: config.epoch_deadline_limit,
        format_max: shared.formats().newest,
    };
    Ok(Replica::new(config, restored, shared.core.clone())?)
}

impl Plane {
    /// Tells the replica this node's addresses, because the cluster may know older ones.
    fn announce_own_addresses(&mut self) {
        let shared = &self.shared;
        self.replica.handle_peer_addresses(Member {
            node: shared.identity.node,
            store: shared.identity.store,
            raft_addr: shared.config.raft_addr.clone(),
            client_addr: shared.client_addr.clone(),
        });
    }

    /// Carries out an order from another thread of this node.
    fn on_order(&mut self, order: Option<Order>) {
        let now_ns = self.shared.clock.monotonic_ns();
        match order {
            Some(Order::HandOver { to }) => {
                let _ignored = self.replica.hand_over(now_ns, Some(to), HandOver::Asked);
            }
            Some(Order::PrepareStop) => self.replica.handle_shutdown_request(now_ns),
            // The loop has ended before it can carry out this order.
            Some(Order::Stop) | None => {}
        }
    }

    fn on_admin_request(&mut self, request: AdminRequest) {
        let published = self.shared.core.published();
        let now_ns = self.shared.clock.monotonic_ns();
        let election = self.shared.config.election_timeout;
        let clock = |replica: &Replica| {
            let reading = reading(&self.shared.clock, &self.faults);
            let clock = (&self.clock, &self.round_trips);
            wall::document(&self.shared, &published, clock, reading, replica.ceiling())
        };
        let backup = |replica: &Replica| {
            let taken_ns = self.clock.trusted_ns(now_ns);
            restore::document(&self.shared, replica, self.heard, taken_ns)
        };
        let seen = (clock, backup, self.shared.allocator.epoch());
        let commands = &mut self.admin_commands;
        commands.begin(request, &mut self.replica, &published, (now_ns, election), seen);
    }

    fn tick(&mut self) -> Result<(), ConsensusError> {
        let reading = reading(&self.shared.clock, &self.faults);
        let published = self.shared.core.published();
        let is_voter = |node| published.voters.iter().any(|(voter, _)| voter == node);
        self.clock.retain_peers(is_voter);
        let me = self.shared.identity.node;
        if self.removal_notice.is_over(me, &published.voters, reading.monotonic_ns) {
            return Err(ConsensusError::Removed { node: me });
        }
        let before = self.clock.status();
        let before_ns = self.replica.trusted_before_ns();
        let clocks = clocks_of(published.voters.iter().map(|(node, _)| node), me);
        let status = self.clock.observe(reading, clocks, before_ns);
        if status != before {
            Reports::log_clock(status, &self.clock);
        }
        self.shared.clock.set_trusted_offset_ns(self.clock.offset_ns());
        let trusted = |node: &NodeId| self.clock.is_peer_trusted(*node);
        let successors = (status == ClockStatus::Outvoted)
            .then(|| published.voters.iter().map(|(node, _)| node).filter(trusted).collect());
        self.replica.handle_clock(successors);
        let sound = published.voters.iter().map(|(node, _)| node).filter(trusted).collect();
        self.replica.handle_sound_clocks(sound);
        self.replica.handle_compared(self.clock.is_compared(clocks));

        let health = &self.shared.health;
        self.replica.handle_rounds(health.round_completed_ns.load(Ordering::Relaxed));
        self.replica.handle_clients(health.accepts.are_failing(reading.monotonic_ns));
        let trusted_ns = self.clock.trusted_ns(reading.monotonic_ns);
        self.replica.handle_tick(reading.monotonic_ns, trusted_ns)?;
        health.is_quorum_reached.store(self.replica.is_quorum_reached(), Ordering::Relaxed);
        health.is_impaired.store(self.replica.is_impaired(), Ordering::Relaxed);
        health.ticked_ns.store(reading.monotonic_ns, Ordering::Relaxed);

        self.metrics.consensus.set_ceiling(self.replica.ceiling());
        self.metrics.consensus.set_clock_status(status);
        self.reports.log_unproved_clock(&self.replica, &self.clock);
        self.reports.log_empty_zones(&self.replica);
        self.reports.log_voters_without_zone(&self.replica);
        Ok(())
    }

    fn on_completion(&mut self, completion: Completion) -> Result<(), ConsensusError> {
        match completion {
            Completion::Written { number, duration } => {
                self.metrics.consensus.fsync_ns.observe(duration.as_nanos() as u64);
                let now_ns = self.shared.clock.monotonic_ns();
                self.replica.handle_persisted(now_ns, number);
                Ok(())
            }
            Completion::Failed(error) => Err(ConsensusError::Disk(error)),
        }
    }

    fn on_event(&mut self, event: Event) -> Result<(), ConsensusError> {
        let now_ns = self.shared.clock.monotonic_ns();
        match event {
            Event::Message { from, store, message } => {
                match self.replica.handle_message(now_ns, from, store, &message) {
                    Ok(()) => {}
                    Err(error @ MessageError::LostEntries { .. }) => {
                        return Err(ConsensusError::LostEntries(error));
                    }
                    Err(error @ MessageError::Unreadable { .. }) => {
                        self.reports.log_unreadable(from, error);
                    }
                    Err(error) => {
                        let kind = message.kind;
                        tracing::warn!(from = from.0, ?kind, %error, "a message was rejected");
                    }
                }
            }
            Event::PeerHello { member, hello } => {
                self.heard.record(&hello.settings);
                for text in differing_settings(&self.shared, &hello) {
                    tracing::warn!(peer = member.node.0, "a setting differs: {text}");
                }
                let node = member.node;
                if let Some(link) = self.links.get(&node) {
                    link.record_up();
                }
                let heard = self.replica.handle_peer_hello(node, hello.boot, hello.position);
                log_rolled_back(node, heard);
                self.replica.handle_formats(node, hello.formats);
                self.replica.handle_peer_addresses(member);
            }
            Event::Pong { node, boot, since, pong, received_ns } => {
                let heard = self.replica.handle_position(node, boot, pong.position, since);
                log_rolled_back(node, heard);
                self.duplicate_refusals.remove(&node);
                self.replica.handle_reached(now_ns, node);
                let round_trip_ns = received_ns.saturating_sub(pong.sent_ns);
                let usual_ns = self.round_trips.record(now_ns, node, round_trip_ns);
                self.round_trips.warn(now_ns, node, self.shared.config.election_timeout);
                self.metrics.consensus.set_round_trip(node, usual_ns);
                self.clock.handle_sample(node, pong.wall_ns, pong.sent_ns, received_ns);
                for (node, offset_ns) in self.clock.peer_offsets() {
                    self.metrics.consensus.set_peer_clock_offset(node, offset_ns);
                }
            }
            Event::Unreachable { node } => self.unreachable(node, now_ns, false),
            Event::Closed { node } => {
                self.replica.handle_closed(now_ns, node);
                self.unreachable(node, now_ns, true);
            }
            Event::Refused { by, refusal } if refusal.code == RefusalCode::Removed => {
                if self.removal_notice.record(by, now_ns) {
                    tracing::warn!(
                        %refusal,
                        "this node was removed: it stops when a majority of the others confirms it"
                    );
                }
                self.shared.health.is_removed.store(true, Ordering::Relaxed);
                self.unreachable(by, now_ns, false);
            }
            Event::RecordWanted { answer } => {
                // This fails when the connection that asked is gone.
                drop(answer.send(self.replica.record()));
            }
            Event::Refused { by, refusal } => {
                let times = self.duplicate_refusals.entry(by).or_default();
                *times = if refusal.code == RefusalCode::DuplicateNode { *times + 1 } else { 0 };
                if is_fatal(refusal.code, *times) {
                    return Err(ConsensusError::Refused { by, refusal });
                }
                self.unreachable(by, now_ns, false);
            }
        }
        Ok(())
    }

    fn unreachable(&mut self, node: NodeId, now_ns: u64, is_urgent: bool) {
        let at_ns = self.unreachable_at_ns.entry(node).or_insert(0);
        if is_urgent || now_ns.saturating_sub(*at_ns) >= UNREACHABLE_INTERVAL_NS {
            *at_ns = now_ns;
            self.replica.handle_unreachable(now_ns, node);
        }
    }

    /// Does what the replica asks for: publications, writes, messages and reports.
    fn flush(&mut self) -> Result<(), ConsensusError> {
        if self.replica.take_published() {
            self.publish();
        }
        while let Some(write) = self.replica.poll_write() {
            self.writer.submit(write)?;
        }
        while let Some(Outgoing { to, message }) = self.replica.poll_message() {
            let is_snapshot = message.kind == MessageKind::Snapshot;
            let metrics = &self.metrics.consensus;
            if self.links.get(&to).is_some_and(|link| link.send(message)) {
                metrics.raft_messages_sent.add(1);
            } else {
                metrics.raft_messages_dropped.add(1);
                let now_ns = self.shared.clock.monotonic_ns();
                self.unreachable(to, now_ns, is_snapshot);
            }
        }
        while let Some(report) = self.replica.poll_report() {
            match &report {
                Report::Changed { nonce, outcome } | Report::SettingsChanged { nonce, outcome } => {
                    self.admin_commands.record_change(*nonce, outcome);
                }
                Report::Advanced { to } => self.admin_commands.record_advance(*to),
                _ => {}
            }
            self.reports.log(report, &self.clock);
        }
        if !self.admin_commands.is_idle() {
            let now_ns = self.shared.clock.monotonic_ns();
            self.admin_commands.settle(&self.replica, &self.shared.core.published(), now_ns);
        }
        Ok(())
    }

    /// Follows a new publication: tells the workers, applies the settings, opens and closes links.
    fn publish(&mut self) {
        self.workers.notify_published();
        let published = self.shared.core.published();
        let me = self.shared.identity.node;
        if let Some(settings) = &published.settings {
            self.apply_settings(settings);
        }
        let is_wanted = |link: &Link| {
            let member = published.members.get(&link.peer.node);
            // S15: a link is closed before it would carry a format that its peer does not read.
            link.may_carry(published.format)
                && member.is_some_and(|member| {
                    (member.store, &member.raft_addr) == (link.peer.store, &link.peer.raft_addr)
                })
        };
        self.links.retain(|_, link| is_wanted(link));
        for member in published.members.values().filter(|member| member.node != me) {
            self.links.entry(member.node).or_insert_with(|| {
                let (shared, inbox) = (self.shared.clone(), self.inbox.clone());
                Link::open(shared, published.cluster, member.clone(), inbox)
            });
        }
        let removed = &self.replica.state().removed;
        if *self.accepted.removed.borrow() != *removed {
            self.accepted.removed.replace(removed.clone());
            let members = published.members.clone();
            self.metrics.consensus.retain_peers(|node| members.contains_key(&node));
            self.round_trips.retain(|node| members.contains_key(&node));
            self.reports.retain(|node| members.contains_key(&node));
        }
    }

    /// Applies the cluster's settings; they replace this node's own.
    fn apply_settings(&mut self, settings: &Arc<ClusterSettings>) {
        let before = self.settings.replace(settings.clone());
        if before.as_ref() == Some(settings) {
            return;
        }
        self.shared.max_n.store(settings.max_n, Ordering::Relaxed);
        self.clock.set_bound_ns(settings.clock_offset_max_ms * 1_000_000);
        warn_of_short_window(settings, self.shared.config.election_timeout);
        log_settings_that_differ(&self.shared.config, before.as_deref(), settings);
    }
}
