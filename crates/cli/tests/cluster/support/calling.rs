//! Callers of the Rust client that make calls over the native protocol all the time. No call may
//! fail.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use epicepoch_bench::{Operation, Outcome};
use epicepoch_client::{Client, Options};

use super::turn::is_alone;
use super::{Cluster, WAIT_MAX, wait_until};

/// Deadline of a call. Even when a leader is lost, a call must not take longer.
const CALL_MAX: Duration = Duration::from_secs(2);
/// Deadline of a call of a test that shares the machine.
const SHARED_CALL_MAX: Duration = Duration::from_secs(15);
/// Callers that share the client.
const CALLERS: usize = 16;
/// Pause between two calls of a caller, so that the test measures the client and not a busy
/// machine.
const PAUSE: Duration = Duration::from_millis(2);

/// A client whose callers make calls until they are stopped.
pub(crate) struct Calling {
    is_over: Arc<AtomicBool>,
    /// For each caller: when its last answered call began.
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
        let call_max = if is_alone() { CALL_MAX } else { SHARED_CALL_MAX };
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let client = Client::new(addrs, Options::default()).unwrap();
                let callers: Vec<_> = (0..CALLERS)
                    .map(|caller| (client.clone(), caller, over.clone(), serving.clone()))
                    .map(|(client, caller, over, serving)| {
                        tokio::spawn(call(client, caller, call_max, over, serving))
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

    /// Waits until every caller has an answer to a call that began after `since`. Without this
    /// wait, a call that is slow because of one event could count for the next event.
    pub(crate) fn wait_for_service_since(&self, since: Instant) {
        wait_until("every caller is served", WAIT_MAX, || {
            self.served.lock().unwrap().iter().all(|began| *began >= Some(since))
        });
    }

    /// Stops the callers and returns all calls. Fails the test if any call has failed.
    pub(crate) fn finish(self) -> Vec<Operation> {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread.join().expect("no call failed")
    }
}

/// Makes calls until it is stopped. An error fails the test.
async fn call(
    client: Client,
    caller: usize,
    call_max: Duration,
    is_over: Arc<AtomicBool>,
    served: Served,
) -> Vec<Operation> {
    let mut operations = Vec::new();
    while !is_over.load(Ordering::SeqCst) {
        let start = Instant::now();
        let range = client.timestamps_before(1 + caller as u64 % 3, start + call_max).await;
        let range = range.unwrap_or_else(|error| panic!("a call failed: {error}"));
        let outcome = Outcome::Answered(range);
        served.lock().unwrap()[caller] = Some(start);
        operations.push(Operation { start, end: Instant::now(), node: 0, outcome });
        tokio::time::sleep(PAUSE).await;
    }
    operations
}
