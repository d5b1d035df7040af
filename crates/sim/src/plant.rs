//! Bugs done on purpose, in what stands around the core and never in the core: each breaks one
//! rule that the safety argument needs, and the checkers must find it. A release build has none:
//! there, nothing can be selected.

use epicepoch_core::confirm::{Confirmed, Rounds};
use epicepoch_core::publication::{Grant, Identity, Published, Shared};
use epicepoch_core::quorum::Voters;
use epicepoch_wire::WorkerId;

macro_rules! plants {
    ($($(#[$doc:meta])* $name:ident $text:literal,)*) => {
        /// A broken rule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Plant { $($(#[$doc])* $name,)* }

        impl Plant {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its name on the command line.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

plants! {
    /// A leader answers as soon as it is asked, without a round.
    Unconfirmed "unconfirmed",
    /// A round of the last half second proves leadership for those who arrive now.
    RecentRound "recent-round",
    /// A request joins the batch of a round that was sent already.
    LateJoin "late-join",
    /// Requests that wait when a round ends are answered with it.
    JoinAtCompletion "join-at-completion",
    /// A yes counts for whatever round is newest, of whatever term.
    AnyReplyCounts "any-reply-counts",
    /// Yeses are counted, not voters: one that is repeated counts for another voter.
    CountedTwice "counted-twice",
    /// A voter's Promise is raised some ticks after its vote has left.
    LatePromise "late-promise",
    /// A restarted voter's Promise begins at 0, and rises only with a new term.
    RestartPromise "restart-promise",
    /// A range is kept across terms and stamped in again.
    KeptRange "kept-range",
    /// A restarted node takes the range that it had been given for its own.
    RestartedRange "restarted-range",
    /// A follower answers from the replicated range, with the leader's term confirmed.
    FollowerAnswers "follower-answers",
    /// The range is computed when leadership begins, and believed before it is committed.
    ProposerRange "proposer-range",
    /// The yes of a node that is no voter, or not any more, counts for one.
    StrangerCounts "stranger-counts",
    /// The workers know the voters of their node's start for ever.
    OldVoters "old-voters",
    /// A wiped disk votes and confirms again under its node's old store id.
    WipedDisk "wiped-disk",
    /// A disk says that a write is durable before it is.
    LyingDisk "lying-disk",
    /// The term is not on disk: a restart takes that of its last entry.
    TermFromLog "term-from-log",
    /// Every worker stamps indexes of its own, so that none waits for another.
    WorkerIndexes "worker-indexes",
    /// The index begins anew at every interval, also where the epoch stands still.
    IndexReset "index-reset",
    /// The next batch begins with the last timestamp of the one before.
    SplitOffByOne "split-off-by-one",
    /// A batch's count is kept in eight bits.
    CountOverflow "count-overflow",
    /// The clock is read once to see whether the interval has passed, and again for the epoch.
    ClockReadTwice "clock-read-twice",
    /// The interval begins anew with every batch, so that a busy leader's epoch stands still.
    IntervalRestarts "interval-restarts",
    /// The epoch follows the clock, also back.
    EpochFollowsClock "epoch-follows-clock",
    /// The epoch follows the clock beyond the range.
    BeyondRange "beyond-range",
    /// The grant is not revoked when leadership ends, only replaced. Harmless: see [`Plant::HARMLESS`].
    RevokedLate "revoked-late",
}

impl Plant {
    /// Bugs that this design makes harmless. A grant that is revoked late still meets the confirm
    /// round, which asks a quorum whether anybody was promised a higher term.
    pub const HARMLESS: &[Self] = &[Self::RevokedLate];

    /// The bug of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|plant| plant.name() == name)
    }

    /// Whether the workers need a publication of their own, because it is what the bug is in.
    pub(crate) const fn is_in_publication(self) -> bool {
        use Plant::{
            FollowerAnswers, KeptRange, OldVoters, ProposerRange, RestartedRange, RevokedLate,
        };
        matches!(
            self,
            KeptRange | RestartedRange | FollowerAnswers | OldVoters | ProposerRange | RevokedLate
        )
    }

    /// Whether the bug is in the allocator, which then is not the core's.
    pub(crate) const fn is_in_allocator(self) -> bool {
        use Plant::{
            BeyondRange, ClockReadTwice, CountOverflow, EpochFollowsClock, IndexReset,
            IntervalRestarts, SplitOffByOne, WorkerIndexes,
        };
        matches!(
            self,
            IndexReset
                | SplitOffByOne
                | CountOverflow
                | ClockReadTwice
                | IntervalRestarts
                | EpochFollowsClock
                | BeyondRange
                | WorkerIndexes
        )
    }

    /// Whether the bug lets correct nodes see what no correct peer does, or lose what they had.
    pub(crate) const fn is_in_disk(self) -> bool {
        use Plant::{LyingDisk, TermFromLog, WipedDisk};
        matches!(self, WipedDisk | LyingDisk | TermFromLog)
    }
}

/// A confirmed round that nobody confirmed: that of a cluster of one with the same grant.
pub(crate) fn forged(me: Identity, grant: Grant) -> Confirmed {
    let voters = Voters::new(&[me.node], &[], |_| me.store);
    let published = Published { voters, grant: Some(grant), ..Published::nothing(me) };
    let shared = Shared::new(grant.term, published);
    let mut rounds = Rounds::new(me, WorkerId(u32::MAX));
    rounds.begin(|| (), &shared, u64::MAX).expect("there is a grant");
    rounds.poll_confirmed().expect("one voter is a quorum").1
}
