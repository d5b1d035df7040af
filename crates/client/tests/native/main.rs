//! Tests of the client over the native protocol, against scripted servers.

mod hedging;
mod node;
mod options;
mod spans;
mod welcome;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use epicepoch_client::{
    Client, Epoch, EpochIndex, FailedAttempt, NewClientError, Observer, Options, Timestamp,
    TimestampRange, TimestampsError, blocking,
};
use epicepoch_wire::http::ErrorCode;

use node::{NAME, Node, Oracle, Play};

const WAIT_MAX: Duration = Duration::from_secs(20);

/// Returns a client that leaves a silent node after a short time.
fn client(nodes: &[&Node]) -> Client {
    client_for(nodes, Duration::from_millis(300))
}

/// Returns a client that never leaves a slow node, for tests that count requests. So a request is
/// not repeated because the machine stalls.
fn patient(nodes: &[&Node]) -> Client {
    client_for(nodes, WAIT_MAX)
}

fn client_for(nodes: &[&Node], attempt: Duration) -> Client {
    let mut options = Options::default();
    options.timeout = WAIT_MAX;
    options.attempt_timeout = attempt;
    Client::new(nodes.iter().map(|node| node.addr.to_string()), options).unwrap()
}

async fn leading() -> (Arc<Oracle>, Node) {
    let oracle = Arc::default();
    let node = Node::start(&oracle, Play::Lead).await;
    node.now_leads();
    (oracle, node)
}

fn range(index: u64, count: u64) -> TimestampRange {
    TimestampRange::new(Timestamp::new(Epoch(9), EpochIndex(index)), count).unwrap()
}

#[tokio::test]
async fn calls_one_after_another_use_one_connection() {
    let (_, node) = leading().await;
    let client = Client::connect(&[node.addr.to_string()]).await.unwrap();
    assert_eq!(client.timestamps(3).await, Ok(range(1, 3)));
    assert_eq!(client.timestamps(1 << 32).await, Ok(range(4, 1 << 32)));
    assert_eq!(client.timestamp().await, Ok(range(4 + (1 << 32), 1).first()));
    assert_eq!(node.connections.load(Ordering::SeqCst), 1);
    for count in [0, (1 << 32) + 1] {
        assert_eq!(client.timestamps(count).await, Err(TimestampsError::Count(count)));
    }
}

#[tokio::test]
async fn requests_of_the_first_woken_callers_are_sent_before_the_last_are_woken() {
    let (_, node) = leading().await;
    let client = patient(&[&node]);
    client.timestamp().await.unwrap();
    let callers = (0..1000).map(|_| {
        let client = client.clone();
        tokio::spawn(async move {
            client.timestamp().await.unwrap();
            client.timestamp().await.unwrap();
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    let asked = node.asked();
    assert_eq!((asked.iter().sum::<u64>(), asked[1]), (2001, 1000), "{asked:?}");
    assert!((100..=300).contains(&asked[2]), "{asked:?}");
}

#[tokio::test]
async fn the_latest_timestamp_takes_none_and_goes_over_the_same_connection() {
    let (_, node) = leading().await;
    let client = Client::connect(&[node.addr.to_string()]).await.unwrap();
    assert_eq!(client.timestamps(3).await, Ok(range(1, 3)));
    for _ in 0..2 {
        assert_eq!(client.latest().await, Ok(range(3, 1).first()));
    }
    // The calls share a request: the latest timestamp is the last one of the other call.
    let (given, latest) = tokio::join!(client.timestamps(4), client.latest());
    assert_eq!((given, latest), (Ok(range(4, 4)), Ok(range(7, 1).first())));
    assert_eq!(client.timestamps(1).await, Ok(range(8, 1)));
    assert_eq!(node.asked(), [1, 3, 0, 0, 4, 1]);
    assert_eq!(node.connections.load(Ordering::SeqCst), 1);
    let past = Instant::now();
    let exceeded = Err(TimestampsError::DeadlineExceeded { last: None });
    assert_eq!(client.latest_before(past).await, exceeded);
}

#[tokio::test]
async fn an_overloaded_leader_that_is_none_any_more_is_left_without_a_pause_for_it() {
    for play in [Play::RefuseAndTell, Play::RefuseAndLeave] {
        let (oracle, old) = leading().await;
        let new = Node::start(&oracle, Play::Lead).await;
        let client = patient(&[&old]);
        client.timestamp().await.unwrap();
        old.now_plays(play(ErrorCode::Overloaded));
        new.now_leads();
        client.timestamp().await.unwrap();
        assert_eq!(old.asked().len(), 2, "it was asked again");
    }
}

#[tokio::test]
async fn an_expired_call_sends_no_request() {
    let (_, node) = leading().await;
    let client = patient(&[&node]);
    client.timestamp().await.unwrap();
    for _ in 0..20 {
        let got = client.timestamps_before(1, Instant::now()).await;
        assert_eq!(got, Err(TimestampsError::DeadlineExceeded { last: None }));
    }
    assert_eq!(node.asked().len(), 1);
}

#[tokio::test]
async fn the_deadline_is_kept_and_the_error_names_the_last_failed_attempt() {
    let (_, node) = leading().await;
    let client = client(&[&node]);
    for play in [Play::Silence, Play::Refuse(ErrorCode::NoQuorum)] {
        node.now_plays(play);
        let begin = Instant::now();
        let deadline = begin + Duration::from_millis(700);
        let error = client.timestamps_before(1, deadline).await.unwrap_err();
        let TimestampsError::DeadlineExceeded { last: Some(last) } = &error else {
            panic!("{error}")
        };
        assert!(begin.elapsed() >= Duration::from_millis(700));
        match play {
            Play::Silence => assert!(matches!(last, FailedAttempt::Silent { .. }), "{last}"),
            _ => assert!(matches!(last, FailedAttempt::Refused { .. }), "{last}"),
        }
    }
}

#[tokio::test]
async fn a_cluster_of_another_name_is_refused_loudly_at_the_first_meeting() {
    let (_, node) = leading().await;
    let named = |name: &str| {
        let mut options = Options::default();
        options.cluster_name = Some(name.to_owned());
        Client::new([node.addr.to_string()], options)
    };
    assert!(named(NAME).unwrap().timestamp().await.is_ok());
    // The client expects the cluster name "another", so the node refuses it.
    let error = named("another").unwrap().timestamp().await.unwrap_err();
    let TimestampsError::AnotherCluster(error) = error else { panic!("{error}") };
    assert_eq!(error.addr, node.addr.to_string());
    assert_eq!(error.expected, r#""another""#);
    // Now the node accepts clients that expect another name. So the client itself must check the
    // name in the welcome.
    node.now_plays(Play::AnyName);
    let error = named("another").unwrap().timestamp().await.unwrap_err();
    assert!(matches!(error, TimestampsError::AnotherCluster(_)), "{error}");
    assert_eq!(node.asked().len(), 1, "nothing was asked of a cluster of another name");
    for bad in ["", &"x".repeat(65)] {
        assert_eq!(named(bad).unwrap_err(), NewClientError::ClusterName(bad.to_owned()));
    }
}

#[tokio::test]
async fn while_an_overloaded_leader_gets_its_pause_its_answers_are_taken() {
    let (_, node) = leading().await;
    let client = patient(&[&node]);
    client.timestamp().await.unwrap();
    let ask = || {
        let client = client.clone();
        tokio::spawn(async move { (client.timestamp().await, Instant::now()) })
    };
    // If the machine stalls during the client's pause, the test cannot tell whether the answer was
    // taken in the pause. So the test is repeated.
    let is_seen = async || {
        let asked = node.asked().len();
        node.now_plays(Play::Keep);
        let first = ask();
        node.until_asked(asked + 1).await;
        node.now_plays(Play::RefuseAndRelease(ErrorCode::Overloaded));
        let begin = Instant::now();
        let second = ask();
        node.until_asked(asked + 2).await;
        node.now_plays(Play::Lead);
        let ((got, at), (refused, later)) = (first.await.unwrap(), second.await.unwrap());
        got.unwrap();
        refused.unwrap();
        // After the refusal the client pauses for at least 16 ms. The answer to the first call
        // comes 5 ms after the refusal, so inside the pause.
        assert!(later - begin >= Duration::from_millis(16), "{:?}", later - begin);
        later.saturating_duration_since(at) >= Duration::from_millis(3)
    };
    for _ in 0..10 {
        if is_seen().await {
            return;
        }
    }
    panic!("answers are taken only when the pause is over");
}

#[tokio::test]
async fn a_node_that_knows_no_leader_tells_when_it_does_and_is_not_asked_again() {
    // If the machine stalls until the client's wait is over, the client asks the node again, and
    // rightly so. So the test is repeated.
    let is_seen = async || {
        let oracle = Arc::new(Oracle::default());
        let follower = Node::start(&oracle, Play::Lead).await;
        let leader = Node::start(&oracle, Play::Lead).await;
        let client = patient(&[&follower]);
        oracle.members.lock().unwrap().clear();
        let call = tokio::spawn(async move { client.timestamp().await });
        // After seven connections, the client waits for at least 16 ms before the next one. The
        // leader is elected within this wait.
        while follower.connections.load(Ordering::SeqCst) < 7 {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_millis(4)).await;
        let before = follower.connections.load(Ordering::SeqCst);
        leader.now_leads();
        follower.announce_leader();
        call.await.unwrap().unwrap();
        assert_eq!(leader.asked().len(), 1);
        follower.connections.load(Ordering::SeqCst) == before
    };
    for _ in 0..10 {
        if is_seen().await {
            return;
        }
    }
    panic!("it is asked again");
}

/// Counts the calls of its hooks.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    callers: AtomicU64,
    timestamps: AtomicU64,
    failed_attempts: AtomicU64,
    is_connected: AtomicBool,
}

impl Observer for Counting {
    fn answered(&self, callers: usize, timestamps: u64, _: Duration) {
        self.callers.fetch_add(callers as u64, Ordering::SeqCst);
        self.timestamps.fetch_add(timestamps, Ordering::SeqCst);
    }

    fn failed_attempt(&self, _: &FailedAttempt) {
        self.failed_attempts.fetch_add(1, Ordering::SeqCst);
    }

    fn connected(&self, _: &str) {
        self.is_connected.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn an_observer_is_told_what_happens() {
    let (_, node) = leading().await;
    let counting = Arc::new(Counting::default());
    let mut options = Options::default();
    options.timeout = WAIT_MAX;
    options.observer = Some(counting.clone());
    let client = Client::new([node.addr.to_string()], options).unwrap();
    client.timestamps(5).await.unwrap();
    client.timestamp().await.unwrap();
    assert!(counting.is_connected.load(Ordering::SeqCst));
    assert_eq!(counting.callers.load(Ordering::SeqCst), 2);
    assert_eq!(counting.timestamps.load(Ordering::SeqCst), 6);
    node.now_plays(Play::HangUp);
    let call = tokio::spawn(async move { client.timestamp().await });
    while counting.failed_attempts.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    node.now_plays(Play::Lead);
    call.await.unwrap().unwrap();
}

/// A thousand callers run on four threads. One task wakes them, a part of them at a time. Every
/// caller must get its answers, in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_callers_on_a_runtime_of_several_threads_are_all_answered_in_order() {
    let (_, node) = leading().await;
    let client = client(&[&node]);
    let callers = (0..1000).map(|_| {
        let client = client.clone();
        tokio::spawn(async move {
            let mut got = Vec::new();
            for _ in 0..20 {
                got.push(client.timestamp().await.unwrap());
            }
            got
        })
    });
    let mut all = Vec::new();
    for caller in callers.collect::<Vec<_>>() {
        let got = tokio::time::timeout(WAIT_MAX, caller).await.expect("nobody is forgotten");
        let got = got.unwrap();
        assert!(got.is_sorted_by(|a, b| a < b));
        all.extend(got);
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 20_000);
}

#[test]
fn when_the_runtime_of_the_first_call_ends_waiting_calls_fail_and_the_next_call_takes_over() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (nodes, first, second) = (runtime(), runtime(), runtime());
    let (_, node) = nodes.block_on(leading());
    std::thread::spawn(move || nodes.block_on(std::future::pending::<()>()));
    let client = client(&[&node]);
    first.block_on(client.timestamp()).unwrap();
    node.now_plays(Play::Silence);
    let waits = std::thread::spawn({
        let client = client.clone();
        move || second.block_on(client.timestamp())
    });
    first.block_on(node.until_asked(2));
    drop(first);
    assert_eq!(waits.join().unwrap(), Err(TimestampsError::Stopped));
    node.now_plays(Play::Lead);
    runtime().block_on(client.timestamp()).unwrap();
}

#[test]
fn threads_that_block_get_timestamps_in_order() {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let (_, node) = leading().await;
            sender.send(node).unwrap();
            std::future::pending::<()>().await;
        });
    });
    let node = receiver.recv().unwrap();
    let mut options = Options::default();
    options.timeout = WAIT_MAX;
    let client = blocking::Client::new([node.addr.to_string()], options).unwrap();
    assert_eq!(client.latest_before(Instant::now() + WAIT_MAX), Ok(Timestamp::highest_at(8)));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let got: Vec<_> = (0..100).map(|_| client.timestamp().unwrap()).collect();
                assert!(got.is_sorted_by(|a, b| a < b));
            });
        }
    });
    assert_eq!(node.asked().iter().sum::<u64>(), 400);
    assert_eq!(client.latest(), Ok(range(399, 1).first()));
}
