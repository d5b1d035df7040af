//! The generator against servers that stall, give wrong answers, or are slower than it.

mod undisturbed;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use epicepoch_bench::latency::{self, quantile};
use epicepoch_bench::record::{self, Program};
use epicepoch_bench::run::{self, Bottleneck, Measurement, Pace, RunConfig, Target, Transport};
use epicepoch_bench::{run::Arrivals, text};
use epicepoch_wire::{Epoch, EpochIndex, Timestamp};

use undisturbed::undisturbed;

/// One node of an oracle for tests.
struct Server {
    next: AtomicU64,
    /// No request is answered before this.
    stalled_until: Mutex<Instant>,
    /// Repeats every hundredth timestamp.
    repeats: AtomicBool,
    /// The leader's address, if it is another node.
    leader: Option<String>,
}

impl Server {
    fn start(leader: Option<String>) -> (Arc<Self>, Target) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let server = Arc::new(Self {
            next: AtomicU64::new(0),
            stalled_until: Mutex::new(Instant::now()),
            repeats: AtomicBool::new(false),
            leader,
        });
        let serving = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let server = serving.clone();
                std::thread::spawn(move || server.serve(stream));
            }
        });
        (server, Target::new(u64::from(addr.port()), addr))
    }

    fn serve(&self, mut stream: TcpStream) {
        stream.set_nodelay(true).unwrap();
        let mut buffer = Vec::new();
        let mut chunk = [0; 16 * 1024];
        while let Ok(len @ 1..) = stream.read(&mut chunk) {
            buffer.extend_from_slice(&chunk[..len]);
            if !buffer.ends_with(b"\r\n\r\n") {
                continue;
            }
            if buffer.starts_with(b"GET /metrics ") {
                // This server has no metrics. If the write fails, the next read finds the closed
                // connection.
                let _gone =
                    stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
                return;
            }
            let ends = buffer.windows(4).filter(|four| four == b"\r\n\r\n").count();
            buffer.clear();
            let stalled_until = *self.stalled_until.lock().unwrap();
            std::thread::sleep(stalled_until.saturating_duration_since(Instant::now()));
            let answers: Vec<u8> = (0..ends).flat_map(|_| self.answer()).collect();
            if stream.write_all(&answers).is_err() {
                return;
            }
        }
    }

    fn answer(&self) -> Vec<u8> {
        if let Some(leader) = &self.leader {
            let head = format!("epicepoch-leader: {leader}\r\nepicepoch-error: NOT_LEADER");
            return format!("HTTP/1.1 409 Conflict\r\n{head}\r\ncontent-length: 0\r\n\r\n").into();
        }
        let mut index = self.next.fetch_add(1, Ordering::SeqCst);
        if self.repeats.load(Ordering::Relaxed) && index.is_multiple_of(100) {
            index = index.saturating_sub(1);
        }
        let body = Timestamp::new(Epoch(7), EpochIndex(index)).to_bytes();
        let mut answer = b"HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n".to_vec();
        answer.extend_from_slice(&body);
        answer
    }
}

fn config(target: &Target) -> RunConfig {
    RunConfig {
        connections: 4,
        warmup: Duration::from_millis(100),
        duration: Duration::from_secs(2),
        interval: Duration::from_millis(250),
        ..RunConfig::new(vec![target.clone()])
    }
}

fn open(rate: f64) -> Pace {
    Pace::Open { rate, arrivals: Arrivals::Constant }
}

/// A run during which the server stalls for 200 ms in the middle.
fn with_a_stall(pace: Pace) -> Measurement {
    let (server, target) = Server::start(None);
    let stall = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        *server.stalled_until.lock().unwrap() = Instant::now() + Duration::from_millis(200);
    });
    let measured = run::run(RunConfig { pace, ..config(&target) }, |_, _| {});
    stall.join().unwrap();
    measured
}

#[test]
fn a_stall_of_200_ms_shows_in_the_open_loop_and_hides_in_the_closed_one() {
    let stall = Duration::from_millis(200);
    let open = undisturbed(|| with_a_stall(open(1000.0)));
    let p999 = quantile(&open.counts.latency_ns, 0.999);
    assert!(p999 > stall.mul_f64(0.9), "{}", open.to_string());
    // 200 of 2000 requests were due during the stall, so p95 is in the middle of them.
    let p95 = quantile(&open.counts.latency_ns, 0.95);
    assert!(p95 > stall.mul_f64(0.3), "{}", open.to_string());
    assert!(open.gap_max > stall.mul_f64(0.9), "{:?}", open.gap_max);
    assert_eq!(open.counts.answers, 2000);
    // Every connection was in use, so the generator was not late.
    let bottleneck = open.generator.bottleneck;
    assert!(!matches!(bottleneck, Some(Bottleneck::Late { .. })), "{bottleneck:?}");
    // The worst latency, and the delayed answers, are in the interval in which the stall ended.
    let worst = open.intervals.iter().max_by_key(|it| it.latency.max_ns).unwrap();
    assert_eq!(worst.latency.max_ns, open.counts.latency_ns.max());
    let others = open.intervals.iter().filter(|it| it.number != worst.number);
    let others = others.map(|it| it.latency.answers).min();
    assert!(others < Some(worst.latency.answers), "{:?}", open.intervals);

    let closed = with_a_stall(Pace::Closed);
    let table = closed.to_string();
    // Only four of many thousand requests were open during the stall.
    assert!(quantile(&closed.counts.latency_ns, 0.999) < stall / 2, "{table}");
    assert!(Duration::from_nanos(closed.counts.latency_ns.max()) > stall.mul_f64(0.9), "{table}");
}

#[test]
fn a_generator_that_is_too_slow_is_reported_and_gives_no_verdict() {
    let (_server, target) = Server::start(None);
    let slow = RunConfig {
        pace: open(2000.0),
        planted_delay: Duration::from_millis(2),
        request_timeout: Duration::from_millis(500),
        duration: Duration::from_secs(1),
        ..config(&target)
    };
    let measured = run::run(slow, |_, _| {});
    assert!(matches!(measured.generator.bottleneck, Some(Bottleneck::Overrun { .. })));
    assert!(measured.counts.unsent > 0);
    let report = record::Run::new(&measured, None, Program::default());
    let table = text::run_table(&report);
    assert!(table.contains("THE GENERATOR WAS THE BOTTLENECK"), "{table}");
    assert!(report.generator.bottleneck.is_some());
}

#[test]
fn a_closed_loop_whose_generator_never_waits_is_reported() {
    let (_server, target) = Server::start(None);
    let planted_delay = Duration::from_millis(2);
    let duration = Duration::from_secs(1);
    let slow = RunConfig { planted_delay, duration, ..config(&target) };
    let measured = run::run(slow, |_, _| {});
    let bottleneck = measured.generator.bottleneck;
    assert!(matches!(bottleneck, Some(Bottleneck::Saturated { .. })), "{bottleneck:?}");
}

#[test]
fn every_request_that_was_due_is_accounted_for() {
    for (arrivals, threads) in [(Arrivals::Constant, 2), (Arrivals::Poisson, 1)] {
        let (server, target) = Server::start(None);
        let measured = run::run(
            RunConfig {
                pace: Pace::Open { rate: 2000.0, arrivals },
                threads,
                duration: Duration::from_secs(1),
                ..config(&target)
            },
            |_, _| {},
        );
        let counts = &measured.counts;
        let due = counts.lateness_ns.len() + counts.backlogged + counts.unsent;
        assert_eq!(due, counts.answers + counts.failed());
        assert_eq!(counts.latency_ns.len(), counts.answers);
        let mut time_series = latency::histogram();
        measured.intervals.iter().for_each(|it| time_series.add(it.latency.unpack()).unwrap());
        assert_eq!(time_series, counts.latency_ns);
        assert!(measured.intervals.len() >= 4);
        assert!((1800..=2200).contains(&due), "{due}");
        let checked = measured.checked.as_ref().expect("on by default");
        checked.verdict.assert_clean();
        // The warm-up is checked too.
        let given = server.next.load(Ordering::SeqCst);
        assert_eq!(checked.verdict.totals.answered + counts.unverified, given);
    }
}

#[test]
fn the_leader_is_followed_and_the_way_there_counts() {
    let (_server, leader) = Server::start(None);
    let (_follower, other) = Server::start(Some(leader.name.clone()));
    for transport in [Transport::Http1 { pipeline: 1 }, Transport::Http1 { pipeline: 16 }] {
        let config = RunConfig {
            targets: vec![other.clone(), leader.clone()],
            transport,
            warmup: Duration::ZERO,
            duration: Duration::from_millis(500),
            ..config(&leader)
        };
        let measured = run::run(config, |_, _| {});
        let table = measured.to_string();
        assert_eq!(measured.counts.failed(), 0, "{table}");
        assert!(measured.counts.redirects > 0, "{table}");
        assert_eq!(measured.counts.answers_by_node.keys().collect::<Vec<_>>(), [&leader.id]);
    }
}

#[test]
fn a_timestamp_given_twice_under_load_is_found() {
    let (server, target) = Server::start(None);
    server.repeats.store(true, Ordering::Relaxed);
    let duration = Duration::from_millis(300);
    let measured = run::run(RunConfig { duration, ..config(&target) }, |_, _| {});
    let checked = measured.checked.expect("on by default");
    assert!(checked.verdict.violation_count > 0, "{}", checked.verdict);
}

#[test]
fn a_server_that_is_not_there_costs_failures_and_no_verdict_in_its_favour() {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let target = Target::new(1, unused);
    let measured = run::run(
        RunConfig {
            pace: open(100.0),
            duration: Duration::from_millis(300),
            request_timeout: Duration::from_millis(200),
            ..config(&target)
        },
        |_, _| {},
    );
    assert_eq!((measured.counts.answers, measured.counts.unsent), (0, 30));
    assert!(measured.counts.failures["connect"] > 0);
    assert!(measured.gap_max >= Duration::from_millis(300), "{:?}", measured.gap_max);
}

#[test]
fn the_report_parses_and_agrees_with_the_histogram() {
    let (_server, target) = Server::start(None);
    let config = RunConfig {
        pids: vec![std::process::id()],
        duration: Duration::from_millis(500),
        ..config(&target)
    };
    let measured = run::run(config, |_, _| {});
    let latencies = &measured.counts.latency_ns;
    let report = record::Run::new(&measured, Some(latencies), Program::default());
    assert_eq!(record::Run::parse(&report.to_json()).unwrap(), report);
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json["answers"], measured.counts.answers);
    assert_eq!(json["latency_ns"]["p99.9"], latencies.value_at_quantile(0.999));
    assert_eq!(json["verify"]["violations"], 0);
    assert!(json["server_cpu"][0]["cpu_ns"].is_u64());
}
