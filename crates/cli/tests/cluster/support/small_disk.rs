//! A real file system of a few MiB for a node's data directory. A test can fill it. It needs the
//! right to mount; without that right, the test fails in CI.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Node, say};

/// Bytes of one write when the disk is filled.
const FILL_LEN: usize = 64 << 10;

/// The mounted file system. It is unmounted when dropped; open files stay usable.
pub(crate) struct SmallDisk {
    at: PathBuf,
}

impl SmallDisk {
    /// Mounts a disk for a node that has no data directory yet. Returns `None` without the right to
    /// mount.
    ///
    /// # Panics
    /// If `CI` is set and the right to mount is missing: CI must not leave the test out.
    pub(crate) fn under(node: &Node, kib: u64) -> Option<Self> {
        let at = node.data_dir();
        fs::create_dir(&at).expect("the node has no data directory yet");
        let size = format!("size={kib}k");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&at);
        if mount.output().is_ok_and(|output| output.status.success()) {
            return Some(Self { at });
        }
        assert!(std::env::var_os("CI").is_none(), "a disk of its own needs the right to mount");
        say("LEFT OUT: a disk of its own needs the right to mount");
        None
    }

    /// Fills the disk.
    pub(crate) fn fill(&self) {
        let mut filler = File::create(self.filler()).expect("the disk has room for a name");
        let mut len = FILL_LEN;
        while len > 0 {
            match filler.write(&vec![0xff; len]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => len /= 2,
                Err(error) => panic!("the disk cannot be filled: {error}"),
            }
        }
    }

    /// Frees the space again.
    pub(crate) fn free(&self) {
        fs::remove_file(self.filler()).expect("the disk was filled");
    }

    fn filler(&self) -> PathBuf {
        Path::join(&self.at, "filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // If this fails, the directory cannot be removed either.
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

/// Checks that the log names the full disk.
#[track_caller]
pub(crate) fn assert_says_why(log: &str) {
    let log = log.to_lowercase();
    let says = |word| log.contains(word);
    assert!(says("no space left") || says("storage full"), "it does not say why: {log}");
}
