//! Bugs inside the core, on purpose: each breaks one rule that the safety argument needs, and the
//! checkers of the simulator must find it. One is selected per thread, at run time; while a bug is
//! selected, here or around the core, the core's asserts of S1 to S16 (`safety_assert`) are silent,
//! so that it is the checkers that are proved. A release build has none of it: there [`is`] is a
//! constant, and what it guards is not compiled.

use epicepoch_wire::Epoch;

use crate::publication::Grant;

macro_rules! bugs {
    ($($(#[$doc:meta])* $name:ident $text:literal,)*) => {
        /// A broken rule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug { $($(#[$doc])* $name,)* }

        impl Bug {
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

bugs! {
    // Rounds and quorums.
    /// A yes counts for every round in flight, of whatever term or round it was.
    AnyReplyCounts "any-reply-counts",
    /// Yeses are counted, not voters: one that is repeated counts for another voter.
    CountedTwice "counted-twice",
    /// The yes of a voter that was removed still counts for one.
    RemovedCounts "removed-counts",
    /// The yes of a learner counts for a voter's.
    LearnerCounts "learner-counts",
    /// While several voters change, the incoming half alone confirms rounds.
    IncomingHalf "incoming-half",
    /// While several voters change, one half decides alone, elections, commits and rounds alike: the
    /// incoming one, as if there were no joint configuration.
    HalfOfJoint "half-of-joint",
    /// Half of the voters is taken for a majority.
    EvenHalf "even-half",
    // Configurations.
    /// The workers' voters are those of the node's start for ever.
    OldVoters "old-voters",
    /// The workers' voters are published some time after the change is applied.
    LateVoters "late-voters",
    /// A change of members that can never be made is proposed all the same.
    MistakesProposed "mistakes-proposed",
    /// An id that was removed is admitted again.
    ReusedId "reused-id",
    /// A learner is promoted however much it lacks, and whether or not it is there.
    PromotesBehind "promotes-behind",
    /// Leadership is handed to whom an operator names, however much it lacks, and whether or not it is
    /// there.
    HandsOverBehind "hands-over-behind",
    /// Leadership is handed to a voter in a better place however much it lacks, and whether or not it
    /// is there.
    UnfitPreferred "unfit-preferred",
    // Promise, disk and votes.
    /// An answer that was overtaken by a later one of the same run accuses its node of having been set
    /// back.
    OvertakenAccuses "overtaken-accuses",
    /// The Promise is raised at the next tick, when the vote may have left.
    LatePromise "late-promise",
    /// A vote, or a request for votes, leaves before it is on disk.
    EarlyVote "early-vote",
    /// Entries are acknowledged before they are on disk.
    EarlyAck "early-ack",
    /// Entries that replace others are acknowledged before they are on disk: there is something at
    /// their index.
    EarlyOverwrite "early-overwrite",
    /// Any completion of a write counts for all that are outstanding.
    AnyCompletion "any-completion",
    /// A restart reads the term and forgets who got the vote in it.
    ForgottenVote "forgotten-vote",
    // Grants and ranges.
    /// A range has no term of its own: it is kept until leadership is regained, and stamped in.
    KeptRange "kept-range",
    /// The range is only hidden while this node does not lead, and taken out again when it does.
    HiddenRange "hidden-range",
    /// Roles are looked at now and then: leader, follower, leader between two looks is no change,
    /// and the range is kept in the new term.
    CoalescedRoles "coalesced-roles",
    /// A restarted node takes the range that it reads from its log for its own.
    RestartedRange "restarted-range",
    /// Whoever applies a range stamps in it: a follower answers.
    FollowerAnswers "follower-answers",
    /// A range begins at the ceiling that its proposer knew, not where the last one ended.
    ProposerRange "proposer-range",
    /// A new leader stamps above the ceiling that it has applied so far, before its own
    /// reservation is.
    LaggingCeiling "lagging-ceiling",
    /// A new leader publishes such a range and takes it back in the same step.
    MomentaryGrant "momentary-grant",
    /// A reservation names a bound only, in whole seconds: whoever finds the ceiling there believes that it
    /// is its.
    EqualProposals "equal-proposals",
    /// A reservation of an older term that completes late is taken for the current term's.
    LateCompletion "late-completion",
    /// A range begins at its proposer's clock, not at the ceiling.
    RangeFromClock "range-from-clock",
    /// A snapshot and a compacted log forget who owns the last range.
    SnapshotForgetsOwner "snapshot-forgets-owner",
    /// A snapshot and a compacted log forget the ceiling.
    SnapshotForgetsCeiling "snapshot-forgets-ceiling",
    /// A snapshot and a compacted log forget the format that the state was raised to.
    SnapshotForgetsFormat "snapshot-forgets-format",
    /// A snapshot and a compacted log forget the settings of the cluster.
    SnapshotForgetsSettings "snapshot-forgets-settings",
    /// Settings of the cluster are in the state, and nobody goes by them: all go on by what they were told.
    SettingsIgnored "settings-ignored",
    /// A leader goes by other settings as soon as it proposes them.
    SettingsAtProposal "settings-at-proposal",
    /// The format is raised without a word of the members.
    RaisedUnread "raised-unread",
    // Time that an operator moves.
    /// What is owned below an advance is kept, and stamped in, once the ceiling is above it.
    AdvanceKeepsRange "advance-keeps-range",
    /// The leader stamps as far as an advance goes before that is reserved.
    AdvanceUnreserved "advance-unreserved",
    /// An advance is said to be done as soon as it is asked for.
    AdvanceEarlyAck "advance-early-ack",
    /// An advance may go as far ahead of the clock as anybody likes.
    AdvanceUnbounded "advance-unbounded",
    // A restore.
    /// A restored history begins above what its backup knew.
    RestoreFloorOfBackup "restore-floor-of-backup",
    /// A restored history begins at the first members' clocks: without the window, that the old one
    /// may have reserved ahead of them.
    RestoreWithoutWindow "restore-without-window",
    /// The latest of the first members' clocks proves a floor, also where they disagree.
    AnyClockProves "any-clock-proves",
    /// A backup names the window that its node was told, not the longest that the state ever had.
    LongestWindowForgotten "longest-window-forgotten",
    /// A restored history forgets which ids were removed.
    RestoreForgetsRemoved "restore-forgets-removed",
    // The allocator.
    /// The index begins anew at every interval, also where the epoch stands still.
    IndexReset "index-reset",
    /// The next batch begins with the last timestamp of the one before.
    NextOffByOne "next-off-by-one",
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
    // The clock firewall.
    /// The median of three known clocks is believed, of however many voters.
    MedianOfKnown "median-of-known",
    /// A node that has just started believes its own wall clock.
    RestartTrustsWall "restart-trusts-wall",
    /// A wall clock that jumps is followed.
    JumpFollowed "jump-followed",
    /// A wall clock that runs wrong is followed: it is only ever held against a moment ago.
    CreepFollowed "creep-followed",
    /// A wall clock that was not followed once is never followed again.
    NeverBelievesAgain "never-believes-again",
    /// The earliest of the known clocks is believed, always.
    EarliestBelieved "earliest-believed",
    // Nothing wrong is ever answered, but in the end nothing is.
    /// A reservation that was under way when leadership ended still counts as under way when it is
    /// regained, so that no other is ever proposed.
    LostReservation "lost-reservation",
    /// A leader waits with its reservations until it hears every voter.
    EveryVoterAwaited "every-voter-awaited",
    /// A snapshot that was lost on the way is waited for, for ever.
    SnapshotNeverFailed "snapshot-never-failed",
    /// A joint configuration is never left.
    JointNeverLeft "joint-never-left",
    /// A handover that nobody has taken is under way for ever, so that nothing more is reserved.
    TransfereeKept "transferee-kept",
    /// Leadership is handed to whoever is placed as well as the leader, again and again.
    RestlessHandover "restless-handover",
    // Made harmless by the design: the simulator's list says why.
    /// A round asks for the library's current term instead of its grant's.
    CurrentTermAsked "current-term-asked",
}

/// What is planted on a thread.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, PartialEq, Eq)]
enum Selected {
    Nothing,
    AroundTheCore,
    InTheCore(Bug),
}

#[cfg(debug_assertions)]
std::thread_local! {
    static SELECTED: std::cell::Cell<Selected> = const { std::cell::Cell::new(Selected::Nothing) };
}

/// While it lives, a bug is planted on this thread, and the core's asserts are silent.
#[cfg(debug_assertions)]
#[derive(Debug)]
#[must_use = "the bug is planted only while this lives"]
pub struct Planted(());

/// Plants `bug` on this thread; `None` for a bug that is around the core.
#[cfg(debug_assertions)]
pub fn plant(bug: Option<Bug>) -> Planted {
    SELECTED.set(bug.map_or(Selected::AroundTheCore, Selected::InTheCore));
    Planted(())
}

#[cfg(debug_assertions)]
impl Drop for Planted {
    fn drop(&mut self) {
        SELECTED.set(Selected::Nothing);
    }
}

/// Whether `bug` is planted on this thread.
#[cfg(debug_assertions)]
#[must_use]
pub fn is(bug: Bug) -> bool {
    SELECTED.get() == Selected::InTheCore(bug)
}

/// Whether any bug is planted on this thread, here or around the core.
#[cfg(debug_assertions)]
#[must_use]
pub fn is_any() -> bool {
    SELECTED.get() != Selected::Nothing
}

/// Never: a release build has no planted bugs.
#[cfg(not(debug_assertions))]
#[inline]
#[must_use]
pub const fn is(_bug: Bug) -> bool {
    false
}

/// Never: a release build has no planted bugs.
#[cfg(not(debug_assertions))]
#[inline]
#[must_use]
pub const fn is_any() -> bool {
    false
}

/// What planted bugs of a replica remember; nothing in a release build.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    #[cfg(debug_assertions)]
    proposed_above: Epoch,
    #[cfg(debug_assertions)]
    look: (u64, bool),
    #[cfg(debug_assertions)]
    hidden: Option<Grant>,
}

#[cfg(debug_assertions)]
impl Memory {
    /// A reservation is proposed by a replica that knows this ceiling.
    pub(crate) fn propose_above(&mut self, ceiling: Epoch) {
        self.proposed_above = ceiling;
    }

    /// The ceiling that was known when the last reservation was proposed.
    pub(crate) fn proposed_above(&self) -> Epoch {
        self.proposed_above
    }

    /// A grant is revoked.
    pub(crate) fn hide(&mut self, grant: Option<Grant>) {
        self.hidden = grant;
    }

    /// The grant that was revoked last.
    pub(crate) fn hidden(&self) -> Option<Grant> {
        self.hidden
    }

    /// A tick begins.
    pub(crate) fn tick(&mut self, now_ns: u64) {
        let slot = now_ns / LOOK_NS;
        self.look = (slot, slot != self.look.0);
    }

    /// Whether this is the tick at which a bug that looks now and then looks.
    pub(crate) fn is_look(&self) -> bool {
        self.look.1
    }
}

#[cfg(not(debug_assertions))]
impl Memory {
    #[inline]
    pub(crate) fn propose_above(&mut self, _ceiling: Epoch) {}

    #[inline]
    pub(crate) fn proposed_above(&self) -> Epoch {
        Epoch(0)
    }

    #[inline]
    pub(crate) fn hide(&mut self, _grant: Option<Grant>) {}

    #[inline]
    pub(crate) fn hidden(&self) -> Option<Grant> {
        None
    }

    #[inline]
    pub(crate) fn tick(&mut self, _now_ns: u64) {}

    #[inline]
    pub(crate) fn is_look(&self) -> bool {
        false
    }
}

/// Between two looks of a bug that looks now and then.
#[cfg(debug_assertions)]
const LOOK_NS: u64 = 500_000_000;

/// Whether a proposal of a bound that stands already is believed, whoever made it stand: never, but
/// for a planted bug.
pub(crate) fn is_believed(until: Epoch, ceiling: Epoch) -> bool {
    is(Bug::EqualProposals) && until.0 / 1_000_000_000 == ceiling.0 / 1_000_000_000
}

/// Where a range begins: at `low`, but for a bug at its proposer's clock, a second below what it asks
/// for.
pub(crate) fn lowered(low: Epoch, until: Epoch) -> Epoch {
    let clock = Epoch(until.0.saturating_sub(1_000_000_000));
    if is(Bug::RangeFromClock) { clock.min(low) } else { low }
}

/// An `assert!` of an invariant of `docs/safety.md`, whose message cites it. It stays on in
/// release builds; only while a bug is planted is it silent.
macro_rules! safety_assert {
    ($holds:expr, $($message:tt)+) => {
        assert!($holds || $crate::planted::is_any(), $($message)+)
    };
}
pub(crate) use safety_assert;

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn a_bug_is_planted_on_its_own_thread_and_only_while_it_is_held() {
        assert!(!is_any());
        let planted = plant(Some(Bug::EarlyVote));
        assert!(is(Bug::EarlyVote) && is_any() && !is(Bug::EarlyAck));
        drop(planted);
        assert!(!is(Bug::EarlyVote) && !is_any());
    }

    #[test]
    fn names_are_unique() {
        let names: std::collections::BTreeSet<_> = Bug::ALL.iter().map(|bug| bug.name()).collect();
        assert_eq!(names.len(), Bug::ALL.len());
    }

    #[test]
    #[should_panic(expected = "S1: on")]
    fn a_safety_assert_is_on_while_no_bug_is_planted() {
        safety_assert!(is_any(), "S1: on");
    }

    #[test]
    fn a_safety_assert_is_silent_while_a_bug_is_planted() {
        let _planted = plant(None);
        safety_assert!(!is_any(), "S1: silent");
    }
}
