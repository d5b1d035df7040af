//! The consensus plane of simulated nodes: simulated IO around the state machine that production
//! drives, [`epicepoch_core::node::Node`]. The planted bugs of disks are here.

use std::rc::Rc;

use epicepoch_core::durable::Write;
use epicepoch_core::node::{Health, Refused};
use epicepoch_core::publication::Role;
use epicepoch_core::replica::{Fatal, HandOver, MessageError, Outgoing, Replica, Report};
use epicepoch_core::state::{Command, FORMATS, Outcome, State};
use epicepoch_wire::gossip::{Ping, Pong};
use epicepoch_wire::peer_hello::{Formats, RefusalCode};
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::{BootId, LogIndex, NodeId, StorePosition, Term};

use crate::disk::Finished;
use crate::event::{End, Event, PeerHello};
use crate::history::Invariant;
use crate::node::Running;
use crate::parameters::{MS, TICK_NS};
use crate::plane::{Plane, Turn};
use crate::plant::Plant;
use crate::world::World;
use crate::world::faults::clocks::MACHINE_CREEPS;
use crate::world::features::Feature;
use crate::world::leases::USURPED_AFTER_SNAPSHOT;

/// Ticks between two pings of every peer, as in production.
const PING_TICKS: u64 = 20;
/// `SNAPSHOTS_BROKEN` of a thousand snapshots break their connection. While faults happen,
/// `SNAPSHOTS_LOST` of a thousand are lost, and their sender is not told.
const SNAPSHOTS_BROKEN: u32 = 100;
const SNAPSHOTS_LOST: u32 = 300;
/// Of a thousand messages to a peer that is cut off or down, `UNSENT` cannot even be queued, and
/// `UNREACHABLE` of the others make the node notice that within `UNREACHABLE_NS_MAX` nanoseconds.
const UNSENT: u32 = 100;
const UNREACHABLE: u32 = 100;
const UNREACHABLE_NS_MAX: u64 = 200 * MS;
/// The fastest monotonic clocks, thousandths of true time: usually, and once a machine has crept.
const RATE_MAX: u64 = 1_001;
const CREEPING_RATE_MAX: u64 = 2_001;
/// When it is to stop, the allocator is in use in `ALLOCATOR_IN_USE` of a thousand cases.
const ALLOCATOR_IN_USE: u32 = 100;
/// The name, in the summary, of the count of replicas that ended their process by themselves.
pub(crate) const GAVE_UP: &str = "replica gave up";

impl World {
    /// Tells the monitor that a process has started with this state, applied up to `index`.
    pub(crate) fn monitor_start(&mut self, id: NodeId, index: LogIndex, state: &State) {
        let Self { nodes, monitor, .. } = self;
        let node = &nodes[id.0 as usize - 1];
        let (me, promise) = (node.running().identity, node.running().seen.promise.load());
        monitor.starts(me, promise, node.disk.durable(), node.disk.is_rolled_back());
        monitor.applies(id, index, index, state, &node.running().shared.published());
    }

    pub(crate) fn tick(&mut self, id: NodeId) {
        self.settle(id);
        let node = self.at(id);
        if node.is_suspended && node.running().replica().may_take_leases() {
            self.count("leases forbidden after a suspension");
            self.with(id, Replica::forbid_leases);
            self.settle(id);
        }
        let (reading, clocks) = (self.at(id).clock.read(self.now_ns), self.lease_clocks(id));
        let are_accepts_failing = self.do_accepts_fail(id);
        let running = self.node(id).running_mut();
        running.ticks += 1;
        let ticked_ns = std::mem::replace(&mut running.ticked_ns, reading.monotonic_ns);
        let published = running.shared.published();
        let (round_completed_ns, lease_asked_ns) = (running.completed_ns, running.lease_asked_ns);
        let health = Health { round_completed_ns, are_accepts_failing, lease_asked_ns };
        running.shared.record_stamped(running.seen.stamped());
        running.consensus.handle_lease_clocks(clocks);
        let result = running.consensus.handle_tick(reading, health);
        let clock = running.consensus.clock();
        running.trusted_offset_ns = clock.offset_ns();
        let trusted_ns = clock.trusted_ns(reading.monotonic_ns);
        let before_ns = std::mem::replace(&mut running.trusted_ns, trusted_ns);
        running.decided_ns = if running.turn == Turn::Open { before_ns } else { trusted_ns };
        let is_ping_due = running.ticks.is_multiple_of(PING_TICKS);
        let boot = running.identity.boot;
        // A leader that knows a majority, and ignores one of these clocks, is checked all the same.
        let knows_too_few = !running.consensus.clock().has_known_majority();
        let is_unproved = knows_too_few && running.replica().is_clock_unproved();
        if is_unproved && !self.history.is_clock_unproved {
            self.history.is_clock_unproved = true;
            self.count("clock believed without a majority's");
        }
        self.trusts(trusted_ns);
        self.see_tick(id, ticked_ns);
        let turn = &mut self.node(id).running_mut().turn;
        *turn = if *turn == Turn::Open { Turn::Late } else { *turn };
        self.take_outputs_unless_over(id, result.is_err());
        self.check_late_disk(id);
        if let Err(fatal @ Fatal::Unreadable { .. }) = result {
            self.record(|| format!("{id} must stop: {fatal}"));
            self.crash(id);
            self.close(id);
            self.holds_unreadable(id, || format!("node {id}: {fatal}"));
            return;
        }
        if let Err(fatal) = result {
            self.record(|| format!("{id} must stop: {fatal}"));
            if matches!(fatal, Fatal::Removed { .. }) {
                return self.end_removed(id);
            }
            self.count(GAVE_UP);
            self.fall(id);
            return;
        }
        if is_ping_due {
            let ping = Ping { sent_ns: reading.monotonic_ns };
            let known = self.at(id).running().shared.positions();
            for (peer, _) in published.voters.iter().filter(|(peer, _)| *peer != id) {
                let since = known.of(peer);
                self.send(id, peer, &Event::Ping { from: id, boot, since, ping });
            }
        }
        self.schedule_own(id, TICK_NS, Event::Tick);
    }

    /// Records a time that a node trusts now, Unix nanoseconds.
    pub(crate) fn trusts(&mut self, trusted_ns: u64) {
        let has_crept = self.summary.faults.contains_key(MACHINE_CREEPS);
        let rate = if has_crept { CREEPING_RATE_MAX } else { RATE_MAX };
        self.history.trusts(self.now_ns, trusted_ns, rate);
    }

    /// The process of a node ends by itself, and is started again later.
    pub(crate) fn fall(&mut self, id: NodeId) {
        self.crash(id);
        self.close(id);
        self.start_later(id);
    }

    pub(crate) fn ping(
        &mut self,
        id: NodeId,
        from: NodeId,
        boot: BootId,
        since: StorePosition,
        ping: Ping,
    ) {
        let is_removed = self.at(id).running().replica().state().removed.contains(&from);
        if is_removed && self.has(Feature::RemovalNotices) {
            return self.send(id, from, &Event::Refused { by: id, boot });
        }
        let wall_ns = self.at(id).clock.wall_ns(self.now_ns);
        let hello = self.at(id).hello();
        let position = self.at(id).running().replica().position();
        let answer = Pong { sent_ns: ping.sent_ns, wall_ns, position, interval: None };
        self.send(id, from, &Event::Pong { from: id, hello, boot, since, pong: answer });
    }

    pub(crate) fn pong(
        &mut self,
        id: NodeId,
        (from, hello): (NodeId, PeerHello),
        boot: BootId,
        since: StorePosition,
        pong: Pong,
    ) {
        if boot != self.at(id).running().identity.boot || !self.accept_hello(id, from, hello) {
            return;
        }
        // For a planted bug, positions are removed from the answer, so that it cannot show that a
        // peer was rolled back.
        let unnamed = (StorePosition(0), Pong { position: StorePosition(0), ..pong });
        let (since, pong) = if self.checks_positions() { (since, pong) } else { unnamed };
        let heard = self.drive(id, |consensus, now_ns| {
            consensus.handle_pong(now_ns, from, hello.boot, since, &pong, now_ns)
        });
        if heard.is_err() {
            self.refuse_hello(id, from, hello);
        }
    }

    /// A member has applied the removal of this node.
    pub(crate) fn refused(&mut self, id: NodeId, by: NodeId, boot: BootId) {
        if boot != self.at(id).running().identity.boot {
            return;
        }
        self.history.confirms_removal(boot, by, self.monotonic_ns(id));
        let refused = self.drive(id, |consensus, now_ns| {
            consensus.handle_refused(now_ns, by, RefusalCode::Removed)
        });
        if refused == (Refused::Removed { is_first: true }) {
            self.count("removal confirmed");
        }
    }

    /// Ends a removed node for good: its operator does not start it again.
    fn end_removed(&mut self, id: NodeId) {
        let running = self.at(id).running();
        let (identity, published) = (running.identity, running.shared.published());
        self.history.ends_removed(identity, &published.voters, self.monotonic_ns(id));
        self.count("removed node ended");
        self.crash(id);
        self.close(id);
    }

    pub(crate) fn closed(&mut self, id: NodeId, peer: NodeId) {
        self.drive(id, |consensus, now_ns| consensus.handle_closed(now_ns, peer));
    }

    pub(crate) fn written(&mut self, id: NodeId) {
        let is_lying = self.is_planted(Plant::LyingDisk);
        let is_together = self.chance(self.conditions.together);
        let disk = &mut self.node(id).disk;
        if disk.is_stuck {
            self.schedule_own(id, TICK_NS, Event::Written);
            return;
        }
        let is_full = disk.is_full;
        let finished = disk.finish(is_together);
        self.begin_write(id);
        match finished {
            Finished::Written(number) if !is_lying => {
                // What the replica has decided before this counts as decided while the write waited.
                self.settle(id);
                self.node(id).running_mut().handovers.persisted(number);
                let Self { nodes, monitor, .. } = self;
                monitor.persists(id, number, nodes[id.0 as usize - 1].disk.durable());
                self.drive(id, |consensus, now_ns| consensus.handle_persisted(now_ns, number));
            }
            Finished::Written(_) | Finished::None => {}
            // The write is not retried, because only a restart shows the content of the disk.
            Finished::Failed => {
                self.count(if is_full { "no room for a write" } else { "sync failed" });
                self.fall(id);
            }
        }
    }

    /// The disk begins to write the waiting writes, unless it is busy with others.
    fn begin_write(&mut self, id: NodeId) {
        let disk = &mut self.node(id).disk;
        if disk.begin() {
            let write_ns = disk.write_ns;
            self.schedule_own(id, write_ns, Event::Written);
        }
    }

    /// Whether nodes check the positions that peers name. One planted bug turns this check off. It
    /// is also off while a bug is planted in the disk, because it would find that bug before the
    /// checkers do.
    pub(crate) fn checks_positions(&self) -> bool {
        !self.plant().is_some_and(|plant| plant == Plant::Unremembered || plant.is_in_disk())
    }

    /// Handles the hello of a peer's boot, which may be new here. Returns whether the hello is
    /// accepted.
    fn accept_hello(&mut self, id: NodeId, from: NodeId, hello: PeerHello) -> bool {
        if !self.can_speak(id, from, hello) {
            return false;
        }
        let running = self.node(id).running_mut();
        let is_known = running.accepted.get(&from) == Some(&hello.boot);
        let positions = running.shared.positions();
        let known = positions.check(hello.boot_of(from));
        if known.is_ok() && !is_known {
            running.accepted.insert(from, hello.boot);
            let formats = Formats { oldest: FORMATS.oldest, newest: hello.reads };
            let accepted = self.drive(id, |consensus, _| {
                consensus.handle_peer_hello(from, hello.boot, hello.began, formats)
            });
            accepted.expect("it was checked");
        }
        if known.is_err() && self.checks_positions() {
            self.refuse_hello(id, from, hello);
            return false;
        }
        true
    }

    /// A peer refuses a process because its data directory was rolled back. At each start the
    /// process ends with that error, until its operator has put the newest directory back.
    fn refuse_hello(&mut self, by: NodeId, node: NodeId, hello: PeerHello) {
        self.summary.refusals += 1;
        let is_running = |known: &Running| known.identity.boot == hello.boot;
        if !self.at(node).running.as_ref().is_some_and(is_running) {
            return;
        }
        self.record(|| format!("{by} refuses {node}, which was rolled back"));
        if !self.at(node).disk.is_rolled_back() {
            let what = || format!("node {by} takes node {node} for rolled back, which it is not");
            self.history.violate(Invariant::Possible, what);
        }
        self.stop_rolled_back(node, "rolled back: refused by a peer");
    }

    fn stop_rolled_back(&mut self, node: NodeId, how: &'static str) {
        self.count(how);
        self.crash(node);
        self.close(node);
        let after_ns = self.random.u64(500..3_000) * MS;
        self.schedule_world(after_ns, Event::End { end: End::RolledBack(node) });
    }

    /// Whether a message of this boot of `from` reaches a node with a rolled-back disk. In the
    /// simulator a message to one boot of a process also reaches the next boot. Raft tolerates
    /// that, but a rolled-back disk does not. So here, as in production, a connection ends with the
    /// process at either end, and the peer checks the new hello before it sends anything.
    fn comes_to_rolled_back(&mut self, to: NodeId, from: NodeId, hello: PeerHello) -> bool {
        if !self.checks_positions() {
            return true;
        }
        let theirs = self.at(to).hello();
        let sender = self.at(from).running.as_ref();
        let Some(sender) = sender.filter(|sender| sender.identity.boot == hello.boot) else {
            return false;
        };
        let is_known = sender.shared.check_peer(theirs.boot_of(to)).is_ok();
        if !is_known {
            self.refuse_hello(from, to, theirs);
        }
        is_known
    }

    pub(crate) fn receive(&mut self, to: NodeId, from: NodeId, hello: PeerHello, bytes: &[u8]) {
        if self.at(to).disk.is_rolled_back() && !self.comes_to_rolled_back(to, from, hello) {
            return;
        }
        if !self.accept_hello(to, from, hello) {
            return;
        }
        let message = RaftMessage::decode(bytes).expect("what a replica sends has an encoding");
        let store = self.at(from).store;
        let before = self.at(to).running().replica().status().term;
        self.see_arrival(to, from, &message);
        let taken =
            self.pass(to, |consensus, now| consensus.handle_message(now, from, store, &message));
        if taken.is_ok() {
            self.monitor.receives(to, from, store, &message);
        }
        if matches!(taken, Err(MessageError::LostEntries { .. })) {
            self.take_outputs_unless_over(to, true);
        } else {
            self.pump(to);
        }
        let Err(error) = taken else {
            let boot = self.at(to).hello().boot;
            self.history.heard(boot, from, self.monotonic_ns(to));
            self.history.taken(to, (from, hello.boot), &message);
            self.see_status(to, from, &message);
            self.see_followed(to, &message, before);
            return;
        };
        self.summary.refusals += 1;
        self.record(|| format!("{to} refuses {message:?} of {from}: {error}"));
        let is_expected = self.plant().is_some_and(Plant::is_in_disk);
        match error {
            MessageError::LostEntries { .. } if self.at(to).disk.is_rolled_back() => {
                self.stop_rolled_back(to, "rolled back: the leader knows of more");
            }
            MessageError::LostEntries { .. } => {
                if !is_expected {
                    let what = || format!("node {to} of {from}: {error}");
                    self.history.violate(Invariant::Possible, what);
                }
                self.fall(to);
            }
            MessageError::Unreadable { .. } => {
                let what = || format!("{from} sent to {to}: {error}");
                self.history.violate(Invariant::Readable, what);
            }
            MessageError::ContradictsCommit if self.history.has_led_after(message.term) => {
                self.count("late append of an earlier leader refused");
            }
            MessageError::Impossible | MessageError::ContradictsCommit if !is_expected => {
                let what = || format!("{from} sent {message:?} to {to}: {error}");
                self.history.violate(Invariant::Possible, what);
            }
            _ => {}
        }
    }

    /// Stops the allocator for a handover. The workers see by now that there is no grant, and may
    /// be in the middle of an allocation.
    pub(super) fn stop_allocator(&mut self, id: NodeId) {
        let is_in_use = self.chance(ALLOCATOR_IN_USE);
        let now_ns = self.monotonic_ns(id);
        let running = self.node(id).running_mut();
        let last = running.stamper.stop().filter(|_| !is_in_use);
        running.consensus.handle_allocator_stopped(now_ns, last);
        self.record(|| format!("{id} stops its allocator: {last:?}"));
        for share in self.take_shares(id) {
            self.take_share(id, share);
        }
        self.take_applied(id);
    }

    /// Hands a write to the disk.
    pub(super) fn write(&mut self, id: NodeId, write: Write) {
        let number = write.number;
        self.record(|| format!("{id} writes {write:?}"));
        self.see_reserved(id, &write);
        self.monitor.writes(id, &write);
        let running = self.node(id).running_mut();
        running.handovers.wrote(number, running.ticks);
        self.node(id).disk.submit(write);
        self.begin_write(id);
        if self.is_planted(Plant::LyingDisk) {
            let now_ns = self.monotonic_ns(id);
            self.node(id).running_mut().consensus.handle_persisted(now_ns, number);
            for share in self.take_shares(id) {
                self.take_share(id, share);
            }
            self.take_applied(id);
        }
    }

    pub(super) fn read_report(&mut self, id: NodeId, report: &Report) {
        self.record(|| format!("{id} reports {report:?}"));
        self.summary.take_report(report);
        self.report_to_operators(id, report);
        if matches!(report, Report::Leadership { .. } | Report::Changed { .. }) {
            self.provoke(id);
        }
        self.see_handover(id, report);
        if matches!(report, Report::HandingOver { .. }) {
            let identity = self.at(id).running().identity;
            self.history.offers_leadership(identity);
        }
        match *report {
            Report::Advanced { to } => self.monitor.advances(id, to),
            Report::Leadership { term, role: Role::Leader, .. } => self.check_departed(id, term),
            Report::GivenBack { owner, range } => self.history.gives_back(owner, range.low),
            Report::HandingOver { to, why: HandOver::Preferred } => self.prefers(id, to),
            Report::HandingOver { why: HandOver::ClientsCut, .. } => {
                self.count("handover where accepts fail");
            }
            Report::SettingsChanged { outcome: Outcome::Set, .. } => {
                self.count("settings taken in");
                self.back_up_settings(id);
            }
            Report::Removed => self.count("member removed"),
            Report::Installed { .. } => {
                let leader = self.any_leading();
                self.usurp_soon(leader, USURPED_AFTER_SNAPSHOT);
            }
            _ => {}
        }
    }

    /// A node that was told to stop may still lead in the term in which it was told, because others
    /// may have voted for it in that term. It must not lead in a later term.
    fn check_departed(&mut self, id: NodeId, term: Term) {
        let told = self.at(id).running().shutdown_in;
        if let Some(told) = told.filter(|told| term > *told) {
            let what = || format!("node {id} was told to stop in term {told} and leads in {term}");
            self.history.violate(Invariant::Possible, what);
        }
    }

    /// Reports to the history which ranges a leader proposes to reserve.
    fn see_reserved(&mut self, id: NodeId, write: &Write) {
        let running = self.at(id).running();
        let (identity, trusted_ns) = (running.identity, [running.decided_ns, running.trusted_ns]);
        let status = running.replica().status();
        for entry in &write.entries {
            // Only entries of the leader's own term are its proposals. Other entries come from
            // earlier leaders.
            let is_own = status.role == Role::Leader && status.term == entry.term;
            match Command::decode(&entry.data) {
                Ok(Command::Reserve { until, lease_ms, .. }) if is_own => {
                    self.history.reserves(identity, until, trusted_ns);
                    self.see_owned(id, identity);
                    if lease_ms > 0 {
                        self.see_marked(id, entry.term);
                    }
                }
                Ok(Command::Release { .. }) if is_own => self.see_released(id, entry.term),
                _ => {}
            }
        }
    }

    /// Sends a message that may leave.
    pub(super) fn send_message(&mut self, id: NodeId, out: &Outgoing) {
        let node = &self.nodes[id.0 as usize - 1];
        let identity = node.running().identity;
        // The Promise as the workers see it now.
        let promise = node.running().seen.promise.load();
        let is_disk = self.plant().is_some_and(Plant::is_in_disk);
        let disk = (!is_disk).then(|| node.disk.durable());
        self.history.released(identity, out, promise, disk);
        self.monitor.sends(id, out, node.disk.durable());
        // A rolled-back node has forgotten its promises, and peers refuse its messages.
        if !node.disk.is_rolled_back() {
            self.history.promised(identity, out);
        }
        self.see_sent(id, out);
        // Such a snapshot is like a message in the socket of a machine that disappears without
        // closing the connection.
        let is_snapshot = out.message.kind == MessageKind::Snapshot;
        if is_snapshot && self.nemesis.pause_ns > 0 && self.chance(SNAPSHOTS_LOST) {
            return self.count("snapshot lost");
        }
        let mut bytes = vec![];
        out.message.encode(&mut bytes);
        let bytes: Rc<[u8]> = bytes.into();
        let hello = self.at(id).hello();
        self.send(id, out.to, &Event::Raft { from: id, hello, bytes });
        self.notice_cut(id, out);
        // A snapshot is the largest message, and its connection may break.
        if is_snapshot && self.chance(SNAPSHOTS_BROKEN) {
            let after_ns = self.link_ns();
            self.schedule_own(id, after_ns, Event::Closed { peer: out.to });
        }
    }

    /// A node may notice that it reaches a peer no more. The queue of the link is full, or the link
    /// cannot be dialled, or it is silent.
    fn notice_cut(&mut self, id: NodeId, out: &Outgoing) {
        let to = out.to;
        if to.0 > self.nodes.len() as u64
            || self.at(to).running.is_some() && !self.links.is_cut(id, to, Plane::Raft)
        {
            return;
        }
        if self.chance(UNSENT) {
            let now_ns = self.monotonic_ns(id);
            let consensus = &mut self.node(id).running_mut().consensus;
            consensus.handle_unsent(now_ns, to, out.message.kind);
            for share in self.take_shares(id) {
                self.take_share(id, share);
            }
            self.take_applied(id);
        } else if self.chance(UNREACHABLE) {
            let after_ns = self.random.u64(0..=UNREACHABLE_NS_MAX);
            self.schedule_own(id, after_ns, Event::Unreachable { peer: to });
        }
    }
}

#[cfg(test)]
mod tests {
    use epicepoch_wire::Term;

    use super::*;
    use crate::parameters::SECOND;

    #[test]
    fn a_stopping_node_that_leads_in_a_later_term_is_found() {
        let mut world = World::new(1, 3, 0, None);
        let id = NodeId(1);
        world.start(id);
        world.check_departed(id, Term(9));
        world.node(id).running_mut().shutdown_in = Some(Term(8));
        world.check_departed(id, Term(8));
        assert_eq!(world.history.violation, None, "others may have voted in that term");
        world.check_departed(id, Term(9));
        let violation = world.history.violation.as_ref().map(|violation| violation.invariant);
        assert_eq!(violation, Some(Invariant::Possible));
    }

    #[test]
    fn a_rolled_back_disk_receives_nothing_sent_to_an_earlier_run() {
        let mut world = World::new(1, 3, 0, None);
        for id in world.ids() {
            world.start(id);
        }
        world.live_until(SECOND, None).expect("nothing is wrong");
        let (other, back) = (NodeId(1), NodeId(3));
        world.node(back).disk.copy();
        world.live_until(4 * SECOND, None).expect("nothing is wrong");
        world.crash(back);
        world.node(back).disk.rolled_back();
        world.start(back);
        let hello = world.at(other).hello();
        let earlier = PeerHello { boot: BootId(hello.boot.0 - 1), ..hello };
        assert!(!world.comes_to_rolled_back(back, other, earlier));
        assert!(world.at(back).running.is_some(), "that connection has ended: nobody was asked");
        assert!(!world.comes_to_rolled_back(back, other, hello));
        assert!(world.at(back).running.is_none(), "who opens another one remembers more");
    }
}
