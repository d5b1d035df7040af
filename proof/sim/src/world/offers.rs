//! Checks of offers of leadership (S12): to which voters a leader makes one before they have
//! everything, and which offers their receivers follow. To follow an offer is to depose the leader.
//! If the election is then lost, no node leads until another one.

use std::collections::BTreeMap;

use epicepoch_core::admin::Command;
use epicepoch_core::replica::Outgoing;
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::{LogIndex, NodeId, Term};

use crate::event::{AdminCommand, End, Event};
use crate::history::Invariant;
use crate::parameters::{ELECTION_TICKS, MS, TICK_NS};
use crate::plane::Turn;
use crate::plant::Plant;
use crate::world::World;

/// For how long a leader that has given back waits for its successor, nanoseconds.
const WAIT_NS: u64 = ELECTION_TICKS as u64 / 2 * TICK_NS;
/// The slowest write of a disk that counts as fast, in milliseconds and in ticks.
const FAST_MS: u16 = 20;
const FAST_TICKS: u64 = FAST_MS as u64 * MS / TICK_NS;
/// Ticks after a late one for which a process follows no offer.
const AFTER_LATE_TICKS: u64 = 2;
/// This many of a thousand successors are paused while they are asked, in runs whose mix has pauses
/// of the consensus plane.
const PAUSED_SUCCESSORS: u32 = 150;
/// The disk of this many of a thousand successors becomes slow just before they are asked, in runs
/// whose mix has faults of disks.
const SLOW_SUCCESSORS: u32 = 150;

/// An entry of a log, and the term of the offer that names it. The index is 0 if it names none.
#[derive(Clone, Copy, Debug)]
struct Named {
    term: Term,
    last: (LogIndex, Term),
}

/// What is known of the offers that one process has read, and of its peers.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    /// The offers that the process has read in the newest term and in the one before.
    read: Vec<Named>,
    /// For each peer, the last entry that it has acknowledged to this process, with the term.
    acked: BTreeMap<NodeId, (Term, LogIndex)>,
    /// The last tick that came later than a leader waits.
    late_tick: Option<u64>,
}

impl World {
    /// The tick of a process comes. The one before was at `before_ns`, by its monotonic clock.
    pub(crate) fn see_tick(&mut self, id: NodeId, before_ns: u64) {
        let running = self.node(id).running_mut();
        if running.ticks > 1 && running.ticked_ns.saturating_sub(before_ns) > WAIT_NS {
            running.offers.late_tick = Some(running.ticks);
        }
    }

    /// A process is about to handle a message. In the same step, it may offer leadership because of
    /// an acknowledgement, or campaign because of an offer.
    pub(crate) fn see_arrival(&mut self, id: NodeId, from: NodeId, message: &RaftMessage) {
        let &RaftMessage { kind, to, term, index, log_term, reject, .. } = message;
        if to != id {
            // The process refuses what is meant for another one.
            return;
        }
        let offers = &mut self.node(id).running_mut().offers;
        if kind == MessageKind::AppendResponse && !reject {
            let acked = offers.acked.entry(from).or_default();
            *acked = (*acked).max((term, index));
        }
        if kind == MessageKind::TimeoutNow {
            // The votes that an offer of the term before made it ask for may not have left yet.
            offers.read.retain(|known| known.term.0 + 1 >= term.0);
            offers.read.push(Named { term, last: (index, log_term) });
        }
    }

    /// A process whose term was `before` has handled a message. If this was an offer, the process
    /// may have followed it.
    pub(crate) fn see_followed(&mut self, id: NodeId, message: &RaftMessage, before: Term) {
        let now = self.at(id).running().replica().status().term;
        let is_offer = message.kind == MessageKind::TimeoutNow;
        if is_offer && before <= message.term && now > message.term {
            self.count("offer of leadership followed");
            self.check_followed(id, message);
        }
    }

    /// A process has just followed an offer. It was not paused a moment ago, and its disk is free
    /// if the offer came right behind its entry.
    fn check_followed(&mut self, id: NodeId, offer: &RaftMessage) {
        let idle_ns = self.monotonic_ns(id).saturating_sub(self.at(id).running().ticked_ns);
        let running = self.at(id).running();
        let is_after_late =
            running.offers.late_tick.is_some_and(|late| running.ticks - late < AFTER_LATE_TICKS);
        if running.ticks > 0 && idle_ns > WAIT_NS || is_after_late {
            let what = format!("{id} was paused, and follows an offer that may be old: {offer:?}");
            self.history.violate(Invariant::CaughtUp, || what);
        }
        let waited = self.at(id).running().handovers.waited(self.at(id).running().ticks);
        let is_behind = self.durable_last(id).is_some_and(|durable| durable < offer.index);
        let is_disk = self.plant().is_some_and(Plant::is_in_disk);
        if is_behind && waited > FAST_TICKS && !is_disk {
            let what = format!("{id} follows {offer:?} with a write that is {waited} ticks old");
            self.history.violate(Invariant::CaughtUp, || what);
        }
    }

    /// A process asks for votes because of an offer: the library marks the request. An offer that
    /// the process has read names the last entry of its log.
    pub(crate) fn check_vote_asked(&mut self, id: NodeId, out: &Outgoing) {
        let request = &out.message;
        if request.kind != MessageKind::RequestVote || request.context.is_empty() {
            return;
        }
        let last = (request.index, request.log_term);
        let is_of = |offer: &Named| {
            offer.term.0 + 1 == request.term.0
                && (offer.last.0 == LogIndex(0) || offer.last == last)
        };
        let read = &self.at(id).running().offers.read;
        if !read.iter().any(is_of) {
            let what = format!("{id} campaigns with {last:?} as its last entry, after {read:?}");
            self.history.violate(Invariant::CaughtUp, || what);
        }
    }

    /// A leader offers leadership. A successor that has not acknowledged the last entry has named a
    /// fast disk.
    pub(crate) fn check_offer(&mut self, id: NodeId, out: &Outgoing) {
        let (to, RaftMessage { kind, term, index, .. }) = (out.to, &out.message);
        let running = self.at(id).running();
        let acked = running.offers.acked.get(&to).filter(|(acked, _)| acked == term);
        let has_all = acked.is_some_and(|(_, acked)| acked >= index);
        if *kind != MessageKind::TimeoutNow || *index == LogIndex(0) || has_all {
            return;
        }
        // A busy plane may know more of the disk by the time that it sends this.
        if running.turn == Turn::Late {
            return;
        }
        let slowest = running.handovers.slowest_of(to, running.ticked_ns);
        if slowest.is_none_or(|ms| ms > FAST_MS) {
            let what = format!("{id} offers leadership to {to} before it has {index}: {slowest:?}");
            self.history.violate(Invariant::CaughtUp, || what);
        }
    }

    /// A leader hands over to `to`. In some runs that process is often paused at this moment, so
    /// that the offer waits. The other draws of the run stay as they are.
    pub(crate) fn pause_successor(&mut self, to: NodeId) {
        if self.is_quiet() || !self.has_consensus_pauses() {
            return;
        }
        let mut random = fastrand::Rng::with_seed(self.seed() ^ self.now_ns.rotate_left(32));
        if random.u32(0..1_000) >= PAUSED_SUCCESSORS {
            return;
        }
        let lasts_ns = random.u64(20 * MS..=self.nemesis.lasts_ns.max(20 * MS));
        let after_ns = random.u64(0..=2 * self.conditions.delay_ns.1);
        self.schedule_world(after_ns, Event::PauseConsensus { node: to, lasts_ns });
    }

    /// An operator is about to ask `leader` to hand over. In some runs the disk of a voter becomes
    /// slow instead, and gets an entry to write. The operator asks for a handover to this voter
    /// while it writes, mostly before the leader knows of the slow disk. Returns whether this is
    /// so. The other draws of the run stay as they are.
    pub(crate) fn slow_successor(&mut self, leader: NodeId) -> bool {
        let mut random = fastrand::Rng::with_seed(self.seed() ^ self.now_ns.rotate_left(40));
        if !self.has_disk_faults() || random.u32(0..1_000) >= SLOW_SUCCESSORS {
            return false;
        }
        let published = self.at(leader).running().shared.published();
        let others: Vec<NodeId> = published
            .voters
            .iter()
            .map(|(voter, _)| voter)
            .filter(|voter| *voter != leader && self.at(*voter).disk.is_sound())
            .collect();
        if published.grant.is_none() || others.is_empty() {
            return false;
        }
        let to = others[random.usize(0..others.len())];
        let after_ns = random.u64(FAST_TICKS + 1..=2 * FAST_TICKS + 4) * TICK_NS;
        let write_ns = after_ns + random.u64(10 * MS..=2 * WAIT_NS);
        self.count("disk of a successor slow");
        self.record(|| format!("{to}: disk slow for one write of {} ms", write_ns / MS));
        self.node(to).disk.write_ns = write_ns;
        self.schedule_world(after_ns, Event::End { end: End::Disk(to) });
        // Without anything to hand over, the leader proposes an empty entry (S17).
        self.command(leader, Command::Transfer(Some(leader)));
        let command = AdminCommand::HandOverTo(to);
        self.schedule_own(leader, after_ns, Event::Admin { command });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::SECOND;
    use crate::plane::Plane;

    /// Three running nodes, of which one leads. Returns the leader and another node.
    fn three() -> (World, NodeId, NodeId) {
        let mut world = World::new(1, 3, 0, None);
        for id in world.ids() {
            world.start(id);
        }
        world.live_until(5 * SECOND, None).expect("nothing is wrong");
        let leader = world.ids().find(|id| world.at(*id).holds_grant()).expect("one leads");
        let other = world.ids().find(|id| *id != leader).expect("there are three");
        (world, leader, other)
    }

    fn broken(world: &World) -> Option<Invariant> {
        world.history.violation.as_ref().map(|violation| violation.invariant)
    }

    fn message(kind: MessageKind, term: u64, index: u64) -> RaftMessage {
        let message = RaftMessage::plain(kind, NodeId(1), Term(term));
        RaftMessage { index: LogIndex(index), log_term: Term(1), ..message }
    }

    /// Whether a check finds something wrong with an offer that a process follows. `set` changes
    /// what is known of the process.
    fn followed(set: impl FnOnce(&mut World, NodeId)) -> Option<Invariant> {
        let (mut world, _, other) = three();
        let last = world.durable_last(other).expect("it has a log").0;
        set(&mut world, other);
        world.check_followed(other, &message(MessageKind::TimeoutNow, 9, last + 1));
        broken(&world)
    }

    #[test]
    fn a_paused_process_that_follows_an_offer_is_found() {
        let tick = |world: &World, id| world.at(id).running().ticks;
        assert_eq!(followed(|_, _| {}), None);
        let since = |world: &mut World, id, ns| {
            let now_ns = world.monotonic_ns(id);
            world.node(id).running_mut().ticked_ns = now_ns - ns;
        };
        assert_eq!(followed(|world, id| since(world, id, WAIT_NS)), None);
        let late = followed(|world, id| since(world, id, WAIT_NS + 1));
        assert_eq!(late, Some(Invariant::CaughtUp));
        for (ago, found) in [(1, Some(Invariant::CaughtUp)), (2, None)] {
            let after = followed(|world, id| {
                let late = tick(world, id) - ago;
                world.node(id).running_mut().offers.late_tick = Some(late);
            });
            assert_eq!(after, found, "{ago} ticks after a late one");
        }
        let (mut world, _, other) = three();
        let before_ns = world.at(other).running().ticked_ns - WAIT_NS;
        world.see_tick(other, before_ns);
        assert_eq!(world.at(other).running().offers.late_tick, None);
        world.see_tick(other, before_ns - 1);
        assert_eq!(world.at(other).running().offers.late_tick, Some(tick(&world, other)));
    }

    #[test]
    fn a_process_with_an_old_write_that_follows_an_offer_right_behind_its_entry_is_found() {
        let waits = |world: &mut World, id, ticks: u64| {
            let running = world.node(id).running_mut();
            let since = running.ticks - ticks;
            running.handovers.wrote(u64::MAX, since);
        };
        assert_eq!(followed(|world, id| waits(world, id, FAST_TICKS)), None);
        let old = followed(|world, id| waits(world, id, FAST_TICKS + 1));
        assert_eq!(old, Some(Invariant::CaughtUp));
        let (mut world, _, other) = three();
        waits(&mut world, other, FAST_TICKS + 1);
        let last = world.durable_last(other).expect("it has a log").0;
        world.check_followed(other, &message(MessageKind::TimeoutNow, 9, last));
        assert_eq!(broken(&world), None, "the leader has waited for this disk");
    }

    #[test]
    fn a_campaign_without_the_entry_that_the_offer_names_is_found() {
        let asked = |named: u64, term: u64| {
            let (mut world, leader, other) = three();
            let offer = RaftMessage { to: other, ..message(MessageKind::TimeoutNow, 1, named) };
            world.see_arrival(other, leader, &offer);
            // Neither an offer to another node nor a later one counts for this campaign.
            let astray = RaftMessage { to: leader, ..message(MessageKind::TimeoutNow, 9, 8) };
            world.see_arrival(other, leader, &astray);
            let later = RaftMessage { to: other, ..message(MessageKind::TimeoutNow, 2, 8) };
            world.see_arrival(other, leader, &later);
            let context = b"CampaignTransfer".to_vec();
            let request = RaftMessage { context, ..message(MessageKind::RequestVote, term, 7) };
            world.check_vote_asked(other, &Outgoing { to: leader, message: request });
            broken(&world)
        };
        assert_eq!(asked(7, 2), None);
        assert_eq!(asked(0, 2), None, "the offer of a leader that steps down names no entry");
        assert_eq!(asked(6, 2), Some(Invariant::CaughtUp), "the leader has gone on");
        assert_eq!(asked(8, 2), Some(Invariant::CaughtUp), "the entry is missing");
        assert_eq!(asked(7, 3), Some(Invariant::CaughtUp), "it is the offer of another term");
    }

    #[test]
    fn an_offer_to_a_slow_disk_that_lacks_the_last_entry_is_found() {
        let offered = |acked: (u64, u64), slowest: Option<u16>| {
            let (mut world, leader, other) = three();
            let ack = RaftMessage {
                to: leader,
                ..message(MessageKind::AppendResponse, acked.0, acked.1)
            };
            let running = world.node(leader).running_mut();
            running.offers.acked.clear();
            running.handovers.names_slowest(other, running.ticked_ns, slowest);
            world.see_arrival(leader, other, &ack);
            let offer = message(MessageKind::TimeoutNow, 5, 7);
            world.check_offer(leader, &Outgoing { to: other, message: offer });
            broken(&world)
        };
        assert_eq!(offered((5, 6), Some(FAST_MS)), None);
        assert_eq!(offered((5, 6), Some(FAST_MS + 1)), Some(Invariant::CaughtUp));
        assert_eq!(offered((5, 6), None), Some(Invariant::CaughtUp), "the disk is not known");
        assert_eq!(offered((5, 7), None), None, "it has the entry");
        assert_eq!(offered((4, 7), None), Some(Invariant::CaughtUp), "an entry of another term");
    }

    #[test]
    fn a_successor_that_is_paused_ignores_the_offer_that_waited() {
        let (mut world, leader, other) = three();
        world.pause(other, Plane::Raft.threads(), SECOND / 2);
        let term = world.at(leader).running().shared.published().term;
        world.with(leader, |replica, now| {
            replica.hand_over(now, Some(other), epicepoch_core::replica::HandOver::Asked)
        });
        let until_ns = world.now_ns + SECOND;
        world.live_until(until_ns, None).expect("nothing is wrong");
        let read = &world.at(other).running().offers.read;
        assert!(read.iter().any(|offer| offer.term == term), "the offer has arrived: {read:?}");
        assert!(world.at(leader).holds_grant(), "the leader answers again");
        assert_eq!(world.at(leader).running().shared.published().term, term);
        assert!(!world.summary.faults.contains_key("offer of leadership followed"));
    }
}
