//! The knee of servers whose capacity is known.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use epicepoch_bench::knee::{self, First, Knee, KneeConfig};
use epicepoch_bench::run::{Arrivals, Pace, RunConfig, Target};
use epicepoch_wire::{Epoch, EpochIndex, Timestamp};

/// A service that answers `CAPACITY` requests per second, one after the other.
struct Server {
    next: AtomicU64,
    /// When it has answered everything that came.
    free_at: Mutex<Instant>,
    /// A request that would have to wait longer is refused at once.
    wait_max: Duration,
}

impl Server {
    fn start(wait_max: Duration) -> Target {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (next, free_at) = (AtomicU64::new(0), Mutex::new(Instant::now()));
        let server = Arc::new(Self { next, free_at, wait_max });
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let server = server.clone();
                std::thread::spawn(move || server.serve(stream));
            }
        });
        Target { id: 1, name: addr.to_string(), addr }
    }

    fn serve(&self, mut stream: TcpStream) {
        stream.set_nodelay(true).unwrap();
        let mut chunk = [0; 4096];
        // One request at a time on a connection, and each fits into one read.
        while let Ok(1..) = stream.read(&mut chunk) {
            let turn = {
                let mut free_at = self.free_at.lock().unwrap();
                let begins = (*free_at).max(Instant::now());
                let waits = begins.saturating_duration_since(Instant::now());
                (waits <= self.wait_max).then(|| {
                    *free_at = begins + Duration::from_secs(1) / CAPACITY;
                    *free_at
                })
            };
            let answer = if let Some(turn) = turn {
                std::thread::sleep(turn.saturating_duration_since(Instant::now()));
                let index = self.next.fetch_add(1, Ordering::SeqCst);
                let mut answer = b"HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n".to_vec();
                answer.extend(Timestamp::new(Epoch(7), EpochIndex(index)).to_bytes());
                answer
            } else {
                let head = "epicepoch-error: OVERLOADED\r\ncontent-length: 0";
                format!("HTTP/1.1 503 Service Unavailable\r\n{head}\r\n\r\n").into()
            };
            if stream.write_all(&answer).is_err() {
                return;
            }
        }
    }
}

fn config(target: Target) -> KneeConfig {
    KneeConfig {
        step: RunConfig {
            pace: Pace::Open { rate: 60.0, arrivals: Arrivals::Constant },
            connections: 64,
            warmup: Duration::from_millis(100),
            duration: Duration::from_millis(1500),
            // The order of answers of this server is that in which its threads wake up.
            verify: false,
            ..RunConfig::new(vec![target])
        },
        factor: 2.0,
        p99_max: Duration::from_millis(250),
        failures_max: 0.02,
    }
}

fn found(config: &KneeConfig) -> (Knee, String) {
    // One at a time: they would take each other's processors.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let knee = knee::find(config, |_| {});
    let table = knee::table(&knee);
    (knee, table)
}

#[test]
fn the_knee_of_a_known_capacity_is_found_and_the_service_recovers() {
    let (knee, table) = found(&config(Server::start(Duration::from_mins(1))));
    let (held, fell) = (knee.held.unwrap_or(0.0), knee.fell_at.unwrap_or(0.0));
    let capacity = f64::from(CAPACITY);
    // A little more than the capacity is held for as long as p99 stays below its bound.
    assert!((0.7 * capacity..1.3 * capacity).contains(&held), "{table}");
    assert!(held < fell && fell < 1.5 * capacity, "{table}");
    assert!(!matches!(knee.first, Some(First::Generator | First::Refusals)), "{table}");
    assert!(knee.recovery.as_ref().unwrap().recovered, "{table}");
    assert!(table.contains("recovered at"), "{table}");
}

#[test]
fn a_service_that_refuses_is_said_to_refuse() {
    let mut config = config(Server::start(Duration::from_millis(60)));
    // Long enough that a little too much fills the queue.
    config.step.duration = Duration::from_millis(2500);
    config.failures_max = 0.01;
    let (knee, table) = found(&config);
    let capacity = f64::from(CAPACITY);
    let held = knee.held.unwrap_or(0.0);
    assert!((0.6 * capacity..1.3 * capacity).contains(&held), "{table}");
    assert_eq!(knee.first, Some(First::Refusals), "{table}");
    let fallen = knee.steps.iter().find(|step| step.fell.is_some()).unwrap();
    assert!(fallen.failures["OVERLOADED"] > 0, "{table}");
    assert!(knee.recovery.as_ref().unwrap().recovered, "{table}");
}

#[test]
fn a_generator_that_gives_first_is_named_and_the_service_is_not_blamed() {
    let mut config = config(Server::start(Duration::from_mins(1)));
    // 100 requests per second at most, of a service that takes more.
    config.step.planted_delay = Duration::from_millis(10);
    let (knee, table) = found(&config);
    assert_eq!(knee.first, Some(First::Generator), "{table}");
    assert!(knee.held.is_none_or(|held| held < f64::from(CAPACITY) / 2.0), "{table}");
    assert!(table.contains("the generator"), "{table}");
}

static ALONE: Mutex<()> = Mutex::new(());
/// Requests per second.
const CAPACITY: u32 = 400;
