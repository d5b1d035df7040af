//! The nemesis: faults of every kind, one after another and at the same time, each for a while.
//! Their number and kinds are drawn per run. In the end all faults heal. The nemesis changes only
//! the core's surroundings.

pub(crate) mod clocks;
mod healing;
mod processes;

pub(crate) use clocks::{OFFSET_MS, RATE_PPM};
use epicepoch_wire::NodeId;
pub(crate) use healing::Lasting;

use crate::disk::Disk;
use crate::event::{AdminCommand, End, Event};
use crate::network_conditions::NetworkConditions;
use crate::parameters::{MS, NODES_MAX, SECOND, THREADS};
use crate::plane::Plane;
use crate::world::World;
use crate::world::features::Feature;

/// A kind of fault.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Crash,
    Restart,
    PauseRaft,
    PauseWorkers,
    PauseAll,
    Partition,
    SlowLinks,
    Disk,
    Clock,
    HandOver,
    CloseLinks,
    Members,
    Mistake,
    RestartAll,
}

/// Every kind of fault with its usual weight. The weights decide how often each kind is drawn.
const KINDS: [(Kind, u32); 14] = [
    (Kind::Crash, 6),
    (Kind::Restart, 8),
    (Kind::PauseRaft, 6),
    (Kind::PauseWorkers, 4),
    (Kind::PauseAll, 6),
    (Kind::Partition, 14),
    (Kind::SlowLinks, 6),
    (Kind::Disk, 6),
    (Kind::Clock, 6),
    (Kind::HandOver, 4),
    (Kind::CloseLinks, 2),
    (Kind::Members, 24),
    (Kind::Mistake, 3),
    (Kind::RestartAll, 3),
];

/// The faults of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Nemesis {
    /// Longest pause between two faults, nanoseconds; 0 once all faults have healed.
    pub(crate) pause_ns: u64,
    /// From this time on no fault begins, but links stay as bad as they are. Such a calm reveals a
    /// bad state of the core that the next fault would repair.
    calm_at_ns: u64,
    /// Until this time no fault begins, because some faults need quiet for a while.
    lull_until_ns: u64,
    /// Longest duration of a fault, nanoseconds.
    pub(crate) lasts_ns: u64,
    /// This many of a thousand faults that pause threads may last up to a minute.
    long: u32,
    /// The weight of each of [`KINDS`]. Most runs lack some kinds and have many faults of others. A
    /// kind that is in every run hides bugs that need its absence (swarm testing: Groce et al.,
    /// 2012).
    mix: [u32; KINDS.len()],
    /// Chances per thousand. `provoked`: an election or a change of members provokes a fault.
    /// `divided`: a change of members provokes a partition between new and old members.
    provoked: u32,
    pub(crate) divided: u32,
    /// When a fault was last provoked.
    provoked_at_ns: u64,
    pub(crate) is_clock: bool,
    /// Whether only a minority of the voters' clocks is broken at a time and the voters stay the
    /// same. If so, no broken clock may move the ceiling.
    pub(crate) is_clock_minority: bool,
    /// Number of first members. Nodes with higher ids are spare.
    pub(crate) voters: u64,
    pub(crate) nonce: u64,
    /// For each node, the fault that does not heal with the rest, if any.
    lasting: [Option<Lasting>; NODES_MAX],
}

/// For each kind of fault one of these factors is drawn, which multiplies its usual weight in a
/// run.
const SWARM: [u32; 6] = [0, 1, 1, 2, 4, 8];
/// Shortest time between two provoked faults, nanoseconds. A fault may provoke others, and a power
/// failure one per node, so they could multiply without end.
const PROVOKED_PAUSE_NS: u64 = 100 * MS;
/// This many of a thousand partitions of the Raft links also slow the node's links.
const SLOW_BESIDE: u32 = 500;
/// For runs in which nodes fail to accept clients. `FAILING_ACCEPTS` of a thousand faults come
/// together with such a failure. `FAILING_EVERYWHERE` of a thousand such failures are at all nodes.
/// A failure lasts for a time in `FAILING_NS`, nanoseconds.
const FAILING_ACCEPTS: u32 = 150;
const FAILING_EVERYWHERE: u32 = 200;
const FAILING_NS: (u64, u64) = (100 * MS, 10 * SECOND);
/// In runs whose confirm links break by themselves, this many of a thousand faults come together
/// with such a break.
const BROKEN_LINKS: u32 = 500;
/// This many of a thousand changes of members repeat a change that is already done.
const REPEATED: u32 = 250;
/// In `CALM_RUNS` of a thousand runs, no fault begins in the last part of the run before all faults
/// heal. This part lasts for a time in `CALM_NS`, nanoseconds.
const CALM_RUNS: u32 = 300;
const CALM_NS: (u64, u64) = (2 * SECOND, 10 * SECOND);

impl World {
    pub(crate) fn fault(&mut self) {
        let pause_ns = self.nemesis.pause_ns;
        if pause_ns == 0 {
            return;
        }
        // Sometimes one fault follows soon after another, for example during an election.
        let next_ns = if self.chance(250) {
            self.random.u64(MS..=30 * MS)
        } else {
            self.random.u64(20 * MS..=pause_ns)
        };
        self.schedule_world(next_ns, Event::Fault);
        if self.chance(100) {
            let copied = self.any();
            self.node(copied).disk.copy();
        }
        let node = if self.random.bool() { self.any_leading() } else { self.any() };
        if self.has(Feature::FailingAccepts) && self.chance(FAILING_ACCEPTS) {
            self.fail_accepts(node);
        }
        if self.has(Feature::ConfirmLinks) && self.chance(BROKEN_LINKS) {
            self.break_confirm_links(node);
        }
        self.change_lease_clock(node);
        self.usurp_any();
        self.strike(node);
    }

    /// An election or a change of members begins on a node. In some runs a fault often strikes a
    /// moment later, while the messages are under way.
    pub(crate) fn provoke(&mut self, node: NodeId) {
        let is_calm = self.now_ns >= self.nemesis.provoked_at_ns + PROVOKED_PAUSE_NS;
        if self.nemesis.pause_ns == 0 || !is_calm || !self.chance(self.nemesis.provoked) {
            return;
        }
        self.nemesis.provoked_at_ns = self.now_ns;
        let node = if self.random.bool() { node } else { self.any() };
        let after_ns = self.random.u64(0..=2 * self.conditions.delay_ns.1);
        self.schedule_world(after_ns, Event::Strike { node });
    }

    /// Whether the mix of the run has pauses of the consensus plane alone.
    pub(crate) fn has_consensus_pauses(&self) -> bool {
        let mut mix = self.nemesis.mix.iter().zip(KINDS);
        mix.any(|(weight, (kind, _))| matches!(kind, Kind::PauseRaft) && *weight > 0)
    }

    /// Whether the mix of the run has faults of disks.
    pub(crate) fn has_disk_faults(&self) -> bool {
        let mut mix = self.nemesis.mix.iter().zip(KINDS);
        mix.any(|(weight, (kind, _))| matches!(kind, Kind::Disk) && *weight > 0)
    }

    /// The consensus plane of a node is paused at the moment when the node is asked to lead.
    pub(crate) fn pause_consensus(&mut self, node: NodeId, lasts_ns: u64) {
        if !self.is_quiet() && self.at(node).running.is_some() && !self.is_paused(node) {
            self.count("successor paused");
            self.record(|| format!("{node}: successor paused for {} ms", lasts_ns / MS));
            self.pause(node, Plane::Raft.threads(), lasts_ns);
        }
    }

    /// Whether faults may not begin now.
    pub(crate) const fn is_quiet(&self) -> bool {
        let Nemesis { pause_ns, calm_at_ns, lull_until_ns, .. } = self.nemesis;
        pause_ns == 0 || self.now_ns >= calm_at_ns || self.now_ns < lull_until_ns
    }

    /// Starts one fault of a kind that the run's mix allows.
    pub(crate) fn strike(&mut self, node: NodeId) {
        let Nemesis { lasts_ns, mix, .. } = self.nemesis;
        if self.is_quiet() {
            return;
        }
        let lasts_ns = self.random.u64(20 * MS..=lasts_ns);
        let mut drawn = self.random.u32(0..mix.iter().sum());
        let kind = mix.iter().zip(KINDS).find_map(|(weight, (kind, _))| {
            let is_it = drawn < *weight;
            drawn = drawn.saturating_sub(*weight);
            is_it.then_some(kind)
        });
        let kind = kind.expect("the draw is below the sum of the weights");
        // A fault of these kinds has no effect on a node that is down, so another node is taken.
        let is_of_process = matches!(
            kind,
            Kind::Crash | Kind::Restart | Kind::PauseRaft | Kind::PauseWorkers | Kind::PauseAll
        );
        let node = if is_of_process { self.running_or_another(node) } else { node };
        match kind {
            Kind::Crash => self.stop(node, lasts_ns),
            Kind::Restart => self.stop(node, 0),
            Kind::SlowLinks => self.slow_links(node, lasts_ns),
            Kind::PauseRaft => {
                self.pause_for("consensus paused", node, Plane::Raft.threads(), lasts_ns);
            }
            Kind::PauseWorkers => self.pause_workers(node, lasts_ns),
            Kind::PauseAll => self.pause_for("process paused", node, 0..THREADS, lasts_ns),
            Kind::Partition => self.partition(node, lasts_ns),
            Kind::Disk => self.break_disk(node, lasts_ns),
            Kind::Clock => self.break_clock(node, lasts_ns),
            Kind::HandOver => self.admin(node, AdminCommand::HandOver),
            Kind::CloseLinks => self.close_links(node),
            Kind::Members => {
                let leader = self.any_leading();
                let is_repeat = self.chance(REPEATED);
                let command = if is_repeat { AdminCommand::Repeat } else { AdminCommand::Members };
                self.admin(leader, command);
            }
            Kind::Mistake => self.admin(node, AdminCommand::Mistake),
            Kind::RestartAll => self.restart_all(lasts_ns),
        }
    }

    fn partition(&mut self, node: NodeId, lasts_ns: u64) {
        let planes: &[Plane] = match self.random.u32(0..5) {
            0..2 => &[Plane::Raft, Plane::Workers],
            2..4 => &[Plane::Raft],
            _ => &[Plane::Workers],
        };
        let others: Vec<NodeId> = self.ids().filter(|other| *other != node).collect();
        let what = match self.random.u32(0..7) {
            0 | 1 => {
                self.cut_all(&[node], &others, planes, true);
                "node cut off"
            }
            5.. => {
                // Draws two sides: `node` with some others, and the rest.
                let (mut side, mut rest) = (vec![node], vec![]);
                for other in others {
                    if self.random.bool() { side.push(other) } else { rest.push(other) }
                }
                self.cut_all(&side, &rest, planes, true);
                "split in two"
            }
            2 => {
                let is_out = self.random.bool();
                let (from, to) = (&[node][..], &others[..]);
                let (from, to) = if is_out { (from, to) } else { (to, from) };
                self.cut_all(from, to, planes, false);
                "one-way cut"
            }
            3 => {
                // Cuts the others into two halves. Only `node` reaches both.
                let half = self.random.usize(0..=others.len());
                self.cut_all(&others[..half], &others[half..], planes, true);
                "bridge partition"
            }
            _ => {
                for _ in 0..self.random.usize(1..8) {
                    let (from, to) = (self.any(), self.any());
                    self.cut_all(&[from], &[to], planes, false);
                }
                "links cut"
            }
        };
        self.count(what);
        self.record(|| format!("{node}: {what}, {planes:?}, for {} ms", lasts_ns / MS));
        self.schedule_world(lasts_ns, Event::End { end: End::Links });
        // A node whose Raft links are cut does not hear of elections. On slow links it may still
        // get yes answers that voters sent before an election.
        if planes == [Plane::Raft] && self.chance(SLOW_BESIDE) {
            self.slow_links(node, lasts_ns);
        }
    }

    pub(crate) fn cut_all(
        &mut self,
        from: &[NodeId],
        to: &[NodeId],
        planes: &[Plane],
        is_both: bool,
    ) {
        for plane in planes {
            for (a, b) in from.iter().flat_map(|a| to.iter().map(move |b| (*a, *b))) {
                self.links.cut(a, b, *plane);
                if is_both {
                    self.links.cut(b, a, *plane);
                }
            }
        }
    }

    fn break_disk(&mut self, node: NodeId, lasts_ns: u64) {
        let slow_ns = self.random.u64(5..1_500) * MS;
        let kind = self.random.u32(0..14);
        match kind {
            10..12 => return self.rot(node, lasts_ns),
            12.. => return self.rolled_back(node, lasts_ns),
            _ => {}
        }
        let disk = &mut self.node(node).disk;
        let what = match kind {
            0..4 => {
                disk.write_ns = slow_ns;
                "disk slow"
            }
            4..7 => {
                disk.is_stuck = true;
                "disk stuck"
            }
            7 => {
                disk.is_failing = true;
                "disk failing"
            }
            _ => {
                disk.is_full = true;
                "disk full"
            }
        };
        self.count(what);
        self.record(|| format!("{node}: {what} for {} ms", lasts_ns / MS));
        self.schedule_world(lasts_ns, Event::End { end: End::Disk(node) });
    }

    /// Flips a bit of the disk while the process is down, then starts the process again. If its
    /// storage notices the damage, it stays down until the disk is repaired.
    fn rot(&mut self, node: NodeId, lasts_ns: u64) {
        self.count("disk bit flipped");
        self.crash(node);
        let mut random = self.random.fork();
        self.node(node).disk.rot(&mut random);
        self.record(|| format!("{node}: a bit of its disk turns over"));
        self.schedule_world(MS, Event::End { end: End::Start(node) });
        self.schedule_world(lasts_ns, Event::End { end: End::Disk(node) });
    }

    /// Takes a copy of a disk, or rolls the disk back to its copy. It rolls back only if all other
    /// nodes durably remember a later position, so that every peer must refuse the node.
    fn rolled_back(&mut self, node: NodeId, lasts_ns: u64) {
        let is_apt = |disk: &Disk| match disk.copied_at() {
            Some(copied) => self.nodes.iter().filter(|other| other.id != node).all(|other| {
                other.disk.durable().positions.of(node) > copied && !other.disk.is_rolled_back()
            }),
            None => false,
        };
        let disk = &self.at(node).disk;
        if self.nemesis.voters < 3 || disk.is_rolled_back() || disk.is_damaged() {
            return;
        }
        let is_copied = disk.copied_at().is_some();
        if !is_apt(disk) {
            if self.random.bool() || !is_copied {
                self.node(node).disk.copy();
            }
            return;
        }
        self.count("disk rolled back");
        self.record(|| format!("{node}: its disk is rolled back to an older copy"));
        self.crash(node);
        self.node(node).disk.rolled_back();
        self.schedule_world(MS, Event::End { end: End::Start(node) });
        self.schedule_world(lasts_ns * 3, Event::End { end: End::RolledBack(node) });
    }

    /// For a while new clients cannot connect to one node, or to any node. The failure is often
    /// long enough for a leader to notice.
    fn fail_accepts(&mut self, node: NodeId) {
        if self.now_ns >= self.nemesis.calm_at_ns {
            return;
        }
        self.count("accepts failing");
        let are_all = self.chance(FAILING_EVERYWHERE);
        for id in self.ids().filter(|id| are_all || *id == node) {
            let lasts_ns = self.random.u64(FAILING_NS.0..=FAILING_NS.1);
            self.record(|| format!("{id}: accepts fail for {} ms", lasts_ns / MS));
            self.fail_accepts_of(id, lasts_ns);
        }
    }

    /// For `lasts_ns` the node accepts no new client. A failure of this kind that ends later keeps
    /// its end.
    fn fail_accepts_of(&mut self, id: NodeId, lasts_ns: u64) {
        let until_ns = self.now_ns + lasts_ns;
        let node = self.node(id);
        node.accepts_fail_until_ns = node.accepts_fail_until_ns.max(until_ns);
    }

    fn close_links(&mut self, node: NodeId) {
        let peer = self.any();
        let is_running = |id: NodeId| self.at(id).running.is_some();
        if peer != node && is_running(peer) && is_running(node) {
            self.count("link broken");
            self.schedule_own(peer, 0, Event::Closed { peer: node });
        }
    }

    pub(crate) fn end(&mut self, end: End) {
        // All other faults of such a node have ended before, and its lasting fault must not end.
        if end.node().is_some_and(|node| self.lasting(node).is_some()) {
            return;
        }
        match end {
            End::Start(node) => self.start_if_down(node),
            // A process that has ended by itself meanwhile is not stopped again.
            End::Stop(node, down_ns) if self.is_stopping(node) => self.stop_at_once(node, down_ns),
            End::Stop(..) => {}
            End::Links => {
                self.join_links();
                self.cut_lasting();
            }
            End::Slow => self.links.hasten(),
            End::ConfirmLinks(node, worker, nodes) => self.join_confirm_links(node, worker, nodes),
            // The thread stays paused if another pause that ends later has begun meanwhile.
            End::Pause(node, thread) => {
                if self.at(node).paused_until_ns[thread] <= self.now_ns {
                    self.resume(node, thread);
                }
            }
            End::Disk(node) => {
                let is_back = self.node(node).disk.repair();
                if is_back {
                    self.start_if_down(node);
                }
            }
            End::RolledBack(node) => {
                if self.at(node).disk.is_rolled_back() {
                    self.crash(node);
                    self.node(node).disk.put_back();
                }
                self.start_if_down(node);
            }
            End::Update(node) => self.update(node),
            End::BackUp => self.back_up(),
            End::Clock(node) => self.set_clock_right(node),
        }
    }

    /// Draws the faults of the run until `end_ns`, and starts the first ones.
    pub(crate) fn draw_faults(&mut self, voters: u64, end_ns: u64) {
        let is_clock_minority =
            voters >= 3 && self.nodes.len() as u64 == voters && self.chance(700);
        // Restores assume right clocks (S13), so runs with restores break no clock.
        let is_clock = self.random.bool() && (is_clock_minority || !self.has(Feature::Restores));
        let is_membership = self.nodes.len() as u64 > voters;
        let plain = KINDS.map(|(kind, weight)| match kind {
            Kind::Clock if !is_clock => 0,
            Kind::Members if !is_membership => 0,
            _ => weight,
        });
        let wild = plain.map(|weight| weight * SWARM[self.random.usize(0..SWARM.len())]);
        let is_wild = self.chance(500) && wild.iter().any(|weight| *weight > 0);
        let mix = if is_wild { wild } else { plain };
        self.nemesis = Nemesis {
            pause_ns: self.random.u64(300..3_000) * MS,
            calm_at_ns: if self.chance(CALM_RUNS) {
                end_ns.saturating_sub(self.random.u64(CALM_NS.0..=CALM_NS.1))
            } else {
                u64::MAX
            },
            lull_until_ns: 0,
            lasts_ns: self.random.u64(300..6_000) * MS,
            long: if self.chance(300) { self.random.u32(10..60) } else { 0 },
            mix,
            provoked: if self.random.bool() { self.random.u32(20..400) } else { 0 },
            provoked_at_ns: 0,
            divided: if self.random.bool() { self.random.u32(100..700) } else { 0 },
            is_clock,
            is_clock_minority,
            voters,
            nonce: 0,
            lasting: [None; NODES_MAX],
        };
        let is_rough = self.random.bool();
        let is_old = self.chance(300);
        self.conditions = NetworkConditions {
            delay_ns: (50_000, self.random.u64(1..=if is_rough { 8 } else { 2 }) * MS),
            lost: if is_rough { self.random.u32(0..50) } else { 0 },
            doubled: if is_rough { self.random.u32(0..100) } else { 0 },
            astray: if self.chance(100) { self.random.u32(1..20) } else { 0 },
            late: self.random.u32(0..if is_old { 5 } else { 30 }),
            late_ns: if is_old { 180 * SECOND } else { self.random.u64(10..2_000) * MS },
            together: self.random.u32(0..500),
            step_ns: if self.random.bool() { self.random.u64(100_000..3 * MS) } else { 0 },
            round_ns: self.random.u64(200..1_000) * MS,
        };
        self.draw_distance();
        for at in 0..self.nodes.len() {
            let (write_ns, offset_ms) =
                (self.random.u64(100_000..3 * MS), self.random.i64(-OFFSET_MS..OFFSET_MS));
            let rate_ppm = self.random.i64(-RATE_PPM..=RATE_PPM);
            let node = &mut self.nodes[at];
            node.disk.write_ns = write_ns;
            node.clock.offset_ns = offset_ms * MS as i64;
            node.clock.rate_ppm = rate_ppm;
        }
        let first_ns = self.random.u64(100..1_000) * MS;
        self.schedule_world(first_ns, Event::Fault);
    }
}

#[cfg(test)]
impl Nemesis {
    /// Makes a nemesis that lets faults begin but schedules none.
    pub(crate) fn idle() -> Self {
        Self { pause_ns: SECOND, calm_at_ns: u64::MAX, lasts_ns: SECOND, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_that_fail_for_longer_go_on_failing_when_others_have_ended() {
        let mut world = World::new(1, 3, 0, None);
        let node = NodeId(2);
        world.fail_accepts_of(node, 10 * SECOND);
        world.fail_accepts_of(node, SECOND);
        world.live_until(9 * SECOND, None).expect("nothing is wrong");
        assert!(world.do_accepts_fail(node));
        world.live_until(11 * SECOND, None).expect("nothing is wrong");
        assert!(!world.do_accepts_fail(node));
    }
}
