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
    /// By how much the clock advanced while the machine was suspended, nanoseconds: the clock of the
    /// wait for leases stood still. A suspension counts from its begin.
    suspended_ns: u64,
    /// The true time until which the machine is suspended.
    suspended_until_ns: u64,
}

impl LeaseClock {
    /// Reads the clock at true time `now_ns`, nanoseconds.
    pub(crate) fn read(&self, now_ns: u64) -> u64 {
        let passed_ns = now_ns.saturating_sub(self.since_ns);
        let more_ns = passed_ns as i64 / 1_000 * self.per_thousand;
        self.shown_ns + passed_ns.saturating_add_signed(more_ns)
    }

    /// Reads the clock of the wait for leases at true time `now_ns`, nanoseconds, while the machine
    /// is not suspended.
    pub(crate) fn read_wait(&self, now_ns: u64) -> u64 {
        self.read(now_ns).saturating_sub(self.suspended_ns)
    }

    /// Changes the rate. The clock never jumps.
    pub(crate) fn set_rate(&mut self, now_ns: u64, per_thousand: i64) {
        let left_before_ns = self.left_ns(now_ns);
        *self = Self { shown_ns: self.read(now_ns), since_ns: now_ns, per_thousand, ..*self };
        self.suspended_ns = self.suspended_ns - left_before_ns + self.left_ns(now_ns);
    }

    /// Suspends the machine from `now_ns` until `until_ns`, true time. It may be suspended already.
    pub(crate) fn suspend(&mut self, now_ns: u64, until_ns: u64) {
        let left_before_ns = self.left_ns(now_ns);
        self.suspended_until_ns = self.suspended_until_ns.max(until_ns);
        self.suspended_ns = self.suspended_ns - left_before_ns + self.left_ns(now_ns);
    }

    /// Ends the suspension at `now_ns`, true time, if the machine is suspended.
    pub(crate) fn resume(&mut self, now_ns: u64) {
        self.suspended_ns -= self.left_ns(now_ns);
        self.suspended_until_ns = self.suspended_until_ns.min(now_ns);
    }

    /// By how much the clock advances until the end of a suspension, nanoseconds.
    fn left_ns(&self, now_ns: u64) -> u64 {
        self.read(self.suspended_until_ns.max(now_ns)) - self.read(now_ns)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock of the wait for leases stands still while the machine is suspended, and at no other
    /// time, whatever the rate of the clock is.
    #[test]
    fn a_suspension_counts_once_and_only_while_it_lasts() {
        let mut clock = LeaseClock::default();
        clock.set_rate(0, -110);
        assert_eq!(clock.read_wait(1_000_000), 890_000);
        clock.suspend(1_000_000, 9_000_000);
        clock.suspend(2_000_000, 5_000_000);
        clock.suspend(3_000_000, 11_000_000);
        clock.set_rate(6_000_000, 110);
        assert_eq!(clock.read_wait(11_000_000), 890_000);
        assert_eq!(clock.read_wait(12_000_000), 890_000 + 1_110_000);
        // This one ends early, because the process is resumed.
        clock.suspend(12_000_000, 99_000_000);
        clock.resume(13_000_000);
        assert_eq!(clock.read_wait(13_000_000), 2_000_000);
        clock.resume(13_500_000);
        assert_eq!(clock.read_wait(14_000_000), 2_000_000 + 1_110_000);
    }
}
