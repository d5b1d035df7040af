//! Tests S1 and S3 with several workers. Timestamps rise in the order in which requests complete,
//! and no timestamp is given twice. While a range grows, no request is refused. A round of one term
//! gets no timestamp of another term's range.

use std::cell::Cell;
use std::sync::Arc;

use epicepoch_core::allocator::Allocator;
use epicepoch_core::publication::Shared;
use epicepoch_wire::{Term, Timestamp};
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use crate::stage::{
    INTERVAL_NS, NEW, OLD, as_read_now, latest_alone, leader, now, published, stamp_alone,
};

/// The last answer of a worker, as the other worker sees it.
#[derive(Default)]
struct Answered {
    stamp: Mutex<Option<Timestamp>>,
}

/// Two workers answer one request each, while the range of the grant grows.
fn two_workers(is_planted: bool) {
    let shared = leader(&[1]);
    let half = |low, high| Arc::new(Shared::new(OLD, published(OLD, &[1], Some((low, high)))));
    let (first_shared, second_shared) =
        if is_planted { (half(50, 100), half(0, 50)) } else { (shared.clone(), shared.clone()) };
    let first_allocator = Arc::new(Allocator::new(first_shared.clone(), INTERVAL_NS));
    let second_allocator = if is_planted {
        Arc::new(Allocator::new(second_shared.clone(), INTERVAL_NS))
    } else {
        first_allocator.clone()
    };
    let answered: [Arc<Answered>; 2] = Default::default();

    let plane = shared;
    let growing = thread::spawn(move || {
        plane.publish(Arc::new(published(OLD, &[1], Some((0, 200)))));
    });
    let seen = answered.clone();
    let sibling = thread::spawn(move || worker(1, &second_shared, &second_allocator, &seen, 150));
    let own = worker(0, &first_shared, &first_allocator, &answered, 40);
    let other = sibling.join().unwrap();
    growing.join().unwrap();
    assert_ne!(own, other, "S1: a timestamp was given twice");
}

fn worker(
    id: usize,
    shared: &Shared,
    allocator: &Allocator,
    answered: &[Arc<Answered>; 2],
    trusted_ns: u64,
) -> Timestamp {
    let complete = Cell::new(None);
    // A request arrives. Its timestamp must be above every timestamp that was given before.
    let close = || complete.set(*answered[1 - id].stamp.lock().unwrap());
    // Worker 1 reads its clock one epoch interval later than worker 0.
    let at = now(id as u64 * INTERVAL_NS, trusted_ns);
    let (_, given) = stamp_alone(id as u32, close, shared, allocator, at).unwrap();
    let stamp = given.expect("a range that grows refuses nobody").first();
    assert!(complete.get() < Some(stamp), "promise 2: a later request got a smaller timestamp");
    *answered[id].stamp.lock().unwrap() = Some(stamp);
    stamp
}

#[test]
fn stamps_of_two_workers_rise_in_the_order_of_their_requests() {
    loom::model(|| two_workers(false));
}

#[test]
#[should_panic(expected = "S1: a timestamp was given twice")]
fn planted_an_allocator_for_each_worker() {
    loom::model(|| {
        let allocators = [(); 2].map(|()| leader(&[1]));
        let stamps = allocators.map(|shared| {
            thread::spawn(move || {
                let allocator = Allocator::new(shared.clone(), INTERVAL_NS);
                stamp_alone(0, || (), &shared, &allocator, now(0, 40)).unwrap().1.unwrap().first()
            })
        });
        let [first, second] = stamps.map(|stamp| stamp.join().unwrap());
        assert_ne!(first, second, "S1: a timestamp was given twice");
    });
}

#[test]
#[should_panic(expected = "promise 2: a later request got a smaller timestamp")]
fn planted_a_sub_range_for_each_worker() {
    loom::model(|| two_workers(true));
}

/// Two workers share an allocator. In the planted variant, the allocator reads the grant from a
/// copy, which each worker refreshes before it stamps.
fn a_copied_grant(is_planted: bool) {
    let shared = leader(&[1]);
    let copy = if is_planted { leader(&[1]) } else { shared.clone() };
    let allocator = Arc::new(Allocator::new(copy.clone(), INTERVAL_NS));
    let plane = shared.clone();
    let growing = thread::spawn(move || {
        plane.publish(Arc::new(published(OLD, &[1], Some((0, 200)))));
    });
    let stamp = move |worker, allocator: &Allocator, shared: &Shared, copy: &Shared| {
        if is_planted {
            copy.publish(shared.published());
        }
        let at = now(u64::from(worker) * INTERVAL_NS, 150);
        let (_, given) = stamp_alone(worker, || (), shared, allocator, at).unwrap();
        assert!(given.is_ok(), "a confirmed request of a live grant was refused: {given:?}");
    };
    let (sibling_allocator, sibling_shared, sibling_copy) =
        (allocator.clone(), shared.clone(), copy.clone());
    let sibling =
        thread::spawn(move || stamp(1, &sibling_allocator, &sibling_shared, &sibling_copy));
    stamp(0, &allocator, &shared, &copy);
    sibling.join().unwrap();
    growing.join().unwrap();
}

#[test]
fn the_grant_read_under_the_lock_is_never_older_than_the_last_one_used() {
    loom::model(|| a_copied_grant(false));
}

#[test]
#[should_panic(expected = "a confirmed request of a live grant was refused")]
fn planted_a_grant_read_before_the_lock() {
    loom::model(|| a_copied_grant(true));
}

/// A worker reads the latest timestamp, while another one stamps. In the planted variant, it reads
/// before its batch closes.
fn latest_is_read(is_planted: bool) {
    let shared = leader(&[1]);
    let allocator = Arc::new(Allocator::new(shared.clone(), INTERVAL_NS));
    let [stamped, shown]: [Arc<Answered>; 2] = Default::default();

    let (sibling_shared, sibling_allocator) = (shared.clone(), allocator.clone());
    let (own_stamp, seen) = (stamped.clone(), shown.clone());
    let sibling = thread::spawn(move || {
        let before = Cell::new(None);
        let close = || before.set(*seen.stamp.lock().unwrap());
        let given = stamp_alone(1, close, &sibling_shared, &sibling_allocator, now(0, 50));
        let stamp = given.unwrap().1.unwrap().first();
        assert!(before.get() < Some(stamp), "S19: {stamp} was asked for after the latest");
        *own_stamp.stamp.lock().unwrap() = Some(stamp);
    });
    let early = is_planted.then(|| latest_alone(|| (), &shared, &allocator));
    let before = Cell::new(None);
    let close = || before.set(*stamped.stamp.lock().unwrap());
    let latest = match early {
        Some(early) => {
            close();
            early
        }
        None => latest_alone(close, &shared, &allocator),
    };
    assert!(before.get() <= Some(latest), "S19: the latest is below an answer of before");
    *shown.stamp.lock().unwrap() = Some(latest);
    sibling.join().unwrap();
}

#[test]
fn a_latest_timestamp_lies_between_the_stamps_of_another_worker() {
    loom::model(|| latest_is_read(false));
}

#[test]
#[should_panic(expected = "S19: the latest is below an answer of before")]
fn planted_a_latest_timestamp_that_is_read_before_its_batch_closes() {
    loom::model(|| latest_is_read(true));
}

/// The consensus plane withdraws the grant and stops the allocator, while a worker stamps. In the
/// planted variant, it reads the last epoch without stopping the allocator.
fn given_back(is_planted: bool) {
    let shared = leader(&[1]);
    let allocator = Arc::new(Allocator::new(shared.clone(), INTERVAL_NS));
    let (worker_shared, worker_allocator) = (shared.clone(), allocator.clone());
    let worker =
        thread::spawn(move || stamp_alone(0, || (), &worker_shared, &worker_allocator, now(0, 50)));
    shared.publish(Arc::new(published(OLD, &[1], None)));
    let last = if is_planted { Some(allocator.epoch()) } else { allocator.stop() };
    let given = worker.join().unwrap().and_then(|(_, given)| given.ok());
    if let (Some(last), Some(given)) = (last, given) {
        let epoch = given.last().epoch;
        assert!(epoch <= last, "S18: {epoch} was stamped and all above {last} is given back");
    }
}

#[test]
fn an_allocator_that_has_stopped_gives_nothing_above_the_epoch_that_it_names() {
    loom::model(|| given_back(false));
}

#[test]
#[should_panic(expected = "S18")]
fn planted_an_epoch_that_is_read_while_the_allocator_stamps() {
    loom::model(|| given_back(true));
}

/// Leadership is lost and won again while a round is under way. Meanwhile a sibling worker stamps
/// in the newly won range.
fn regained(is_planted: bool) {
    let shared = leader(&[1]);
    let allocator = Arc::new(Allocator::new(shared.clone(), INTERVAL_NS));
    let plane = shared.clone();
    let consensus = thread::spawn(move || {
        plane.promise.raise(NEW);
        plane.publish(Arc::new(published(NEW, &[1], None)));
        plane.promise.raise(Term(6));
        plane.publish(Arc::new(published(Term(6), &[1], Some((100, 200)))));
    });
    let (sibling_shared, sibling_allocator) = (shared.clone(), allocator.clone());
    let sibling = thread::spawn(move || {
        stamp_alone(1, || (), &sibling_shared, &sibling_allocator, now(0, 150));
    });
    // The round began and was confirmed under the old term's grant.
    let begun_under = leader(&[1]);
    let of_round = if is_planted { Arc::new(as_read_now(&shared)) } else { begun_under };
    if let Some((_, Ok(range))) = stamp_alone(0, || (), &of_round, &allocator, now(0, 150)) {
        let epoch = range.first().epoch.0;
        assert!(epoch <= 100, "S3: a round of the old term got the epoch {epoch}");
    }
    sibling.join().unwrap();
    consensus.join().unwrap();
}

#[test]
fn a_round_of_a_lost_term_gets_nothing_of_the_range_won_later() {
    loom::model(|| regained(false));
}

#[test]
#[should_panic(expected = "S3: a round of the old term")]
fn planted_the_term_of_a_round_that_is_read_when_the_round_ends() {
    loom::model(|| regained(true));
}

/// The grant is revoked before the worker takes the allocator's lock, and the worker is told so.
fn revoked(is_planted: bool) {
    let shared = leader(&[1]);
    let known = Arc::new(AtomicBool::new(false));
    let of_round = as_read_now(&shared);
    let read = if is_planted { Arc::new(as_read_now(&shared)) } else { shared.clone() };
    let allocator = Allocator::new(read, INTERVAL_NS);
    let tell = known.clone();
    let consensus = thread::spawn(move || {
        shared.promise.raise(NEW);
        shared.publish(Arc::new(published(NEW, &[1], None)));
        tell.store(true, Ordering::Release);
    });
    let is_known = known.load(Ordering::Acquire);
    // The round was confirmed before the grant was revoked.
    let (_, given) = stamp_alone(0, || (), &of_round, &allocator, now(0, 50)).unwrap();
    assert!(!(is_known && given.is_ok()), "S3: stamped under a grant that was revoked before");
    consensus.join().unwrap();
}

#[test]
fn a_confirmed_round_stamps_nothing_once_its_grant_is_revoked() {
    loom::model(|| revoked(false));
}

#[test]
#[should_panic(expected = "S3: stamped under a grant that was revoked before")]
fn planted_an_allocator_that_reads_a_publication_of_its_own() {
    loom::model(|| revoked(true));
}
