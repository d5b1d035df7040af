//! The world of real processes: stores over TCP, the oracle through its client, history in a file.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow};
use epicepoch_client::{Options, Timestamp, TimestampsError, blocking};

use crate::bank::Bank;
use crate::history::Line;
use crate::plant::{Falsifier, Plant, Purpose};
use crate::protocol::{Reply, Request, Row};
use crate::world::{Setback, World};

/// How a client process works.
#[derive(Clone, Debug)]
pub struct Work {
    /// Of its transactions in the history.
    pub name: String,
    /// Addresses of all stores, in the order that every client knows.
    pub stores: Vec<String>,
    /// Client addresses of the oracle's nodes.
    pub oracle: Vec<String>,
    /// How many transactions at once.
    pub threads: usize,
    /// What rows there are.
    pub bank: Bank,
    /// Of what is drawn.
    pub seed: u64,
    /// A mistake to make.
    pub plant: Option<Plant>,
}

/// One thread's world. Each has connections of its own to the stores; the oracle's client is
/// shared, so that threads that ask at the same time ask once.
#[derive(Debug)]
pub struct Network {
    name: String,
    stores: Vec<BufReader<TcpStream>>,
    oracle: blocking::Client,
    log: Arc<Mutex<File>>,
    falsifier: Arc<Mutex<Falsifier>>,
    plant: Option<Plant>,
    rng: fastrand::Rng,
}

impl Network {
    /// The worlds of all threads.
    ///
    /// # Errors
    /// A store cannot be reached, or an address is none.
    pub fn worlds(work: &Work, log: File) -> Result<Vec<Self>> {
        let oracle = blocking::Client::new(work.oracle.clone(), Options::default())?;
        let log = Arc::new(Mutex::new(log));
        let falsifier = Arc::new(Mutex::new(Falsifier::new(work.plant)));
        (0..work.threads)
            .map(|thread| {
                let stores: Result<Vec<_>> = work.stores.iter().map(|addr| connect(addr)).collect();
                Ok(Self {
                    name: format!("{}.{thread}", work.name),
                    stores: stores?,
                    oracle: oracle.clone(),
                    log: log.clone(),
                    falsifier: falsifier.clone(),
                    plant: work.plant,
                    rng: fastrand::Rng::with_seed(work.seed ^ thread as u64),
                })
            })
            .collect()
    }

    /// Everything in all stores.
    ///
    /// # Errors
    /// See [`Setback`].
    pub fn dump(&mut self) -> Result<Vec<Row>, Setback> {
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
                    other => return Err(Setback::unexpected(&other)),
                }
            }
        }
        Ok(rows)
    }

    fn exchange(&mut self, store: usize, request: &Request) -> Result<Reply, Setback> {
        let exchange = |lines: &mut BufReader<TcpStream>| -> Result<Reply> {
            let mut line = serde_json::to_string(request)?;
            line.push('\n');
            lines.get_mut().write_all(line.as_bytes())?;
            line.clear();
            lines.read_line(&mut line)?;
            Ok(serde_json::from_str(&line)?)
        };
        exchange(&mut self.stores[store])
            .map_err(|error| Setback::Fatal(format!("store {store}: {error:#}")))
    }
}

impl World for Network {
    fn name(&self) -> &str {
        &self.name
    }

    fn call(&mut self, request: Request) -> Result<Reply, Setback> {
        self.exchange(request.store(self.stores.len()), &request)
    }

    fn timestamp(&mut self, purpose: Purpose) -> Result<Timestamp, Setback> {
        let fetch = || {
            self.oracle.timestamp().map_err(|error| match error {
                TimestampsError::DeadlineExceeded { .. } | TimestampsError::TooManyCalls => {
                    Setback::Unavailable(error.to_string())
                }
                // Among them those that the oracle must never give cause for.
                _ => Setback::Fatal(error.to_string()),
            })
        };
        if self.plant.is_none() {
            return fetch();
        }
        let mut falsifier = self.falsifier.lock().unwrap_or_else(PoisonError::into_inner);
        falsifier.timestamp(purpose, fetch)
    }

    fn pause(&mut self, about: Duration) -> Result<(), Setback> {
        thread::sleep(about.mul_f64(self.rng.f64() + 0.5));
        Ok(())
    }

    fn record(&mut self, line: &Line) -> Result<(), Setback> {
        let written = || -> Result<()> {
            let mut text = serde_json::to_vec(line)?;
            text.push(b'\n');
            // One write, so that a kill leaves whole lines.
            Ok(self.log.lock().unwrap_or_else(PoisonError::into_inner).write_all(&text)?)
        };
        written().map_err(|error| Setback::Fatal(format!("history: {error:#}")))
    }

    fn now(&self) -> Duration {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
    }

    fn plant(&self) -> Option<Plant> {
        self.plant
    }
}

/// Runs transactions until `stop`, in as many threads as the work says.
///
/// # Errors
/// The first thing that went wrong and is no retry's business.
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
            Err(Setback::Unavailable(why)) => world.record(&Line::NoTimestamp { why })?,
            Err(setback) => {
                stop.store(true, Ordering::Relaxed);
                return Err(setback).context(world.name);
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
