//! A machine's clocks as a run breaks them: an offset that steps, a rate that is off, a little or
//! wildly, a wall clock that stands still. It never decides which clock is believed: the core does.

use epicepoch_core::clock::ClockReading;

/// Unix time when a world begins, nanoseconds.
pub(crate) const START_NS: u64 = 1_700_000_000_000_000_000;

/// The clocks of one machine, as functions of true time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MachineClock {
    /// Wall clock minus true time, nanoseconds.
    pub(crate) offset_ns: i64,
    /// How much too fast the machine counts, parts per million.
    pub(crate) rate_ppm: i64,
    /// Until when the wall clock counts as broken, true time: others go by a sample of it for some
    /// seconds after it was set right.
    pub(crate) broken_until_ns: u64,
    /// The wall clock stands still since this true time.
    pub(crate) frozen_at_ns: Option<u64>,
    /// The clock runs at another speed for a while.
    pub(crate) creep: Option<Creep>,
    /// True time at which the process started.
    started_ns: u64,
    /// What earlier creeps of the whole machine have left on its monotonic clock, and how much of it
    /// there was when the process started, nanoseconds.
    crept_ns: i64,
    crept_at_start_ns: i64,
}

/// A clock that runs too fast or too slow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Creep {
    /// Since this true time.
    pub(crate) since_ns: u64,
    /// By how much, parts per million of true time.
    pub(crate) ppm: i64,
    /// Both clocks of the machine, as where its oscillator is wrong, not the wall clock alone.
    pub(crate) is_machine: bool,
}

impl Creep {
    /// How far the clock has crept.
    const fn crept_ns(self, now_ns: u64) -> i64 {
        now_ns.saturating_sub(self.since_ns) as i64 / 1_000 * self.ppm / 1_000
    }
}

impl MachineClock {
    /// Both clocks at true time `now_ns`, counted from the begin of the world.
    pub(crate) fn read(&self, now_ns: u64) -> ClockReading {
        ClockReading { monotonic_ns: self.monotonic_ns(now_ns), wall_ns: self.wall_ns(now_ns) }
    }

    /// A process starts.
    pub(crate) fn start(&mut self, now_ns: u64) {
        self.started_ns = now_ns;
        self.crept_at_start_ns = self.machine_crept_ns(now_ns);
    }

    /// Sets the wall clock right, and lets both run as they should.
    pub(crate) fn set_right(&mut self, now_ns: u64) {
        self.crept_ns = self.machine_crept_ns(now_ns);
        (self.offset_ns, self.frozen_at_ns, self.creep) = (0, None, None);
    }

    /// Time of the process that runs, from 0.
    pub(crate) fn monotonic_ns(&self, now_ns: u64) -> u64 {
        let crept_ns = self.machine_crept_ns(now_ns) - self.crept_at_start_ns;
        self.scaled(now_ns.saturating_sub(self.started_ns)).saturating_add_signed(crept_ns)
    }

    fn machine_crept_ns(&self, now_ns: u64) -> i64 {
        let creep = self.creep.filter(|creep| creep.is_machine);
        self.crept_ns + creep.map_or(0, |creep| creep.crept_ns(now_ns))
    }

    /// Unix time as the machine sees it.
    pub(crate) fn wall_ns(&self, now_ns: u64) -> u64 {
        let at_ns = self.frozen_at_ns.unwrap_or(now_ns);
        let crept_ns = self.creep.map_or(0, |creep| creep.crept_ns(at_ns));
        (START_NS + self.scaled(at_ns)).saturating_add_signed(self.offset_ns + crept_ns)
    }

    fn scaled(&self, ns: u64) -> u64 {
        ns.saturating_add_signed(ns as i64 / 1_000_000 * self.rate_ppm)
    }
}
