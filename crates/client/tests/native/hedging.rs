//! Tests of hedged requests: they help when a connection stalls, and they keep the order.

use std::time::{Duration, Instant};

use epicepoch_client::{Client, NewClientError, Options, TimestampRange, TimestampsError, Via};

use crate::node::{Node, Play};
use crate::{WAIT_MAX, leading};

/// The copy of a request is sent after `AFTER`, long before the client leaves a silent node after
/// `ATTEMPT`.
const AFTER: Duration = Duration::from_millis(20);
const ATTEMPT: Duration = Duration::from_secs(8);

fn hedging(nodes: &[&Node]) -> Client {
    let mut options = Options::default();
    options.timeout = WAIT_MAX;
    options.attempt_timeout = ATTEMPT;
    options.hedge_after = Some(AFTER);
    Client::new(nodes.iter().map(|node| node.addr.to_string()), options).unwrap()
}

fn connections(node: &Node) -> u64 {
    node.connections.load(std::sync::atomic::Ordering::SeqCst)
}

#[tokio::test]
async fn a_stalled_connection_costs_little_more_than_the_delay_of_the_hedge() {
    let (_, node) = leading().await;
    let client = hedging(&[&node]);
    client.timestamp().await.unwrap();
    node.now_plays(Play::LeadElsewhere);
    let mut last = None;
    // Only a few requests may be in flight at once, and the loop makes more calls than that. It
    // gets through, because a request that was answered over the second connection does not count
    // as in flight.
    for _ in 0..12 {
        let begin = Instant::now();
        let got = client.timestamp().await.unwrap();
        assert!(begin.elapsed() >= AFTER, "asked again too early, {:?}", begin.elapsed());
        assert!(begin.elapsed() < ATTEMPT / 4, "{:?}", begin.elapsed());
        assert!(last < Some(got));
        last = Some(got);
    }
    assert_eq!(connections(&node), 2);
}

#[tokio::test]
async fn a_dropped_answer_that_goes_backwards_is_an_error_like_any() {
    let (_, node) = leading().await;
    let client = hedging(&[&node]);
    client.timestamp().await.unwrap();
    node.now_plays(Play::LateRepeat(25 * AFTER));
    client.timestamp().await.unwrap();
    // The late second answer has an older epoch. Nobody waits for it, but it shows that the order
    // is broken. So every caller that waits at that moment fails.
    node.now_plays(Play::Keep);
    let error = client.timestamp().await.unwrap_err();
    assert!(matches!(error, TimestampsError::WentBackwards { .. }), "{error}");
}

#[tokio::test]
async fn a_hedge_that_reaches_another_cluster_is_an_error() {
    let (oracle, node) = leading().await;
    let client = hedging(&[&node]);
    client.timestamp().await.unwrap();
    let other = Node::start_in(&oracle, Play::Lead, 8).await;
    drop(client);
    // The second address is that of a node of another cluster. The client sends a copy there when
    // the leader does not answer, and must notice that.
    let client = hedging(&[&node, &other]);
    client.timestamp().await.unwrap();
    node.now_plays(Play::Mute);
    other.now_leads();
    let error = client.timestamp().await.unwrap_err();
    assert!(matches!(error, TimestampsError::AnotherCluster(_)), "{error}");
    assert_eq!(other.asked(), [0; 0]);
}

/// A call with its begin, its end and its result.
struct Call {
    begin: Instant,
    end: Instant,
    got: TimestampRange,
}

/// The two answers to a request and its copy arrive in random order. Even so, a call returns a
/// timestamp above all that were returned before the call began, and no timestamp is returned
/// twice.
#[tokio::test]
async fn answers_that_overtake_each_other_keep_the_order_of_calls() {
    let (_, node) = leading().await;
    let client = hedging(&[&node]);
    client.timestamp().await.unwrap();
    node.now_plays(Play::Jitter);
    let callers: Vec<_> = (0..16)
        .map(|caller| {
            let client = client.clone();
            tokio::spawn(async move {
                let mut calls = Vec::new();
                for _ in 0..60 {
                    let begin = Instant::now();
                    let got = client.timestamps(1 + caller % 3).await.unwrap();
                    calls.push(Call { begin, end: Instant::now(), got });
                }
                calls
            })
        })
        .collect();
    let mut calls = Vec::new();
    for caller in callers {
        calls.extend(caller.await.unwrap());
    }
    let given: u64 = calls.iter().map(|call| call.got.count()).sum();
    assert!(node.asked().iter().sum::<u64>() > given + 1, "nothing was asked twice");
    calls.sort_by_key(|call| call.got.first());
    assert!(calls.is_sorted_by(|a, b| a.got.last() < b.got.first()), "given twice");
    // The calls are in the order of their timestamps. No call may have ended before a call with a
    // lower timestamp began.
    let mut latest_begin = None;
    for call in &calls {
        assert!(latest_begin <= Some(call.end), "the order of calls is broken");
        latest_begin = latest_begin.max(Some(call.begin));
    }
}

#[tokio::test]
async fn without_the_option_no_request_is_sent_twice() {
    let (_, node) = leading().await;
    let mut options = Options::default();
    options.attempt_timeout = Duration::from_secs(2);
    let client = Client::new([node.addr.to_string()], options).unwrap();
    client.timestamp().await.unwrap();
    node.now_plays(Play::Late(5 * AFTER));
    client.timestamp().await.unwrap();
    assert_eq!((node.asked(), connections(&node)), (vec![1, 1], 1));
    let mut options = Options::default();
    options.via = Via::Http;
    options.hedge_after = Some(AFTER);
    let refused = Client::new([node.addr.to_string()], options).unwrap_err();
    assert_eq!(refused, NewClientError::HedgeOverHttp);
}
