//! Why a replica refuses an operation. Each variant says what its caller can do.

use epicepoch_wire::{DecodeError, LogIndex, NodeId};
use thiserror::Error;

use crate::positions::RolledBack;

/// Why a replica cannot start from a data directory.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The record is damaged: restore the node from its peers.
    #[error("the stored state cannot be read")]
    Record(#[from] DecodeError),
    /// The library refuses the log: restore the node from its peers.
    #[error("the stored log is refused")]
    Log(#[from] raft::Error),
}

/// Why a peer's message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The message is for another node: close the connection.
    #[error("the message is for another node")]
    WrongReceiver,
    /// The sender's data directory is not the one its node id is bound to: close the connection.
    #[error("the sender's data directory is not the one its node id is bound to")]
    WrongStore,
    /// Only a known member may send this kind of message: drop it.
    #[error("only a member may send this kind of message")]
    NotAMember,
    /// The sender's data directory was rolled back to an older state: refuse it.
    #[error(
        "the sender's data directory was rolled back to an older state: it names {} durable writes \
         and has named {}", .0.named, .0.remembered
    )]
    RolledBack(RolledBack),
    /// The message carries data of a newer format: run a version that reads it.
    #[error(
        "this node cannot read the entry or snapshot in the message, at index {index}: {error}"
    )]
    Unreadable {
        /// The index of the unreadable entry or snapshot.
        index: LogIndex,
        /// Why it cannot be read.
        error: DecodeError,
    },
    /// The append contradicts what this node knows to be committed: drop it. A late append of an
    /// earlier leader can do that, if this node has learned from an election what a later leader has
    /// committed.
    #[error("the append contradicts what is committed: only an earlier leader sends it, late")]
    ContradictsCommit,
    /// No correct peer sends this claim: close the connection.
    #[error("the message is impossible: no correct peer sends it")]
    Impossible,
    /// This node's disk has lost entries that it had acknowledged: it must stop.
    #[error(
        "a leader knows that {commit} entries are committed here, but this disk holds only {last}: it \
         was rolled back to an older state"
    )]
    LostEntries {
        /// The commit index that the leader knows.
        commit: LogIndex,
        /// The last entry on this disk.
        last: LogIndex,
    },
}

/// Why a membership change was not proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// Ask the leader.
    #[error("this node does not lead")]
    NotLeader,
    /// Wait until the pending change is done, or until this leader has applied the changes in its
    /// log.
    #[error("another membership change is under way")]
    Busy,
    /// The change can never be made.
    #[error("{0}")]
    Refused(&'static str),
    /// A member is not caught up: wait until it is.
    /// See [`propose_prudent_change`](super::Replica::propose_prudent_change).
    #[error(transparent)]
    NotCaughtUp(#[from] NotCaughtUp),
    /// The change removes the leader: hand leadership over first, then ask the new leader.
    #[error("node {0} leads: hand leadership over first, then remove it")]
    Leads(NodeId),
    /// Too few voters would be running: bring voters back, add others, or first remove the lost
    /// ones.
    #[error(
        "only {there} of the {voters} voters after the change are running, which is no majority: no \
         node could answer any more"
    )]
    Stranded {
        /// Voters of the new configuration that were heard within an election timeout.
        there: usize,
        /// All voters of the new configuration.
        voters: usize,
    },
}

/// Why leadership was not handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TransferError {
    /// Ask the leader.
    #[error("this node does not lead")]
    NotLeader,
    /// There is nothing to do.
    #[error("node {0} leads already")]
    LeadsAlready(NodeId),
    /// Name a member.
    #[error("node {0} is no member of the cluster")]
    Unknown(NodeId),
    /// Promote it first.
    #[error("node {0} is a learner: it has no vote and cannot lead before it is promoted")]
    Learner(NodeId),
    /// The named member is not caught up: wait until it is caught up and heard, or name another.
    #[error(transparent)]
    NotCaughtUp(#[from] NotCaughtUp),
    /// No other voter can take over: wait until one is caught up and heard.
    #[error("no other voter is caught up and was heard within an election timeout")]
    NoCandidate,
    /// A handover is under way: wait until it has ended.
    #[error("leadership is being handed over already")]
    Busy,
    /// This leader does not know yet whether the node is a voter. Wait until it has applied the
    /// membership changes in its log.
    #[error("node {0} is no voter yet, and a membership change is under way")]
    Changing(NodeId),
}

/// Why a member can neither lead nor vote for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NotCaughtUp {
    /// The member is silent: make sure that it runs and is reachable.
    #[error("node {0} was not heard within an election timeout: is it running and reachable?")]
    Silent(NodeId),
    /// The member lacks too many entries: wait until it has caught up.
    #[error(
        "node {node} is not caught up: it lacks {entries} committed entries, and may lack at most {LAG_MAX}"
    )]
    Behind {
        /// The member.
        node: NodeId,
        /// How many committed entries the member is not known to hold.
        entries: u64,
    },
}

/// A caught-up member lacks at most this many committed entries: a few seconds of them, which fit
/// in one message. A leader writes a few entries a second under any load.
pub const LAG_MAX: u64 = 16;
