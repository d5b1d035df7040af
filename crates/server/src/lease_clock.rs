//! The clocks of leases (S20), and whether this node may take a lease. It may if the clock of its own
//! lease never stands still while the process runs. The decision is made at the start, and taken
//! back for good when the machine was suspended. This module takes no lease.
//!
//! A leader measures its lease with `CLOCK_BOOTTIME`, which goes on while the machine is suspended. A
//! node that waits for the lease of another uses `CLOCK_MONOTONIC`, which stands still then, so that
//! it only waits longer. Without a suspension, the difference of the two is constant. Linux may
//! measure the time of a suspension with a clock of whole seconds. So a lease from before it proves
//! nothing.

use std::fs;
use std::sync::atomic::{AtomicU8, Ordering};

use epicepoch_core::lease::LeaseClocks;
use rustix::time::{ClockId, clock_gettime};

use crate::config::LeaseClock as Setting;

/// The clocks of the leases of this machine, and the right to take leases.
#[derive(Debug)]
pub struct LeaseClock {
    /// At the start: how far `CLOCK_BOOTTIME` is ahead of `CLOCK_MONOTONIC`, nanoseconds.
    ahead_ns: u64,
    /// A [`LeaseRight`], as its place in [`LeaseRight::ALL`].
    right: AtomicU8,
}

/// Whether this node may take leases, and why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LeaseRight {
    /// It may.
    Allowed,
    /// `LEASE_CLOCK` is `never`.
    Never,
    /// The machine is virtual, and `LEASE_CLOCK` is `auto`.
    Virtual,
    /// It is not known whether the machine is virtual, and `LEASE_CLOCK` is `auto`.
    Unknown,
    /// The machine was suspended since this process started.
    Suspended,
}

impl LeaseRight {
    /// All values, for tables.
    pub const ALL: [Self; 5] =
        [Self::Allowed, Self::Never, Self::Virtual, Self::Unknown, Self::Suspended];

    /// The word for it in `/status`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Never => "never",
            Self::Virtual => "virtual",
            Self::Unknown => "unknown",
            Self::Suspended => "suspended",
        }
    }

    /// Why the node takes no lease, and what to do; `None` if it may take leases.
    #[must_use]
    pub const fn advice(self) -> Option<&'static str> {
        match self {
            Self::Allowed => None,
            Self::Never => Some("LEASE_CLOCK is never"),
            Self::Virtual => Some(
                "this machine is virtual, and its clock stands still while it is paused or moved; if \
                 that never happens, set LEASE_CLOCK=trusted",
            ),
            Self::Unknown => Some(
                "it is not known whether this machine is virtual; if its clock never stands still, \
                 set LEASE_CLOCK=trusted",
            ),
            Self::Suspended => Some(
                "this machine was suspended, and its clock may have counted that time wrong; start \
                 the node again, and do not suspend machines with leases",
            ),
        }
    }
}

impl LeaseClock {
    /// The clocks of this machine, with the right that the setting and the processor give.
    #[must_use]
    pub fn new(setting: Setting) -> Self {
        Self::with(right_of(setting, || fs::read_to_string(CPU_FILE).ok()))
    }

    fn with(right: LeaseRight) -> Self {
        // If the thread stops between the readings, the difference is too low. The highest of some
        // counts, and one of them is right within the tolerance.
        let readings = (0..START_READINGS).map(|_| Reading::now().ahead_at_least_ns());
        let ahead_ns = readings.max().unwrap_or_default();
        Self { ahead_ns, right: AtomicU8::new(right as u8) }
    }

    /// Whether this node may take leases.
    #[must_use]
    pub fn right(&self) -> LeaseRight {
        let at = usize::from(self.right.load(Ordering::Relaxed));
        LeaseRight::ALL.get(at).copied().unwrap_or(LeaseRight::Unknown)
    }

    /// Reads the clocks for the consensus plane.
    #[must_use]
    pub fn read(&self) -> LeaseClocks {
        let Reading { own_ns, after_ns, .. } = Reading::now();
        LeaseClocks { own_ns, wait_ns: after_ns }
    }

    /// Reads the clock of this node's own lease for a worker, nanoseconds. If the machine may have
    /// been suspended since the start, the result is later than every lease. Then a round proves the
    /// batch, until the consensus plane has taken the right away.
    #[must_use]
    pub fn own_ns(&self) -> u64 {
        let before_ns = read_ns(ClockId::Monotonic);
        self.own_of(before_ns, read_ns(ClockId::Boottime))
    }

    /// The clock showed `own_ns`. `CLOCK_MONOTONIC` showed `before_ns` before that.
    const fn own_of(&self, before_ns: u64, own_ns: u64) -> u64 {
        // The true difference is at most this. So a suspension that the system has counted is never
        // missed, and a stop of this thread may look like one.
        let ahead_ns = own_ns.saturating_sub(before_ns);
        if ahead_ns > self.ahead_ns + TOLERANCE_NS { u64::MAX } else { own_ns }
    }

    /// Takes the right to leases away if the machine was suspended since the start. Returns whether
    /// this call has done so.
    pub fn look_for_suspension(&self) -> bool {
        self.judge(Reading::now())
    }

    fn judge(&self, reading: Reading) -> bool {
        let is_suspended = reading.ahead_at_least_ns() > self.ahead_ns + TOLERANCE_NS;
        let is_new = is_suspended && self.right() != LeaseRight::Suspended;
        if is_new {
            self.right.store(LeaseRight::Suspended as u8, Ordering::Relaxed);
        }
        is_new
    }
}

/// Readings of both clocks, one after the other.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// `CLOCK_BOOTTIME`, nanoseconds.
    own_ns: u64,
    /// `CLOCK_MONOTONIC` after that, nanoseconds.
    after_ns: u64,
}

impl Reading {
    fn now() -> Self {
        let own_ns = read_ns(ClockId::Boottime);
        Self { own_ns, after_ns: read_ns(ClockId::Monotonic) }
    }

    /// How far the first clock is ahead at least, nanoseconds.
    const fn ahead_at_least_ns(self) -> u64 {
        self.own_ns.saturating_sub(self.after_ns)
    }
}

fn read_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The right at the start. `read` reads the file about the processors; `None` if that fails.
fn right_of(setting: Setting, read: impl FnOnce() -> Option<String>) -> LeaseRight {
    match setting {
        Setting::Trusted => LeaseRight::Allowed,
        Setting::Never => LeaseRight::Never,
        Setting::Auto => match read().as_deref().and_then(is_virtual) {
            Some(true) => LeaseRight::Virtual,
            Some(false) => LeaseRight::Allowed,
            None => LeaseRight::Unknown,
        },
    }
}

/// Whether the flags of the processors name a hypervisor. `None` if there are no flags, as on
/// processors other than x86: only there does a guest see the flag.
fn is_virtual(processors: &str) -> Option<bool> {
    let flags = processors.lines().filter_map(|line| line.strip_prefix("flags"));
    let has_flag = |line: &str| line.split_ascii_whitespace().any(|flag| flag == "hypervisor");
    flags.map(has_flag).reduce(|one, other| one || other)
}

/// The file in which Linux describes the processors.
const CPU_FILE: &str = "/proc/cpuinfo";
/// How often the clocks are read at the start.
const START_READINGS: usize = 16;
/// The difference of the two clocks may change by this without a suspension, nanoseconds. It is far
/// longer than the time between the two readings, and far shorter than a suspension.
const TOLERANCE_NS: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: &str = "processor\t: 0\nflags\t\t: fpu vme tsc\nbugs\t: none\n";
    const GUEST: &str = "processor\t: 0\nflags\t\t: fpu hypervisor tsc\n";

    #[test]
    fn a_node_may_take_leases_only_if_its_machine_is_known_to_be_real_or_is_trusted() {
        let of = |setting, text: Option<&str>| right_of(setting, || text.map(str::to_owned));
        for (text, right) in [
            (Some(FLAGS), LeaseRight::Allowed),
            (Some(GUEST), LeaseRight::Virtual),
            (Some("flags : vmx hypervisors\n"), LeaseRight::Allowed),
            (Some("processor : 0\nFeatures : fp asimd\n"), LeaseRight::Unknown),
            (Some(""), LeaseRight::Unknown),
            (None, LeaseRight::Unknown),
        ] {
            assert_eq!(of(Setting::Auto, text), right, "{text:?}");
            assert_eq!(of(Setting::Trusted, text), LeaseRight::Allowed);
            assert_eq!(of(Setting::Never, text), LeaseRight::Never);
        }
        let mixed = [FLAGS, GUEST].concat();
        assert_eq!(of(Setting::Auto, Some(&mixed)), LeaseRight::Virtual);
    }

    #[test]
    fn each_reason_has_a_place_and_an_advice() {
        for (place, right) in LeaseRight::ALL.into_iter().enumerate() {
            assert_eq!(right as usize, place);
            assert_eq!(right.advice().is_none(), right == LeaseRight::Allowed);
            assert_eq!(LeaseClock::with(right).right(), right);
        }
    }

    #[test]
    fn the_clocks_go_on_and_no_suspension_is_seen_where_there_was_none() {
        let clock = LeaseClock::with(LeaseRight::Allowed);
        let mut last = clock.read();
        for _ in 0..1_000 {
            assert!(!clock.look_for_suspension());
            let now = clock.read();
            assert!(now.own_ns >= last.own_ns && now.wait_ns >= last.wait_ns);
            last = now;
        }
        // A stop of this thread between the two readings may look like a suspension, but not always.
        assert!((0..1_000).any(|_| clock.own_ns() != u64::MAX));
        assert_eq!(clock.right(), LeaseRight::Allowed);
    }

    /// The clock that goes on has gone ahead by more than the tolerance since the start.
    #[test]
    fn a_suspension_ends_every_lease_at_once_and_the_right_for_good() {
        let now = Reading::now();
        let earlier = LeaseClock {
            ahead_ns: now.ahead_at_least_ns(),
            right: AtomicU8::new(LeaseRight::Allowed as u8),
        };
        let shifted = |ns: u64| Reading { own_ns: now.own_ns + ns, ..now };
        assert!(!earlier.judge(shifted(TOLERANCE_NS)));
        assert!(earlier.judge(shifted(TOLERANCE_NS + 1)), "it was suspended");
        assert!(!earlier.judge(shifted(TOLERANCE_NS + 1)), "that is known already");
        assert!(!earlier.judge(now));
        assert_eq!(earlier.right(), LeaseRight::Suspended);
        // Workers do not wait for the consensus plane.
        let right = AtomicU8::new(LeaseRight::Allowed as u8);
        let clock = LeaseClock { ahead_ns: 5, right };
        let own_ns = 9 + 5 + TOLERANCE_NS;
        assert_eq!([own_ns, own_ns + 1].map(|it| clock.own_of(9, it)), [own_ns, u64::MAX]);
    }
}
