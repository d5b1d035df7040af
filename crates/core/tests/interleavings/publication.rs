//! Tests S2, S3 and S7. A worker sees each publication whole, as it was at one moment. It never
//! sees an older publication after a newer one. If another thread has seen a publication and then
//! sends this worker a message, the worker sees no older one either.

use std::sync::Arc;

use epicepoch_core::confirm::Rounds;
use epicepoch_core::sync::{Weakness, weaken};
use epicepoch_wire::{NodeId, Term, WorkerId};
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use crate::stage::{FAR, NEW, OLD, as_read_now, identity, leader, published};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Plant {
    Nothing,
    PublishedBeforePromised,
}

/// The consensus plane follows a higher term: it raises the Promise first, then publishes.
fn a_higher_term(plant: Plant) {
    let shared = leader(&[1, 2, 3]);
    let raised = shared.clone();
    let consensus = thread::spawn(move || {
        let revoked = Arc::new(published(NEW, &[1, 2, 3], None));
        if plant == Plant::PublishedBeforePromised {
            raised.publish(revoked.clone());
        }
        raised.promise.raise(NEW);
        raised.publish(revoked);
    });
    let seen = shared.published().term;
    assert!(shared.promise.load() >= seen, "a publication is ahead of the Promise");
    consensus.join().unwrap();
}

#[test]
fn a_thread_that_reads_a_publication_finds_the_promise_at_its_term() {
    loom::model(|| a_higher_term(Plant::Nothing));
}

#[test]
#[should_panic(expected = "ahead of the Promise")]
fn planted_a_term_that_is_published_before_it_is_promised() {
    loom::model(|| a_higher_term(Plant::PublishedBeforePromised));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn planted_a_pointer_that_is_stored_before_its_content() {
    weaken(Weakness::UnorderedPointer);
    loom::model(|| a_higher_term(Plant::Nothing));
}

/// One worker sees that the grant was revoked, and tells another worker. After that, the other
/// worker must see it, too.
fn told_by_a_sibling(is_view: bool) {
    let shared = leader(&[1, 2, 3]);
    let told = Arc::new(AtomicBool::new(false));
    let plane = shared.clone();
    let consensus =
        thread::spawn(move || plane.publish(Arc::new(published(NEW, &[1, 2, 3], None))));
    let (sibling_shared, tell) = (shared.clone(), told.clone());
    let sibling = thread::spawn(move || {
        if sibling_shared.published().grant.is_none() {
            tell.store(true, Ordering::Release);
        }
    });
    // The view of a worker is a copy of the publication that it read last. A worker may use it to
    // steer requests and to inform people, but not to prove that it may stamp.
    let view = as_read_now(&shared);
    let was_told = told.load(Ordering::Acquire);
    let read = if is_view { &view } else { &*shared };
    assert!(!was_told || read.published().grant.is_none(), "a revocation was taken back");
    consensus.join().unwrap();
    sibling.join().unwrap();
}

#[test]
fn a_grant_that_one_worker_saw_revoked_is_not_found_by_another_later() {
    loom::model(|| told_by_a_sibling(false));
}

#[test]
#[should_panic(expected = "a revocation was taken back")]
fn planted_a_publication_that_was_read_earlier() {
    loom::model(|| told_by_a_sibling(true));
}

/// A round begins while both its voters and its grant change.
fn a_round_among_changes(is_two_pointers: bool) {
    let shared = leader(&[1, 2, 3]);
    let voters = if is_two_pointers { leader(&[1, 2, 3]) } else { shared.clone() };
    let (plane, plane_voters) = (shared.clone(), voters.clone());
    let consensus = thread::spawn(move || {
        let next = Arc::new(published(Term(6), &[1, 4, 5], Some((100, 200))));
        plane.promise.raise(Term(6));
        plane.publish(next.clone());
        if is_two_pointers {
            plane_voters.publish(next);
        }
    });
    let mut rounds = Rounds::new(identity(1), WorkerId(0));
    let begun = rounds.begin(|| ((), 1), &shared, FAR).unwrap();
    let asked = if is_two_pointers { voters.published() } else { begun.published };
    let expected: &[u64] = if begun.confirm.term == OLD { &[1, 2, 3] } else { &[1, 4, 5] };
    let ids: Vec<NodeId> = asked.voters.iter().map(|(node, _)| node).collect();
    let expected: Vec<NodeId> = expected.iter().map(|id| NodeId(*id)).collect();
    assert_eq!(ids, expected, "a round asks the voters of another moment");
    consensus.join().unwrap();
}

#[test]
fn a_round_asks_the_voters_that_were_published_with_its_grant() {
    loom::model(|| a_round_among_changes(false));
}

#[test]
#[should_panic(expected = "the voters of another moment")]
fn planted_voters_and_grant_behind_two_pointers() {
    loom::model(|| a_round_among_changes(true));
}
