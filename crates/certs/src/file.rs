//! A PEM file, and the setting that names it, so that an error can name both. Reading is bounded;
//! writing never replaces a file, and never shows half of one.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Bytes of a PEM file at most. A bundle of all public authorities has a quarter of it.
pub const FILE_LEN_MAX: u64 = 1 << 20;

/// A file of certificates or a key, as a setting names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PemFile {
    /// The setting, as its user knows it: `CERT_FILE`, or `--ca-file`.
    pub setting: &'static str,
    /// Where the file is.
    pub path: PathBuf,
}

impl PemFile {
    /// The file that `setting` names.
    pub fn new(setting: &'static str, path: impl Into<PathBuf>) -> Self {
        Self { setting, path: path.into() }
    }

    /// Reads it.
    ///
    /// # Errors
    /// When it is missing, unreadable, or longer than [`FILE_LEN_MAX`].
    pub fn read(&self) -> Result<Vec<u8>, FileError> {
        let failed = |cause| FileError::Read { file: self.clone(), cause };
        let mut bytes = Vec::new();
        let file = File::open(&self.path).map_err(failed)?;
        file.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > FILE_LEN_MAX {
            return Err(FileError::TooLong { file: self.clone() });
        }
        Ok(bytes)
    }

    /// Whether there is something at its path, readable or not.
    pub fn exists(&self) -> bool {
        self.path.symlink_metadata().is_ok()
    }

    /// Whether others than its owner may read it. A file that cannot be looked at is not said to
    /// be.
    pub fn is_exposed(&self) -> bool {
        let mode = self.path.metadata().map(|data| data.permissions().mode());
        mode.is_ok_and(|mode| mode & 0o077 != 0)
    }

    /// Writes it anew, for its owner alone if it is `secret`. It appears whole, and durable.
    ///
    /// # Errors
    /// When there is a file already, which stays as it is, or none can be written.
    pub fn write_new(&self, bytes: &[u8], secret: bool) -> Result<(), FileError> {
        let written = write_whole(&self.path, bytes, if secret { 0o600 } else { 0o644 });
        written.map_err(|cause| match cause.kind() {
            io::ErrorKind::AlreadyExists => FileError::Exists { file: self.clone() },
            _ => FileError::Write { file: self.clone(), cause },
        })
    }

    /// The directory that it is in.
    pub(crate) fn directory(&self) -> &Path {
        directory_of(&self.path)
    }
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

impl fmt::Display for PemFile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ({})", self.setting, self.path.display())
    }
}

/// Why a file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// Name another file, or let this process read it.
    #[error("{file} cannot be read: {cause}; name a PEM file that this process may read")]
    Read {
        /// Which file.
        file: PemFile,
        /// What the system said.
        cause: io::Error,
    },
    /// It is something else.
    #[error("{file} is longer than {FILE_LEN_MAX} bytes; name a PEM file")]
    TooLong {
        /// Which file.
        file: PemFile,
    },
    /// Make its directory writable, or name another.
    #[error(
        "{file} cannot be written: {cause}; name a file in a directory that this process may write to"
    )]
    Write {
        /// Which file.
        file: PemFile,
        /// What the system said.
        cause: io::Error,
    },
    /// Nothing is ever overwritten.
    #[error("{file} exists already and is not replaced; move it away first, or name another")]
    Exists {
        /// Which file.
        file: PemFile,
    },
}

impl FileError {
    /// Whether the file is missing.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Read { cause, .. } if cause.kind() == io::ErrorKind::NotFound)
    }
}

/// A file that appears at `path` at once and wholly, or not at all: written beside it, made
/// durable, then linked, which fails where there is one already.
fn write_whole(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.new", std::process::id()));
    let beside = PathBuf::from(beside);
    let write = || {
        // Its mode is set with its creation: there is no moment in which others can open it.
        let options = OpenOptions::new().write(true).create_new(true).mode(mode).clone();
        let mut file = options.open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::hard_link(&beside, path)?;
        // Its name is durable with its directory, or it is not there.
        let durable = File::open(directory_of(path)).and_then(|directory| directory.sync_all());
        durable.inspect_err(|_| drop(std::fs::remove_file(path)))
    };
    let written = match write() {
        // Of a process with the same id that was killed here.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !path.exists() => {
            std::fs::remove_file(&beside)?;
            write()
        }
        other => other,
    };
    let _ = std::fs::remove_file(&beside);
    written
}
