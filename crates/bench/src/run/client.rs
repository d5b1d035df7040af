//! Calls through a client library, as a program has them: many callers at the same time, whose
//! calls the client merges into few requests. It finds and follows the leader by itself, so that
//! redirects and retries are inside of the latency and are not counted.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use epicepoch_client::{BadAnswer, Client, Observer, Options, TimestampsError};
use tokio::task::JoinSet;

use super::config::{RunConfig, Target};
use super::lane::Lane;
use super::ledger::failure;
use crate::history::BrokenAnswer;

/// Calls until the measurement is over.
pub(super) async fn drive(lane: Lane, callers: usize) {
    let lane = Rc::new(lane);
    let addrs = lane.config.targets.iter().map(|target| target.name.clone());
    let connected = Arc::new(Connected::new(&lane.config));
    let mut options = Options::default();
    options.tls.clone_from(&lane.config.tls);
    options.token.clone_from(&lane.config.token);
    options.observer = Some(connected.clone());
    let Ok(client) = Client::new(addrs, options) else {
        lane.not_connected();
        return lane.finish();
    };
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        tasks.spawn_local(call(lane.clone(), client.clone(), connected.clone()));
    }
    while tasks.join_next().await.is_some() {}
    lane.finish();
}

/// Whom a client is connected to. A client does not say who answered, but it asks one node at a
/// time, over a connection that it has just made or keeps.
#[derive(Debug)]
struct Connected {
    targets: Vec<Target>,
    /// The node of the last connection, or [`NODE_UNKNOWN`].
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

/// One caller.
async fn call(lane: Rc<Lane>, client: Client, connected: Arc<Connected>) {
    loop {
        let now = Instant::now();
        let Some(ticket) = lane.claim_at(now) else { return };
        let now = if ticket.in_time {
            lane.pacer.due(&ticket).await;
            Instant::now()
        } else {
            now
        };
        let sent = lane.sent_at(ticket, now);
        let deadline = lane.deadline(&sent).into_std();
        match client.timestamps_before(lane.config.count, deadline).await {
            Ok(range) => lane.ledger.borrow_mut().answered(&sent, connected.node(), range),
            Err(error) => {
                match judge(error) {
                    Failed::NoAnswer(name) => lane.ledger.borrow_mut().failed(&sent, name),
                    Failed::Wrong(why) => {
                        lane.ledger.borrow_mut().broken(&sent, connected.node(), why);
                    }
                }
                // A client that fails at once must not fail a million times a second.
                tokio::time::sleep(lane.config.retry_pause).await;
            }
        }
    }
}

/// What came instead of timestamps.
enum Failed {
    /// Nothing that could be wrong; the name of a failure.
    NoAnswer(&'static str),
    /// An answer that must not be: the client has checked it, so the checker never sees it.
    Wrong(BrokenAnswer),
}

/// What a client gives up for, as failures are named here.
fn judge(error: TimestampsError) -> Failed {
    match error {
        TimestampsError::WentBackwards { floor, answer, .. } => {
            Failed::Wrong(BrokenAnswer::Backwards { floor, answer })
        }
        TimestampsError::BadAnswer(BadAnswer::Foreign { addr, what }) => {
            Failed::Wrong(BrokenAnswer::Foreign(format!("{addr} answered with {what}")))
        }
        TimestampsError::DeadlineExceeded { .. } => Failed::NoAnswer(failure::TIMEOUT),
        TimestampsError::BadAnswer(_) | TimestampsError::AnotherCluster(_) => {
            Failed::NoAnswer(failure::STATUS)
        }
        // Calls that never got as far as a request; the type may get more reasons.
        _ => Failed::NoAnswer(failure::LOST),
    }
}

/// No node: a member that was not among the targets.
const NODE_UNKNOWN: u64 = 0;
