//! What the world sees of handovers, for the checkers: how long the writes of a process have
//! waited, what its peers say of their disks, and when it offers leadership. The world counts and
//! times all that itself. From the core it takes only facts that other checkers check: the voters,
//! the grant, the format, the term and the last entry.

use std::collections::{BTreeMap, VecDeque};

use epicepoch_core::publication::{Identity, Published, Role};
use epicepoch_core::replica::{HandOver, Outgoing, Report};
use epicepoch_core::state::{FORMAT_OF_GIVING_BACK, Owner};
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::voter_status::VoterStatus;
use epicepoch_wire::{NodeId, Term};

use crate::history::Invariant;
use crate::history::handovers::Offer;
use crate::parameters::{ELECTION_TICKS, MS, TICK_NS};
use crate::plane::Turn;
use crate::plant::Plant;
use crate::world::World;
use crate::world::features::Feature;

/// Ticks of an election timeout.
const ELECTION: u64 = ELECTION_TICKS as u64;
/// Ticks between an event in the core and the moment in which the world has surely seen it.
const SEEN_TICKS: u64 = 2;

/// What is known of the writes and handovers of one process.
#[derive(Debug, Default)]
pub(crate) struct Handovers {
    /// The writes that are not durable yet, each with the tick in which it was made.
    writes: VecDeque<(u64, u64)>,
    /// For each peer, the slowest write in its last status, milliseconds, and when the status came,
    /// by the process's monotonic clock. `None` if the status named none.
    slowest: BTreeMap<NodeId, (u64, Option<u16>)>,
    /// For how many ticks the process has led although it had to hand over because of its disk.
    overdue: u64,
    /// The tick of its last handover.
    last: Option<u64>,
    /// Whether it has offered leadership in its present term.
    has_offered: bool,
    /// The planned handover that is in progress: its term, the successor, and the tick in which it
    /// began.
    planned: Option<(Term, NodeId, u64)>,
    /// The last message that told another node to campaign: its term, the receiver, and the tick.
    sent: Option<(Term, NodeId, u64)>,
}

impl Handovers {
    pub(crate) fn wrote(&mut self, number: u64, tick: u64) {
        self.writes.push_back((number, tick));
    }

    pub(crate) fn persisted(&mut self, number: u64) {
        while self.writes.pop_front_if(|(first, _)| *first <= number).is_some() {}
    }

    /// For how many ticks the oldest write has waited.
    pub(crate) fn waited(&self, tick: u64) -> u64 {
        self.writes.front().map_or(0, |(_, since)| tick - since)
    }

    /// A peer has named its slowest write.
    pub(crate) fn names_slowest(&mut self, peer: NodeId, at_ns: u64, slowest_ms: Option<u16>) {
        self.slowest.insert(peer, (at_ns, slowest_ms));
    }

    /// The slowest write that a peer has named within an election timeout, milliseconds.
    pub(crate) fn slowest_of(&self, peer: NodeId, now_ns: u64) -> Option<u16> {
        let (at_ns, slowest) = self.slowest.get(&peer)?;
        slowest.filter(|_| now_ns.saturating_sub(*at_ns) <= ELECTION * TICK_NS)
    }
}

/// Whether a voter whose slowest write took `slowest_ms` is as slow as a leader whose write has
/// waited for `waited` ticks (decision 36).
fn is_as_slow(slowest_ms: u16, waited: u64) -> bool {
    u64::from(slowest_ms) * 2 > waited * TICK_NS / MS
}

impl World {
    /// A process has accepted a message, which may have the sender's status.
    pub(crate) fn see_status(&mut self, id: NodeId, from: NodeId, message: &RaftMessage) {
        if message.kind != MessageKind::HeartbeatResponse {
            return;
        }
        let now_ns = self.monotonic_ns(id);
        if let Ok(status) = VoterStatus::decode(&message.context) {
            let handovers = &mut self.node(id).running_mut().handovers;
            handovers.names_slowest(from, now_ns, status.slowest_write_ms);
        }
    }

    /// S12, after a tick: a leader whose write is very late hands over if another voter's disk is
    /// known to be faster. It may have tried an election timeout ago, or three after a handover
    /// that has failed.
    pub(crate) fn check_late_disk(&mut self, id: NodeId) {
        let are_writes_known = !self.plant().is_some_and(Plant::is_in_disk);
        let running = self.at(id).running();
        let waited = running.handovers.waited(running.ticks);
        let leads = running.shared.published().role == Role::Leader;
        let is_late = waited >= 2 * ELECTION && leads && running.shutdown_in.is_none();
        let is_faster = |voter: &NodeId| {
            let slowest = running.handovers.slowest_of(*voter, running.ticked_ns);
            *voter != id && slowest.is_some_and(|ms| !is_as_slow(ms, waited))
        };
        let faster = (is_late && are_writes_known)
            .then(|| running.replica().incoming_voters().into_iter().find(is_faster));
        let faster = faster.flatten();
        let handovers = &mut self.node(id).running_mut().handovers;
        handovers.overdue = if faster.is_some() { handovers.overdue + 1 } else { 0 };
        let elections = if handovers.has_offered { 3 } else { 1 };
        if handovers.overdue > elections * ELECTION + SEEN_TICKS {
            let what = format!(
                "{id} leads on with a write that is {waited} ticks late: {faster:?} is faster"
            );
            self.history.violate(Invariant::CaughtUp, || what);
        }
    }

    /// A process reports.
    pub(crate) fn see_handover(&mut self, id: NodeId, report: &Report) {
        match *report {
            Report::Leadership { .. } => {
                let handovers = &mut self.node(id).running_mut().handovers;
                (handovers.overdue, handovers.has_offered) = (0, false);
            }
            Report::HandingOver { to, why } => {
                self.see_offer(id, to, why);
                self.pause_successor(to);
            }
            Report::AnswersAgain { is_offered, .. } => {
                let running = self.node(id).running_mut();
                running.handovers.planned = None;
                // The offer of this step gives nothing back, and is seen before this report. A leader
                // without a range does not show otherwise that it answers again.
                let who = running.identity;
                if !is_offered {
                    self.history.owns_again(who);
                }
            }
            _ => {}
        }
    }

    fn see_offer(&mut self, id: NodeId, to: NodeId, why: HandOver) {
        if why == HandOver::DiskStuck {
            self.check_disk_of_successor(id, to);
        }
        let is_planned = match why {
            HandOver::Asked
            | HandOver::Stopping
            | HandOver::ClockOff
            | HandOver::Preferred
            | HandOver::ClientsCut => true,
            HandOver::Unheard | HandOver::DiskStuck | HandOver::RoundsStuck => false,
        };
        let running = self.node(id).running_mut();
        let (tick, term) = (running.ticks, running.shared.published().term);
        let format = running.replica().state().format;
        let handovers = &mut running.handovers;
        let is_alone = handovers.last.is_none_or(|last| tick - last > 2 * ELECTION);
        let keeps_up = handovers.waited(tick) <= ELECTION / 2;
        let gives_back = is_planned && is_alone && keeps_up && format >= FORMAT_OF_GIVING_BACK;
        handovers.planned = gives_back.then_some((term, to, tick));
        (handovers.overdue, handovers.last, handovers.has_offered) = (0, Some(tick), true);
        // The report may come after the message.
        if handovers.planned.is_some() && handovers.sent == handovers.planned {
            self.offer(id, term, to);
        } else if !is_planned {
            let who = running.identity;
            self.history.owns_again(who);
        }
    }

    /// S12: because of its disk, a leader hands over only when its write is late, and only to a
    /// voter whose disk is not known to be as slow. While its range lasts, it waits longer, and the
    /// other disk must be known. A busy plane hands writes to its disk later than the
    /// replica counts, and may know more when it reports the handover.
    fn check_disk_of_successor(&mut self, id: NodeId, to: NodeId) {
        let running = self.at(id).running();
        if self.plant().is_some_and(Plant::is_in_disk) || self.has(Feature::Turns) {
            return;
        }
        let waited = running.handovers.waited(running.ticks);
        let slowest = running.handovers.slowest_of(to, running.ticked_ns);
        let (grant, now_ns) = (running.shared.published().grant, running.trusted_ns);
        if let Some(slowest) = slowest.filter(|ms| is_as_slow(*ms, waited)) {
            let what = format!(
                "{id} hands over to {to}: its disk is as slow, {slowest} ms and {waited} ticks"
            );
            self.history.violate(Invariant::CaughtUp, || what);
        }
        let lasts =
            grant.is_some_and(|it| it.range.high.0.saturating_sub(now_ns) > ELECTION * TICK_NS);
        if waited < ELECTION || lasts && (waited < 2 * ELECTION || slowest.is_none()) {
            let what = format!(
                "{id} hands over to {to} after {waited} ticks: {slowest:?}, its range lasts: {lasts}"
            );
            self.history.violate(Invariant::CaughtUp, || what);
        }
    }

    /// A process sends a message.
    pub(crate) fn see_sent(&mut self, id: NodeId, out: &Outgoing) {
        self.check_offer(id, out);
        self.check_vote_asked(id, out);
        if out.message.kind != MessageKind::TimeoutNow {
            return;
        }
        let (term, to) = (out.message.term, out.to);
        let running = self.node(id).running_mut();
        let (tick, handovers) = (running.ticks, &mut running.handovers);
        handovers.sent = Some((term, to, tick));
        // After half an election timeout the leader answers again.
        let is_planned = handovers.planned.is_some_and(|(planned, successor, since)| {
            (planned, successor) == (term, to) && tick - since <= ELECTION / 2
        });
        if is_planned {
            self.offer(id, term, to);
        }
    }

    fn offer(&mut self, id: NodeId, term: Term, to: NodeId) {
        let running = self.at(id).running();
        // A busy plane may have reserved again since it decided to offer.
        if running.turn == Turn::Late {
            return;
        }
        let owner = Owner { term, node: id, boot: running.identity.boot };
        let last = running.replica().status().last;
        self.history.offers(Offer { owner, to, last });
    }

    /// The workers of a process see a publication.
    pub(crate) fn see_published(&mut self, id: NodeId, published: &Published) {
        if published.grant.is_some() {
            self.see_owned(id, published.identity);
        }
    }

    /// A leader reserves, or has a grant. A planned handover that was in progress has ended, and its
    /// leader may still offer leadership without giving anything back.
    pub(crate) fn see_owned(&mut self, id: NodeId, who: Identity) {
        self.node(id).running_mut().handovers.planned = None;
        self.history.owns_again(who);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::SECOND;

    /// A cluster of three whose leader has a write that waits for `waited` ticks. The other voters
    /// have just named the time of their slowest write, milliseconds.
    fn late(waited: u64, slowest: [u16; 2]) -> (World, NodeId, [NodeId; 2]) {
        let mut world = World::new(1, 3, 0, None);
        for id in world.ids() {
            world.start(id);
        }
        world.live_until(5 * SECOND, None).expect("nothing is wrong");
        let leader = world.ids().find(|id| world.at(*id).holds_grant()).expect("one leads");
        let others: Vec<NodeId> = world.ids().filter(|id| *id != leader).collect();
        let others = [others[0], others[1]];
        let running = world.node(leader).running_mut();
        let now_ns = running.ticked_ns;
        running.handovers.writes = VecDeque::from([(u64::MAX, running.ticks - waited)]);
        for (other, ms) in others.into_iter().zip(slowest) {
            running.handovers.slowest.insert(other, (now_ns, Some(ms)));
        }
        (world, leader, others)
    }

    fn broken(world: &World) -> Option<Invariant> {
        world.history.violation.as_ref().map(|violation| violation.invariant)
    }

    #[test]
    fn a_planned_handover_ends_when_its_leader_answers_again() {
        let ends = |end: fn(&mut World, NodeId, NodeId)| {
            let (mut world, leader, [to, _]) = late(0, [0, 0]);
            let running = world.node(leader).running_mut();
            let (term, tick) = (running.shared.published().term, running.ticks);
            running.handovers.planned = Some((term, to, tick));
            end(&mut world, leader, to);
            world.at(leader).running().handovers.planned.is_none()
        };
        assert!(!ends(|_, _, _| {}));
        assert!(ends(|world, leader, to| {
            let report = Report::AnswersAgain { to, is_offered: true, range: None };
            world.see_handover(leader, &report);
        }));
        assert!(ends(|world, leader, _| {
            let who = world.at(leader).running().identity;
            world.see_owned(leader, who);
        }));
    }

    #[test]
    fn a_leader_that_leads_on_with_a_late_write_beside_a_faster_disk_is_found() {
        let leads_on = |waited: u64, slowest: [u16; 2], ticks: u64, has_offered: bool| {
            let (mut world, leader, _) = late(waited, slowest);
            world.node(leader).running_mut().handovers.has_offered = has_offered;
            (0..ticks).for_each(|_| world.check_late_disk(leader));
            broken(&world)
        };
        let (late, due) = (2 * ELECTION, ELECTION + SEEN_TICKS);
        assert_eq!(leads_on(late, [200, 900], due, false), None);
        assert_eq!(leads_on(late, [200, 900], due + 1, false), Some(Invariant::CaughtUp));
        assert_eq!(leads_on(late - 1, [0, 0], due + 1, false), None, "it is not very late");
        assert_eq!(leads_on(late, [201, 900], due + 1, false), None, "all are as slow");
        assert_eq!(leads_on(late, [0, 0], due + 1, true), None, "it has tried lately");
        let again = due + 1 + 2 * ELECTION;
        assert_eq!(leads_on(late, [0, 0], again, true), Some(Invariant::CaughtUp));
    }

    #[test]
    fn a_handover_because_of_a_disk_that_is_too_early_or_to_a_disk_as_slow_is_found() {
        let hands_over = |waited: u64, slowest: u16| {
            let (mut world, leader, [to, _]) = late(waited, [slowest, 0]);
            world.check_disk_of_successor(leader, to);
            broken(&world)
        };
        assert_eq!(hands_over(2 * ELECTION, 200), None);
        assert_eq!(hands_over(2 * ELECTION, 201), Some(Invariant::CaughtUp), "it is as slow");
        assert_eq!(hands_over(2 * ELECTION - 1, 0), Some(Invariant::CaughtUp), "the range lasts");
        let after_range = |waited: u64| {
            let (mut world, leader, [to, _]) = late(waited, [0, 0]);
            let running = world.node(leader).running_mut();
            let grant = running.shared.published().grant.expect("it serves");
            running.trusted_ns = grant.range.high.0 - ELECTION * TICK_NS;
            world.check_disk_of_successor(leader, to);
            broken(&world)
        };
        assert_eq!(after_range(ELECTION), None, "the range ends");
        assert_eq!(after_range(ELECTION - 1), Some(Invariant::CaughtUp), "the write is not late");
        let (mut world, leader, [to, _]) = late(2 * ELECTION, [0, 0]);
        world.node(leader).running_mut().handovers.slowest.clear();
        world.check_disk_of_successor(leader, to);
        assert_eq!(broken(&world), Some(Invariant::CaughtUp), "the other disk is not known");
    }
}
