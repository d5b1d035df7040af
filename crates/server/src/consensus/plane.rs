//! The event loop of the consensus plane. It does the IO; [`Node`] makes the decisions. The loop
//! passes events to the node, and does the writes and sends that the node asks for. Before each
//! tick it handles the events that have arrived. So neither load nor a slow disk makes a follower
//! believe that its leader is gone.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use epicepoch_core::admin::{AdminCommands, Command};
use epicepoch_core::clock::TrustedClock;
use epicepoch_core::durable::Restored;
use epicepoch_core::node::{Action, Health, Node, Refused};
use epicepoch_core::publication::{Identity, Published, Role};
use epicepoch_core::replica::{
    HandOver, MessageError, Outgoing, ReplicaConfig, Report, RestoreError,
};
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::{Guarantee, Mode, NodeId, Term, TimestampFormat};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval};

use super::accept::Accepted;
use super::closing::Closing;
use super::error::ConsensusError;
use super::inbox::{Event, Inbox};
use super::link::Link;
use super::orders::{Order, unless_stopped};
use super::reports::{
    Reports, log_rolled_back, log_settings_that_differ, shown, warn_of_short_window,
};
use super::restore::{LongestHeard, Restore};
use super::round_trips::RoundTrips;
use super::wall::{self, reading};
use super::{admin_documents, bootstrap, restore};
use crate::admin_queue::{AdminCommand, AdminRequest, AdminRequests, Answer, Denied};
use crate::config::Config;
use crate::faults::Faults;
use crate::lease_clock::LeaseRight;
use crate::metrics::Metrics;
use crate::metrics::peers::Progress;
use crate::peers::handshake::differing_settings;
use crate::shared::NodeShared;
use crate::storage::{Completion, Storage, WriterHandle};
use crate::worker::Workers;

/// Length of a tick. Every timeout is a whole number of ticks.
const TICK: Duration = Duration::from_millis(10);
/// At most this many events are handled in one turn. Then writes and messages go out.
const EVENTS_PER_TURN_MAX: usize = 256;
/// Time between two updates of the members' progress, which only people see, nanoseconds.
const PROGRESS_INTERVAL_NS: u64 = 250_000_000;
/// How often in a row the allocator is asked to stop.
const STOP_TRIES: usize = 100;

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

struct Plane {
    shared: Arc<NodeShared>,
    workers: Workers,
    metrics: Arc<Metrics>,
    faults: Faults,
    node: Node,
    writer: WriterHandle,
    inbox: Rc<Inbox>,
    accepted: Rc<Accepted>,
    links: BTreeMap<NodeId, Link>,
    admin_commands: AdminCommands<oneshot::Sender<Answer>>,
    heard: LongestHeard,
    round_trips: RoundTrips,
    reports: Reports,
    /// The cluster's settings; `None` while the replicated state has none.
    settings: Option<Arc<ClusterSettings>>,
    closing: Closing,
    /// The leader and its term, as last published; `None` while no leader is known.
    leader: Option<(NodeId, Term)>,
    /// When the members' progress was last shown, monotonic nanoseconds.
    progress_shown_ns: u64,
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
        admin_requests,
    } = parts;
    listener.set_nonblocking(true)?;
    let listener = Rc::new(TcpListener::from_std(listener)?);
    let restore = Rc::new(restore);
    let has_begun_empty = restored.is_none();
    let mut early = None;
    let bootstrap = async {
        let begun = bootstrap::run(&shared, &listener, &mut storage, &restore);
        if let Some(restored) = restored { Ok(restored) } else { begun.await }
    };
    let ended = unless_stopped(bootstrap, &mut orders, &mut early).await?;
    let Some(restored) = ended else { return Ok(()) };
    // The channel needs no limit of its own: the replica limits its outstanding writes.
    let (completed, completions) = mpsc::unbounded_channel();
    let marked = shared.clone();
    let writer = storage.into_writer(move |completion| {
        if let Completion::Marked { mark_ns } = completion {
            return marked.intervals.handle_mark(mark_ns);
        }
        // Sending fails only when the plane has ended.
        let _ended = completed.send(completion);
    })?;
    let marks = writer.marks();
    shared.intervals.set_writer(move |mark_ns| marks.submit(mark_ns));
    let (inbox, events) = Inbox::open();
    let accepted = Accepted::new(shared.clone(), workers.clone(), faults.clone(), inbox.clone());
    let mut node = node(&shared, &faults, &restored, seed)?;
    node.replica_mut().seed_settings(restore.first_settings(&shared.config));
    let reports = Reports::new(shared.clone(), metrics.clone(), has_begun_empty);
    let mut plane = Plane {
        shared,
        workers,
        metrics,
        faults,
        node,
        writer,
        inbox,
        accepted: accepted.clone(),
        links: BTreeMap::new(),
        admin_commands: AdminCommands::default(),
        heard: LongestHeard::default(),
        round_trips: RoundTrips::default(),
        reports,
        settings: None,
        closing: Closing::default(),
        leader: None,
        progress_shown_ns: 0,
    };
    // The order to prepare a stop may have come during the bootstrap. If it were lost, the node
    // could campaign while it stops.
    plane.on_order(early);
    tokio::task::spawn_local(accepted.run(listener, plane.metrics.clone()));
    let arriving = Arriving { completions, orders: &mut orders, events, admin_requests };
    let ended = plane.live(arriving).await;
    if ended.is_err() {
        plane.renounce();
    }
    ended?;
    // The workers have ended. S23: the exact mark is the last write.
    plane.shared.intervals.stop();
    if !plane.writer.shutdown() {
        tracing::warn!("the disk did not answer before the consensus plane ended");
    }
    Ok(())
}

fn node(
    shared: &NodeShared,
    faults: &Faults,
    restored: &Restored,
    seed: u64,
) -> Result<Node, RestoreError> {
    let config: &Config = &shared.config;
    let ticks = |duration: Duration| (duration.as_millis() / TICK.as_millis()).max(1) as usize;
    let nanos = |duration: Duration| duration.as_nanos() as u64;
    let identity: Identity = shared.identity;
    let election_ticks = ticks(config.election_timeout);
    let replica = ReplicaConfig {
        identity,
        seed,
        election_ticks,
        heartbeat_ticks: ticks(config.heartbeat).min(election_ticks - 1),
        tick_ns: nanos(TICK),
        reservation_ns: nanos(config.reservation),
        deadline_limit: config.epoch_deadline_limit,
        format_max: shared.formats().newest,
    };
    let reading = reading(&shared.clock, faults);
    let clock = TrustedClock::new(nanos(config.clock_offset_max), reading);
    let mut node = Node::new(replica, restored, shared.core.clone(), clock)?;
    node.replica_mut().place(config.placement.clone());
    if shared.lease_clock.right() == LeaseRight::Allowed {
        node.replica_mut().allow_leases();
    }
    // Reports this node's present addresses, because the cluster may know older ones.
    node.handle_peer_addresses(Member {
        node: identity.node,
        store: identity.store,
        raft_addr: config.raft_addr.clone(),
        client_addr: shared.client_addr.clone(),
    });
    Ok(node)
}

/// The queues that bring the plane its work.
struct Arriving<'a> {
    completions: mpsc::UnboundedReceiver<Completion>,
    orders: &'a mut mpsc::UnboundedReceiver<Order>,
    events: mpsc::Receiver<Event>,
    admin_requests: AdminRequests,
}

impl Plane {
    /// Handles what arrives until the order to stop.
    ///
    /// # Errors
    /// Why this process has to end.
    async fn live(&mut self, mut arriving: Arriving<'_>) -> Result<(), ConsensusError> {
        self.flush()?;
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let mut is_tick = false;
            let mut order = None;
            tokio::select! {
                biased;
                Some(completion) = arriving.completions.recv() => self.on_completion(completion)?,
                received = arriving.orders.recv() => match received {
                    Some(Order::Stop) | None => return Ok(()),
                    // The order is only stored here. The plane carries it out below, after the events
                    // that have arrived.
                    received => order = received,
                },
                // Ticks come before requests and events. Otherwise an operator or a peer that never stops
                // sending could hold up the ticks.
                _ = ticks.tick() => is_tick = true,
                Some(request) = arriving.admin_requests.next() => self.on_admin_request(request),
                Some(event) = arriving.events.recv() => self.on_event(event)?,
            }
            if is_tick || order.is_some() {
                // After a pause of this thread, the links' tasks first read the bytes that wait in
                // their sockets.
                tokio::task::yield_now().await;
            }
            // Events that arrived while this thread was paused are handled before the tick.
            while let Ok(completion) = arriving.completions.try_recv() {
                self.on_completion(completion)?;
            }
            for _ in 0..EVENTS_PER_TURN_MAX {
                let Ok(event) = arriving.events.try_recv() else { break };
                self.on_event(event)?;
            }
            self.node.follow_offer(self.shared.clock.monotonic_ns());
            self.on_order(order);
            if is_tick {
                self.tick()?;
            }
            self.flush()?;
        }
    }

    /// Makes the workers confirm nothing and answer no client any more. The process has to end, because
    /// its disk may have lost what it promised, or a restore has ended its history. But its disk and
    /// its clients may delay the end by seconds.
    fn renounce(&self) {
        let core = &self.shared.core;
        core.raise(Term(u64::MAX));
        let published = core.published();
        core.publish(Arc::new(Published {
            role: Role::Follower,
            leader: published.leader.filter(|leader| *leader != self.shared.identity.node),
            grant: None,
            lease: None,
            opening: None,
            ..Published::clone(&published)
        }));
        self.workers.notify_published();
    }

    /// Carries out an order from another thread of this node.
    fn on_order(&mut self, order: Option<Order>) {
        self.read_lease_clocks();
        let now_ns = self.shared.clock.monotonic_ns();
        match order {
            Some(Order::HandOver { to }) => {
                let replica = self.node.replica_mut();
                let _ignored = replica.hand_over(now_ns, Some(to), HandOver::Asked);
            }
            Some(Order::PrepareStop) => self.node.handle_shutdown_request(now_ns),
            // `Stop` has ended the event loop before this call. `None` means that no order has
            // come.
            Some(Order::Stop) | None => {}
        }
    }

    /// Answers a command that only reads, or passes it to the core, which answers it later.
    fn on_admin_request(&mut self, AdminRequest { command, answer }: AdminRequest) {
        self.read_lease_clocks();
        let published = self.shared.core.published();
        let now_ns = self.shared.clock.monotonic_ns();
        let document = match command {
            AdminCommand::Members => {
                let name = &self.shared.config.cluster_name;
                admin_documents::members(self.node.replica(), &published, name)
            }
            AdminCommand::Settings => admin_documents::settings(self.node.replica(), &published),
            AdminCommand::Clock => {
                let reading = reading(&self.shared.clock, &self.faults);
                let clock = (self.node.clock(), &self.round_trips);
                let ceiling = self.node.replica().ceiling();
                Ok(wall::document(&self.shared, &published, clock, reading, ceiling))
            }
            AdminCommand::Backup if published.mode == Mode::Interval => {
                Err(Denied::new(ErrorCode::Refused, restore::NO_BACKUP_OF_INTERVALS))
            }
            AdminCommand::Backup => {
                let taken_ns = self.node.clock().trusted_ns(now_ns);
                Ok(restore::document(&self.shared, self.node.replica(), self.heard, taken_ns))
            }
            AdminCommand::Decide(command) => {
                self.log_change(&command);
                let (nonce, stamped) = (fastrand::u64(1..), self.shared.allocator.epoch());
                let (commands, replica) = (&mut self.admin_commands, self.node.replica_mut());
                return commands.handle_command(now_ns, answer, command, nonce, stamped, replica);
            }
        };
        // Sending fails when the operator no longer waits.
        drop(answer.send(document));
    }

    /// Logs a command that may change something.
    fn log_change(&self, command: &Command) {
        match command {
            Command::Advance { to, allowed_ns, is_plan: false } => {
                let plan = self.node.replica().plan_advance(*to, *allowed_ns);
                if plan.is_ok_and(|plan| plan.ahead_ns > 0) {
                    tracing::warn!(epoch = to.0, allowed_ns, "an operator moves the epoch");
                }
            }
            Command::Change(steps) => {
                tracing::info!(steps = shown(steps), "an operator changes the members");
            }
            Command::Advance { is_plan: true, .. }
            | Command::Transfer(_)
            | Command::Vacancy { .. }
            | Command::Set { .. } => {}
        }
    }

    fn tick(&mut self) -> Result<(), ConsensusError> {
        self.look_for_suspension();
        self.read_lease_clocks();
        let reading = reading(&self.shared.clock, &self.faults);
        let health = &self.shared.health;
        let data_plane = Health {
            round_completed_ns: health.round_completed_ns.load(Ordering::Relaxed),
            are_accepts_failing: health.accepts.are_failing(reading.monotonic_ns),
            lease_asked_ns: health.lease_asked_ns.load(Ordering::Relaxed),
        };
        let observed = self.node.handle_tick(reading, data_plane)?;
        self.shared.clock.set_trusted_offset_ns(observed.trusted_offset_ns);
        health.is_quorum_reached.store(observed.is_quorum_reached, Ordering::Relaxed);
        health.is_impaired.store(observed.is_impaired, Ordering::Relaxed);
        health.ticked_ns.store(reading.monotonic_ns, Ordering::Relaxed);
        self.closing.begin_if_due(&self.node, &self.shared.intervals, &self.writer);

        let (replica, clock) = (self.node.replica(), self.node.clock());
        if let Some(status) = observed.clock_changed {
            Reports::log_clock(status, clock);
        }
        self.metrics.consensus.set_ceiling(replica.ceiling());
        self.metrics.consensus.set_clock_status(clock.status());
        self.metrics.consensus.lease_wait_ns.set(replica.lease_wait_ns());
        if reading.monotonic_ns.saturating_sub(self.progress_shown_ns) >= PROGRESS_INTERVAL_NS {
            self.progress_shown_ns = reading.monotonic_ns;
            self.metrics.consensus.peers.set_progress(&self.progress());
        }
        self.reports.log_lease_wait(replica);
        self.reports.log_unproved_clock(replica, clock);
        self.reports.log_empty_zones(replica);
        self.reports.log_voters_without_zone(replica);
        Ok(())
    }

    /// The progress of the other members. Only the leader knows it.
    fn progress(&self) -> BTreeMap<NodeId, Progress> {
        let replica = self.node.replica();
        let status = replica.status();
        let me = self.shared.identity.node;
        let peers = status.peers.iter().filter(|peer| peer.node != me);
        let behind = |node| replica.knows_progress(node).then(|| replica.entries_behind(node));
        let of = |node, is_heard| Progress { behind: behind(node), is_heard };
        match status.role {
            Role::Leader => peers.map(|peer| (peer.node, of(peer.node, peer.is_heard))).collect(),
            Role::Follower | Role::Candidate => BTreeMap::new(),
        }
    }

    /// Reads the clocks of the leases for the event that is handled next. The event has arrived, so an
    /// entry in it counts from a later time than it was proposed (S20).
    fn read_lease_clocks(&mut self) {
        self.node.handle_lease_clocks(self.shared.lease_clock.read());
    }

    /// Takes this node's right to leases away if the machine was suspended. Workers notice that by
    /// themselves; this ends the lease for good.
    fn look_for_suspension(&mut self) {
        if self.shared.lease_clock.look_for_suspension() {
            if self.settings.as_ref().is_some_and(|settings| settings.lease_ms > 0) {
                self.reports.log_lease_right();
            }
            let now_ns = self.shared.clock.monotonic_ns();
            self.node.replica_mut().forbid_leases(now_ns);
        }
    }

    fn on_completion(&mut self, completion: Completion) -> Result<(), ConsensusError> {
        self.read_lease_clocks();
        match completion {
            Completion::Written { number, duration } => {
                self.metrics.consensus.fsync_ns.observe(duration.as_nanos() as u64);
                let now_ns = self.shared.clock.monotonic_ns();
                self.node.handle_persisted(now_ns, number);
                Ok(())
            }
            // The storage thread reports marks to the intervals themselves.
            Completion::Marked { .. } => Ok(()),
            Completion::IntervalsClosed { change } => {
                self.closing.handle_durable(&mut self.node, change);
                Ok(())
            }
            Completion::Failed(error) => Err(ConsensusError::Disk(error)),
        }
    }

    fn on_event(&mut self, event: Event) -> Result<(), ConsensusError> {
        self.read_lease_clocks();
        let now_ns = self.shared.clock.monotonic_ns();
        match event {
            Event::Message { from, store, message } => {
                match self.node.handle_message(now_ns, from, store, &message) {
                    Ok(()) => {}
                    Err(error @ MessageError::LostEntries { .. }) => {
                        return Err(ConsensusError::LostEntries(error));
                    }
                    Err(error @ MessageError::Unreadable { .. }) => {
                        self.reports.log_unreadable(from, error);
                    }
                    Err(error) => {
                        let kind = message.kind;
                        tracing::warn!(peer = from.0, ?kind, %error, "a message was rejected");
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
                self.metrics.consensus.peers.record_version(node, hello.version);
                let (boot, began) = (hello.boot, hello.position);
                let heard = self.node.handle_peer_hello(node, boot, began, hello.formats);
                log_rolled_back(node, heard);
                self.node.handle_peer_addresses(member);
            }
            Event::Pong { node, boot, since, pong, received_ns } => {
                let heard = self.node.handle_pong(now_ns, node, boot, since, &pong, received_ns);
                log_rolled_back(node, heard);
                let round_trip_ns = received_ns.saturating_sub(pong.sent_ns);
                let usual_ns = self.round_trips.record(now_ns, node, round_trip_ns);
                self.round_trips.warn(now_ns, node, self.shared.config.election_timeout);
                self.metrics.consensus.set_round_trip(node, usual_ns);
                self.metrics.consensus.peers.record_answer(node, now_ns);
                for (node, offset_ns) in self.node.clock().peer_offsets() {
                    self.metrics.consensus.set_peer_clock_offset(node, offset_ns);
                }
            }
            Event::Unreachable { node } => self.node.handle_unreachable(now_ns, node),
            Event::Closed { node } => self.node.handle_closed(now_ns, node),
            Event::RecordWanted { answer } => {
                // Sending fails only when the connection that asked is gone.
                drop(answer.send(self.node.replica().record()));
            }
            Event::Refused { by, refusal } => {
                match self.node.handle_refused(now_ns, by, refusal.code) {
                    Refused::ForNow => {}
                    Refused::Removed { is_first } => {
                        self.shared.health.is_removed.store(true, Ordering::Relaxed);
                        if is_first {
                            tracing::warn!(
                                %refusal,
                                "this node was removed: it stops when a majority of the others \
                                 confirms it"
                            );
                        }
                    }
                    Refused::ForGood => return Err(ConsensusError::Refused { by, refusal }),
                }
            }
        }
        Ok(())
    }

    /// Does all actions of the node.
    fn flush(&mut self) -> Result<(), ConsensusError> {
        while let Some(action) = self.node.poll_action() {
            match action {
                Action::Published(published) => self.follow(&published),
                Action::StopAllocator => self.stop_allocator(),
                Action::Write(write) => self.writer.submit(write)?,
                Action::Send(outgoing) => self.send(outgoing),
                Action::Report(report) => self.report(report),
            }
        }
        if !self.admin_commands.is_idle() {
            let (now_ns, replica) = (self.shared.clock.monotonic_ns(), self.node.replica());
            while let Some(answered) = self.admin_commands.poll_answer(now_ns, replica) {
                let answer = admin_documents::answer(&answered, replica);
                // Sending fails when the operator no longer waits.
                drop(answered.reply.send(answer));
            }
        }
        Ok(())
    }

    /// Stops the allocator for a handover. A worker holds its lock for some tens of nanoseconds. If
    /// the lock is taken at each of a few tries, the node asks again at the next tick.
    fn stop_allocator(&mut self) {
        let tries = (0..STOP_TRIES).map(|_| {
            std::hint::spin_loop();
            self.shared.allocator.stop()
        });
        let last = tries.flatten().next();
        self.node.handle_allocator_stopped(self.shared.clock.monotonic_ns(), last);
    }

    fn send(&mut self, Outgoing { to, message }: Outgoing) {
        let kind = message.kind;
        let metrics = &self.metrics.consensus;
        let link = self.links.get(&to);
        let is_queued = link.is_some_and(|link| link.send(message));
        // While the peer is down, queued messages are dropped. They count neither as sent nor as
        // dropped.
        if link.is_some_and(Link::is_connected) {
            let count = if is_queued {
                &metrics.raft_messages_sent
            } else {
                &metrics.raft_messages_dropped
            };
            count.add(1);
        }
        if !is_queued {
            self.node.handle_unsent(self.shared.clock.monotonic_ns(), to, kind);
        }
    }

    fn report(&mut self, report: Report) {
        match &report {
            Report::Changed { nonce, outcome } | Report::SettingsChanged { nonce, outcome } => {
                self.admin_commands.handle_outcome(*nonce, outcome);
            }
            Report::Advanced { to } => self.admin_commands.handle_advanced(*to),
            _ => {}
        }
        self.reports.log(report, self.node.clock());
    }

    /// Follows a new publication: tells the workers, applies the settings, opens and closes links.
    fn follow(&mut self, published: &Published) {
        self.workers.notify_published();
        let leader = published.leader.map(|leader| (leader, published.term));
        if leader != self.leader {
            self.leader = leader;
            self.metrics.consensus.leader_since_ns.set(self.shared.clock.monotonic_ns());
        }
        let me = self.shared.identity.node;
        self.shared.intervals.set_voters(published.voters.iter().map(|(node, _)| node));
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
        let removed = &self.node.replica().state().removed;
        self.reports.log_members(published, removed);
        if *self.accepted.removed.borrow() != *removed {
            self.accepted.removed.replace(removed.clone());
            let members = &published.members;
            self.metrics.consensus.retain_peers(|node| members.contains_key(&node));
            self.round_trips.retain(|node| members.contains_key(&node));
            self.reports.retain(|node| members.contains_key(&node));
        }
    }

    /// Applies the cluster's settings, which replace this node's own settings. The core has already
    /// applied the settings that it uses itself.
    fn apply_settings(&mut self, settings: &Arc<ClusterSettings>) {
        let before = self.settings.replace(settings.clone());
        if before.as_ref() == Some(settings) {
            return;
        }
        self.shared.max_n.store(settings.max_n, Ordering::Relaxed);
        let is_lease = settings.guarantee_default == Guarantee::Lease;
        self.shared.is_lease_default.store(is_lease, Ordering::Relaxed);
        if settings.lease_ms > 0 {
            self.reports.log_lease_right();
        }
        if settings.timestamp_format == TimestampFormat::Compact {
            self.shared.is_compact.store(true, Ordering::Release);
        }
        warn_of_short_window(settings, self.shared.config.election_timeout);
        log_settings_that_differ(&self.shared.config, before.as_deref(), settings);
    }
}
