//! Why an opening, a write or a submission failed.

use std::io;
use std::path::{Path, PathBuf};

use epicepoch_core::durable::Write;
use epicepoch_storage::DatabaseError;
use epicepoch_storage::identity::FORMAT;
use epicepoch_wire::NodeId;
use thiserror::Error;

/// Why a data directory was not opened. What it held is still as it was.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The path, or a part of it, is a file.
    #[error("data directory {path}: not a directory; set DATA_DIR to a directory",
        path = .path.display())]
    NotADirectory {
        /// The data directory.
        path: PathBuf,
    },
    /// The operating system refuses: permissions, a read-only or full disk, an IO error.
    #[error("cannot {action} data directory {path}; check its owner, permissions and disk", path = .path.display())]
    Unusable {
        /// The data directory.
        path: PathBuf,
        /// What was tried, as a verb: "create", "lock", "read".
        action: &'static str,
        /// What the operating system said.
        source: io::Error,
    },
    /// There is no data of a cluster in it.
    #[error("{path} holds no data of a cluster; name the DATA_DIR of a node that was a member",
        path = .path.display())]
    NoData {
        /// The data directory.
        path: PathBuf,
    },
    /// Another process has it open.
    #[error("data directory {path} is in use by another process; stop that one, or give this node \
        a DATA_DIR of its own", path = .path.display())]
    Locked {
        /// The data directory.
        path: PathBuf,
    },
    /// It belongs to another node id.
    #[error("data directory {path} belongs to node {found}, not to node {node}; set NODE_ID or \
        DATA_DIR right: a node id lives and dies with its data", path = .path.display())]
    WrongNode {
        /// The data directory.
        path: PathBuf,
        /// Whose it is.
        found: NodeId,
        /// Who asked.
        node: NodeId,
    },
    /// It belongs to a cluster of another name.
    #[error("data directory {path} belongs to the cluster \"{found}\", not to \"{cluster}\"; set \
        CLUSTER or DATA_DIR right", path = .path.display())]
    WrongCluster {
        /// The data directory.
        path: PathBuf,
        /// Whose it is.
        found: String,
        /// Who asked.
        cluster: String,
    },
    /// A newer version of this program wrote it.
    #[error("data directory {path} has format {found}, this program knows formats up to \
        {supported}; start the newer program again", path = .path.display())]
    NewerFormat {
        /// The data directory.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// The newest format known here.
        supported: u64,
    },
    /// It has an identity, but its log is gone.
    #[error("data directory {path} has an IDENTITY but no log.redb: what this node promised is \
        lost; restore the file, or remove the member from its cluster and add it again under a new \
        node id with an empty directory", path = .path.display())]
    Emptied {
        /// The data directory.
        path: PathBuf,
    },
    /// Something in it is not what was written.
    #[error("data directory {path} is damaged: {what}; keep it for inspection, remove the member \
        from its cluster and add it again under a new node id with an empty directory",
        path = .path.display())]
    Damaged {
        /// The data directory.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
}

impl OpenError {
    /// What a database's refusal means for the directory at `path`.
    pub(super) fn of_database(error: DatabaseError, path: &Path) -> Self {
        let path = path.to_path_buf();
        let is_damage = error.is_damage();
        match error {
            DatabaseError::Damaged(what) => Self::Damaged { path, what },
            DatabaseError::Newer { found } => Self::NewerFormat { path, found, supported: FORMAT },
            DatabaseError::Redb(redb::Error::DatabaseAlreadyOpen) => Self::Locked { path },
            DatabaseError::Redb(redb::Error::Io(source)) if !is_damage => {
                Self::Unusable { path, action: "read or write", source }
            }
            DatabaseError::Redb(error) => {
                Self::Damaged { path, what: format!("its log.redb: {error}") }
            }
        }
    }
}

/// Why the storage thread, or a founding, ended. The process must end too: after a failed sync
/// nobody knows what is on disk, and only a restart finds out.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The disk failed a write or a sync.
    #[error("the data directory cannot be written: {0}; this node must stop")]
    Disk(Box<redb::Error>),
    /// An invariant of what is stored was broken; the panic names it.
    #[error("the storage thread panicked; this node must stop")]
    Panicked,
}

impl WriteError {
    pub(super) fn disk(error: redb::Error) -> Self {
        Self::Disk(Box::new(error))
    }
}

/// Why a write was not taken.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// [`QUEUE_LEN_MAX`](super::writer::QUEUE_LEN_MAX) writes wait. Submit it again, first, after
    /// the next completion.
    #[error("too many writes wait for the disk")]
    Full(Box<Write>),
    /// The storage thread has ended. Its last completion said why.
    #[error("the storage thread has ended")]
    Stopped,
}
