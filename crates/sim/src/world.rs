//! The world: one queue, one thread, one seed. Links that delay, reorder, repeat and lose, nodes
//! that stop, start and pause, and the way of every event to whom it is for.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use epicepoch_core::replica::Replica;
use epicepoch_wire::bootstrap::{Genesis, Member};
use epicepoch_wire::{BootId, ClusterId, Epoch, HistoryId, NodeId};

use crate::clients::Client;
use crate::disk::{Disk, Unreadable};
use crate::event::Event;
use crate::faults::{End, Nemesis};
use crate::features::Feature;
use crate::history::{History, Invariant};
use crate::links::Links;
use crate::node::{Node, Plane, Running, THREADS, TICK_NS, WORKERS, member, store_in};
use crate::plant::Plant;
use crate::queue::Queue;
use crate::restore::Restores;
use crate::settings::told;
use crate::summary::Summary;
use crate::trace::{Kind, Trace};

/// A millisecond.
pub(crate) const MS: u64 = 1_000_000;
/// A second.
pub(crate) const SECOND: u64 = 1_000 * MS;
/// Between two tries to connect over a link that is cut.
const CONNECT_NS: u64 = 100 * MS;
/// Nodes of a world, members or not.
pub(crate) const NODES_MAX: usize = 16;

/// What links and steps do. Chances are per thousand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    pub(crate) delay_ns: (u64, u64),
    pub(crate) lost: u32,
    pub(crate) doubled: u32,
    /// Raft messages that come to another node, as where one has taken the address of another.
    pub(crate) astray: u32,
    /// Messages that come much later than others, by up to `late_ns`.
    pub(crate) late: u32,
    pub(crate) late_ns: u64,
    /// A transaction that is finished takes what has come since with it.
    pub(crate) together: u32,
    /// Most time between two steps of a worker on the same request.
    pub(crate) step_ns: u64,
    /// Most time that a round may take before it has failed.
    pub(crate) round_ns: u64,
}

impl Weather {
    /// Every message arrives once, after a millisecond.
    pub(crate) const FAIR: Self = Self {
        delay_ns: (MS, MS),
        lost: 0,
        doubled: 0,
        astray: 0,
        late: 0,
        late_ns: 0,
        together: 0,
        step_ns: 0,
        round_ns: 200 * MS,
    };
}

/// To whom, of which run (any, for what comes over a link), and what; and how much later it comes
/// than it should, nanoseconds.
struct Addressed {
    to: NodeId,
    boot: Option<BootId>,
    event: Event,
    late_ns: u64,
    /// Of which history of the cluster it is.
    era: u32,
}

/// Everything.
pub(crate) struct World {
    /// True time since the world began.
    pub(crate) now_ns: u64,
    pub(crate) random: fastrand::Rng,
    pub(crate) nodes: Vec<Node>,
    pub(crate) genesis: Genesis,
    pub(crate) weather: Weather,
    pub(crate) links: Links,
    pub(crate) clients: Vec<Client>,
    pub(crate) nemesis: Nemesis,
    pub(crate) restores: Restores,
    pub(crate) history: History,
    pub(crate) summary: Summary,
    pub(crate) trace: Option<Trace>,
    /// Of everything that happened, in its order.
    pub(crate) hash: u64,
    seed: u64,
    plant: Option<Plant>,
    queue: Queue<Addressed>,
}

impl World {
    /// A cluster of `voters` that is not started, and `spare` nodes that know it.
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
        Self {
            now_ns: 0,
            random: fastrand::Rng::with_seed(seed),
            nodes: (1..=voters + spare).map(node).collect(),
            genesis,
            weather: Weather::FAIR,
            links: Links::default(),
            clients: vec![],
            nemesis: Nemesis::default(),
            restores: Restores::default(),
            history: History::default(),
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

    /// The planted bug; none in a release build.
    pub(crate) fn plant(&self) -> Option<Plant> {
        if cfg!(debug_assertions) { self.plant } else { None }
    }

    pub(crate) fn is_planted(&self, plant: Plant) -> bool {
        self.plant() == Some(plant)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (1..=self.nodes.len() as u64).map(NodeId)
    }

    pub(crate) fn at(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize - 1]
    }

    pub(crate) fn node(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0 as usize - 1]
    }

    /// A node as it is a member: with the data directory that it has in this history.
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
        let (now_ns, plant) = (self.now_ns, self.plant());
        self.node(id).disk.about_to_start();
        let is_damaged = self.at(id).disk.is_damaged();
        match self.node(id).boot(now_ns, seed, plant) {
            Ok(()) if is_damaged => self.count("start on a damaged disk: harmless"),
            Ok(()) => {}
            // Whoever looks after the machine sees to its disk first.
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
        let replica = &self.node(id).running().replica;
        let (index, state) = (replica.applied(), replica.state().clone());
        let boot = self.at(id).running().identity.boot;
        self.history.began(boot, index, &state);
        let placement = self.placement(id).unwrap_or_default();
        let replica = &mut self.node(id).running_mut().replica;
        replica.seed_settings(told(&placement));
        if placement.zone.is_some() {
            replica.place(placement);
        }
        let offset_ns = self.random.u64(0..TICK_NS);
        self.schedule_own(id, offset_ns, Event::Tick);
        for worker in 0..WORKERS {
            self.schedule_own(id, 2 * offset_ns, Event::WorkerTick { worker });
        }
        self.note(|| format!("{id} starts"));
        self.pump(id);
        self.introduce(id);
    }

    /// Starts a process that could not start, or has ended by itself, again in a while.
    pub(crate) fn start_later(&mut self, id: NodeId) {
        let after_ns = self.random.u64(50..2_000) * MS;
        self.schedule_world(after_ns, Event::End { end: End::Start(id) });
    }

    /// The process ends. What was not durable is lost, but for what had reached the disk unseen.
    pub(crate) fn crash(&mut self, id: NodeId) {
        self.note(|| format!("{id} crashes"));
        let pending = self.at(id).disk.pending();
        let kept = if self.random.bool() { 0 } else { self.random.usize(0..=pending) };
        // A disk that lies has said so already; what it then keeps is not the point.
        let kept = if self.is_planted(Plant::LyingDisk) { 0 } else { kept };
        let mut random = self.random.fork();
        let node = self.node(id);
        let is_torn = node.disk.crash(kept, &mut random);
        node.paused_until_ns = [0; THREADS];
        // What nobody has read is gone with the sockets.
        node.held = Default::default();
        let ended = node.running.take().map(|running| running.identity.boot);
        if let Some(boot) = ended {
            self.history.ended(boot);
        }
        for client in self.clients.iter_mut().filter(|client| client.connected == Some(id)) {
            client.connected = None;
        }
        if is_torn {
            self.count("commit torn");
        }
    }

    /// A process that has started and those that run introduce themselves to each other, as they do
    /// on every new connection. In some runs a start is often one at other addresses.
    fn introduce(&mut self, id: NodeId) {
        if self.has(Feature::Moves) && self.at(id).boots > 1 {
            self.node(id).moves += 1;
            self.count("node moved");
        }
        for peer in self.ids().filter(|peer| *peer != id) {
            if self.at(peer).running.is_some() {
                self.introduce_to(peer, id, true);
            }
        }
    }

    /// `own` introduces itself to a peer that runs. A connection that has come about loses nothing.
    fn introduce_to(&mut self, peer: NodeId, own: NodeId, is_answered: bool) {
        let boot = self.at(own).running().identity.boot;
        let member = Rc::new(self.at(own).introduction());
        let after_ns = self.link_ns();
        let event = Event::Introduced { from: own, boot, member, is_answered };
        self.schedule_own(peer, after_ns, event);
    }

    /// An introduction comes, if the connection still stands: it ends with the process at either end.
    /// Where a link is cut none comes about, and is tried again.
    fn introduced(&mut self, id: NodeId, from: NodeId, boot: BootId, event: Event) {
        let is_over = |known: &Running| known.identity.boot != boot;
        if self.at(from).running.as_ref().is_none_or(is_over) {
            return;
        }
        if self.links.is_cut(from, id, Plane::Raft) || self.links.is_cut(id, from, Plane::Raft) {
            return self.schedule_own(id, CONNECT_NS, event);
        }
        let Event::Introduced { member, is_answered, .. } = event else { return };
        self.with(id, |replica, _| replica.handle_introduction(Member::clone(&member)));
        if is_answered {
            self.introduce_to(from, id, false);
        }
    }

    /// Peers see that the connections from `id` have closed.
    pub(crate) fn close(&mut self, id: NodeId) {
        for peer in self.ids() {
            if peer != id {
                self.schedule(peer, None, MS, Event::Closed { peer: id });
            }
        }
    }

    /// Threads stand still for so long, or as long as each does already, if that is longer.
    pub(crate) fn pause(&mut self, id: NodeId, threads: Range<usize>, ns: u64) {
        let until_ns = self.now_ns + ns;
        for thread in threads {
            let paused_until_ns = &mut self.node(id).paused_until_ns[thread];
            *paused_until_ns = until_ns.max(*paused_until_ns);
            self.schedule_world(ns, Event::End { end: End::Pause(id, thread) });
        }
    }

    /// A thread goes on after a pause: with everything that came meanwhile, in its order, then the ticks.
    pub(crate) fn resume(&mut self, id: NodeId, thread: usize) {
        let node = self.node(id);
        node.paused_until_ns[thread] = 0;
        for (boot, event) in std::mem::take(&mut node.held[thread]) {
            let is_tick = matches!(event, Event::Tick | Event::WorkerTick { .. });
            self.schedule(id, boot, u64::from(is_tick), event);
        }
    }

    /// Whether the consensus plane of a node stands still.
    pub(crate) fn is_paused(&self, id: NodeId) -> bool {
        self.at(id).paused_until_ns[0] > 0
    }

    /// Calls the replica of a running node, then does what it wants done. Whatever comes to a node whose
    /// consensus plane stands still is held until it goes on: nobody calls that replica.
    pub(crate) fn with<R>(&mut self, id: NodeId, call: impl FnOnce(&mut Replica, u64) -> R) -> R {
        assert!(!self.is_paused(id), "the replica of {id} is called in a pause");
        self.settle(id);
        let monotonic_ns = self.monotonic_ns(id);
        let result = call(&mut self.node(id).running_mut().replica, monotonic_ns);
        self.pump(id);
        result
    }

    /// Whether no client that is new can come to a node.
    pub(crate) fn do_accepts_fail(&self, id: NodeId) -> bool {
        self.now_ns < self.at(id).accepts_fail_until_ns
    }

    pub(crate) fn monotonic_ns(&self, id: NodeId) -> u64 {
        self.at(id).clock.monotonic_ns(self.now_ns)
    }

    pub(crate) fn chance(&mut self, per_thousand: u32) -> bool {
        per_thousand > 0 && self.random.u32(0..1000) < per_thousand
    }

    /// One of the nodes, members or not, running or not.
    pub(crate) fn any(&mut self) -> NodeId {
        NodeId(self.random.u64(1..=self.nodes.len() as u64))
    }

    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        self.note_of(Kind::Other, line);
    }

    pub(crate) fn note_of(&mut self, kind: Kind, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.tell(self.now_ns, kind, &line());
        }
    }

    /// Something that a node does itself, some time later, if its process still runs then.
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

    /// Something that happens to no node.
    pub(crate) fn schedule_world(&mut self, after_ns: u64, event: Event) {
        self.schedule(NodeId(0), None, after_ns, event);
    }

    /// The next step of a worker on the same request: now, or after other things.
    pub(crate) fn next_step(&mut self, id: NodeId, event: Event) {
        let most_ns = self.weather.step_ns;
        if most_ns == 0 {
            self.happen(id, event);
        } else {
            let after_ns = self.random.u64(0..=most_ns);
            self.schedule_own(id, after_ns, event);
        }
    }

    /// Puts something on a link between nodes. A cut loses what is sent; what was sent before
    /// still comes.
    pub(crate) fn send(&mut self, from: NodeId, to: NodeId, event: &Event) {
        let plane = event.plane().expect("a message is for a node");
        if to.0 == 0 || to.0 > self.nodes.len() as u64 {
            return;
        }
        if self.links.is_cut(from, to, plane) {
            return self.note_of(event.kind(), || format!("{from} to {to}, {plane:?}: cut"));
        }
        if self.chance(self.weather.lost) {
            self.summary.messages_lost += 1;
            return self.note_of(event.kind(), || format!("{from} to {to}, {plane:?}: lost"));
        }
        let copies = 1 + u32::from(self.chance(self.weather.doubled));
        self.summary.messages_doubled += u64::from(copies - 1);
        for _ in 0..copies {
            let mut after_ns = self.link_ns();
            let slow_ns = self.links.slow_ns(from, to);
            let to = self.astray(from, to, event);
            if slow_ns > 0 {
                self.summary.messages_slow += 1;
                after_ns += self.random.u64(slow_ns - slow_ns / 8..=slow_ns);
            }
            let is_late = self.chance(self.weather.late);
            let late_ns = if is_late { self.random.u64(0..self.weather.late_ns) } else { 0 };
            let era = self.restores.era;
            let addressed = Addressed { to, boot: None, event: event.clone(), late_ns, era };
            self.queue.push(self.now_ns + after_ns + late_ns, addressed);
        }
    }

    /// To whom a message comes: to whom it is for, nearly always.
    fn astray(&mut self, from: NodeId, to: NodeId, event: &Event) -> NodeId {
        let may = matches!(event, Event::Raft { .. });
        if !may || !self.chance(self.weather.astray) {
            return to;
        }
        let other = self.any();
        let is_astray = other != to && other != from;
        self.summary.messages_astray += u64::from(is_astray);
        if is_astray { other } else { to }
    }

    /// How long a message takes on a link.
    pub(crate) fn link_ns(&mut self) -> u64 {
        let (least, most) = self.weather.delay_ns;
        self.random.u64(least..=most)
    }

    /// The next event, if it is due by `end_ns`. `false` when there is none.
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
            if let Event::Arrive { asker, .. } = event {
                self.arrive_nowhere(to, asker);
            }
            return true;
        };
        if boot.is_some_and(|boot| boot != running.identity.boot) {
            return true;
        }
        // What a peer of an ended history sent came over a connection that its hello did not open here.
        if boot.is_none() && era != self.restores.era && !matches!(event, Event::Arrive { .. }) {
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
            self.note_event(to, event);
        }
    }

    fn note_event(&mut self, to: NodeId, event: &Event) {
        match event {
            // Too many, and what follows from them is told.
            Event::Tick
            | Event::WorkerTick { .. }
            | Event::Share
            | Event::Ping { .. }
            | Event::Pong { .. } => {}
            Event::Raft { from, bytes, .. } => {
                let message = epicepoch_wire::raft_message::RaftMessage::decode(bytes);
                self.note(|| format!("{to} receives from {from}: {message:?}"));
            }
            Event::Ask { confirm, .. } => {
                let line = || format!("{to} asks for term {}: {confirm:?}", confirm.term);
                self.note_of(event.kind(), line);
            }
            event if event.plane().is_none() => {
                self.note_of(event.kind(), || format!("world: {event:?}"));
            }
            event => self.note_of(event.kind(), || format!("{to} {event:?}")),
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
            Event::Raft { from, run, bytes } => self.receive(id, from, run, &bytes),
            Event::Closed { peer } => self.closed(id, peer),
            Event::Introduced { from, boot, .. } => self.introduced(id, from, boot, event),
            Event::Ordered { order } => self.ordered(id, order),
            Event::Depart => self.depart(id),
            Event::Ping { from, boot, since, ping } => self.ping(id, from, boot, since, ping),
            Event::Pong { from, run, boot, since, pong } => {
                self.pong(id, (from, run), boot, since, pong);
            }
            Event::Arrive { worker, asker, count } => self.arrive(id, worker, asker, count),
            Event::Turn { worker } => self.turn(id, worker),
            Event::Ask { confirm, published } => self.ask(id, confirm, &published),
            Event::Confirm { from, confirm } => self.next_step(id, Event::Load { from, confirm }),
            Event::Load { from, confirm } => self.load(id, from, &confirm),
            Event::Send { to, reply } => {
                let run = self.at(id).run();
                self.send(id, to, &Event::Reply { from: id, run, reply });
            }
            Event::Reply { from, run, reply } => {
                let known = self.at(id).running().shared.positions();
                let is_checked = self.checks_positions();
                if is_checked && known.check(from, run.boot, run.began).is_err() {
                    self.summary.refusals += 1;
                } else {
                    self.reply(id, from, reply);
                }
            }
            Event::Allocate { worker } => self.allocate(id, worker),
            Event::Answer { request, told } => self.answer(id, request, told),
            Event::WorkerTick { worker } => self.worker_tick(id, worker),
            Event::Client { .. }
            | Event::GiveUp { .. }
            | Event::Told { .. }
            | Event::Fault
            | Event::Operate
            | Event::Strike { .. }
            | Event::Divide { .. }
            | Event::End { .. } => self.happen_outside(event),
        }
    }

    fn happen_outside(&mut self, event: Event) {
        match event {
            Event::Client { client } => self.client_asks(client),
            Event::GiveUp { asker } => self.client_gives_up(asker),
            Event::Told { asker, told, by } => self.client_is_told(asker, told, by),
            Event::Fault => self.fault(),
            Event::Operate => self.operate(),
            Event::Strike { node } => self.strike(node),
            Event::Divide { node, from, planes } => self.divide(node, from, planes),
            Event::End { end } => self.end(end),
            event => unreachable!("{event:?} is a node's"),
        }
    }

    /// What every node is, for people.
    pub(crate) fn standing(&self) -> String {
        let node = |node: &Node| {
            let status = node.running.as_ref().map(|running| running.replica.status());
            format!("\nnode {}: {status:?}", node.id)
        };
        self.nodes.iter().map(node).collect()
    }

    /// Counts of something by its name.
    pub(crate) fn count(&mut self, what: &'static str) {
        let counts: &mut BTreeMap<&'static str, u64> = &mut self.summary.faults;
        *counts.entry(what).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Share;
    use crate::operators::Order;
    use epicepoch_wire::Term;

    /// Three nodes that run under faults, of which none is drawn.
    fn three() -> World {
        let mut world = World::new(1, 3, 0, None);
        world.nemesis = Nemesis::idle();
        world.ids().for_each(|id| world.start(id));
        world.live_until(SECOND, None).expect("nothing is wrong");
        world
    }

    #[test]
    fn a_consensus_plane_that_stands_still_does_nothing_whoever_starts_asks_or_hangs_up() {
        let mut world = three();
        let (paused, other) = (NodeId(2), NodeId(1));
        world.node(paused).running_mut().shares.push_back(Share::Raise(Term(99)));
        world.pause(paused, Plane::Raft.threads(), 10 * SECOND);
        world.crash(other);
        world.close(other);
        world.start(other);
        world.order(paused, Order::HandOver);
        world.live_until(9 * SECOND, None).expect("nothing is wrong");
        assert_eq!(world.at(paused).running().shares.len(), 1, "it was in the middle of a call");
        assert!(!world.summary.faults.contains_key("handover asked"));
        world.live_until(12 * SECOND, None).expect("nothing is wrong");
        assert!(world.at(paused).running().shares.is_empty());
        assert_eq!(world.at(paused).running().seen.promise.load(), Term(99));
        assert!(world.summary.faults.contains_key("handover asked"), "it is read now");
    }

    #[test]
    fn who_starts_elsewhere_is_known_once_the_peer_goes_on_and_a_link_has_come_back() {
        for is_cut in [false, true] {
            let mut world = three();
            let (moved, peer) = (NodeId(1), NodeId(2));
            let knows = |world: &World, who: NodeId, of: NodeId| {
                let members = world.at(who).running().shared.published().members.clone();
                members[&of] == world.at(of).introduction()
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
