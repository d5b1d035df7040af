//! One simulated node: a machine with a disk and clocks. While its process runs, it also has a
//! replica, workers and an allocator.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use epicepoch_core::admin::AdminCommands;
use epicepoch_core::clock::TrustedClock;
use epicepoch_core::confirm::{ALONE_NS, Answers, LinksUp, Routing};
use epicepoch_core::node::Node as Consensus;
use epicepoch_core::publication::{Identity, Published, Shared, Step};
use epicepoch_core::quorum::Voters;
use epicepoch_core::replica::{Replica, ReplicaConfig, RestoreError};
use epicepoch_core::sequencer::{ConfirmedBatch, Forwarder, Limits, Sequencer};
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::confirm::{Confirm, ConfirmReply};
use epicepoch_wire::{BootId, DecodeError, LogIndex, NodeId, StoreId, Term, WorkerId};

use crate::clock::MachineClock;
use crate::disk::{Disk, Unreadable};
use crate::event::{Event, PeerHello, Request};
use crate::history::asking::Asked;
use crate::history::orders::Asked as Ordered;
use crate::node_set::NodeSet;
use crate::parameters::{
    CLOCK_OFFSET_MAX_NS, ELECTION_TICKS, HEARTBEAT_TICKS, PROBE_NS, REQUEST_NS, RESERVATION_NS,
    SLOTS_MAX, THREADS, TICK_NS, WORKERS,
};
use crate::plane::Turn;
use crate::plant::Plant;
use crate::stamper::Stamper;
use crate::version::Version;
use crate::world::forwarding::Forwarding;
use crate::world::handovers::Handovers;
use crate::world::offers::Offers;

/// One worker.
pub(crate) struct Worker {
    /// The worker's decisions, made by the same code as in production. A request that waits is
    /// known by the number of its slot.
    pub(crate) sequencer: Sequencer<usize>,
    /// The requests that wait, by slot.
    pub(crate) tickets: BTreeMap<usize, Request>,
    /// The slots of requests that ask for a lease and were not taken by a turn yet.
    pub(crate) for_lease: BTreeSet<usize>,
    /// The slots of requests that a lease has proved. The monitor does not know them.
    pub(crate) by_lease: BTreeSet<usize>,
    /// The requests that another node answers.
    pub(crate) forwarding: Forwarding,
    pub(crate) is_turn_due: bool,
    /// The worker follows no publication before this true time, nanoseconds.
    pub(crate) follows_at_ns: u64,
    /// Whether the worker looks for late answers.
    pub(crate) is_looking: bool,
    /// Batches that have no timestamps yet, although their rounds are confirmed.
    pub(crate) confirmed: VecDeque<ConfirmedBatch>,
    /// True time at which a quorum last confirmed a round of the worker, or its node's lease proved a
    /// batch, nanoseconds.
    pub(crate) confirmed_at_ns: u64,
    /// The nodes that the worker has connected confirm links to.
    pub(crate) links: NodeSet,
    /// The same, as the other workers of the node see it.
    pub(crate) links_up: LinksUp,
    /// The voters that the worker knows.
    pub(crate) voters: Voters,
    /// Which nodes the newest round has asked.
    pub(crate) asked: Asked,
    /// Decides over which links the worker asks, by the same code as in production.
    pub(crate) routing: Routing,
    /// The answering ends of confirm links, by the boot that asks.
    pub(crate) callers: BTreeMap<(NodeId, BootId), Caller>,
}

/// The answering end of a confirm link. It reads one by one the frames that have come, and then
/// writes all answers together.
pub(crate) struct Caller {
    pub(crate) answers: Answers,
    /// Frames that are not read yet.
    pub(crate) unread: VecDeque<Confirm>,
    pub(crate) unwritten: Vec<ConfirmReply>,
    /// Whether a frame is being read, or answers are being written.
    pub(crate) is_busy: bool,
}

/// A step that the consensus plane takes during or after a call of the replica, in the core's
/// order. Workers may do anything between two steps.
#[derive(Debug)]
pub(crate) enum Share {
    /// Raise the Promise to this term.
    Raise(Term),
    Publish(Arc<Published>),
    /// Write to the disk, send messages, and read reports.
    Release,
}

impl From<Step> for Share {
    fn from(step: Step) -> Self {
        match step {
            Step::Raised(term) => Self::Raise(term),
            Step::Published(published) => Self::Publish(published),
        }
    }
}

/// A running process.
pub(crate) struct Running {
    pub(crate) identity: Identity,
    /// The decisions of the consensus plane: the same code as in production.
    pub(crate) consensus: Consensus,
    pub(crate) admin_commands: AdminCommands<Ordered>,
    pub(crate) shared: Arc<Shared>,
    /// The publication as the workers see it. Each step that has changed `shared` reaches it later,
    /// as an event of its own.
    pub(crate) seen: Arc<Shared>,
    /// The steps that the last call of the replica has yet to take.
    pub(crate) shares: VecDeque<Share>,
    /// Whether `shares` had a publication of which the consensus plane has yet to tell the workers.
    pub(crate) is_untold: bool,
    pub(crate) stamper: Stamper,
    pub(crate) workers: Vec<Worker>,
    /// Trusted minus monotonic time, as the consensus plane last published it to the workers.
    pub(crate) trusted_offset_ns: i64,
    /// When a worker last completed a round, on this process's monotonic clock, nanoseconds.
    pub(crate) completed_ns: u64,
    /// The last term in which this process has proposed to release its leases.
    pub(crate) released_in: Term,
    /// When a worker last took requests that ask for a lease, on this process's monotonic clock,
    /// nanoseconds.
    pub(crate) lease_asked_ns: u64,
    pub(crate) applied: LogIndex,
    /// The boots of peers whose hello was accepted.
    pub(crate) accepted: BTreeMap<NodeId, BootId>,
    pub(crate) ticks: u64,
    /// When the last tick was, on this process's monotonic clock, nanoseconds.
    pub(crate) ticked_ns: u64,
    /// Trusted time at the last tick, Unix nanoseconds.
    pub(crate) trusted_ns: u64,
    /// Trusted time when the replica decided the first of what it has not written yet.
    pub(crate) decided_ns: u64,
    /// For planted bugs: old values of the Promise with which a voter answers. The first was loaded
    /// some time ago, the second when the process started.
    pub(crate) stale: (Term, Term),
    /// For a planted bug: whether the replica was handing over leadership when it last had a grant.
    pub(crate) hands_over: bool,
    /// What the world sees of its writes and handovers.
    pub(crate) handovers: Handovers,
    /// What the world sees of the offers of leadership that it makes and reads.
    pub(crate) offers: Offers,
    /// The turn of the consensus plane.
    pub(crate) turn: Turn,
    /// Whether the process was told to stop.
    pub(crate) is_told_to_stop: bool,
    /// The term in which the consensus plane was told to stop.
    pub(crate) shutdown_in: Option<Term>,
}

impl Running {
    pub(crate) const fn replica(&self) -> &Replica {
        self.consensus.replica()
    }
}

/// A machine, with or without a running process.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) store: StoreId,
    pub(crate) disk: Disk,
    pub(crate) clock: MachineClock,
    pub(crate) boots: u64,
    /// How often the node's addresses changed.
    pub(crate) moves: u64,
    pub(crate) version: Version,
    /// True time until which no new client can connect, nanoseconds.
    pub(crate) accepts_fail_until_ns: u64,
    /// True time at which the pause of each thread ends, nanoseconds; 0 if the thread is not
    /// paused.
    pub(crate) paused_until_ns: [u64; THREADS],
    /// Whether the process sees that its machine was suspended.
    pub(crate) is_suspended: bool,
    /// Events that arrived during a pause, by thread, each with the boot that it is meant for.
    pub(crate) held: [Vec<(Option<BootId>, Event)>; THREADS],
    pub(crate) running: Option<Running>,
}

impl Node {
    pub(crate) fn new(id: NodeId, disk: Disk) -> Self {
        Self {
            id,
            store: store_of(id),
            disk,
            clock: MachineClock::default(),
            boots: 0,
            moves: 0,
            version: Version::default(),
            accepts_fail_until_ns: 0,
            paused_until_ns: [0; THREADS],
            is_suspended: false,
            held: Default::default(),
            running: None,
        }
    }

    /// Starts the process from the durable content.
    ///
    /// # Errors If the disk cannot be read. The process has then ended.
    pub(crate) fn boot(
        &mut self,
        now_ns: u64,
        seed: u64,
        round_ns: u64,
        plant: Option<Plant>,
    ) -> Result<(), Unreadable> {
        let restored = self.disk.restore(plant)?;
        self.boots += 1;
        self.clock.start(now_ns);
        let boot = BootId(self.id.0 * 1_000_000 + self.boots);
        let identity = Identity { node: self.id, store: self.store, boot };
        let term = restored.hard_state.term;
        let shared = Arc::new(Shared::recorded(term, Published::nothing(identity)));
        let workers_see = Arc::new(Shared::new(term, Published::nothing(identity)));
        let config = ReplicaConfig {
            identity,
            seed,
            election_ticks: ELECTION_TICKS,
            heartbeat_ticks: HEARTBEAT_TICKS,
            tick_ns: TICK_NS,
            reservation_ns: RESERVATION_NS,
            deadline_limit: 100,
            format_max: self.version.reads,
        };
        let clock = TrustedClock::new(CLOCK_OFFSET_MAX_NS, self.clock.read(now_ns));
        let trusted_offset_ns = clock.offset_ns();
        let consensus = match Consensus::new(config, &restored, shared.clone(), clock) {
            Ok(consensus) => consensus,
            Err(RestoreError::Record(error @ DecodeError::Format { .. })) => {
                self.disk.close();
                return Err(Unreadable::Newer(error));
            }
            Err(error) => panic!("a sound disk: {error}"),
        };
        // Few simulated rounds follow each other as closely as on a busy worker. So three of four
        // processes ask as if theirs did.
        let alone_ns = if seed.is_multiple_of(4) { ALONE_NS } else { u64::MAX };
        let worker = |id| Worker {
            sequencer: Sequencer::new(
                identity,
                WorkerId(id),
                limits(id, round_ns),
                &workers_see.published(),
            ),
            tickets: BTreeMap::new(),
            for_lease: BTreeSet::new(),
            by_lease: BTreeSet::new(),
            forwarding: Forwarding::new(Forwarder::new(
                SLOTS_MAX,
                REQUEST_NS,
                &workers_see.published(),
            )),
            is_turn_due: false,
            follows_at_ns: 0,
            is_looking: false,
            confirmed: VecDeque::new(),
            confirmed_at_ns: 0,
            links: NodeSet::default(),
            links_up: LinksUp::default(),
            voters: workers_see.published().voters.clone(),
            asked: Asked::default(),
            routing: Routing::new(identity, WorkerId(id), alone_ns),
            callers: BTreeMap::new(),
        };
        self.running = Some(Running {
            identity,
            stamper: Stamper::new(&workers_see, plant),
            workers: (0..WORKERS as u32).map(worker).collect(),
            trusted_offset_ns,
            completed_ns: 0,
            released_in: Term(0),
            lease_asked_ns: 0,
            applied: consensus.replica().applied(),
            accepted: BTreeMap::new(),
            ticks: 0,
            ticked_ns: 0,
            trusted_ns: 0,
            decided_ns: 0,
            stale: (Term(0), shared.promise.load()),
            hands_over: false,
            handovers: Handovers::default(),
            offers: Offers::default(),
            turn: Turn::Done,
            is_told_to_stop: false,
            shutdown_in: None,
            consensus,
            admin_commands: AdminCommands::default(),
            shared,
            seen: workers_see,
            shares: VecDeque::new(),
            is_untold: false,
        });
        Ok(())
    }

    /// The peer hello of the running process.
    pub(crate) fn hello(&self) -> PeerHello {
        let running = self.running();
        PeerHello {
            boot: running.identity.boot,
            began: running.replica().began(),
            reads: self.version.reads,
            needs: running.replica().format_needed(),
        }
    }

    /// The node as a member, with its current addresses.
    pub(crate) fn as_member(&self) -> Member {
        let member = Member { store: self.store, ..member(self.id) };
        if self.moves == 0 {
            return member;
        }
        Member { raft_addr: format!("{}-{}", member.raft_addr, self.moves), ..member }
    }

    pub(crate) fn running(&self) -> &Running {
        self.running.as_ref().expect("the process runs")
    }

    pub(crate) fn running_mut(&mut self) -> &mut Running {
        self.running.as_mut().expect("the process runs")
    }

    /// The publication that the workers see.
    pub(crate) fn published(&self) -> Option<Arc<Published>> {
        self.running.as_ref().map(|running| running.seen.published())
    }

    /// Whether the process leads and has used up its range: the range ends before trusted time, so
    /// the epoch stands still.
    pub(crate) fn is_used_up(&self, now_ns: u64) -> bool {
        let trusted_ns =
            self.running().consensus.clock().trusted_ns(self.clock.monotonic_ns(now_ns));
        let grant = self.published().and_then(|published| published.grant);
        grant.is_some_and(|grant| grant.range.high.0 < trusted_ns)
    }

    /// Whether the process has a grant, and so believes that it is the leader.
    pub(crate) fn holds_grant(&self) -> bool {
        self.published().is_some_and(|published| published.grant.is_some())
    }
}

/// The limits of a worker. Only the first worker of a node probes, as in production.
fn limits(worker: u32, round_ns: u64) -> Limits {
    let probe_ns = (worker == 0).then_some(PROBE_NS);
    Limits { slots_max: SLOTS_MAX, round_ns, request_ns: REQUEST_NS, probe_ns }
}

pub(crate) fn store_of(node: NodeId) -> StoreId {
    store_in(node, 0)
}

/// The data directory of a node in one of the histories of a run.
pub(crate) fn store_in(node: NodeId, era: u32) -> StoreId {
    StoreId(u128::from(node.0) + 100 + 1_000 * u128::from(era))
}

/// A member whose addresses and store follow from its id.
pub(crate) fn member(node: NodeId) -> Member {
    let (raft_addr, client_addr) = (format!("n{node}:1"), format!("n{node}:2"));
    Member { node, store: store_of(node), raft_addr, client_addr }
}
