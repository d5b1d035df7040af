//! Process faults: a process is told to stop, crashes, restarts, or is paused as a whole or by
//! thread.

use std::ops::Range;

use epicepoch_core::node::Node as Consensus;
use epicepoch_wire::NodeId;

use crate::disk::Disk;
use crate::event::{End, Event};
use crate::parameters::{MS, SECOND, THREADS};
use crate::plane::Plane;
use crate::plant::Plant;
use crate::world::World;
use crate::world::features::Feature;

/// How long a long pause lasts, nanoseconds. Most long pauses end before all faults heal; the
/// others end at that moment.
const LONG_NS: (u64, u64) = (6 * SECOND, 60 * SECOND);
/// Time from when a process is told to stop until it ends, nanoseconds. Meanwhile it serves its
/// clients.
const DEPARTING_NS: (u64, u64) = (MS, 3 * SECOND);
/// Longest time from the end of the workers of such a process until it ends, nanoseconds. It is more
/// than an election takes.
const WORKERLESS_NS_MAX: u64 = SECOND;

impl World {
    /// A running node: `node` if it runs, otherwise any other; `node` again if none runs.
    pub(super) fn running_or_another(&mut self, node: NodeId) -> NodeId {
        let is_running = |id: &NodeId| self.at(*id).running.is_some();
        if is_running(&node) {
            return node;
        }
        let running: Vec<NodeId> = self.ids().filter(is_running).collect();
        if running.is_empty() { node } else { running[self.random.usize(0..running.len())] }
    }

    /// Stops a process and starts it again later. It may be told to stop some time before it ends.
    pub(super) fn stop(&mut self, node: NodeId, down_ns: u64) {
        let Some(running) = &self.at(node).running else { return };
        if running.is_told_to_stop || !self.has(Feature::Shutdowns) || self.random.bool() {
            return self.stop_at_once(node, down_ns);
        }
        self.node(node).running_mut().is_told_to_stop = true;
        self.schedule_own(node, 0, Event::Shutdown);
        let lasts_ns = self.random.u64(DEPARTING_NS.0..=DEPARTING_NS.1);
        self.schedule_world(lasts_ns, Event::End { end: End::Stop(node, down_ns) });
        if self.random.bool() {
            let after_ns = lasts_ns - self.random.u64(0..=lasts_ns.min(WORKERLESS_NS_MAX));
            self.schedule_own(node, after_ns, Event::WorkersEnded);
        }
    }

    /// The consensus plane learns that its process is going to stop.
    pub(crate) fn depart(&mut self, node: NodeId) {
        self.count("told to stop");
        self.record(|| format!("{node} is told to stop"));
        let running = self.node(node).running_mut();
        running.shutdown_in = Some(running.replica().status().term);
        self.drive(node, Consensus::handle_shutdown_request);
    }

    /// The workers end before the consensus plane does. Meanwhile the node votes, and may lead, but
    /// answers neither clients nor confirms.
    pub(crate) fn end_workers(&mut self, node: NodeId) {
        self.count("workers ended before consensus");
        self.record(|| format!("{node} ends its workers"));
        self.pause(node, Plane::Workers.threads(), 2 * WORKERLESS_NS_MAX);
    }

    pub(crate) fn stop_at_once(&mut self, node: NodeId, down_ns: u64) {
        self.count(if down_ns > 0 { "crash" } else { "restart at once" });
        self.crash(node);
        if self.random.bool() {
            self.close(node);
        }
        let is_member = node.0 <= self.nemesis.voters;
        if self.is_planted(Plant::WipedDisk) && is_member && self.random.bool() {
            let disk = Disk::founded(&self.genesis, true);
            self.node(node).disk = disk;
        }
        if down_ns == 0 {
            self.start(node);
        } else {
            self.schedule_world(down_ns, Event::End { end: End::Start(node) });
        }
    }

    /// Power fails for all nodes at once. A node that was down before starts again together with
    /// the others, or earlier.
    pub(super) fn restart_all(&mut self, down_ns: u64) {
        if self.nodes.iter().any(|node| node.running.is_some()) {
            self.count("power failure of all");
        }
        for id in self.ids() {
            self.crash(id);
            self.schedule_world(down_ns, Event::End { end: End::Start(id) });
        }
    }

    /// Pauses all workers of a node, or one of them.
    pub(super) fn pause_workers(&mut self, node: NodeId, lasts_ns: u64) {
        let threads = Plane::Workers.threads();
        if self.random.bool() {
            return self.pause_for("workers paused", node, threads, lasts_ns);
        }
        let one = self.random.usize(threads);
        self.pause_for("one worker paused", node, one..one + 1, lasts_ns);
    }

    pub(super) fn pause_for(
        &mut self,
        what: &'static str,
        node: NodeId,
        mut threads: Range<usize>,
        lasts_ns: u64,
    ) {
        let is_long = self.chance(self.nemesis.long);
        let lasts_ns = if is_long { self.random.u64(LONG_NS.0..=LONG_NS.1) } else { lasts_ns };
        let until_ns = self.now_ns + lasts_ns;
        let all = threads.clone();
        let is_longer = |thread| self.at(node).paused_until_ns[thread] < until_ns;
        if self.at(node).running.is_none() || !threads.any(is_longer) {
            return;
        }
        self.count(what);
        if is_long {
            self.count("of these pauses, for up to a minute");
        }
        self.record(|| format!("{node}: {what} for {} ms", lasts_ns / MS));
        if all == (0..THREADS) {
            // The whole machine may be suspended.
            let now_ns = self.now_ns;
            self.node(node).clock.lease.suspend(now_ns, until_ns);
            if self.random.bool() {
                self.node(node).is_suspended = true;
            }
        }
        self.pause(node, all, lasts_ns);
    }

    /// Whether the process runs and was told to stop.
    pub(super) fn is_stopping(&self, node: NodeId) -> bool {
        self.at(node).running.as_ref().is_some_and(|running| running.is_told_to_stop)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{KINDS, Kind, Nemesis};
    use crate::event::Asker;
    use crate::parameters::THREADS;

    use super::*;

    #[test]
    fn a_shorter_pause_ends_no_longer_one() {
        let mut world = World::new(1, 3, 0, None);
        let node = NodeId(2);
        world.start(node);
        world.pause(node, Plane::Raft.threads(), 10 * SECOND);
        world.live_until(SECOND, None).expect("nothing is wrong");
        world.pause(node, Plane::Raft.threads(), SECOND);
        let ticks = world.at(node).running().ticks;
        world.live_until(9 * SECOND, None).expect("nothing is wrong");
        assert_eq!(world.at(node).running().ticks, ticks, "it stands still");
        world.live_until(11 * SECOND, None).expect("nothing is wrong");
        assert!(world.at(node).running().ticks > ticks, "both are over");
    }

    /// Makes three nodes, of which those in `started` run, and strikes the first node with a fault
    /// of one kind. Returns the counts of faults, and how many nodes run afterwards.
    fn struck(kind: usize, started: &[u64]) -> (Vec<(&'static str, u64)>, usize) {
        let mut world = World::new(1, 3, 0, None);
        for id in started {
            world.start(NodeId(*id));
        }
        let mix = std::array::from_fn(|at| u32::from(at == kind));
        world.nemesis = Nemesis { mix, ..Nemesis::idle() };
        world.strike(NodeId(1));
        let running = world.nodes.iter().filter(|node| node.running.is_some()).count();
        (world.summary.faults.into_iter().collect(), running)
    }

    #[test]
    fn a_fault_of_processes_is_one_of_a_process_that_runs_or_is_none() {
        let kinds = KINDS.iter().enumerate().filter(|(_, (kind, _))| {
            use Kind::{Crash, PauseAll, PauseRaft, PauseWorkers, Restart, RestartAll};
            matches!(kind, Crash | Restart | PauseRaft | PauseWorkers | PauseAll | RestartAll)
        });
        for (at, (kind, _)) in kinds {
            assert_eq!(struck(at, &[]), (vec![], 0), "{kind:?}");
            let (counted, running) = struck(at, &[2, 3]);
            let runs_on = match kind {
                Kind::Crash => 1,
                Kind::RestartAll => 0,
                _ => 2,
            };
            assert_eq!(counted.iter().map(|(_, times)| times).sum::<u64>(), 1, "{kind:?}");
            assert_eq!(running, runs_on, "{kind:?}");
        }
    }

    #[test]
    fn one_worker_stands_still_and_the_other_answers() {
        let mut world = World::new(1, 1, 0, None);
        let node = NodeId(1);
        world.start(node);
        world.live_until(SECOND, None).expect("nothing is wrong");
        world.add_clients(1);
        world.clients[0].is_waiting = true;
        world.pause(node, 1..2, 10 * SECOND);
        for worker in 0..2 {
            let asker = Asker { client: 0, attempt: 10 + worker as u64 };
            world.schedule(node, None, MS, Event::Arrive { worker, asker, count: 1 });
        }
        world.live_until(9 * SECOND, None).expect("nothing is wrong");
        assert_eq!((world.summary.requests, world.summary.answered), (1, 1), "of the other");
        world.live_until(12 * SECOND, None).expect("nothing is wrong");
        assert_eq!((world.summary.requests, world.summary.answered), (2, 2));
    }

    #[test]
    fn a_pause_within_another_is_not_counted() {
        let mut world = World::new(1, 3, 0, None);
        world.start(NodeId(1));
        world.pause_for("process paused", NodeId(1), 0..THREADS, 2 * SECOND);
        world.pause_for("consensus paused", NodeId(1), Plane::Raft.threads(), SECOND);
        world.pause_for("workers paused", NodeId(1), Plane::Workers.threads(), 3 * SECOND);
        assert_eq!(
            world.summary.faults.into_iter().collect::<Vec<_>>(),
            [("process paused", 1), ("workers paused", 1)]
        );
    }
}
