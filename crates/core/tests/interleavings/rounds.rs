//! Tests S2 and S4 together. After a new leader has answered, the old leader answers no batch that
//! it closes later. That holds whatever its threads have seen of the new term.
//!
//! A socket is modelled as an order between sender and receiver (a release and an acquire, or a
//! channel). The claims use no other property of sockets.

use std::cell::Cell;
use std::sync::Arc;

use epicepoch_core::allocator::Allocator;
use epicepoch_core::confirm::{Answers, Rounds};
use epicepoch_core::promise::Promise;
use epicepoch_core::publication::Shared;
use epicepoch_wire::confirm::{Confirm, ConfirmReply};
use epicepoch_wire::{ClusterId, NodeId, Round, WorkerId};
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::mpsc::{Receiver, Sender, channel};
use loom::thread;

use crate::stage::{FAR, INTERVAL_NS, NEW, OLD, as_read_now, identity, leader, now, published};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Plant {
    Nothing,
    VoteBeforePromise,
    PromiseReadBeforeFrame,
    JoinedAfterAsking,
    ReadBeforeClose,
    OlderYesReaddressed,
}

/// The consensus plane of a voter: it votes for node 3 in the new term. With that vote node 3 leads
/// and answers a client, which sets `has_answered`.
fn votes(promise: &Promise, has_answered: &AtomicBool, plant: Plant) {
    if plant == Plant::VoteBeforePromise {
        has_answered.store(true, Ordering::Release);
    }
    promise.raise(NEW);
    has_answered.store(true, Ordering::Release);
}

/// The answer of node 2 to a Confirm of node 1. It depends on `promise`, the Promise of node 2.
fn answer(confirm: &Confirm, promise: &Promise) -> ConfirmReply {
    let mut answers = Answers::new(identity(1), ClusterId(9), identity(2));
    answers.handle_confirm(confirm, promise).unwrap()
}

/// Runs a worker of the voter, which answers one frame.
fn answers(
    promise: &Promise,
    frames: &Receiver<Option<Confirm>>,
    replies: &Sender<ConfirmReply>,
    plant: Plant,
) {
    let early = Promise::new(promise.load());
    // `None`: the old leader began no round.
    let Some(confirm) = frames.recv().unwrap() else { return };
    let read = if plant == Plant::PromiseReadBeforeFrame { &early } else { promise };
    replies.send(answer(&confirm, read)).unwrap();
}

/// Runs a worker of the old leader. It closes a batch, asks the voter, and stamps if the round is
/// confirmed. Returns whether it asked.
fn asks(
    shared: &Arc<Shared>,
    has_answered: &AtomicBool,
    plant: Plant,
    ask: impl FnOnce(Confirm) -> ConfirmReply,
) -> bool {
    let allocator = Allocator::new(shared.clone(), INTERVAL_NS);
    let mut rounds = Rounds::new(identity(1), WorkerId(0));
    let early = (plant == Plant::ReadBeforeClose).then(|| as_read_now(shared));
    let is_late = Cell::new(false);
    // A request arrives and joins the batch before the batch closes.
    let arrive = || is_late.set(has_answered.load(Ordering::Acquire));
    let close = || {
        if plant != Plant::JoinedAfterAsking {
            arrive();
        }
        ((), 1)
    };
    let Ok(begun) = rounds.begin(close, early.as_ref().unwrap_or(shared), FAR) else {
        return false;
    };
    let reply = ask(begun.confirm);
    if plant == Plant::JoinedAfterAsking {
        arrive();
    }
    rounds.handle_reply(NodeId(2), &reply);
    let Some(((), confirmed)) = rounds.poll_confirmed() else { return true };
    let given = allocator.allocate(confirmed, now(0, 50));
    assert!(!(is_late.get() && given.is_ok()), "S2: a deposed leader answered");
    true
}

/// The old leader asks node 2 while node 2 votes for the new leader.
fn deposed_by_the_voter_it_asks(plant: Plant) {
    let shared = leader(&[1, 2, 3]);
    let voter = Arc::new(Promise::new(OLD));
    let has_answered = Arc::new(AtomicBool::new(false));
    let (frame, frames) = channel();
    let (reply, replies) = channel();

    let (promise, answered) = (voter.clone(), has_answered.clone());
    let voting = thread::spawn(move || votes(&promise, &answered, plant));
    let answering = thread::spawn(move || answers(&voter, &frames, &reply, plant));
    let own = shared.clone();
    // The old leader's own consensus plane learns of the new term at any time.
    let revoking = thread::spawn(move || {
        own.promise.raise(NEW);
        own.publish(Arc::new(published(NEW, &[1, 2, 3], None)));
    });
    let has_asked = asks(&shared, &has_answered, plant, |confirm| {
        frame.send(Some(confirm)).unwrap();
        replies.recv().unwrap()
    });
    if !has_asked {
        frame.send(None).unwrap();
    }
    for thread in [voting, answering, revoking] {
        thread.join().unwrap();
    }
}

#[test]
fn a_deposed_leader_whose_voter_has_voted_since_stamps_nothing() {
    check(|| deposed_by_the_voter_it_asks(Plant::Nothing));
}

#[test]
#[should_panic(expected = "S2: a deposed leader answered")]
fn planted_a_vote_that_leaves_before_the_promise_is_raised() {
    check(|| deposed_by_the_voter_it_asks(Plant::VoteBeforePromise));
}

#[test]
#[should_panic(expected = "S2: a deposed leader answered")]
fn planted_a_promise_that_is_read_before_the_frame() {
    check(|| deposed_by_the_voter_it_asks(Plant::PromiseReadBeforeFrame));
}

#[test]
#[should_panic(expected = "S2: a deposed leader answered")]
fn planted_a_request_that_joins_a_round_that_was_sent() {
    check(|| deposed_by_the_voter_it_asks(Plant::JoinedAfterAsking));
}

/// The old leader itself votes for the new leader. Only its own Promise, read after the batch
/// closes, shows this.
fn deposed_by_its_own_vote(plant: Plant) {
    let shared = leader(&[1, 2, 3]);
    let has_answered = Arc::new(AtomicBool::new(false));
    let (own, answered) = (shared.clone(), has_answered.clone());
    let voting = thread::spawn(move || {
        votes(&own.promise, &answered, plant);
        // The model publishes later than production does, because the claim must rest on the
        // Promise alone.
        own.publish(Arc::new(published(NEW, &[1, 2, 3], None)));
    });
    // Node 2 has not heard of the new term.
    let voter = Promise::new(OLD);
    asks(&shared, &has_answered, plant, |confirm| answer(&confirm, &voter));
    voting.join().unwrap();
}

#[test]
fn a_leader_that_has_voted_for_another_does_not_count_itself() {
    check(|| deposed_by_its_own_vote(Plant::Nothing));
}

#[test]
#[should_panic(expected = "S2: a deposed leader answered")]
fn planted_promise_and_publication_read_before_the_batch_closes() {
    check(|| deposed_by_its_own_vote(Plant::ReadBeforeClose));
}

/// A worker without a link asks through a sibling worker. The sibling's mailbox takes the frame
/// there and the answer back.
fn asked_through_a_sibling(plant: Plant) {
    let shared = leader(&[1, 2, 3]);
    let voter = Arc::new(Promise::new(OLD));
    let has_answered = Arc::new(AtomicBool::new(false));
    let (forward, forwards) = channel::<Option<Confirm>>();
    let (reply, replies) = channel();

    let (promise, answered) = (voter.clone(), has_answered.clone());
    let voting = thread::spawn(move || votes(&promise, &answered, plant));
    let sibling = thread::spawn(move || {
        let ask = |confirm: &Confirm| answer(confirm, &voter);
        // Before it forwards a Confirm, the sibling asks the voter about a round of its own.
        let own = Confirm {
            store: identity(1).store,
            boot: identity(1).boot,
            worker: WorkerId(1),
            term: OLD,
            round: Round(7),
        };
        let earlier = ask(&own);
        let Some(confirm) = forwards.recv().unwrap() else { return };
        reply.send(earlier).unwrap();
        reply
            .send(match plant {
                Plant::OlderYesReaddressed => {
                    ConfirmReply { worker: confirm.worker, round: confirm.round, ..earlier }
                }
                _ => ask(&confirm),
            })
            .unwrap();
    });
    let has_asked = asks(&shared, &has_answered, plant, |confirm| {
        forward.send(Some(confirm)).unwrap();
        // This is the answer to the sibling's own round, in the wrong mailbox. It does not count.
        let stray = replies.recv().unwrap();
        let mut others = Rounds::new(identity(1), WorkerId(0));
        others.begin(|| ((), 1), &leader(&[1, 2, 3]), FAR).unwrap();
        assert!(!others.handle_reply(NodeId(2), &stray));
        replies.recv().unwrap()
    });
    if !has_asked {
        forward.send(None).unwrap();
    }
    voting.join().unwrap();
    sibling.join().unwrap();
}

/// A worker without links asks through another worker of its node.
#[test]
fn a_confirm_that_another_worker_forwards_proves_as_much() {
    check(|| asked_through_a_sibling(Plant::Nothing));
}

#[test]
#[should_panic(expected = "S2: a deposed leader answered")]
fn planted_an_earlier_yes_of_another_worker_that_counts() {
    check(|| asked_through_a_sibling(Plant::OlderYesReaddressed));
}

fn check(model: impl Fn() + Send + Sync + 'static) {
    loom::model(model);
}
