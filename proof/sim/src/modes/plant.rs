//! The rules of the changes of the mode that can be broken on purpose. The checkers must find each.

use crate::intervals::plant::plants;

plants! {
    /// A planted bug of the changes between quorum mode and interval mode.
    ModePlant {
        ConfirmedBeforeDurable: "A node confirms before its disk has it that the node has stopped.",
        StoppedForgotten: "A node that is started again does not know that it had stopped.",
        StoppedByPublicationOnly: "The stamper is not told to stop: a request that was read before goes on.",
        EarlierChangeOpens: "A node that has stopped goes on by what it applied before.",
        MajorityConfirms: "The leader ends interval mode when a majority has confirmed.",
        EarlierChangeConfirmed: "A confirmation of an earlier change counts.",
        RemovedNotAwaited: "A node that was removed in interval mode is not waited for.",
        RemovedGoesOn: "A node that has applied its own removal goes on to answer.",
        GoneWithoutMargin: "What a node that is gone gave is taken to be in the past at once.",
        GivenUnnamed: "A node does not say how far it has given timestamps.",
        RangeKept: "The leader goes on with what it reserved in interval mode.",
        EndAheadOfClock: "Interval mode ends while nodes have given timestamps ahead of the clock.",
        CeilingForgotten: "Interval mode does not begin above the timestamps of quorum mode.",
        WorldStillRuns: "The operator states that a node is gone, and it still runs.",
    }
}
