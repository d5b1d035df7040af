//! HTTP/2 with prior knowledge on the client port.

use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use crate::node::{Cluster, TestNode, WAIT_MAX, await_metric};

type Sender = http2::SendRequest<Empty<Bytes>>;

async fn connect(node: &TestNode) -> Sender {
    let stream = TokioIo::new(TcpStream::connect(node.addr).await.unwrap());
    let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn request(sender: &mut Sender, method: Method, path: &str) -> Response<Bytes> {
    let uri = format!("http://test{path}");
    let request = Request::builder().method(method).uri(uri).body(Empty::new()).unwrap();
    let (parts, body) = sender.send_request(request).await.unwrap().into_parts();
    Response::from_parts(parts, body.collect().await.unwrap().to_bytes())
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let future = async { tokio::time::timeout(WAIT_MAX, future).await.expect("in time") };
    runtime.block_on(future)
}

/// One answer of a node that sends requests on: its status, and the node that it was sent on by.
pub(crate) fn sent_on(node: &TestNode, path: &str, direct: &str) -> (u16, String, usize) {
    block_on(async {
        let uri = format!("http://test{path}");
        let request = Request::builder().uri(uri).header("epicepoch-direct", direct);
        let asked = connect(node).await.send_request(request.body(Empty::new()).unwrap()).await;
        let (parts, body) = asked.unwrap().into_parts();
        let by = parts.headers.get("epicepoch-forwarded").map(|it| it.to_str().unwrap().to_owned());
        let body = body.collect().await.unwrap().to_bytes();
        (parts.status.as_u16(), by.unwrap_or_default(), body.len())
    })
}

#[test]
fn names_and_headers_count_over_http2_as_over_http1() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start(1);
    node.publish(cluster.leading(1, 3, true));
    block_on(async {
        let mut sender = connect(&node).await;
        let mut ask = async |uri: &str, name: &str, value: &str| {
            let request = Request::builder().uri(uri).header(name, value);
            let asked = sender.send_request(request.body(Empty::new()).unwrap());
            asked.await.unwrap().status().as_u16()
        };
        assert_eq!(ask("http://localhost/status", "x", "y").await, 200);
        assert_eq!(ask("http://evil.example/status", "x", "y").await, 403);
        assert_eq!(ask("http://localhost/status", "host", "evil.example").await, 403);
        assert_eq!(ask("http://localhost/status", "origin", "http://evil.example").await, 403);
        assert_eq!(ask("http://evil.example/timestamp", "x", "y").await, 200);
        // A browser is led to the page, and a command for another cluster is refused.
        assert_eq!(ask("http://localhost/", "accept", "text/html").await, 303);
        assert_eq!(ask("http://localhost/", "accept", "*/*").await, 404);
        let members = "http://localhost/admin/members";
        assert_eq!(ask(members, "epicepoch-cluster", "another").await, 400);
    });
}

#[test]
fn requests_over_http2_get_the_same_answers_as_over_http1() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start(1);
    node.publish(cluster.leading(1, 3, true));
    block_on(async {
        let mut sender = connect(&node).await;
        while request(&mut sender, Method::GET, "/leader").await.status() != 200 {}
        let reply = request(&mut sender, Method::GET, "/timestamp").await;
        assert_eq!((reply.status().as_u16(), reply.body().len()), (200, 16));
        assert_eq!(reply.headers()["content-length"], "16");
        assert!(reply.headers().contains_key("epicepoch-cluster"));
        let reply = request(&mut sender, Method::POST, "/timestamp?n=65536").await;
        assert_eq!(reply.body().len(), 1 << 20);
        let reply = request(&mut sender, Method::GET, "/timestamp?n=1000&format=json").await;
        assert_eq!(reply.status(), 200);
        let last = request(&mut sender, Method::GET, "/timestamp").await;
        let latest = request(&mut sender, Method::GET, "/latest").await;
        assert_eq!((latest.status().as_u16(), latest.body()), (200, last.body()));
        for _ in 0..3 {
            for path in [
                "/timestamp?guarantee=lease",
                "/timestamp?n=3&guarantee=quorum",
                "/latest?guarantee=lease",
                "/timestamp?format=json&guarantee=lease",
            ] {
                let reply = request(&mut sender, Method::GET, path).await;
                assert_eq!(
                    (reply.status(), &reply.headers()["epicepoch-proof"]),
                    (200.try_into().unwrap(), &"round".parse().unwrap())
                );
            }
            let reply = request(&mut sender, Method::GET, "/timestamp").await;
            assert!(!reply.headers().contains_key("epicepoch-proof"));
        }
        let reply = request(&mut sender, Method::GET, "/timestamp?guarantee=none").await;
        assert_eq!(reply.status(), 400);
        let reply = request(&mut sender, Method::GET, "/latest?format=json").await;
        assert_eq!(reply.headers()["content-type"], "application/json");
        let reply = request(&mut sender, Method::POST, "/latest").await;
        assert_eq!(
            (reply.status().as_u16(), &reply.headers()["allow"]),
            (405, &"GET".parse().unwrap())
        );
        let reply = request(&mut sender, Method::HEAD, "/up").await;
        assert_eq!((reply.status().as_u16(), reply.body().len()), (200, 0));
        assert_eq!(reply.headers()["content-length"], "2");
        let reply = request(&mut sender, Method::GET, "/timestamp?n=0").await;
        assert_eq!(
            (reply.status().as_u16(), &reply.headers()["epicepoch-error"]),
            (400, &http::HeaderValue::from_static("BAD_COUNT"))
        );
    });
}

#[test]
fn streams_share_rounds_and_get_distinct_timestamps() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start(1);
    node.publish(cluster.leading(1, 3, true));
    block_on(async {
        let mut sender = connect(&node).await;
        while request(&mut sender, Method::GET, "/leader").await.status() != 200 {}
        let ask = |_| {
            let mut sender = sender.clone();
            tokio::spawn(async move { request(&mut sender, Method::GET, "/timestamp").await })
        };
        let tasks: Vec<_> = (0..200).map(ask).collect();
        let mut all = Vec::new();
        for task in tasks {
            let reply = task.await.unwrap();
            assert_eq!(reply.status(), 200);
            all.push(reply.into_body());
        }
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 200);
    });
    assert!(node.metric("epicepoch_rounds_begun_total") < 150);
}

#[test]
fn a_node_that_stops_finishes_open_streams() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start(1);
    node.publish(cluster.leading(1, 3, false));
    block_on(async {
        let mut sender = connect(&node).await;
        while request(&mut sender, Method::GET, "/leader").await.headers()["epicepoch-error"]
            != "NOT_READY"
        {}
        let mut asking = sender.clone();
        let asked =
            tokio::spawn(async move { request(&mut asking, Method::GET, "/timestamp").await });
        tokio::task::spawn_blocking({
            let addr = node.addr;
            move || await_metric(addr, "epicepoch_waiting_requests", 1)
        })
        .await
        .unwrap();
        let workers = node.workers.clone();
        let stopping = tokio::task::spawn_blocking(move || workers.shutdown(WAIT_MAX));
        node.publish(cluster.leading(1, 3, true));
        assert_eq!(asked.await.unwrap().status(), 200);
        drop(sender);
        assert!(stopping.await.unwrap());
    });
}

#[test]
fn a_stream_that_is_reset_frees_its_slot_at_once() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| {
        config.election_timeout = WAIT_MAX / 4;
        config.request_buffer = 1;
    });
    node.publish(cluster.leading(1, 3, false));
    node.await_metric("epicepoch_is_leader", 1);
    let addr = node.addr;
    let await_waiting = move |count| async move {
        let waiting = move || await_metric(addr, "epicepoch_waiting_requests", count);
        tokio::task::spawn_blocking(waiting).await.unwrap();
    };
    block_on(async {
        let sender = connect(&node).await;
        for _ in 0..5 {
            let mut asking = sender.clone();
            let ask = async move { request(&mut asking, Method::GET, "/timestamp?n=5").await };
            let asked = tokio::spawn(ask);
            await_waiting(1).await;
            asked.abort();
            await_waiting(0).await;
        }
        let mut asking = sender.clone();
        let asked =
            tokio::spawn(async move { request(&mut asking, Method::GET, "/timestamp").await });
        await_waiting(1).await;
        node.publish(cluster.leading(1, 3, true));
        // The timestamps for the cancelled requests are never given to another request.
        let reply = asked.await.unwrap();
        assert_eq!((reply.status().as_u16(), reply.body().len()), (200, 16));
    });
}
