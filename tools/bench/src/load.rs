//! A closed-loop load for tests: every connection asks, waits for its answer, and asks again.
//!
//! Each thread has its own runtime; threads share a few counters. A load follows the leader, as a
//! client does, or binds its connections to nodes and drives *all* of them, also followers and
//! deposed leaders: that provokes wrong answers.
//!
//! It never repeats a request: a lost answer counts as lost.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use epicepoch_wire::TimestampRange;
use epicepoch_wire::http::{HEADER_LEADER, PATH_TIMESTAMP};
use tokio::task::LocalSet;
use tokio::time::timeout;

use crate::history::{BrokenAnswer, Operation, Outcome, read_range, read_timestamps};
use crate::http1::{Connection, ConnectionError, Response};
use crate::report::{FailureKind, Report};

/// A node of the oracle and where clients reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number, as it appears in reports.
    pub id: u64,
    /// Its client address.
    pub addr: SocketAddr,
}

/// Which node a connection asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Follow the leader that a 409 names. If a node does not answer, try the next one.
    FollowLeader,
    /// Connection `i` always asks node `i % nodes`.
    EveryNode,
}

/// Settings of a load. Start from [`LoadConfig::new`].
#[derive(Clone, Debug)]
pub struct LoadConfig {
    /// The nodes to ask, at least one.
    pub nodes: Vec<Node>,
    /// Connections in all, at least 1. Default 1.
    pub connections: usize,
    /// Threads, at least 1. Default 1: the load should not crowd out the service on a small
    /// machine.
    pub threads: usize,
    /// Requests that are sent together on one connection, at least 1. Default 1.
    pub pipeline: usize,
    /// Which node each connection asks. Default: the leader.
    pub routing: Routing,
    /// Timestamps per request, `1..=65536`, or up to 2^32 with `range`. Default 1.
    pub count: u64,
    /// Ask for `format=range`. Default off.
    pub range: bool,
    /// Time after which the load ends. Default: none.
    pub duration: Option<Duration>,
    /// Number of requests after which the load ends. Default: none.
    pub requests: Option<u64>,
    /// Pause after a refusal or a lost connection. Default 1 ms, which is so short that a measured
    /// silence comes from the service.
    pub retry_pause: Duration,
    /// Pause after an answer. Default none: each connection sends the next request at once.
    pub answer_pause: Duration,
    /// Longest wait for an answer. Default 10 s, longer than any pause in the tests, so that late
    /// answers are received too.
    pub request_timeout: Duration,
    /// How long to wait for a connection. Default 1 s.
    pub connect_timeout: Duration,
    /// Keep every answer for the checker, 64 bytes each. Default off.
    pub keep_operations: bool,
}

impl LoadConfig {
    /// One connection that follows the leader until it is stopped.
    #[must_use]
    pub fn new(nodes: Vec<Node>) -> Self {
        Self {
            nodes,
            connections: 1,
            threads: 1,
            pipeline: 1,
            routing: Routing::FollowLeader,
            count: 1,
            range: false,
            duration: None,
            requests: None,
            retry_pause: Duration::from_millis(1),
            answer_pause: Duration::ZERO,
            request_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(1),
            keep_operations: false,
        }
    }

    /// The bytes of one request.
    fn request(&self) -> Vec<u8> {
        let query = match (self.count, self.range) {
            (1, false) => String::new(),
            (count, false) => format!("?n={count}"),
            (count, true) => format!("?n={count}&format=range"),
        };
        format!("GET {PATH_TIMESTAMP}{query} HTTP/1.1\r\nhost: epicepoch\r\n\r\n").into_bytes()
    }

    /// # Panics
    /// If there is no node, or one of the numbers is 0.
    fn assert_sound(&self) {
        assert!(!self.nodes.is_empty(), "a load needs a node");
        assert!(self.connections > 0 && self.threads > 0, "a load needs a connection and a thread");
        assert!(self.pipeline > 0 && self.count > 0, "a load needs something to ask");
    }
}

/// Runs a load until it ends by itself.
///
/// # Panics
/// If the configuration sets no end, or one of its numbers is 0.
#[must_use]
pub fn run(config: LoadConfig) -> Report {
    assert!(config.duration.is_some() || config.requests.is_some(), "a load needs an end");
    start(config).join()
}

/// Starts a load on its own threads.
///
/// # Panics
/// If one of the numbers of the configuration is 0, or a thread cannot be started.
#[must_use]
pub fn start(config: LoadConfig) -> RunningLoad {
    config.assert_sound();
    let progress = Arc::new(Progress::new(config.requests));
    let config = Arc::new(config);
    let threads = (0..config.threads.min(config.connections)).map(|thread| {
        let (config, progress) = (config.clone(), progress.clone());
        let name = format!("load-{thread}");
        let body = move || drive_thread(thread, &config, &progress);
        std::thread::Builder::new().name(name).spawn(body).expect("threads can be started")
    });
    RunningLoad { threads: threads.collect(), progress }
}

/// A running load. Dropping it stops it.
#[derive(Debug)]
pub struct RunningLoad {
    threads: Vec<JoinHandle<Report>>,
    progress: Arc<Progress>,
}

impl RunningLoad {
    /// Answers so far.
    #[must_use]
    pub fn answers(&self) -> u64 {
        self.progress.answers.load(Ordering::Relaxed)
    }

    /// Whether a request that was sent after `at` has been answered, so the service works again.
    #[must_use]
    pub fn answered_since(&self, at: Instant) -> bool {
        let start = self.progress.start_ns_max.load(Ordering::Relaxed);
        start > self.progress.nanos(at)
    }

    /// Ends the load. Open requests still get their answer or time out.
    #[must_use]
    pub fn stop(self) -> Report {
        self.progress.stop.store(true, Ordering::Relaxed);
        self.join()
    }

    /// Waits until the load ends by itself.
    #[must_use]
    pub fn join(mut self) -> Report {
        let began = self.progress.began;
        let mut report = Report::new(began);
        for thread in self.threads.drain(..) {
            report.merge(thread.join().expect("a load thread never panics"));
        }
        report.elapsed = began.elapsed();
        report.gap_max = Duration::from_nanos(self.progress.gap_ns_max.load(Ordering::Relaxed));
        report
    }
}

impl Drop for RunningLoad {
    fn drop(&mut self) {
        self.progress.stop.store(true, Ordering::Relaxed);
    }
}

/// State that the threads of a load share.
#[derive(Debug)]
struct Progress {
    began: Instant,
    stop: AtomicBool,
    answers: AtomicU64,
    /// Start of the latest request that was answered, ns since `began`.
    start_ns_max: AtomicU64,
    /// End of the latest answer, ns since `began`; 0 before the first.
    end_ns_max: AtomicU64,
    gap_ns_max: AtomicU64,
    /// Number of requests that may still be sent; `None` without a limit.
    remaining: Option<AtomicU64>,
}

impl Progress {
    fn new(requests: Option<u64>) -> Self {
        Self {
            began: Instant::now(),
            stop: AtomicBool::new(false),
            answers: AtomicU64::new(0),
            start_ns_max: AtomicU64::new(0),
            end_ns_max: AtomicU64::new(0),
            gap_ns_max: AtomicU64::new(0),
            remaining: requests.map(AtomicU64::new),
        }
    }

    fn nanos(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.began).as_nanos() as u64
    }

    /// Claims up to `wanted` of the requests that may still be sent. Returns 0 when the load is
    /// over.
    fn take(&self, wanted: usize, duration: Option<Duration>) -> usize {
        let over = duration.is_some_and(|limit| self.began.elapsed() >= limit);
        if over || self.stop.load(Ordering::Relaxed) {
            return 0;
        }
        let Some(remaining) = &self.remaining else { return wanted };
        let before = remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            Some(left.saturating_sub(wanted as u64))
        });
        before.unwrap_or(0).min(wanted as u64) as usize
    }

    fn answered(&self, start: Instant, end: Instant) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        self.start_ns_max.fetch_max(self.nanos(start), Ordering::Relaxed);
        let end = self.nanos(end);
        let before = self.end_ns_max.fetch_max(end, Ordering::Relaxed);
        if before > 0 {
            self.gap_ns_max.fetch_max(end.saturating_sub(before), Ordering::Relaxed);
        }
    }
}

fn drive_thread(thread: usize, config: &Arc<LoadConfig>, progress: &Arc<Progress>) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime can be built");
    let report = Rc::new(RefCell::new(Report::new(progress.began)));
    let request: Rc<[u8]> = config.request().repeat(config.pipeline).into();
    let local = LocalSet::new();
    for home in (thread..config.connections).step_by(config.threads) {
        let client = Client {
            config: config.clone(),
            progress: progress.clone(),
            report: report.clone(),
            request: request.clone(),
            node: home % config.nodes.len(),
            connection: None,
        };
        local.spawn_local(client.drive());
    }
    runtime.block_on(local);
    let report = Rc::try_unwrap(report).expect("every connection is done");
    report.into_inner()
}

/// One connection and the node it asks.
struct Client {
    config: Arc<LoadConfig>,
    progress: Arc<Progress>,
    report: Rc<RefCell<Report>>,
    request: Rc<[u8]>,
    /// Index into the nodes.
    node: usize,
    connection: Option<Connection>,
}

/// Which node to ask next.
enum Next {
    /// The same node at once.
    Same,
    /// The node with this index, at once.
    Leader(usize),
    /// The node that the routing gives, after the retry pause.
    Retry,
}

impl Client {
    async fn drive(mut self) {
        loop {
            let wanted = self.progress.take(self.config.pipeline, self.config.duration);
            if wanted == 0 {
                return;
            }
            let next = match self.exchange(wanted).await {
                Ok(next) => next,
                Err(kind) => {
                    self.connection = None;
                    self.report.borrow_mut().fail(kind);
                    Next::Retry
                }
            };
            self.turn(next).await;
        }
    }

    async fn turn(&mut self, next: Next) {
        match next {
            Next::Same if self.config.answer_pause.is_zero() => {}
            Next::Same => tokio::time::sleep(self.config.answer_pause).await,
            Next::Leader(node) => {
                self.connection = None;
                self.node = node;
            }
            Next::Retry => {
                if self.config.routing == Routing::FollowLeader && self.config.nodes.len() > 1 {
                    self.connection = None;
                    self.node = (self.node + 1) % self.config.nodes.len();
                }
                tokio::time::sleep(self.config.retry_pause).await;
            }
        }
    }

    /// Sends `wanted` requests and reads as many answers.
    async fn exchange(&mut self, wanted: usize) -> Result<Next, FailureKind> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let limit = self.config.request_timeout;
        let start = Instant::now();
        let request = &self.request[..self.request.len() / self.config.pipeline * wanted];
        timed(limit, connection.send(request)).await?;
        let mut next = Next::Same;
        for read in 0..wanted {
            let response = match timed(limit, connection.receive()).await {
                Ok(response) => response,
                Err(kind) => {
                    // The caller counts one of the failures itself.
                    (read + 1..wanted).for_each(|_| self.report.borrow_mut().fail(kind));
                    return Err(kind);
                }
            };
            let verdict = self.judge(start, &response);
            if matches!(next, Next::Same) {
                next = verdict;
            }
        }
        self.connection = Some(connection);
        Ok(next)
    }

    async fn connect(&self) -> Result<Connection, FailureKind> {
        let open = Connection::open(self.config.nodes[self.node].addr);
        let connection = timeout(self.config.connect_timeout, open).await;
        connection.ok().and_then(Result::ok).ok_or(FailureKind::Connect)
    }

    fn judge(&self, start: Instant, response: &Response<'_>) -> Next {
        let end = Instant::now();
        let mut report = self.report.borrow_mut();
        match response.status {
            200 => match self.read(response.body) {
                Ok(range) => self.answered(&mut report, start, end, range),
                Err(why) => {
                    report.fail(FailureKind::Broken);
                    report.operations.push(self.operation(start, end, Outcome::Broken(why)));
                }
            },
            409 => {
                report.fail(FailureKind::NotLeader);
                return match self.config.routing {
                    Routing::FollowLeader => self.named_leader(response),
                    Routing::EveryNode => Next::Retry,
                };
            }
            status => {
                let unavailable = status == 503;
                report.fail(if unavailable {
                    FailureKind::Unavailable
                } else {
                    FailureKind::Status(status)
                });
                return Next::Retry;
            }
        }
        Next::Same
    }

    fn answered(&self, report: &mut Report, start: Instant, end: Instant, range: TimestampRange) {
        report.answers += 1;
        report.timestamps += range.count();
        *report.answers_by_node.entry(self.config.nodes[self.node].id).or_default() += 1;
        report.latency_ns.saturating_record((end - start).as_nanos() as u64);
        self.progress.answered(start, end);
        if self.config.keep_operations {
            report.operations.push(self.operation(start, end, Outcome::Answered(range)));
        }
    }

    fn operation(&self, start: Instant, end: Instant, outcome: Outcome) -> Operation {
        Operation { start, end, node: self.config.nodes[self.node].id, outcome }
    }

    fn read(&self, body: &[u8]) -> Result<TimestampRange, BrokenAnswer> {
        if self.config.range {
            read_range(body, self.config.count)
        } else {
            read_timestamps(body, self.config.count)
        }
    }

    /// Goes to the node that a 409 names, if it is one of the configured nodes and not the one that
    /// answered.
    fn named_leader(&self, response: &Response<'_>) -> Next {
        let addr = response.header(HEADER_LEADER).and_then(|text| text.parse().ok());
        let named = addr.and_then(|addr: SocketAddr| {
            self.config.nodes.iter().position(|node| node.addr == addr)
        });
        named.filter(|node| *node != self.node).map_or(Next::Retry, Next::Leader)
    }
}

async fn timed<T>(
    limit: Duration,
    step: impl Future<Output = Result<T, ConnectionError>>,
) -> Result<T, FailureKind> {
    match timeout(limit, step).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(_)) => Err(FailureKind::Lost),
        Err(_) => Err(FailureKind::Timeout),
    }
}
