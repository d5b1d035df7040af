//! Newtypes for every number that has a meaning, so that a term cannot be passed as a round.
//!
//! Raft words follow Ongaro's dissertation (2014). *Epoch* is never a Raft term here: see
//! [`crate::timestamp`].

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number! {
    /// Raft node id, unique in the cluster and never reused. 0 means "no node".
    NodeId
}
number! {
    /// Raft term: a period with at most one leader.
    Term
}
number! {
    /// Position in the Raft log. The first entry is 1; 0 is before the log.
    LogIndex
}
number! {
    /// The position of a data directory: the number of its last durable write, over all boots. The
    /// position only rises, unless the directory is rolled back to an older state. It is 0 before
    /// the first write.
    StorePosition
}
number! {
    /// Number of a confirm round. Each worker counts its rounds from 1 in each boot.
    Round
}
number! {
    /// One run of one process. Its id is drawn at random at the start, so a range of an earlier run
    /// is never taken for one of this run.
    BootId
}
number! {
    /// One history of a cluster. A restore from a backup starts a new one with a higher number. So
    /// clients notice the restore. Of two histories of one cluster, the one with the lower number
    /// has ended.
    HistoryId
}

/// A data-plane worker of a node, counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u32);

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! identity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }
    };
}

identity! {
    /// Id of a cluster, drawn at random at its first bootstrap and replicated. 0 means "none yet".
    ClusterId
}
identity! {
    /// Id of a data directory, drawn at random when the directory is created. The list of members
    /// binds each node id to a data directory. So a node with an emptied disk is not mistaken for
    /// the node that voted.
    StoreId
}
