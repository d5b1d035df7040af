//! The data directory: the state that must survive a kill. This module does not decide what to
//! write. It never acknowledges a write that is not on disk, and never retries a failed write. It
//! never opens a directory that has lost anything.
//!
//! - `directory`: the path, its lock, and files that appear whole or not at all.
//! - [`writer`]: the storage thread, which commits all waiting writes in one transaction.
//! - `backend`: the disk below the database, with injected faults ([`crate::faults`]).
//! - `error`: the errors.
//!
//! The tables, their invariants and the recovery are in [`epicepoch_storage`], without files and
//! threads, so that the simulator runs them, too.
//!
//! # Files, and the states that a crash leaves
//! | file | content |
//! |---|---|
//! | `LOCK` | nothing; locked by the process that uses the directory |
//! | `log.redb` | a `redb` 4 database: identity, hard state, record, log |
//! | `IDENTITY` | the identity again, as text: it proves that `log.redb` existed |
//! | `ADDRESSES` | where each peer was last: a hint, which `addresses::book` writes |
//! | `*.new` | an unfinished file; the next one of that name overwrites it |
//!
//! A new directory gets `log.redb`, then `IDENTITY`. Each is written as `*.new`, synced and renamed, and
//! then the rename is synced. So a crash leaves one of these states:
//!
//! | `log.redb` | `IDENTITY` | genesis | the directory is |
//! |---|---|---|---|
//! | no | no | | new |
//! | yes | no | no | new; the next start completes it with the same store id |
//! | yes | yes | no | whole, of a member that is still empty |
//! | yes | yes | yes | whole |
//! | no | yes | | emptied by hand: refused |
//! | yes | no | yes | without its identity, by hand: refused |
//!
//! # Commits
//! Each commit takes two syncs; [`epicepoch_storage`] says why.
//!
//! Measured on a 2-core virtual machine with ext4, in a dev build (`cargo run -p
//! epicepoch-server --example commit_latency`): a commit of one entry takes 0.26 ms at the
//! median and 0.37 ms at the 99th percentile, both syncs included.
//!
//! # Limits
//! At most [`writer::QUEUE_LEN_MAX`] writes wait. With a compaction every thousand entries the file
//! stays at 1.1 MB after 20,000 commits; a test fails above 5 MB. The page cache is 1 MB.

mod backend;
mod directory;
mod error;
pub mod writer;

use std::io;
use std::path::Path;
use std::time::SystemTime;

use epicepoch_core::durable::{Record, Restored};
use epicepoch_storage::{Database, Identity};
use epicepoch_wire::{NodeId, StoreId};
use redb::backends::FileBackend;

use crate::faults::Faults;
use backend::Disk;
use directory::Directory;

pub use error::{OpenError, SubmitError, WriteError};
pub use writer::{Completion, MarkWriter, WriterHandle};

/// An open data directory. It is locked against other processes until this value is dropped, or until
/// its storage thread has ended.
#[derive(Debug)]
pub struct Storage {
    // The database is declared before the directory, so that it is closed before the lock is
    // released.
    database: Database,
    directory: Directory,
}

/// The result of [`Storage::open`].
#[derive(Debug)]
pub struct Opened {
    /// The open directory.
    pub storage: Storage,
    /// The identity of the directory. It is drawn at random when the directory is created, and
    /// never changes.
    pub store: StoreId,
    /// The content of the directory; `None` while it has no genesis.
    pub restored: Option<Restored>,
}

/// The result of [`Storage::read_stopped`].
#[derive(Debug)]
pub struct Stopped {
    /// The identity of the directory.
    pub identity: Identity,
    /// The content of the directory.
    pub restored: Restored,
    /// When a node last wrote it, by the machine's clock at that time.
    pub written_at: SystemTime,
}

impl Storage {
    /// Opens the data directory of `node` in the cluster named `cluster_name`. Creates the
    /// directory if it does not exist. `faults` apply to every sync.
    ///
    /// # Errors
    /// When the directory cannot be used, is in use, belongs to another node or cluster, or has
    /// lost or damaged data. Its content is then unchanged.
    pub fn open(
        path: &Path,
        node: NodeId,
        cluster_name: &str,
        faults: &Faults,
    ) -> Result<Opened, OpenError> {
        let directory = Directory::lock(path)?;
        let written = directory.identity()?;
        if let Some(identity) = &written {
            check(identity, path, node, cluster_name)?;
        }
        match (&written, directory.has_database()?) {
            (Some(_), false) => return Err(OpenError::Emptied { path: path.into() }),
            (None, false) => {
                let identity = mint(node, cluster_name).map_err(|source| OpenError::Unusable {
                    path: path.into(),
                    action: "draw a store id for",
                    source,
                })?;
                directory.place_database(|file| {
                    Database::create(Disk::new(FileBackend::new(file)?, faults), &identity)
                })?;
            }
            (_, true) => {}
        }
        let disk = Disk::new(directory.open_database()?, faults);
        let (database, identity, restored) =
            Database::open(disk).map_err(|error| OpenError::of_database(error, path))?;
        compare(written.as_ref(), &identity, restored.is_some(), path)?;
        if written.is_none() {
            check(&identity, path, node, cluster_name)?;
            directory.place_identity(&identity)?;
        }
        let storage = Self { database, directory };
        Ok(Opened { storage, store: identity.store, restored })
    }

    /// Reads the data directory of a stopped node, whatever its node id. Creates nothing but the
    /// lock, and changes nothing.
    ///
    /// # Errors
    /// When no data directory is there, a process uses it, it has no data of a cluster yet, or it
    /// is damaged.
    pub fn read_stopped(path: &Path) -> Result<Stopped, OpenError> {
        let none = || OpenError::NoData { path: path.into() };
        // This check comes first: locking creates a file, and a mistyped path may be another
        // program's directory.
        if !Directory::is_one(path) {
            return Err(none());
        }
        let directory = Directory::lock(path)?;
        let written = directory.identity()?.ok_or_else(none)?;
        if !directory.has_database()? {
            return Err(OpenError::Emptied { path: path.into() });
        }
        let written_at = directory.written_at()?;
        // To open the file itself would write to it.
        let (_, identity, restored) = Database::open(directory::copy_database(path)?)
            .map_err(|error| OpenError::of_database(error, path))?;
        compare(Some(&written), &identity, restored.is_some(), path)?;
        Ok(Stopped { identity, restored: restored.ok_or_else(none)?, written_at })
    }

    /// Looks at a data directory as [`Storage::open`] would, but creates and changes nothing. It
    /// opens a copy of the database in memory, unless a process uses the directory.
    ///
    /// # Errors
    /// Why [`Storage::open`] would refuse the directory.
    pub fn inspect(path: &Path, node: NodeId, cluster_name: &str) -> Result<Found, OpenError> {
        let is_in_use = directory::look(path)?;
        let written = directory::identity(path)?;
        if let Some(identity) = &written {
            check(identity, path, node, cluster_name)?;
        }
        match (&written, directory::has_database(path)?) {
            (Some(_), false) => return Err(OpenError::Emptied { path: path.into() }),
            _ if is_in_use => return Ok(Found::InUse),
            (None, false) => return Ok(Found::Nothing),
            (_, true) => {}
        }
        let (_, identity, restored) = Database::open(directory::copy_database(path)?)
            .map_err(|error| OpenError::of_database(error, path))?;
        compare(written.as_ref(), &identity, restored.is_some(), path)?;
        check(&identity, path, node, cluster_name)?;
        Ok(if restored.is_some() { Found::Data } else { Found::Nothing })
    }

    /// Writes the first record of an empty member, which is a genesis or a snapshot. Returns once
    /// it is on disk. The hard state gets the record's term, no vote, and the record's index as
    /// commit. The log stays empty.
    ///
    /// # Errors
    /// When the disk failed. The process must end: only a restart can find out what is on disk.
    ///
    /// # Panics
    /// When the directory has a record already, or when `record` has index 0 or term 0.
    pub fn found(&mut self, record: &Record) -> Result<(), WriteError> {
        self.database.found(record).map_err(WriteError::disk)
    }

    /// What the directory has of interval mode.
    #[must_use]
    pub const fn intervals(&self) -> epicepoch_storage::Intervals {
        self.database.intervals()
    }

    /// Starts the storage thread. The thread calls `completed` once per commit, in order;
    /// `completed` must not block. See [`writer`].
    ///
    /// # Errors
    /// When the thread cannot be started.
    ///
    /// # Panics
    /// When the directory has no record: call [`Storage::found`] first.
    pub fn into_writer(
        self,
        completed: impl Fn(Completion) + Send + 'static,
    ) -> io::Result<WriterHandle> {
        assert!(self.database.is_founded(), "an empty member has nothing to add to");
        WriterHandle::start(self.database, self.directory, completed)
    }
}

/// Makes a new identity with a random store id.
fn mint(node: NodeId, cluster_name: &str) -> io::Result<Identity> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(Identity::new(node, StoreId(u128::from_le_bytes(bytes)), cluster_name))
}

/// What [`Storage::inspect`] has found in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// No data of a cluster: the directory is missing, empty, or of a member that is still empty.
    Nothing,
    /// The data of this node.
    Data,
    /// Another process uses the directory: probably this node runs.
    InUse,
}

/// Refuses a directory whose `IDENTITY`, which is `written`, does not belong to its database.
fn compare(
    written: Option<&Identity>,
    identity: &Identity,
    is_founded: bool,
    path: &Path,
) -> Result<(), OpenError> {
    let what = match written {
        Some(written) if written == identity => return Ok(()),
        Some(_) => "its IDENTITY and its log.redb come from different directories",
        None if is_founded => "its IDENTITY is missing",
        None => return Ok(()),
    };
    Err(OpenError::Damaged { path: path.into(), what: what.into() })
}

/// Refuses the directory of another node or cluster.
fn check(
    identity: &Identity,
    path: &Path,
    node: NodeId,
    cluster_name: &str,
) -> Result<(), OpenError> {
    if identity.node != node {
        return Err(OpenError::WrongNode { path: path.into(), found: identity.node, node });
    }
    if !identity.is_of(cluster_name) {
        return Err(OpenError::WrongCluster {
            path: path.into(),
            found: identity.cluster.clone(),
            cluster: Identity::new(node, identity.store, cluster_name).cluster,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::PathBuf;
    use std::time::Duration;

    use tempfile::TempDir;

    use epicepoch_disk::model::genesis;

    use super::*;

    struct Disk {
        root: TempDir,
    }

    impl Disk {
        fn new() -> Self {
            Self { root: TempDir::new().unwrap() }
        }

        fn path(&self) -> PathBuf {
            self.root.path().join("_raft").join("node-1")
        }

        fn file(&self, name: &str) -> PathBuf {
            self.path().join(name)
        }

        fn open(&self) -> Result<Opened, OpenError> {
            Storage::open(&self.path(), NodeId(1), "test", &Faults::none())
        }

        /// A closed directory that holds a genesis.
        fn founded() -> (Self, StoreId) {
            let disk = Self::new();
            let mut opened = disk.open().unwrap();
            opened.storage.found(&genesis()).unwrap();
            (disk, opened.store)
        }
    }

    #[test]
    fn a_new_directory_is_empty_and_keeps_its_store_id() {
        let disk = Disk::new();
        let first = disk.open().unwrap();
        assert_eq!(first.restored, None);
        let store = first.store;
        drop(first);
        let mut second = disk.open().unwrap();
        assert_eq!((second.store, second.restored), (store, None));
        second.storage.found(&genesis()).unwrap();
        drop(second.storage);
        let third = disk.open().unwrap();
        assert_eq!(third.store, store);
        let restored = third.restored.unwrap();
        assert_eq!((restored.record, restored.entries), (genesis(), vec![]));
        let commit = restored.hard_state;
        assert_eq!((commit.term.0, commit.vote.0, commit.commit.0), (1, 0, 1));
    }

    #[test]
    fn reading_the_directory_of_a_stopped_node_creates_nothing() {
        let (disk, store) = Disk::founded();
        // The node has stopped an hour ago. That can be read more than once.
        let stopped_at = SystemTime::now() - Duration::from_hours(1);
        File::options()
            .write(true)
            .open(disk.file("log.redb"))
            .and_then(|it| it.set_modified(stopped_at))
            .unwrap();
        for _ in 0..2 {
            let Stopped { identity, restored, written_at } =
                Storage::read_stopped(&disk.path()).unwrap();
            assert_eq!((identity.node, identity.store), (NodeId(1), store));
            assert_eq!((restored.record, written_at), (genesis(), stopped_at));
        }
        let opened = disk.open().unwrap();
        assert!(matches!(Storage::read_stopped(&disk.path()), Err(OpenError::Locked { .. })));
        drop(opened);
        fs::remove_file(disk.file("log.redb")).unwrap();
        assert!(matches!(Storage::read_stopped(&disk.path()), Err(OpenError::Emptied { .. })));
        let none = disk.root.path().join("none");
        assert!(matches!(Storage::read_stopped(&none), Err(OpenError::NoData { .. })));
        assert!(!none.exists());
        let others = disk.root.path().join("others");
        fs::create_dir(&others).unwrap();
        assert!(matches!(Storage::read_stopped(&others), Err(OpenError::NoData { .. })));
        assert_eq!(fs::read_dir(&others).unwrap().count(), 0);
        let empty = Disk::new();
        drop(empty.open().unwrap());
        assert!(matches!(Storage::read_stopped(&empty.path()), Err(OpenError::NoData { .. })));
    }

    #[test]
    fn no_two_directories_share_a_store_id() {
        let store = || mint(NodeId(1), "epicepoch").unwrap().store;
        assert_ne!(store(), store());
    }

    #[test]
    fn a_directory_is_open_once() {
        let disk = Disk::new();
        let opened = disk.open().unwrap();
        assert!(matches!(disk.open(), Err(OpenError::Locked { .. })));
        drop(opened);
        disk.open().unwrap();
    }

    #[test]
    fn another_nodes_or_clusters_directory_is_refused() {
        let (disk, _) = Disk::founded();
        let other = Storage::open(&disk.path(), NodeId(2), "test", &Faults::none());
        assert!(matches!(other, Err(OpenError::WrongNode { found: NodeId(1), .. })));
        let other = Storage::open(&disk.path(), NodeId(1), "prod", &Faults::none());
        assert!(matches!(other, Err(OpenError::WrongCluster { .. })));
        disk.open().unwrap();
    }

    /// These are the states that a crash can leave while a directory is created, in order.
    #[test]
    fn a_crash_while_a_directory_is_created_leaves_it_new() {
        let disk = Disk::new();
        fs::create_dir_all(disk.path()).unwrap();
        fs::write(disk.file("LOCK"), "").unwrap();
        fs::write(disk.file("log.redb.new"), "half a database").unwrap();
        let store = disk.open().unwrap().store;

        fs::remove_file(disk.file("IDENTITY")).unwrap();
        let opened = disk.open().unwrap();
        assert_eq!((opened.store, opened.restored), (store, None));
        drop(opened.storage);

        fs::rename(disk.file("IDENTITY"), disk.file("IDENTITY.new")).unwrap();
        fs::write(disk.file("IDENTITY.new"), "half an ident").unwrap();
        assert_eq!(disk.open().unwrap().store, store);
        assert!(disk.file("IDENTITY").exists());
    }

    #[test]
    fn an_unfinished_directory_of_another_node_is_refused() {
        let disk = Disk::new();
        disk.open().unwrap();
        fs::remove_file(disk.file("IDENTITY")).unwrap();
        let other = Storage::open(&disk.path(), NodeId(2), "test", &Faults::none());
        assert!(matches!(other, Err(OpenError::WrongNode { .. })));
    }

    #[test]
    fn an_emptied_directory_is_never_taken_for_a_new_one() {
        let (disk, _) = Disk::founded();
        fs::remove_file(disk.file("log.redb")).unwrap();
        for _ in 0..2 {
            assert!(matches!(disk.open(), Err(OpenError::Emptied { .. })));
        }
        assert!(!disk.file("log.redb").exists());
    }

    #[test]
    fn a_directory_without_its_pieces_is_damaged() {
        type Damage<'a> = &'a dyn Fn(&Disk);
        let (other, _) = Disk::founded();
        let damages: [(&str, Damage<'_>); 6] = [
            ("no identity", &|disk| fs::remove_file(disk.file("IDENTITY")).unwrap()),
            ("an empty identity", &|disk| fs::write(disk.file("IDENTITY"), "").unwrap()),
            ("a binary identity", &|disk| fs::write(disk.file("IDENTITY"), [0xFF]).unwrap()),
            ("another's log", &|disk| {
                fs::copy(other.file("log.redb"), disk.file("log.redb")).unwrap();
            }),
            ("an empty log", &|disk| fs::write(disk.file("log.redb"), "").unwrap()),
            ("no database", &|disk| fs::write(disk.file("log.redb"), [7; 9000]).unwrap()),
        ];
        for (damage, inflict) in damages {
            let (disk, _) = Disk::founded();
            inflict(&disk);
            for _ in 0..2 {
                let error = disk.open().unwrap_err();
                assert!(matches!(error, OpenError::Damaged { .. }), "{damage}: {error}");
            }
        }
    }

    #[test]
    fn a_newer_programs_directory_is_refused() {
        let (disk, _) = Disk::founded();
        let newer = fs::read_to_string(disk.file("IDENTITY")).unwrap();
        let newer = newer.replace("format 1", "format 2");
        fs::write(disk.file("IDENTITY"), newer).unwrap();
        let error = disk.open().unwrap_err();
        assert!(matches!(error, OpenError::NewerFormat { found: 2, supported: 1, .. }), "{error}");
    }

    #[test]
    fn a_path_that_is_no_directory_is_refused() {
        let disk = Disk::new();
        let file = disk.root.path().join("file");
        fs::write(&file, "").unwrap();
        for path in [file.clone(), file.join("data")] {
            let error = Storage::open(&path, NodeId(1), "test", &Faults::none()).unwrap_err();
            assert!(matches!(error, OpenError::NotADirectory { .. }), "{error}");
        }
    }

    #[test]
    #[should_panic(expected = "there is a record already")]
    fn a_member_is_founded_once() {
        let (disk, _) = Disk::founded();
        let _ = disk.open().unwrap().storage.found(&genesis());
    }

    #[test]
    #[should_panic(expected = "an empty member")]
    fn an_empty_member_writes_nothing() {
        let _ = Disk::new().open().unwrap().storage.into_writer(drop);
    }
}
