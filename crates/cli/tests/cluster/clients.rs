//! The Rust client over the native protocol, while leaders are killed and told to stop, beside
//! clients of HTTP: one order for all of them, and no error inside a call's time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use epicepoch_bench::{Operation, Outcome};
use epicepoch_client::{Client, Options};

use crate::support::watch::Seen;
use crate::support::{Cluster, PATIENCE, Silence, Watch, wait_until};

/// What a call may take: no leader's loss may cost more.
const CALL_MAX: Duration = Duration::from_secs(2);
/// Callers of the one client.
const CALLERS: usize = 16;
/// Between two calls of a caller: what is measured is the client, not the machine under load.
const PAUSE: Duration = Duration::from_millis(2);
/// Longest call around a killed leader, `(p50, p99)` in ms: what `docs/operations.md` promises for
/// the silence, and 50 ms for the backoff of a client.
const KILLED_MS: (u64, u64) = (200, 450);
/// Longest call around a leader told to stop, `(p50, p99)` in ms.
const TERMINATED_MS: (u64, u64) = (25, 25);

/// A client with callers that ask until they are told to stop.
pub(crate) struct Calling {
    is_over: Arc<AtomicBool>,
    /// When the last call of each caller began that is through.
    served: Served,
    thread: JoinHandle<Vec<Operation>>,
}

type Served = Arc<Mutex<[Option<Instant>; CALLERS]>>;

impl Calling {
    pub(crate) fn start(cluster: &Cluster) -> Self {
        let addrs: Vec<_> = cluster.nodes.iter().map(|node| node.http().to_string()).collect();
        let is_over = Arc::new(AtomicBool::new(false));
        let served = Served::default();
        let (over, serving) = (is_over.clone(), served.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let client = Client::new(addrs, Options::default()).unwrap();
                let callers: Vec<_> = (0..CALLERS)
                    .map(|caller| (client.clone(), caller, over.clone(), serving.clone()))
                    .map(|(client, caller, over, serving)| {
                        tokio::spawn(call(client, caller, over, serving))
                    })
                    .collect();
                let mut operations = Vec::new();
                for caller in callers {
                    operations.extend(caller.await.unwrap());
                }
                operations
            })
        });
        Self { is_over, served, thread }
    }

    /// Waits until no caller has a call under way from before that: what one event costs a call
    /// is not to be counted for the next.
    pub(crate) fn wait_for_service_since(&self, since: Instant) {
        wait_until("every caller is served", PATIENCE, || {
            self.served.lock().unwrap().iter().all(|began| *began >= Some(since))
        });
    }

    /// Every call that was made; none has failed.
    pub(crate) fn finish(self) -> Vec<Operation> {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread.join().expect("no call failed")
    }
}

/// Asks until it is over. An error is a failure of the test.
async fn call(
    client: Client,
    caller: usize,
    is_over: Arc<AtomicBool>,
    served: Served,
) -> Vec<Operation> {
    let mut operations = Vec::new();
    while !is_over.load(Ordering::SeqCst) {
        let start = Instant::now();
        let range = client.timestamps_before(1 + caller as u64 % 3, start + CALL_MAX).await;
        let range = range.unwrap_or_else(|error| panic!("a call failed: {error}"));
        let outcome = Outcome::Answered(range);
        served.lock().unwrap()[caller] = Some(start);
        operations.push(Operation { start, end: Instant::now(), node: 0, outcome });
        tokio::time::sleep(PAUSE).await;
    }
    operations
}

/// The longest call of those that were under way in each window.
fn longest(
    event: &'static str,
    seen: &Seen,
    operations: &[Operation],
    windows: &[(Instant, Instant)],
) -> Silence {
    let mut silence = Silence::new(event);
    for (from, to) in windows {
        let met = operations.iter().filter(|it| it.start <= *to && it.end >= *from);
        let length = met.map(|it| it.end - it.start).max().expect("calls were under way");
        silence.add(length, seen.stalls.allowance(*from, *to));
    }
    silence
}

#[test]
fn a_native_client_meets_killed_and_stopped_leaders_without_an_error_in_one_order_with_http() {
    let mut cluster = Cluster::start();
    let watch = Watch::start_with(&cluster, 1);
    let calling = Calling::start(&cluster);
    let (mut killed, mut terminated) = (Vec::new(), Vec::new());
    for is_kill in [true, false].repeat(6) {
        let leader = cluster.wait_for_leader();
        calling.wait_for_service_since(Instant::now());
        let from = Instant::now();
        if is_kill {
            cluster.nodes[leader].kill();
        } else {
            assert_eq!(cluster.nodes[leader].terminate().code(), Some(0), "SIGTERM ends with 0");
        }
        watch.wait_for_service_since(Instant::now());
        let window = (from, Instant::now());
        if is_kill {
            killed.push(window);
        } else {
            terminated.push(window);
        }
        cluster.nodes[leader].start();
        cluster.wait_until_ready();
    }
    cluster.assert_well();
    wait_until("the client is on the leader", PATIENCE, || {
        let connections =
            |node: &crate::support::Node| node.metric("epicepoch_native_connections_open");
        cluster.nodes.iter().any(|node| node.is_leader() && connections(node) == Some(1.0))
    });
    let operations = calling.finish();
    assert!(operations.len() > 1000, "{} calls", operations.len());
    let seen = watch.finish_with(&operations);
    longest("call of a native client, leader killed", &seen, &operations, &killed)
        .assert_promised(KILLED_MS);
    longest("call of a native client, leader told to stop", &seen, &operations, &terminated)
        .assert_promised(TERMINATED_MS);
}
