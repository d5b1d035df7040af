//! Bugs done on purpose: each breaks one rule that the safety argument needs, and the checkers must
//! find it. Those of this list are in what stands around the core (worker, voter's answer, disk,
//! publication); the core has its own ([`Bug`]). A release build has none: there, nothing can be
//! selected.

use epicepoch_core::confirm::{Confirmed, Rounds};
use epicepoch_core::planted::Bug;
use epicepoch_core::publication::{Grant, Identity, Published, Shared};
use epicepoch_core::quorum::Voters;
use epicepoch_wire::WorkerId;

macro_rules! plants {
    ($($(#[$doc:meta])* $name:ident $text:literal,)*) => {
        /// A broken rule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Plant {
            /// One inside the core.
            Core(Bug),
            $($(#[$doc])* $name,)*
        }

        impl Plant {
            /// Those around the core.
            const AROUND: &[Self] = &[$(Self::$name,)*];

            /// Its name on the command line.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    Self::Core(bug) => bug.name(),
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

plants! {
    /// A leader answers as soon as it is asked, without a round.
    ///
    /// Breaks S2; found by `order` within 20 seeds. Seen: etcd and Consul read from a leader that
    /// may be deposed ([Jepsen 2014](https://aphyr.com/posts/316-call-me-maybe-etcd-and-consul)).
    Unconfirmed "unconfirmed",
    /// Leadership is looked at when a request arrives, and not any more when it is answered.
    ///
    /// Breaks S2; found by `order` within 20 seeds. Seen: PD: a former leader went on saving its
    /// timestamps ([tikv/pd#9171](https://github.com/tikv/pd/pull/9171)).
    CheckedAtArrival "checked-at-arrival",
    /// A round of the last half second proves leadership for those who arrive now.
    ///
    /// Breaks S2; found by `order` within 20 seeds. Seen: the danger of clock-bound leases (Raft
    /// dissertation, 6.4.1).
    RecentRound "recent-round",
    /// A request joins the batch of a round that was sent already.
    ///
    /// Breaks S2; found by `order` within 300 seeds. Seen: etcd: answers to an earlier heartbeat
    /// released reads that came after it ([#20418](https://github.com/etcd-io/etcd/issues/20418)).
    LateJoin "late-join",
    /// Requests that wait when a round ends are answered with it.
    ///
    /// Breaks S2; found by `order` within 1,500 seeds. Seen: etcd: answers to an earlier heartbeat
    /// released reads that came after it ([#20418](https://github.com/etcd-io/etcd/issues/20418)).
    JoinAtCompletion "join-at-completion",
    /// A voter answers from a Promise that it loaded before it read the frame.
    ///
    /// Breaks S4; found by `quorum` within 20 seeds. Seen: the model of this protocol ([decision
    /// 4](decisions/0004-confirm-rounds-instead-of-readindex-or-leases.md)).
    PromiseBeforeFrame "promise-before-frame",
    /// A restarted voter's Promise begins at 0, and rises only with a new term.
    ///
    /// Breaks S4; found by `quorum` within 100 seeds. Seen: CockroachDB: what had been promised to
    /// reads was in memory, and a lease was taken again after a restart
    /// ([#141637](https://github.com/cockroachdb/cockroach/pull/141637)).
    RestartPromise "restart-promise",
    /// A wiped disk votes and confirms again under its node's old store id.
    ///
    /// Breaks S8; found by `one leader` within 300 seeds. Seen: RethinkDB's reconfiguration
    /// ([Jepsen 2016](https://aphyr.com/posts/330-jepsen-rethinkdb-2-2-3-reconfiguration)).
    WipedDisk "wiped-disk",
    /// An empty directory of a member begins with a first entry made of the members of today.
    ///
    /// Breaks S8; found by `S7` within 100 seeds. Seen: EpicEpoch itself, until members could
    /// change.
    GenesisOfToday "genesis-of-today",
    /// A disk says that a write is durable before it is.
    ///
    /// Breaks S6; found by `one leader` within 300 seeds. Seen: etcd without a sync of its own
    /// ([#14370](https://github.com/etcd-io/etcd/issues/14370)).
    LyingDisk "lying-disk",
    /// The disk under the real database says that a sync is done, and nothing of it is durable.
    ///
    /// Breaks S6; found by `S6` within 20 seeds. Seen: etcd without a sync of its own
    /// ([#14370](https://github.com/etcd-io/etcd/issues/14370)).
    RealLyingDisk "real-lying-disk",
    /// The term is not on disk: a restart takes that of its last entry.
    ///
    /// Breaks S6; found by `S6` within 300 seeds. Seen: Zeebe: a term went back to 0
    /// ([camunda#19290](https://github.com/camunda/camunda/issues/19290)).
    TermFromLog "term-from-log",
    /// A node believes its own wall clock, whatever others say.
    ///
    /// Breaks S11; found by `promise 3` within 300 seeds. Seen: PD saved the time of a clock that
    /// was ahead, and gave nothing until time had caught up
    /// ([#940](https://github.com/tikv/pd/issues/940)).
    OwnClock "own-clock",
    /// Nobody holds a peer against what its data directory has named before.
    ///
    /// Breaks S8; found by `S9` within 300 seeds. Seen: etcd: a member started on an older copy of
    /// its directory, and no peer minded ([#13509](https://github.com/etcd-io/etcd/issues/13509)).
    Unremembered "unremembered",
    /// Storage does not notice a bit that has turned over.
    ///
    /// Breaks S6; found by `S5` within 20 seeds. Seen: Turso: checksums were written and not looked
    /// at when read ([#6518](https://github.com/tursodatabase/turso/pull/6518)); Zeebe took a
    /// damaged entry for the end of its log
    /// ([camunda#6098](https://github.com/camunda/camunda/issues/6098)); 1.53 million disks had
    /// 400,000 wrong checksums in 41 months ([Bairavasundaram et al.
    /// 2008](http://research.cs.wisc.edu/wind/Publications/corruption-fast08.html)).
    NoChecksum "no-checksum",
    /// Nobody asks a peer which formats it reads.
    ///
    /// Breaks S15; found by `S15` within 300 seeds. Seen: ArcadeDB: entries of a newer version
    /// stopped every node that was not upgraded yet
    /// ([#7511](https://github.com/ArcadeData/arcadedb/issues/7511)).
    UncheckedFormat "unchecked-format",
    /// Every worker is handed a part of the indexes to stamp alone, so that none waits for another.
    ///
    /// Breaks S1; found by `S1` within 20 seeds. Seen: the model of this protocol.
    WorkerIndexes "worker-indexes",
    /// A batch's range is split one too long: the next request begins with the last one's end.
    ///
    /// Breaks S1; found by `unique` within 20 seeds. Seen: FHIR Data Pipes: a range began where the
    /// one before ended ([#217](https://github.com/ohs-foundation/fhir-data-pipes/pull/217)).
    SplitOffByOne "split-off-by-one",
    /// Requests of a round that failed are refused, and asked about again all the same.
    ///
    /// Breaks S10; found by `S10` within 20 seeds. Seen: what makes a refusal worthless.
    RefusedAndAnswered "refused-and-answered",
    /// Requests of a round that failed hear nothing.
    ///
    /// Breaks S10; found by `liveness` within 20 seeds. Seen: the danger of every queue: what is
    /// dropped in silence.
    UnheardRefusal "unheard-refusal",
    /// Workers of a leader that was asked before it had a range wait for a turn that nobody gives
    /// them. Nothing wrong is answered, but in the end nothing is.
    ///
    /// Breaks liveness; found by `liveness` within 20 seeds. Seen: CockroachDB: commands that came
    /// while no leader was known waited for minutes
    /// ([#46045](https://github.com/cockroachdb/cockroach/pull/46045)).
    LostTurn "lost-turn",
    /// The messages of a step leave before its Promise is raised and its publication made. Harmless.
    ReleasedFirst "released-first",
    /// What a step publishes is published before the step's Promise is raised. Harmless.
    PublishedFirst "published-first",
    /// The grant is not revoked when leadership ends, only replaced. Harmless.
    RevokedLate "revoked-late",
    /// The grant is not revoked when leadership ends because it was handed over. Harmless.
    TransferKeepsGrant "transfer-keeps-grant",
    /// Leadership is looked at now and then: leader, follower, leader between two looks changes no
    /// published grant. Harmless.
    CoalescedPublication "coalesced-publication",
}

impl Plant {
    /// Bugs that this design makes harmless, because a second rule holds what the first let go.
    pub const HARMLESS: &[(Self, &'static str)] = &[
        (
            Self::PublishedFirst,
            "no vote leaves before both are done, and a range is published after its term was promised",
        ),
        (
            Self::ReleasedFirst,
            "what names a new term waits for its write, and so for a later step than the one that saw it",
        ),
        (Self::RevokedLate, "the round asks a quorum for the grant's own term, and is refused"),
        (Self::TransferKeepsGrant, "the old leader's own Promise says no, and so does a quorum's"),
        (Self::CoalescedPublication, "a grant carries its own term, and rounds ask for that one"),
        (
            Self::Core(Bug::CurrentTermAsked),
            "a grant of another term than the round's is refused by the allocator",
        ),
    ];

    /// All of them, around the core and in it.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::AROUND.iter().copied().chain(Bug::ALL.iter().copied().map(Self::Core))
    }

    /// Those that must be found.
    pub fn harmful() -> impl Iterator<Item = Self> {
        let harmless = |plant: &Self| Self::HARMLESS.iter().any(|(other, _)| other == plant);
        Self::all().filter(move |plant| !harmless(plant))
    }

    /// The bug of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|plant| plant.name() == name)
    }

    /// The bug in the core, if it is there.
    #[must_use]
    pub const fn bug(self) -> Option<Bug> {
        match self {
            Self::Core(bug) => Some(bug),
            _ => None,
        }
    }

    /// Whether the workers need a publication of their own, because it is what the bug is in.
    pub(crate) const fn is_in_publication(self) -> bool {
        matches!(self, Self::RevokedLate | Self::TransferKeepsGrant | Self::CoalescedPublication)
    }

    /// Whether the bug lets correct nodes see what no correct peer does, or lose what they had.
    pub(crate) const fn is_in_disk(self) -> bool {
        matches!(self, Self::WipedDisk | Self::LyingDisk | Self::TermFromLog | Self::NoChecksum)
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
