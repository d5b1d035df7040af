//! The starting point of every model: three voters; node 1 leads term 4 and has a grant.

use std::sync::Arc;

use epicepoch_core::allocator::{AllocateError, Allocator, Now};
use epicepoch_core::confirm::Rounds;
use epicepoch_core::publication::{EpochRange, Grant, Identity, Published, Shared};
use epicepoch_core::quorum::Voters;
use epicepoch_wire::{BootId, Epoch, NodeId, StoreId, Term, Timestamp, TimestampRange, WorkerId};

/// The term in which node 1 leads, and the term that deposes it.
pub(crate) const OLD: Term = Term(4);
pub(crate) const NEW: Term = Term(5);

/// A deadline that no model reaches.
pub(crate) const FAR: u64 = u64::MAX;

/// The allocator's epoch interval in every model, nanoseconds.
pub(crate) const INTERVAL_NS: u64 = 100;

pub(crate) const fn identity(node: u64) -> Identity {
    Identity { node: NodeId(node), store: StoreId(node as u128), boot: BootId(70 + node) }
}

/// The publication of node 1 in `term`: its voters, and a grant of `range` if there is one.
pub(crate) fn published(term: Term, voters: &[u64], range: Option<(u64, u64)>) -> Published {
    let voters: Vec<NodeId> = voters.iter().map(|id| NodeId(*id)).collect();
    let grant = range.map(|(low, high)| Grant {
        term,
        boot: identity(1).boot,
        range: EpochRange { low: Epoch(low), high: Epoch(high) },
    });
    Published {
        term,
        voters: Voters::new(&voters, &[], |id| StoreId(u128::from(id.0))),
        grant,
        ..Published::nothing(identity(1))
    }
}

/// Node 1 leads the old term among `voters`, and holds the range (0, 100].
pub(crate) fn leader(voters: &[u64]) -> Arc<Shared> {
    Arc::new(Shared::new(OLD, published(OLD, voters, Some((0, 100)))))
}

/// A copy of the shared state as it is now. Planted bugs use it to decide from a state that they
/// read too early.
pub(crate) fn as_read_now(shared: &Shared) -> Shared {
    let published = (*shared.published()).clone();
    Shared::new(shared.promise.load(), published)
}

/// A worker of a cluster of one node, which confirms its own rounds. Returns the stamps for a batch
/// that `close` closed, and their term.
pub(crate) fn stamp_alone(
    worker: u32,
    close: impl FnOnce(),
    shared: &Shared,
    allocator: &Allocator,
    now: Now,
) -> Option<(Term, Result<TimestampRange, AllocateError>)> {
    let mut rounds = Rounds::new(identity(1), WorkerId(worker));
    rounds.begin(|| (close(), 1), shared, FAR).ok()?;
    let ((), confirmed) = rounds.poll_confirmed()?;
    Some((confirmed.term(), allocator.allocate(confirmed, now)))
}

/// The same for a batch that asks for the latest timestamp.
pub(crate) fn latest_alone(
    close: impl FnOnce(),
    shared: &Shared,
    allocator: &Allocator,
) -> Timestamp {
    let mut rounds = Rounds::new(identity(1), WorkerId(0));
    rounds.begin(|| (close(), 0), shared, FAR).unwrap();
    let ((), confirmed) = rounds.poll_confirmed().unwrap();
    allocator.latest(confirmed).unwrap()
}

pub(crate) const fn now(monotonic_ns: u64, trusted_ns: u64) -> Now {
    Now { monotonic_ns, trusted_ns }
}
