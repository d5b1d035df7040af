//! The round that many threads fill with one atomic step each, which is measured beside a worker's
//! own (`crates/server/examples/collapse`, decision 22): with the real rounds and allocator behind
//! it, its requests keep what is promised to those of a worker's round.

use std::sync::Arc;

use epicepoch_core::allocator::Allocator;
use epicepoch_core::confirm::Rounds;
use epicepoch_core::publication::Shared;
use epicepoch_wire::WorkerId;
use loom::sync::atomic::AtomicBool;
use loom::sync::mpsc::{Receiver, Sender, channel};
use loom::thread;

use crate::stage::{FAR, INTERVAL_NS, NEW, as_read_now, identity, leader, now, published};

mod atomics {
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

#[path = "../../../server/examples/collapse/shared_round.rs"]
mod collapse;

use atomics::Ordering;
use collapse::{Closed, Consumer, Grant, rounds};

/// Requests of one round, and rounds that may be about.
const SLOTS: usize = 2;
const RING: usize = 2;

type Joiners = collapse::Rounds<SLOTS, RING>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Plant {
    Nothing,
    /// Read and then set, instead of swapped.
    ClosedInTwoSteps,
    /// Who sleeps is looked up before the grant is told.
    WokenBeforeTold,
    /// A ticket is gone before its outcome was read.
    LeftBeforeReading,
}

/// The node behind the rounds: the consumer's end, and what grants.
struct Leader {
    joiners: Arc<Joiners>,
    consumer: Consumer<SLOTS, RING>,
    shared: Arc<Shared>,
    allocator: Allocator,
    plant: Plant,
}

impl Leader {
    fn new(joiners: Arc<Joiners>, consumer: Consumer<SLOTS, RING>, plant: Plant) -> Self {
        let shared = leader(&[1]);
        let allocator = Allocator::new(shared.clone(), INTERVAL_NS);
        Self { joiners, consumer, shared, allocator, plant }
    }

    fn close(&mut self) -> Option<Closed> {
        if self.plant != Plant::ClosedInTwoSteps {
            return self.consumer.close(&self.joiners);
        }
        let word = self.joiners.open.0.load(Ordering::Acquire);
        let next = self.consumer.round + 1;
        let is_ready = self.consumer.prepare(&self.joiners.cells[next as usize % RING].0, next);
        if word == 0 || !is_ready {
            return None;
        }
        self.joiners.open.0.store(next << 48, Ordering::Release);
        Some(self.consumer.closed(word))
    }

    /// Closes the open round, confirms it, and grants it. Returns how many requests it had.
    fn turn(&mut self, wake: impl FnMut(usize)) -> usize {
        self.turn_under(None, wake)
    }

    /// The same, with what was read too early if something was.
    fn turn_under(&mut self, early: Option<&Shared>, wake: impl FnMut(usize)) -> usize {
        let mut rounds = Rounds::new(identity(1), WorkerId(0));
        let shared = self.shared.clone();
        let begun = rounds.begin(|| self.close(), early.unwrap_or(&shared), FAR);
        let (closed, confirmed) = match begun {
            Ok(_) => match rounds.poll_confirmed() {
                Some((closed, confirmed)) => (closed, Some(confirmed)),
                // The node has voted for another.
                None => (rounds.poll_failed(0, &shared).and_then(|(closed, _)| closed), None),
            },
            Err((closed, _)) => (closed, None),
        };
        let Some(closed) = closed else { return 0 };
        let range =
            confirmed.and_then(|it| self.allocator.allocate(&it, closed.total, now(0, 50)).ok());
        let first = range.map(|it| (it.first().epoch.0, it.first().index.0));
        self.grant(&closed, first, wake);
        closed.slots
    }

    fn grant(&mut self, closed: &Closed, first: Grant, mut wake: impl FnMut(usize)) {
        if self.plant == Plant::WokenBeforeTold {
            let cell = &self.joiners.cells[closed.round as usize % RING].0;
            for sleeper in &cell.sleepers[..closed.slots] {
                match sleeper.load(Ordering::Acquire) {
                    0 => {}
                    sleeper => wake(sleeper as usize - 1),
                }
            }
            self.consumer.grant(&self.joiners, closed, first, |_| {});
        } else {
            self.consumer.grant(&self.joiners, closed, first, wake);
        }
    }
}

/// A worker: joins, wakes the consumer if it opened the round, sleeps until it is woken.
fn ask(
    joiners: &Joiners,
    count: u32,
    consumer: &Sender<()>,
    bell: &Receiver<()>,
    id: usize,
) -> Grant {
    let ticket = joiners.join(count).expect("a round has room for all");
    if ticket.slot == 0 {
        consumer.send(()).unwrap();
    }
    if ticket.sleep(id) {
        bell.recv().unwrap();
    }
    let got = ticket.outcome().expect("woken, so told");
    if ticket.leave() {
        consumer.send(()).unwrap();
    }
    got
}

/// Two workers ask at the same time, for two timestamps and for one.
fn two_workers(plant: Plant) {
    let (joiners, consumer) = rounds::<SLOTS, RING>();
    let joiners = Arc::new(joiners);
    let (opened, calls) = channel();
    let (bells, workers): (Vec<_>, Vec<_>) = [2, 1]
        .into_iter()
        .enumerate()
        .map(|(id, count)| {
            let (bell, rung) = channel();
            let (joiners, opened) = (joiners.clone(), opened.clone());
            (bell, thread::spawn(move || ask(&joiners, count, &opened, &rung, id)))
        })
        .unzip();
    let mut leader = Leader::new(joiners, consumer, plant);
    let mut answered = 0;
    while answered < 2 {
        calls.recv().unwrap();
        answered += leader.turn(|worker| bells[worker].send(()).unwrap());
    }
    let got: Vec<Grant> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    let [Some(two), Some(one)] = got[..] else { panic!("a request of a leader was refused") };
    assert!(one < two || one > (two.0, two.1 + 1), "S1: a timestamp was given twice");
}

#[test]
fn requests_that_share_a_round_get_parts_of_its_range() {
    loom::model(|| two_workers(Plant::Nothing));
}

#[test]
#[should_panic(expected = "deadlock")]
fn planted_a_shared_round_that_is_closed_in_two_steps() {
    loom::model(|| two_workers(Plant::ClosedInTwoSteps));
}

#[test]
#[should_panic(expected = "deadlock")]
fn planted_sleepers_that_are_looked_up_before_the_grant_is_told() {
    loom::model(|| two_workers(Plant::WokenBeforeTold));
}

/// The node votes for another leader, who answers; then a request joins the shared round.
fn deposed() {
    let (joiners, consumer) = rounds::<SLOTS, RING>();
    let joiners = Arc::new(joiners);
    let mut leader = Leader::new(joiners.clone(), consumer, Plant::Nothing);
    let has_answered = Arc::new(AtomicBool::new(false));
    let (own, answered) = (leader.shared.clone(), has_answered.clone());
    let voting = thread::spawn(move || {
        own.promise.raise(NEW);
        answered.store(true, Ordering::Release);
        own.publish(Arc::new(published(NEW, &[1], None)));
    });
    let (opened, calls) = channel();
    let (bell, rung) = channel();
    let worker = thread::spawn(move || {
        let is_late = has_answered.load(Ordering::Acquire);
        let got = ask(&joiners, 1, &opened, &rung, 0);
        assert!(!(is_late && got.is_some()), "S2: a deposed leader answered");
    });
    // It does not wait to be called: whoever has joined by now is in the round.
    if leader.turn(|_| bell.send(()).unwrap()) == 0 {
        calls.recv().unwrap();
        leader.turn(|_| bell.send(()).unwrap());
    }
    worker.join().unwrap();
    voting.join().unwrap();
}

#[test]
fn a_request_that_joins_a_deposed_leaders_shared_round_is_refused() {
    loom::model(deposed);
}

/// The same, and the request joins on the thread that closes.
fn deposed_meanwhile(is_planted: bool) {
    let (joiners, consumer) = rounds::<SLOTS, RING>();
    let joiners = Arc::new(joiners);
    let mut leader = Leader::new(joiners.clone(), consumer, Plant::Nothing);
    let has_answered = Arc::new(AtomicBool::new(false));
    let (own, answered) = (leader.shared.clone(), has_answered.clone());
    let voting = thread::spawn(move || {
        own.promise.raise(NEW);
        answered.store(true, Ordering::Release);
        own.publish(Arc::new(published(NEW, &[1], None)));
    });
    let early = is_planted.then(|| as_read_now(&leader.shared));
    let is_late = has_answered.load(Ordering::Acquire);
    let ticket = joiners.join(1).expect("room");
    leader.turn_under(early.as_ref(), |_| ());
    let got = ticket.outcome().expect("told");
    assert!(ticket.leave());
    assert!(!(is_late && got.is_some()), "S2: a deposed leader answered");
    voting.join().unwrap();
}

#[test]
fn a_shared_round_is_closed_before_anything_is_read() {
    loom::model(|| deposed_meanwhile(false));
}

#[test]
#[should_panic(expected = "S2: a deposed leader answered")]
fn planted_a_shared_round_that_is_closed_after_reading() {
    loom::model(|| deposed_meanwhile(true));
}

/// One worker reads slowly while others ask again and again: its cell is not taken from it.
fn slow_reader(plant: Plant) {
    let (joiners, consumer) = rounds::<SLOTS, RING>();
    let joiners = Arc::new(joiners);
    let mut leader = Leader::new(joiners.clone(), consumer, plant);
    let slow = joiners.join(1).expect("room");
    leader.turn(|_| ());
    let first = slow.outcome().expect("granted");
    assert!(slow.leave());

    let (begun, has_begun) = channel();
    let (is_gone, gone) = channel();
    let sharers = joiners.clone();
    let slow = thread::spawn(move || {
        let ticket = sharers.join(1).expect("room");
        begun.send(()).unwrap();
        gone.recv().unwrap();
        let cell = &sharers.cells[1].0;
        if plant == Plant::LeftBeforeReading {
            let _is_last = ticket.leave();
            return (cell.epoch.load(Ordering::Relaxed), cell.first.load(Ordering::Relaxed));
        }
        let got = ticket.outcome().expect("granted").expect("leads");
        assert!(ticket.leave());
        got
    });
    has_begun.recv().unwrap();
    leader.turn(|_| ());
    is_gone.send(()).unwrap();
    // Two rounds more would come to its cell again; while it is in use the second stays open.
    for _ in 0..2 {
        let ticket = joiners.join(1).expect("room");
        leader.turn(|_| ());
        let _is_last = ticket.leave();
    }
    let got = slow.join().unwrap();
    let second = first.map(|(epoch, index)| (epoch, index + 1));
    assert_eq!(Some(got), second, "another round's grant was read");
}

#[test]
fn a_grant_stays_until_all_of_its_requests_are_gone() {
    loom::model(|| slow_reader(Plant::Nothing));
}

#[test]
#[should_panic(expected = "another round's grant was read")]
fn planted_a_grant_that_is_read_after_its_ticket_is_gone() {
    loom::model(|| slow_reader(Plant::LeftBeforeReading));
}
