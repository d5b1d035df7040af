//! A real file system of a few MiB for a node's data directory, which a test can fill. It needs the
//! right to mount. Without that right, the test is left out, but in CI it fails.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Node, say};

/// The test fills the disk with writes of this many bytes.
const FILL_LEN: usize = 64 << 10;

/// The mounted file system. It is unmounted when dropped; open files stay usable.
pub(crate) struct SmallDisk {
    at: PathBuf,
}

impl SmallDisk {
    /// Mounts a disk for a node that has no data directory yet. Returns `None` if this process has
    /// no right to mount.
    ///
    /// # Panics
    /// The variable `CI` is set, and this process has no right to mount. CI must not leave the test
    /// out.
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
        // If the unmount fails, the directory cannot be removed, either. So the error is ignored
        // here.
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

/// Checks that a node's log says that the disk is full.
#[track_caller]
pub(crate) fn assert_says_why(log: &str) {
    let log = log.to_lowercase();
    let says = |word| log.contains(word);
    assert!(says("no space left") || says("storage full"), "it does not say why: {log}");
}
