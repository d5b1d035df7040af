//! The load generator and the checker against a wrong oracle: every planted bug must be found, and
//! the correct oracle must pass.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use epicepoch_bench::run::load::{Load, Report};
use epicepoch_bench::run::{Measurement, Routing, RunConfig, Target, Transport, failure, run};
use epicepoch_bench::{History, Violation};
use epicepoch_wire::{Epoch, EpochIndex, Timestamp, TimestampRange};

/// The oracle's bug.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// A new leader starts below the last timestamp of the previous one.
    NewLeaderRepeats,
    /// A deposed leader goes on answering from its own block, far from the others' blocks.
    DeposedAnswers,
    /// Every node, leader or not, answers from its own block: unique, but not in order.
    BlockPerNode,
    /// An index inside a list is left out.
    HoleInBatch,
    /// An answer is sometimes repeated to the next request.
    AnswerTwice,
}

struct Oracle {
    bug: Bug,
    leader: usize,
    addrs: Vec<SocketAddr>,
    next: u64,
    /// The position of each node's own block, for bugs that have one.
    blocks: Vec<u64>,
    was_leader: Vec<bool>,
    answers: u64,
    remembered: Option<TimestampRange>,
}

impl Oracle {
    fn range(&mut self, count: u64) -> TimestampRange {
        self.answers += 1;
        if self.bug == Bug::AnswerTwice
            && self.answers.is_multiple_of(100)
            && let Some(remembered) = self.remembered
        {
            return remembered;
        }
        let range = self.take(count);
        self.remembered = Some(range);
        range
    }

    fn take(&mut self, count: u64) -> TimestampRange {
        let first = Timestamp::new(Epoch(7), EpochIndex(self.next));
        self.next += count;
        TimestampRange::new(first, count).unwrap()
    }

    fn own_block(&mut self, node: usize, count: u64) -> TimestampRange {
        let first = Timestamp::new(Epoch(7), EpochIndex(self.blocks[node]));
        self.blocks[node] += count;
        TimestampRange::new(first, count).unwrap()
    }

    /// Returns the timestamps, or the leader's address as an error.
    fn answer(&mut self, node: usize, count: u64) -> Result<TimestampRange, SocketAddr> {
        let deposed = self.was_leader[node] && node != self.leader;
        match self.bug {
            Bug::BlockPerNode => Ok(self.own_block(node, count)),
            Bug::DeposedAnswers if deposed => Ok(self.own_block(node, count)),
            _ if node == self.leader => Ok(self.range(count)),
            _ => Err(self.addrs[self.leader]),
        }
    }

    fn move_leader(&mut self) {
        self.leader = (self.leader + 1) % self.addrs.len();
        self.was_leader[self.leader] = true;
        if self.bug == Bug::NewLeaderRepeats {
            self.next -= 3;
        }
    }

    /// The body of an answer. A bug may change it.
    fn body(&self, range: &TimestampRange) -> Vec<u8> {
        let hole = self.bug == Bug::HoleInBatch && self.answers.is_multiple_of(50);
        let skip = |at: usize, it: Timestamp| {
            let index = EpochIndex(it.index.0 + u64::from(hole && at > 1));
            Timestamp::new(it.epoch, index).to_bytes()
        };
        range.iter().enumerate().flat_map(|(at, it)| skip(at, it)).collect()
    }
}

struct FakeCluster {
    oracle: Arc<Mutex<Oracle>>,
    /// While set, no request is answered.
    silent: Arc<AtomicBool>,
    targets: Vec<Target>,
}

impl FakeCluster {
    fn start(bug: Bug) -> Self {
        let listeners: Vec<TcpListener> =
            (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addrs: Vec<SocketAddr> = listeners.iter().map(|it| it.local_addr().unwrap()).collect();
        let oracle = Arc::new(Mutex::new(Oracle {
            bug,
            leader: 0,
            addrs: addrs.clone(),
            next: 1 << 20,
            blocks: vec![0, 1 << 30, 1 << 40],
            was_leader: vec![true, false, false],
            answers: 0,
            remembered: None,
        }));
        let silent = Arc::new(AtomicBool::new(false));
        for (node, listener) in listeners.into_iter().enumerate() {
            let (oracle, silent) = (oracle.clone(), silent.clone());
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let (oracle, silent) = (oracle.clone(), silent.clone());
                    std::thread::spawn(move || serve(stream.unwrap(), node, &oracle, &silent));
                }
            });
        }
        let targets = addrs.iter().zip(1..).map(|(addr, id)| Target::new(id, *addr)).collect();
        Self { oracle, silent, targets }
    }

    fn everywhere(&self) -> RunConfig {
        RunConfig {
            connections: 6,
            routing: Routing::EveryNode,
            ..RunConfig::new(self.targets.clone())
        }
    }
}

/// Answers requests on one connection until it ends.
fn serve(mut stream: TcpStream, node: usize, oracle: &Mutex<Oracle>, silent: &AtomicBool) {
    let mut buffer = Vec::new();
    loop {
        while let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8(buffer.drain(..at + 4).collect()).unwrap();
            while silent.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            if stream.write_all(&response(&head, node, oracle)).is_err() {
                return;
            }
        }
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk) {
            Ok(len) if len > 0 => buffer.extend_from_slice(&chunk[..len]),
            _ => return,
        }
    }
}

fn response(head: &str, node: usize, oracle: &Mutex<Oracle>) -> Vec<u8> {
    let target = head.split(' ').nth(1).unwrap();
    let query = target.split_once('?').map_or("", |(_, query)| query);
    let count = query.split('&').find_map(|pair| pair.strip_prefix("n="));
    let count = count.map_or(1, |text| text.parse().unwrap());
    let mut oracle = oracle.lock().unwrap();
    let (status, body) = match oracle.answer(node, count) {
        Ok(range) if query.contains("format=range") => ("200 OK".into(), range.to_bytes().to_vec()),
        Ok(range) => ("200 OK".into(), oracle.body(&range)),
        Err(leader) => (
            format!("409 Conflict\r\nepicepoch-error: NOT_LEADER\r\nepicepoch-leader: {leader}"),
            Vec::new(),
        ),
    };
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.into_bytes(), body].concat()
}

/// Drives all nodes while the leadership moves ten times, and checks the answers.
fn provoke(bug: Bug, count: u64) -> (Report, Vec<Violation>) {
    let cluster = FakeCluster::start(bug);
    let mut history = History::new(Instant::now());
    let load = Load::start(RunConfig { count, ..cluster.everywhere() });
    for _ in 0..10 {
        let at = Instant::now();
        cluster.oracle.lock().unwrap().move_leader();
        let enough = load.answers() + 60;
        let limit = at + Duration::from_secs(10);
        while (!load.answered_since(at) || load.answers() < enough) && Instant::now() < limit {
            std::thread::yield_now();
        }
    }
    let report = load.stop();
    history.record_all(&report.operations);
    history.count(report.refused(), report.unknown());
    let verdict = history.settle(Instant::now());
    (report, verdict.violations)
}

#[test]
fn an_honest_oracle_passes() {
    for count in [1, 5] {
        let (report, violations) = provoke(Bug::None, count);
        assert_eq!(violations, []);
        assert!(report.answers() >= 600, "{report}");
        assert!(report.refused() > 0 && report.unknown() == 0, "{report}");
        let nodes: BTreeSet<u64> = report.answered().map(|(operation, _)| operation.node).collect();
        assert_eq!(nodes.len(), 3, "{report}");
        assert!(report.answered().all(|(_, range)| range.count() == count), "{report}");
    }
}

#[test]
fn a_new_leader_that_repeats_is_found() {
    let (_, violations) = provoke(Bug::NewLeaderRepeats, 1);
    assert!(violations.iter().any(|it| matches!(it, Violation::Repeated { .. })));
}

#[test]
fn a_deposed_leader_that_answers_is_found() {
    let (_, violations) = provoke(Bug::DeposedAnswers, 1);
    assert!(violations.iter().any(|it| matches!(it, Violation::OutOfOrder { .. })));
}

#[test]
fn unique_but_unordered_blocks_per_node_are_found() {
    let (_, violations) = provoke(Bug::BlockPerNode, 1);
    assert!(violations.iter().all(|it| matches!(it, Violation::OutOfOrder { .. })));
    assert!(!violations.is_empty());
}

#[test]
fn a_hole_inside_one_answer_is_found() {
    let (_, violations) = provoke(Bug::HoleInBatch, 4);
    assert!(violations.iter().any(|it| matches!(it, Violation::Broken { .. })));
}

#[test]
fn an_answer_given_again_is_found() {
    for count in [1, 7] {
        let (_, violations) = provoke(Bug::AnswerTwice, count);
        assert!(violations.iter().any(|it| matches!(it, Violation::Repeated { .. })));
    }
}

#[test]
fn a_silence_is_measured_as_long_as_it_was() {
    let cluster = FakeCluster::start(Bug::None);
    let load = Load::start(cluster.everywhere());
    let silence = Duration::from_millis(150);
    while load.answers() < 100 {
        std::thread::yield_now();
    }
    let from = Instant::now();
    cluster.silent.store(true, Ordering::Relaxed);
    std::thread::sleep(silence);
    cluster.silent.store(false, Ordering::Relaxed);
    while !load.answered_since(from + silence) {
        std::thread::yield_now();
    }
    let report = load.stop();
    let gap = report.answer_times().gap_max(from, from + silence);
    assert!(gap >= silence.mul_f64(0.8), "{gap:?}");
    assert!(gap <= silence + Duration::from_secs(1), "{gap:?}");
}

#[test]
fn a_load_that_follows_finds_the_leader_and_counts_no_failure() {
    for (range, count, pipeline) in [(false, 1, 1), (false, 3, 8), (true, 1 << 20, 1)] {
        let cluster = FakeCluster::start(Bug::None);
        cluster.oracle.lock().unwrap().move_leader();
        let measurement = short(RunConfig {
            connections: 4,
            threads: 2,
            range,
            count,
            transport: Transport::Http1 { pipeline },
            ..RunConfig::new(cluster.targets.clone())
        });
        let counts = &measurement.counts;
        assert!(counts.answers > 0 && counts.failures.is_empty(), "{counts:?}");
        assert_eq!(counts.answers_by_node.keys().collect::<Vec<_>>(), [&2]);
        assert_eq!(counts.latency_ns.len(), counts.answers);
        assert!(measurement.checked.expect("by default").verdict.is_clean());
    }
}

#[test]
fn nobody_there_is_counted_and_ends_in_time() {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let measurement = short(RunConfig::new(vec![Target::new(1, unused)]));
    assert!(measurement.counts.failures[failure::CONNECT] > 0);
    assert_eq!(measurement.counts.answers, 0);
}

/// A measurement of 300 ms.
fn short(config: RunConfig) -> Measurement {
    let duration = Duration::from_millis(300);
    run(RunConfig { warmup: Duration::ZERO, duration, ..config }, |_, _| ())
}
