//! The nemesis: faults of every kind, one after another and at the same time, each for a while.
//! How many and which is drawn per run; in the end everything heals. It never touches the core,
//! only what is around it.

use epicepoch_core::publication::Role;
use epicepoch_core::replica::HandOver;
use epicepoch_core::state::{MembershipChange, MembershipStep};
use epicepoch_wire::NodeId;

use crate::disk::Disk;
use crate::event::Event;
use crate::node::{Plane, member};
use crate::plant::Plant;
use crate::world::{MS, NODES_MAX, SECOND, Weather, World};

/// A fault that ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Start(NodeId),
    Links,
    Disk(NodeId),
    Clock(NodeId),
}

impl End {
    pub(crate) const fn node(self) -> Option<NodeId> {
        match self {
            Self::Start(node) | Self::Disk(node) | Self::Clock(node) => Some(node),
            Self::Links => None,
        }
    }
}

/// What a run's faults are like.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Nemesis {
    /// Longest pause between two faults; 0 once all has healed.
    pub(crate) pause_ns: u64,
    /// Longest time that one lasts.
    pub(crate) lasts_ns: u64,
    pub(crate) is_membership: bool,
    pub(crate) is_clock: bool,
    /// The first members; nodes above are spare.
    pub(crate) voters: u64,
    pub(crate) nonce: u64,
}

const RAFT: Plane = Plane::Raft;
const WORKERS: Plane = Plane::Workers;

impl World {
    pub(crate) fn fault(&mut self) {
        let Nemesis { pause_ns, lasts_ns, .. } = self.nemesis;
        if pause_ns == 0 {
            return;
        }
        // Often one fault follows at the heels of another: that is when elections are under way.
        let next_ns = if self.chance(250) {
            self.random.u64(MS..=30 * MS)
        } else {
            self.random.u64(20 * MS..=pause_ns)
        };
        self.schedule_world(next_ns, Event::Fault);
        let lasts_ns = self.random.u64(20 * MS..=lasts_ns);
        let node = if self.random.bool() { self.any_leading() } else { self.any() };
        match self.random.u32(0..32) {
            0..3 => self.stop(node, lasts_ns),
            3..7 => self.stop(node, 0),
            7..10 => self.pause_for("consensus paused", node, &[RAFT], lasts_ns),
            10..12 => self.pause_for("workers paused", node, &[WORKERS], lasts_ns),
            12..15 => self.pause_for("process paused", node, &[RAFT, WORKERS], lasts_ns),
            15..20 => self.partition(node, lasts_ns),
            20..23 => self.break_disk(node, lasts_ns),
            23..26 if self.nemesis.is_clock => self.break_clock(node, lasts_ns),
            26..28 => self.hand_over(node),
            28 => self.close_links(node),
            _ if self.nemesis.is_membership => self.change_members(),
            _ => self.restart_all(lasts_ns),
        }
    }

    /// Crashes a process, which starts again some time later.
    fn stop(&mut self, node: NodeId, down_ns: u64) {
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

    /// The power fails for all nodes at once; seldom.
    fn restart_all(&mut self, down_ns: u64) {
        if self.chance(800) {
            return;
        }
        self.count("power failure of all");
        for id in self.ids() {
            self.crash(id);
            self.schedule_world(down_ns, Event::End { end: End::Start(id) });
        }
    }

    fn pause_for(&mut self, what: &'static str, node: NodeId, planes: &[Plane], lasts_ns: u64) {
        self.count(what);
        self.note(|| format!("{node}: {what} for {} ms", lasts_ns / MS));
        for plane in planes {
            self.pause(node, *plane, lasts_ns);
        }
    }

    fn partition(&mut self, node: NodeId, lasts_ns: u64) {
        let planes: &[Plane] = match self.random.u32(0..5) {
            0..2 => &[RAFT, WORKERS],
            2..4 => &[RAFT],
            _ => &[WORKERS],
        };
        let others: Vec<NodeId> = self.ids().filter(|other| *other != node).collect();
        let what = match self.random.u32(0..5) {
            0 | 1 => {
                self.cut_all(&[node], &others, planes, true);
                "node cut off"
            }
            2 => {
                let is_out = self.random.bool();
                let (from, to) = (&[node][..], &others[..]);
                let (from, to) = if is_out { (from, to) } else { (to, from) };
                self.cut_all(from, to, planes, false);
                "one-way cut"
            }
            3 => {
                // Two halves that only `node` can reach.
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
        self.note(|| format!("{node}: {what}, {planes:?}, for {} ms", lasts_ns / MS));
        self.schedule_world(lasts_ns, Event::End { end: End::Links });
    }

    fn cut_all(&mut self, from: &[NodeId], to: &[NodeId], planes: &[Plane], is_both: bool) {
        for plane in planes {
            for (a, b) in from.iter().flat_map(|a| to.iter().map(move |b| (*a, *b))) {
                self.cut(a, b, *plane);
                if is_both {
                    self.cut(b, a, *plane);
                }
            }
        }
    }

    fn break_disk(&mut self, node: NodeId, lasts_ns: u64) {
        let slow_ns = self.random.u64(5..1_500) * MS;
        let kind = self.random.u32(0..8);
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
            _ => {
                disk.is_failing = true;
                "disk failing"
            }
        };
        self.count(what);
        self.note(|| format!("{node}: {what} for {} ms", lasts_ns / MS));
        self.schedule_world(lasts_ns, Event::End { end: End::Disk(node) });
    }

    fn break_clock(&mut self, node: NodeId, lasts_ns: u64) {
        let steps = [-3_600_000, -60_000, -400, -20, 20, 400, 10_000, 3_600_000];
        let step_ms: i64 = steps[self.random.usize(0..steps.len())];
        let is_frozen = self.chance(200);
        let now_ns = self.now_ns;
        let clock = &mut self.node(node).clock;
        let what = if is_frozen {
            clock.frozen_at_ns = Some(now_ns);
            "clock frozen"
        } else {
            clock.offset_ns += step_ms * MS as i64;
            "clock stepped"
        };
        self.count(what);
        self.note(|| format!("{node}: {what} by {step_ms} ms"));
        self.schedule_world(lasts_ns * 3, Event::End { end: End::Clock(node) });
    }

    fn hand_over(&mut self, node: NodeId) {
        let to = self.random.bool().then(|| self.any());
        if self.at(node).running.is_some() {
            self.count("handover asked");
            self.with(node, |replica, now| replica.hand_over(now, to, HandOver::Asked));
        }
    }

    fn close_links(&mut self, node: NodeId) {
        let peer = self.any();
        if peer != node && self.at(peer).running.is_some() {
            self.count("link broken");
            self.closed(peer, node);
        }
    }

    fn change_members(&mut self) {
        let leader = self.any_leading();
        let Some(running) = &self.at(leader).running else { return };
        let published = running.shared.published();
        if published.role != Role::Leader {
            return;
        }
        let voters: Vec<NodeId> = published.voters.iter().map(|(node, _)| node).collect();
        let voter = voters[self.random.usize(0..voters.len())];
        let spares = self.nemesis.voters + 1..=self.nodes.len() as u64;
        let spare = NodeId(self.random.u64(spares));
        let is_learner = published.members.contains_key(&spare) && !voters.contains(&spare);
        let steps = match self.random.u32(0..6) {
            _ if !is_learner && self.chance(800) => vec![MembershipStep::AddLearner(member(spare))],
            0 => vec![MembershipStep::Promote(spare)],
            1 if voters.len() > 2 => vec![MembershipStep::Remove(voter)],
            _ => vec![MembershipStep::Promote(spare), MembershipStep::Remove(voter)],
        };
        self.nemesis.nonce += 1;
        let change = MembershipChange { nonce: self.nemesis.nonce, steps };
        // Whether it can be proposed just now is not the question here.
        if self.with(leader, |replica, now| replica.propose_change(now, &change)).is_ok() {
            self.count("membership change");
        }
    }

    pub(crate) fn end(&mut self, end: End) {
        match end {
            End::Start(node) => self.start_if_down(node),
            End::Links => self.cuts = [[0; NODES_MAX]; 2],
            End::Disk(node) => {
                let disk = &mut self.node(node).disk;
                disk.write_ns = MS;
                (disk.is_stuck, disk.is_failing) = (false, false);
            }
            End::Clock(node) => {
                let clock = &mut self.node(node).clock;
                (clock.offset_ns, clock.frozen_at_ns) = (0, None);
            }
        }
    }

    /// Ends every fault.
    pub(crate) fn heal(&mut self) {
        self.note(|| "everything heals".into());
        self.nemesis.pause_ns = 0;
        self.weather = Weather::FAIR;
        self.end(End::Links);
        for id in self.ids() {
            self.end(End::Disk(id));
            self.end(End::Clock(id));
            self.end(End::Start(id));
            self.node(id).paused_until_ns = [0; 2];
        }
    }

    /// Draws what the run will be like, and begins it.
    pub(crate) fn unleash(&mut self, voters: u64) {
        let is_clock = self.random.bool();
        self.nemesis = Nemesis {
            pause_ns: self.random.u64(300..3_000) * MS,
            lasts_ns: self.random.u64(300..6_000) * MS,
            is_membership: self.nodes.len() as u64 > voters,
            is_clock,
            voters,
            nonce: 0,
        };
        let is_rough = self.random.bool();
        let is_old = self.chance(300);
        self.weather = Weather {
            delay_ns: (50_000, self.random.u64(1..=if is_rough { 8 } else { 2 }) * MS),
            lost: if is_rough { self.random.u32(0..50) } else { 0 },
            doubled: if is_rough { self.random.u32(0..100) } else { 0 },
            late: self.random.u32(0..if is_old { 5 } else { 30 }),
            late_ns: if is_old { 180 * SECOND } else { self.random.u64(10..2_000) * MS },
            together: self.random.u32(0..500),
            step_ns: if self.random.bool() { self.random.u64(100_000..3 * MS) } else { 0 },
            round_ns: self.random.u64(200..1_000) * MS,
        };
        for at in 0..self.nodes.len() {
            let (write_ns, offset_ms) =
                (self.random.u64(100_000..3 * MS), self.random.i64(-20..20));
            let rate_ppm = self.random.i64(-200..=200);
            let node = &mut self.nodes[at];
            node.disk.write_ns = write_ns;
            node.clock.offset_ns = offset_ms * MS as i64;
            node.clock.rate_ppm = rate_ppm;
        }
        let first_ns = self.random.u64(100..1_000) * MS;
        self.schedule_world(first_ns, Event::Fault);
    }
}
