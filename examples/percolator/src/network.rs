//! A [`World`] of real processes. It asks stores over TCP and the oracle through its client, and
//! writes records to a file.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use epicepoch_client::{Options, Timestamp, TimestampsError, blocking};

use crate::bank::Bank;
use crate::history::Line;
use crate::plant::Plant;
use crate::protocol::{Reply, Request, Row};
use crate::world::{World, WorldError};

/// Settings of a client process.
#[derive(Clone, Debug)]
pub struct Work {
    pub name: String,
    /// Addresses of all stores, in the same order for all clients.
    pub stores: Vec<String>,
    pub oracle: Vec<String>,
    /// Number of threads. Each runs one transaction at a time.
    pub threads: usize,
    pub bank: Bank,
    pub seed: u64,
    pub plant: Option<Plant>,
}

/// The world of one thread. Each thread has its own connections to the stores. Threads share the
/// oracle's client, which merges their calls.
#[derive(Debug)]
pub struct Network {
    name: String,
    stores: Vec<BufReader<TcpStream>>,
    oracle: blocking::Client,
    log: Arc<Mutex<File>>,
    plant: Option<Plant>,
    rng: fastrand::Rng,
}

impl Network {
    /// The worlds of all threads.
    pub fn worlds(work: &Work, log: File) -> Result<Vec<Self>> {
        let oracle = blocking::Client::new(work.oracle.clone(), Options::default())?;
        let log = Arc::new(Mutex::new(log));
        (0..work.threads)
            .map(|thread| {
                let stores: Result<Vec<_>> = work.stores.iter().map(|addr| connect(addr)).collect();
                Ok(Self {
                    name: format!("{}.{thread}", work.name),
                    stores: stores?,
                    oracle: oracle.clone(),
                    log: log.clone(),
                    plant: work.plant,
                    rng: fastrand::Rng::with_seed(work.seed ^ thread as u64),
                })
            })
            .collect()
    }

    /// All rows of all stores.
    pub fn dump(&mut self) -> Result<Vec<Row>, WorldError> {
        let mut rows = Vec::new();
        for at in 0..self.stores.len() {
            let mut after = String::new();
            loop {
                match self.exchange(at, &Request::Dump { after: after.clone() })? {
                    Reply::Row(row) => {
                        after.clone_from(&row.row);
                        rows.push(row);
                    }
                    Reply::End => break,
                    other => return Err(WorldError::unexpected(&other)),
                }
            }
        }
        Ok(rows)
    }

    fn exchange(&mut self, store: usize, request: &Request) -> Result<Reply, WorldError> {
        let exchange = |lines: &mut BufReader<TcpStream>| -> Result<Reply> {
            let mut line = serde_json::to_string(request)?;
            line.push('\n');
            lines.get_mut().write_all(line.as_bytes())?;
            line.clear();
            lines.read_line(&mut line)?;
            Ok(serde_json::from_str(&line)?)
        };
        exchange(&mut self.stores[store])
            .map_err(|error| WorldError::Fatal(format!("store {store}: {error:#}")))
    }
}

impl World for Network {
    fn name(&self) -> &str {
        &self.name
    }

    fn call(&mut self, request: Request) -> Result<Reply, WorldError> {
        self.exchange(request.store(self.stores.len()), &request)
    }

    fn timestamp(&mut self) -> Result<Timestamp, WorldError> {
        self.oracle.timestamp().map_err(|error| match error {
            TimestampsError::DeadlineExceeded { .. } | TimestampsError::TooManyCalls => {
                WorldError::Unavailable(error.to_string())
            }
            // No retry cures these errors, and an oracle must never cause some of them. So the
            // client stops.
            _ => WorldError::Fatal(error.to_string()),
        })
    }

    fn pause(&mut self, about: Duration) -> Result<(), WorldError> {
        thread::sleep(about.mul_f64(self.rng.f64() + 0.5));
        Ok(())
    }

    fn record(&mut self, line: &Line) -> Result<(), WorldError> {
        let written = || -> Result<()> {
            let mut text = serde_json::to_vec(line)?;
            text.push(b'\n');
            // Write the whole line at once. So a kill leaves complete lines.
            Ok(self.log.lock().unwrap_or_else(PoisonError::into_inner).write_all(&text)?)
        };
        written().map_err(|error| WorldError::Fatal(format!("history: {error:#}")))
    }

    fn plant(&self) -> Option<Plant> {
        self.plant
    }
}

/// Runs transactions until `stop` is set.
pub fn run_client(work: &Work, log: File, stop: &AtomicBool) -> Result<()> {
    let worlds = Network::worlds(work, log)?;
    thread::scope(|scope| {
        let threads: Vec<_> =
            worlds.into_iter().map(|world| scope.spawn(|| run_thread(work, world, stop))).collect();
        let ends: Vec<_> = threads.into_iter().map(thread::ScopedJoinHandle::join).collect();
        ends.into_iter().try_for_each(|end| end.map_err(|_| anyhow!("a thread panicked"))?)
    })
}

fn run_thread(work: &Work, mut world: Network, stop: &AtomicBool) -> Result<()> {
    let mut rng = fastrand::Rng::with_seed(world.rng.u64(..));
    while !stop.load(Ordering::Relaxed) {
        match work.bank.work(&mut world, &mut rng) {
            Ok(_) => {}
            Err(WorldError::Unavailable(why)) => world.record(&Line::NoTimestamp { why })?,
            Err(error) => {
                stop.store(true, Ordering::Relaxed);
                return Err(error).context(world.name);
            }
        }
    }
    Ok(())
}

fn connect(addr: &str) -> Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(addr).with_context(|| format!("store {addr}"))?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}
