//! Leases in simulated clusters: which runs have them, and the clocks that they are measured with.
//! These clocks are wrong by almost as much as is allowed. Often one is slow and all others are
//! fast, which is the worst case.

use epicepoch_core::lease::LeaseClocks;
use epicepoch_wire::{Guarantee, NodeId, Term};

use crate::event::{AdminCommand, Event};
use crate::parameters::{MS, WORKERS};
use crate::plane::Plane;
use crate::plant::Plant;
use crate::world::World;
use crate::world::features::{Feature, LEASE_CLOCKS, LEASES, SALTS};

/// How wrong the clock of a lease may be, thousandths of true time: just below a ninth.
const RATE_MAX: i64 = 110;
/// The lengths of the first lease of a cluster, milliseconds.
const LEASES_MS: [u64; 4] = [50, 100, 200, 200];
/// In runs with leases, this many of a thousand requests ask for one: one of these values for each
/// run.
const ASK: [u32; 3] = [300, 700, 950];
/// This many of a thousand faults come together with a change of the rate of a clock.
const RATES_CHANGED: u32 = 100;
/// This many of a thousand faults come together with a leader whose consensus plane stops, for a time
/// in `USURPED_NS`, nanoseconds, while its connections close. Before `RESTARTED` of a thousand of
/// these, all other nodes restart.
const USURPED: u32 = 300;
const USURPED_NS: (u64, u64) = (100 * MS, 600 * MS);
const RESTARTED: u32 = 250;
/// The same happens to a leader after this many of a thousand marked reservations, releases and
/// installed snapshots, and after at most `SOON_NS` nanoseconds.
const USURPED_AFTER_MARK: u32 = 10;
const USURPED_AFTER_RELEASE: u32 = 500;
pub(crate) const USURPED_AFTER_SNAPSHOT: u32 = 400;
const SOON_NS: u64 = 40 * MS;
/// A worker stops after this many of a thousand proofs by a lease, before it answers, for a time in
/// `STALLED_NS`, nanoseconds. Meanwhile another node leads.
const STALLED: u32 = 4;
const STALLED_NS: (u64, u64) = (50 * MS, 400 * MS);
/// Workers follow this many of a thousand withdrawals of a lease late: by at most `LATE_NS`
/// nanoseconds.
const FOLLOWED_LATE: u32 = 400;
const LATE_NS: u64 = 200 * MS;
/// Operators ask for a handover right after this many of a thousand marked reservations.
const HANDED_OVER: u32 = 15;

impl World {
    /// The length of a lease in the configuration of all nodes, milliseconds; 0 for none.
    pub(crate) const fn initial_lease_ms(&self) -> u64 {
        if self.has(Feature::Leases) { LEASES_MS[self.hashed(LEASES) as usize % 4] } else { 0 }
    }

    /// The guarantee that a request asks for.
    pub(crate) fn draw_guarantee(&mut self) -> Guarantee {
        let per_thousand = ASK[(self.hashed(LEASES) >> 8) as usize % 3];
        let asks = self.has(Feature::Leases) && self.chance(per_thousand);
        if asks { Guarantee::Lease } else { Guarantee::Quorum }
    }

    /// What both clocks of the leases of a machine show now.
    pub(crate) fn lease_clocks(&self, id: NodeId) -> LeaseClocks {
        let clock = &self.at(id).clock.lease;
        LeaseClocks { own_ns: self.lease_clock_ns(id), wait_ns: clock.read_wait(self.now_ns) }
    }

    /// The clock of its leader's lease as a worker reads it, nanoseconds. After a suspension of the
    /// machine it is later than the end of every lease.
    pub(crate) fn worker_lease_ns(&self, id: NodeId) -> u64 {
        if self.at(id).is_suspended { u64::MAX } else { self.lease_clock_ns(id) }
    }

    /// What the clock of the lease of a leader shows now, nanoseconds.
    fn lease_clock_ns(&self, id: NodeId) -> u64 {
        let clock = &self.at(id).clock.lease;
        let stops = self.is_planted(Plant::LeaseClockStops);
        if stops { clock.read_wait(self.now_ns) } else { clock.read(self.now_ns) }
    }

    /// Draws the rates of the clocks of all machines.
    pub(crate) fn draw_lease_clocks(&mut self) {
        if !self.has(Feature::Leases) {
            return;
        }
        let drawn = self.hashed(LEASE_CLOCKS);
        let slow = NodeId(1 + drawn / 4 % self.nodes.len() as u64);
        for id in self.ids() {
            let rate = match drawn % 4 {
                0 | 1 if id == slow => -RATE_MAX,
                0 | 1 => RATE_MAX,
                _ => Self::drawn_rate(self.hashed(LEASE_CLOCKS + SALTS * id.0)),
            };
            let rate = if self.is_planted(Plant::LeaseClocksTooWrong) { 2 * rate } else { rate };
            let now_ns = self.now_ns;
            self.node(id).clock.lease.set_rate(now_ns, rate);
        }
    }

    /// In runs whose clocks have no lasting worst case, rates change.
    pub(crate) fn change_lease_clock(&mut self, id: NodeId) {
        let is_lasting = self.hashed(LEASE_CLOCKS) % 4 < 2;
        if self.has(Feature::Leases) && !is_lasting && self.chance(RATES_CHANGED) {
            let drawn = self.random.u64(..);
            let (rate, now_ns) = (Self::drawn_rate(drawn), self.now_ns);
            self.node(id).clock.lease.set_rate(now_ns, rate);
            self.count("rate of a lease clock changed");
        }
    }

    /// In runs with leases, the consensus plane of a leader often stops for a moment while its
    /// connections close. Others lead within some milliseconds, and its workers still have a lease.
    pub(crate) fn usurp_any(&mut self) {
        if !self.has(Feature::Leases) || self.is_quiet() || !self.chance(USURPED) {
            return;
        }
        let leader = self.any_leading();
        if !self.chance(RESTARTED) {
            return self.usurp(leader);
        }
        self.count("restarts before a leader is usurped");
        for other in self.ids().filter(|other| *other != leader) {
            if self.at(other).running.is_some() {
                self.stop_at_once(other, 0);
            }
        }
        self.usurp_soon(leader, 1_000);
    }

    /// In runs with leases, a leader is usurped a moment later, with this chance of a thousand.
    pub(crate) fn usurp_soon(&mut self, leader: NodeId, per_thousand: u32) {
        if self.has(Feature::Leases) && !self.is_quiet() && self.chance(per_thousand) {
            let after_ns = self.random.u64(0..=SOON_NS);
            self.schedule_world(after_ns, Event::Usurp { node: leader });
        }
    }

    pub(crate) fn usurp(&mut self, leader: NodeId) {
        let lasts_ns = self.random.u64(USURPED_NS.0..=USURPED_NS.1);
        self.usurp_for(leader, lasts_ns);
    }

    fn usurp_for(&mut self, leader: NodeId, lasts_ns: u64) {
        let is_running = self.at(leader).running.is_some();
        if is_running && !self.is_paused(leader) && !self.is_quiet() {
            self.count("leader usurped");
            self.pause(leader, Plane::Raft.threads(), lasts_ns);
            self.close(leader);
        }
    }

    /// Whether a worker stops between a proof by its lease and the answers. If so, it stops now, and
    /// this is for how long, nanoseconds. Requests that arrive meanwhile join before it answers.
    pub(crate) fn draw_stall(&mut self, id: NodeId, worker: usize) -> Option<u64> {
        let has_proved = self.at(id).running().workers[worker].sequencer.has_proved();
        if !has_proved || self.conditions.step_ns == 0 || self.is_quiet() || !self.chance(STALLED) {
            return None;
        }
        let lasts_ns = self.random.u64(STALLED_NS.0..=STALLED_NS.1);
        self.count("worker stopped after a proof by its lease");
        self.usurp_for(id, 2 * lasts_ns);
        let thread = Plane::Workers.threads().start + worker;
        self.pause(id, thread..thread + 1, lasts_ns);
        Some(lasts_ns)
    }

    /// The leader is going to publish that it has no lease any more. Sometimes its workers follow
    /// that late, and take turns meanwhile.
    pub(crate) fn withdraw_lease(&mut self, id: NodeId) {
        if self.conditions.step_ns > 0 && !self.is_quiet() && self.chance(FOLLOWED_LATE) {
            for worker in 0..WORKERS {
                let follows_at_ns = self.now_ns + self.random.u64(0..=LATE_NS);
                self.worker(id, worker).follows_at_ns = follows_at_ns;
            }
            self.count("lease withdrawn and followed late");
        }
    }

    /// A leader proposes a marked reservation. Sometimes leadership changes soon after it, more
    /// often if the leader has released a lease in this term.
    pub(crate) fn see_marked(&mut self, id: NodeId, term: Term) {
        let has_released = self.at(id).running().released_in == term;
        if has_released {
            self.usurp_soon(id, USURPED_AFTER_RELEASE);
        } else if !self.is_quiet() && self.chance(HANDED_OVER) {
            self.count("handover during a marked reservation");
            self.admin(id, AdminCommand::HandOver);
        } else {
            self.usurp_soon(id, USURPED_AFTER_MARK);
        }
    }

    /// A leader proposes to release its leases. Sometimes it is usurped soon after that.
    pub(crate) fn see_released(&mut self, id: NodeId, term: Term) {
        self.node(id).running_mut().released_in = term;
        self.usurp_soon(id, USURPED_AFTER_RELEASE);
    }

    const fn drawn_rate(drawn: u64) -> i64 {
        match drawn % 3 {
            0 => -RATE_MAX,
            1 => RATE_MAX,
            _ => (drawn / 3 % (2 * RATE_MAX as u64 + 1)) as i64 - RATE_MAX,
        }
    }
}
