//! The world: all nodes, links and clients on one queue, in one thread, from one seed. The world
//! delays, reorders, repeats and loses messages. It stops, starts and pauses nodes, and brings
//! every event to its receiver.

mod clients;
pub(crate) mod compact;
mod confirm_links;
pub(crate) mod consensus;
pub(crate) mod faults;
pub(crate) mod features;
pub(crate) mod forwarding;
pub(crate) mod handovers;
mod leases;
mod links;
pub(crate) mod offers;
mod operators;
mod orders;
mod pauses;
mod records;
mod restore;
mod sessions;
mod settings;
mod turns;
mod versions;
mod workers;

use std::collections::BTreeMap;
use std::rc::Rc;

use epicepoch_core::node::Node as Consensus;
use epicepoch_core::replica::Replica;
use epicepoch_wire::bootstrap::{Genesis, Member};
use epicepoch_wire::{BootId, ClusterId, Epoch, HistoryId, NodeId};

use crate::disk::{Disk, Unreadable};
use crate::event::{End, Event};
use crate::history::{History, Invariant};
use crate::monitor::Monitor;
use crate::network_conditions::NetworkConditions;
use crate::node::{Node, Running, member, store_in};
use crate::parameters::{MS, THREADS, TICK_NS, WORKERS, initial_settings};
use crate::plane::Plane;
use crate::plant::Plant;
use crate::queue::Queue;
use crate::summary::Summary;
use crate::trace::{Kind, Trace};
use crate::world::clients::Client;
use crate::world::confirm_links::ConfirmLinks;
use crate::world::faults::Nemesis;
use crate::world::features::Feature;
use crate::world::forwarding::Forwarded;
use crate::world::links::Links;
use crate::world::restore::Restores;
use crate::world::sessions::Sessions;

/// Time between two attempts to connect over a cut link, nanoseconds.
const CONNECT_NS: u64 = 100 * MS;

/// An event on the queue. `to` is its receiver, and `boot` the run of the receiver that it is meant
/// for: `None` for a message over a link, which is meant for any run. `late_ns` is how much too
/// late the event comes, nanoseconds.
struct Addressed {
    to: NodeId,
    boot: Option<BootId>,
    event: Event,
    late_ns: u64,
    /// Number of the cluster's history to which the event belongs.
    era: u32,
}

/// All state of a run.
pub(crate) struct World {
    /// True time since the world began, nanoseconds.
    pub(crate) now_ns: u64,
    pub(crate) random: fastrand::Rng,
    pub(crate) nodes: Vec<Node>,
    pub(crate) genesis: Genesis,
    pub(crate) conditions: NetworkConditions,
    pub(crate) links: Links,
    pub(crate) confirm_links: ConfirmLinks,
    pub(crate) clients: Vec<Client>,
    pub(crate) sessions: Sessions,
    /// Whether nodes that do not lead send requests on.
    pub(crate) forwards: bool,
    pub(crate) forwarded: Forwarded,
    pub(crate) nemesis: Nemesis,
    pub(crate) restores: Restores,
    pub(crate) history: History,
    pub(crate) monitor: Monitor,
    pub(crate) summary: Summary,
    pub(crate) trace: Option<Trace>,
    /// Hash of all events in order.
    pub(crate) hash: u64,
    seed: u64,
    plant: Option<Plant>,
    queue: Queue<Addressed>,
}

impl World {
    /// Makes a cluster of `voters` that are not started, and `spare` nodes that know the cluster.
    pub(crate) fn new(seed: u64, voters: u64, spare: u64, plant: Option<Plant>) -> Self {
        let members = (1..=voters).map(|id| member(NodeId(id))).collect();
        let genesis = Genesis {
            cluster: ClusterId(9),
            history: HistoryId(1),
            members,
            floor: Epoch(0),
            removed: vec![],
        };
        let node = |id| Node::new(NodeId(id), Disk::founded(&genesis, id <= voters));
        let monitor = Monitor::new(seed, (voters + spare) as usize, &genesis);
        Self {
            now_ns: 0,
            random: fastrand::Rng::with_seed(seed),
            nodes: (1..=voters + spare).map(node).collect(),
            genesis,
            conditions: NetworkConditions::FAIR,
            links: Links::default(),
            confirm_links: ConfirmLinks::new(Feature::ConfirmLinks.is_of(seed)),
            clients: vec![],
            sessions: Sessions::default(),
            forwards: plant.map_or_else(|| Feature::Forwarding.is_of(seed), Plant::is_in_forwarder),
            forwarded: Forwarded::default(),
            nemesis: Nemesis::default(),
            restores: Restores::default(),
            history: History::default(),
            monitor,
            summary: Summary::default(),
            trace: None,
            hash: 0xcbf2_9ce4_8422_2325,
            seed,
            plant,
            queue: Queue::new(),
        }
    }

    pub(crate) const fn seed(&self) -> u64 {
        self.seed
    }

    /// The planted bug, if any; a release build has none.
    pub(crate) fn plant(&self) -> Option<Plant> {
        if cfg!(debug_assertions) { self.plant } else { None }
    }

    pub(crate) fn is_planted(&self, plant: Plant) -> bool {
        self.plant() == Some(plant)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = NodeId> + Clone + use<> {
        (1..=self.nodes.len() as u64).map(NodeId)
    }

    pub(crate) fn at(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize - 1]
    }

    pub(crate) fn node(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0 as usize - 1]
    }

    /// A node as a member, with its data directory in this history.
    pub(crate) fn member(&self, id: NodeId) -> Member {
        let store = store_in(id, self.restores.era);
        Member { store, ..member(id) }
    }

    pub(crate) fn start_if_down(&mut self, id: NodeId) {
        if self.at(id).running.is_none() {
            self.start(id);
        }
    }

    pub(crate) fn start(&mut self, id: NodeId) {
        if self.at(id).disk.is_empty() && !self.join(id) {
            return self.start_later(id);
        }
        let seed = self.random.u64(..);
        let (now_ns, round_ns, plant) = (self.now_ns, self.conditions.round_ns, self.plant());
        self.node(id).disk.about_to_start();
        let is_damaged = self.at(id).disk.is_damaged();
        match self.node(id).boot(now_ns, seed, round_ns, plant) {
            Ok(()) if is_damaged => self.count("start on a damaged disk: harmless"),
            Ok(()) => {}
            // The operator repairs the disk before the next start.
            Err(Unreadable::Damaged) => return self.count("start refused: damaged disk"),
            Err(Unreadable::Full) => {
                self.count("start refused: full disk");
                return self.start_later(id);
            }
            Err(Unreadable::Newer(error)) => {
                return self.holds_unreadable(id, || format!("node {id} does not start: {error}"));
            }
            Err(Unreadable::Wrong(what)) => {
                let what = || format!("node {id}: {what}");
                return self.history.violate(Invariant::DurableFirst, what);
            }
        }
        let replica = self.at(id).running().replica();
        let (index, state) = (replica.applied(), replica.state().clone());
        let boot = self.at(id).running().identity.boot;
        self.history.began(boot, index, &state);
        self.monitor_start(id, index, &state);
        let placement = self.placement(id).unwrap_or_default();
        let (has_leases, lease_ms) = (self.has(Feature::Leases), self.initial_lease_ms());
        let clocks = self.lease_clocks(id);
        let format = self.initial_timestamp_format();
        let replica = self.node(id).running_mut().consensus.replica_mut();
        replica.seed_settings(initial_settings(placement.leaders.clone(), lease_ms, format));
        if has_leases {
            replica.allow_leases();
        }
        replica.handle_lease_clocks(clocks);
        if placement.zone.is_some() {
            replica.place(placement);
        }
        let offset_ns = self.random.u64(0..TICK_NS);
        self.schedule_own(id, offset_ns, Event::Tick);
        for worker in 0..WORKERS {
            self.schedule_own(id, 2 * offset_ns, Event::WorkerTick { worker });
        }
        self.record(|| format!("{id} starts"));
        self.pump(id);
        self.connect(id);
        self.start_links(id);
    }

    /// Schedules another start of a process that could not start or ended by itself.
    pub(crate) fn start_later(&mut self, id: NodeId) {
        let after_ns = self.random.u64(50..2_000) * MS;
        self.schedule_world(after_ns, Event::End { end: End::Start(id) });
    }

    /// Ends the process at once. Writes that were not durable are lost, except some that had
    /// reached the disk but were not acknowledged.
    pub(crate) fn crash(&mut self, id: NodeId) {
        self.record(|| format!("{id} crashes"));
        self.break_links(id);
        let pending = self.at(id).disk.pending();
        let kept = if self.random.bool() { 0 } else { self.random.usize(0..=pending) };
        // A lying disk has acknowledged all writes already, so the crash loses all pending ones.
        let kept = if self.is_planted(Plant::LyingDisk) { 0 } else { kept };
        let mut random = self.random.fork();
        let now_ns = self.now_ns;
        let node = self.node(id);
        let is_torn = node.disk.crash(kept, &mut random);
        node.paused_until_ns = [0; THREADS];
        node.is_suspended = false;
        node.clock.lease.resume(now_ns);
        // Messages that the process had not read are lost with its sockets.
        node.held = Default::default();
        let ended = node.running.take().map(|running| running.identity.boot);
        if let Some(boot) = ended {
            self.history.ended(boot);
            self.monitor.crashes(id, self.nodes[id.0 as usize - 1].disk.durable());
            self.end_links(id);
        }
        for client in self.clients.iter_mut().filter(|client| client.connected == Some(id)) {
            client.connected = None;
        }
        if is_torn {
            self.count("commit torn");
        }
    }

    /// A process that has started connects to the running ones, and both sides say hello. In some
    /// runs nodes often start at new addresses.
    fn connect(&mut self, id: NodeId) {
        if self.has(Feature::Moves) && self.at(id).boots > 1 {
            self.node(id).moves += 1;
            self.count("node moved");
        }
        for peer in self.ids().filter(|peer| *peer != id) {
            if self.at(peer).running.is_some() {
                self.send_hello(peer, id, true);
            }
        }
    }

    /// Node `own` sends its hello to a running peer, over a connection that loses no message.
    fn send_hello(&mut self, peer: NodeId, own: NodeId, is_answered: bool) {
        let boot = self.at(own).running().identity.boot;
        let member = Rc::new(self.at(own).as_member());
        let after_ns = self.link_ns();
        let event = Event::Connected { from: own, boot, member, is_answered };
        self.schedule_own(peer, after_ns, event);
    }

    /// A hello arrives, if both processes still run. If the link is cut, the sender tries again
    /// later.
    fn receive_hello(&mut self, id: NodeId, from: NodeId, boot: BootId, event: Event) {
        let is_over = |known: &Running| known.identity.boot != boot;
        if self.at(from).running.as_ref().is_none_or(is_over) {
            return;
        }
        if self.links.is_cut(from, id, Plane::Raft) || self.links.is_cut(id, from, Plane::Raft) {
            return self.schedule_own(id, CONNECT_NS, event);
        }
        let Event::Connected { member, is_answered, .. } = event else { return };
        self.drive(id, |consensus, _| consensus.handle_peer_addresses(Member::clone(&member)));
        if is_answered {
            self.send_hello(from, id, false);
        }
    }

    /// Every running peer sees that its connection to `id` has closed.
    pub(crate) fn close(&mut self, id: NodeId) {
        for peer in self.ids() {
            if peer != id {
                self.schedule(peer, None, MS, Event::Closed { peer: id });
            }
        }
    }

    /// Passes an event to the consensus plane of a running node, then does its actions. No other
    /// event has arrived, so an offer of leadership is followed at once. While the plane is paused,
    /// its events are held and it is never called.
    pub(crate) fn drive<R>(
        &mut self,
        id: NodeId,
        call: impl FnOnce(&mut Consensus, u64) -> R,
    ) -> R {
        let result = self.pass(id, call);
        self.pump(id);
        result
    }

    /// Passes an event to the consensus plane, and leaves its actions to the caller.
    pub(crate) fn pass<R>(&mut self, id: NodeId, call: impl FnOnce(&mut Consensus, u64) -> R) -> R {
        assert!(!self.is_paused(id), "the consensus plane of {id} is called in a pause");
        self.settle(id);
        let (monotonic_ns, clocks) = (self.monotonic_ns(id), self.lease_clocks(id));
        let Running { consensus, shared, seen, .. } = self.node(id).running_mut();
        shared.record_stamped(seen.stamped());
        consensus.handle_lease_clocks(clocks);
        let result = call(consensus, monotonic_ns);
        consensus.follow_offer(monotonic_ns);
        result
    }

    /// Calls the replica of a running node for an operator, as [`World::drive`] does for an event.
    pub(crate) fn with<R>(&mut self, id: NodeId, call: impl FnOnce(&mut Replica, u64) -> R) -> R {
        self.drive(id, |consensus, now_ns| call(consensus.replica_mut(), now_ns))
    }

    /// Whether a node fails to accept new clients.
    pub(crate) fn do_accepts_fail(&self, id: NodeId) -> bool {
        self.now_ns < self.at(id).accepts_fail_until_ns
    }

    pub(crate) fn monotonic_ns(&self, id: NodeId) -> u64 {
        self.at(id).clock.monotonic_ns(self.now_ns)
    }

    pub(crate) fn chance(&mut self, per_thousand: u32) -> bool {
        per_thousand > 0 && self.random.u32(0..1000) < per_thousand
    }

    /// Draws one of the nodes, member or not, running or not.
    pub(crate) fn any(&mut self) -> NodeId {
        NodeId(self.random.u64(1..=self.nodes.len() as u64))
    }

    pub(crate) fn record(&mut self, line: impl FnOnce() -> String) {
        self.record_of(Kind::Other, line);
    }

    pub(crate) fn record_of(&mut self, kind: Kind, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.log(self.now_ns, kind, &line());
        }
    }

    /// Schedules an event for a node's current process. The event is dropped if that process has
    /// ended by then.
    pub(crate) fn schedule_own(&mut self, id: NodeId, after_ns: u64, event: Event) {
        let boot = self.at(id).running().identity.boot;
        self.schedule(id, Some(boot), after_ns, event);
    }

    pub(crate) fn schedule(
        &mut self,
        to: NodeId,
        boot: Option<BootId>,
        after_ns: u64,
        event: Event,
    ) {
        let addressed = Addressed { to, boot, event, late_ns: 0, era: self.restores.era };
        self.queue.push(self.now_ns + after_ns, addressed);
    }

    /// Schedules an event of the world, which is for no node.
    pub(crate) fn schedule_world(&mut self, after_ns: u64, event: Event) {
        self.schedule(NodeId(0), None, after_ns, event);
    }

    /// Schedules the next step of a worker on the same request: now, or after other events.
    pub(crate) fn next_step(&mut self, id: NodeId, event: Event) {
        let most_ns = self.conditions.step_ns;
        if most_ns == 0 {
            self.happen(id, event);
        } else {
            let after_ns = self.random.u64(0..=most_ns);
            self.schedule_own(id, after_ns, event);
        }
    }

    /// Sends a message over a link. A cut link loses the message; messages that were sent before
    /// the cut still arrive.
    pub(crate) fn send(&mut self, from: NodeId, to: NodeId, event: &Event) {
        let plane = event.plane().expect("a message is for a node");
        if to.0 == 0 || to.0 > self.nodes.len() as u64 {
            return;
        }
        if self.links.is_cut(from, to, plane) {
            return self.record_of(event.kind(), || format!("{from} to {to}, {plane:?}: cut"));
        }
        if self.confirm_links.is_lost(from, to, event) {
            return self.record_of(event.kind(), || format!("{from} to {to}: the link is broken"));
        }
        if self.chance(self.conditions.lost) {
            self.summary.messages_lost += 1;
            return self.record_of(event.kind(), || format!("{from} to {to}, {plane:?}: lost"));
        }
        let copies = 1 + u32::from(self.chance(self.conditions.doubled));
        self.summary.messages_doubled += u64::from(copies - 1);
        for _ in 0..copies {
            let mut after_ns = self.link_ns();
            let slow_ns = self.links.slow_ns(from, to);
            let to = self.astray(from, to, event);
            if slow_ns > 0 {
                self.summary.messages_slow += 1;
                after_ns += self.random.u64(slow_ns - slow_ns / 8..=slow_ns);
            }
            let is_late = self.chance(self.conditions.late);
            let late_ns = if is_late { self.random.u64(0..self.conditions.late_ns) } else { 0 };
            let era = self.restores.era;
            let addressed = Addressed { to, boot: None, event: event.clone(), late_ns, era };
            self.queue.push(self.now_ns + after_ns + late_ns, addressed);
        }
    }

    /// The node at which a message arrives: nearly always its receiver.
    fn astray(&mut self, from: NodeId, to: NodeId, event: &Event) -> NodeId {
        let may = matches!(event, Event::Raft { .. });
        if !may || !self.chance(self.conditions.astray) {
            return to;
        }
        let other = self.any();
        let is_astray = other != to && other != from;
        self.summary.messages_astray += u64::from(is_astray);
        if is_astray { other } else { to }
    }

    /// Draws how long a message takes on a link, nanoseconds.
    pub(crate) fn link_ns(&mut self) -> u64 {
        let (least, most) = self.conditions.delay_ns;
        self.random.u64(least..=most)
    }

    /// The most events that have waited at once.
    pub(crate) const fn most_waiting(&self) -> usize {
        self.queue.most_waiting()
    }

    /// Handles the next event if it is due by `end_ns`. Returns `false` if none is.
    pub(crate) fn step(&mut self, end_ns: u64) -> bool {
        let Some((at_ns, addressed)) = self.queue.pop_until(end_ns) else { return false };
        let Addressed { to, boot, event, late_ns, era } = addressed;
        self.now_ns = at_ns;
        let Some(thread) = event.thread() else {
            self.digest(to, &event);
            self.happen_outside(event);
            return true;
        };
        let node = self.node(to);
        let Some(running) = &node.running else {
            match event {
                Event::Arrive { asker, .. } => self.arrive_nowhere(to, asker),
                Event::ClientHello { session, link, .. } => {
                    self.refuse_client_hello(to, session, link);
                }
                _ => {}
            }
            return true;
        };
        if boot.is_some_and(|boot| boot != running.identity.boot) {
            return true;
        }
        // A peer of an ended history of the cluster sent this message. In production this node
        // would not accept a connection from that peer.
        let is_client =
            matches!(event, Event::Arrive { .. } | Event::Leave { .. } | Event::ClientHello { .. });
        if boot.is_none() && era != self.restores.era && !is_client {
            self.count("message of an ended history");
            return true;
        }
        self.summary.count_late(late_ns);
        let node = self.node(to);
        if node.paused_until_ns[thread] > 0 {
            node.held[thread].push((boot, event));
            return true;
        }
        self.digest(to, &event);
        self.happen(to, event);
        true
    }

    fn digest(&mut self, to: NodeId, event: &Event) {
        let (kind, value) = event.digest();
        for part in [self.now_ns, to.0 << 8 | kind, value] {
            self.hash = (self.hash ^ part).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
        }
        self.summary.events += 1;
        if self.trace.is_some() {
            self.record_event(to, event);
        }
    }

    fn happen(&mut self, id: NodeId, event: Event) {
        match event {
            Event::Share => {
                if self.share(id) {
                    self.next_step(id, Event::Share);
                }
            }
            Event::Tick => self.tick(id),
            Event::Written => self.written(id),
            Event::Raft { from, hello, bytes } => self.receive(id, from, hello, &bytes),
            Event::Closed { peer } => self.closed(id, peer),
            Event::Unreachable { peer } => {
                self.drive(id, |consensus, now_ns| consensus.handle_unreachable(now_ns, peer));
            }
            Event::Connected { from, boot, .. } => self.receive_hello(id, from, boot, event),
            Event::Admin { command } => self.execute(id, command),
            Event::Shutdown => self.depart(id),
            Event::TurnEnds => self.end_turn(id),
            Event::WorkersEnded => self.end_workers(id),
            Event::Ping { from, boot, since, ping } => self.ping(id, from, boot, since, ping),
            Event::Pong { from, hello, boot, since, pong } => {
                self.pong(id, (from, hello), boot, since, pong);
            }
            Event::Refused { by, boot } => self.refused(id, by, boot),
            Event::Arrive { worker, asker, count } => self.arrive(id, worker, asker, count),
            Event::ClientHello { worker, session, link } => {
                self.answer_client_hello(id, worker, session, link);
            }
            Event::Notice { worker, session, link } => self.notice(id, worker, session, link),
            Event::Leave { worker, asker } => self.leave(id, worker, asker),
            Event::Follow { worker } => self.follow(id, worker),
            Event::Turn { worker } => self.turn(id, worker),
            Event::Ask { confirm, published } => self.ask(id, confirm, &published),
            Event::Forward { worker, to, confirm } => self.forward(id, worker, to, confirm),
            Event::Confirm { from, link, confirm } => self.asked(id, from, link, confirm),
            Event::Load { worker, from, boot } => self.load(id, worker, (from, boot)),
            Event::Send { worker, to, boot } => self.send_answers(id, worker, (to, boot)),
            Event::Reply { from, hello, link, reply } => {
                self.reply(id, (from, hello), link, &reply);
            }
            Event::HandedBack { worker, from, reply } => {
                self.handed_back(id, worker, from, &reply);
            }
            Event::LinksEnded { worker, nodes } => self.links_ended(id, worker, nodes),
            Event::LinksConnected { worker, nodes } => self.links_connected(id, worker, nodes),
            Event::Allocate { worker } => self.allocate(id, worker),
            Event::Woken { worker, slot, asker } => self.woken(id, worker, slot, asker),
            Event::ForwardTurn { worker } => self.forward_turn(id, worker),
            Event::ForwardWoken { worker, slot, asker } => {
                self.forward_woken(id, worker, slot, asker);
            }
            Event::FrameAnswered { worker, link, frame, answer } => {
                self.read_frame_answer(id, worker, (link, frame), answer);
            }
            Event::Answer { request, answer } => self.answer(id, request, answer),
            Event::LookForLate { worker } => self.look_for_late(id, worker),
            Event::WorkerTick { worker } => self.worker_tick(id, worker),
            Event::Client { .. }
            | Event::GiveUp { .. }
            | Event::Answered { .. }
            | Event::Call { .. }
            | Event::CallEnds { .. }
            | Event::SessionTimer { .. }
            | Event::Heard { .. }
            | Event::Fault
            | Event::Operate
            | Event::Strike { .. }
            | Event::Usurp { .. }
            | Event::Divide { .. }
            | Event::PauseConsensus { .. }
            | Event::End { .. } => self.happen_outside(event),
        }
    }

    fn happen_outside(&mut self, event: Event) {
        match event {
            Event::Client { client } => self.client_asks(client),
            Event::GiveUp { asker } => self.client_gives_up(asker),
            Event::Answered { asker, answer, by } => self.client_answered(asker, answer, by),
            Event::Call { session, caller } => self.call(session, caller),
            Event::CallEnds { session, caller, number, is_left } => {
                self.call_ends(session, caller, number, is_left);
            }
            Event::SessionTimer { session, at_ns } => self.session_timer(session, at_ns),
            Event::Heard { session, heard } => self.heard(session, *heard),
            Event::Fault => self.fault(),
            Event::Operate => self.operate(),
            Event::Strike { node } => self.strike(node),
            Event::Usurp { node } => self.usurp(node),
            Event::Divide { node, from, planes } => self.divide(node, from, planes),
            Event::PauseConsensus { node, lasts_ns } => self.pause_consensus(node, lasts_ns),
            Event::End { end } => self.end(end),
            event => unreachable!("{event:?} is a node's"),
        }
    }

    /// The status of every node, as text for people.
    pub(crate) fn node_statuses(&self) -> String {
        let node = |node: &Node| {
            let status = node.running.as_ref().map(|running| running.replica().status());
            format!("\nnode {}: {status:?}", node.id)
        };
        self.nodes.iter().map(node).collect()
    }

    /// Counts one more event called `what`.
    pub(crate) fn count(&mut self, what: &'static str) {
        let counts: &mut BTreeMap<&'static str, u64> = &mut self.summary.faults;
        *counts.entry(what).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::AdminCommand;
    use crate::node::Share;
    use crate::parameters::SECOND;
    use epicepoch_wire::Term;

    /// Makes a world with three running nodes. Faults may begin, but none is scheduled.
    fn three() -> World {
        let mut world = World::new(1, 3, 0, None);
        world.nemesis = Nemesis::idle();
        world.ids().for_each(|id| world.start(id));
        world.live_until(SECOND, None).expect("nothing is wrong");
        world
    }

    #[test]
    fn a_paused_consensus_plane_does_nothing_when_peers_start_ask_or_hang_up() {
        let mut world = three();
        let (paused, other) = (NodeId(2), NodeId(1));
        world.node(paused).running_mut().shares.push_back(Share::Raise(Term(99)));
        world.pause(paused, Plane::Raft.threads(), 10 * SECOND);
        world.crash(other);
        world.close(other);
        world.start(other);
        world.admin(paused, AdminCommand::HandOver);
        world.live_until(9 * SECOND, None).expect("nothing is wrong");
        assert_eq!(world.at(paused).running().shares.len(), 1, "it was in the middle of a call");
        assert!(!world.summary.faults.contains_key("handover asked"));
        world.live_until(12 * SECOND, None).expect("nothing is wrong");
        assert!(world.at(paused).running().shares.is_empty());
        assert_eq!(world.at(paused).running().seen.promise.load(), Term(99));
        assert!(world.summary.faults.contains_key("handover asked"), "it is read now");
    }

    #[test]
    fn new_addresses_are_known_once_the_peer_resumes_and_the_link_is_back() {
        for is_cut in [false, true] {
            let mut world = three();
            let (moved, peer) = (NodeId(1), NodeId(2));
            let knows = |world: &World, who: NodeId, of: NodeId| {
                let members = world.at(who).running().shared.published().members.clone();
                members[&of] == world.at(of).as_member()
            };
            world.crash(moved);
            world.node(moved).moves = 1;
            if is_cut {
                world.links.cut(peer, moved, Plane::Raft);
            } else {
                world.pause(peer, Plane::Raft.threads(), 10 * SECOND);
            }
            world.start(moved);
            world.node(peer).moves = 1;
            world.live_until(2 * SECOND, None).expect("nothing is wrong");
            assert!(knows(&world, NodeId(3), moved));
            assert!(!knows(&world, moved, peer), "cut: {is_cut}");
            world.join_links();
            world.live_until(12 * SECOND, None).expect("nothing is wrong");
            assert!(knows(&world, moved, peer) && knows(&world, peer, moved), "cut: {is_cut}");
        }
    }
}
