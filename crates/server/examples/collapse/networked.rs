//! Rounds that ask a follower over loopback TCP. A worker asks, waits until it is answered, and asks
//! again: one round is in flight for each link. Who opens a shared round sends it.

use std::error::Error;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, OnceLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use epicepoch_wire::confirm::{Confirm, ConfirmReply};
use epicepoch_wire::frame::{FrameKind, write_frame};
use epicepoch_wire::{BootId, ClusterId, NodeId, Round, StoreId, Term, WorkerId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::shared_round::rounds;
use crate::{Spent, Way, on_threads, thread_cpu};

const SLOTS: usize = 64;
const RING: usize = 8;

/// A question and its answer, as they are between nodes.
fn frames() -> [Vec<u8>; 2] {
    let (store, boot, worker) = (StoreId(1), BootId(1), WorkerId(0));
    let (term, round, leader) = (Term(1), Round(1), NodeId(1));
    let confirm = Confirm { store, boot, worker, term, round };
    let reply = ConfirmReply { leader, store, boot, worker, term, round, promise: term };
    let mut frames = [Vec::new(), Vec::new()];
    write_frame(&mut frames[0], FrameKind::Confirm, ClusterId(1), leader, |out| {
        confirm.encode(out);
    });
    write_frame(&mut frames[1], FrameKind::ConfirmReply, ClusterId(1), NodeId(2), |out| {
        reply.encode(out);
    });
    frames
}

/// A connection to the follower.
#[derive(Debug)]
struct Link {
    stream: TcpStream,
    question: Vec<u8>,
    answer: Vec<u8>,
    rounds: u64,
}

impl Link {
    fn open(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        let [question, answer] = frames();
        Ok(Self { stream, question, answer, rounds: 0 })
    }

    /// One round.
    fn ask(&mut self) {
        self.stream.write_all(&self.question).expect("the follower is there");
        self.stream.read_exact(&mut self.answer).expect("the follower answers");
        self.rounds += 1;
    }
}

/// A follower with one thread for all of its `links`, which ends with them and says what it took.
fn follower(links: usize) -> io::Result<(SocketAddr, JoinHandle<io::Result<Duration>>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let addr = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let thread = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..links {
                let (mut stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let [mut question, answer] = frames();
                tasks.spawn(async move {
                    while stream.read_exact(&mut question).await.is_ok()
                        && stream.write_all(&answer).await.is_ok()
                    {}
                });
            }
            let before = thread_cpu();
            while tasks.join_next().await.is_some() {}
            Ok(thread_cpu().saturating_sub(before))
        })
    });
    Ok((addr, thread))
}

pub(crate) fn run(
    way: Way,
    workers: usize,
    turn: usize,
    time: Duration,
) -> Result<Spent, Box<dyn Error>> {
    assert!(workers <= SLOTS, "a round has room for all");
    let links = if matches!(way, Way::Own) { workers } else { 1 };
    let (addr, follower) = follower(links)?;
    let links = (0..links).map(|_| Link::open(addr)).collect::<io::Result<Vec<_>>>()?;
    let spent = measure(way, workers, turn as u32, time, links);
    let follower = follower.join().expect("a follower never panics")?;
    Ok(Spent { follower, ..spent })
}

/// The links are closed when it is over.
fn measure(way: Way, workers: usize, turn: u32, time: Duration, mut links: Vec<Link>) -> Spent {
    match way {
        Way::Own => own(workers, turn, time, links),
        Way::Atomic => atomic(workers, turn, time, links.remove(0)),
        Way::Lock => locked(workers, turn, time, links.remove(0)),
        Way::Channel => channel(workers, turn, time, links.remove(0)),
    }
}

/// Answers a run of requests from its first index.
fn answer(first: u64, turn: u32) -> u64 {
    (0..u64::from(turn)).for_each(|place| {
        black_box(first + place);
    });
    u64::from(turn)
}

fn own(workers: usize, turn: u32, time: Duration, links: Vec<Link>) -> Spent {
    let next = Mutex::new(0);
    let links: Vec<_> = links.into_iter().map(Mutex::new).collect();
    let spent = on_threads(workers, time, |worker, stop| {
        let mut link = links[worker].lock().expect("it is this worker's own");
        let mut requests = 0;
        while !stop.load(Ordering::Relaxed) {
            link.ask();
            let mut next = next.lock().expect("nobody panics");
            let first = *next;
            *next += u64::from(turn);
            drop(next);
            requests += answer(first, turn);
        }
        requests
    });
    let rounds = links.iter().map(|link| link.lock().expect("nobody panics").rounds).sum();
    Spent { rounds, ..spent }
}

fn atomic(workers: usize, turn: u32, time: Duration, link: Link) -> Spent {
    let (rounds, consumer) = rounds::<SLOTS, RING>();
    let sleepers = Sleepers::new(workers);
    let sender = Mutex::new((consumer, link, 0_u64));
    let send = || {
        let mut sender = sender.lock().expect("nobody panics");
        let (consumer, link, next) = &mut *sender;
        let closed = loop {
            match consumer.close(&rounds) {
                Some(closed) => break closed,
                // A worker has not yet taken what it got eight rounds ago.
                None => thread::yield_now(),
            }
        };
        link.ask();
        let first = *next;
        *next += closed.total;
        consumer.grant(&rounds, &closed, Some((1, first)), |worker| sleepers.wake(worker));
    };
    let spent = on_threads(workers, time, |worker, stop| {
        sleepers.register(worker);
        let mut requests = 0;
        while !stop.load(Ordering::Relaxed) {
            let ticket = rounds.join(turn).expect("a round has room for all");
            if ticket.slot == 0 {
                send();
            } else if ticket.sleep(worker) {
                while ticket.outcome().is_none() {
                    thread::park();
                }
            }
            let (_, first) = ticket.outcome().flatten().expect("it was granted");
            requests += answer(first, turn);
            // Who waits for a cell tries again by himself.
            let _is_last = ticket.leave();
        }
        requests
    });
    Spent { rounds: sender.into_inner().expect("nobody panics").1.rounds, ..spent }
}

fn locked(workers: usize, turn: u32, time: Duration, link: Link) -> Spent {
    let (queue, sleepers) = (Mutex::new(Vec::with_capacity(SLOTS)), Sleepers::new(workers));
    let sender = Mutex::new((link, 0_u64, Vec::with_capacity(SLOTS)));
    let send = |own: usize| {
        let mut sender = sender.lock().expect("nobody panics");
        let (link, next, taken) = &mut *sender;
        std::mem::swap(&mut *queue.lock().expect("nobody panics"), taken);
        link.ask();
        sleepers.answer(own, next, taken);
    };
    let spent = on_threads(workers, time, |worker, stop| {
        sleepers.register(worker);
        let mut requests = 0;
        while !stop.load(Ordering::Relaxed) {
            let mut open = queue.lock().expect("nobody panics");
            open.push((worker, turn));
            let has_opened = open.len() == 1;
            drop(open);
            if has_opened {
                send(worker);
            }
            requests += answer(sleepers.sleep(worker), turn);
        }
        requests
    });
    Spent { rounds: sender.into_inner().expect("nobody panics").0.rounds, ..spent }
}

fn channel(workers: usize, turn: u32, time: Duration, mut link: Link) -> Spent {
    let sleepers = Sleepers::new(workers);
    let (sender, receiver): (_, Receiver<(usize, u32)>) = sync_channel(SLOTS);
    thread::scope(|scope| {
        let sleepers = &sleepers;
        let sending = scope.spawn(move || {
            let (mut next, mut taken) = (0, Vec::with_capacity(SLOTS));
            while let Ok(first) = receiver.recv() {
                taken.push(first);
                taken.extend(receiver.try_iter().take(SLOTS - 1));
                link.ask();
                sleepers.answer(workers, &mut next, &mut taken);
            }
            (link.rounds, thread_cpu())
        });
        let spent = on_threads(workers, time, |worker, stop| {
            sleepers.register(worker);
            let mut requests = 0;
            while !stop.load(Ordering::Relaxed) {
                sender.send((worker, turn)).expect("the other end is there");
                requests += answer(sleepers.sleep(worker), turn);
            }
            requests
        });
        drop(sender);
        let (rounds, cpu) = sending.join().expect("it never panics");
        Spent { rounds, leader: spent.leader + cpu, ..spent }
    })
}

/// Workers that wait, and what those got whose requests stood in a queue: the index and one, or 0.
#[derive(Debug)]
struct Sleepers {
    threads: Vec<OnceLock<Thread>>,
    answers: Vec<AtomicU64>,
}

impl Sleepers {
    fn new(workers: usize) -> Self {
        let answers = (0..workers).map(|_| AtomicU64::new(0)).collect();
        Self { threads: vec![OnceLock::new(); workers], answers }
    }

    /// To be called by each worker before it asks.
    fn register(&self, worker: usize) {
        self.threads[worker].set(thread::current()).expect("each worker once");
    }

    fn wake(&self, worker: usize) {
        self.threads[worker].get().expect("who sleeps has registered").unpark();
    }

    /// Answers queued requests in their order, and wakes all workers of them but `awake`.
    fn answer(&self, awake: usize, next: &mut u64, taken: &mut Vec<(usize, u32)>) {
        for (worker, count) in taken.drain(..) {
            self.answers[worker].store(*next + 1, Ordering::Release);
            *next += u64::from(count);
            if worker != awake {
                self.wake(worker);
            }
        }
    }

    /// Waits for what the worker got.
    fn sleep(&self, worker: usize) -> u64 {
        loop {
            match self.answers[worker].swap(0, Ordering::Acquire) {
                0 => thread::park(),
                answered => return answered - 1,
            }
        }
    }
}
