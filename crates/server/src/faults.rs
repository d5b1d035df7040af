//! The documented test switch: a file that makes this node's clock wrong, its disk slow or its client
//! port deaf, so that tests against real processes can do what only hardware does otherwise. It exists
//! in debug builds only; a release build refuses to start with it.
//!
//! The file named by [`TEST_FAULTS_FILE`] is read again at most every [`READ_INTERVAL`]: whatever is asked
//! that long after a change, or later, goes by the new one. One fault per line:
//! ```text
//! wall_offset_ms=-3600000     the wall clock is an hour behind
//! fsync_delay_ms=50           every sync takes 50 ms longer
//! fsync_hang=1                no sync returns, until this line goes or says 0
//! fsync_fail=1                every sync fails
//! accept_fail=1               no client is accepted, as if no descriptor were left
//! ```
//! A missing file, or a missing line, is no fault. Blank lines and lines that begin with `#` mean
//! nothing; any other line is reported once and means nothing either. Replace the file by renaming
//! another over it: a half-written one is read as it is.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

#[cfg(debug_assertions)]
use active::Active;

/// The environment variable that names the file.
pub const TEST_FAULTS_FILE: &str = "TEST_FAULTS_FILE";

/// How old what was read from the file may be, and how often a sync that hangs looks again.
pub const READ_INTERVAL: Duration = Duration::from_millis(10);

/// The faults that are switched on now. Clones share one file.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    #[cfg(debug_assertions)]
    active: Option<std::sync::Arc<Active>>,
}

/// Why there can be no faults.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FaultsError {
    /// This is a release build.
    #[error("{TEST_FAULTS_FILE} is set to {path}, and this build refuses it: only a debug build \
        can break its clock and its disk for a test; unset it", path = .0.display())]
    Refused(PathBuf),
}

impl Faults {
    /// No faults, now or later.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// The faults that a file says, or none without a file.
    ///
    /// # Errors
    /// In a release build, when there is a path.
    #[cfg(debug_assertions)]
    pub fn from_path(path: Option<PathBuf>) -> Result<Self, FaultsError> {
        Ok(Self { active: path.map(|path| std::sync::Arc::new(Active::new(path))) })
    }

    /// The faults that a file says, or none without a file.
    ///
    /// # Errors
    /// In a release build, when there is a path.
    #[cfg(not(debug_assertions))]
    pub fn from_path(path: Option<PathBuf>) -> Result<Self, FaultsError> {
        path.map_or(Ok(Self {}), |path| Err(FaultsError::Refused(path)))
    }

    /// What to add to every reading of the wall clock, nanoseconds.
    #[inline]
    #[must_use]
    pub fn wall_offset_ns(&self) -> i64 {
        #[cfg(debug_assertions)]
        if let Some(active) = &self.active {
            return active.now().wall_offset_ms.saturating_mul(1_000_000);
        }
        0
    }

    /// Asked before every sync: delays it, holds it up, or fails it.
    ///
    /// # Errors
    /// When syncs fail.
    #[inline]
    pub fn before_sync(&self) -> io::Result<()> {
        #[cfg(debug_assertions)]
        if let Some(active) = &self.active {
            return active.before_sync();
        }
        Ok(())
    }

    /// Asked before a client is accepted.
    ///
    /// # Errors
    /// When none can be.
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

    /// What one reading of the file said.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(super) struct Switches {
        pub(super) wall_offset_ms: i64,
        pub(super) fsync_delay_ms: u64,
        pub(super) fsync_hang: bool,
        pub(super) fsync_fail: bool,
        pub(super) accept_fail: bool,
    }

    /// A file that is read again and again.
    #[derive(Debug)]
    pub(super) struct Active {
        path: PathBuf,
        reading: Mutex<Reading>,
    }

    #[derive(Debug, Default)]
    struct Reading {
        switches: Switches,
        read_at: Option<Instant>,
        /// Whether a malformed line was reported.
        complained: bool,
    }

    impl Active {
        pub(super) fn new(path: PathBuf) -> Self {
            Self { path, reading: Mutex::default() }
        }

        pub(super) fn now(&self) -> Switches {
            let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
            if reading.read_at.is_none_or(|at| at.elapsed() >= READ_INTERVAL) {
                // Before the file is read: who waits for an interval after a change is sure of it.
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

    /// The switches, and the first line that is none.
    pub(super) fn parse(text: &str) -> (Switches, Option<&str>) {
        let mut switches = Switches::default();
        let mut malformed = None;
        for line in text.lines().map(str::trim) {
            let meant = match line.split_once('=') {
                _ if line.is_empty() || line.starts_with('#') => Some(()),
                Some(("wall_offset_ms", value)) => set(&mut switches.wall_offset_ms, value),
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

    use super::active::{Switches, parse};
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn every_switch_is_read_and_nothing_else() {
        let text = "# a test\nwall_offset_ms=-3600000\n fsync_delay_ms=7\n\nfsync_hang=1\nfsync_fail=0\naccept_fail=1";
        let switches = Switches {
            wall_offset_ms: -3_600_000,
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
        faults.before_sync().unwrap();
    }

    #[test]
    fn a_fault_comes_and_goes_with_its_line_within_the_interval() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("faults");
        let faults = Faults::from_path(Some(path.clone())).unwrap();
        // What is known now is that there are none, and it is an interval old when the file is asked again.
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
        synced.recv_timeout(PATIENCE).unwrap().unwrap();
        thread.join().unwrap();
    }
}
