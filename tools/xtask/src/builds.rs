//! The build directory of steps that run beside the tests. It is in memory. Otherwise the processes
//! under test would have to wait for the disk while the compiler writes.

use std::fs;
use std::path::{Path, PathBuf};

use crate::shell::{Shell, has};

/// A file system in memory, on Linux.
const MEMORY: &str = "/dev/shm";
/// Free space that this file system must have, KiB. The builds take half of it.
const FREE_KIB_MIN: u64 = 5 << 20;
/// Memory that must be available, KiB.
const AVAILABLE_KIB_MIN: u64 = 10 << 20;

/// A directory for builds. A directory in memory is removed when this value is dropped. If the
/// program is killed before that, the next run in the same checkout removes the directory.
#[derive(Debug)]
pub(crate) struct Builds {
    path: PathBuf,
    is_in_memory: bool,
}

impl Builds {
    /// The usual build directory, `target`.
    pub(crate) fn on_disk() -> Self {
        Self { path: PathBuf::from("target"), is_in_memory: false }
    }

    /// An empty directory in memory, or the usual build directory if there is too little memory.
    pub(crate) fn in_memory() -> Self {
        let Some(path) = path() else { return Self::on_disk() };
        let _ = fs::remove_dir_all(&path);
        if !has_memory() || fs::create_dir(&path).is_err() {
            return Self::on_disk();
        }
        Self { path, is_in_memory: true }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) const fn are_in_memory(&self) -> bool {
        self.is_in_memory
    }
}

impl Drop for Builds {
    fn drop(&mut self) {
        if self.is_in_memory {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Copies the release build from memory to its usual place, so that Cargo need not compile it
/// again.
pub(crate) fn release(sh: &Shell) -> Result<(), String> {
    if sh.builds != Path::new("target") {
        sh.run("cp -a $BUILDS/release target/")?;
    }
    sh.run("cargo build --release --locked")
}

/// A path in memory that no other checkout on this machine uses: it contains the checkout's path.
fn path() -> Option<PathBuf> {
    let root = std::env::current_dir().ok()?;
    let name: String = root
        .to_str()?
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' })
        .collect();
    Some(Path::new(MEMORY).join(format!("epicepoch{name}")))
}

fn has_memory() -> bool {
    let free = std::process::Command::new("df")
        .args(["--output=avail", "-k", MEMORY])
        .output()
        .ok()
        .and_then(|output| last_number(&String::from_utf8_lossy(&output.stdout)));
    let available = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?.to_owned();
        last_number(line.trim_end_matches(" kB"))
    });
    has("chrt")
        && free.is_some_and(|free| free >= FREE_KIB_MIN)
        && available.is_some_and(|available| available >= AVAILABLE_KIB_MIN)
}

fn last_number(text: &str) -> Option<u64> {
    text.split_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_in_memory_is_removed_with_its_content() {
        let builds = Builds::in_memory();
        let path = builds.path().to_owned();
        if builds.are_in_memory() {
            fs::write(path.join("a"), "b").expect("a file in memory");
        }
        drop(builds);
        assert!(!path.starts_with(MEMORY) || !path.exists(), "{}", path.display());
    }

    #[test]
    fn the_last_number_of_a_line_is_read() {
        assert_eq!(last_number("MemAvailable:   123"), Some(123));
        assert_eq!(last_number("Avail\n 77\n"), Some(77));
        assert_eq!(last_number("Avail"), None);
    }
}
