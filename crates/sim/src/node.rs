//! One simulated node: a machine with a disk and clocks, and while its process runs a replica,
//! workers and an allocator on it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use epicepoch_core::clock::TrustedClock;
use epicepoch_core::confirm::{Confirmed, Rounds};
use epicepoch_core::publication::{Identity, Published, Shared, Step};
use epicepoch_core::replica::{Replica, ReplicaConfig, RestoreError};
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::{
    BootId, DecodeError, Epoch, LogIndex, NodeId, Round, StoreId, StorePosition, Term, Timestamp,
    WorkerId,
};

use crate::clock::MachineClock;
use crate::disk::{Disk, Unreadable};
use crate::event::Event;
use crate::plant::Plant;
use crate::stamper::Stamper;
use crate::versions::Version;

/// Length of a tick, nanoseconds.
pub(crate) const TICK_NS: u64 = 10_000_000;
/// Shortest election timeout, as in production.
pub(crate) const ELECTION_TICKS: usize = 20;
/// Between two heartbeats, as in production.
const HEARTBEAT_TICKS: usize = 4;
/// How far ahead leaders reserve.
pub(crate) const RESERVATION_NS: u64 = 1_000_000_000;
/// How far a wall clock may be off and is still believed.
pub(crate) const CLOCK_OFFSET_MAX_NS: u64 = 500_000_000;
/// Workers of a node.
pub(crate) const WORKERS: usize = 2;
/// Threads of a node that can stand still, each by itself.
pub(crate) const THREADS: usize = 1 + WORKERS;

/// Who asked: a client, and which of its attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Asker {
    pub(crate) client: usize,
    pub(crate) attempt: u64,
}

/// A request that waits on a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) asker: Asker,
    /// Which worker it came to.
    pub(crate) worker: usize,
    pub(crate) count: u64,
    /// The highest timestamp that was given before it arrived.
    pub(crate) floor: Option<Timestamp>,
    /// What operators had moved the epoch to before it arrived.
    pub(crate) above: Epoch,
    /// When it arrived on the worker, true time.
    pub(crate) arrived_ns: u64,
}

/// Shared, so that a planted bug can add to it after it was closed.
pub(crate) type Batch = Rc<Asked>;

/// Requests that are asked about together.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    pub(crate) requests: RefCell<Vec<Request>>,
    /// In which round; none before it has begun.
    pub(crate) round: Cell<Option<Round>>,
}

impl Asked {
    pub(crate) fn new(requests: Vec<Request>) -> Batch {
        Rc::new(Self { requests: requests.into(), round: Cell::new(None) })
    }
}

/// One worker.
pub(crate) struct Worker {
    pub(crate) rounds: Rounds<Batch>,
    pub(crate) open: Vec<Request>,
    pub(crate) is_turn_due: bool,
    pub(crate) newest: Option<Batch>,
    pub(crate) confirmed: VecDeque<(Batch, Confirmed)>,
}

/// A run of a process, as a connection introduces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) boot: BootId,
    /// How far the data directory had come when it began.
    pub(crate) began: StorePosition,
    /// The newest format that it reads.
    pub(crate) reads: u32,
    /// The format that whoever it speaks to must read, when it last spoke.
    pub(crate) needs: u32,
}

/// A step of the consensus plane in a call of the replica or after it, in the order in which the core
/// has taken them: anything of the workers may come between two.
#[derive(Debug)]
pub(crate) enum Share {
    /// The Promise.
    Raise(Term),
    Publish(Arc<Published>),
    /// Writes go to the disk, messages leave, reports are read.
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

/// What runs between two boots.
pub(crate) struct Running {
    pub(crate) identity: Identity,
    pub(crate) replica: Replica,
    pub(crate) shared: Arc<Shared>,
    /// What the workers read: what has come of `shared` so far, step by step.
    pub(crate) seen: Arc<Shared>,
    /// The steps that the last call of the replica has yet to take.
    pub(crate) shares: VecDeque<Share>,
    pub(crate) stamper: Stamper,
    pub(crate) workers: Vec<Worker>,
    pub(crate) clock: TrustedClock,
    /// Trusted minus monotonic time, as the consensus plane last published it to the workers.
    pub(crate) trusted_offset_ns: i64,
    /// When a worker last completed a round, on this process's clock.
    pub(crate) completed_ns: u64,
    pub(crate) applied: LogIndex,
    /// Runs of peers that have introduced themselves.
    pub(crate) greeted: BTreeMap<NodeId, BootId>,
    pub(crate) ticks: u64,
    /// When the last one was, on this process's clock.
    pub(crate) ticked_ns: u64,
    /// What was trusted then.
    pub(crate) trusted_ns: u64,
    /// What voters with a planted bug answer from: the Promise as a worker loaded it some time ago,
    /// and that of the start.
    pub(crate) stale: (Term, Term),
    /// Whether leadership was being handed over when there was last a grant; a planted bug asks.
    pub(crate) hands_over: bool,
    /// Whether the process was told to stop.
    pub(crate) is_told_to_stop: bool,
    /// The term in which its consensus plane was.
    pub(crate) departed_in: Option<Term>,
}

/// The part of a process that a pause or a link is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plane {
    /// The consensus plane's thread and links.
    Raft = 0,
    /// The workers' threads and links.
    Workers = 1,
}

impl Plane {
    /// Its threads, by their numbers: the consensus plane's is 0, a worker's its own and 1.
    pub(crate) const fn threads(self) -> Range<usize> {
        match self {
            Self::Raft => 0..1,
            Self::Workers => 1..THREADS,
        }
    }
}

/// A machine, its process running or not.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) store: StoreId,
    pub(crate) disk: Disk,
    pub(crate) clock: MachineClock,
    pub(crate) boots: u64,
    /// How often it was given other addresses.
    pub(crate) moves: u64,
    pub(crate) version: Version,
    /// Until then no client that is new can come to it.
    pub(crate) accepts_fail_until_ns: u64,
    /// By thread; 0 of one that is not paused.
    pub(crate) paused_until_ns: [u64; THREADS],
    /// What came during a pause, and for which run, by thread.
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
            held: Default::default(),
            running: None,
        }
    }

    /// Starts the process from what is durable.
    ///
    /// # Errors
    /// When the disk does not let it; the process has ended then.
    pub(crate) fn boot(
        &mut self,
        now_ns: u64,
        seed: u64,
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
        let replica = match Replica::new(config, &restored, shared.clone()) {
            Ok(replica) => replica,
            Err(RestoreError::Record(error @ DecodeError::Format { .. })) => {
                self.disk.close();
                return Err(Unreadable::Newer(error));
            }
            Err(error) => panic!("a sound disk: {error}"),
        };
        let mut clock = TrustedClock::new(CLOCK_OFFSET_MAX_NS, self.clock.read(now_ns));
        if let Some(settings) = replica.settings() {
            clock.set_bound_ns(settings.clock_offset_max_ms * 1_000_000);
        }
        let worker = |id| Worker {
            rounds: Rounds::new(identity, WorkerId(id)),
            open: vec![],
            is_turn_due: false,
            newest: None,
            confirmed: VecDeque::new(),
        };
        self.running = Some(Running {
            identity,
            stamper: Stamper::new(&workers_see, plant),
            workers: (0..WORKERS as u32).map(worker).collect(),
            trusted_offset_ns: clock.offset_ns(),
            clock,
            completed_ns: 0,
            applied: replica.applied(),
            greeted: BTreeMap::new(),
            ticks: 0,
            ticked_ns: 0,
            trusted_ns: 0,
            stale: (Term(0), shared.promise.load()),
            hands_over: false,
            is_told_to_stop: false,
            departed_in: None,
            replica,
            shared,
            seen: workers_see,
            shares: VecDeque::new(),
        });
        Ok(())
    }

    /// How the process that runs introduces itself.
    pub(crate) fn run(&self) -> Run {
        let running = self.running();
        Run {
            boot: running.identity.boot,
            began: running.replica.began(),
            reads: self.version.reads,
            needs: running.replica.format_needed(),
        }
    }

    /// How it introduces itself to peers: with the addresses that it has now.
    pub(crate) fn introduction(&self) -> Member {
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

    /// What the workers of a running process see published.
    pub(crate) fn published(&self) -> Option<Arc<Published>> {
        self.running.as_ref().map(|running| running.seen.published())
    }

    /// Whether the process leads with a range that ends before the time that it trusts: the epoch stands
    /// still.
    pub(crate) fn is_used_up(&self, now_ns: u64) -> bool {
        let trusted_ns = self.running().clock.trusted_ns(self.clock.monotonic_ns(now_ns));
        let grant = self.published().and_then(|published| published.grant);
        grant.is_some_and(|grant| grant.range.high.0 < trusted_ns)
    }

    /// Whether the process believes to lead, rightly or not.
    pub(crate) fn holds_grant(&self) -> bool {
        self.published().is_some_and(|published| published.grant.is_some())
    }
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
