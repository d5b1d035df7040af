//! The errors of opening a data directory, of a write and of a submission.

use std::io;
use std::path::{Path, PathBuf};

use epicepoch_core::durable::Write;
use epicepoch_storage::DatabaseError;
use epicepoch_storage::identity::FORMAT;
use epicepoch_wire::NodeId;
use thiserror::Error;

/// Why a data directory was not opened. The content of the directory is unchanged.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The path, or a part of it, is not a directory but a file.
    #[error("data directory {path}: not a directory; set DATA_DIR to a directory",
        path = .path.display())]
    NotADirectory {
        /// The data directory.
        path: PathBuf,
    },
    /// The operating system refuses, for example because of permissions, a full disk or an IO
    /// error.
    #[error("cannot {action} data directory {path}; check its owner, permissions and disk", path = .path.display())]
    Unusable {
        /// The data directory.
        path: PathBuf,
        /// The failed action, as a verb: "create", "lock", "read".
        action: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The directory holds no data of a cluster.
    #[error("{path} holds no data of a cluster; name the DATA_DIR of a node that was a member",
        path = .path.display())]
    NoData {
        /// The data directory.
        path: PathBuf,
    },
    /// Another process uses the directory.
    #[error("data directory {path} is in use by another process; stop that one, or give this node \
        a DATA_DIR of its own", path = .path.display())]
    Locked {
        /// The data directory.
        path: PathBuf,
    },
    /// The directory belongs to another node id.
    #[error("data directory {path} belongs to node {found}, not to node {node}; correct NODE_ID or \
        DATA_DIR: a node id is bound to one data directory", path = .path.display())]
    WrongNode {
        /// The data directory.
        path: PathBuf,
        /// The node that the directory belongs to.
        found: NodeId,
        /// The node id in the settings.
        node: NodeId,
    },
    /// The directory belongs to a cluster of another name.
    #[error("data directory {path} belongs to the cluster \"{found}\", not to \"{cluster}\"; \
        correct CLUSTER or DATA_DIR", path = .path.display())]
    WrongCluster {
        /// The data directory.
        path: PathBuf,
        /// The cluster that the directory belongs to.
        found: String,
        /// The cluster name in the settings.
        cluster: String,
    },
    /// A newer version of this program wrote the directory.
    #[error("data directory {path} has format {found}, but this program reads formats only up to \
        {supported}; run the newer program", path = .path.display())]
    NewerFormat {
        /// The data directory.
        path: PathBuf,
        /// The format of the directory.
        found: u64,
        /// The newest format that this program reads.
        supported: u64,
    },
    /// The directory has an identity, but its log is gone.
    #[error("data directory {path} has an IDENTITY but no log.redb: what this node promised is \
        lost; restore the file, or remove the member from its cluster and add it again under a new \
        node id with an empty directory", path = .path.display())]
    Emptied {
        /// The data directory.
        path: PathBuf,
    },
    /// A file in the directory is damaged.
    #[error("data directory {path} is damaged: {what}; keep it for inspection, remove the member \
        from its cluster and add it again under a new node id with an empty directory",
        path = .path.display())]
    Damaged {
        /// The data directory.
        path: PathBuf,
        /// The damage.
        what: String,
    },
}

impl OpenError {
    /// Makes the error for the directory at `path`, after its database failed with `error`.
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

/// Why the storage thread, or the founding of a directory, failed. The process must end: after a
/// failed sync only a restart can find out what is on disk.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The disk failed during a write or a sync.
    #[error("the data directory cannot be written: {0}; this node must stop")]
    Disk(Box<redb::Error>),
    /// An invariant of the stored data is broken. The log has the panic, which names the invariant.
    #[error("the storage thread panicked; this node must stop")]
    Panicked,
}

impl WriteError {
    pub(super) fn disk(error: redb::Error) -> Self {
        Self::Disk(Box::new(error))
    }
}

/// Why a write was not queued.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// [`QUEUE_LEN_MAX`](super::writer::QUEUE_LEN_MAX) writes wait. Submit this write again after
    /// the next completion, before any other write.
    #[error("too many writes wait for the disk")]
    Full(Box<Write>),
    /// The storage thread has ended; its last completion names the reason.
    #[error("the storage thread has ended")]
    Stopped,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_fails_is_no_damaged_file() {
        let of = |kind: io::ErrorKind| {
            let error = DatabaseError::Redb(redb::Error::Io(kind.into()));
            OpenError::of_database(error, Path::new("data"))
        };
        assert!(matches!(of(io::ErrorKind::PermissionDenied), OpenError::Unusable { .. }));
        for kind in [io::ErrorKind::InvalidData, io::ErrorKind::UnexpectedEof] {
            assert!(matches!(of(kind), OpenError::Damaged { .. }), "{kind}");
        }
    }
}
