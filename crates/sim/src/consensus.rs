//! The consensus plane of simulated nodes: what the server's thread does with a replica, its disk,
//! its peers' links and clocks. Planted bugs of disks and publications sit here.

use std::rc::Rc;
use std::sync::Arc;

use epicepoch_core::clock::{ClockStatus, clocks_of};
use epicepoch_core::durable::Write;
use epicepoch_core::publication::{Grant, Published, Role};
use epicepoch_core::replica::{Fatal, HandOver, MessageError, Report};
use epicepoch_core::state::{Command, FORMATS, Outcome};
use epicepoch_wire::gossip::{Ping, Pong};
use epicepoch_wire::hello::Formats;
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::{BootId, NodeId, StorePosition, Term};

use crate::disk::Finished;
use crate::event::Event;
use crate::faults::End;
use crate::history::Invariant;
use crate::node::{Run, Running, Share, TICK_NS};
use crate::plant::Plant;
use crate::run::GAVE_UP;
use crate::world::{MS, World};

/// Ticks between two pings of every peer, as in production.
const PING_TICKS: u64 = 20;
/// Of a thousand snapshots, under how many the connection breaks, and how many are lost without a
/// sign while there are faults.
const SNAPSHOTS_BROKEN: u32 = 100;
const SNAPSHOTS_LOST: u32 = 300;
/// Ticks between two looks of a planted bug at what is published.
const LOOK_TICKS: u64 = 50;

impl World {
    pub(crate) fn tick(&mut self, id: NodeId) {
        self.settle(id);
        let reading = self.at(id).clock.read(self.now_ns);
        let is_naive = self.is_planted(Plant::OwnClock);
        let do_accepts_fail = self.do_accepts_fail(id);
        let running = self.node(id).running_mut();
        running.ticks += 1;
        running.ticked_ns = reading.monotonic_ns;
        let published = running.shared.published();
        let is_voter = |node| published.voters.iter().any(|(voter, _)| voter == node);
        running.clock.retain_peers(is_voter);
        let voters = clocks_of(published.voters.iter().map(|(node, _)| node), id);
        let status = running.clock.observe(reading, voters, running.replica.trusted_before_ns());
        running.trusted_offset_ns = running.clock.offset_ns();
        let trusted = |node: &NodeId| running.clock.is_peer_trusted(*node);
        let successors = (status == ClockStatus::Outvoted)
            .then(|| published.voters.iter().map(|(node, _)| node).filter(trusted).collect());
        running.replica.handle_clock(successors);
        let sound = published.voters.iter().map(|(node, _)| node).filter(trusted).collect();
        running.replica.handle_sound_clocks(sound);
        running.replica.handle_compared(running.clock.is_compared(voters));
        running.replica.handle_rounds(running.completed_ns);
        running.replica.handle_clients(do_accepts_fail);
        let trusted_ns = if is_naive {
            running.trusted_offset_ns = reading.wall_ns as i64 - reading.monotonic_ns as i64;
            reading.wall_ns
        } else {
            running.clock.trusted_ns(reading.monotonic_ns)
        };
        running.trusted_ns = trusted_ns;
        let is_ping_due = running.ticks.is_multiple_of(PING_TICKS);
        let boot = running.identity.boot;
        let result = running.replica.handle_tick(reading.monotonic_ns, trusted_ns);
        let is_unproved = running.replica.is_clock_unproved();
        if is_unproved && !self.history.is_clock_unproved {
            self.history.is_clock_unproved = true;
            self.count("clock believed without a majority's");
        }
        self.trusts(trusted_ns);
        self.pump(id);
        if let Err(fatal @ Fatal::Unreadable { .. }) = result {
            self.note(|| format!("{id} must stop: {fatal}"));
            self.crash(id);
            self.close(id);
            self.holds_unreadable(id, || format!("node {id}: {fatal}"));
            return;
        }
        if let Err(fatal) = result {
            self.note(|| format!("{id} must stop: {fatal}"));
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

    /// Takes note of a time that a node trusts now.
    pub(crate) fn trusts(&mut self, trusted_ns: u64) {
        self.history.trusted_max_ns = self.history.trusted_max_ns.max(trusted_ns);
    }

    /// The process has ended by itself; whoever looks after it starts it again.
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
        let wall_ns = self.at(id).clock.wall_ns(self.now_ns);
        let run = self.at(id).run();
        let position = self.at(id).running().replica.position();
        let answer = Pong { sent_ns: ping.sent_ns, wall_ns, position };
        self.send(id, from, &Event::Pong { from: id, run, boot, since, pong: answer });
    }

    pub(crate) fn pong(
        &mut self,
        id: NodeId,
        (from, run): (NodeId, Run),
        boot: BootId,
        since: StorePosition,
        pong: Pong,
    ) {
        if boot != self.at(id).running().identity.boot || !self.greet(id, from, run) {
            return;
        }
        if self.checks_positions() {
            let named = pong.position;
            let heard =
                self.with(id, |replica, _| replica.handle_position(from, run.boot, named, since));
            if heard.is_err() {
                return self.refuse_run(id, from, run);
            }
        }
        let now_ns = self.monotonic_ns(id);
        let running = self.node(id).running_mut();
        running.replica.handle_reached(now_ns, from);
        running.clock.handle_sample(from, pong.wall_ns, pong.sent_ns, now_ns);
    }

    pub(crate) fn closed(&mut self, id: NodeId, peer: NodeId) {
        self.with(id, |replica, now_ns| {
            replica.handle_closed(now_ns, peer);
            replica.handle_unreachable(now_ns, peer);
        });
    }

    pub(crate) fn written(&mut self, id: NodeId) {
        let is_lying = self.is_planted(Plant::LyingDisk);
        let is_together = self.chance(self.weather.together);
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
                self.with(id, |replica, now_ns| replica.handle_persisted(now_ns, number));
            }
            Finished::Written(_) | Finished::None => {}
            // Never a retry: what is on the disk is known only after a restart.
            Finished::Failed => {
                self.count(if is_full { "no room for a write" } else { "sync failed" });
                self.fall(id);
            }
        }
    }

    /// The disk begins to write what waits, unless it writes already.
    fn begin_write(&mut self, id: NodeId) {
        let disk = &mut self.node(id).disk;
        if disk.begin() {
            let write_ns = disk.write_ns;
            self.schedule_own(id, write_ns, Event::Written);
        }
    }

    /// Whether nodes hold peers against the positions that they have named. A planted bug forgets
    /// it; on planted disks it would find the bug before the checkers do.
    pub(crate) fn checks_positions(&self) -> bool {
        !self.plant().is_some_and(|plant| plant == Plant::Unremembered || plant.is_in_disk())
    }

    /// A connection of a run of a peer that this process has not met yet. Says whether it is let in.
    fn greet(&mut self, id: NodeId, from: NodeId, run: Run) -> bool {
        if !self.can_speak(id, from, run) {
            return false;
        }
        let running = self.node(id).running_mut();
        let is_known = running.greeted.get(&from) == Some(&run.boot);
        let positions = running.shared.positions();
        let known = positions.check(from, run.boot, run.began);
        if known.is_ok() && !is_known {
            running.greeted.insert(from, run.boot);
            let greeted =
                self.with(id, |replica, _| replica.handle_greeting(from, run.boot, run.began));
            greeted.expect("it was checked");
            let formats = Formats { oldest: FORMATS.oldest, newest: run.reads };
            self.with(id, |replica, _| replica.handle_formats(from, formats));
        }
        if known.is_err() && self.checks_positions() {
            self.refuse_run(id, from, run);
            return false;
        }
        true
    }

    /// A peer refuses a run because its data directory was set back: its process ends, with an
    /// error that says why, until its operator has put the newest directory back.
    fn refuse_run(&mut self, by: NodeId, node: NodeId, run: Run) {
        self.summary.refusals += 1;
        let is_running = |known: &Running| known.identity.boot == run.boot;
        if !self.at(node).running.as_ref().is_some_and(is_running) {
            return;
        }
        self.note(|| format!("{by} refuses {node}, which was set back"));
        if !self.at(node).disk.is_set_back() {
            let what = || format!("node {by} takes node {node} for set back, which it is not");
            self.history.violate(Invariant::Possible, what);
        }
        self.stop_set_back(node, "set back: refused by a peer");
    }

    fn stop_set_back(&mut self, node: NodeId, how: &'static str) {
        self.count(how);
        self.crash(node);
        self.close(node);
        let after_ns = self.random.u64(500..3_000) * MS;
        self.schedule_world(after_ns, Event::End { end: End::SetBack(node) });
    }

    /// Whether what `from` has sent in this run comes to a node whose disk is set back. Here what is on its
    /// way to one run of a process comes to the next, too, which Raft bears; a disk that is set back it
    /// does not, and there a connection ends with the process at either end, as it does everywhere, and
    /// whoever opens another looks at what the new run names before he sends anything.
    fn comes_to_set_back(&mut self, to: NodeId, from: NodeId, run: Run) -> bool {
        if !self.checks_positions() {
            return true;
        }
        let theirs = self.at(to).run();
        let sender = self.at(from).running.as_ref();
        let Some(sender) = sender.filter(|sender| sender.identity.boot == run.boot) else {
            return false;
        };
        let is_known = sender.shared.positions().check(to, theirs.boot, theirs.began).is_ok();
        if !is_known {
            self.refuse_run(from, to, theirs);
        }
        is_known
    }

    pub(crate) fn receive(&mut self, to: NodeId, from: NodeId, run: Run, bytes: &[u8]) {
        if self.at(to).disk.is_set_back() && !self.comes_to_set_back(to, from, run) {
            return;
        }
        if !self.greet(to, from, run) {
            return;
        }
        let message = RaftMessage::decode(bytes).expect("what a replica sends has an encoding");
        let store = self.at(from).store;
        let taken =
            self.with(to, |replica, now| replica.handle_message(now, from, store, &message));
        let Err(error) = taken else {
            let boot = self.at(to).run().boot;
            self.history.heard(boot, from, self.monotonic_ns(to));
            self.history.taken(to, (from, run.boot), &message);
            return;
        };
        self.summary.refusals += 1;
        self.note(|| format!("{to} refuses {message:?} of {from}: {error}"));
        let is_expected = self.plant().is_some_and(Plant::is_in_disk);
        match error {
            MessageError::LostEntries { .. } if self.at(to).disk.is_set_back() => {
                self.stop_set_back(to, "set back: the leader knows of more");
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
            MessageError::Impossible if !is_expected => {
                let what = || format!("{from} sent {message:?} to {to}");
                self.history.violate(Invariant::Possible, what);
            }
            _ => {}
        }
    }

    /// Does what a replica wants done, in steps between which anything of the workers may come, if the
    /// run is of that kind. The next call of the replica comes after all of them.
    pub(crate) fn pump(&mut self, id: NodeId) {
        self.take_applied(id);
        let mut shares = self.take_shares(id);
        let has_seen = !shares.is_empty();
        if self.is_planted(Plant::PublishedFirst) {
            shares.sort_by_key(|share| matches!(share, Share::Raise(_)));
        }
        let release = if self.is_planted(Plant::ReleasedFirst) { 0 } else { shares.len() };
        shares.insert(release, Share::Release);
        self.node(id).running_mut().shares.extend(shares);
        if self.weather.step_ns > 0 && has_seen {
            self.next_step(id, Event::Share);
        } else {
            self.settle(id);
        }
    }

    /// Takes all steps that the last call of the replica has yet to take.
    pub(crate) fn settle(&mut self, id: NodeId) {
        while self.share(id) {}
    }

    /// Takes the next step after a call of the replica. `false` when there was none.
    pub(crate) fn share(&mut self, id: NodeId) -> bool {
        let Some(share) = self.node(id).running_mut().shares.pop_front() else { return false };
        self.take_share(id, share);
        true
    }

    fn take_share(&mut self, id: NodeId, share: Share) {
        // A planted bug is found by what comes of it, as everywhere.
        let looks_inside = self.plant().is_none();
        let running = self.nodes[id.0 as usize - 1].running_mut();
        match share {
            Share::Raise(promise) => {
                let before = running.seen.promise.load();
                running.seen.promise.raise(promise);
                if promise > before {
                    self.note(|| format!("{id} promises term {promise}"));
                }
            }
            Share::Publish(published) => {
                if looks_inside {
                    self.history.check_published(&published, running.seen.promise.load());
                }
                running.seen.publish(published.clone());
                self.note(|| {
                    let Published { term, role, leader, grant, .. } = &*published;
                    format!("{id} publishes term {term}, {role:?}, leader {leader:?}, {grant:?}")
                });
            }
            Share::Release => self.release(id),
        }
    }

    /// Shows the history what a replica has applied.
    fn take_applied(&mut self, id: NodeId) {
        let running = self.nodes[id.0 as usize - 1].running_mut();
        let (identity, applied) = (running.identity, running.replica.applied());
        if applied != running.applied {
            running.applied = applied;
            if let Some(settings) = running.replica.settings() {
                running.clock.set_bound_ns(settings.clock_offset_max_ms * MS);
            }
            let published = running.shared.published();
            self.history.applied(identity, applied, running.replica.state(), &published);
        }
    }

    /// Hands writes to the disk and messages to the links, and reads reports.
    fn release(&mut self, id: NodeId) {
        let is_lying = self.is_planted(Plant::LyingDisk);
        while let Some(write) = self.node(id).running_mut().replica.poll_write() {
            let number = write.number;
            self.note(|| format!("{id} writes {write:?}"));
            self.see_reserved(id, &write);
            let disk = &mut self.node(id).disk;
            disk.submit(write);
            self.begin_write(id);
            if is_lying {
                let now_ns = self.monotonic_ns(id);
                let running = self.node(id).running_mut();
                running.replica.handle_persisted(now_ns, number);
                for share in self.take_shares(id) {
                    self.take_share(id, share);
                }
                self.take_applied(id);
            }
        }
        self.send_messages(id);
        while let Some(report) = self.node(id).running_mut().replica.poll_report() {
            self.note(|| format!("{id} reports {report:?}"));
            self.summary.take_report(&report);
            if matches!(report, Report::Leadership { .. } | Report::Changed { .. }) {
                self.provoke(id);
            }
            if let Report::Leadership { term, role: Role::Leader, .. } = report {
                self.check_departed(id, term);
            }
            if let Report::Advanced { to } = report {
                self.history.advanced(to);
            }
            if let Report::HandingOver { to, why: HandOver::Preferred } = report {
                self.prefers(id, to);
            }
            if let Report::HandingOver { why: HandOver::ClientsCut, .. } = report {
                self.count("handover where accepts fail");
            }
            if let Report::SettingsChanged { outcome: Outcome::Set, .. } = report {
                self.count("settings taken in");
            }
            if matches!(report, Report::Removed) {
                self.count("member removed");
            }
        }
    }

    /// Who was told to stop leads at most in the term that it was told in, which others may have voted in.
    fn check_departed(&mut self, id: NodeId, term: Term) {
        let told = self.at(id).running().departed_in;
        if let Some(told) = told.filter(|told| term > *told) {
            let what = || format!("node {id} was told to stop in term {told} and leads in {term}");
            self.history.violate(Invariant::Possible, what);
        }
    }

    /// Shows the history what a leader proposes to reserve.
    fn see_reserved(&mut self, id: NodeId, write: &Write) {
        let running = self.at(id).running();
        let (identity, trusted_ns) = (running.identity, running.trusted_ns);
        let status = running.replica.status();
        for entry in &write.entries {
            // Its own, of the term that it leads: others come from whoever led before.
            let is_own = status.role == Role::Leader && status.term == entry.term;
            if is_own && let Ok(Command::Reserve { until, .. }) = Command::decode(&entry.data) {
                self.history.reserves(identity, until, trusted_ns);
            }
        }
    }

    /// What may leave leaves.
    fn send_messages(&mut self, id: NodeId) {
        while let Some(out) = self.node(id).running_mut().replica.poll_message() {
            let node = &self.nodes[id.0 as usize - 1];
            let identity = node.running().identity;
            // As the workers see it now.
            let promise = node.running().seen.promise.load();
            let is_disk = self.plant().is_some_and(Plant::is_in_disk);
            let disk = (!is_disk).then(|| node.disk.durable());
            self.history.released(identity, &out, promise, disk);
            // Whoever was set back has forgotten what it promised; nobody takes its word.
            if !node.disk.is_set_back() {
                self.history.promised(identity, &out);
            }
            // As where it waits in a socket of a machine that goes away and closes nothing.
            let is_snapshot = out.message.kind == MessageKind::Snapshot;
            if is_snapshot && self.nemesis.pause_ns > 0 && self.chance(SNAPSHOTS_LOST) {
                self.count("snapshot lost");
                continue;
            }
            let mut bytes = vec![];
            out.message.encode(&mut bytes);
            let bytes: Rc<[u8]> = bytes.into();
            let run = self.at(id).run();
            self.send(id, out.to, &Event::Raft { from: id, run, bytes });
            // The largest message there is: its connection may break under it.
            if is_snapshot && self.chance(SNAPSHOTS_BROKEN) {
                let after_ns = self.link_ns();
                self.schedule_own(id, after_ns, Event::Closed { peer: out.to });
            }
        }
    }

    /// What the last call of a replica has done towards the workers, each step of it; or what a planted
    /// bug makes of that, which looks at what is published in the end.
    fn take_shares(&mut self, id: NodeId) -> Vec<Share> {
        let plant = self.plant().filter(|plant| plant.is_in_publication());
        let running = self.node(id).running_mut();
        let is_fresh = running.replica.take_published();
        let mut shares: Vec<Share> =
            running.shared.take_steps().into_iter().map(Share::from).collect();
        let is_published = shares.iter().any(|share| matches!(share, Share::Publish(_)));
        // In production that is how workers hear of it.
        assert_eq!(is_fresh, is_published, "what {id} publishes is told to its workers");
        let Some(plant) = plant else { return shares };
        let (fresh, seen) = (running.shared.published(), running.seen.published());
        if fresh.grant.is_some() {
            running.hands_over = running.replica.is_handing_over();
        }
        let is_kept = match plant {
            Plant::RevokedLate => fresh.grant.is_none(),
            Plant::TransferKeepsGrant => fresh.grant.is_none() && running.hands_over,
            Plant::CoalescedPublication => {
                let term = |grant: Option<Grant>| grant.map(|grant| grant.term);
                !running.ticks.is_multiple_of(LOOK_TICKS) && term(fresh.grant) != term(seen.grant)
            }
            _ => false,
        };
        let grant = if is_kept { seen.grant.or(fresh.grant) } else { fresh.grant };
        if is_fresh || grant != seen.grant {
            shares.retain(|share| matches!(share, Share::Raise(_)));
            let published = Published { grant, ..Published::clone(&fresh) };
            shares.push(Share::Publish(Arc::new(published)));
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use epicepoch_wire::Term;

    use super::*;
    use crate::world::SECOND;

    #[test]
    fn workers_see_every_step_of_a_call_in_the_order_in_which_the_core_took_it() {
        let mut world = World::new(1, 3, 0, None);
        let id = NodeId(1);
        world.start(id);
        world.weather.step_ns = MS;
        let running = world.node(id).running_mut();
        let of =
            |term| Published { term: Term(term), ..Published::clone(&running.seen.published()) };
        for published in [of(0), of(9)] {
            running.shared.publish(Arc::new(published));
        }
        running.shared.raise(Term(9));
        let shares: Vec<Share> = running.shared.take_steps().into_iter().map(Share::from).collect();
        let [Share::Publish(_), Share::Publish(_), Share::Raise(Term(9))] = shares[..] else {
            panic!("{shares:?}")
        };
        running.shares.extend(shares);
        world.share(id);
        assert_eq!(world.history.violation, None);
        world.share(id);
        let violation = world.history.violation.as_ref().map(|violation| violation.invariant);
        assert_eq!(
            violation,
            Some(Invariant::PromiseFirst),
            "it is published before it is promised"
        );
    }

    #[test]
    fn who_was_told_to_stop_and_leads_in_a_later_term_is_found() {
        let mut world = World::new(1, 3, 0, None);
        let id = NodeId(1);
        world.start(id);
        world.check_departed(id, Term(9));
        world.node(id).running_mut().departed_in = Some(Term(8));
        world.check_departed(id, Term(8));
        assert_eq!(world.history.violation, None, "others may have voted in that term");
        world.check_departed(id, Term(9));
        let violation = world.history.violation.as_ref().map(|violation| violation.invariant);
        assert_eq!(violation, Some(Invariant::Possible));
    }

    #[test]
    fn to_a_disk_that_is_set_back_comes_nothing_that_an_earlier_run_was_sent() {
        let mut world = World::new(1, 3, 0, None);
        for id in world.ids() {
            world.start(id);
        }
        world.live_until(SECOND, None).expect("nothing is wrong");
        let (other, back) = (NodeId(1), NodeId(3));
        world.node(back).disk.copy();
        world.live_until(4 * SECOND, None).expect("nothing is wrong");
        world.crash(back);
        world.node(back).disk.set_back();
        world.start(back);
        let run = world.at(other).run();
        let earlier = Run { boot: BootId(run.boot.0 - 1), ..run };
        assert!(!world.comes_to_set_back(back, other, earlier));
        assert!(world.at(back).running.is_some(), "that connection has ended: nobody was asked");
        assert!(!world.comes_to_set_back(back, other, run));
        assert!(world.at(back).running.is_none(), "who opens another one remembers more");
    }
}
