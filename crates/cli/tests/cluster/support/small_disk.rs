//! A real file system of a few MiB under a node's data directory, that can be filled. It needs the
//! right to mount; where that is missing there is none, and CI does not accept that.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Node, say};

/// Most of what is written at once to fill it, bytes.
const FILL_LEN: usize = 64 << 10;

/// Unmounted when dropped; whoever still has files open keeps them.
pub(crate) struct SmallDisk {
    at: PathBuf,
}

impl SmallDisk {
    /// A disk for a node that has no data directory yet. `None` without the right to mount.
    ///
    /// # Panics
    /// Without it where `CI` is set: there, the test must not be left out.
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

    /// Takes all that is left of it.
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

    /// Gives it back.
    pub(crate) fn free(&self) {
        fs::remove_file(self.filler()).expect("the disk was filled");
    }

    fn filler(&self) -> PathBuf {
        Path::join(&self.at, "filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A mount that stays is seen by whoever removes the directory.
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}
