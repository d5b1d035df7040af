//! Clock faults. A clock is stepped, stands still, creeps, or is wrong from the start of its
//! machine. Some clock faults happen while as many voters are paused as the cluster can spare.

use epicepoch_core::clock::TrustedClock;
use epicepoch_wire::NodeId;

use crate::clock::Creep;
use crate::event::{End, Event};
use crate::node::Node;
use crate::parameters::{MS, SECOND, THREADS};
use crate::world::World;

/// A clock fault.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    Stepped { ms: i64 },
    Frozen,
    Creeping { ppm: i64, after_ns: u64 },
}

/// Possible steps of a clock, milliseconds.
const STEPS_MS: [i64; 8] = [-18_000_000, -60_000, -400, -20, 20, 400, 10_000, 18_000_000];
/// The name, in the summary, of the count of machines whose clocks all run at a wrong speed.
pub(crate) const MACHINE_CREEPS: &str = "clocks of a machine creeping";
/// How much too fast a creeping clock runs, parts per million: from half its speed to twice.
const CREEPS_PPM: [i64; 6] = [-500_000, -200_000, -50_000, 50_000, 300_000, 1_000_000];
/// `BOOTS_WRONG` of a thousand clock faults begin with the machine's start. Then the clock is off
/// by one of `BOOTS_MS`.
const BOOTS_WRONG: u32 = 200;
const BOOTS_MS: [i64; 4] = [-3_600_000, 10_000, 60_000, 3_600_000];
/// `UNSEEN` of a thousand other clock faults happen while a minority of the voters is paused, for a
/// time in `UNSEEN_NS`.
const UNSEEN: u32 = 400;
const UNSEEN_NS: (u64, u64) = (10 * SECOND, 25 * SECOND);
/// Limits of a healthy clock, in either direction: the offset, milliseconds, and the error of the
/// rate, parts per million.
pub(crate) const OFFSET_MS: i64 = 20;
pub(crate) const RATE_PPM: i64 = 200;

impl World {
    /// Breaks a clock. Sometimes it breaks another one in the same way, like two machines with the
    /// same wrong time source.
    pub(super) fn break_clock(&mut self, node: NodeId, lasts_ns: u64) {
        // A restored history begins ahead of all clocks, so its ceiling proves nothing. This is a
        // known gap of S11.
        if self.restores.era > 0 {
            return;
        }
        if self.chance(BOOTS_WRONG) {
            return self.boot_wrong(node, lasts_ns);
        }
        let is_unseen = self.chance(UNSEEN);
        let wrong = match self.random.u32(0..10) {
            0..2 => Wrong::Frozen,
            2..5 => Wrong::Creeping {
                ppm: CREEPS_PPM[self.random.usize(0..CREEPS_PPM.len())],
                after_ns: if is_unseen { TrustedClock::SAMPLE_AGE_MAX_NS } else { 0 },
            },
            5..7 => Wrong::Stepped { ms: self.nearly_too_far_ms() },
            _ => Wrong::Stepped { ms: STEPS_MS[self.random.usize(0..STEPS_MS.len())] },
        };
        if is_unseen {
            return self.break_unseen(wrong);
        }
        self.break_one_clock(node, wrong, lasts_ns);
        if self.chance(400) {
            let other = self.any();
            self.break_one_clock(other, wrong, lasts_ns);
        }
    }

    /// Draws a step of a clock, in either direction. Nodes just still believe the clock: the step
    /// is within the widest bound ever in effect.
    fn nearly_too_far_ms(&mut self) -> i64 {
        let bound_ms = (self.history.longest.bound_ns() / MS) as i64;
        let ms = self.random.i64(bound_ms / 2..bound_ms - OFFSET_MS);
        if self.random.bool() { ms } else { -ms }
    }

    /// A machine starts with a wrong clock, as after an empty battery: alone, or with all others
    /// after a power failure.
    fn boot_wrong(&mut self, node: NodeId, lasts_ns: u64) {
        self.count("started with a wrong clock");
        let ms = BOOTS_MS[self.random.usize(0..BOOTS_MS.len())];
        self.break_one_clock(node, Wrong::Stepped { ms }, lasts_ns);
        if !self.random.bool() {
            self.restart_all(lasts_ns);
        } else if self.at(node).running.is_some() {
            self.stop_at_once(node, 0);
        } else {
            self.start(node);
        }
    }

    /// Pauses as many voters as a cluster can spare, for so long that the leader's samples of their
    /// clocks expire. Meanwhile other clocks are wrong. If the fault is a creep, the leader's own
    /// clock is wrong; otherwise all clocks that the leader still hears are. So no majority can
    /// show which clock is right. No other fault begins meanwhile, because another node would then
    /// lead before the wrong clocks matter.
    fn break_unseen(&mut self, wrong: Wrong) {
        // If a node was told to stop, it would end and start again during this fault, so the fault
        // is left out.
        if self.ids().any(|node| self.is_stopping(node)) {
            return;
        }
        let (leader, voters) = (self.any_leading(), self.nemesis.voters);
        let others = self.ids().filter(|other| other.0 <= voters && *other != leader);
        let mut others: Vec<NodeId> = others.collect();
        self.random.shuffle(&mut others);
        let heard = others.split_off((voters as usize - 1) / 2);
        let lasts_ns = self.random.u64(UNSEEN_NS.0..=UNSEEN_NS.1);
        self.count("clocks wrong unseen by a majority");
        self.nemesis.lull_until_ns = self.now_ns + lasts_ns;
        for other in others {
            self.record(|| format!("{other}: process paused for {} ms", lasts_ns / MS));
            self.pause(other, 0..THREADS, lasts_ns);
        }
        let is_creeping = matches!(wrong, Wrong::Creeping { .. });
        for broken in if is_creeping { vec![leader] } else { heard } {
            self.break_one_clock(broken, wrong, lasts_ns / 3);
        }
    }

    /// Steps a clock, stops it or makes it creep, unless that would break the majority that must
    /// stay healthy.
    fn break_one_clock(&mut self, node: NodeId, wrong: Wrong, lasts_ns: u64) {
        let now_ns = self.now_ns;
        let broken = |other: &&Node| other.clock.broken_until_ns > now_ns && other.id != node;
        let broken = self.nodes.iter().filter(broken).count() as u64;
        if self.nemesis.is_clock_minority && broken >= self.nemesis.voters.div_ceil(2) - 1 {
            return;
        }
        // A wrong oscillator also moves the machine's monotonic clock. Runs that count on a
        // majority of right clocks have no such fault.
        let is_machine = !self.nemesis.is_clock_minority && self.random.bool();
        let clock = &mut self.node(node).clock;
        clock.broken_until_ns = u64::MAX;
        let what = match wrong {
            Wrong::Stepped { ms } => {
                clock.offset_ns += ms * MS as i64;
                "clock stepped"
            }
            Wrong::Frozen => {
                clock.frozen_at_ns = Some(now_ns);
                "clock frozen"
            }
            // A clock that already creeps keeps its rate.
            Wrong::Creeping { .. } if clock.creep.is_some() => return,
            Wrong::Creeping { ppm, after_ns } => {
                clock.creep = Some(Creep { since_ns: now_ns + after_ns, ppm, is_machine });
                if is_machine { MACHINE_CREEPS } else { "clock creeping" }
            }
        };
        self.count(what);
        self.record(|| format!("{node}: {what}, {wrong:?}"));
        self.schedule_world(lasts_ns * 3, Event::End { end: End::Clock(node) });
    }

    pub(crate) fn set_clock_right(&mut self, node: NodeId) {
        let now_ns = self.now_ns;
        let clock = &mut self.node(node).clock;
        clock.set_right(now_ns);
        clock.broken_until_ns = now_ns + TrustedClock::SAMPLE_AGE_MAX_NS + SECOND;
    }
}
