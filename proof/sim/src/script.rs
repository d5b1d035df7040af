//! A run whose faults come from a byte string and not from a seed. If a fuzzer changes one byte,
//! one fault changes. Delays and clients are drawn from a constant seed. The checkers are those of
//! every run. In the end all faults heal, and the cluster must answer.
//!
//! Any bytes are a script. The first two select the cluster. Each event takes one byte for its kind
//! and the time before it, and at most two bytes for its node and size.

use epicepoch_core::publication::Role;
use epicepoch_core::replica::HandOver;
use epicepoch_core::state::{MembershipChange, MembershipStep};
use epicepoch_wire::NodeId;

use crate::event::{End, Event};
use crate::network_conditions::NetworkConditions;
use crate::parameters::{MS, THREADS};
use crate::plane::Plane;
use crate::run::{Failure, SAMPLE_HALVES};
use crate::world::World;

/// A script has at most this many events. The rest of a longer script is ignored.
pub const EVENTS_MAX: usize = 96;

/// Runs a script. Returns how many requests were answered.
///
/// # Errors
/// The first failure.
///
/// # Panics
/// If the code under test panics.
pub fn run(script: &[u8]) -> Result<u64, Failure> {
    let mut bytes = script.iter().copied();
    let mut world = World::scripted(bytes.next().unwrap_or(0), bytes.next().unwrap_or(0));
    world.history.is_healthy = true;
    let mut halves = Some(SAMPLE_HALVES);
    for _ in 0..EVENTS_MAX {
        let Some(event) = bytes.next() else { break };
        let end_ns = world.now_ns + PAUSES_MS[usize::from(event >> 5)] * MS;
        world.live_until(end_ns, halves)?;
        let mut next = || bytes.next().unwrap_or(0);
        match event & 31 {
            // Once any clock was broken, the run no longer counts the clocks as healthy.
            16..=18 => {
                halves = None;
                world.history.is_healthy = false;
                world.history.believable = None;
                world.nemesis.is_clock = true;
                world.clock_event(event & 31, next(), next());
            }
            event => world.scripted_event(event, next(), next()),
        }
    }
    world.recover(halves)?;
    Ok(world.summary.answered)
}

impl World {
    /// Makes the cluster that two bytes select: the number of voters and spares, and its links.
    fn scripted(cluster: u8, conditions: u8) -> Self {
        let voters = [1, 3, 3, 5][usize::from(cluster & 3)];
        let spare = if cluster & 4 == 0 { 0 } else { 2 };
        let mut world = Self::new(SEED, voters, spare, None);
        world.nemesis.voters = voters;
        if cluster & 8 != 0 {
            // A majority begins with a long log. The log is soon compacted, and the other nodes
            // need a snapshot.
            let long = (voters as usize).div_ceil(2);
            world.nodes.iter_mut().take(long).for_each(|node| node.disk.fill(FILLED));
        }
        world.conditions = NetworkConditions {
            delay_ns: (50_000, 1 + u64::from(conditions & 7) * MS + 50_000),
            lost: if conditions & 8 == 0 { 0 } else { 30 },
            doubled: if conditions & 16 == 0 { 0 } else { 50 },
            late: if conditions & 32 == 0 { 0 } else { 20 },
            late_ns: 1_000 * MS,
            together: if conditions & 64 == 0 { 0 } else { 300 },
            step_ns: if conditions & 128 == 0 { 0 } else { 2 * MS },
            ..NetworkConditions::FAIR
        };
        for node in &mut world.nodes {
            node.disk.write_ns = MS;
        }
        for id in world.ids() {
            world.start(id);
        }
        world.add_clients(CLIENTS);
        world
    }

    /// The node that a byte selects. If its highest bit is set, this is a node that believes it
    /// leads, if there is one. Otherwise the byte gives the number of the node.
    fn meant(&self, who: u8) -> NodeId {
        let leading = self.nodes.iter().find(|node| who & 128 != 0 && node.holds_grant());
        let numbered = NodeId(u64::from(who & 127) % self.nodes.len() as u64 + 1);
        leading.map_or(numbered, |node| node.id)
    }

    fn scripted_event(&mut self, event: u8, who: u8, how: u8) {
        let node = self.meant(who);
        let other = NodeId(u64::from(how) % self.nodes.len() as u64 + 1);
        let lasts_ns = u64::from(how) * 10 * MS;
        match event {
            0 | 1 => self.crash(node),
            2 => self.start_if_down(node),
            3 | 4 => {
                self.crash(node);
                self.start(node);
            }
            5 => self.close(node),
            6 => self.pause(node, Plane::Raft.threads(), lasts_ns),
            7 => self.pause(node, Plane::Workers.threads(), lasts_ns),
            8 => self.pause(node, 0..THREADS, lasts_ns),
            9 => self.cut_off(node, how),
            10 => self.links.cut(node, other, Plane::Raft),
            11 => self.links.cut(node, other, Plane::Workers),
            12 => self.end(End::Links),
            13 => self.node(node).disk.is_stuck = true,
            14 => self.node(node).disk.is_failing = true,
            15 => self.node(node).disk.write_ns = u64::from(how) * 4 * MS + 1,
            19 => self.end(End::Disk(node)),
            20 | 21 if self.is_asked(node) => {
                let to = (event == 20).then_some(other);
                self.with(node, |replica, now| replica.hand_over(now, to, HandOver::Asked));
            }
            22 if node != other && self.at(node).running.is_some() => {
                self.schedule_own(node, 0, Event::Closed { peer: other });
            }
            23..=26 => self.scripted_change(node, event, other),
            27 => self.ids().for_each(|id| self.crash(id)),
            28 => self.ids().for_each(|id| self.start_if_down(id)),
            _ => {}
        }
    }

    /// Cuts a node off from all others: on one plane or both, and in one direction or both.
    fn cut_off(&mut self, node: NodeId, how: u8) {
        for (plane, bit) in [(Plane::Raft, 1), (Plane::Workers, 2)] {
            for other in self.ids().filter(|other| *other != node && how & bit != 0) {
                if how & 4 == 0 {
                    self.links.cut(node, other, plane);
                }
                if how & 8 == 0 {
                    self.links.cut(other, node, plane);
                }
            }
        }
    }

    fn clock_event(&mut self, event: u8, who: u8, how: u8) {
        let (node, now_ns) = (self.meant(who), self.now_ns);
        let clock = &mut self.node(node).clock;
        match event {
            16 => clock.offset_ns += STEPS_MS[usize::from(how & 7)] * MS as i64,
            17 => clock.frozen_at_ns = Some(now_ns),
            _ => self.end(End::Clock(node)),
        }
    }

    /// Whether a node accepts commands now. A script drops commands to a paused node.
    fn is_asked(&self, node: NodeId) -> bool {
        self.at(node).running.is_some() && !self.is_paused(node)
    }

    fn scripted_change(&mut self, leader: NodeId, event: u8, about: NodeId) {
        if !self.is_asked(leader)
            || self.at(leader).running().shared.published().role != Role::Leader
        {
            return;
        }
        let steps = match event {
            23 => vec![MembershipStep::AddLearner(self.member(about))],
            24 => vec![MembershipStep::Promote(about)],
            25 => vec![MembershipStep::Remove(about)],
            _ => vec![MembershipStep::Promote(about), MembershipStep::Remove(leader)],
        };
        self.nemesis.nonce += 1;
        let change = MembershipChange { nonce: self.nemesis.nonce, steps };
        // The leader may refuse the change as busy.
        let _ = self.with(leader, |replica, now| replica.propose_change(now, &change));
    }
}

/// The seed of all draws that the script does not decide.
const SEED: u64 = 1;
const CLIENTS: usize = 3;
/// Number of entries with which a long log begins.
const FILLED: u64 = 1_010;
/// Possible times before an event, milliseconds.
const PAUSES_MS: [u64; 8] = [0, 1, 5, 20, 60, 150, 300, 600];
/// Possible steps of a clock, milliseconds.
const STEPS_MS: [i64; 8] = [-3_600_000, -60_000, -400, -20, 20, 400, 10_000, 3_600_000];
