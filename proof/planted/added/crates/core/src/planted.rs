//! The list of bugs inside the core, and the switch that plants one. Each bug breaks one rule that
//! the safety argument needs, and the checkers of the simulator must find it. Each thread has at
//! most one planted bug at a time, and chooses it at run time. While a bug is planted, in the core
//! or around it, the core's asserts of S1 to S21 are silent. So the checkers alone must find the
//! bug.
//!
//! The comment of each bug ends with a line of one form. `Breaks` names the rules of
//! `docs/safety.md` that the bug breaks. `found by` names the checker that must find it, and within
//! how many seeds. `Seen` tells where such a bug comes from: another project that had it, or the
//! reason why somebody could write it. The list is one table, so it stays in one file although it is
//! long.

use epicepoch_wire::Epoch;

use crate::publication::{EpochRange, Grant};
use crate::state::Owner;

/// Whether this bug is planted on this thread.
macro_rules! planted {
    ($bug:ident) => {
        $crate::planted::is($crate::planted::Bug::$bug)
    };
}

/// Replaces the `assert!` of the standard library in this crate. If a bug is planted, an assert
/// whose message cites an invariant, such as "S3: why", does nothing.
macro_rules! assert {
    ($holds:expr, $message:literal $($rest:tt)*) => {
        if !$holds && !$crate::planted::is_silent($message) {
            panic!($message $($rest)*)
        }
    };
    ($($all:tt)*) => { ::core::assert!($($all)*) };
}

macro_rules! bugs {
    ($($(#[doc = $doc:literal])* $name:ident $text:literal,)*) => {
        /// A broken rule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug { $($(#[doc = $doc])* $name,)* }

        impl Bug {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The bug's name on the command line.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The bug's doc comment. It says what the bug does, and either which checker must find
            /// it within how many seeds, or why the bug is harmless.
            #[must_use]
            pub const fn story(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),*),)* }
            }
        }
    };
}

bugs! {
    // Compact timestamps.
    /// A millisecond has one index too many.
    ///
    /// Breaks S21; found by `S21` within 100 seeds. Seen: a bound that is compared with `>` for `>=`.
    CompactOneMore "compact-one-more",
    /// The epoch follows the clock to the nanosecond.
    ///
    /// Breaks S21; found by `S21` within 100 seeds. Seen: the allocator of wide timestamps.
    CompactNanoseconds "compact-nanoseconds",
    /// The first epoch of a range, or after the change from wide timestamps, is rounded down to a
    /// millisecond.
    ///
    /// Breaks S1, S3 and S21; found by `S3` within 100 seeds. Seen: division rounds down.
    CompactRoundsDown "compact-rounds-down",
    /// The first millisecond of a range is used, although it may have been shown as the latest
    /// timestamp.
    ///
    /// Breaks S19; found by `S19` within 100 seeds. Seen: an earlier version of this rule.
    CompactShownAgain "compact-shown-again",
    /// A request begins in this millisecond, even if it does not end there.
    ///
    /// Breaks S21; found by `S21` within 100 seeds. Seen: a batch that is divided by requests, and a
    /// request that is not.
    CompactCrosses "compact-crosses",
    /// Operators can make timestamps wide again.
    ///
    /// Breaks S21; found by `S9` within 100 seeds. Seen: all other settings can be taken back.
    CompactTakenBack "compact-taken-back",
    /// A leader that has applied the setting publishes its grant without it.
    ///
    /// Breaks S21; found by `S21` within 100 seeds. Seen: a setting that only the front reads.
    CompactUnpublished "compact-unpublished",
    // Leases.
    /// The next leader waits for a lease, and not for a lease and the margin of two clocks.
    ///
    /// Breaks S20; found by `S20` within 300 seeds. Seen: the model of this protocol
    /// (`NoDriftMargin`).
    LeaseWithoutMargin "lease-without-margin",
    /// A new leader does not wait for the leases of others.
    ///
    /// Breaks S20; found by `S20` within 100 seeds. Seen: the model of this protocol (`NoWait`).
    LeaseNotWaited "lease-not-waited",
    /// A new leader waits before it uses a lease of its own, and answers by rounds meanwhile.
    ///
    /// Breaks S20; found by `S20` within 100 seeds. Seen: the model of this protocol
    /// (`WaitByLeaseOnly`).
    LeaseWaitByLeaseOnly "lease-wait-by-lease-only",
    /// A lease counts from its commit, not from its proposal.
    ///
    /// Breaks S20; found by `S20` within 1,500 seeds. Seen: the model of this protocol
    /// (`FromCommit`).
    LeaseFromCommit "lease-from-commit",
    /// A marked reservation is a lease as soon as it is proposed.
    ///
    /// Breaks S20; found by `S20` within 500 seeds. Seen: the model of this protocol
    /// (`FromProposalUncommitted`).
    LeaseOfProposal "lease-of-proposal",
    /// A node that compacts its log forgets the leases in it.
    ///
    /// Breaks S20; found by `S20` within 100 seeds. Seen: logs that are
    /// compacted are not in the model of this protocol.
    LeaseCompacted "lease-compacted",
    /// Only the last marked reservation of the log is waited for.
    ///
    /// Breaks S20; found by `S20` within 100 seeds. Seen: the model of this protocol
    /// (`LastEntryOnly`).
    LeaseOfLastEntryOnly "lease-of-last-entry-only",
    /// A request joins a batch that a lease has proved, until the batch is answered.
    ///
    /// Breaks S20; found by `order` within 100 seeds. Seen: the model of this protocol
    /// (`JoinAfterCheck`).
    LeaseJoinAfterCheck "lease-join-after-check",
    /// A worker uses the lease of the publication that it followed last. It does not read the
    /// publication again after the batch is closed.
    ///
    /// Breaks S20; found by `S20` within 500 seeds. Seen: the proof of this protocol, in which the
    /// publication is read after the batch is closed.
    LeaseReadBeforeClose "lease-read-before-close",
    /// A node that starts does not wait for the leases in its log and in its state.
    ///
    /// Breaks S20; found by `S20` within 3,000 seeds. Seen: the model of this protocol
    /// (`RestartForgetsArrival`).
    LeaseForgottenByRestart "lease-forgotten-by-restart",
    /// A node that installs a snapshot does not wait for the leases that the snapshot hides.
    ///
    /// Breaks S20; found by `S20` within 1,500 seeds. Seen: snapshots are not in the model of this
    /// protocol.
    LeaseHiddenBySnapshot "lease-hidden-by-snapshot",
    /// A leader proposes a release, and its workers keep the lease.
    ///
    /// Breaks S20; found by `S20` within 800 seeds. Seen: the model of this protocol
    /// (`ReleaseBeforeWithdrawal`).
    LeaseKeptAtRelease "lease-kept-at-release",
    /// What an owner marks after its release does not count.
    ///
    /// Breaks S20; found by `S20` within 200 seeds. Seen: the model of this protocol
    /// (`ReleaseIsForEver`).
    LeaseReleasedForEver "lease-released-for-ever",
    /// A leader takes the lease of a reservation that it marked before its release.
    ///
    /// Breaks S20; found by `S20` within 500 seeds. Seen: the model of this protocol
    /// (`LeaseFromBeforeRelease`).
    LeaseFromBeforeRelease "lease-from-before-release",
    /// A reservation is marked between the publication without a lease and the release.
    ///
    /// Breaks S20; found by `S20` within 2,000 seeds. Seen: the proof of this protocol
    /// (`marked-between`).
    LeaseMarkedBetween "lease-marked-between",
    // Rounds and quorums.
    /// A yes counts for every round in flight, even if it answered another round or term.
    ///
    /// Breaks S2; found by `quorum` within 20 seeds. Seen: PD: a client that changed servers took
    /// an older timestamp ([tikv/pd#6770](https://github.com/tikv/pd/issues/6770)).
    AnyReplyCounts "any-reply-counts",
    /// The leader counts yes answers instead of voters. So a voter that answers twice counts as two
    /// voters.
    ///
    /// Breaks S2; found by `quorum` within 20 seeds. Seen: xraft
    /// ([#27](https://github.com/xnnyygn/xraft/issues/27)), akka-raft
    /// ([#45](https://github.com/ktoso/akka-raft/issues/45)).
    CountedTwice "counted-twice",
    /// The yes of a removed voter still counts.
    ///
    /// Breaks S7, S8; found by `quorum` within 20 seeds. Seen: jgroups-raft: nodes that are not
    /// members may vote ([#24](https://github.com/jgroups-extras/jgroups-raft/issues/24)).
    RemovedCounts "removed-counts",
    /// The yes of a learner counts like that of a voter.
    ///
    /// Breaks S7; found by `quorum` within 20 seeds. Seen: Zeebe: inactive members counted
    /// ([camunda#62835](https://github.com/camunda/camunda/pull/62835)).
    LearnerCounts "learner-counts",
    /// While several voters change, only the new voters confirm rounds.
    ///
    /// Breaks S7; found by `quorum` within 100 seeds. Seen: Zeebe: a recovered joint configuration
    /// was committed by the new members' majority alone
    /// ([camunda#60086](https://github.com/camunda/camunda/issues/60086)).
    IncomingHalf "incoming-half",
    /// While several voters change, the new voters alone decide elections, commits and rounds, as
    /// if there were no joint configuration.
    ///
    /// Breaks S7; found by `one leader` within 4,000 seeds. Seen: why joint consensus is needed
    /// (Raft paper, figure 10).
    HalfOfJoint "half-of-joint",
    /// Half of the voters counts as a majority.
    ///
    /// Breaks S2; found by `quorum` within 20 seeds. Seen: why quorums are majorities.
    EvenHalf "even-half",
    // Whom a round asks.
    /// A round asks a quorum of the incoming half of a joint configuration, and forgets the
    /// outgoing half.
    ///
    /// Breaks the liveness of rounds; found by `asked` within 100 seeds. Seen: the usual mistake
    /// with joint configurations.
    HalfAsked "half-asked",
    /// When an answer is late, a round notes that it has asked the rest of the voters, and does not
    /// ask them.
    ///
    /// Breaks the liveness of rounds; found by `asked` within 20 seeds. Seen: a hedge that is
    /// counted and not sent.
    RestForgotten "rest-forgotten",
    /// No answer is ever late, so a round that has asked a quorum never asks the rest.
    ///
    /// Breaks the liveness of rounds; found by `asked` within 20 seeds. Seen: a time limit that
    /// nothing checks.
    NeverLate "never-late",
    // Borrowed links.
    /// An answer over a borrowed link counts for the newest round in flight, because the worker
    /// that asked has forgotten about which round it was.
    ///
    /// Breaks S2; found by `quorum` within 100 seeds. Seen: the danger of every answer that takes a
    /// second way: it comes later than all others.
    BorrowedForOpen "borrowed-for-open",
    /// Yes answers over borrowed links are counted beside those over own links. So a voter that
    /// answers over both counts as two voters.
    ///
    /// Breaks S2; found by `quorum` within 500 seeds. Seen: as `counted-twice`: xraft
    /// ([#27](https://github.com/xnnyygn/xraft/issues/27)).
    BorrowedApart "borrowed-apart",
    /// A worker counts an answer that came over its link for its own rounds, even if a sibling has
    /// asked.
    ///
    /// Breaks S2; found by `quorum` within 300 seeds. Seen: the danger of numbers that are
    /// unique only within one worker.
    LenderCounts "lender-counts",
    /// The answer to a sibling's question is put into the mailbox of the worker that lent its link.
    /// No answer is wrong, but a worker without links confirms no round.
    ///
    /// Breaks liveness; found by `liveness` within 100 seeds. Seen: the danger of every mailbox.
    WrongMailbox "wrong-mailbox",
    /// A yes counts although the voter's data directory is known to be rolled back.
    ///
    /// Breaks S8; found by `quorum` within 3,000 seeds. Seen: a worker that looked at positions
    /// only at its next tick.
    RolledBackCounts "rolled-back-counts",
    // The sequencer, and answers to confirms.
    /// A request joins the batch of a round that was already sent.
    ///
    /// Breaks S2; found by `order` within 1,000 seeds. Seen: etcd: answers to an earlier heartbeat
    /// released reads that came after it ([#20418](https://github.com/etcd-io/etcd/issues/20418)).
    LateJoin "late-join",
    /// A batch that asks only for the latest timestamp counts as confirmed at once, because it takes
    /// nothing.
    ///
    /// Breaks S19, S2; found by `quorum` within 20 seeds. Seen: reads that a deposed leader answers
    /// from its own state: etcd before ReadIndex
    /// ([#741](https://github.com/etcd-io/etcd/issues/741)).
    LatestUnconfirmed "latest-unconfirmed",
    /// When a batch is answered, its last timestamp also answers the requests for the latest one
    /// that came after the batch was closed.
    ///
    /// Breaks S19, S2; found by `S19` within 500 seeds. Seen: etcd: as `late-join`
    /// ([#20418](https://github.com/etcd-io/etcd/issues/20418)).
    LatestBeforeClose "latest-before-close",
    /// The latest timestamp is always that of the grant's low end, also after the leader's first
    /// timestamp.
    ///
    /// Breaks S19; found by `S19` within 20 seeds. Seen: the ceiling that is replicated is easier to
    /// read than the allocator.
    LatestOfGrantLow "latest-of-grant-low",
    /// The latest timestamp is the highest one of the allocator's epoch, of which more are given
    /// later.
    ///
    /// Breaks S19; found by `S19` within 20 seeds. Seen: the epoch can be read without the
    /// allocator's lock.
    LatestOfWholeEpoch "latest-of-whole-epoch",
    /// When a round ends, its result answers all waiting requests, even requests that came after
    /// its batch was closed.
    ///
    /// Breaks S2; found by `order` within 500 seeds. Seen: etcd: answers to an earlier heartbeat
    /// released reads that came after it ([#20418](https://github.com/etcd-io/etcd/issues/20418)).
    JoinAtCompletion "join-at-completion",
    /// A round that is confirmed answers the batch of the newest round in flight.
    ///
    /// Breaks S2; found by `quorum` within 20 seeds. Seen: batches answered from one list, in the
    /// wrong order.
    NewestCompletes "newest-completes",
    /// A batch's range is divided wrongly: the next request begins with the last timestamp of the
    /// one before.
    ///
    /// Breaks S1; found by `unique` within 20 seeds. Seen: FHIR Data Pipes: a range began where the
    /// one before ended ([#217](https://github.com/ohs-foundation/fhir-data-pipes/pull/217)).
    SplitOffByOne "split-off-by-one",
    /// Timestamps of a client that has gone are kept. The next request for as many timestamps gets
    /// them.
    ///
    /// Breaks S2; found by `order` within 20 seeds. Seen: the wish to waste no timestamp.
    LeftoverGiven "leftover-given",
    /// A batch answers the request that has the slot now, even if that is another request because
    /// the first client has gone.
    ///
    /// Breaks S10; found by `S10` within 20 seeds. Seen: the danger of every slot that is used
    /// again.
    GenerationUnchecked "generation-unchecked",
    /// A request that has waited too long is refused, and its task is not woken.
    ///
    /// Breaks S10; found by `liveness` within 300 seeds. Seen: the danger of every queue: a lost
    /// wake-up.
    ExpiredUnwoken "expired-unwoken",
    /// A voter loads its Promise once for all frames that it reads before it writes.
    ///
    /// Breaks S4; found by `quorum` within 2,000 seeds. Seen: a mutant of the server that passed
    /// all tests, until the simulator ran the same code.
    PromisePerBurst "promise-per-burst",
    // Configurations.
    /// The workers use the voters of the node's start for ever.
    ///
    /// Breaks S7; found by `S7` within 100 seeds. Seen: RethinkDB's reconfiguration ([Jepsen
    /// 2016](https://aphyr.com/posts/330-jepsen-rethinkdb-2-2-3-reconfiguration)).
    OldVoters "old-voters",
    /// The workers' voters are published some time after the change is applied.
    ///
    /// Breaks S7; found by `S7` within 100 seeds. Seen: raft-rs: a campaign while changes were not
    /// yet applied ([tikv/raft-rs#221](https://github.com/tikv/raft-rs/issues/221)).
    LateVoters "late-voters",
    /// A change of members that can never be made is proposed.
    ///
    /// Breaks S12; found by `S9` within 20 seeds. Seen: a command that says ok and does nothing.
    MistakesProposed "mistakes-proposed",
    /// A change of the members is reported as done as soon as it is proposed.
    ///
    /// Breaks S17; found by `S17` within 20 seeds. Seen: a command that is acknowledged before it
    /// is committed.
    ChangeEarlyAck "change-early-ack",
    /// A leader that may be deposed answers that the cluster is as an operator wants it.
    ///
    /// Breaks S17; found by `S17` within 300 seeds. Seen: etcd and Consul read from a leader that
    /// may be deposed ([Jepsen 2014](https://aphyr.com/posts/316-call-me-maybe-etcd-and-consul)).
    AlreadyUnconfirmed "already-unconfirmed",
    /// An id that was removed is admitted again.
    ///
    /// Breaks S8; found by `S8` within 100 seeds. Seen: CockroachDB: a replica that came back under
    /// its old id would vote again ([#756](https://github.com/cockroachdb/cockroach/issues/756));
    /// Redis-Raft crashed on it ([#2](https://github.com/RedisLabs/redisraft/issues/2)).
    ReusedId "reused-id",
    /// A learner is promoted even if it lacks many entries or does not run.
    ///
    /// Breaks S12; found by `S12` within 300 seeds. Seen: Tarantool: a new node counted for the
    /// quorum before it had the data ([#6281](https://github.com/tarantool/tarantool/issues/6281)).
    PromotesBehind "promotes-behind",
    /// An operator's command hands leadership to a voter even if it lacks many entries or does not
    /// run.
    ///
    /// Breaks S12; found by `S12` within 300 seeds. Seen: braft: leadership was handed to a dead
    /// peer, and no node led for an election timeout
    /// ([#289](https://github.com/baidu/braft/pull/289)); RabbitMQ's Raft: leadership was handed to
    /// a node that lacked too many entries to be elected
    /// ([#636](https://github.com/rabbitmq/ra/pull/636)).
    HandsOverBehind "hands-over-behind",
    /// Leadership is handed to a voter in a better zone even if it lacks many entries or does not
    /// run.
    ///
    /// Breaks S12; found by `S12` within 1,000 seeds. Seen: such a preference is worse than none.
    UnfitPreferred "unfit-preferred",
    /// A removed node ends as soon as one member has confirmed the removal.
    ///
    /// Breaks S12; found by `S12` within 300 seeds. Seen: why a removed voter stays: members that
    /// have not applied the removal may need its vote.
    RemovedAtOnce "removed-at-once",
    // Promise, disk and votes.
    /// Two answers of one run of a node arrive in the wrong order. The node is then refused, as if
    /// its data directory were rolled back.
    ///
    /// Breaks S8; found by `S9` within 20 seeds. Seen: such a check is worse than none.
    OvertakenAccuses "overtaken-accuses",
    /// The Promise is raised only at the next tick, when the vote may have left.
    ///
    /// Breaks S4; found by `S4` within 20 seeds. Seen: the model of this protocol ([decision
    /// 4](decisions/0004-confirm-rounds-instead-of-readindex-or-leases.md)).
    LatePromise "late-promise",
    /// A vote or a request for votes is sent before it is on disk.
    ///
    /// Breaks S6; found by `S6` within 20 seeds. Seen: NebulaGraph: a candidate's vote for itself
    /// was not saved ([#3415](https://github.com/vesoft-inc/nebula/pull/3415)).
    EarlyVote "early-vote",
    /// Entries are acknowledged before they are on disk.
    ///
    /// Breaks S6; found by `S6` within 20 seeds. Seen: etcd with one member
    /// ([#14370](https://github.com/etcd-io/etcd/issues/14370)).
    EarlyAck "early-ack",
    /// Entries that replace others are acknowledged before they are on disk, because older entries
    /// with these indexes are there.
    ///
    /// Breaks S6; found by `S6` within 100 seeds. Seen: Copycat: an index counted as committed
    /// while an entry of an older term was there
    /// ([#265](https://github.com/atomix/copycat/issues/265)).
    EarlyOverwrite "early-overwrite",
    /// The completion of any write counts for all outstanding writes.
    ///
    /// Breaks S6; found by `S6` within 20 seeds. Seen: etcd: entries were applied before they were
    /// saved ([etcd#10508](https://github.com/etcd-io/etcd/issues/10508)).
    AnyCompletion "any-completion",
    /// A restart reads the term, but forgets for which node it voted.
    ///
    /// Breaks S6; found by `S6` within 300 seeds. Seen: Zeebe elected two leaders of a term
    /// ([camunda#5356](https://github.com/camunda/camunda/issues/5356)); Hazelcast
    /// ([#16643](https://github.com/hazelcast/hazelcast/pull/16643)).
    ForgottenVote "forgotten-vote",
    // Grants and ranges.
    /// A range has no term: the node keeps it until it leads again, and stamps in it.
    ///
    /// Breaks S3; found by `S3` within 20 seeds. Seen: Dgraph Zero
    /// ([#2261](https://github.com/dgraph-io/dgraph/pull/2261)); PD
    /// ([#4885](https://github.com/tikv/pd/pull/4885)).
    KeptRange "kept-range",
    /// When the node loses leadership, the range is only hidden. It is used again when the node
    /// leads again.
    ///
    /// Breaks S3; found by `S3` within 20 seeds. Seen: Dgraph Zero
    /// ([#2261](https://github.com/dgraph-io/dgraph/pull/2261)); PD
    /// ([#4885](https://github.com/tikv/pd/pull/4885)).
    HiddenRange "hidden-range",
    /// Roles are checked only from time to time. If a leader becomes follower and then leader again
    /// between two checks, it keeps its range in the new term.
    ///
    /// Breaks S3; found by `S3` within 100 seeds. Seen: PD: a node that led again did not
    /// synchronise at once ([#8836](https://github.com/tikv/pd/issues/8836)).
    CoalescedRoles "coalesced-roles",
    /// A restarted node uses the range that it reads in its log as its own.
    ///
    /// Breaks S3; found by `S3` within 20 seeds. Seen: CockroachDB: leases from before a restart
    /// ([#10420](https://github.com/cockroachdb/cockroach/pull/10420)).
    RestartedRange "restarted-range",
    /// Every node that applies a range stamps in it, so a follower answers.
    ///
    /// Breaks S3; found by `S3` within 1,000 seeds. Seen: Redis-Raft: stale reads ([Jepsen
    /// 2020](https://jepsen.io/analyses/redis-raft-1b3fbf6)).
    FollowerAnswers "follower-answers",
    /// A range begins at the ceiling that its proposer knew, not at the end of the last range.
    ///
    /// Breaks S3, S5; found by `S3` within 20 seeds. Seen: Dgraph Zero: leases proposed with an old
    /// maximum ([#2115](https://github.com/dgraph-io/dgraph/issues/2115)).
    ProposerRange "proposer-range",
    /// A new leader stamps above the ceiling that it has applied so far, before its own reservation
    /// is applied.
    ///
    /// Breaks S3, S5; found by `S3` within 20 seeds. Seen: etcd: ReadIndex before an entry of the
    /// term ([#7331](https://github.com/etcd-io/etcd/issues/7331)); TiKV
    /// ([#9239](https://github.com/tikv/tikv/pull/9239)).
    LaggingCeiling "lagging-ceiling",
    /// A new leader publishes a range above the ceiling that it has applied so far, and takes it
    /// back in the same step.
    ///
    /// Breaks S3; found by `S3` within 2,000 seeds. Seen: even a grant that is published for a
    /// moment can be used.
    MomentaryGrant "momentary-grant",
    /// A reservation names only its end, in whole seconds, and no owner. Every node that finds the
    /// ceiling at the end that it proposed takes the range for its own.
    ///
    /// Breaks S5; found by `S5` within 20 seeds. Seen: the model of this protocol.
    EqualProposals "equal-proposals",
    /// A reservation of an older term that completes late counts for the current term.
    ///
    /// Breaks S3; found by `S3` within 20 seeds. Seen: PD: a former leader's timestamp was saved
    /// after all ([#9171](https://github.com/tikv/pd/pull/9171)).
    LateCompletion "late-completion",
    /// A range begins at its proposer's clock, not at the ceiling.
    ///
    /// Breaks S5; found by `S5` within 20 seeds. Seen: Milvus: the saved timestamp was not loaded
    /// ([#7516](https://github.com/milvus-io/milvus/issues/7516)).
    RangeFromClock "range-from-clock",
    /// Snapshots and the compacted log do not have the owner of the last range.
    ///
    /// Breaks S5; found by `S5` within 100 seeds. Seen: Redis-Raft: snapshots ([Jepsen
    /// 2020](https://jepsen.io/analyses/redis-raft-1b3fbf6)).
    SnapshotForgetsOwner "snapshot-forgets-owner",
    /// Snapshots and the compacted log have the end of the last range in place of the ceiling. So
    /// they lose what was given back.
    ///
    /// Breaks S5; found by `S5` within 300 seeds. Seen: Redis-Raft: snapshots ([Jepsen
    /// 2020](https://jepsen.io/analyses/redis-raft-1b3fbf6)).
    SnapshotForgetsCeiling "snapshot-forgets-ceiling",
    /// Snapshots and the compacted log do not have the raised format.
    ///
    /// Breaks S15; found by `S5` within 20 seeds. Seen: Redpanda: a node was refused because the
    /// version in its snapshot was older than the cluster's
    /// ([#31401](https://github.com/redpanda-data/redpanda/issues/31401)).
    SnapshotForgetsFormat "snapshot-forgets-format",
    /// Snapshots and the compacted log do not have the settings of the cluster.
    ///
    /// Breaks S16; found by `S5` within 20 seeds. Seen: Apache Ratis: changes from before a
    /// snapshot were not applied with it ([#253](https://github.com/apache/ratis/pull/253)).
    SnapshotForgetsSettings "snapshot-forgets-settings",
    /// The state has settings of the cluster, but all nodes use their own values.
    ///
    /// Breaks S16; found by `S16` within 20 seeds. Seen: such settings would be worthless.
    SettingsIgnored "settings-ignored",
    /// A leader uses new settings as soon as it proposes them.
    ///
    /// Breaks S16; found by `S5` within 100 seeds. Seen: Copycat: configurations were on disk
    /// before they were committed ([#114](https://github.com/atomix/copycat/pull/114)).
    SettingsAtProposal "settings-at-proposal",
    /// The format is raised although members have not said that they can read it.
    ///
    /// Breaks S15; found by `liveness` within 100 seeds. Seen: ScyllaDB: a restarted old node
    /// treated a feature as enabled that not all nodes had
    /// ([#4458](https://github.com/scylladb/scylladb/issues/4458)).
    RaisedUnread "raised-unread",
    // Time that an operator moves.
    /// After an advance, the leader keeps the range below it, and stamps in it once the ceiling is
    /// above the advance.
    ///
    /// Breaks S14; found by `S14` within 20 seeds. Seen: PD: the time in a former leader's memory
    /// outlived its reset ([tikv/pd#4885](https://github.com/tikv/pd/pull/4885)).
    AdvanceKeepsRange "advance-keeps-range",
    /// The leader stamps up to the target of an advance before the time up to the target is
    /// reserved.
    ///
    /// Breaks S3; found by `S3` within 20 seeds. Seen: as `beyond-range`.
    AdvanceUnreserved "advance-unreserved",
    /// A leader that hands over gives back the end of its range, and reads its last epoch, while
    /// its allocator still stamps.
    ///
    /// Breaks S18; found by `S18` within 100 seeds. Seen: a counter is saved at shutdown before its
    /// last user has stopped.
    GivenBackUnstopped "given-back-unstopped",
    /// A leader that gave its range back, and whose successor does not take over, goes on with the
    /// range that it withdrew.
    ///
    /// Breaks S18; found by `S3` within 300 seeds. Seen: a lease that is renewed after it was
    /// released.
    LateGrant "late-grant",
    /// A new leader proposes again what it gave back in an earlier term, and the entry is applied
    /// to the range of another owner and term.
    ///
    /// Breaks S18, S5; found by `S5` within 300 seeds. Seen: a proposal whose outcome is unknown is
    /// repeated, as clients of Raft do (dissertation, 6.3).
    GivenBackForAnother "given-back-for-another",
    /// A leader that hands over gives back all above its last timestamp, also what an advance has
    /// promised to be used up.
    ///
    /// Breaks S14; found by `S14` within 300 seeds. Seen: a high-water mark that is restored from
    /// the last use and not from the last promise.
    GivenBackBelowAdvance "given-back-below-advance",
    /// A leader that hands over as planned gives nothing back.
    ///
    /// Breaks promise 3; found by `promise 3` within 100 seeds. Seen: this core, before decision
    /// 35.
    NothingGivenBack "nothing-given-back",
    /// An advance is reported as done as soon as it is requested.
    ///
    /// Breaks S14; found by `S14` within 100 seeds. Seen: a command that is acknowledged before it
    /// is committed.
    AdvanceEarlyAck "advance-early-ack",
    /// An advance may go any distance ahead of the clock.
    ///
    /// Breaks promise 3; found by `promise 3` within 100 seeds. Seen: PD's `reset-ts` has a bound
    /// unless it is forced ([tikv/pd#6964](https://github.com/tikv/pd/pull/6964)).
    AdvanceUnbounded "advance-unbounded",
    // A leader whose disk is late.
    /// A leader never hands over because of its own disk.
    ///
    /// Breaks S12; found by `S12` within 100 seeds. Seen: TiKV: leaders stayed for minutes on a
    /// store whose disk had become slow ([#15875](https://github.com/tikv/tikv/issues/15875)).
    LateDiskKept "late-disk-kept",
    /// A leader hands over to a voter whose disk is known to be as slow as its own.
    ///
    /// Breaks S12; found by `S12` within 300 seeds. Seen: PD: leaders of a slow store were given to
    /// followers drawn at random ([tikv/pd#8895](https://github.com/tikv/pd/issues/8895)).
    LateDiskPassedOn "late-disk-passed-on",
    /// A leader hands over as soon as one write is late, although its range lasts.
    ///
    /// Breaks S12; found by `S12` within 100 seeds. Seen: etcd: a slow sync on a virtual machine
    /// caused elections ([#7617](https://github.com/etcd-io/etcd/issues/7617)).
    LateDiskHasty "late-disk-hasty",
    // Offers of leadership.
    /// A node that is told to campaign does so although the entry that the offer names is not the
    /// last one of its log.
    ///
    /// Breaks S12; found by `S12` within 100 seeds. Seen: this core: the message with the entry may
    /// be lost, and the leader may have gone on since.
    OfferUnread "offer-unread",
    /// A node that was paused follows an offer that has waited as long as the pause.
    ///
    /// Breaks S12; found by `S12` within 300 seeds. Seen: this core, before a review: the leader
    /// had answered again, was deposed, and the paused node lost the election.
    OfferAfterPause "offer-after-pause",
    /// A node follows an offer right behind its entry, although an older write is under way, and
    /// the vote has to wait for it.
    ///
    /// Breaks S12; found by `S12` within 500 seeds. Seen: this core, before a review: its limit was
    /// the whole time for which the leader waits.
    OfferBesideWrite "offer-beside-write",
    /// Leadership is offered right behind the entry also to a voter whose disk is slow.
    ///
    /// Breaks S12; found by `S12` within 100 seeds. Seen: this core, before decision 35 had a rule
    /// about disks.
    OfferToSlowDisk "offer-to-slow-disk",
    // A restore.
    /// A restored history begins above the values in its backup.
    ///
    /// Breaks S13; found by `S13` within 100 seeds. Seen: etcd: revisions go back after a restore,
    /// and clients keep newer ones ([#16028](https://github.com/etcd-io/etcd/issues/16028)).
    RestoreFloorOfBackup "restore-floor-of-backup",
    /// A restored history begins at the first members' clocks. It ignores the window, although the
    /// old history may have reserved that far ahead of the clocks.
    ///
    /// Breaks S13; found by `S13` within 100 seeds. Seen: PD's recovery depends on the local clock
    /// ([docs-cn#12186](https://github.com/pingcap/docs-cn/pull/12186)).
    RestoreWithoutWindow "restore-without-window",
    /// The latest of the first members' clocks proves a floor, even if the clocks disagree.
    ///
    /// Breaks S13; found by `S13` within 100 seeds. Seen: PD's recovery depends on the local clock
    /// ([docs-cn#12186](https://github.com/pingcap/docs-cn/pull/12186)).
    AnyClockProves "any-clock-proves",
    /// A backup has the window that its node was configured with, not the longest that the state
    /// ever had.
    ///
    /// Breaks S13; found by `S13` within 1,000 seeds. Seen: as `restore-without-window`.
    LongestWindowForgotten "longest-window-forgotten",
    /// A restored history forgets which ids were removed.
    ///
    /// Breaks S13; found by `S8` within 300 seeds. Seen: as `reused-id`.
    RestoreForgetsRemoved "restore-forgets-removed",
    // The allocator.
    /// The index begins again at 0 at every interval, even if the epoch stands still.
    ///
    /// Breaks S1; found by `S1` within 100 seeds. Seen: PD: the physical part unchanged, the
    /// logical part back at 0 ([#3616](https://github.com/tikv/pd/pull/3616)).
    IndexReset "index-reset",
    /// The next batch begins with the last timestamp of the batch before.
    ///
    /// Breaks S1; found by `S1` within 20 seeds. Seen: FHIR Data Pipes: a range began where the one
    /// before ended ([#217](https://github.com/ohs-foundation/fhir-data-pipes/pull/217)).
    NextOffByOne "next-off-by-one",
    /// The count of a batch has only eight bits.
    ///
    /// Breaks S1; found by `S1` within 20 seeds. Seen: ByConity's logical clock
    /// ([#1058](https://github.com/ByConity/ByConity/issues/1058)); ZooKeeper's zxid
    /// ([ZOOKEEPER-1277](https://issues.apache.org/jira/browse/ZOOKEEPER-1277)).
    CountOverflow "count-overflow",
    /// The clock is read twice: once to check whether the interval has passed, and again for the
    /// epoch.
    ///
    /// Breaks S1; found by `S1` within 20 seeds. Seen: PD compared at one precision and stored at
    /// another ([#3616](https://github.com/tikv/pd/pull/3616)).
    ClockReadTwice "clock-read-twice",
    /// The interval begins again with every batch, so the epoch of a busy leader stands still.
    ///
    /// Breaks promise 3; found by `promise 3` within 100 seeds. Seen: Trafodion's ids trail the
    /// clock ([#304](https://github.com/apache/trafodion/pull/304)).
    IntervalRestarts "interval-restarts",
    /// The epoch follows the clock even when the clock goes back.
    ///
    /// Breaks S1; found by `S1` within 20 seeds. Seen: CockroachDB: the last time seen went back
    /// with the clock ([#119369](https://github.com/cockroachdb/cockroach/pull/119369)).
    EpochFollowsClock "epoch-follows-clock",
    /// The epoch follows the clock beyond the end of the range.
    ///
    /// Breaks S3; found by `S3` within 100 seeds. Seen: a fork of Convex raised timestamps above
    /// the batch that it had reserved
    /// ([#103](https://github.com/MartinKalema/horizontal-scaling-convex/issues/103)).
    BeyondRange "beyond-range",
    // The clock firewall.
    /// A node believes its own wall clock, whatever the clocks of others say.
    ///
    /// Breaks S11; found by `promise 3` within 300 seeds. Seen: PD saved the time of a clock that
    /// was ahead, and gave no timestamp until time had caught up
    /// ([#940](https://github.com/tikv/pd/issues/940)).
    OwnClock "own-clock",
    /// A node believes the median of three known clocks, however many voters there are.
    ///
    /// Breaks S11; found by `promise 3` within 1,000 seeds. Seen: EpicEpoch itself, until the
    /// simulator found it.
    MedianOfKnown "median-of-known",
    /// A node that has just started believes its own wall clock.
    ///
    /// Breaks S11; found by `promise 3` within 1,000 seeds. Seen: Milvus: the saved timestamp was
    /// not loaded ([#7516](https://github.com/milvus-io/milvus/issues/7516)).
    RestartTrustsWall "restart-trusts-wall",
    /// A wall clock that jumps is followed.
    ///
    /// Breaks S11; found by `promise 3` within 300 seeds. Seen: CockroachDB: one clock was eight
    /// hours ahead for a while and caused an outage
    /// ([#74909](https://github.com/cockroachdb/cockroach/issues/74909)).
    JumpFollowed "jump-followed",
    /// A wall clock that runs too fast is followed, because it is compared only with the time a
    /// moment ago.
    ///
    /// Breaks S11; found by `promise 3` within 1,500 seeds. Seen: EpicEpoch itself, until a review
    /// found it.
    CreepFollowed "creep-followed",
    /// A wall clock that was once not followed is never followed again.
    ///
    /// Breaks S11; found by `promise 3` within 300 seeds. Seen: at first, no check looked at clocks
    /// after all faults had healed.
    NeverBelievesAgain "never-believes-again",
    /// A node always believes the earliest of the known clocks.
    ///
    /// Breaks S11; found by `promise 3` within 20 seeds. Seen: EpicEpoch does this at a start, but
    /// not for ever.
    EarliestBelieved "earliest-believed",
    // No answer is wrong, but in the end there are no answers.
    /// A reservation is under way when leadership ends. It still counts as under way when the node
    /// leads again, so the node never proposes another.
    ///
    /// Breaks liveness; found by `liveness` within 100 seeds. Seen: hashicorp/raft: a transfer that
    /// was under way when leadership was lost made the node refuse everything when it led again
    /// ([#696](https://github.com/hashicorp/raft/issues/696)).
    LostReservation "lost-reservation",
    /// A leader makes no reservation until it hears every voter.
    ///
    /// Breaks liveness; found by `liveness` within 100 seeds. Seen: a majority must be enough; this
    /// shows only if a minority stays broken after the other faults have healed.
    EveryVoterAwaited "every-voter-awaited",
    /// The leader waits for ever for the answer to a lost snapshot.
    ///
    /// Breaks liveness; found by `liveness` within 1,000 seeds. Seen: Dgraph: a follower that
    /// crashed during a snapshot got nothing more
    /// ([#2707](https://github.com/dgraph-io/dgraph/pull/2707)).
    SnapshotNeverFailed "snapshot-never-failed",
    /// A joint configuration is never left.
    ///
    /// Breaks liveness; found by `liveness` within 20 seeds. Seen: etcd: a leader that stepped down
    /// left the configuration joint ([#12136](https://github.com/etcd-io/etcd/issues/12136)).
    JointNeverLeft "joint-never-left",
    /// A handover that no node has accepted never ends, so the leader reserves no more.
    ///
    /// Breaks liveness; found by `liveness` within 1,000 seeds. Seen: the Raft dissertation (3.10)
    /// lets a leader give up a handover after an election timeout.
    TransfereeKept "transferee-kept",
    /// Leadership is handed again and again to a voter in an equally good zone.
    ///
    /// Breaks decision 24; found by `liveness` within 100 seeds. Seen: such a preference is worse
    /// than none.
    RestlessHandover "restless-handover",
    // Second locks, and others that the monitor finds at the rule that they break.
    /// A round begins although its node has no grant, and asks about the term of the grant before.
    /// A second lock prevents the harm: the allocator gives nothing without a grant.
    ///
    /// Breaks S2; found by `rounds: without-grant` within 20 seeds. Seen: etcd and
    /// Consul read from a leader that may be deposed ([Jepsen
    /// 2014](https://aphyr.com/posts/316-call-me-maybe-etcd-and-consul)).
    RoundWithoutGrant "round-without-grant",
    /// A worker reads the publication once in a term, for its first round, and not again after each
    /// batch has closed.
    ///
    /// Breaks S2, S7; found by `rounds: read-before-close` within 20 seeds. Seen: the proof: a round
    /// has to read the publication after its batch has closed, because members change.
    ReadOnce "read-once",
    /// The allocator does not compare the grant's term with that of the round.
    ///
    /// Breaks S3; found by `rounds: any-grant` within 300 seeds. Seen: PD: a former leader's
    /// timestamp was saved after all ([#9171](https://github.com/tikv/pd/pull/9171)).
    OtherTermStamped "other-term-stamped",
    /// A range gives a grant to the node that proposed it in this term, although the node leads no
    /// more. A second lock prevents the harm: the next call of the library ends the grant, and until
    /// then it is a grant of this term.
    ///
    /// Breaks S3; found by `rounds: grant-without-leading` within 200 seeds. Seen: Dgraph Zero
    /// ([#2261](https://github.com/dgraph-io/dgraph/pull/2261)).
    GrantedUnled "granted-unled",
    /// A request for votes is sent before the candidate's term is on disk.
    ///
    /// Breaks S6; found by `rounds: early-campaign` within 20 seeds. Seen: NebulaGraph: a
    /// candidate's vote for itself was not saved
    /// ([#3415](https://github.com/vesoft-inc/nebula/pull/3415)).
    EarlyRequest "early-request",
    /// A write has the hard state only if the term or the vote has changed. So a restart may forget
    /// that a change of members was committed, and believe in voters of two changes ago.
    ///
    /// Breaks S6, S7; found by `raft_log: commit-forgotten` within 100 seeds. Seen: the library
    /// says that a changed commit index alone needs no sync.
    CommitUnwritten "commit-unwritten",
    /// A leader counts a follower's refusal of entries as their acknowledgement. So it commits entries
    /// that only a minority has.
    ///
    /// Breaks S6; found by `raft_log: committed-without-quorum` within 20 seeds. Seen: a new leader
    /// that took for granted that every follower has its log
    /// ([#10682](https://github.com/KanishJebaMathewM/Truxify/issues/10682)).
    RefusalCounts "refusal-counts",
    /// A vote of an earlier term counts for the term of the election that runs now.
    ///
    /// Breaks S6; found by `rounds: no-quorum` within 20 seeds. Seen: an answer whose
    /// term is not compared ([#3](https://github.com/eatonphil/raft-rs/issues/3)).
    EarlierVoteCounts "earlier-vote-counts",
    /// A leader tells every follower its whole commit index, and the follower believes it up to the
    /// end of its own log. So it may take entries for committed that the leader does not have.
    ///
    /// Breaks S6; found by `raft_log: learns-uncommitted` within 100 seeds. Seen: ScyllaDB
    /// ([#9965](https://github.com/scylladb/scylladb/issues/9965)).
    CommitUncapped "commit-uncapped",
    /// A leader commits entries of earlier terms as soon as a majority has them.
    ///
    /// Breaks S6; found by `raft_log: counts-old-terms` within 20 seeds. Seen: LogCabin
    /// ([#44](https://github.com/logcabin/logcabin/issues/44)); canonical/raft
    /// ([#220](https://github.com/canonical/raft/issues/220)).
    OldTermsCounted "old-terms-counted",
    /// A voter does not compare the candidate's log with its own.
    ///
    /// Breaks S6; found by `raft_log: vote-for-log-behind` within 20 seeds. Seen: why Raft restricts
    /// elections (5.4.1 of the paper).
    BehindElected "behind-elected",
    /// A leader appends a change of members while it has not applied the one before. The majorities
    /// before the first change and after the second need not meet.
    ///
    /// Breaks S7; found by `raft_log: two-changes` within 100 seeds. Seen: RedisRaft: the index of
    /// the last change was recorded wrongly ([#62](https://github.com/RedisLabs/raft/pull/62)).
    TwoChanges "two-changes",
    /// Snapshots and the compacted log do not have the learners of the configuration.
    ///
    /// Breaks S7; found by `raft_log: snapshot-without-configuration` within 20 seeds. Seen: as
    /// `snapshot-forgets-settings`.
    SnapshotForgetsLearners "snapshot-forgets-learners",
    // Harmless in this design.
    /// A round asks about the library's current term instead of the term of its grant.
    ///
    /// Harmless: the allocator refuses a grant with another term than the round.
    CurrentTermAsked "current-term-asked",
}

/// The bug that is planted on this thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Selected {
    Nothing,
    AroundTheCore,
    InTheCore(Bug),
}

std::thread_local! {
    static SELECTED: std::cell::Cell<Selected> = const { std::cell::Cell::new(Selected::Nothing) };
}

/// A guard. While this value lives, a bug is planted on this thread, and the core's asserts are
/// silent.
#[derive(Debug)]
#[must_use = "the bug is planted only while this lives"]
pub struct Planted(());

/// Plants `bug` on this thread, until the returned guard is dropped. `None` means a bug outside the
/// core.
pub fn plant(bug: Option<Bug>) -> Planted {
    SELECTED.set(bug.map_or(Selected::AroundTheCore, Selected::InTheCore));
    Planted(())
}

impl Drop for Planted {
    fn drop(&mut self) {
        SELECTED.set(Selected::Nothing);
    }
}

/// Whether `bug` is planted on this thread.
#[must_use]
pub fn is(bug: Bug) -> bool {
    SELECTED.get() == Selected::InTheCore(bug)
}

/// Whether any bug is planted on this thread, in the core or outside it.
#[must_use]
pub fn is_any() -> bool {
    SELECTED.get() != Selected::Nothing
}

/// Whether an assert with this message is silent now. It is if a bug is planted and the message
/// cites an invariant, as "S3: why" does.
pub(crate) fn is_silent(message: &str) -> bool {
    is_any() && matches!(message.as_bytes(), [b'S', b'0'..=b'9', ..])
}

/// The state that a replica's planted bugs need from one step to the next.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    proposed_above: Epoch,
    look: (u64, bool),
    hidden: Option<Grant>,
    given_back: Option<(Owner, EpochRange)>,
}

impl Memory {
    /// Remembers the ceiling that this replica knows at the moment when it proposes a reservation.
    pub(crate) fn propose_above(&mut self, ceiling: Epoch) {
        self.proposed_above = ceiling;
    }

    /// The ceiling that was known when the last reservation was proposed.
    pub(crate) fn proposed_above(&self) -> Epoch {
        self.proposed_above
    }

    /// Remembers a grant at the moment when it is revoked.
    pub(crate) fn hide(&mut self, grant: Option<Grant>) {
        self.hidden = grant;
    }

    /// The grant that was revoked last.
    pub(crate) fn hidden(&self) -> Option<Grant> {
        self.hidden
    }

    /// Remembers what this replica has proposed to give back.
    pub(crate) fn give_back(&mut self, owner: Owner, range: EpochRange) {
        self.given_back = Some((owner, range));
    }

    /// What this replica has proposed last to give back.
    pub(crate) fn given_back(&self) -> Option<(Owner, EpochRange)> {
        self.given_back
    }

    /// Begins a tick.
    pub(crate) fn tick(&mut self, now_ns: u64) {
        let slot = now_ns / LOOK_NS;
        self.look = (slot, slot != self.look.0);
    }

    /// Some planted bugs examine their input only in a few ticks. Returns whether this tick is one
    /// of these.
    pub(crate) fn is_look(&self) -> bool {
        self.look.1
    }
}

/// Nanoseconds between two ticks in which these bugs examine their input.
const LOOK_NS: u64 = 500_000_000;
