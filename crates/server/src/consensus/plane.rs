//! The loop in which events meet the replica: what happened goes in, what the replica wants done
//! is done. It drains what has arrived before it ticks, so that neither load nor disk makes a
//! follower believe that its leader is gone.

mod reports;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use epicepoch_core::clock::{ClockStatus, TrustedClock, clocks_of};
use epicepoch_core::durable::{Record, Restored};
use epicepoch_core::publication::Identity;
use epicepoch_core::replica::{HandOver, MessageError, Outgoing, Replica, ReplicaConfig, Report};
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::gossip::Pong;
use epicepoch_wire::hello::{Hello, Refusal, RefusalCode};
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::standing::Zone;
use epicepoch_wire::{BootId, NodeId, StoreId, StorePosition};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval};

use self::reports::{tell_set_back, warn_of_short_window};
use super::accept::Accepted;
use super::farewell::Farewell;
use super::introduction::differing_settings;
use super::link::{Link, is_fatal};
use super::operators::{Asked, Operators};
use super::restore::LongestHeard;
use super::round_trips::RoundTrips;
use super::wall::{self, ToldAhead, reading};
use super::{Ask, ConsensusError, Parts, bootstrap, restore};
use crate::config::{Config, default_reservation};
use crate::faults::Faults;
use crate::metrics::Metrics;
use crate::shared::NodeShared;
use crate::storage::{Completion, WriterHandle};
use crate::worker::Workers;

/// Length of a tick. Timeouts are whole numbers of it.
const TICK: Duration = Duration::from_millis(10);
/// Events that may wait; their senders wait then.
const INBOX_LEN_MAX: usize = 4_096;
/// Events that are taken in one turn before messages and writes go out.
const EVENTS_PER_TURN_MAX: usize = 256;
/// Between two reports to the replica that one peer cannot be reached.
const UNREACHABLE_INTERVAL_NS: u64 = 50_000_000;

/// What happened outside.
#[derive(Debug)]
pub(super) enum Event {
    /// A peer's Raft message.
    Message { from: NodeId, store: StoreId, message: RaftMessage },
    /// A peer introduced itself on a Raft link.
    Introduced { member: Member, hello: Hello },
    /// A peer's clock sample and position, in the run `boot`; `since` was known of its position when
    /// it was asked.
    Pong { node: NodeId, boot: BootId, since: StorePosition, pong: Pong, received_ns: u64 },
    /// A peer cannot be reached, or a link to it broke.
    Unreachable { node: NodeId },
    /// A peer closed a connection: its process may be gone.
    Closed { node: NodeId },
    /// A peer refuses this node.
    Refused { by: NodeId, refusal: Refusal },
    /// An empty directory that is a member's wants the state.
    RecordWanted { answer: oneshot::Sender<Record> },
}

/// Where tasks of the consensus thread put events.
#[derive(Debug)]
pub(super) struct Inbox(mpsc::Sender<Event>);

impl Inbox {
    /// Waits while the inbox is full.
    pub(super) async fn send(&self, event: Event) {
        // Fails only when the plane has ended, and this task with it.
        let _ended = self.0.send(event).await;
    }
}

struct Plane {
    shared: Arc<NodeShared>,
    workers: Workers,
    metrics: Arc<Metrics>,
    faults: Faults,
    replica: Replica,
    clock: TrustedClock,
    /// Whether it was said that this leader's clock could not be compared.
    is_clock_unproved: bool,
    writer: WriterHandle,
    inbox: Rc<Inbox>,
    accepted: Rc<Accepted>,
    links: BTreeMap<NodeId, Link>,
    unreachable_at_ns: BTreeMap<NodeId, u64>,
    refusals: BTreeMap<NodeId, u32>,
    operators: Operators,
    farewell: Farewell,
    heard: LongestHeard,
    round_trips: RoundTrips,
    told: Told,
    /// The settings of the cluster that count here, once there are any.
    settings: Option<Arc<ClusterSettings>>,
    /// What could not be read of what each peer sent, as far as it was said: it is sent again and again.
    unreadable: BTreeMap<NodeId, MessageError>,
}

/// What was said already.
#[derive(Debug, Default)]
struct Told {
    /// Zones that leaders should be in, and no voter is.
    empty_zones: Vec<Zone>,
    /// Voters that are in no zone.
    without_zone: BTreeSet<NodeId>,
    ahead: ToldAhead,
}

/// Runs the plane until it is told to stop, or cannot go on.
pub(super) async fn run(
    parts: Parts,
    mut asked: mpsc::UnboundedReceiver<Ask>,
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
        mut asks,
    } = parts;
    listener.set_nonblocking(true)?;
    let listener = Rc::new(TcpListener::from_std(listener)?);
    let restore = Rc::new(restore);
    let restored = if let Some(restored) = restored {
        restored
    } else {
        tokio::select! {
            founded = bootstrap::run(&shared, &listener, &mut storage, &restore) => founded?,
            () = until_stopped(&mut asked) => return Ok(()),
        }
    };
    // Bounded by the writes that the replica lets be outstanding.
    let (completed, mut completions) = mpsc::unbounded_channel();
    let writer = storage.into_writer(move |completion| {
        // Fails only when the plane has ended.
        let _ended = completed.send(completion);
    })?;
    let (sender, mut events) = mpsc::channel(INBOX_LEN_MAX);
    let inbox = Rc::new(Inbox(sender));
    let accepted = Accepted::new(shared.clone(), workers.clone(), faults.clone(), inbox.clone());
    let replica = replica(&shared, &restored, seed)?;
    let bound_ns = shared.config.clock_offset_max.as_nanos() as u64;
    let clock = TrustedClock::new(bound_ns, reading(&shared.clock, &faults));
    let mut plane = Plane {
        shared,
        workers,
        metrics,
        faults,
        replica,
        clock,
        is_clock_unproved: false,
        writer,
        inbox,
        accepted: accepted.clone(),
        links: BTreeMap::new(),
        unreachable_at_ns: BTreeMap::new(),
        refusals: BTreeMap::new(),
        operators: Operators::default(),
        farewell: Farewell::default(),
        heard: LongestHeard::default(),
        round_trips: RoundTrips::default(),
        told: Told::default(),
        settings: None,
        unreadable: BTreeMap::new(),
    };
    plane.replica.seed_settings(plane.shared.config.shared());
    plane.replica.place(plane.shared.config.placement.clone());
    plane.introduce_self();
    plane.flush()?;
    tokio::task::spawn_local(accepted.run(listener));

    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut is_tick = false;
        let mut wanted = None;
        tokio::select! {
            biased;
            Some(completion) = completions.recv() => plane.on_completion(completion)?,
            ask = asked.recv() => match ask {
                Some(Ask::Stop) | None => break,
                // Once it is known who is heard: see below.
                ask => wanted = ask,
            },
            Some(asked) = asks.next() => plane.on_asked(asked),
            // Before events: a peer that never stops sending must not stop the clock.
            _ = ticks.tick() => is_tick = true,
            Some(event) = events.recv() => plane.on_event(event)?,
        }
        if is_tick || wanted.is_some() {
            // After a pause, the links' tasks read what waited in their sockets first.
            tokio::task::yield_now().await;
        }
        // What arrived while this thread did not run is taken in before time moves.
        while let Ok(completion) = completions.try_recv() {
            plane.on_completion(completion)?;
        }
        for _ in 0..EVENTS_PER_TURN_MAX {
            let Ok(event) = events.try_recv() else { break };
            plane.on_event(event)?;
        }
        plane.on_wanted(wanted);
        if is_tick {
            plane.tick()?;
        }
        plane.flush()?;
    }
    if !plane.writer.shutdown() {
        tracing::warn!("the disk did not answer before the end");
    }
    Ok(())
}

/// Waits until the plane is told to stop; it leads nothing meanwhile.
async fn until_stopped(asked: &mut mpsc::UnboundedReceiver<Ask>) {
    while let Some(ask) = asked.recv().await {
        match ask {
            Ask::Stop => return,
            Ask::HandOver { .. } | Ask::Depart => {}
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
    /// This node's own addresses may be others than the cluster knows.
    fn introduce_self(&mut self) {
        let shared = &self.shared;
        self.replica.handle_introduction(Member {
            node: shared.identity.node,
            store: shared.identity.store,
            raft_addr: shared.config.raft_addr.clone(),
            client_addr: shared.client_addr.clone(),
        });
    }

    /// What another thread of this node wants, if anything.
    fn on_wanted(&mut self, wanted: Option<Ask>) {
        let now_ns = self.shared.clock.monotonic_ns();
        match wanted {
            Some(Ask::HandOver { to }) => {
                let _ignored = self.replica.hand_over(now_ns, Some(to), HandOver::Asked);
            }
            Some(Ask::Depart) => self.replica.handle_departure(now_ns),
            // The loop has ended by then.
            Some(Ask::Stop) | None => {}
        }
    }

    fn on_asked(&mut self, asked: Asked) {
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
        self.operators.take(asked, &mut self.replica, &published, (now_ns, election), seen);
    }

    fn tick(&mut self) -> Result<(), ConsensusError> {
        let reading = reading(&self.shared.clock, &self.faults);
        let published = self.shared.core.published();
        let is_voter = |node| published.voters.iter().any(|(voter, _)| voter == node);
        self.clock.retain_peers(is_voter);
        let me = self.shared.identity.node;
        if self.farewell.is_over(me, &published.voters, reading.monotonic_ns) {
            return Err(ConsensusError::Removed { node: me });
        }
        let before = self.clock.status();
        let before_ns = self.replica.trusted_before_ns();
        let clocks = clocks_of(published.voters.iter().map(|(node, _)| node), me);
        let status = self.clock.observe(reading, clocks, before_ns);
        if status != before {
            self.tell_clock(status);
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
        let is_unproved = self.replica.is_clock_unproved();
        if is_unproved && !self.is_clock_unproved {
            tracing::warn!(
                offsets = ?self.clock.peer_offsets(),
                "this node leads and does not hear the clocks of a majority within \
                 CLOCK_OFFSET_MAX_MS: its own is believed; make sure that it is right"
            );
        }
        self.is_clock_unproved = is_unproved;
        health.is_quorum_reached.store(self.replica.is_quorum_reached(), Ordering::Relaxed);
        health.is_impaired.store(self.replica.is_impaired(), Ordering::Relaxed);
        health.ticked_ns.store(reading.monotonic_ns, Ordering::Relaxed);

        self.metrics.consensus.set_ceiling(self.replica.ceiling());
        self.metrics.consensus.set_clock_status(status);
        self.tell_empty_zones();
        self.tell_without_zone();
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
                        if self.unreadable.insert(from, error) != Some(error) {
                            tracing::warn!(
                                peer = from.0,
                                %error,
                                "what a peer sends cannot be read here: run its version, or a later one"
                            );
                        }
                    }
                    Err(error) => {
                        let kind = message.kind;
                        tracing::warn!(from = from.0, ?kind, %error, "a message was not taken");
                    }
                }
            }
            Event::Introduced { member, hello } => {
                self.heard.hear(&hello.settings);
                for text in differing_settings(&self.shared, &hello) {
                    tracing::warn!(peer = member.node.0, "a setting differs: {text}");
                }
                let node = member.node;
                if let Some(link) = self.links.get(&node) {
                    link.note_up();
                }
                let heard = self.replica.handle_greeting(node, hello.boot, hello.position);
                tell_set_back(node, heard);
                self.replica.handle_formats(node, hello.formats);
                self.replica.handle_introduction(member);
            }
            Event::Pong { node, boot, since, pong, received_ns } => {
                let heard = self.replica.handle_position(node, boot, pong.position, since);
                tell_set_back(node, heard);
                self.refusals.remove(&node);
                self.replica.handle_reached(now_ns, node);
                let round_trip_ns = received_ns.saturating_sub(pong.sent_ns);
                let usual_ns = self.round_trips.note(now_ns, node, round_trip_ns);
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
                if self.farewell.said(by, now_ns) {
                    tracing::warn!(%refusal, "this node was removed: it stops when most others say so");
                }
                self.shared.health.is_removed.store(true, Ordering::Relaxed);
                self.unreachable(by, now_ns, false);
            }
            Event::RecordWanted { answer } => {
                // Whoever asked may have stopped waiting.
                drop(answer.send(self.replica.record()));
            }
            Event::Refused { by, refusal } => {
                let times = self.refusals.entry(by).or_default();
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

    /// Does what the replica wants done: writes, messages, reports, and the news for the workers.
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
            if let Report::Changed { nonce, outcome } = &report {
                self.operators.note_change(*nonce, outcome);
            }
            if let Report::SettingsChanged { nonce, outcome } = &report {
                self.operators.note_change(*nonce, outcome);
            }
            if let Report::Advanced { to } = &report {
                self.operators.note_advance(*to);
            }
            self.tell(report);
        }
        if !self.operators.is_idle() {
            let now_ns = self.shared.clock.monotonic_ns();
            self.operators.settle(&self.replica, &self.shared.core.published(), now_ns);
        }
        Ok(())
    }

    /// The published state changed: links to the members there are now, and the workers know.
    fn publish(&mut self) {
        self.workers.notify_published();
        let published = self.shared.core.published();
        let me = self.shared.identity.node;
        if let Some(settings) = &published.settings {
            self.take_in_settings(settings);
        }
        let is_wanted = |link: &Link| {
            let member = published.members.get(&link.peer.node);
            // S15: a link to who does not read what is sent from now on ends before it is sent.
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
            self.unreadable.retain(|node, _| members.contains_key(node));
        }
    }

    /// The settings of the cluster count from now on, whatever this node was told.
    fn take_in_settings(&mut self, settings: &Arc<ClusterSettings>) {
        let before = self.settings.replace(settings.clone());
        if before.as_ref() == Some(settings) {
            return;
        }
        self.shared.max_n.store(settings.max_n, Ordering::Relaxed);
        self.clock.set_bound_ns(settings.clock_offset_max_ms * 1_000_000);
        warn_of_short_window(settings, self.shared.config.election_timeout);
        let own = self.shared.config.shared();
        if let Some(before) = before {
            for name in before.differing(settings) {
                let (from, to) = (before.text(name), settings.text(name));
                tracing::warn!(
                    setting = name.text(),
                    from,
                    to,
                    "a setting of the cluster has changed"
                );
            }
            return;
        }
        let mut default = Config::new(self.shared.identity.node, String::new());
        default.reservation = default_reservation(self.shared.config.election_timeout);
        let default = default.shared();
        for name in own.differing(settings).filter(|name| own.text(*name) != default.text(*name)) {
            let (here, counts) = (own.text(name), settings.text(name));
            tracing::warn!(
                setting = name.text(),
                here,
                counts,
                "a setting of this node is not that of the cluster, which counts: take it away here, \
                 or change the cluster's with: epicepoch settings set"
            );
        }
    }
}
