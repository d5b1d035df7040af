//! The data directory: its path, its lock, and its files. A file appears whole or not at all: it is
//! written under another name and then renamed. Opening a file never creates it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use epicepoch_storage::identity::{FORMAT, IDENTITY_LEN_MAX};
use epicepoch_storage::{DatabaseError, Identity, IdentityError};
use redb::StorageBackend as _;
use redb::backends::{FileBackend, InMemoryBackend};
use rustix::fs::{Access, access};

use super::OpenError;

const LOCK_FILE: &str = "LOCK";
const IDENTITY_FILE: &str = "IDENTITY";
const DATABASE_FILE: &str = "log.redb";

/// A data directory that is locked against other processes.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// The file is locked while it is open. The system unlocks it when the process ends in any way.
    _lock: File,
}

impl Directory {
    /// Whether `path` holds an `IDENTITY` file. Creates nothing.
    pub(super) fn is_one(path: &Path) -> bool {
        path.join(IDENTITY_FILE).is_file()
    }

    /// Creates the directory and its parents if they are missing, and locks it.
    pub(super) fn lock(path: &Path) -> Result<Self, OpenError> {
        make(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
                OpenError::NotADirectory { path: path.into() }
            }
            _ => OpenError::Unusable { path: path.into(), action: "create", source },
        })?;
        let unusable = |source| OpenError::Unusable { path: path.into(), action: "lock", source };
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path.join(LOCK_FILE))
            .map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.into(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(OpenError::Locked { path: path.into() }),
            Err(TryLockError::Error(source)) => Err(unusable(source)),
        }
    }

    /// Creates a new database. `create` writes it to an empty file, which is then put in place.
    pub(super) fn place_database(
        &self,
        create: impl FnOnce(File) -> Result<(), DatabaseError>,
    ) -> Result<(), OpenError> {
        let file = self.new_file(DATABASE_FILE).map_err(|source| self.unusable("write", source))?;
        create(file).map_err(|error| OpenError::of_database(error, &self.path))?;
        self.place(DATABASE_FILE).map_err(|source| self.unusable("write", source))
    }

    /// Puts the `IDENTITY` file in place. From then on the database must exist.
    pub(super) fn place_identity(&self, identity: &Identity) -> Result<(), OpenError> {
        self.new_file(IDENTITY_FILE)
            .and_then(|mut file| file.write_all(identity.text().as_bytes()))
            .and_then(|()| self.place(IDENTITY_FILE))
            .map_err(|source| self.unusable("write", source))
    }

    /// Reads the `IDENTITY` file; `None` when there is none.
    pub(super) fn identity(&self) -> Result<Option<Identity>, OpenError> {
        identity(&self.path)
    }

    /// Whether the database's file exists.
    pub(super) fn has_database(&self) -> Result<bool, OpenError> {
        has_database(&self.path)
    }

    /// Opens the database's file. An empty file is refused, because `redb` would take it for a new
    /// database.
    pub(super) fn open_database(&self) -> Result<FileBackend, OpenError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.path.join(DATABASE_FILE))
            .map_err(|source| self.unusable("open", source))?;
        let length = file.metadata().map_err(|source| self.unusable("read", source))?.len();
        if length == 0 {
            return Err(self.damaged("its log.redb is empty"));
        }
        FileBackend::new(file).map_err(|error| OpenError::of_database(error.into(), &self.path))
    }

    /// When the database was last written, by the clock of this machine at that time.
    pub(super) fn written_at(&self) -> Result<SystemTime, OpenError> {
        let written = fs::metadata(self.path.join(DATABASE_FILE)).and_then(|it| it.modified());
        written.map_err(|source| self.unusable("read", source))
    }

    fn new_file(&self, name: &str) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(self.path.join(format!("{name}.new")))
    }

    /// Puts a file in place: syncs `name.new`, renames it to `name`, and syncs the directory.
    fn place(&self, name: &str) -> io::Result<()> {
        let new = self.path.join(format!("{name}.new"));
        OpenOptions::new().write(true).open(&new)?.sync_all()?;
        fs::rename(&new, self.path.join(name))?;
        sync_directory(&self.path)
    }

    fn unusable(&self, action: &'static str, source: io::Error) -> OpenError {
        unusable(&self.path, action, source)
    }

    fn damaged(&self, what: &str) -> OpenError {
        damaged(&self.path, what)
    }
}

/// Checks that this process may create and change files in the directory, or create it. Creates
/// nothing. Returns whether the directory exists and another process has locked it.
pub(super) fn look(path: &Path) -> Result<bool, OpenError> {
    if path.exists() && !path.is_dir() {
        return Err(OpenError::NotADirectory { path: path.into() });
    }
    let mut nearest = path;
    while !nearest.exists() {
        nearest = match nearest.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            Some(_) | None => Path::new("."),
        };
    }
    let action = if nearest == path { "write to" } else { "create" };
    let allowed = access(nearest, Access::WRITE_OK | Access::EXEC_OK);
    allowed.map_err(|source| unusable(path, action, source.into()))?;
    let lock = match OpenOptions::new().write(true).open(path.join(LOCK_FILE)) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(source) => return Err(unusable(path, "lock", source)),
    };
    match lock.try_lock() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(source)) => Err(unusable(path, "lock", source)),
    }
}

/// Reads the `IDENTITY` file of a directory; `None` when there is none.
pub(super) fn identity(path: &Path) -> Result<Option<Identity>, OpenError> {
    let mut text = String::new();
    let read = File::open(path.join(IDENTITY_FILE))
        .and_then(|file| file.take(IDENTITY_LEN_MAX as u64).read_to_string(&mut text));
    match read {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => text.clear(),
        Err(source) => return Err(unusable(path, "read", source)),
    }
    Identity::parse(&text).map(Some).map_err(|error| match error {
        IdentityError::Damaged => damaged(path, "its IDENTITY file is damaged"),
        IdentityError::Newer { found } => {
            OpenError::NewerFormat { path: path.into(), found, supported: FORMAT }
        }
    })
}

/// Whether the database's file exists in a directory.
pub(super) fn has_database(path: &Path) -> Result<bool, OpenError> {
    path.join(DATABASE_FILE).try_exists().map_err(|source| unusable(path, "read", source))
}

/// Reads the database's file into memory, so that it can be opened without a change on disk.
pub(super) fn copy_database(path: &Path) -> Result<InMemoryBackend, OpenError> {
    let unreadable = |source| unusable(path, "read", source);
    let bytes = fs::read(path.join(DATABASE_FILE)).map_err(unreadable)?;
    if bytes.is_empty() {
        return Err(damaged(path, "its log.redb is empty"));
    }
    let copy = InMemoryBackend::new();
    copy.set_len(bytes.len() as u64).and_then(|()| copy.write(0, &bytes)).map_err(unreadable)?;
    Ok(copy)
}

fn unusable(path: &Path, action: &'static str, source: io::Error) -> OpenError {
    OpenError::Unusable { path: path.into(), action, source }
}

fn damaged(path: &Path, what: &str) -> OpenError {
    OpenError::Damaged { path: path.into(), what: what.to_owned() }
}

/// Creates a directory and its parents, and syncs each parent.
fn make(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = match path.parent() {
        None => return fs::create_dir(path),
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
    };
    make(parent)?;
    match fs::create_dir(path) {
        // Another process, or another node of this process, has created it in the meantime.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
        Ok(()) => sync_directory(parent),
    }
}

/// Syncs the file names in a directory. Windows has no such call and needs none.
fn sync_directory(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn action(error: OpenError) -> &'static str {
        match error {
            OpenError::Unusable { action, .. } => action,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_directory_is_looked_at_without_being_made() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b");
        assert!(!look(&path).unwrap());
        assert!(!root.path().join("a").exists());
        assert!(!look(Path::new("no-such-directory")).unwrap());
        let _locked = Directory::lock(&path).unwrap();
        assert!(look(&path).unwrap(), "it is locked");
    }

    #[test]
    fn a_directory_that_cannot_be_used_is_an_error_that_names_the_action() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(matches!(look(&file).unwrap_err(), OpenError::NotADirectory { .. }));
        // No directory can be made in a file, whoever asks.
        assert_eq!(action(look(&file.join("a/b")).unwrap_err()), "create");
        fs::create_dir(root.path().join(LOCK_FILE)).unwrap();
        assert_eq!(action(look(root.path()).unwrap_err()), "lock");
        assert!(identity(root.path()).unwrap().is_none());
        fs::create_dir(root.path().join(IDENTITY_FILE)).unwrap();
        assert_eq!(action(identity(root.path()).unwrap_err()), "read");
    }

    #[test]
    fn a_directory_is_made_with_its_parents() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b");
        make(&path).unwrap();
        make(&path).unwrap();
        assert!(path.is_dir());
        // Somebody else makes it meanwhile: `c/..` exists as soon as `c` does.
        make(&root.path().join("c/..")).unwrap();
        fs::write(root.path().join("file"), "").unwrap();
        make(&root.path().join("file")).unwrap_err();
    }

    /// The test runs itself in a process of its own, whose working directory is not the source tree.
    #[test]
    fn a_directory_is_made_below_the_working_directory() {
        const NAME: &str =
            "storage::directory::tests::a_directory_is_made_below_the_working_directory";
        const CHILD: &str = "this-is-the-child";
        if Path::new(CHILD).exists() {
            make(Path::new("made")).unwrap();
            return;
        }
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join(CHILD), "").unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", NAME]).current_dir(&root).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(root.path().join("made").is_dir(), "{output:?}");
    }
}
