//! A machine's clocks as a run breaks them: an offset that steps, a rate that is off, a wall clock
//! that stands still. It never decides which clock is believed: the core does.

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
    /// True time at which the process started.
    pub(crate) started_ns: u64,
}

impl MachineClock {
    /// Both clocks at true time `now_ns`, counted from the begin of the world.
    pub(crate) fn read(&self, now_ns: u64) -> ClockReading {
        ClockReading { monotonic_ns: self.monotonic_ns(now_ns), wall_ns: self.wall_ns(now_ns) }
    }

    /// Time of the process that runs, from 0.
    pub(crate) fn monotonic_ns(&self, now_ns: u64) -> u64 {
        self.scaled(now_ns.saturating_sub(self.started_ns))
    }

    /// Unix time as the machine sees it.
    pub(crate) fn wall_ns(&self, now_ns: u64) -> u64 {
        let at_ns = self.frozen_at_ns.unwrap_or(now_ns);
        (START_NS + self.scaled(at_ns)).saturating_add_signed(self.offset_ns)
    }

    fn scaled(&self, ns: u64) -> u64 {
        ns.saturating_add_signed(ns as i64 / 1_000_000 * self.rate_ppm)
    }
}
