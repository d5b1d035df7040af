//! The knee of servers of known capacity. They count requests, not time, so that the result does
//! not depend on the load of this machine.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use epicepoch_bench::floor::Floor;
use epicepoch_bench::knee::{self, First, Knee, KneeConfig};
use epicepoch_bench::run::{Arrivals, Pace, RunConfig, Target};
use epicepoch_wire::{Epoch, EpochIndex, Timestamp};

/// What a server does beyond its capacity.
#[derive(Clone, Copy)]
enum Beyond {
    Refuses,
    /// Answers after [`STALL`].
    Stalls,
}

/// A service that takes [`CAPACITY`] requests per second, counted over a whole step.
struct Server {
    next: AtomicU64,
    /// Requests left in this step.
    left: AtomicI64,
    beyond: Beyond,
}

impl Server {
    fn start(beyond: Beyond) -> (Arc<Self>, Target) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let server = Self { next: AtomicU64::new(0), left: AtomicI64::new(0), beyond };
        server.begin_step();
        let server = Arc::new(server);
        let serving = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let server = serving.clone();
                std::thread::spawn(move || server.serve(stream));
            }
        });
        (server, Target::new(1, addr))
    }

    fn begin_step(&self) {
        let taken = f64::from(CAPACITY) * (WARMUP + DURATION).as_secs_f64();
        self.left.store(taken as i64, Ordering::SeqCst);
    }

    fn serve(&self, mut stream: TcpStream) {
        stream.set_nodelay(true).unwrap();
        let mut chunk = [0; 4096];
        // Each connection has one request at a time, which comes in one read.
        while let Ok(len @ 1..) = stream.read(&mut chunk) {
            let answer = if !chunk[..len].starts_with(b"GET /timestamp") {
                b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec()
            } else if self.left.fetch_sub(1, Ordering::SeqCst) > 0 {
                self.timestamp()
            } else {
                match self.beyond {
                    Beyond::Refuses => b"HTTP/1.1 503 Service Unavailable\r\n\
                        epicepoch-error: OVERLOADED\r\ncontent-length: 0\r\n\r\n"
                        .to_vec(),
                    Beyond::Stalls => {
                        std::thread::sleep(STALL);
                        self.timestamp()
                    }
                }
            };
            if stream.write_all(&answer).is_err() {
                return;
            }
        }
    }

    fn timestamp(&self) -> Vec<u8> {
        let index = self.next.fetch_add(1, Ordering::SeqCst);
        let mut answer = b"HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n".to_vec();
        answer.extend(Timestamp::new(Epoch(7), EpochIndex(index)).to_bytes());
        answer
    }
}

fn found(beyond: Beyond, change: impl Fn(&mut KneeConfig)) -> (Knee, String) {
    // Only one test runs at a time, because they would compete for processors.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (server, target) = Server::start(beyond);
    let mut config = KneeConfig {
        step: RunConfig {
            pace: Pace::Open { rate: 60.0, arrivals: Arrivals::Constant },
            // So many connections that one is free for each request of a step.
            connections: 256,
            warmup: WARMUP,
            duration: DURATION,
            // The answers of this server come in the order in which its threads wake, so they are
            // not checked.
            verify: false,
            ..RunConfig::new(vec![target])
        },
        factor: 2.0,
        p99_max: STALL.mul_f64(0.8),
        failures_max: 0.02,
        floor: None,
    };
    change(&mut config);
    let knee = knee::find(&config, |_| server.begin_step());
    let table = knee::table(&knee);
    (knee, table)
}

/// Whether the capacity lies in the knee.
fn assert_found(knee: &Knee, table: &str) {
    let capacity = f64::from(CAPACITY);
    let (held, fell) = (knee.held.unwrap_or(0.0), knee.fell_at.unwrap_or(0.0));
    assert!((0.8 * capacity..1.05 * capacity).contains(&held), "{table}");
    assert!(held < fell && fell < 1.15 * capacity, "{table}");
    assert!(knee.recovery.as_ref().unwrap().recovered, "{table}");
    assert!(table.contains("recovered at"), "{table}");
}

#[test]
fn the_knee_of_a_known_capacity_is_found_and_the_service_recovers() {
    let (knee, table) = found(Beyond::Stalls, |_| {});
    assert_found(&knee, &table);
    assert!(!matches!(knee.first, Some(First::Generator | First::Refusals)), "{table}");
}

#[test]
fn what_was_held_stands_beside_the_floor() {
    let floor = Floor::measure(&std::env::temp_dir(), Duration::from_millis(10)).unwrap();
    let (rate, echo) = (floor.rate_plain, floor.echo_sleeping_ns.value_at_quantile(0.5) as f64);
    let (knee, table) = found(Beyond::Stalls, |config| config.floor = Some(floor.clone()));
    let share = knee.held.unwrap() / rate;
    assert!(
        table.contains(&format!("held           {share:.3} of the {rate:.0} echoes")),
        "{table}"
    );
    let p99 = knee.steps[0].p99_ns as f64;
    assert!(table.contains(&format!(" {:.1} ", p99 / echo)), "{table}");
    assert!(serde_json::to_value(&knee).unwrap()["floor"]["echo_rate_plain"].is_number());
}

#[test]
fn a_service_that_refuses_is_said_to_refuse() {
    // Only refusals matter here, so answers may be late.
    let (knee, table) = found(Beyond::Refuses, |config| config.p99_max = Duration::from_mins(1));
    assert_found(&knee, &table);
    assert_eq!(knee.first, Some(First::Refusals), "{table}");
    let fallen = knee.steps.iter().find(|step| step.fell.is_some()).unwrap();
    assert!(fallen.failures["OVERLOADED"] > 0, "{table}");
}

#[test]
fn a_generator_that_gives_first_is_named_and_the_service_is_not_blamed() {
    let (knee, table) = found(Beyond::Refuses, |config| {
        // The planted delay limits the generator to 50 requests per second; the service takes more.
        config.step.planted_delay = Duration::from_millis(20);
        config.step.connections = 8;
    });
    assert_eq!(knee.first, Some(First::Generator), "{table}");
    assert!(knee.held.is_none_or(|held| held < f64::from(CAPACITY) / 2.0), "{table}");
    assert!(table.contains("the generator"), "{table}");
}

#[test]
fn what_a_server_did_before_the_step_counted_is_no_evidence() {
    let warmup = Duration::from_millis(1500);
    let child = RefCell::new(None);
    let (knee, table) = found(Beyond::Refuses, |config| {
        config.step.pace = Pace::Open { rate: 20.0, arrivals: Arrivals::Constant };
        (config.step.warmup, config.step.connections) = (warmup, 4);
        // Every step fails, so that there are as few steps as possible.
        config.p99_max = Duration::ZERO;
        let spinning = warmup.mul_f64(0.8).as_millis().to_string();
        let mut other = Command::new(std::env::current_exe().unwrap());
        other.args(["--exact", "a_process_that_is_busy_for_a_while"]).stdout(Stdio::null());
        let started = other.env(SPINNING_MS, spinning).spawn().unwrap();
        config.step.pids = vec![started.id()];
        child.replace(Some(started));
    });
    let mut child = child.into_inner().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    // More than half of the whole step, and nothing of its counted part.
    let busy = knee.steps[0].evidence.server_busy;
    assert!(busy.is_some_and(|busy| busy < 0.4), "{busy:?} {table}");
}

/// Not a test: the test above starts it in another process.
#[test]
fn a_process_that_is_busy_for_a_while() {
    let Ok(spinning) = std::env::var(SPINNING_MS) else { return };
    let until = Instant::now() + Duration::from_millis(spinning.parse().unwrap());
    while Instant::now() < until {
        std::hint::spin_loop();
    }
    // The test kills it.
    std::thread::sleep(Duration::from_mins(1));
}

/// How long the other process is busy.
const SPINNING_MS: &str = "EPICEPOCH_TEST_SPINNING_MS";
static ALONE: Mutex<()> = Mutex::new(());
/// Capacity of the server, requests per second.
const CAPACITY: u32 = 400;
/// Warm-up of each step. Connections are opened in it.
const WARMUP: Duration = Duration::from_millis(100);
/// Duration of each step.
const DURATION: Duration = Duration::from_millis(500);
/// Delay of an answer beyond the capacity: longer than a machine that runs tests stalls twice in a
/// row.
const STALL: Duration = Duration::from_secs(1);
