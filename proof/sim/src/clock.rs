//! The clocks of a machine and their faults: a step of the wall clock, a wrong rate, a wall clock
//! that stands still. The core decides which clock it trusts.

use epicepoch_core::clock::ClockReading;

use crate::parameters::START_NS;

/// The clocks of one machine, as functions of true time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MachineClock {
    /// Wall clock minus true time, nanoseconds.
    pub(crate) offset_ns: i64,
    /// How much too fast the machine's clocks run, parts per million.
    pub(crate) rate_ppm: i64,
    /// True time until which the wall clock counts as broken. That time is some seconds after an
    /// operator has set the clock right, because other nodes use old samples of the clock for some
    /// seconds.
    pub(crate) broken_until_ns: u64,
    /// True time since which the wall clock has stood still.
    pub(crate) frozen_at_ns: Option<u64>,
    /// Set while the clock runs at a wrong speed.
    pub(crate) creep: Option<Creep>,
    /// True time at which the process started.
    started_ns: u64,
    /// How far creeps that are over have moved the monotonic clock, nanoseconds. The second field
    /// is the value of the first at the start of the process.
    crept_ns: i64,
    crept_at_start_ns: i64,
    /// The clock of the leases.
    pub(crate) lease: LeaseClock,
}

/// The clock of the leases: it goes on while the machine is suspended. Its rate is wrong, and may
/// change.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeaseClock {
    /// What the clock showed when its rate last changed, nanoseconds, and the true time then.
    shown_ns: u64,
    since_ns: u64,
    /// How much too fast it runs, thousandths of true time.
    per_thousand: i64,
    /// For how long the machine was suspended so far, nanoseconds. The clock of the wait for leases
    /// stood still meanwhile.
    pub(crate) suspended_ns: u64,
}

impl LeaseClock {
    /// Reads the clock at true time `now_ns`, nanoseconds.
    pub(crate) fn read(&self, now_ns: u64) -> u64 {
        let passed_ns = now_ns.saturating_sub(self.since_ns);
        let more_ns = passed_ns as i64 / 1_000 * self.per_thousand;
        self.shown_ns + passed_ns.saturating_add_signed(more_ns)
    }

    /// Changes the rate. The clock never jumps.
    pub(crate) fn set_rate(&mut self, now_ns: u64, per_thousand: i64) {
        *self = Self { shown_ns: self.read(now_ns), since_ns: now_ns, per_thousand, ..*self };
    }
}

/// A clock that runs too fast or too slow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Creep {
    /// True time at which the creep began.
    pub(crate) since_ns: u64,
    /// How much too fast the clock runs, parts per million of true time.
    pub(crate) ppm: i64,
    /// `true`: both clocks creep, as with a wrong oscillator. `false`: only the wall clock does.
    pub(crate) is_machine: bool,
}

impl Creep {
    /// How far the clock has crept, nanoseconds.
    const fn crept_ns(self, now_ns: u64) -> i64 {
        now_ns.saturating_sub(self.since_ns) as i64 / 1_000 * self.ppm / 1_000
    }
}

impl MachineClock {
    /// Reads both clocks at true time `now_ns`, nanoseconds since the world began.
    pub(crate) fn read(&self, now_ns: u64) -> ClockReading {
        ClockReading { monotonic_ns: self.monotonic_ns(now_ns), wall_ns: self.wall_ns(now_ns) }
    }

    /// Records that a process starts.
    pub(crate) fn start(&mut self, now_ns: u64) {
        self.started_ns = now_ns;
        self.crept_at_start_ns = self.machine_crept_ns(now_ns);
    }

    /// Sets the wall clock right. From now on both clocks run at their normal rate.
    pub(crate) fn set_right(&mut self, now_ns: u64) {
        self.crept_ns = self.machine_crept_ns(now_ns);
        (self.offset_ns, self.frozen_at_ns, self.creep) = (0, None, None);
    }

    /// Monotonic time of the running process, nanoseconds since its start.
    pub(crate) fn monotonic_ns(&self, now_ns: u64) -> u64 {
        let crept_ns = self.machine_crept_ns(now_ns) - self.crept_at_start_ns;
        self.scaled(now_ns.saturating_sub(self.started_ns)).saturating_add_signed(crept_ns)
    }

    fn machine_crept_ns(&self, now_ns: u64) -> i64 {
        let creep = self.creep.filter(|creep| creep.is_machine);
        self.crept_ns + creep.map_or(0, |creep| creep.crept_ns(now_ns))
    }

    /// Unix time that the machine's wall clock shows, nanoseconds.
    pub(crate) fn wall_ns(&self, now_ns: u64) -> u64 {
        let at_ns = self.frozen_at_ns.unwrap_or(now_ns);
        let crept_ns = self.creep.map_or(0, |creep| creep.crept_ns(at_ns));
        (START_NS + self.scaled(at_ns)).saturating_add_signed(self.offset_ns + crept_ns)
    }

    fn scaled(&self, ns: u64) -> u64 {
        ns.saturating_add_signed(ns as i64 / 1_000_000 * self.rate_ppm)
    }
}
