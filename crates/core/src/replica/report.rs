//! Outputs for people: reports for logs, metrics and acknowledgements, fatal errors, and the
//! status. No decision reads them.

use epicepoch_wire::{DecodeError, Epoch, LogIndex, NodeId, Term};
use thiserror::Error;

use crate::publication::{EpochRange, Role};
use crate::state::{Outcome, Owner};

/// An event to log, count or acknowledge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// Term, role or leader changed.
    Leadership {
        /// The term now.
        term: Term,
        /// The role now.
        role: Role,
        /// The leader now, if known.
        leader: Option<NodeId>,
    },
    /// A range was assigned to this node, in the term that it leads. While a leader gives its range
    /// back, it answers nothing from it.
    Granted {
        /// The term.
        term: Term,
        /// The whole range that this node owns now.
        range: EpochRange,
        /// Time from proposal to assignment, nanoseconds.
        took_ns: u64,
    },
    /// A leader that handed over has given back the end of its range: the next range begins at its
    /// low end.
    GivenBack {
        /// The leader that gave it back.
        owner: Owner,
        /// What was given back.
        range: EpochRange,
    },
    /// A handover that gives the range back takes too long. The leader answers again, and offers
    /// leadership without giving anything back.
    AnswersAgain {
        /// The successor.
        to: NodeId,
        /// Whether leadership was offered, and the successor has not taken over. Otherwise the
        /// allocator had not stopped, or an earlier reservation had not ended.
        is_offered: bool,
        /// The range from which it answers at once. `None` if it has to reserve first.
        range: Option<EpochRange>,
    },
    /// A reservation has missed its deadline.
    ReservationLate {
        /// How many in a row.
        missed: u32,
    },
    /// No epoch is left below 2^64 nanoseconds.
    Exhausted,
    /// Interval mode has ended: every interval timestamp is at or below `floor`, and quorum mode begins
    /// above it (S26).
    IntervalsEnded {
        /// The ceiling at that moment.
        floor: Epoch,
    },
    /// A snapshot replaced the state and the log.
    Installed {
        /// The snapshot's index.
        index: LogIndex,
    },
    /// The oldest part of the log was dropped.
    Compacted {
        /// The last index dropped.
        to: LogIndex,
    },
    /// This membership change was applied or refused.
    Changed {
        /// The change's nonce.
        nonce: u64,
        /// What the change did.
        outcome: Outcome,
    },
    /// An operator's advance is done: every request that begins from now on is answered above this
    /// epoch.
    Advanced {
        /// The epoch.
        to: Epoch,
    },
    /// State and log have this format from now on; older versions can no longer run.
    FormatRaised {
        /// The format.
        to: u32,
    },
    /// This change of the settings was applied or refused. Nonce 0 marks the first settings, which
    /// a leader proposes from its own configuration.
    SettingsChanged {
        /// The change's nonce.
        nonce: u64,
        /// What the change did.
        outcome: Outcome,
    },
    /// This node is no member any more.
    Removed,
    /// Leadership is being handed over.
    HandingOver {
        /// The successor.
        to: NodeId,
        /// Why leadership is handed over.
        why: HandOver,
    },
    /// Leadership was given up without a successor.
    SteppedDown {
        /// Why leadership was given up.
        why: HandOver,
    },
}

/// Why a leader gives leadership away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandOver {
    /// An operator asked for it.
    Asked,
    /// This node was told to stop.
    Stopping,
    /// No quorum was heard for an election timeout and a quarter.
    Unheard,
    /// A write has been outstanding for an election timeout.
    DiskStuck,
    /// No confirm round was completed for two election timeouts.
    RoundsStuck,
    /// This node's clock is off, and other voters' clocks are right.
    ClockOff,
    /// A voter in a better zone has been fit to lead for long enough.
    Preferred,
    /// Accepts of clients have failed without a break for two election timeouts.
    ClientsCut,
}

/// Why this node must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fatal {
    /// Reservations keep missing their deadline although a quorum answers.
    #[error(
        "{missed} reservations in a row missed their deadline although a quorum answers: check \
         disks and network, or raise EPOCH_DEADLINE_LIMIT"
    )]
    DeadlineLimit {
        /// How many reservations in a row were late.
        missed: u32,
    },
    /// A committed entry cannot be read here: run a version that reads it.
    #[error(
        "the committed entry {index} cannot be read here: {error}. A newer version wrote it: run that \
         version or a later one on this node. Nothing was lost; neither this entry nor a later one was \
         applied"
    )]
    Unreadable {
        /// The entry's log index.
        index: LogIndex,
        /// Why it cannot be read.
        error: DecodeError,
    },
    /// Most members say that this node was removed. Its data directory is now useless.
    #[error(
        "node {node} was removed from the cluster: its id is never used again, and its data \
         directory can be deleted; do not start it again"
    )]
    Removed {
        /// This node.
        node: NodeId,
    },
    /// The disk has stopped answering.
    #[error("the disk does not answer: {outstanding} writes are outstanding")]
    DiskStuck {
        /// How many writes are outstanding.
        outstanding: usize,
    },
}

/// The status of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The current term.
    pub term: Term,
    /// The role in it.
    pub role: Role,
    /// The leader, if known.
    pub leader: Option<NodeId>,
    /// The last entry of the log.
    pub last: LogIndex,
    /// The last entry known to be committed.
    pub committed: LogIndex,
    /// The last entry applied.
    pub applied: LogIndex,
    /// Entries held in memory.
    pub log_len: usize,
    /// Writes that are not durable yet.
    pub writes_outstanding: usize,
    /// Messages that wait for a write.
    pub messages_held: usize,
    /// The other replicas and this one, ordered by node id.
    pub peers: Vec<PeerProgress>,
}

/// The progress of a replica, as its leader knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProgress {
    /// The replica.
    pub node: NodeId,
    /// `0 <= matched < next`: the last entry known to be durable on the replica.
    pub matched: LogIndex,
    /// Whether the replica was heard within an election timeout.
    pub is_heard: bool,
}
