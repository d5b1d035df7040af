//! The two planes of a process, the threads of each, and the turns of one.

use std::ops::Range;

use crate::parameters::THREADS;

/// One of the two planes of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plane {
    /// The consensus plane's thread and links.
    Raft = 0,
    /// The workers' threads and links.
    Workers = 1,
}

impl Plane {
    /// The numbers of the plane's threads: 0 is the thread of the consensus plane, the others are
    /// the workers.
    pub(crate) const fn threads(self) -> Range<usize> {
        match self {
            Self::Raft => 0..1,
            Self::Workers => 1..THREADS,
        }
    }
}

/// A turn of a consensus plane: it handles events, and then does their actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// All actions are done.
    Done,
    /// Further events may come before the actions of those before.
    Open,
    /// The plane does the actions, some of which it has decided some events ago.
    Late,
}
