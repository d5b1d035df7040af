//! One simulated node: a replica, two workers, an allocator, and the disk that outlives them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use epicepoch_core::allocator::Allocator;
use epicepoch_core::confirm::{Confirmed, Rounds};
use epicepoch_core::promise::Promise;
use epicepoch_core::publication::{Identity, Published, Shared};
use epicepoch_core::replica::{Replica, ReplicaConfig, Report};
use epicepoch_core::state::FORMATS;
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::{BootId, LogIndex, NodeId, StoreId, Term, Timestamp, WorkerId};

use super::disk::Disk;

/// Length of a tick.
pub(crate) const TICK_NS: u64 = 10_000_000;
/// Shortest election timeout.
pub(crate) const ELECTION_TICKS: usize = 5;
/// How far ahead leaders reserve.
pub(crate) const RESERVATION_NS: u64 = 1_000_000_000;
/// How often the epoch advances.
pub(crate) const EPOCH_INTERVAL_NS: u64 = 100_000_000;
/// Workers of a node.
pub(crate) const WORKERS: usize = 2;

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// How many timestamps it wants.
    pub(crate) count: u64,
    /// What was completed before it started.
    pub(crate) floor: Option<Timestamp>,
}

/// Shared, so that a planted bug can add to it after it was closed.
pub(crate) type Batch = Rc<RefCell<Vec<Request>>>;

/// One worker.
pub(crate) struct Worker {
    pub(crate) rounds: Rounds<Batch>,
    pub(crate) open: Vec<Request>,
    pub(crate) newest: Option<Batch>,
    pub(crate) confirmed: VecDeque<(Batch, Confirmed)>,
}

/// What runs between two boots.
pub(crate) struct Running {
    pub(crate) identity: Identity,
    pub(crate) replica: Replica,
    pub(crate) shared: Arc<Shared>,
    /// What the workers read: `shared`, unless a planted bug needs another.
    pub(crate) seen: Arc<Shared>,
    pub(crate) allocator: Allocator,
    pub(crate) workers: Vec<Worker>,
    pub(crate) completed_ns: u64,
    pub(crate) applied: LogIndex,
    /// What a voter with a planted bug answers from.
    pub(crate) stale: (Promise, Term),
    pub(crate) ticks: u64,
}

/// A node, running or not.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) store: StoreId,
    pub(crate) disk: Disk,
    pub(crate) boots: u64,
    /// Trusted time minus the world's.
    pub(crate) ahead_ns: i64,
    pub(crate) raft_paused_until_ns: u64,
    pub(crate) workers_paused_until_ns: u64,
    pub(crate) running: Option<Running>,
    /// Everything that the replica reported, over all boots.
    pub(crate) reports: Vec<Report>,
    /// Whom the replica is told to hand over to because of this node's clock.
    pub(crate) successors: Option<Vec<NodeId>>,
}

impl Node {
    pub(crate) fn new(id: NodeId, store: StoreId, disk: Disk) -> Self {
        Self {
            id,
            store,
            disk,
            boots: 0,
            ahead_ns: 0,
            raft_paused_until_ns: 0,
            workers_paused_until_ns: 0,
            running: None,
            reports: vec![],
            successors: None,
        }
    }

    /// Starts from what is durable. `is_apart` gives the workers a publication of their own.
    pub(crate) fn boot(&mut self, seed: u64, is_apart: bool) {
        self.boots += 1;
        let boot = BootId(self.id.0 * 1_000_000 + self.boots);
        let identity = Identity { node: self.id, store: self.store, boot };
        let restored = self.disk.durable().clone();
        let term = restored.hard_state.term;
        let fresh = || Arc::new(Shared::new(term, Published::nothing(identity)));
        let shared = fresh();
        let workers_see = if is_apart { fresh() } else { shared.clone() };
        let config = ReplicaConfig {
            identity,
            seed,
            election_ticks: ELECTION_TICKS,
            heartbeat_ticks: 1,
            tick_ns: TICK_NS,
            reservation_ns: RESERVATION_NS,
            deadline_limit: 100,
            format_max: FORMATS.newest,
        };
        let mut replica = Replica::new(config, &restored, shared.clone()).expect("a sound disk");
        replica.handle_compared(true);
        let worker = |id| Worker {
            rounds: Rounds::new(identity, WorkerId(id)),
            open: vec![],
            newest: None,
            confirmed: VecDeque::new(),
        };
        self.running = Some(Running {
            identity,
            allocator: Allocator::new(workers_see.clone(), EPOCH_INTERVAL_NS),
            workers: (0..WORKERS as u32).map(worker).collect(),
            completed_ns: 0,
            applied: replica.applied(),
            stale: (Promise::new(Term(0)), shared.promise.load()),
            ticks: 0,
            replica,
            shared,
            seen: workers_see,
        });
    }

    pub(crate) fn running(&self) -> &Running {
        self.running.as_ref().expect("the node runs")
    }

    pub(crate) fn running_mut(&mut self) -> &mut Running {
        self.running.as_mut().expect("the node runs")
    }
}

/// A member whose addresses follow from its id.
pub(crate) fn member(node: NodeId, store: StoreId) -> Member {
    let (raft_addr, client_addr) = (format!("n{node}:1"), format!("n{node}:2"));
    Member { node, store, raft_addr, client_addr }
}
