//! Tests S20. A worker proves a batch by a lease while the consensus plane withdraws and releases
//! the lease, while the lease ends, and while this node loses leadership and leads again. After
//! another leader has answered, no batch is answered that closes later.
//!
//! The other leader answers once it may: it has the release in its log, or its wait is over. How the
//! entry gets there is modelled as an order between this node's consensus plane and that answer.

use std::cell::Cell;
use std::sync::Arc;

use epicepoch_core::allocator::Allocator;
use epicepoch_core::confirm::prove_by_lease;
use epicepoch_core::lease::Lease;
use epicepoch_core::publication::{Published, Shared};
use epicepoch_wire::Term;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;

use crate::stage::{INTERVAL_NS, NEW, OLD, as_read_now, now, published};

/// The end of the lease, and times before and after it.
const UNTIL_NS: u64 = 100;
const EARLY_NS: u64 = 99;
const LATE_NS: u64 = 125;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Plant {
    Nothing,
    ReleasedBeforeWithdrawn,
    ReadBeforeClose,
    ClockBeforeClose,
    JoinedAfterClock,
}

/// Node 1 leads the old term, with or without a lease.
fn leading(has_lease: bool) -> Published {
    let lease = has_lease.then_some(Lease { term: OLD, until_ns: UNTIL_NS });
    Published { lease, ..published(OLD, &[1, 2, 3], Some((0, 100))) }
}

/// A worker of the old leader answers a batch if its lease proves it. Returns the proved term, and
/// whether another leader had answered before the last request of the batch arrived.
fn answers(
    shared: &Arc<Shared>,
    has_answered: &AtomicBool,
    clock_ns: &AtomicU64,
    plant: Plant,
) -> Option<Term> {
    let allocator = Allocator::new(shared.clone(), INTERVAL_NS);
    let read = || clock_ns.load(Ordering::Acquire);
    let early = (plant == Plant::ReadBeforeClose).then(|| as_read_now(shared));
    let early_ns = (plant == Plant::ClockBeforeClose).then(read);
    let is_late = Cell::new(false);
    let arrive = || is_late.set(has_answered.load(Ordering::Acquire));
    let close = || {
        if plant != Plant::JoinedAfterClock {
            arrive();
        }
        ((), 1)
    };
    let clock = || early_ns.unwrap_or_else(read);
    let proved = prove_by_lease(close, early.as_ref().unwrap_or(shared), clock);
    let ((), key) = proved.ok()?;
    if plant == Plant::JoinedAfterClock {
        arrive();
    }
    let term = key.term();
    let range = allocator.allocate(key, now(0, 50)).ok()?;
    assert!(!is_late.get(), "S20: an answer by lease below one that was complete");
    assert!(range.first().epoch.0 <= 100, "S3: a stamp outside the range of its term");
    Some(term)
}

/// The consensus plane withdraws the lease and releases it. The other leader reads the release, and
/// answers at once.
fn a_lease_is_released(plant: Plant) {
    let shared = Arc::new(Shared::new(OLD, leading(true)));
    let has_answered = Arc::new(AtomicBool::new(false));
    let (own, answered) = (shared.clone(), has_answered.clone());
    let consensus = thread::spawn(move || {
        if plant == Plant::ReleasedBeforeWithdrawn {
            answered.store(true, Ordering::Release);
        }
        own.publish(Arc::new(leading(false)));
        answered.store(true, Ordering::Release);
    });
    answers(&shared, &has_answered, &AtomicU64::new(EARLY_NS), plant);
    consensus.join().unwrap();
}

/// The lease ends. The other leader has waited for it, and answers. This node's consensus plane has
/// not heard of that.
fn a_lease_ends(plant: Plant) {
    let shared = Arc::new(Shared::new(OLD, leading(true)));
    let has_answered = Arc::new(AtomicBool::new(false));
    let clock_ns = Arc::new(AtomicU64::new(EARLY_NS));
    let (passing, answered) = (clock_ns.clone(), has_answered.clone());
    let other = thread::spawn(move || {
        passing.store(LATE_NS, Ordering::Release);
        answered.store(true, Ordering::Release);
    });
    answers(&shared, &has_answered, &clock_ns, plant);
    other.join().unwrap();
}

/// This node loses leadership, and leads a later term.
fn another_term_begins() {
    let shared = Arc::new(Shared::new(OLD, leading(true)));
    let plane = shared.clone();
    let consensus = thread::spawn(move || {
        plane.raise(NEW);
        plane.publish(Arc::new(published(NEW, &[1, 2, 3], None)));
        plane.publish(Arc::new(published(NEW, &[1, 2, 3], Some((100, 200)))));
    });
    let has_answered = AtomicBool::new(false);
    let term = answers(&shared, &has_answered, &AtomicU64::new(EARLY_NS), Plant::Nothing);
    assert!(term.is_none_or(|term| term == OLD));
    consensus.join().unwrap();
}

#[test]
fn a_batch_that_closes_after_a_release_took_effect_elsewhere_is_not_proved() {
    loom::model(|| a_lease_is_released(Plant::Nothing));
}

#[test]
#[should_panic(expected = "S20: an answer by lease")]
fn planted_a_release_before_the_lease_is_withdrawn() {
    loom::model(|| a_lease_is_released(Plant::ReleasedBeforeWithdrawn));
}

#[test]
#[should_panic(expected = "S20: an answer by lease")]
fn planted_a_lease_that_is_read_before_the_batch_closes() {
    loom::model(|| a_lease_is_released(Plant::ReadBeforeClose));
}

#[test]
fn a_batch_that_closes_after_the_wait_for_a_lease_is_not_proved_by_it() {
    loom::model(|| a_lease_ends(Plant::Nothing));
}

#[test]
#[should_panic(expected = "S20: an answer by lease")]
fn planted_a_clock_that_is_read_before_the_batch_closes() {
    loom::model(|| a_lease_ends(Plant::ClockBeforeClose));
}

#[test]
#[should_panic(expected = "S20: an answer by lease")]
fn planted_a_request_that_joins_after_the_clock_was_read() {
    loom::model(|| a_lease_ends(Plant::JoinedAfterClock));
}

#[test]
fn a_lease_of_an_earlier_term_stamps_nothing_in_the_range_of_a_later_one() {
    loom::model(another_term_begins);
}
