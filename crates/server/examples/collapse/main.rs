//! Ways for the workers of a node to share what a round costs, beside each other: a round for each
//! worker, as a node has them, a round that all fill with one atomic step each, a queue behind a
//! lock, and a channel to a thread that sends. `docs/decisions/0022` tells what came of it.
//!
//! ```sh
//! cargo run --release -p epicepoch-server --example collapse [MILLISECONDS]
//! ```
//! *Joining*: what it costs to put a request into a round and to hand it its part of the range, where
//! nobody waits for a network. *Rounds*: workers, each with requests that come together, ask a
//! follower over loopback TCP before they allocate, with the bytes of a confirm and of its answer.
//! Each figure is the median of three runs of so many milliseconds, 500 by default.

mod joining;
mod networked;
mod shared_round;

/// What the shared round is made of. The models of loom give it others.
mod atomics {
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

use std::error::Error;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Threads that are measured beside each other.
const WORKERS: [usize; 4] = [1, 2, 4, 8];
/// Requests of a worker that come together.
const TURNS: [usize; 2] = [1, 16];
const RUNS: usize = 3;

/// A way to share rounds.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Each worker has a round of its own, and shares only the allocator's lock.
    Own,
    /// All fill one round, with one atomic step each.
    Atomic,
    /// All fill one queue behind a lock.
    Lock,
    /// All send to one thread.
    Channel,
}

impl Way {
    const ALL: [Self; 4] = [Self::Own, Self::Atomic, Self::Lock, Self::Channel];

    fn name(self) -> &'static str {
        match self {
            Self::Own => "a round for each worker",
            Self::Atomic => "one round, one atomic step",
            Self::Lock => "one queue behind a lock",
            Self::Channel => "one channel",
        }
    }
}

/// What a run has done and what it took.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    requests: u64,
    rounds: u64,
    elapsed: Duration,
    /// Processor time of the workers, and of who sends for them.
    leader: Duration,
    follower: Duration,
}

fn main() -> Result<(), Box<dyn Error>> {
    let millis = std::env::args().nth(1).map_or(Ok(500), |it| it.parse::<u64>())?;
    let time = Duration::from_millis(millis.clamp(1, 60_000));
    println!("### Joining\n");
    println!(
        "| requests together, workers | way | requests/s | CPU per request | requests per round |"
    );
    println!("|---|---|---|---|---|");
    for turn in TURNS {
        for workers in WORKERS {
            for way in Way::ALL {
                let spent = median(|| Ok(joining::run(way, workers, turn, time)))?;
                println!(
                    "| {turn}, {workers} | {} | {} | {} ns | {} |",
                    way.name(),
                    rate(&spent),
                    per_request(&spent, spent.leader),
                    per_round(&spent),
                );
            }
        }
    }
    println!("\n### Rounds\n");
    println!(
        "| requests together, workers | way | requests/s | CPU per request | of the follower | \
         requests per round |"
    );
    println!("|---|---|---|---|---|---|");
    for turn in TURNS {
        for workers in WORKERS {
            for way in Way::ALL {
                let spent = median(|| networked::run(way, workers, turn, time))?;
                println!(
                    "| {turn}, {workers} | {} | {} | {:.2} us | {:.2} us | {} |",
                    way.name(),
                    rate(&spent),
                    per_request(&spent, spent.leader) as f64 / 1e3,
                    per_request(&spent, spent.follower) as f64 / 1e3,
                    per_round(&spent),
                );
            }
        }
    }
    Ok(())
}

/// The run in the middle by its rate.
fn median(mut run: impl FnMut() -> Result<Spent, Box<dyn Error>>) -> Result<Spent, Box<dyn Error>> {
    let mut runs = (0..RUNS).map(|_| run()).collect::<Result<Vec<_>, _>>()?;
    runs.sort_by_key(|spent| spent.requests);
    Ok(runs[RUNS / 2])
}

fn rate(spent: &Spent) -> u64 {
    (spent.requests as f64 / spent.elapsed.as_secs_f64()) as u64
}

fn per_request(spent: &Spent, time: Duration) -> u64 {
    time.as_nanos() as u64 / spent.requests.max(1)
}

fn per_round(spent: &Spent) -> String {
    format!("{:.1}", spent.requests as f64 / spent.rounds.max(1) as f64)
}

/// Processor time of this thread so far.
fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Runs `work` on so many threads for `time`: it is told which of them it is and when to stop, and
/// says how many requests it has answered.
fn on_threads(
    workers: usize,
    time: Duration,
    work: impl Fn(usize, &AtomicBool) -> u64 + Sync,
) -> Spent {
    let (stop, start) = (AtomicBool::new(false), Barrier::new(workers + 1));
    thread::scope(|scope| {
        let threads: Vec<_> = (0..workers)
            .map(|worker| {
                let (work, stop, start) = (&work, &stop, &start);
                scope.spawn(move || {
                    start.wait();
                    let before = thread_cpu();
                    (work(worker, stop), thread_cpu().saturating_sub(before))
                })
            })
            .collect();
        start.wait();
        let began = Instant::now();
        thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        let mut spent = Spent { elapsed: began.elapsed(), ..Spent::default() };
        for thread in threads {
            let (requests, cpu) = thread.join().expect("a worker never panics");
            spent.requests += requests;
            spent.leader += cpu;
        }
        spent
    })
}
