//! Planted bugs around the core: in a worker, a voter's answer, a disk or the publication. Each
//! breaks one rule that the safety argument needs, and the checkers must find it. The core's
//! sources have no planted bug; `proof/planted` plants others in a copy of the core. A release
//! build plants nothing.
//!
//! The comment of each bug ends with a line of one form. `Breaks` names the rules of
//! `docs/safety.md` that the bug breaks. `found by` names the checker that must find it, and within
//! how many seeds. `Seen` tells where such a bug comes from: another project that had it, or the
//! reason why somebody could write it.

macro_rules! plants {
    ($($(#[doc = $doc:literal])* $name:ident $text:literal,)*) => {
        /// A broken rule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Plant {
            $($(#[doc = $doc])* $name,)*
        }

        impl Plant {
            /// The bugs around the core.
            const AROUND: &[Self] = &[$(Self::$name,)*];

            /// The bug's name on the command line.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// The bug's doc comment: what the bug does, which checker must find it within how many
            /// seeds, or why the bug is harmless.
            #[must_use]
            pub const fn story(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($doc),*),)*
                }
            }
        }
    };
}

plants! {
    /// A leader answers immediately, without a round.
    ///
    /// Breaks S2; found by `order` within 20 seeds. Seen: etcd and Consul read from a leader that
    /// may be deposed ([Jepsen 2014](https://aphyr.com/posts/316-call-me-maybe-etcd-and-consul)).
    Unconfirmed "unconfirmed",
    /// A node checks that it leads when a request arrives, but not again when it answers.
    ///
    /// Breaks S2; found by `order` within 20 seeds. Seen: PD: a former leader continued to save its
    /// timestamps ([tikv/pd#9171](https://github.com/tikv/pd/pull/9171)).
    CheckedAtArrival "checked-at-arrival",
    /// A round of the last half second proves leadership for requests that arrive now.
    ///
    /// Breaks S2; found by `order` within 20 seeds. Seen: the danger of clock-bound leases (Raft
    /// dissertation, 6.4.1).
    RecentRound "recent-round",
    /// A voter answers with a Promise that it loaded before it read the frame.
    ///
    /// Breaks S4; found by `quorum` within 20 seeds. Seen: the model of this protocol ([decision
    /// 4](decisions/0004-confirm-rounds-instead-of-readindex-or-leases.md)).
    PromiseBeforeFrame "promise-before-frame",
    /// After a restart, a voter's Promise is 0, and rises only with a new term.
    ///
    /// Breaks S4; found by `quorum` within 300 seeds. Seen: CockroachDB: promises to reads were
    /// only in memory, and a lease was taken again after a restart
    /// ([#141637](https://github.com/cockroachdb/cockroach/pull/141637)).
    RestartPromise "restart-promise",
    /// A node with a wiped disk votes and confirms again under its old store id.
    ///
    /// Breaks S8; found by `one leader` within 300 seeds. Seen: RethinkDB's reconfiguration
    /// ([Jepsen 2016](https://aphyr.com/posts/330-jepsen-rethinkdb-2-2-3-reconfiguration)).
    WipedDisk "wiped-disk",
    /// A member with an empty directory writes a first entry with the present members instead of
    /// the first ones.
    ///
    /// Breaks S8; found by `S7` within 300 seeds. Seen: EpicEpoch itself, until members could
    /// change.
    GenesisOfToday "genesis-of-today",
    /// A disk reports that a write is durable before it is.
    ///
    /// Breaks S6; found by `one leader` within 300 seeds. Seen: etcd without a sync of its own
    /// ([#14370](https://github.com/etcd-io/etcd/issues/14370)).
    LyingDisk "lying-disk",
    /// The disk under the real database reports that a sync is done, but nothing of it is durable.
    ///
    /// Breaks S6; found by `S6` within 20 seeds. Seen: etcd without a sync of its own
    /// ([#14370](https://github.com/etcd-io/etcd/issues/14370)).
    RealLyingDisk "real-lying-disk",
    /// The term is not on disk: a restart uses the term of the last log entry.
    ///
    /// Breaks S6; found by `S6` within 300 seeds. Seen: Zeebe: a term went back to 0
    /// ([camunda#19290](https://github.com/camunda/camunda/issues/19290)).
    TermFromLog "term-from-log",
    /// No node compares a peer's position with one that the peer has named before.
    ///
    /// Breaks S8; found by `S9` within 300 seeds. Seen: etcd: a member started on an older copy of
    /// its directory, and no peer noticed ([#13509](https://github.com/etcd-io/etcd/issues/13509)).
    Unremembered "unremembered",
    /// Storage does not notice a flipped bit.
    ///
    /// Breaks S6; found by `S5` within 20 seeds. Seen: Turso: checksums were written but not
    /// checked when read ([#6518](https://github.com/tursodatabase/turso/pull/6518)); Zeebe took a
    /// damaged entry for the end of its log
    /// ([camunda#6098](https://github.com/camunda/camunda/issues/6098)); 1.53 million disks had
    /// 400,000 wrong checksums in 41 months ([Bairavasundaram et al.
    /// 2008](http://research.cs.wisc.edu/wind/Publications/corruption-fast08.html)).
    NoChecksum "no-checksum",
    /// Nodes do not check which formats a peer can read.
    ///
    /// Breaks S15; found by `S15` within 300 seeds. Seen: ArcadeDB: entries of a newer version
    /// stopped every node that was not upgraded yet
    /// ([#7511](https://github.com/ArcadeData/arcadedb/issues/7511)).
    UncheckedFormat "unchecked-format",
    /// Every worker gets a part of the indexes for itself, so that no worker waits for another.
    ///
    /// Breaks S1; found by `S1` within 20 seeds. Seen: the model of this protocol.
    WorkerIndexes "worker-indexes",
    /// Requests of a failed round are refused, but also asked about again.
    ///
    /// Breaks S10; found by `S10` within 20 seeds. Seen: such a refusal is worthless.
    RefusedAndAnswered "refused-and-answered",
    /// Requests of a failed round get no answer at all.
    ///
    /// Breaks S10; found by `liveness` within 20 seeds. Seen: the danger of every queue: requests
    /// that are dropped silently.
    UnheardRefusal "unheard-refusal",
    /// A leader is asked before it has a range, and its workers wait for a turn that never comes.
    /// No answer is wrong, but in the end there is none.
    ///
    /// Breaks liveness; found by `liveness` within 20 seeds. Seen: CockroachDB: commands that came
    /// while no leader was known waited for minutes
    /// ([#46045](https://github.com/cockroachdb/cockroach/pull/46045)).
    LostTurn "lost-turn",
    /// The messages of a step leave before its Promise is raised and before its publication.
    ///
    /// Harmless: a message with a new term waits until the term is on disk, so it leaves in a later
    /// step.
    ReleasedFirst "released-first",
    /// A step makes its publication before it raises the Promise.
    ///
    /// Harmless: a vote leaves only after both, and a range is published only after its term was
    /// promised.
    PublishedFirst "published-first",
    /// The grant is not revoked when leadership ends; only the next grant replaces it. A second lock
    /// prevents the harm: the round asks a quorum about the term of the grant, and is refused.
    ///
    /// Breaks S3; found by `rounds: kept-grant` within 20 seeds. Seen: PD: a former leader continued
    /// to save its timestamps ([tikv/pd#9171](https://github.com/tikv/pd/pull/9171)).
    RevokedLate "revoked-late",
    /// The grant is not revoked when leadership was handed over. A second lock prevents the harm: the
    /// old leader's own Promise is above its term, and so are those of a quorum.
    ///
    /// Breaks S3; found by `rounds: kept-grant` within 20 seeds. Seen: as `revoked-late`.
    TransferKeepsGrant "transfer-keeps-grant",
    /// Leadership is checked only now and then. A leader that became follower and leader again
    /// between two checks keeps its published grant. A second lock prevents the harm: a grant has a
    /// term of its own, and rounds ask about that term.
    ///
    /// Breaks S3; found by `rounds: kept-grant` within 20 seeds. Seen: PD: a node that led again did
    /// not synchronise at once ([#8836](https://github.com/tikv/pd/issues/8836)).
    CoalescedPublication "coalesced-publication",
    /// The clock of the leases stands still while the machine is suspended, as the monotonic clock of
    /// Linux does.
    ///
    /// Breaks S20; found by `S20` within 500 seeds. Seen: the model of this protocol; `Instant` of
    /// Rust's standard library is such a clock.
    LeaseClockStops "lease-clock-stops",
    /// The clocks of the leases are wrong by twice as much as is allowed.
    ///
    /// Breaks S20; found by `S20` within 500 seeds. Seen: the model of this protocol
    /// (`WorldClockSlow`). It shows that the assumption about clocks is needed.
    LeaseClocksTooWrong "lease-clocks-too-wrong",
    /// A request joins a frame to the leader that is on its way.
    ///
    /// Breaks S22; found by `order` within 100 seeds. Seen: the danger of request collapsing, one hop
    /// further out.
    ForwardLateJoin "forward-late-join",
    /// A node that forwards asks for more timestamps than it needs, and answers later requests with the
    /// rest.
    ///
    /// Breaks S22; found by `order` within 100 seeds. Seen: clients and proxies that fetch timestamps
    /// in advance; it is proposed for PD again and again.
    ForwardLeftover "forward-leftover",
    /// The parts of a frame's range are given to its requests and, again, to others.
    ///
    /// Breaks S22; found by `unique` within 100 seeds. Seen: such a range has two owners.
    ForwardTwice "forward-twice",
    /// A node that does not lead sends on what a forwarder has sent to it.
    ///
    /// Breaks S22; found by `S22` within 100 seeds. Seen: two nodes that each take the other for the
    /// leader send a request round in a circle.
    ForwardLoop "forward-loop",
}

impl Plant {
    /// All bugs of this table.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::AROUND.iter().copied()
    }

    /// The bug of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|plant| plant.name() == name)
    }

    /// Whether the bug is in the publication. Then the workers need a separate copy of it.
    pub(crate) const fn is_in_publication(self) -> bool {
        matches!(self, Self::RevokedLate | Self::TransferKeepsGrant | Self::CoalescedPublication)
    }

    /// Whether the bug makes a worker count yeses that no voter has said.
    pub(crate) const fn is_unproved(self) -> bool {
        matches!(self, Self::Unconfirmed | Self::CheckedAtArrival | Self::RecentRound)
    }

    /// Whether the bug is in a forwarder, so that nodes must forward.
    #[must_use]
    pub const fn is_in_forwarder(self) -> bool {
        matches!(
            self,
            Self::ForwardLateJoin | Self::ForwardLeftover | Self::ForwardTwice | Self::ForwardLoop
        )
    }

    /// Whether the bug is in the disk. Then correct nodes lose what they had stored, or see
    /// behaviour that no correct peer shows.
    pub(crate) const fn is_in_disk(self) -> bool {
        matches!(self, Self::WipedDisk | Self::LyingDisk | Self::TermFromLog | Self::NoChecksum)
    }
}
