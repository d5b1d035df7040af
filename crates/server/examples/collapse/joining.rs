//! What it costs to put requests into rounds and to get a part of the range, without a network. Who
//! waits for an answer closes the open round himself, if nobody else is at it.

use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use crate::shared_round::{Consumer, rounds};
use crate::{Spent, Way, on_threads};

/// Requests of a round, more than all workers have at once.
const SLOTS: usize = 1024;
const RING: usize = 8;

/// Who sends rounds, and the next index: the allocator.
#[derive(Debug, Default)]
struct Granting<T> {
    source: T,
    next: u64,
    rounds: u64,
}

/// A request in a queue: whose it is, and how many timestamps it wants.
#[derive(Clone, Copy, Debug)]
struct Entry {
    worker: usize,
    place: usize,
    count: u32,
}

/// Where the answers of queued requests are put: the index and one, or 0.
type Answers = Vec<Vec<AtomicU64>>;

pub(crate) fn run(way: Way, workers: usize, turn: usize, time: Duration) -> Spent {
    assert!(workers * turn <= SLOTS, "a round has room for all");
    match way {
        Way::Own => own(workers, turn, time),
        Way::Atomic => atomic(workers, turn, time),
        Way::Lock => {
            let queue = Mutex::new(Vec::with_capacity(SLOTS));
            let join = |entry| queue.lock().expect("nobody panics").push(entry);
            let take = |(): &mut (), taken: &mut Vec<Entry>| {
                std::mem::swap(&mut *queue.lock().expect("nobody panics"), taken);
            };
            queued(workers, turn, time, (), join, take)
        }
        Way::Channel => {
            let (sender, receiver) = sync_channel(SLOTS);
            let join = |entry| sender.send(entry).expect("the other end is here");
            let take = |receiver: &mut Receiver<Entry>, taken: &mut Vec<Entry>| {
                taken.extend(receiver.try_iter().take(SLOTS));
            };
            queued(workers, turn, time, receiver, join, take)
        }
    }
}

fn own(workers: usize, turn: usize, time: Duration) -> Spent {
    let granting = Mutex::new(Granting::<()>::default());
    let spent = on_threads(workers, time, |_, stop| {
        let (mut requests, mut batch) = (0, Vec::with_capacity(turn));
        while !stop.load(Ordering::Relaxed) {
            (0..turn).for_each(|place| batch.push(Entry { worker: 0, place, count: 1 }));
            let total: u64 = batch.iter().map(|entry| u64::from(entry.count)).sum();
            let mut first = {
                let mut granting = granting.lock().expect("nobody panics");
                granting.rounds += 1;
                granting.next += total;
                granting.next - total
            };
            for entry in batch.drain(..) {
                black_box((entry.place, first));
                first += u64::from(entry.count);
            }
            requests += turn as u64;
        }
        requests
    });
    Spent { rounds: granting.into_inner().expect("nobody panics").rounds, ..spent }
}

fn atomic(workers: usize, turn: usize, time: Duration) -> Spent {
    let (rounds, consumer) = rounds::<SLOTS, RING>();
    let granting = Mutex::new(Granting { source: consumer, next: 0, rounds: 0 });
    let combine = || {
        let Ok(mut granting) = granting.try_lock() else { return thread::yield_now() };
        let Granting { source, next, rounds: count }: &mut Granting<Consumer<SLOTS, RING>> =
            &mut granting;
        if let Some(closed) = source.close(&rounds) {
            source.grant(&rounds, &closed, Some((1, *next)), |_| unreachable!("nobody sleeps"));
            *next += closed.total;
            *count += 1;
        }
    };
    let spent = on_threads(workers, time, |_, stop| {
        let (mut requests, mut tickets) = (0, Vec::with_capacity(turn));
        while !stop.load(Ordering::Relaxed) {
            tickets.extend((0..turn).map(|_| rounds.join(1).expect("a round has room for all")));
            for ticket in tickets.drain(..) {
                let outcome = loop {
                    match ticket.outcome() {
                        Some(outcome) => break outcome,
                        None => combine(),
                    }
                };
                black_box(outcome);
                // Who waits for a cell tries again by himself.
                let _is_last = ticket.leave();
            }
            requests += turn as u64;
        }
        requests
    });
    Spent { rounds: granting.into_inner().expect("nobody panics").rounds, ..spent }
}

fn queued<T: Send>(
    workers: usize,
    turn: usize,
    time: Duration,
    source: T,
    join: impl Fn(Entry) + Sync,
    take: impl Fn(&mut T, &mut Vec<Entry>) + Sync,
) -> Spent {
    let place = || AtomicU64::new(0);
    let answers: Answers = (0..workers).map(|_| (0..turn).map(|_| place()).collect()).collect();
    let taken: Vec<Entry> = Vec::with_capacity(SLOTS);
    let granting = Mutex::new(Granting { source: (source, taken), next: 0, rounds: 0 });
    let combine = || {
        let Ok(mut granting) = granting.try_lock() else { return thread::yield_now() };
        let Granting { source: (source, taken), next, rounds } = &mut *granting;
        take(source, taken);
        if !taken.is_empty() {
            *rounds += 1;
        }
        for entry in taken.drain(..) {
            answers[entry.worker][entry.place].store(*next + 1, Ordering::Release);
            *next += u64::from(entry.count);
        }
    };
    let work = |worker: usize, stop: &AtomicBool| {
        let mut requests = 0;
        while !stop.load(Ordering::Relaxed) {
            (0..turn).for_each(|place| join(Entry { worker, place, count: 1 }));
            for answer in &answers[worker] {
                let index = loop {
                    match answer.load(Ordering::Acquire) {
                        0 => combine(),
                        index => break index,
                    }
                };
                black_box(index);
                answer.store(0, Ordering::Relaxed);
            }
            requests += turn as u64;
        }
        requests
    };
    let spent = on_threads(workers, time, work);
    Spent { rounds: granting.into_inner().expect("nobody panics").rounds, ..spent }
}
