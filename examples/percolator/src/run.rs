//! Runs the whole example: a real oracle, stores in memory, and a thread for each client. Leaders
//! of the oracle and clients are killed meanwhile; in interval mode, one node after another. Each
//! client also sleeps once, longer than its locks are respected.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow};
use epicepoch_client::{Interval, IntervalError, Options, Timestamp, TimestampsError, blocking};
use epicepoch_conformance::cluster::Cluster;

use crate::bank::Bank;
use crate::checker::Evidence;
use crate::columns::Columns;
use crate::history::Line;
use crate::plant::Plant;
use crate::protocol::{Reply, Request, Row};
use crate::transaction::LOCK_TTL;
use crate::world::{World, WorldError};

/// The mode of the oracle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The leader gives timestamps in order.
    Quorum,
    /// Each node gives timestamps alone, and clients wait them out.
    Intervals,
    /// As [`Intervals`](Self::Intervals), but clients do not wait. The checker must find this.
    IntervalsWithoutWait,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub mode: Mode,
    pub seconds: u64,
    pub stores: usize,
    pub clients: usize,
    pub bank: Bank,
    /// Seed of random choices. Runs with the same seed still differ, because of the real oracle and
    /// real time.
    pub seed: u64,
    pub plant: Option<Plant>,
    /// The `epicepoch` binary.
    pub oracle: PathBuf,
}

#[derive(Debug)]
pub struct RunResult {
    pub evidence: Evidence,
    /// For each killed node, the time until another one answered.
    pub nodes_killed: Vec<Duration>,
    pub clients_killed: u64,
    pub took: Duration,
}

/// Runs everything.
pub fn run(settings: &Settings) -> Result<RunResult> {
    let oracle = match settings.mode {
        Mode::Quorum => Cluster::start(&settings.oracle, false),
        Mode::Intervals | Mode::IntervalsWithoutWait => {
            Cluster::start_intervals(&settings.oracle, SOURCES)
        }
    };
    let oracle = oracle.map_err(Error::msg)?;
    let addrs: Vec<_> = oracle.addrs().into_iter().map(|addr| addr.to_string()).collect();
    let shared = Arc::new(Shared {
        mode: settings.mode,
        oracle: blocking::Client::new(addrs.clone(), Options::default())?,
        addrs,
        stores: (0..settings.stores).map(|_| Mutex::new(Columns::new(settings.plant))).collect(),
        lines: Mutex::default(),
        began: Instant::now(),
        plant: settings.plant,
    });
    let mut rng = fastrand::Rng::with_seed(settings.seed);
    let mut first = Client::new(&shared, "bank".to_owned(), 0, rng.u64(..))?;
    settings.bank.load(&mut first)?;
    let (stop, stopped) = channel::<()>();
    let mode = settings.mode;
    let nemesis = thread::spawn(move || match mode {
        Mode::Quorum => kill_leaders(oracle, &stopped),
        Mode::Intervals | Mode::IntervalsWithoutWait => kill_nodes(oracle, &stopped),
    });
    let began = Instant::now();
    let until = began + Duration::from_secs(settings.seconds);
    let clients: Vec<_> = (0..settings.clients)
        .map(|at| {
            let (shared, bank, seed) = (shared.clone(), settings.bank, rng.u64(..));
            thread::spawn(move || live(&shared, at, bank, seed, until))
        })
        .collect();
    let ends: Vec<_> = clients.into_iter().map(thread::JoinHandle::join).collect();
    let took = began.elapsed();
    // Stop the thread that kills leaders, also after an error.
    drop(stop);
    let (oracle, nodes_killed) =
        nemesis.join().map_err(|_| anyhow!("the nemesis panicked"))?.map_err(Error::msg)?;
    let mut clients_killed = 0;
    for end in ends {
        clients_killed += end.map_err(|_| anyhow!("a client panicked"))??;
    }
    let mut evidence = Evidence { total: settings.bank.total(), ..Evidence::default() };
    evidence.rows = conclude(settings.bank, &mut first)?;
    drop(oracle);
    evidence.add(std::mem::take(&mut *locked(&shared.lines)));
    Ok(RunResult { evidence, nodes_killed, clients_killed, took })
}

/// Everything that clients share.
#[derive(Debug)]
struct Shared {
    mode: Mode,
    /// The oracle's client of quorum mode. It merges the calls of all threads.
    oracle: blocking::Client,
    addrs: Vec<String>,
    stores: Vec<Mutex<Columns>>,
    lines: Mutex<Vec<Line>>,
    began: Instant,
    plant: Option<Plant>,
}

/// A client. If it is killed, it knows nothing more and leaves everything as it is.
#[derive(Debug)]
struct Client {
    name: String,
    shared: Arc<Shared>,
    oracle: blocking::Client,
    /// The last answer of interval mode.
    interval: Option<Interval>,
    rng: fastrand::Rng,
    /// Before it first commits a row after this moment, the client sleeps longer than its locks are
    /// respected. Then it goes on.
    sleeps: Option<Instant>,
    /// The first call of a store after this moment kills the client.
    dies: Option<Instant>,
}

impl Client {
    /// In interval mode, the client first asks the node with this index, modulo their number.
    fn new(shared: &Arc<Shared>, name: String, nearest: usize, seed: u64) -> Result<Self> {
        let oracle = match shared.mode {
            Mode::Quorum => shared.oracle.clone(),
            Mode::Intervals | Mode::IntervalsWithoutWait => {
                let mut addrs = shared.addrs.clone();
                let nearest = nearest % addrs.len();
                addrs.rotate_left(nearest);
                blocking::Client::new(addrs, Options::default())?
            }
        };
        let rng = fastrand::Rng::with_seed(seed);
        let shared = shared.clone();
        Ok(Self { name, shared, oracle, interval: None, rng, sleeps: None, dies: None })
    }

    fn interval(&mut self) -> Result<Timestamp, WorldError> {
        let interval = self.oracle.interval().map_err(|error| match error {
            IntervalError::DeadlineExceeded { .. } => WorldError::Unavailable(error.to_string()),
            // No retry cures these errors.
            _ => WorldError::Fatal(error.to_string()),
        })?;
        self.interval = Some(interval);
        Ok(interval.timestamp)
    }
}

impl World for Client {
    fn name(&self) -> &str {
        &self.name
    }

    fn call(&mut self, request: Request) -> Result<Reply, WorldError> {
        let dies = self.dies.is_some_and(|at| Instant::now() >= at);
        // The last call of a client that dies may still be executed.
        if dies && self.rng.bool() {
            return Err(WorldError::Killed);
        }
        let is_slow = matches!(request, Request::Commit { .. })
            && self.sleeps.take_if(|at| Instant::now() >= *at).is_some();
        thread::sleep(if is_slow { SLEEP } else { STORE_DELAY });
        let Shared { stores, began, .. } = &*self.shared;
        let store = request.store(stores.len());
        let reply = locked(&stores[store]).handle(request, began.elapsed());
        if dies { Err(WorldError::Killed) } else { Ok(reply) }
    }

    fn timestamp(&mut self) -> Result<Timestamp, WorldError> {
        if self.shared.mode != Mode::Quorum {
            return self.interval();
        }
        self.oracle.timestamp().map_err(|error| match error {
            TimestampsError::DeadlineExceeded { .. } | TimestampsError::TooManyCalls => {
                WorldError::Unavailable(error.to_string())
            }
            // No retry cures these errors, and an oracle must never cause some of them. So the
            // client stops.
            _ => WorldError::Fatal(error.to_string()),
        })
    }

    fn commit_wait(&mut self) {
        if let Some(interval) = self.interval.take().filter(|_| self.shared.mode == Mode::Intervals)
        {
            self.oracle.commit_wait(&interval);
        }
    }

    fn now(&mut self) -> Duration {
        self.shared.began.elapsed()
    }

    fn pause(&mut self, about: Duration) {
        thread::sleep(about.mul_f64(self.rng.f64() + 0.5));
    }

    fn record(&mut self, line: &Line) {
        locked(&self.shared.lines).push(line.clone());
    }

    fn plant(&self) -> Option<Plant> {
        self.shared.plant
    }
}

/// Runs transactions until `until`. Once in its life the client sleeps so long that others may roll
/// its transaction back. Whenever it is killed, a new one takes its place.
/// Returns how many were killed.
fn live(shared: &Arc<Shared>, at: usize, bank: Bank, seed: u64, until: Instant) -> Result<u64> {
    let mut rng = fastrand::Rng::with_seed(seed);
    for life in 0.. {
        let name = format!("client {at} in life {life}");
        let mut client = Client::new(shared, name, at, rng.u64(..))?;
        let life_span = CLIENT_LIFE.mul_f64(0.5 + rng.f64());
        client.sleeps = Some(Instant::now() + life_span / 2);
        client.dies = Some(Instant::now() + life_span);
        loop {
            if Instant::now() >= until {
                return Ok(life);
            }
            match bank.work(&mut client, &mut rng) {
                Ok(_) => {}
                Err(WorldError::Unavailable(why)) => client.record(&Line::NoTimestamp { why }),
                Err(WorldError::Killed) => break,
                // These stores lose no reply. A client that reads `Unknown` asks `outcome_of`.
                Err(error @ (WorldError::Unknown { .. } | WorldError::Fatal(_))) => {
                    return Err(error).context(client.name);
                }
            }
        }
    }
    Ok(0)
}

/// Kills leaders until `stopped` is signalled. Starts each killed node again, so all nodes run at
/// the end. Returns, for each killed leader, the time until another node led.
fn kill_leaders(
    mut oracle: Cluster,
    stopped: &Receiver<()>,
) -> Result<(Cluster, Vec<Duration>), String> {
    let mut killed = Vec::new();
    while stopped.recv_timeout(LEADER_LIFE) == Err(RecvTimeoutError::Timeout) {
        let leader = oracle.leader()?;
        let from = Instant::now();
        oracle.kill(leader)?;
        oracle.leader()?;
        killed.push(from.elapsed());
        oracle.restart(leader)?;
        oracle.wait_until_ready()?;
    }
    Ok((oracle, killed))
}

/// Kills one node of interval mode after another, until `stopped` is signalled. Starts each killed
/// node again, so all nodes run at the end. Returns, for each killed node, the time until the
/// others answered.
fn kill_nodes(
    mut oracle: Cluster,
    stopped: &Receiver<()>,
) -> Result<(Cluster, Vec<Duration>), String> {
    let mut killed = Vec::new();
    while stopped.recv_timeout(LEADER_LIFE) == Err(RecvTimeoutError::Timeout) {
        let node = killed.len() % oracle.addrs().len();
        let from = Instant::now();
        oracle.kill(node)?;
        oracle.wait_until_others_stamp(node)?;
        killed.push(from.elapsed());
        oracle.restart(node)?;
        oracle.wait_until_all_stamp()?;
    }
    Ok((oracle, killed))
}

/// Waits until all remaining locks have expired, then reads every row, which resolves them.
fn conclude(bank: Bank, client: &mut Client) -> Result<Vec<Row>> {
    thread::sleep(LOCK_TTL);
    for _ in 0..CONCLUDE_ATTEMPTS_MAX {
        match bank.audit(client) {
            Ok(_) => {
                let rows = |store: &Mutex<Columns>| locked(store).rows().collect::<Vec<_>>();
                return Ok(client.shared.stores.iter().flat_map(rows).collect());
            }
            Err(WorldError::Unavailable(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(anyhow!("no timestamp for the last audit"))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Time that a request takes to a store at least, as on a fast network.
const STORE_DELAY: Duration = Duration::from_micros(50);
/// Mean time until a client is killed. In the middle of its life it sleeps once.
const CLIENT_LIFE: Duration = Duration::from_secs(6);
/// How long a client sleeps: longer than [`LOCK_TTL`].
const SLEEP: Duration = Duration::from_millis(600);
/// What states the bound of the nodes' clocks in interval mode: the operator's word. The nodes
/// share the clock of this machine, so all three tell the truth. But the timestamps of the third
/// node are 8 ms ahead of those of the first, as they would be if its clock were.
const SOURCES: [&str; 3] = ["fixed=1ms", "fixed=4ms", "fixed=9ms"];
/// Time from a killed leader's or node's return to the next kill.
const LEADER_LIFE: Duration = Duration::from_secs(2);
const CONCLUDE_ATTEMPTS_MAX: u32 = 5;
