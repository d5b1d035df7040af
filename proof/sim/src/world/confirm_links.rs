//! The confirm links of each worker. In runs with
//! [`Feature::ConfirmLinks`](super::features::Feature::ConfirmLinks) each link connects, ends
//! and fills up by itself. A worker whose links reach no quorum borrows a link of a sibling worker,
//! as the core's [`Routing`](epicepoch_core::confirm::Routing) decides. Each step of that is an
//! event of the worker that takes it, and any worker may be paused meanwhile. In other runs all
//! links are always connected.

use std::sync::Arc;

use epicepoch_core::confirm::{Begun, LinkState, Receiver, Routing};
use epicepoch_core::publication::Published;
use epicepoch_wire::confirm::{Confirm, ConfirmReply};
use epicepoch_wire::{NodeId, StorePosition, WorkerId};

use crate::event::{End, Event, PeerHello};
use crate::history::asking::Asked;
use crate::node::{Running, Worker, store_in};
use crate::node_set::NodeSet;
use crate::parameters::{MS, NODES_MAX, SECOND, WORKERS};
use crate::plant::Plant;
use crate::world::World;
use crate::world::features::{LINKLESS, SALTS};

/// Time between two looks for late answers, nanoseconds.
const LATE_LOOK_NS: u64 = MS;
/// For the checker: an answer that takes longer is late, nanoseconds.
const LATE_NS: u64 = 25 * MS;

/// The faults of the confirm links.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfirmLinks {
    /// Whether links connect and end by themselves in this run.
    is_on: bool,
    /// The links of each worker of each node that lose everything and cannot connect.
    broken: [[NodeSet; WORKERS]; NODES_MAX],
    /// The links of each worker of each node that take no question: a link that is asked to send
    /// one ends.
    full: [[NodeSet; WORKERS]; NODES_MAX],
    /// The links that stay broken, also when a fault that broke them before ends.
    lost: [[NodeSet; WORKERS]; NODES_MAX],
}

impl ConfirmLinks {
    pub(crate) fn new(is_on: bool) -> Self {
        Self { is_on, ..Self::default() }
    }

    /// The links that a worker has when its process starts.
    fn at_start(&self) -> NodeSet {
        if self.is_on { NodeSet::default() } else { NodeSet::ALL }
    }

    /// Whether a broken link loses a message from `from` to `to`.
    pub(crate) const fn is_lost(&self, from: NodeId, to: NodeId, event: &Event) -> bool {
        match event {
            Event::Confirm { link, .. } => self.broken[at(from)][*link].contains(to),
            Event::Reply { link, .. } => self.broken[at(to)][*link].contains(from),
            _ => false,
        }
    }

    /// Breaks all links of a worker for good.
    const fn lose(&mut self, node: NodeId, worker: usize) {
        self.lost[at(node)][worker] = NodeSet::ALL;
        self.broken[at(node)][worker] = NodeSet::ALL;
    }

    const fn end(&mut self, node: NodeId, worker: usize, nodes: NodeSet) {
        self.broken[at(node)][worker].remove(nodes);
        self.broken[at(node)][worker].add(self.lost[at(node)][worker]);
        self.full[at(node)][worker].remove(nodes);
    }
}

const fn at(node: NodeId) -> usize {
    node.0 as usize - 1
}

impl Worker {
    /// Tells the siblings which links are connected, as the server does after every change.
    fn tell_links(&self) {
        self.links_up.set(self.links.iter());
    }
}

impl World {
    /// A process has started. In runs with this feature its links, and those of the others to it,
    /// connect one by one.
    pub(crate) fn start_links(&mut self, id: NodeId) {
        let links = self.confirm_links.at_start();
        for worker in &mut self.node(id).running_mut().workers {
            worker.links = links;
            worker.tell_links();
        }
        if !self.confirm_links.is_on {
            return;
        }
        for peer in self.ids().filter(|peer| *peer != id) {
            for worker in 0..WORKERS {
                self.connect_later(id, worker, NodeSet::of(peer));
                self.connect_later(peer, worker, NodeSet::of(id));
            }
        }
    }

    /// A process has ended, and the links of its peers end with it.
    pub(crate) fn end_links(&mut self, id: NodeId) {
        if self.confirm_links.is_on {
            for peer in self.ids().filter(|peer| *peer != id) {
                (0..WORKERS).for_each(|worker| self.end_later(peer, worker, NodeSet::of(id)));
            }
        }
    }

    fn connect_later(&mut self, id: NodeId, worker: usize, nodes: NodeSet) {
        if self.at(id).running.is_some() {
            let most_ns = if self.random.bool() { CONNECT_NS.0 } else { CONNECT_NS.1 };
            let after_ns = self.random.u64(0..=most_ns);
            self.schedule_own(id, after_ns, Event::LinksConnected { worker, nodes });
        }
    }

    fn end_later(&mut self, id: NodeId, worker: usize, nodes: NodeSet) {
        if self.at(id).running.is_some() {
            let after_ns = self.link_ns();
            self.schedule_own(id, after_ns, Event::LinksEnded { worker, nodes });
        }
    }

    /// Links have ended. As in the server, they connect again: the process at the other end may
    /// have ended and started again before this worker noticed.
    pub(crate) fn links_ended(&mut self, id: NodeId, worker: usize, nodes: NodeSet) {
        let own = self.worker(id, worker);
        own.links.remove(nodes);
        own.tell_links();
        self.ask_rest(id, worker);
        self.connect_later(id, worker, nodes);
    }

    /// Links have connected, unless they are broken or the process at the other end has ended. Each
    /// new link asks the newest round again.
    pub(crate) fn links_connected(&mut self, id: NodeId, worker: usize, nodes: NodeSet) {
        let broken = self.confirm_links.broken[at(id)][worker];
        let links = self.at(id).running().workers[worker].links;
        for peer in self.ids().filter(|peer| *peer != id && nodes.contains(*peer)) {
            let can_connect = !broken.contains(peer) && self.at(peer).running.is_some();
            if !can_connect || links.contains(peer) {
                continue;
            }
            let own = self.worker(id, worker);
            own.links.add(NodeSet::of(peer));
            own.tell_links();
            let newest = own.sequencer.newest();
            let store = store_in(peer, self.restores.era);
            if let Some(begun) = newest.filter(|begun| begun.asks(peer, store)) {
                self.summary.rounds_asked_again += 1;
                self.send_confirm(id, worker, peer, begun.confirm);
                let own = self.worker(id, worker);
                if own.asked.round == begun.confirm.round {
                    own.asked.nodes.add(NodeSet::of(peer));
                }
            }
        }
    }

    /// A worker asks the voters of its round.
    pub(crate) fn ask(&mut self, id: NodeId, confirm: Confirm, published: &Arc<Published>) {
        let worker = confirm.worker.0 as usize;
        let begun = Begun { confirm, published: published.clone() };
        let (now_ns, links) = (self.monotonic_ns(id), self.link_states(id, worker));
        let (mut asked, mut borrowed) = (NodeSet::default(), NodeSet::default());
        let send = |node| asked.add(NodeSet::of(node));
        let borrow = |node| borrowed.add(NodeSet::of(node));
        let own = self.worker(id, worker);
        let is_part = own.routing.ask(&begun, now_ns, links, send, borrow);
        let reached = self.reached(id, worker, published);
        self.history.check_asked(id, published, reached, asked);
        let own = self.worker(id, worker);
        // The simulator may ask an older round after a newer one, which no worker does. The checker
        // then does not judge the newer round: all voters within reach count as asked.
        if own.asked.round <= confirm.round {
            own.asked = Asked::begun(confirm.round, asked);
        } else {
            own.asked.nodes.add(reached);
        }
        for node in asked.iter() {
            self.send_confirm(id, worker, node, confirm);
        }
        if is_part && !std::mem::replace(&mut self.worker(id, worker).is_looking, true) {
            self.look_later(id, worker);
        }
        for node in borrowed.iter() {
            self.borrow(id, worker, node, confirm);
        }
        if self.is_planted(Plant::CheckedAtArrival) {
            self.forge(id, &confirm, published);
        }
    }

    /// The links of a worker, as the core's routing sees them.
    fn link_states(
        &self,
        id: NodeId,
        worker: usize,
    ) -> impl Iterator<Item = (LinkState, NodeId)> + Clone + use<> {
        let (links, era) = (self.at(id).running().workers[worker].links, self.restores.era);
        self.ids().filter(move |peer| *peer != id).map(move |node| {
            let is_up = links.contains(node);
            (LinkState { node, store: store_in(node, era), is_up }, node)
        })
    }

    fn look_later(&mut self, id: NodeId, worker: usize) {
        let after_ns = LATE_LOOK_NS + self.random.u64(0..=LATE_LOOK_NS);
        self.schedule_own(id, after_ns, Event::LookForLate { worker });
    }

    /// A worker looks for late answers, as in the server, until none is missing or all voters have
    /// been asked.
    pub(crate) fn look_for_late(&mut self, id: NodeId, worker: usize) {
        let now_ns = self.monotonic_ns(id);
        let own = self.worker(id, worker);
        let oldest_ns = own.sequencer.oldest_ns().filter(|_| own.routing.is_part());
        let is_late = oldest_ns.map(|begun_ns| own.routing.is_late(begun_ns, now_ns));
        match is_late {
            Some(false) => return self.look_later(id, worker),
            Some(true) => self.ask_rest(id, worker),
            None => {}
        }
        self.worker(id, worker).is_looking = false;
    }

    /// A worker asks the voters that its newest round has not asked, and those of an older round
    /// that has other voters.
    pub(crate) fn ask_rest(&mut self, id: NodeId, worker: usize) {
        let (now_ns, links) = (self.monotonic_ns(id), self.link_states(id, worker));
        let other = self.worker(id, worker).sequencer.newest_of_other_voters();
        if let Some(other) = other {
            let mut asked = NodeSet::default();
            Routing::ask_all(&other, links.clone(), |node| asked.add(NodeSet::of(node)));
            for node in asked.iter() {
                self.send_confirm(id, worker, node, other.confirm);
            }
        }
        let own = self.worker(id, worker);
        let Some(newest) = own.sequencer.newest() else { return };
        let mut asked = NodeSet::default();
        if own.routing.ask_rest(&newest, now_ns, links, |node| asked.add(NodeSet::of(node))) {
            self.summary.rounds_widened += 1;
        }
        for node in asked.iter() {
            self.send_confirm(id, worker, node, newest.confirm);
        }
        let own = self.worker(id, worker);
        if own.asked.round == newest.confirm.round {
            own.asked.nodes.add(asked);
        }
    }

    /// The voters that connected links of a worker lead to.
    fn reached(&self, id: NodeId, worker: usize, published: &Published) -> NodeSet {
        let mut reached = NodeSet::default();
        for (LinkState { node, store, is_up }, _) in self.link_states(id, worker) {
            if is_up && published.voters.position(node, store).is_some() {
                reached.add(NodeSet::of(node));
            }
        }
        reached
    }

    /// Checks at a tick of a worker that its newest round has asked all voters if a round has no
    /// answer for 25 ms. The worker has another 25 ms for that, until the next tick.
    pub(crate) fn check_late(&mut self, id: NodeId, worker: usize) {
        let now_ns = self.monotonic_ns(id);
        let own = &self.at(id).running().workers[worker];
        let (oldest_ns, newest) = (own.sequencer.oldest_ns(), own.sequencer.newest());
        let (Some(oldest_ns), Some(newest)) = (oldest_ns, newest) else { return };
        let mut missing = self.reached(id, worker, &newest.published);
        missing.remove(own.asked.nodes);
        // The round may have begun, and its questions are the next step.
        let is_asked = own.asked.round == newest.confirm.round;
        let is_late = now_ns.saturating_sub(oldest_ns) >= LATE_NS;
        let own = self.worker(id, worker);
        if own.asked.tick(is_asked && is_late && missing != NodeSet::default()) {
            let asked = own.asked;
            self.history.asks_too_few(id, WorkerId(worker as u32), asked);
        }
    }

    /// Sends a confirm over the link of one worker. If the link is full, the confirm is lost and
    /// the link ends.
    fn send_confirm(&mut self, id: NodeId, link: usize, to: NodeId, confirm: Confirm) {
        self.monitor.asks(id, &confirm);
        if self.confirm_links.full[at(id)][link].contains(to) {
            self.count("confirm link full");
            let nodes = NodeSet::of(to);
            return self.schedule_own(id, 0, Event::LinksEnded { worker: link, nodes });
        }
        self.send(id, to, &Event::Confirm { from: id, link, confirm });
    }

    /// Passes a question to a sibling worker that may have a link to `to`.
    fn borrow(&mut self, id: NodeId, worker: usize, to: NodeId, confirm: Confirm) {
        let workers = &self.at(id).running().workers;
        let links = workers.iter().map(|worker| &worker.links_up);
        let lenders: Vec<_> = Routing::lenders(WorkerId(worker as u32), to, links).collect();
        let takes = |lender: &WorkerId| self.takes_message(id, lender.0 as usize);
        let Some(lender) = lenders.into_iter().find(takes) else { return };
        self.summary.borrowed += 1;
        self.message(id, Event::Forward { worker: lender.0 as usize, to, confirm });
    }

    /// A worker sends the question of a sibling, if its own link to `to` still is connected.
    pub(crate) fn forward(&mut self, id: NodeId, worker: usize, to: NodeId, confirm: Confirm) {
        if self.at(id).running().workers[worker].links.contains(to) {
            self.send_confirm(id, worker, to, confirm);
        } else {
            self.count("borrowed link had ended");
        }
    }

    /// An answer arrives over the link of one worker, which counts it or hands it back. It is
    /// refused if the disk of the answering node is known to be rolled back.
    pub(crate) fn reply(
        &mut self,
        id: NodeId,
        (from, hello): (NodeId, PeerHello),
        link: usize,
        reply: &ConfirmReply,
    ) {
        let mut voter = hello.boot_of(from);
        if !self.checks_positions() {
            voter.began = StorePosition(u64::MAX);
        }
        let Running { shared, workers, .. } = self.at(id).running();
        let Ok(receiver) = workers[link].routing.receiver(shared, voter, reply) else {
            self.summary.refusals += 1;
            // A late answer of an earlier process came over the connection to that process, which
            // ended with it. The link to the present process is another connection.
            let present = self.at(from).running.as_ref();
            if self.confirm_links.is_on && present.is_some_and(|it| it.identity.boot == hello.boot)
            {
                let nodes = NodeSet::of(from);
                self.schedule_own(id, 0, Event::LinksEnded { worker: link, nodes });
            }
            return;
        };
        match receiver {
            Receiver::Own => {
                let now_ns = self.monotonic_ns(id);
                self.worker(id, link).routing.handle_reply(from, reply, now_ns);
                if self.worker(id, link).sequencer.handle_reply(from, reply) {
                    self.monitor.hears(id, from, reply);
                    self.counted(id, link, reply);
                }
            }
            Receiver::Sibling(worker) => {
                let worker = worker.0 as usize;
                if self.takes_message(id, worker) {
                    self.message(id, Event::HandedBack { worker, from, reply: *reply });
                }
            }
        }
    }

    /// A worker gets the answer to a question that went over a sibling's link.
    pub(crate) fn handed_back(
        &mut self,
        id: NodeId,
        worker: usize,
        from: NodeId,
        reply: &ConfirmReply,
    ) {
        self.summary.handed_back += 1;
        if self.worker(id, worker).sequencer.handle_reply(from, reply) {
            self.monitor.hears(id, from, reply);
            self.counted(id, worker, reply);
        } else {
            self.summary.handed_back_late += 1;
        }
    }

    /// Whether the mailbox of a worker has room.
    fn takes_message(&mut self, id: NodeId, worker: usize) -> bool {
        let has_room = self.at(id).held[1 + worker].len() < MAILBOX_MAX;
        if !has_room {
            self.count("mailbox full");
        }
        has_room
    }

    /// Puts a message into the mailbox of a sibling worker.
    fn message(&mut self, id: NodeId, event: Event) {
        let after_ns = self.random.u64(0..=self.conditions.step_ns);
        self.schedule_own(id, after_ns, event);
    }

    /// In runs with this feature, breaks or fills some links of one worker for a while, or all of
    /// them.
    pub(crate) fn break_confirm_links(&mut self, node: NodeId) {
        if self.is_quiet() {
            return;
        }
        let lasts_ns = self.random.u64(20 * MS..=self.nemesis.lasts_ns);
        let worker = self.random.usize(0..WORKERS);
        let nodes =
            if self.random.bool() { NodeSet::ALL } else { NodeSet::from_bits(self.random.u16(..)) };
        let is_full = self.chance(FULL_PER_THOUSAND);
        let links = &mut self.confirm_links;
        let faulty = if is_full { &mut links.full } else { &mut links.broken };
        faulty[at(node)][worker].add(nodes);
        let what = if is_full { "confirm links full" } else { "confirm links broken" };
        self.count(what);
        self.record(|| format!("{node}: {what}, worker {worker}, {nodes:?}"));
        if !is_full {
            self.end_later(node, worker, nodes);
        }
        let end = End::ConfirmLinks(node, worker, nodes);
        self.schedule_world(lasts_ns, Event::End { end });
    }

    /// Links can connect again.
    pub(crate) fn join_confirm_links(&mut self, node: NodeId, worker: usize, nodes: NodeSet) {
        self.confirm_links.end(node, worker, nodes);
        self.connect_later(node, worker, nodes);
    }

    /// Ends every fault of confirm links. In some runs one worker of each node stays without links
    /// for good, so that it depends on its siblings.
    pub(crate) fn heal_confirm_links(&mut self) {
        if !self.confirm_links.is_on {
            return;
        }
        let is_one_without = self.is_in(LINKLESS, LINKLESS_RUNS);
        if is_one_without {
            self.count("worker without links for good");
        }
        for id in self.ids() {
            let without = self.hashed(LINKLESS + SALTS * id.0) as usize % WORKERS;
            for worker in 0..WORKERS {
                self.join_confirm_links(id, worker, NodeSet::ALL);
                if is_one_without && worker == without {
                    self.confirm_links.lose(id, worker);
                    self.end_later(id, worker, NodeSet::ALL);
                }
            }
        }
    }
}

/// Longest time until a link connects: mostly the first attempt succeeds, nanoseconds.
const CONNECT_NS: (u64, u64) = (10 * MS, SECOND);
/// This many of a thousand faults of confirm links fill the links instead of breaking them.
const FULL_PER_THOUSAND: u32 = 250;
/// At most this many events wait for a paused worker that still takes messages of its siblings. The
/// limit is low, so that it is reached.
const MAILBOX_MAX: usize = 16;
/// In one of `LINKLESS_RUNS` runs with this feature, one worker of each node has no links at the
/// end.
const LINKLESS_RUNS: u64 = 2;

#[cfg(test)]
mod tests {
    use epicepoch_wire::{BootId, Round, Term};

    use super::*;
    use crate::event::Asker;
    use crate::summary::Summary;
    use crate::world::faults::Nemesis;

    const LEADS: &str = "one of the three leads";

    /// Three nodes with a leader, and the links of both workers of the leader. No fault is
    /// scheduled. Returns the leader, too.
    fn three() -> (World, NodeId) {
        let mut world = World::new(1, 3, 0, None);
        world.nemesis = Nemesis::idle();
        world.confirm_links = ConfirmLinks::new(true);
        world.ids().for_each(|id| world.start(id));
        world.live_until(3 * SECOND, None).expect("nothing is wrong");
        world.add_clients(1);
        world.clients[0].is_waiting = true;
        let leader = world.ids().find(|id| world.at(*id).holds_grant()).expect(LEADS);
        (world, leader)
    }

    fn break_links(world: &mut World, leader: NodeId, worker: usize) {
        world.confirm_links.broken[at(leader)][worker] = NodeSet::ALL;
        world.end_later(leader, worker, NodeSet::ALL);
        let end_ns = world.now_ns + 5 * MS;
        world.live_until(end_ns, None).expect("nothing is wrong");
    }

    fn ask_worker(world: &mut World, leader: NodeId, worker: usize) {
        let asker = Asker { client: 0, attempt: 10 + worker as u64 };
        world.schedule(leader, None, MS, Event::Arrive { worker, asker, count: 1 });
    }

    fn live_on(world: &mut World, ns: u64) {
        let end_ns = world.now_ns + ns;
        world.live_until(end_ns, None).expect("nothing is wrong");
    }

    #[test]
    fn a_worker_without_links_is_answered_over_those_of_its_sibling() {
        let (mut world, leader) = three();
        break_links(&mut world, leader, 1);
        assert_eq!(world.summary.borrowed, 0, "worker 0 has links of its own");
        ask_worker(&mut world, leader, 1);
        live_on(&mut world, 50 * MS);
        assert_eq!((world.summary.requests, world.summary.answered), (1, 1));
        let Summary { borrowed, handed_back, handed_back_late, .. } = world.summary;
        assert_eq!((borrowed, handed_back, handed_back_late), (2, 2, 1), "one yes is enough");
    }

    #[test]
    fn a_paused_sibling_lends_its_link_when_it_resumes_and_then_the_answer_is_too_late() {
        let (mut world, leader) = three();
        break_links(&mut world, leader, 1);
        world.pause(leader, 1..2, 2 * SECOND);
        ask_worker(&mut world, leader, 1);
        live_on(&mut world, SECOND);
        assert_eq!((world.summary.answered, world.summary.refused), (0, 1), "in time");
        let Summary { borrowed, handed_back, .. } = world.summary;
        assert_eq!((borrowed, handed_back), (2, 0));
        live_on(&mut world, 2 * SECOND);
        let Summary { handed_back, handed_back_late, .. } = world.summary;
        assert_eq!((handed_back, handed_back_late), (2, 2), "the round has failed");
    }

    #[test]
    fn a_link_that_connects_asks_the_newest_round_again() {
        let (mut world, leader) = three();
        break_links(&mut world, leader, 0);
        break_links(&mut world, leader, 1);
        ask_worker(&mut world, leader, 1);
        live_on(&mut world, 50 * MS);
        assert_eq!((world.summary.answered, world.summary.borrowed), (0, 0), "no link at all");
        let again = world.summary.rounds_asked_again;
        world.confirm_links.end(leader, 1, NodeSet::ALL);
        world.schedule_own(leader, 0, Event::LinksConnected { worker: 1, nodes: NodeSet::ALL });
        live_on(&mut world, 50 * MS);
        assert_eq!(world.summary.answered, 1);
        assert_eq!(world.summary.rounds_asked_again, again + 2);
    }

    #[test]
    fn the_end_of_an_earlier_fault_gives_a_worker_no_link_that_is_lost_for_good() {
        let (mut world, leader) = three();
        world.confirm_links.lose(leader, 1);
        world.end_later(leader, 1, NodeSet::ALL);
        world.join_confirm_links(leader, 1, NodeSet::ALL);
        live_on(&mut world, 2 * SECOND);
        let links = world.at(leader).running().workers[1].links;
        assert!(world.ids().all(|id| !links.contains(id)));
        ask_worker(&mut world, leader, 1);
        live_on(&mut world, 50 * MS);
        assert_eq!(world.summary.answered, 1, "over the links of its sibling");
    }

    #[test]
    fn a_late_answer_of_an_earlier_process_ends_no_link_to_the_present_one() {
        let (mut world, leader) = three();
        let voter = world.ids().find(|id| *id != leader).expect("three nodes");
        let present = world.at(voter).running().identity;
        let is_up = |world: &World| world.at(leader).running().workers[0].links.contains(voter);
        let reply = ConfirmReply {
            leader,
            store: present.store,
            boot: world.at(leader).running().identity.boot,
            worker: WorkerId(0),
            term: Term(1),
            round: Round(1),
            promise: Term(1),
        };
        // This position is before what the node was heard at, so the answer is refused.
        let boot = BootId(present.boot.0 - 1);
        let hello = PeerHello { boot, began: StorePosition(0), reads: 0, needs: 0 };
        let refusals = world.summary.refusals;
        world.reply(leader, (voter, hello), 0, &reply);
        live_on(&mut world, MS);
        assert_eq!((world.summary.refusals, is_up(&world)), (refusals + 1, true));
    }

    #[test]
    fn a_full_link_ends_when_it_is_asked_to_send() {
        let (mut world, leader) = three();
        world.confirm_links.full[at(leader)] = [NodeSet::ALL; WORKERS];
        ask_worker(&mut world, leader, 1);
        live_on(&mut world, 50 * MS);
        assert_eq!(world.summary.answered, 0);
        assert!(world.summary.faults["confirm link full"] >= 2);
        world.confirm_links.full[at(leader)] = [NodeSet::default(); WORKERS];
        live_on(&mut world, 2 * SECOND);
        let others = world.ids().filter(|id| *id != leader);
        let is_up = |id: NodeId| world.at(leader).running().workers[1].links.contains(id);
        assert!(others.into_iter().all(is_up), "it has connected again");
    }
}
