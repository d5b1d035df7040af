//! The clocks of leases (S20), and whether this node may take a lease. It may if the clock of its own
//! lease never stands still while the process runs. The decision is made at the start, and taken
//! back for good when the machine was suspended. By default a node may take leases if its machine
//! shows no sign of a hypervisor; some hypervisors hide every sign. This module takes no lease.
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
use crate::faults::Faults;

/// The clocks of the leases of this machine, and the right to take leases.
#[derive(Debug)]
pub struct LeaseClock {
    /// At the start: how far `CLOCK_BOOTTIME` is ahead of `CLOCK_MONOTONIC`, nanoseconds.
    ahead_ns: u64,
    /// A [`LeaseRight`], as its place in [`LeaseRight::ALL`].
    right: AtomicU8,
    /// The faults that tests inject. They change what the clocks show, not what is compared to find
    /// a suspension.
    faults: Faults,
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
                "it cannot be seen whether this machine is virtual; if its clock never stands still, \
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
    /// The clocks of this machine, with the right that the setting and the machine give.
    #[must_use]
    pub fn new(setting: Setting) -> Self {
        Self::with(right_of(setting, Machine::read))
    }

    /// The same clocks with these faults, which tests inject.
    #[must_use]
    pub fn with_faults(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    fn with(right: LeaseRight) -> Self {
        // If the thread stops between the readings, the difference is too low. The highest of some
        // counts, and one of them is right within the tolerance.
        let readings = (0..START_READINGS).map(|_| Reading::now().ahead_at_least_ns());
        let ahead_ns = readings.max().unwrap_or_default();
        Self { ahead_ns, right: AtomicU8::new(right as u8), faults: Faults::none() }
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
        LeaseClocks {
            own_ns: self.faults.own_lease_ns(own_ns),
            wait_ns: self.faults.lease_wait_ns(after_ns),
        }
    }

    /// Reads the clock of this node's own lease for a worker, nanoseconds. If the machine may have
    /// been suspended since the start, the result is later than every lease. Then a round proves the
    /// batch, until the consensus plane has taken the right away.
    #[must_use]
    pub fn own_ns(&self) -> u64 {
        let before_ns = read_ns(ClockId::Monotonic);
        let own_ns = self.own_of(before_ns, read_ns(ClockId::Boottime));
        // A time that is later than every lease stays so.
        if own_ns == u64::MAX { own_ns } else { self.faults.own_lease_ns(own_ns) }
    }

    /// The clock showed `own_ns`. `CLOCK_MONOTONIC` showed `before_ns` before that.
    const fn own_of(&self, before_ns: u64, own_ns: u64) -> u64 {
        // The true difference is at most this. So a suspension that the system has counted is never
        // missed, and a stop of this thread may look like one.
        let ahead_ns = own_ns.saturating_sub(before_ns);
        if ahead_ns > self.ahead_ns + TOLERANCE_NS { u64::MAX } else { own_ns }
    }

    /// Takes the right to leases away if the machine was suspended since the start. Returns whether
    /// this call has done so. A node without the right keeps the reason that it has.
    pub fn look_for_suspension(&self) -> bool {
        self.judge(Reading::now())
    }

    fn judge(&self, reading: Reading) -> bool {
        let is_suspended = reading.ahead_at_least_ns() > self.ahead_ns + TOLERANCE_NS;
        let is_new = is_suspended && self.right() == LeaseRight::Allowed;
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

/// What the machine shows of itself. `None` stands for a file that cannot be read.
#[derive(Clone, Debug, Default)]
struct Machine {
    /// [`CPU_FILE`].
    processors: Option<String>,
    /// Whether [`HYPERVISOR_FILE`] exists; Xen's guests have it.
    has_hypervisor: Option<bool>,
    /// [`VENDOR_FILE`].
    vendor: Option<String>,
    /// [`PRODUCT_FILE`].
    product: Option<String>,
}

impl Machine {
    fn read() -> Self {
        let text = |path| fs::read_to_string(path).ok();
        Self {
            processors: text(CPU_FILE),
            has_hypervisor: fs::exists(HYPERVISOR_FILE).ok(),
            vendor: text(VENDOR_FILE),
            product: text(PRODUCT_FILE),
        }
    }

    /// Whether the machine shows a sign of a hypervisor. `None` if it cannot be seen. Some
    /// hypervisors hide every sign.
    fn is_virtual(&self) -> Option<bool> {
        let signs = [
            self.processors.as_deref().and_then(has_hypervisor_flag),
            self.has_hypervisor,
            self.is_product_virtual(),
        ];
        if signs.contains(&Some(true)) {
            return Some(true);
        }
        signs.into_iter().collect::<Option<Vec<_>>>().map(|_| false)
    }

    /// Whether maker and product are those of virtual machines.
    fn is_product_virtual(&self) -> Option<bool> {
        let (vendor, product) = (self.vendor.as_deref()?.trim(), self.product.as_deref()?.trim());
        let names = [vendor, product].map(str::to_ascii_lowercase);
        let is_amazon = names.iter().any(|it| it.contains("amazon ec2"));
        // Amazon names machines without a hypervisor of its own "metal", as in c5.metal.
        let is_metal = names[1].ends_with("metal") || names[1].contains(".metal-");
        let is_named = |sign: &str| names.iter().any(|it| it.contains(sign));
        let is_empty = vendor.is_empty() && product.is_empty();
        if is_empty {
            return None;
        }
        Some(is_amazon && !is_metal || VIRTUAL_PRODUCTS.iter().any(|sign| is_named(sign)))
    }
}

/// The right at the start. `read` reads what the machine shows of itself.
fn right_of(setting: Setting, read: impl FnOnce() -> Machine) -> LeaseRight {
    match setting {
        Setting::Trusted => LeaseRight::Allowed,
        Setting::Never => LeaseRight::Never,
        Setting::Auto => match read().is_virtual() {
            Some(true) => LeaseRight::Virtual,
            Some(false) => LeaseRight::Allowed,
            None => LeaseRight::Unknown,
        },
    }
}

/// Whether the flags of the processors name a hypervisor. `None` if there are no flags, as on
/// processors other than x86: only there does a guest see the flag.
fn has_hypervisor_flag(processors: &str) -> Option<bool> {
    let flags = processors.lines().filter_map(|line| line.strip_prefix("flags"));
    let has_flag = |line: &str| line.split_ascii_whitespace().any(|flag| flag == "hypervisor");
    flags.map(has_flag).reduce(|one, other| one || other)
}

/// The file in which Linux describes the processors.
const CPU_FILE: &str = "/proc/cpuinfo";
/// This file names the hypervisor, where Linux knows it in this way.
const HYPERVISOR_FILE: &str = "/sys/hypervisor/type";
/// The maker of the machine, by its firmware (SMBIOS).
const VENDOR_FILE: &str = "/sys/class/dmi/id/sys_vendor";
/// The name of the machine, by its firmware (SMBIOS).
const PRODUCT_FILE: &str = "/sys/class/dmi/id/product_name";
/// Parts of the names of makers and products of virtual machines, in small letters.
const VIRTUAL_PRODUCTS: [&str; 11] = [
    "qemu",
    "kvm",
    "vmware",
    "xen",
    "virtualbox",
    "innotek",
    "virtual machine",
    "bochs",
    "parallels",
    "google compute engine",
    "openstack",
];
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

    /// A machine that shows no sign of a hypervisor.
    fn real() -> Machine {
        Machine {
            processors: Some(FLAGS.to_owned()),
            has_hypervisor: Some(false),
            vendor: Some("Dell Inc.\n".to_owned()),
            product: Some("PowerEdge R650\n".to_owned()),
        }
    }

    #[test]
    fn a_node_may_take_leases_only_if_its_machine_shows_no_hypervisor_or_is_trusted() {
        let auto = |machine: Machine| right_of(Setting::Auto, || machine);
        let mixed = [FLAGS, GUEST].concat();
        for (text, right) in [
            (Some(FLAGS), LeaseRight::Allowed),
            (Some(GUEST), LeaseRight::Virtual),
            (Some(&*mixed), LeaseRight::Virtual),
            (Some("flags : vmx hypervisors\n"), LeaseRight::Allowed),
            (Some("processor : 0\nFeatures : fp asimd\n"), LeaseRight::Unknown),
            (Some(""), LeaseRight::Unknown),
            (None, LeaseRight::Unknown),
        ] {
            let machine = || Machine { processors: text.map(str::to_owned), ..real() };
            assert_eq!(auto(machine()), right, "{text:?}");
            assert_eq!(right_of(Setting::Trusted, machine), LeaseRight::Allowed);
            assert_eq!(right_of(Setting::Never, machine), LeaseRight::Never);
        }
    }

    /// The processors show no flag, as those of guests whose hypervisor hides it.
    #[test]
    fn a_guest_that_hides_the_flag_is_known_by_its_maker_and_what_is_unknown_is_not_allowed() {
        let auto = |machine: Machine| right_of(Setting::Auto, || machine);
        for (vendor, product, right) in [
            ("Dell Inc.", "PowerEdge R650", LeaseRight::Allowed),
            ("Amazon EC2", "c5.metal", LeaseRight::Allowed),
            ("Amazon EC2", "m7i.metal-24xl", LeaseRight::Allowed),
            ("Amazon EC2", "c5.large", LeaseRight::Virtual),
            ("QEMU", "Standard PC (Q35 + ICH9, 2009)", LeaseRight::Virtual),
            ("Red Hat", "KVM", LeaseRight::Virtual),
            ("VMware, Inc.", "VMware7,1", LeaseRight::Virtual),
            ("Xen", "HVM domU", LeaseRight::Virtual),
            ("innotek GmbH", "VirtualBox", LeaseRight::Virtual),
            ("Microsoft Corporation", "Virtual Machine", LeaseRight::Virtual),
            ("Bochs", "Bochs", LeaseRight::Virtual),
            ("Parallels Software International Inc.", "x", LeaseRight::Virtual),
            ("Google", "Google Compute Engine", LeaseRight::Virtual),
            ("OpenStack Foundation", "OpenStack Nova", LeaseRight::Virtual),
            ("", "\n", LeaseRight::Unknown),
        ] {
            let (vendor, product) = (Some(format!("{vendor}\n")), Some(product.to_owned()));
            let machine = Machine { vendor, product, ..real() };
            assert_eq!(auto(machine.clone()), right, "{machine:?}");
        }
        let xen = Machine { has_hypervisor: Some(true), vendor: None, ..real() };
        assert_eq!(auto(xen), LeaseRight::Virtual, "one sign is enough");
        for hidden in [
            Machine { has_hypervisor: None, ..real() },
            Machine { vendor: None, ..real() },
            Machine { product: None, ..real() },
        ] {
            assert_eq!(auto(hidden.clone()), LeaseRight::Unknown, "{hidden:?}");
        }
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
        let now = Reading { own_ns: 9_000_000_000, after_ns: 8_000_000_000 };
        let started = |right: LeaseRight| LeaseClock {
            ahead_ns: now.ahead_at_least_ns(),
            right: AtomicU8::new(right as u8),
            faults: Faults::none(),
        };
        let earlier = started(LeaseRight::Allowed);
        let shifted = |ns: u64| Reading { own_ns: now.own_ns + ns, ..now };
        assert!(!earlier.judge(shifted(TOLERANCE_NS)));
        assert!(earlier.judge(shifted(TOLERANCE_NS + 1)), "it was suspended");
        assert!(!earlier.judge(shifted(TOLERANCE_NS + 1)), "that is known already");
        assert!(!earlier.judge(now));
        assert_eq!(earlier.right(), LeaseRight::Suspended);
        // A node that may take no lease anyway keeps its reason.
        for right in LeaseRight::ALL.into_iter().filter(|it| *it != LeaseRight::Allowed) {
            let clock = started(right);
            assert!(!clock.judge(shifted(TOLERANCE_NS + 1)));
            assert_eq!(clock.right(), right);
        }
        // Workers do not wait for the consensus plane.
        let clock = LeaseClock { ahead_ns: 5, ..started(LeaseRight::Allowed) };
        let own_ns = 9 + 5 + TOLERANCE_NS;
        assert_eq!([own_ns, own_ns + 1].map(|it| clock.own_of(9, it)), [own_ns, u64::MAX]);
    }

    /// The clocks run at a tenth of their true rate. Five milliseconds pass, which is longer than the
    /// tolerance.
    #[cfg(debug_assertions)]
    #[test]
    fn a_clock_with_a_wrong_rate_is_no_suspension() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("faults");
        fs::write(&path, "lease_rate_ppm=-900000").unwrap();
        let faults = Faults::from_path(Some(path)).unwrap();
        let clock = LeaseClock::with(LeaseRight::Allowed).with_faults(faults);
        let began_ns = read_ns(ClockId::Boottime);
        let first = clock.read();
        let until_ns = read_ns(ClockId::Boottime) + 5 * TOLERANCE_NS;
        while read_ns(ClockId::Boottime) < until_ns {
            std::thread::yield_now();
        }
        let last = clock.read();
        let (own_ns, true_ns) = (clock.own_ns(), read_ns(ClockId::Boottime) - began_ns);
        assert!(!clock.look_for_suspension());
        assert!(own_ns >= last.own_ns, "a worker reads the same clock");
        for (first_ns, last_ns) in [(first.own_ns, last.own_ns), (first.wait_ns, last.wait_ns)] {
            let passed_ns = last_ns - first_ns;
            assert!(passed_ns > 0 && passed_ns <= true_ns / 10 + 1, "{passed_ns} {true_ns}");
        }
    }
}
