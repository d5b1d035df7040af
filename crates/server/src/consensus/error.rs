//! The errors that end the consensus plane.

use std::io;

use epicepoch_core::replica::{Fatal, MessageError, RestoreError};
use epicepoch_core::restore::FloorError;
use epicepoch_wire::NodeId;
use epicepoch_wire::peer_hello::Refusal;
use thiserror::Error;

use crate::storage::{SubmitError, WriteError};

/// Why the consensus plane ended by itself. The node must end, too.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConsensusError {
    /// The runtime of the thread could not be created.
    #[error("the consensus thread cannot run")]
    Runtime(#[from] io::Error),
    /// A peer refused this node, and waiting does not help.
    #[error("node {by} refuses this node: {refusal}")]
    Refused {
        /// The peer.
        by: NodeId,
        /// The peer's reason.
        refusal: Refusal,
    },
    /// A member sent its state to this empty directory, but the state does not name the directory.
    #[error(
        "the state received from {addr} does not name this data directory as a member: correct PEERS \
         or JOIN"
    )]
    NotAdmitted {
        /// The member's address.
        addr: String,
    },
    /// No floor could be found that is above every timestamp of the old history.
    #[error("no new history can begin: {0}")]
    NoFloor(FloorError),
    /// The founder has waited for leases of the old history. Meanwhile the members that it asked may
    /// have changed. It asks again.
    #[error("the founder has waited for leases of the old cluster, and asks all members again")]
    AnswersTooOld,
    /// A node of the old history, which the backup is from, still runs or may run.
    #[error(
        "a node of the old history still runs at {addr}, or may, and may give timestamps: stop every \
         node of it for good before a new history begins ({said})"
    )]
    OldHistoryRuns {
        /// The node's address.
        addr: String,
        /// The node's answer, or what happened instead.
        said: String,
    },
    /// This machine has no route to too many members of the old history, which the backup is from.
    #[error(
        "this machine has no route to {members}: too many members of the old history to see whether \
         they still give timestamps. Repair its network or its resolver, and start again. If \
         the machines are gone for good with their names or networks, tell this machine so: put \
         their names in /etc/hosts with an address where nothing listens, or run ip route add \
         unreachable <network>"
    )]
    CutOff {
        /// The members' addresses, each with the error of the system.
        members: String,
    },
    /// The data directory cannot be used.
    #[error("the data directory cannot be used")]
    Restore(#[from] RestoreError),
    /// The disk failed. Only a restart can find out what is on disk.
    #[error("the disk failed")]
    Disk(#[from] WriteError),
    /// The storage thread accepts no more writes.
    #[error("the storage thread accepts no more writes")]
    Storage(#[from] SubmitError),
    /// The replica found an error after which it must stop.
    #[error(transparent)]
    Fatal(#[from] Fatal),
    /// A peer's messages show that this disk has lost entries: it was rolled back to an older
    /// state.
    #[error(
        "{0}; put the newest directory back, or remove this member and add a new one with an empty \
         directory"
    )]
    LostEntries(MessageError),
}
