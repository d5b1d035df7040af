//! The driver of the simplest client, which tests the suite itself. The client fulfils the whole
//! contract. With `--plant NAME` it breaks one clause.

mod client;
mod connection;
mod known;
mod plant;

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use epicepoch_conformance::Refusal;
use epicepoch_conformance::protocol::{Command, Reply};
use epicepoch_wire::TimestampRange;

use client::Client;
use known::Known;
use plant::Plant;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let plant = match arguments.as_slice() {
        [] => Plant::None,
        [flag, name] if flag == "--plant" => Plant::named(name).expect("a plant of that name"),
        other => panic!("allowed is --plant NAME, not {other:?}"),
    };
    let origin = Instant::now();
    let mut driver = Driver { origin, plant, client: None, calls: Arc::default() };
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        driver.carry_out(serde_json::from_str(&line).expect("a command"));
    }
}

struct Driver {
    origin: Instant,
    plant: Plant,
    client: Option<Arc<Client>>,
    calls: Arc<Mutex<HashMap<u64, Arc<AtomicBool>>>>,
}

impl Driver {
    fn carry_out(&mut self, command: Command) {
        let origin = self.origin;
        let start = reading(origin);
        match command {
            Command::Open { id, addrs, attempt_ms, refresh_ms, cluster, hedge_ms, .. } => {
                let attempt = Duration::from_millis(attempt_ms);
                let refresh = Duration::from_millis(refresh_ms);
                let hedge = hedge_ms.map(Duration::from_millis);
                let known = Known::new(addrs, cluster, attempt, hedge, self.plant);
                self.client = Some(Client::open(known, refresh, self.plant));
                reply(id, start, origin, None);
            }
            Command::Timestamps { id, count, timeout_ms } => {
                let client = self.client.clone().expect("a client is opened first");
                let (given_up, calls) = (Arc::new(AtomicBool::new(false)), self.calls.clone());
                held(&calls).insert(id, given_up.clone());
                std::thread::spawn(move || {
                    let start = reading(origin);
                    let deadline = Instant::now() + Duration::from_millis(timeout_ms);
                    let outcome = client.timestamps(count, deadline, &given_up);
                    reply(id, start, origin, Some(outcome));
                    held(&calls).remove(&id);
                });
            }
            Command::Cancel { id, call } => {
                if let Some(call) = held(&self.calls).get(&call) {
                    call.store(true, Ordering::SeqCst);
                }
                reply(id, start, origin, None);
            }
            Command::Clock { id } => reply(id, start, origin, None),
            Command::Close { id } => {
                self.client.as_ref().expect("a client is opened first").close();
                reply(id, start, origin, None);
            }
        }
    }
}

fn held<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn reading(origin: Instant) -> u64 {
    origin.elapsed().as_nanos() as u64
}

fn reply(id: u64, start: u64, origin: Instant, outcome: Option<Result<TimestampRange, Refusal>>) {
    let mut reply = Reply { id, start, end: reading(origin), ..Reply::default() };
    match outcome {
        Some(Ok(range)) => {
            reply.first = Some(range.first().to_string());
            reply.count = Some(range.count());
        }
        Some(Err(Refusal { fault, text })) => {
            (reply.error, reply.text) = (Some(fault), Some(text));
        }
        None => {}
    }
    let mut line = serde_json::to_vec(&reply).expect("a reply is JSON");
    line.push(b'\n');
    let mut output = std::io::stdout().lock();
    // The process that reads the output may have ended.
    let _ = output.write_all(&line).and_then(|()| output.flush());
}
