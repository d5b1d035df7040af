//! The data directory: what a node must still know after it was killed. It never decides what is
//! written, never acknowledges what is not on disk, never retries a failed write, and never opens
//! a directory that lost something.
//!
//! - `directory`: the path, its lock, and files that appear whole or not at all.
//! - `identity`: which node, cluster and store the directory belongs to.
//! - `database`: the tables and their transactions.
//! - `stored`: the invariants of what is stored, checked at every write and every opening.
//! - `writer`: the storage thread, which commits everything that waits in one transaction.
//! - `backend`: the disk below the database, with the faults of [`crate::faults`].
//! - `error`: why an opening, a write or a submission failed.
//!
//! # Files, and what a crash leaves
//! | file | what it is |
//! |---|---|
//! | `LOCK` | empty; locked by the process that uses the directory |
//! | `log.redb` | a `redb` 4 database: identity, hard state, record, log |
//! | `IDENTITY` | the identity again, as text: the witness that `log.redb` was there |
//! | `*.new` | a file that never became whole; written over by the next start |
//!
//! A new directory gets `log.redb`, then `IDENTITY`, each written beside its place, synced, renamed
//! into it, and the rename synced. So these are all the states there are, whatever the crash:
//!
//! | `log.redb` | `IDENTITY` | genesis | the directory is |
//! |---|---|---|---|
//! | no | no | | new |
//! | yes | no | no | new; its making is finished with the store id it has |
//! | yes | yes | no | whole, of a member that is still empty |
//! | yes | yes | yes | whole |
//! | no | yes | | emptied by someone: refused |
//! | yes | no | yes | robbed of its identity by someone: refused |
//!
//! # Commits
//! Every commit is a two-phase commit of `redb`: two syncs. The single-sync commit that is its
//! default finds out at the next start whether the newest commit is whole and *silently* goes back
//! one commit when it is not; it cannot tell a commit torn by a crash, which nobody was told of,
//! from an acknowledged one that has rotted since. A vote forgotten so would break Raft. With two
//! phases the newest commit is known to have been whole, and damage to it is an error. Quick
//! repair, which writes the allocator's state with every commit, is off: the file is so small that
//! a full repair takes milliseconds.
//!
//! # Limits
//! At most [`writer::QUEUE_LEN_MAX`] writes wait. The file stays below 5 MB while the log is
//! compacted every thousand entries or so; the page cache is 1 MB.

mod backend;
mod database;
mod directory;
mod error;
mod identity;
mod stored;
pub mod writer;

use std::path::Path;

use epicepoch_core::durable::{Record, Restored};
use epicepoch_wire::{NodeId, StoreId};
use redb::backends::FileBackend;

use crate::faults::Faults;
use backend::Disk;
use database::Database;
use directory::Directory;
use identity::Identity;

pub use error::{OpenError, SubmitError, WriteError};
pub use writer::{Completion, WriterHandle};

/// An open data directory, locked against every other process until it is dropped, or until the
/// thread that it becomes has ended.
#[derive(Debug)]
pub struct Storage {
    // Declared before the directory, so that it is closed before the lock goes.
    database: Database,
    directory: Directory,
}

/// What [`Storage::open`] found.
#[derive(Debug)]
pub struct Opened {
    /// The open directory.
    pub storage: Storage,
    /// Its identity: drawn at random when the directory was made, the same ever after.
    pub store: StoreId,
    /// What it holds. `None` while it holds no genesis: the member is empty.
    pub restored: Option<Restored>,
}

impl Storage {
    /// Opens the data directory of `node` in the cluster named `cluster_name`, or makes it if it
    /// does not exist. `faults` are asked at every sync; [`Faults::none`] has none.
    ///
    /// # Errors
    /// When the directory cannot be used, is used by another process, belongs to another node or
    /// cluster, or lost or damaged anything. It is then left as it was.
    pub fn open(
        path: &Path,
        node: NodeId,
        cluster_name: &str,
        faults: &Faults,
    ) -> Result<Opened, OpenError> {
        let directory = Directory::lock(path)?;
        let written = directory.identity()?;
        if let Some(identity) = &written {
            identity.check(path, node, cluster_name)?;
        }
        match (&written, directory.has_database()?) {
            (Some(_), false) => return Err(OpenError::Emptied { path: path.into() }),
            (None, false) => {
                let identity = Identity::mint(node, cluster_name).map_err(|source| {
                    OpenError::Unusable { path: path.into(), action: "draw a store id for", source }
                })?;
                directory.place_database(|file| {
                    Database::create(Disk::new(FileBackend::new(file)?, faults), &identity)
                })?;
            }
            (_, true) => {}
        }
        let disk = Disk::new(directory.open_database()?, faults);
        let (database, identity, restored) =
            Database::open(disk).map_err(|error| error.into_open_error(path))?;
        match written {
            Some(written) if written == identity => {}
            Some(_) => {
                let what = "its IDENTITY and its log.redb come from different directories".into();
                return Err(OpenError::Damaged { path: path.into(), what });
            }
            None if restored.is_some() => {
                let what = "its IDENTITY is missing".into();
                return Err(OpenError::Damaged { path: path.into(), what });
            }
            None => {
                identity.check(path, node, cluster_name)?;
                directory.place_identity(&identity)?;
            }
        }
        let storage = Self { database, directory };
        Ok(Opened { storage, store: identity.store, restored })
    }

    /// Writes the first record of an empty member, durably: a genesis, or the snapshot that it was
    /// admitted with. The hard state becomes the record's term, no vote, commit at the record; the
    /// log is empty. Returns once it is on disk.
    ///
    /// # Errors
    /// When the disk failed. The process must end: what is on disk is known only after a restart.
    ///
    /// # Panics
    /// When there is a record already, or this one has index or term 0.
    pub fn found(&mut self, record: &Record) -> Result<(), WriteError> {
        self.database.found(record).map_err(WriteError::disk)
    }

    /// Starts the storage thread. `completed` is called on it, once per commit, in order; it must
    /// not block. See [`writer`].
    ///
    /// # Errors
    /// When the thread cannot be started.
    ///
    /// # Panics
    /// While there is no record: call [`Storage::found`] first.
    pub fn into_writer(
        self,
        completed: impl Fn(Completion) + Send + 'static,
    ) -> std::io::Result<WriterHandle> {
        assert!(self.database.is_founded(), "an empty member has nothing to add to");
        WriterHandle::start(self.database, self.directory, completed)
    }
}
