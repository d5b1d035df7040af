//! The test switch: a file with which tests inject hardware faults into real processes. It can make
//! this node's clocks wrong, its disk slow, or its client port deaf. It exists only in debug builds;
//! a release build refuses to start with it.
//!
//! [`TEST_FAULTS_FILE`] names the file. The node reads it again at most every [`READ_INTERVAL`], so
//! a change takes effect within that time. Each line is one fault:
//! ```text
//! wall_offset_ms=-3600000     the wall clock is an hour behind
//! lease_rate_ppm=-100000      the clocks of the leases run slower by a tenth
//! fsync_delay_ms=50           every sync takes 50 ms longer
//! fsync_hang=1                no sync returns, until this line goes or says 0
//! fsync_fail=1                every sync fails
//! accept_fail=1               no client is accepted, as if no descriptor were left
//! ```
//! A missing file or line means no fault. Blank lines and lines that begin with `#` are ignored. Any
//! other line is logged once and ignored. Replace the file by renaming another one over it, because
//! the node would also read a half-written file.
//!
//! When the rate of the clocks of the leases changes, they go on from the time that they show. So
//! they never jump, and never go back.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

#[cfg(debug_assertions)]
use active::Active;

/// The environment variable that names the file of faults.
pub const TEST_FAULTS_FILE: &str = "TEST_FAULTS_FILE";

/// For this long after a read, the node uses the faults that it read; then it reads the file again.
/// A sync that hangs also reads the file again after each interval.
pub const READ_INTERVAL: Duration = Duration::from_millis(10);

/// The faults that are switched on. All clones use the same file.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    #[cfg(debug_assertions)]
    active: Option<std::sync::Arc<Active>>,
}

/// Why faults cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FaultsError {
    /// A release build refuses the variable: unset it, or use a debug build.
    #[error("{TEST_FAULTS_FILE} is set to {path}, and this build refuses it: only a debug build \
        can break its clock and its disk for a test; unset it", path = .0.display())]
    Refused(PathBuf),
}

impl Faults {
    /// No faults, at any time.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// The faults of the file at `path`, or none without a path.
    ///
    /// # Errors
    /// In a release build, when there is a path.
    #[cfg(debug_assertions)]
    pub fn from_path(path: Option<PathBuf>) -> Result<Self, FaultsError> {
        Ok(Self { active: path.map(|path| std::sync::Arc::new(Active::new(path))) })
    }

    /// The faults of the file at `path`, or none without a path.
    ///
    /// # Errors
    /// In a release build, when there is a path.
    #[cfg(not(debug_assertions))]
    pub fn from_path(path: Option<PathBuf>) -> Result<Self, FaultsError> {
        path.map_or(Ok(Self {}), |path| Err(FaultsError::Refused(path)))
    }

    /// The nanoseconds to add to every reading of the wall clock.
    #[inline]
    #[must_use]
    pub fn wall_offset_ns(&self) -> i64 {
        #[cfg(debug_assertions)]
        if let Some(active) = &self.active {
            return active.now().wall_offset_ms.saturating_mul(1_000_000);
        }
        0
    }

    /// Reads the clock of this node's own lease, nanoseconds. Without a fault it shows `true_ns`.
    #[inline]
    #[must_use]
    pub fn own_lease_ns(&self, true_ns: u64) -> u64 {
        #[cfg(debug_assertions)]
        if let Some(active) = &self.active {
            return active.own_lease_ns(true_ns);
        }
        true_ns
    }

    /// Reads the clock with which this node waits for leases of others, nanoseconds. Without a fault
    /// it shows `true_ns`.
    #[inline]
    #[must_use]
    pub fn lease_wait_ns(&self, true_ns: u64) -> u64 {
        #[cfg(debug_assertions)]
        if let Some(active) = &self.active {
            return active.lease_wait_ns(true_ns);
        }
        true_ns
    }

    /// Call this before every sync. It delays the sync, blocks it, or fails it.
    ///
    /// # Errors
    /// When the file says that syncs fail.
    #[inline]
    pub fn before_sync(&self) -> io::Result<()> {
        #[cfg(debug_assertions)]
        if let Some(active) = &self.active {
            return active.before_sync();
        }
        Ok(())
    }

    /// Call this before every accept of a client.
    ///
    /// # Errors
    /// When the file says that accepts fail.
    #[inline]
    pub fn before_accept(&self) -> io::Result<()> {
        #[cfg(debug_assertions)]
        if let Some(active) = &self.active
            && active.now().accept_fail
        {
            return Err(rustix::io::Errno::MFILE.into());
        }
        Ok(())
    }
}

#[cfg(debug_assertions)]
mod active {
    use std::path::PathBuf;
    use std::sync::{Mutex, PoisonError};
    use std::time::{Duration, Instant};
    use std::{fs, io, thread};

    use super::READ_INTERVAL;

    /// The faults that the file names.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(super) struct Switches {
        pub(super) wall_offset_ms: i64,
        pub(super) lease_rate_ppm: i64,
        pub(super) fsync_delay_ms: u64,
        pub(super) fsync_hang: bool,
        pub(super) fsync_fail: bool,
        pub(super) accept_fail: bool,
    }

    /// The file, and its content when it was last read.
    #[derive(Debug)]
    pub(super) struct Active {
        path: PathBuf,
        reading: Mutex<Reading>,
        own_lease: Mutex<Skewed>,
        lease_wait: Mutex<Skewed>,
    }

    #[derive(Debug, Default)]
    struct Reading {
        switches: Switches,
        read_at: Option<Instant>,
        /// Whether a malformed line was logged.
        complained: bool,
    }

    impl Active {
        pub(super) fn new(path: PathBuf) -> Self {
            Self {
                path,
                reading: Mutex::default(),
                own_lease: Mutex::default(),
                lease_wait: Mutex::default(),
            }
        }

        pub(super) fn now(&self) -> Switches {
            let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
            if reading.read_at.is_none_or(|at| at.elapsed() >= READ_INTERVAL) {
                // The time is taken before the file is read. So a change that the read just misses
                // is seen one interval after this time.
                reading.read_at = Some(Instant::now());
                let text = fs::read_to_string(&self.path).unwrap_or_default();
                let (switches, malformed) = parse(&text);
                if let Some(line) = malformed.filter(|_| !reading.complained) {
                    tracing::warn!(path = %self.path.display(), line, "no such fault");
                    reading.complained = true;
                }
                reading.switches = switches;
            }
            reading.switches
        }

        pub(super) fn own_lease_ns(&self, true_ns: u64) -> u64 {
            self.skew(&self.own_lease, true_ns)
        }

        pub(super) fn lease_wait_ns(&self, true_ns: u64) -> u64 {
            self.skew(&self.lease_wait, true_ns)
        }

        fn skew(&self, clock: &Mutex<Skewed>, true_ns: u64) -> u64 {
            let mut clock = clock.lock().unwrap_or_else(PoisonError::into_inner);
            // The fault is read under the lock. Otherwise a thread that was stopped here would set
            // an earlier rate again.
            clock.show(true_ns, self.now().lease_rate_ppm)
        }

        pub(super) fn before_sync(&self) -> io::Result<()> {
            thread::sleep(Duration::from_millis(self.now().fsync_delay_ms));
            while self.now().fsync_hang {
                thread::sleep(READ_INTERVAL);
            }
            if self.now().fsync_fail {
                return Err(io::Error::other("a sync failed for a test"));
            }
            Ok(())
        }
    }

    /// A clock that runs too fast or too slow. It shows true time until its rate first changes.
    #[derive(Debug, Default)]
    pub(super) struct Skewed {
        /// By how much its rate differs from the true one, parts in a million.
        rate_ppm: i64,
        /// The true time at which it got this rate, nanoseconds.
        since_ns: u64,
        /// Its reading at `since_ns`, nanoseconds.
        shown_ns: u64,
        /// The latest true time for which it was read, nanoseconds.
        latest_ns: u64,
    }

    impl Skewed {
        /// Reads the clock at the true time `true_ns`, nanoseconds, and changes its rate: from then
        /// on, the rate differs from the true one by `rate_ppm`.
        pub(super) fn show(&mut self, true_ns: u64, rate_ppm: i64) -> u64 {
            // Another thread may have read a later time already, and must never read an earlier one.
            self.latest_ns = self.latest_ns.max(true_ns);
            if rate_ppm != self.rate_ppm {
                (self.shown_ns, self.since_ns) = (self.at(self.latest_ns), self.latest_ns);
                self.rate_ppm = rate_ppm;
            }
            self.at(true_ns)
        }

        fn at(&self, true_ns: u64) -> u64 {
            // A clock of no rate stands still; none goes back.
            let rate = MILLION.saturating_add(self.rate_ppm).max(0) as u128;
            let passed = u128::from(true_ns.saturating_sub(self.since_ns)) * rate;
            self.shown_ns + (passed / MILLION as u128) as u64
        }
    }

    const MILLION: i64 = 1_000_000;

    /// Parses the file. Returns the switches and the first malformed line.
    pub(super) fn parse(text: &str) -> (Switches, Option<&str>) {
        let mut switches = Switches::default();
        let mut malformed = None;
        for line in text.lines().map(str::trim) {
            let meant = match line.split_once('=') {
                _ if line.is_empty() || line.starts_with('#') => Some(()),
                Some(("wall_offset_ms", value)) => set(&mut switches.wall_offset_ms, value),
                Some(("lease_rate_ppm", value)) => set(&mut switches.lease_rate_ppm, value),
                Some(("fsync_delay_ms", value)) => set(&mut switches.fsync_delay_ms, value),
                Some(("fsync_hang", value)) => set_bool(&mut switches.fsync_hang, value),
                Some(("fsync_fail", value)) => set_bool(&mut switches.fsync_fail, value),
                Some(("accept_fail", value)) => set_bool(&mut switches.accept_fail, value),
                _ => None,
            };
            if meant.is_none() {
                malformed = malformed.or(Some(line));
            }
        }
        (switches, malformed)
    }

    fn set<T: std::str::FromStr>(switch: &mut T, value: &str) -> Option<()> {
        *switch = value.parse().ok()?;
        Some(())
    }

    fn set_bool(switch: &mut bool, value: &str) -> Option<()> {
        *switch = match value {
            "0" => false,
            "1" => true,
            _ => return None,
        };
        Some(())
    }
}

#[cfg(all(test, not(debug_assertions)))]
mod tests {
    use super::*;

    #[test]
    fn a_release_build_refuses_the_switch() {
        let path = PathBuf::from("faults");
        assert_eq!(Faults::from_path(None).unwrap().wall_offset_ns(), 0);
        let refused = FaultsError::Refused(path.clone());
        assert_eq!(Faults::from_path(Some(path)).unwrap_err(), refused);
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::fs;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::active::{Skewed, Switches, parse};
    use super::*;

    const WAIT_MAX: Duration = Duration::from_secs(10);

    #[test]
    fn every_switch_is_read_and_nothing_else() {
        let text = "# a test\nwall_offset_ms=-3600000\nlease_rate_ppm=-9\n fsync_delay_ms=7\n\n\
                    fsync_hang=1\nfsync_fail=0\naccept_fail=1";
        let switches = Switches {
            wall_offset_ms: -3_600_000,
            lease_rate_ppm: -9,
            fsync_delay_ms: 7,
            fsync_hang: true,
            fsync_fail: false,
            accept_fail: true,
        };
        assert_eq!(parse(text), (switches, None));
        for malformed in ["fsync_hang=yes", "fsync_delay_ms=-1", "power=0", "fsync_fail"] {
            assert_eq!(parse(malformed), (Switches::default(), Some(malformed)));
        }
    }

    #[test]
    fn a_missing_file_is_no_fault() {
        let directory = tempfile::tempdir().unwrap();
        let faults = Faults::from_path(Some(directory.path().join("faults"))).unwrap();
        assert_eq!(faults.wall_offset_ns(), 0);
        assert_eq!((faults.own_lease_ns(7), faults.lease_wait_ns(9)), (7, 9));
        faults.before_sync().unwrap();
    }

    #[test]
    fn a_clock_whose_rate_changes_goes_on_where_it_is_and_never_goes_back() {
        let mut clock = Skewed::default();
        for (true_ns, rate_ppm, shown_ns) in [
            (1_000, 0, 1_000),
            (2_000, -500_000, 2_000),
            (3_000, -500_000, 2_500),
            (4_000, 100_000, 3_000),
            (5_000, 100_000, 4_100),
            // A thread that has read an earlier time, and a later fault, comes last.
            (4_500, 0, 4_100),
            (6_000, 0, 5_100),
            (7_000, -2_000_000, 6_100),
            (8_000, -2_000_000, 6_100),
            (9_000, -1_000_000, 6_100),
            (10_000, i64::MAX, 6_100),
        ] {
            assert_eq!(clock.show(true_ns, rate_ppm), shown_ns, "{true_ns} {rate_ppm}");
        }
        // A machine that runs for a year, and a clock that runs twice as fast.
        let year_ns = 365 * 86_400 * 1_000_000_000;
        let mut clock = Skewed::default();
        assert_eq!(clock.show(0, 1_000_000), 0);
        assert_eq!(clock.show(year_ns, 1_000_000), 2 * year_ns);
    }

    #[test]
    fn a_fault_comes_and_goes_with_its_line_within_the_interval() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("faults");
        let faults = Faults::from_path(Some(path.clone())).unwrap();
        // The first read finds no file. The file is read again only after `READ_INTERVAL`.
        assert_eq!(faults.wall_offset_ns(), 0);
        fs::write(&path, "wall_offset_ms=-2\nfsync_fail=1\naccept_fail=1").unwrap();
        thread::sleep(READ_INTERVAL);
        assert_eq!(faults.wall_offset_ns(), -2_000_000);
        faults.before_sync().unwrap_err();
        faults.before_accept().unwrap_err();
        fs::remove_file(&path).unwrap();
        thread::sleep(READ_INTERVAL);
        assert_eq!(faults.wall_offset_ns(), 0);
        faults.before_sync().unwrap();
        faults.before_accept().unwrap();
    }

    #[test]
    fn a_hanging_sync_is_released() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("faults");
        fs::write(&path, "fsync_hang=1").unwrap();
        let faults = Faults::from_path(Some(path.clone())).unwrap();
        let (sender, synced) = mpsc::channel();
        let thread = thread::spawn(move || sender.send(faults.before_sync()).unwrap());
        assert!(synced.recv_timeout(Duration::from_millis(50)).is_err());
        fs::write(&path, "fsync_hang=0").unwrap();
        synced.recv_timeout(WAIT_MAX).unwrap().unwrap();
        thread.join().unwrap();
    }
}
