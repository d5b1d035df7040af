//! The probe's loop against servers that stall, give wrong answers and hand over.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use epicepoch_bench::probe::Account;
use epicepoch_bench::run::monitor::Monitor;
use epicepoch_bench::run::{Arrivals, Pace, RunConfig, Target, Transport};
use epicepoch_wire::{Epoch, EpochIndex, Timestamp};

/// Nodes of an oracle; one leads, the others name it.
struct Oracle {
    addrs: Vec<SocketAddr>,
    leader: AtomicUsize,
    next: AtomicU64,
    /// No request is answered before this.
    stalled_until: Mutex<Instant>,
    /// Whether answers are far below earlier ones.
    lies: AtomicBool,
}

impl Oracle {
    fn start(nodes: usize) -> Arc<Self> {
        let bind = |_| TcpListener::bind("127.0.0.1:0").unwrap();
        let listeners: Vec<TcpListener> = (0..nodes).map(bind).collect();
        let oracle = Arc::new(Self {
            addrs: listeners.iter().map(|it| it.local_addr().unwrap()).collect(),
            leader: AtomicUsize::new(0),
            next: AtomicU64::new(1 << 20),
            stalled_until: Mutex::new(Instant::now()),
            lies: AtomicBool::new(false),
        });
        for (node, listener) in listeners.into_iter().enumerate() {
            let oracle = oracle.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    let oracle = oracle.clone();
                    std::thread::spawn(move || oracle.serve(node, stream));
                }
            });
        }
        oracle
    }

    fn serve(&self, node: usize, mut stream: TcpStream) {
        stream.set_nodelay(true).unwrap();
        let mut request = [0; 1024];
        while let Ok(1..) = stream.read(&mut request) {
            let until = *self.stalled_until.lock().unwrap();
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            if stream.write_all(&self.answer(node)).is_err() {
                return;
            }
        }
    }

    fn answer(&self, node: usize) -> Vec<u8> {
        let leader = self.leader.load(Ordering::SeqCst);
        if leader != node {
            let addr = self.addrs[leader];
            return format!(
                "HTTP/1.1 409 Conflict\r\nepicepoch-leader: {addr}\r\nepicepoch-error: NOT_LEADER\
                 \r\ncontent-length: 0\r\n\r\n"
            )
            .into();
        }
        let index = self.next.fetch_add(1, Ordering::SeqCst);
        let lies = self.lies.load(Ordering::SeqCst) && index.is_multiple_of(3);
        let index = EpochIndex(if lies { index - (1 << 20) } else { index });
        let mut answer = b"HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n".to_vec();
        answer.extend_from_slice(&Timestamp::new(Epoch(7), index).to_bytes());
        answer
    }

    /// Starts a monitor with a request timeout of 400 ms.
    fn watch(&self) -> Monitor {
        self.watch_for(Duration::from_millis(400))
    }

    fn watch_for(&self, request_timeout: Duration) -> Monitor {
        let target = |(id, addr): (u64, &SocketAddr)| Target::new(id, *addr);
        Monitor::start(RunConfig {
            transport: Transport::Http1 { pipeline: 1 },
            pace: Pace::Open { rate: 200.0, arrivals: Arrivals::Poisson },
            connections: 2,
            request_timeout,
            ..RunConfig::new((1..).zip(&self.addrs).map(target).collect())
        })
    }
}

/// Takes snapshots until a metric fulfils `wanted`.
fn until(monitor: &Monitor, account: &mut Account, name: &str, wanted: impl Fn(f64) -> bool) {
    until_text(monitor, account, name, |text| value(text, name).is_some_and(&wanted));
}

/// Takes snapshots until `wanted` holds for the metrics.
fn until_text(monitor: &Monitor, account: &mut Account, what: &str, wanted: impl Fn(&str) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        account.add(&monitor.snapshot());
        let text = account.render();
        if wanted(&text) {
            return;
        }
        assert!(Instant::now() < deadline, "{what} in\n{text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn value(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}

#[test]
fn a_probe_counts_on_and_ends_when_it_is_told_to() {
    let oracle = Oracle::start(1);
    // With this timeout no request fails, not even on a machine that stalls.
    let monitor = oracle.watch_for(Duration::from_secs(5));
    let mut account = Account::default();
    until(&monitor, &mut account, "epicepoch_probe_answers_total", |it| it >= 50.0);
    until(&monitor, &mut account, "epicepoch_probe_answers_checked_total", |it| it >= 40.0);
    until(&monitor, &mut account, "epicepoch_probe_answers_total", |it| it >= 100.0);
    until(&monitor, &mut account, "epicepoch_probe_leader", |it| (it - 1.0).abs() < 0.1);
    let before = Instant::now();
    account.add(&monitor.stop());
    assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
    assert_eq!(account.violations(), 0, "{}", account.summary());
    let text = account.render();
    assert!(!text.contains("failures_total{"), "{text}");
    // By then every received answer is checked.
    let value = |name: &str| value(&text, name).unwrap();
    let answers = value("epicepoch_probe_answers_total");
    assert!((value("epicepoch_probe_answers_checked_total") - answers).abs() < 0.5, "{text}");
}

#[test]
fn a_stall_shows_as_latency_and_as_silence_and_a_long_one_as_failures() {
    let oracle = Oracle::start(1);
    let (monitor, mut account) = (oracle.watch(), Account::default());
    until(&monitor, &mut account, "epicepoch_probe_answers_total", |it| it >= 20.0);
    *oracle.stalled_until.lock().unwrap() = Instant::now() + Duration::from_millis(300);
    until(&monitor, &mut account, "epicepoch_probe_gap_max_seconds", |it| it >= 0.25);
    // Once a delayed request is answered, fewer answers than all took below 0.2 s.
    let bucket = "epicepoch_probe_latency_seconds_bucket{le=\"0.2\"}";
    until_text(&monitor, &mut account, bucket, |text| {
        value(text, bucket).unwrap() < value(text, "epicepoch_probe_latency_seconds_count").unwrap()
    });

    *oracle.stalled_until.lock().unwrap() = Instant::now() + Duration::from_secs(1);
    let timeouts = "epicepoch_probe_failures_total{kind=\"timeout\"}";
    until(&monitor, &mut account, timeouts, |it| it >= 1.0);
    // The monitor goes on afterwards.
    until(&monitor, &mut account, "epicepoch_probe_silence_seconds", |it| it < 0.1);
    drop(monitor.stop());
}

#[test]
fn a_move_of_the_leader_is_followed_and_counted() {
    let oracle = Oracle::start(3);
    let (monitor, mut account) = (oracle.watch(), Account::default());
    until(&monitor, &mut account, "epicepoch_probe_leader", |it| (it - 1.0).abs() < 0.1);
    oracle.leader.store(2, Ordering::SeqCst);
    until(&monitor, &mut account, "epicepoch_probe_leader", |it| (it - 3.0).abs() < 0.1);
    until(&monitor, &mut account, "epicepoch_probe_leader_changes_total", |it| it >= 1.0);
    account.add(&monitor.stop());
    assert_eq!(account.violations(), 0, "{}", account.summary());
}

#[test]
fn a_server_that_lies_is_found_while_the_probe_goes_on() {
    let oracle = Oracle::start(1);
    let (monitor, mut account) = (oracle.watch(), Account::default());
    until(&monitor, &mut account, "epicepoch_probe_answers_checked_total", |it| it >= 20.0);
    assert_eq!(account.violations(), 0, "{}", account.summary());
    oracle.lies.store(true, Ordering::SeqCst);
    until(&monitor, &mut account, "epicepoch_probe_violations_total", |it| it >= 1.0);
    drop(monitor.stop());
}
