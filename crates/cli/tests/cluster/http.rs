//! The HTTP contract, line by line: over HTTP/1.1 on raw sockets, over h2c with prior knowledge.

use std::time::{Duration, Instant};

use epicepoch_bench::history::{read_range, read_timestamps};
use epicepoch_bench::{History, Operation, Outcome};
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;

use crate::support::wire::{Answer, Wire, request};
use crate::support::{Cluster, Node, PATIENCE, wait_until};

const LIMIT: Duration = Duration::from_secs(5);
/// Every path of the contract.
const PATHS: [&str; 7] =
    ["/up", "/ready", "/leader", "/timestamp", "/members", "/membership", "/metrics"];

fn wire(node: &Node) -> Wire {
    Wire::open(node.http(), LIMIT).expect("the node accepts")
}

#[track_caller]
fn get(node: &Node, target: &str) -> Answer {
    wire(node).get(target).expect("the node answers")
}

#[track_caller]
fn json(answer: &Answer) -> Value {
    let kind = answer.header("content-type").unwrap_or_default();
    assert!(kind.starts_with("application/json"), "{kind}");
    serde_json::from_slice(&answer.body).expect("valid JSON")
}

/// 32 hexadecimal digits, a dot, 16 more.
fn is_cluster_header(value: &str) -> bool {
    let hex = |text: &str, len| text.len() == len && text.bytes().all(|b| b.is_ascii_hexdigit());
    value.split_once('.').is_some_and(|(cluster, history)| hex(cluster, 32) && hex(history, 16))
}

#[test]
fn timestamps_come_in_three_formats() {
    let cluster = Cluster::start_calm();
    let node = &cluster.nodes[cluster.wait_for_leader()];
    let origin = Instant::now();
    let mut history = History::new(origin);
    let mut record = |start, range| {
        let outcome = Outcome::Answered(range);
        history.record(&Operation { start, end: Instant::now(), node: node.id, outcome });
    };
    for (target, count) in [
        ("/timestamp", 1),
        ("/timestamp?n=1", 1),
        ("/timestamp?n=3", 3),
        ("/timestamp?n=65536", 65_536),
    ] {
        let start = Instant::now();
        let answer = get(node, target);
        assert_eq!(answer.status, 200, "{target}: {answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/octet-stream"), "{target}");
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{target}");
        record(start, read_timestamps(&answer.body, count).expect(target));
    }
    for (target, count) in [
        ("/timestamp?format=range", 1),
        ("/timestamp?n=7&format=range", 7),
        ("/timestamp?format=range&n=65537", 65_537),
        ("/timestamp?n=4294967296&format=range", 1 << 32),
    ] {
        let start = Instant::now();
        let answer = get(node, target);
        assert_eq!(answer.status, 200, "{target}: {answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/octet-stream"), "{target}");
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{target}");
        record(start, read_range(&answer.body, count).expect(target));
    }
    for target in ["/timestamp?format=json", "/timestamp?format=json&n=3"] {
        let answer = get(node, target);
        assert_eq!(answer.status, 200, "{target}: {answer:?}");
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{target}");
        assert!(!json(&answer).is_null(), "{target}");
    }
    let start = Instant::now();
    let mut posted = wire(node);
    posted.send(&request("POST", "/timestamp?n=2", &[], b"")).expect("the node reads");
    let answer = posted.receive().expect("the node answers");
    assert_eq!(answer.status, 200, "{answer:?}");
    record(start, read_timestamps(&answer.body, 2).expect("two timestamps"));
    history.check().assert_clean();
}

#[test]
fn every_answer_names_the_cluster_and_gives_the_request_id_back() {
    let cluster = Cluster::start();
    let mut names = Vec::new();
    for node in &cluster.nodes {
        let mut wire = wire(node);
        for target in PATHS.into_iter().chain(["/nope", "/timestamp?n=0", "/timestamp?format=x"]) {
            for method in ["GET", "DELETE"] {
                let headers = [("epicepoch-request-id", "42-abc")];
                wire.send(&request(method, target, &headers, b"")).expect("the node reads");
                let answer = wire.receive().expect("the node answers");
                let name = answer.header("epicepoch-cluster");
                let name = name.unwrap_or_else(|| panic!("{method} {target}: {answer:?}"));
                assert!(is_cluster_header(name), "{name}");
                names.push(name.to_owned());
                if answer.status >= 400 {
                    assert!(answer.error().is_some(), "{method} {target}: {answer:?}");
                }
                if target.starts_with("/timestamp") {
                    let id = answer.header("epicepoch-request-id");
                    assert_eq!(id, Some("42-abc"), "{method} {target}: {answer:?}");
                }
            }
        }
    }
    names.dedup();
    assert_eq!(names.len(), 1, "one cluster has one name: {names:?}");
}

#[test]
fn a_follower_answers_409_and_names_the_leader_a_client_can_dial() {
    let cluster = Cluster::start_calm();
    let leader = cluster.wait_for_leader();
    let addr = cluster.nodes[leader].http().to_string();
    for follower in cluster.others(leader) {
        for target in ["/timestamp", "/timestamp?n=3", "/timestamp?format=json"] {
            let answer = get(&cluster.nodes[follower], target);
            assert_eq!((answer.status, answer.error()), (409, Some("NOT_LEADER")), "{answer:?}");
            assert_eq!(answer.header("epicepoch-leader"), Some(addr.as_str()), "{answer:?}");
            assert!(answer.text().contains(&addr), "{answer:?}");
        }
        let answer = get(&cluster.nodes[follower], "/leader");
        assert_eq!(answer.status, 503, "{answer:?}");
    }
    assert_eq!(get(&cluster.nodes[leader], "/leader").status, 200);
}

#[test]
fn up_ready_and_metrics_say_what_they_promise() {
    let cluster = Cluster::start_calm();
    let leader = cluster.nodes[cluster.wait_for_leader()].id;
    for node in &cluster.nodes {
        let up = get(node, "/up");
        assert_eq!((up.status, up.text().trim_end()), (200, "ok"));
        let ready = get(node, "/ready");
        let expected = format!("leader={leader} nodeID={} raftAvailable=true", node.id);
        assert_eq!((ready.status, ready.text().trim_end()), (200, expected.as_str()));
        let metrics = get(node, "/metrics");
        let kind = metrics.header("content-type").unwrap_or_default();
        assert!(metrics.status == 200 && !metrics.body.is_empty(), "{metrics:?}");
        assert!(kind.starts_with("text/plain") || kind.starts_with("application/openmetrics-text"));
        assert!(metrics.text().contains("epicepoch_reservations_total"), "{}", metrics.text());
    }
}

#[test]
fn members_lists_every_node_at_the_address_a_client_dials() {
    let cluster = Cluster::start_calm();
    let leader = &cluster.nodes[cluster.wait_for_leader()];
    for node in &cluster.nodes {
        // Client addresses travel with peers' messages; give them a moment after the start.
        wait_until("a node knows every member's address", PATIENCE, || {
            let told = json(&get(node, "/members"));
            let members = told["members"].as_array().map_or(&[][..], Vec::as_slice);
            members.len() == 3 && members.iter().all(|it| it["addr"].is_string())
        });
        for path in ["/members", "/membership"] {
            let told = json(&get(node, path));
            assert_eq!(told["leader"]["nodeID"], leader.id, "{told}");
            assert_eq!(told["leader"]["addr"], leader.http().to_string(), "{told}");
            for other in &cluster.nodes {
                let members = told["members"].as_array().expect("a list");
                let found = members.iter().find(|it| it["nodeID"] == other.id);
                let found = found.unwrap_or_else(|| panic!("node {}: {told}", other.id));
                assert_eq!(found["addr"], other.http().to_string(), "{told}");
            }
        }
    }
}

#[test]
fn an_unknown_path_is_a_404() {
    let cluster = Cluster::start();
    for target in ["/nope", "/timestamps", "/timestamp/", "//timestamp", "/UP"] {
        let answer = get(&cluster.nodes[0], target);
        assert_eq!((answer.status, answer.error()), (404, Some("NOT_FOUND")), "{target}");
    }
}

#[test]
fn without_a_quorum_the_answer_is_503_with_retry_after() {
    let mut cluster = Cluster::start();
    let leader = cluster.wait_for_leader();
    for index in cluster.others(leader) {
        cluster.nodes[index].kill();
    }
    let node = &cluster.nodes[leader];
    for _ in 0..20 {
        let answer = get(node, "/timestamp");
        assert_eq!(answer.status, 503, "{answer:?}");
        let error = answer.error().expect("a code");
        assert!(matches!(error, "NO_QUORUM" | "NO_LEADER"), "{error}");
        let after = answer.header("retry-after").expect("when to retry");
        assert!(after.parse::<u64>().is_ok(), "{after}");
    }
    wait_until("the node knows that it is alone", PATIENCE, || {
        get(node, "/ready").status == 503 && get(node, "/leader").status == 503
    });
    assert_eq!(get(node, "/up").status, 200);
}

#[test]
fn pipelined_requests_are_all_answered_in_turn() {
    const COUNT: usize = 200;
    let cluster = Cluster::start_calm();
    let node = &cluster.nodes[cluster.wait_for_leader()];
    let origin = Instant::now();
    let mut history = History::new(origin);
    let mut wire = wire(node);
    for _ in 0..5 {
        let start = Instant::now();
        let bytes: Vec<u8> = (0..COUNT)
            .flat_map(|at| {
                let id = at.to_string();
                request("GET", "/timestamp", &[("epicepoch-request-id", &id)], b"")
            })
            .collect();
        wire.send(&bytes).expect("the node reads");
        for at in 0..COUNT {
            let answer = wire.receive().expect("the node answers");
            assert_eq!(answer.status, 200, "{answer:?}");
            let id = at.to_string();
            assert_eq!(answer.header("epicepoch-request-id"), Some(id.as_str()));
            let range = read_timestamps(&answer.body, 1).expect("a timestamp");
            let outcome = Outcome::Answered(range);
            history.record(&Operation { start, end: Instant::now(), node: node.id, outcome });
        }
    }
    history.check().assert_clean();
}

/// An h2c connection with prior knowledge, and an answer over it.
struct H2c {
    sender: SendRequest<Empty<Bytes>>,
    authority: String,
}

impl H2c {
    async fn open(node: &Node) -> Self {
        let stream = tokio::net::TcpStream::connect(node.http()).await.expect("the node accepts");
        stream.set_nodelay(true).expect("the option can be set");
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (sender, connection) = handshake.await.expect("the node speaks HTTP/2");
        tokio::spawn(async move {
            // It ends with the test; errors show in the requests.
            let _ = connection.await;
        });
        Self { sender, authority: node.http().to_string() }
    }

    async fn ask(&self, method: &str, target: &str) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{target}", self.authority))
            .header("epicepoch-request-id", "h2-7")
            .body(Empty::new())
            .expect("a request");
        let mut sender = self.sender.clone();
        let response = tokio::time::timeout(LIMIT, sender.send_request(request)).await;
        let response = response.expect("in time").expect("an answer");
        let headers = response
            .headers()
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap_or_default().to_owned()));
        let headers = headers.collect();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body").to_bytes().to_vec();
        Answer { status, headers, body }
    }
}

fn on_a_runtime(story: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be built").block_on(story);
}

#[test]
fn h2c_with_prior_knowledge_speaks_the_same_contract() {
    let cluster = Cluster::start_calm();
    let leader = cluster.wait_for_leader();
    on_a_runtime(async {
        let h2 = H2c::open(&cluster.nodes[leader]).await;
        for (method, target, status, error) in [
            ("GET", "/up", 200, None),
            ("GET", "/ready", 200, None),
            ("GET", "/leader", 200, None),
            ("GET", "/timestamp?n=3", 200, None),
            ("POST", "/timestamp?n=3", 200, None),
            ("GET", "/timestamp?format=range", 200, None),
            ("GET", "/timestamp?format=json", 200, None),
            ("GET", "/members", 200, None),
            ("GET", "/membership", 200, None),
            ("GET", "/metrics", 200, None),
            ("GET", "/nope", 404, Some("NOT_FOUND")),
            ("PUT", "/timestamp", 405, Some("METHOD_NOT_ALLOWED")),
            ("GET", "/timestamp?n=0", 400, Some("BAD_COUNT")),
            ("GET", "/timestamp?format=xml", 400, Some("BAD_FORMAT")),
        ] {
            let answer = h2.ask(method, target).await;
            assert_eq!((answer.status, answer.error()), (status, error), "{target}: {answer:?}");
            let name = answer.header("epicepoch-cluster").unwrap_or_default();
            assert!(is_cluster_header(name), "{target}: {answer:?}");
            if target.starts_with("/timestamp?n=3") {
                assert_eq!(answer.body.len(), 48);
                assert_eq!(answer.header("cache-control"), Some("no-store"));
                assert_eq!(answer.header("epicepoch-request-id"), Some("h2-7"));
            }
        }
        let follower = &cluster.nodes[cluster.others(leader)[0]];
        let answer = H2c::open(follower).await.ask("GET", "/timestamp").await;
        assert_eq!((answer.status, answer.error()), (409, Some("NOT_LEADER")), "{answer:?}");
        let addr = cluster.nodes[leader].http().to_string();
        assert_eq!(answer.header("epicepoch-leader"), Some(addr.as_str()));
    });
}

#[test]
fn streams_of_one_h2c_connection_are_unique_and_in_order() {
    const STREAMS: usize = 50;
    let cluster = Cluster::start_calm();
    let node = &cluster.nodes[cluster.wait_for_leader()];
    let origin = Instant::now();
    let mut history = History::new(origin);
    on_a_runtime(async {
        let h2 = H2c::open(node).await;
        for _ in 0..20 {
            let mut streams = Vec::new();
            for _ in 0..STREAMS {
                streams.push(async {
                    let start = Instant::now();
                    let answer = h2.ask("GET", "/timestamp?n=2").await;
                    (start, Instant::now(), answer)
                });
            }
            for (start, end, answer) in join_all(streams).await {
                assert_eq!(answer.status, 200, "{answer:?}");
                let range = read_timestamps(&answer.body, 2).expect("two timestamps");
                let outcome = Outcome::Answered(range);
                history.record(&Operation { start, end, node: node.id, outcome });
            }
        }
    });
    history.check().assert_clean();
}

/// Drives all of them at once on this thread.
async fn join_all<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, done) in futures.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(value) = future.as_mut().poll(context)
            {
                *done = Some(value);
            }
        }
        if done.iter().all(Option::is_some) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    done.into_iter().flatten().collect()
}
