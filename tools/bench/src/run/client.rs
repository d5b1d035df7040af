//! Sends requests through the Rust client, as a program does: many callers at once, whose calls the
//! client merges into few requests. The client finds and follows the leader itself. So redirects
//! and retries are not counted; their time is part of the latency.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use epicepoch_client::{BadAnswer, Client, Observer, Options, TimestampsError};
use tokio::task::JoinSet;

use super::config::{RunConfig, Target};
use super::counts::failure;
use super::load_connection::LoadConnection;
use crate::history::BrokenAnswer;

/// Sends requests until the measurement is over.
pub(super) async fn drive(load: LoadConnection, callers: usize) {
    let load = Rc::new(load);
    let connected = Arc::new(Connected::new(&load.config));
    let Some(current) = Current::new(&load, &connected) else {
        load.not_connected();
        return load.finish();
    };
    let current = Rc::new(current);
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        tasks.spawn_local(call(load.clone(), current.clone(), connected.clone()));
    }
    while tasks.join_next().await.is_some() {}
    load.finish();
}

/// The node that a client is connected to. The client does not say which node answered, but it asks
/// one node at a time, over its latest connection.
#[derive(Debug)]
struct Connected {
    targets: Vec<Target>,
    /// Id of the node of the last connection, or [`NODE_UNKNOWN`].
    node: AtomicU64,
}

impl Connected {
    fn new(config: &RunConfig) -> Self {
        Self { targets: config.targets.clone(), node: AtomicU64::new(NODE_UNKNOWN) }
    }

    fn node(&self) -> u64 {
        self.node.load(Ordering::Relaxed)
    }
}

impl Observer for Connected {
    fn connected(&self, addr: &str) {
        let parsed: Option<SocketAddr> = addr.parse().ok();
        let is_it = |target: &&Target| target.name == addr || Some(target.addr) == parsed;
        let node = self.targets.iter().find(is_it).map_or(NODE_UNKNOWN, |target| target.id);
        self.node.store(node, Ordering::Relaxed);
    }
}

/// The client in use. A client refuses the answers of another history of its cluster, so after a
/// restore a new client takes its place. The checker goes on: the new history must be above the old
/// one.
#[derive(Debug)]
struct Current {
    client: RefCell<Client>,
    /// How many clients were replaced.
    replaced: Cell<u64>,
}

impl Current {
    fn new(load: &LoadConnection, connected: &Arc<Connected>) -> Option<Self> {
        let client = RefCell::new(client(load, connected)?);
        Some(Self { client, replaced: Cell::new(0) })
    }

    /// Replaces the client with which a call failed after `replaced` replacements, unless another
    /// caller has done so already.
    fn replace(&self, replaced: u64, load: &LoadConnection, connected: &Arc<Connected>) {
        if self.replaced.get() == replaced
            && let Some(client) = client(load, connected)
        {
            self.client.replace(client);
            self.replaced.set(replaced + 1);
        }
    }
}

/// Makes a client. `None` if the addresses are no addresses.
fn client(load: &LoadConnection, connected: &Arc<Connected>) -> Option<Client> {
    let addrs = load.config.targets.iter().map(|target| target.name.clone());
    let mut options = Options::default();
    options.tls.clone_from(&load.config.tls);
    options.token.clone_from(&load.config.token);
    options.guarantee = load.config.guarantee;
    options.observer = Some(connected.clone());
    Client::new(addrs, options).ok()
}

/// Runs one caller.
async fn call(load: Rc<LoadConnection>, current: Rc<Current>, connected: Arc<Connected>) {
    loop {
        let now = Instant::now();
        let Some(ticket) = load.claim_at(now) else { return };
        let now = if ticket.in_time {
            load.pacer.due(&ticket).await;
            Instant::now()
        } else {
            now
        };
        let sent = load.sent_at(ticket, now);
        let deadline = load.deadline(&sent).into_std();
        let (client, replaced) = (current.client.borrow().clone(), current.replaced.get());
        match client.timestamps_before(load.config.count, deadline).await {
            Ok(range) => load.statistics.borrow_mut().answered(&sent, connected.node(), range),
            Err(error) => {
                if let TimestampsError::AnotherCluster(other) = &error
                    && other.is_restored()
                {
                    load.shared.record_restore(&other.found);
                    current.replace(replaced, &load, &connected);
                }
                match judge(error) {
                    Failed::NoAnswer(name) => load.statistics.borrow_mut().failed(&sent, name),
                    Failed::Wrong(why) => {
                        load.statistics.borrow_mut().broken(&sent, connected.node(), why);
                    }
                }
                // Without this pause, calls that fail at once would fail a million times a second.
                tokio::time::sleep(load.config.retry_pause).await;
            }
        }
    }
}

/// Why a call brought no timestamps.
enum Failed {
    /// A failure, with its name.
    NoAnswer(&'static str),
    /// A wrong answer. The client has rejected it, so the checker never sees it.
    Wrong(BrokenAnswer),
}

/// Classifies an error of the client as a failure or a wrong answer.
fn judge(error: TimestampsError) -> Failed {
    match error {
        TimestampsError::WentBackwards { floor, answer, .. } => {
            Failed::Wrong(BrokenAnswer::Backwards { floor, answer })
        }
        TimestampsError::BadAnswer(BadAnswer::Foreign { addr, what }) => {
            Failed::Wrong(BrokenAnswer::Foreign(format!("{addr} answered with {what}")))
        }
        TimestampsError::DeadlineExceeded { .. } => Failed::NoAnswer(failure::TIMEOUT),
        TimestampsError::AnotherCluster(_) => Failed::NoAnswer(failure::CLUSTER),
        TimestampsError::BadAnswer(_) => Failed::NoAnswer(failure::STATUS),
        // These calls never became a request. The match needs this arm because the error type may
        // get more variants.
        _ => Failed::NoAnswer(failure::LOST),
    }
}

/// The id for a member that is not among the targets; no node has this id.
const NODE_UNKNOWN: u64 = 0;
