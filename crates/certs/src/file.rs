//! A PEM file, and the setting that names it, so that an error can name both. Reading is bounded.
//! Writing never replaces a file, and never leaves a partial one.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Longest PEM file, bytes: four times a bundle of all public authorities.
pub const FILE_LEN_MAX: u64 = 1 << 20;

/// A file of certificates or a key, as a setting names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PemFile {
    /// The setting as a user knows it: `CERT_FILE`, or `--ca-file`.
    pub setting: &'static str,
    /// The path of the file.
    pub path: PathBuf,
}

impl PemFile {
    /// The file that `setting` names.
    pub fn new(setting: &'static str, path: impl Into<PathBuf>) -> Self {
        Self { setting, path: path.into() }
    }

    /// Reads the file.
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

    /// Whether anything exists at the path, readable or not.
    pub fn exists(&self) -> bool {
        self.path.symlink_metadata().is_ok()
    }

    /// Whether others than the file's owner may read it. `false` if its permissions cannot be read.
    pub fn is_exposed(&self) -> bool {
        let mode = self.path.metadata().map(|data| data.permissions().mode());
        mode.is_ok_and(|mode| mode & 0o077 != 0)
    }

    /// Creates the file, readable only by its owner if it is `secret`. The file is complete and
    /// durable when it appears at its path.
    ///
    /// # Errors
    /// When the file exists already (it stays as it is), or cannot be written.
    pub fn write_new(&self, bytes: &[u8], secret: bool) -> Result<(), FileError> {
        let written = write_whole(&self.path, bytes, if secret { 0o600 } else { 0o644 });
        written.map_err(|cause| match cause.kind() {
            io::ErrorKind::AlreadyExists => FileError::Exists { file: self.clone() },
            _ => FileError::Write { file: self.clone(), cause },
        })
    }

    /// The directory of the file.
    #[cfg(feature = "issue")]
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
    /// The file cannot be read: let this process read it, or name another file.
    #[error("{file} cannot be read: {cause}; name a PEM file that this process may read")]
    Read {
        /// The file.
        file: PemFile,
        /// The system's error.
        cause: io::Error,
    },
    /// The file is too long for a PEM file: name another one.
    #[error("{file} is longer than {FILE_LEN_MAX} bytes; name a PEM file")]
    TooLong {
        /// The file.
        file: PemFile,
    },
    /// The file cannot be written: make its directory writable, or name another file.
    #[error(
        "{file} cannot be written: {cause}; name a file in a directory that this process may write to"
    )]
    Write {
        /// The file.
        file: PemFile,
        /// The system's error.
        cause: io::Error,
    },
    /// A file is never overwritten: move it away, or name another one.
    #[error("{file} exists already and is not replaced; move it away first, or name another")]
    Exists {
        /// The file.
        file: PemFile,
    },
}

impl FileError {
    /// Whether the file is missing.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Read { cause, .. } if cause.kind() == io::ErrorKind::NotFound)
    }
}

/// Creates the file at `path` as a whole, or not at all. It is written under another name, made
/// durable, and then linked; the link fails if `path` exists.
fn write_whole(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.new", std::process::id()));
    let beside = PathBuf::from(beside);
    let write = || {
        // The mode is set at creation, so that others can never open the file.
        let options = OpenOptions::new().write(true).create_new(true).mode(mode).clone();
        let mut file = options.open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::hard_link(&beside, path)?;
        // If the directory cannot be made durable, the file is removed again.
        let durable = File::open(directory_of(path)).and_then(|directory| directory.sync_all());
        durable.inspect_err(|_| drop(std::fs::remove_file(path)))
    };
    let written = match write() {
        // An earlier process with the same process id was killed at this point, and has left its
        // file.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !path.exists() => {
            std::fs::remove_file(&beside)?;
            write()
        }
        other => other,
    };
    let _ = std::fs::remove_file(&beside);
    written
}
