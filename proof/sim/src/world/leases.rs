//! Leases in simulated clusters: which runs have them, and the clocks that they are measured with.
//! These clocks are wrong by almost as much as is allowed. Often one is slow and all others are
//! fast, which is the worst case.

use epicepoch_wire::{Guarantee, NodeId};

use crate::parameters::MS;
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
/// in `USURPED_NS`, nanoseconds, while its connections close.
const USURPED: u32 = 300;
const USURPED_NS: (u64, u64) = (100 * MS, 600 * MS);

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

    /// What the clock of the leases of a machine shows now, nanoseconds.
    pub(crate) fn lease_clock_ns(&self, id: NodeId) -> u64 {
        let clock = &self.at(id).clock.lease;
        let read_ns = clock.read(self.now_ns);
        if self.is_planted(Plant::LeaseClockStops) {
            return read_ns.saturating_sub(clock.suspended_ns);
        }
        read_ns
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
    pub(crate) fn usurp(&mut self) {
        if !self.has(Feature::Leases) || self.is_quiet() || !self.chance(USURPED) {
            return;
        }
        let leader = self.any_leading();
        if self.at(leader).running.is_some() && !self.is_paused(leader) {
            let lasts_ns = self.random.u64(USURPED_NS.0..=USURPED_NS.1);
            self.count("leader usurped");
            self.pause(leader, Plane::Raft.threads(), lasts_ns);
            self.close(leader);
        }
    }

    const fn drawn_rate(drawn: u64) -> i64 {
        match drawn % 3 {
            0 => -RATE_MAX,
            1 => RATE_MAX,
            _ => (drawn / 3 % (2 * RATE_MAX as u64 + 1)) as i64 - RATE_MAX,
        }
    }
}
