//! Tests of the client over HTTP, against scripted servers on real sockets.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use epicepoch_client::{
    AskError, BadAnswer, Client, FailedAttempt, IntervalError, Members, Options, TimestampsError,
    Via,
};
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::interval::IntervalStamp;
use epicepoch_wire::{Epoch, EpochIndex, NodeId, Timestamp, TimestampRange};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const CLUSTER: &str = "00000000000000000000000000000abc.0000000000000001";
const OTHER: &str = "00000000000000000000000000000def.0000000000000001";
const NONE: &str = "00000000000000000000000000000000.0000000000000000";
const WAIT_MAX: Duration = Duration::from_secs(20);

/// What a server does with one request.
enum Line {
    /// Sends these bytes and keeps the connection.
    Say(Vec<u8>),
    /// Closes the connection without an answer.
    HangUp,
    /// Sends these bytes, then closes the connection.
    SayAndHangUp(Vec<u8>),
    /// Sends these bytes, and then stops all tasks of the test for a while.
    SayAndStall(Vec<u8>, Duration),
    /// Never answers.
    Silence,
}

/// A server that follows a script over all connections, and records the requests.
#[derive(Clone)]
struct Server {
    addr: SocketAddr,
    /// Connections that were accepted.
    connections: Arc<AtomicUsize>,
    asked: Arc<Mutex<Vec<String>>>,
    script: Arc<Mutex<VecDeque<Line>>>,
}

impl Server {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("bound");
        let server = Self {
            addr,
            connections: Arc::default(),
            asked: Arc::default(),
            script: Arc::default(),
        };
        let serving = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serving.connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serving.clone().converse(stream));
            }
        });
        server
    }

    fn will(&self, line: Line) -> &Self {
        self.script.lock().expect("no panic").push_back(line);
        self
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("no panic").clone()
    }

    async fn converse(self, mut stream: TcpStream) {
        let mut request = Vec::new();
        while stream.read_buf(&mut request).await.is_ok_and(|read| read > 0) {
            if !request.ends_with(b"\r\n\r\n") {
                continue;
            }
            let text = String::from_utf8_lossy(&request);
            let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
            self.asked.lock().expect("no panic").push(path);
            request.clear();
            let line = self.script.lock().expect("no panic").pop_front();
            match line {
                Some(Line::Say(bytes)) => stream.write_all(&bytes).await.expect("written"),
                Some(Line::SayAndHangUp(bytes)) => {
                    stream.write_all(&bytes).await.expect("written");
                    return;
                }
                Some(Line::SayAndStall(bytes, stall)) => {
                    stream.write_all(&bytes).await.expect("written");
                    std::thread::sleep(stall);
                }
                Some(Line::HangUp) => return,
                Some(Line::Silence) | None => {}
            }
        }
    }
}

fn response(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    response_of(CLUSTER, status, headers, body)
}

fn response_of(cluster: &str, status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nepicepoch-cluster: {cluster}\r\n{headers}\
         content-length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

fn led_by(addr: SocketAddr) -> Vec<u8> {
    let member = format!(r#"{{"nodeID":1,"addr":"{addr}"}}"#);
    let body = format!(r#"{{"leader":{member},"members":[{member}]}}"#);
    response("200 OK", "", body.as_bytes())
}

/// The members, as a node of a cluster with this name lists them.
fn named(name: &str, members: &[&Server], leader: Option<SocketAddr>) -> Vec<u8> {
    named_of(CLUSTER, name, members, leader)
}

fn named_of(cluster: &str, name: &str, members: &[&Server], leader: Option<SocketAddr>) -> Vec<u8> {
    let member = |addr: SocketAddr| format!(r#"{{"nodeID":1,"addr":"{addr}"}}"#);
    let members: Vec<_> = members.iter().map(|server| member(server.addr)).collect();
    let (members, leader) = (members.join(","), leader.map_or("null".to_owned(), member));
    let body = format!(r#"{{"clusterName":"{name}","leader":{leader},"members":[{members}]}}"#);
    response_of(cluster, "200 OK", "", body.as_bytes())
}

fn range(index: u64, count: u64) -> TimestampRange {
    TimestampRange::new(Timestamp::new(Epoch(9), EpochIndex(index)), count).expect("a range")
}

fn stamped(range: TimestampRange) -> Vec<u8> {
    response("200 OK", "", &range.to_bytes())
}

fn options() -> Options {
    let mut options = Options::default();
    options.via = Via::Http;
    options.attempt_timeout = Duration::from_secs(1);
    options
}

fn client(servers: &[&Server]) -> Client {
    client_with(servers, options())
}

/// A client of the cluster with the name `mine`.
fn named_client(servers: &[&Server]) -> Client {
    let mut options = options();
    options.cluster_name = Some("mine".to_owned());
    client_with(servers, options)
}

fn client_with(servers: &[&Server], options: Options) -> Client {
    Client::new(servers.iter().map(|server| server.addr.to_string()), options).expect("addresses")
}

fn deadline() -> Instant {
    Instant::now() + WAIT_MAX
}

#[tokio::test]
async fn one_connection_serves_one_call_after_another() {
    let server = Server::start().await;
    server.will(Line::Say(led_by(server.addr)));
    server.will(Line::Say(stamped(range(0, 3)))).will(Line::Say(stamped(range(3, 1))));
    let client = client(&[&server]);
    assert_eq!(client.timestamps_before(3, deadline()).await, Ok(range(0, 3)));
    assert_eq!(client.timestamps_before(1, deadline()).await, Ok(range(3, 1)));
    let expected = ["/members", "/timestamp?format=range&n=3", "/timestamp?format=range&n=1"];
    assert_eq!(server.asked(), expected);
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_409_leads_to_the_leader_it_names() {
    let (old, new) = (Server::start().await, Server::start().await);
    old.will(Line::Say(led_by(old.addr)));
    let headers = format!("epicepoch-error: NOT_LEADER\r\nepicepoch-leader: {}\r\n", new.addr);
    old.will(Line::Say(response("409 Conflict", &headers, b"ask the leader\n")));
    new.will(Line::Say(stamped(range(0, 1))));
    assert_eq!(client(&[&old]).timestamps_before(1, deadline()).await, Ok(range(0, 1)));
    assert_eq!(new.asked(), ["/timestamp?format=range&n=1"]);
}

#[tokio::test]
async fn a_kept_connection_that_the_server_closed_is_no_failed_attempt() {
    let server = Server::start().await;
    server.will(Line::Say(led_by(server.addr))).will(Line::SayAndHangUp(stamped(range(0, 1))));
    server.will(Line::Say(stamped(range(1, 1))));
    let client = client(&[&server]);
    assert_eq!(client.timestamps_before(1, deadline()).await, Ok(range(0, 1)));
    assert_eq!(client.timestamps_before(1, deadline()).await, Ok(range(1, 1)));
    assert_eq!(server.asked().len(), 3, "the leader is still known");
    assert_eq!(server.connections.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_second_answer_to_one_request_is_never_the_answer_to_the_next() {
    let server = Server::start().await;
    let twice = [stamped(range(0, 1)), stamped(range(1, 1))].concat();
    server.will(Line::Say(led_by(server.addr))).will(Line::Say(twice));
    server.will(Line::Say(stamped(range(2, 1))));
    let client = client(&[&server]);
    assert_eq!(client.timestamps_before(1, deadline()).await, Ok(range(0, 1)));
    assert_eq!(client.timestamps_before(1, deadline()).await, Ok(range(2, 1)));
    assert_eq!(server.connections.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_call_that_was_given_up_leaves_its_answer_to_nobody() {
    let server = Server::start().await;
    server.will(Line::Say(led_by(server.addr)));
    let client = client(&[&server]);
    client.members(deadline()).await.expect("a list");
    server.will(Line::Silence);
    let asked = server.asked().len() + 1;
    let call = client.timestamps_before(1, deadline());
    let given_up = async {
        while server.asked().len() < asked {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        answered = call => panic!("{answered:?}"),
        () = given_up => {}
    }
    server.will(Line::Say(stamped(range(0, 1))));
    let before = server.connections.load(Ordering::SeqCst);
    assert_eq!(client.timestamps_before(1, deadline()).await, Ok(range(0, 1)));
    assert_eq!(server.connections.load(Ordering::SeqCst), before + 1);
}

#[tokio::test]
async fn answers_of_proxies_and_old_servers_are_read() {
    let cluster = format!("epicepoch-cluster: {CLUSTER}\r\n");
    let bytes = range(0, 1).to_bytes();
    let with = |head: String, rest: &[&[u8]]| [head.as_bytes(), &rest.concat()].concat();
    for (answer, is_kept) in [
        (
            with(
                format!("HTTP/1.1 200 OK\r\n{cluster}Transfer-Encoding: chunked\r\n\r\n"),
                &[b"10\r\n", &bytes[..16], b"\r\n8\r\n", &bytes[16..], b"\r\n0\r\n\r\n"],
            ),
            true,
        ),
        (
            with(
                format!(
                    "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200\r\n\
                     Via: 1.1 a\r\nVia: 1.1 b\r\n{cluster}CONTENT-LENGTH: 24\r\n\r\n"
                ),
                &[&bytes],
            ),
            true,
        ),
        (with(format!("HTTP/1.0 200 OK\r\n{cluster}\r\n"), &[&bytes]), false),
        (with(format!("HTTP/1.1 200 OK\r\n{cluster}\r\n"), &[&bytes]), false),
    ] {
        let server = Server::start().await;
        let line = if is_kept { Line::Say } else { Line::SayAndHangUp };
        server.will(Line::Say(led_by(server.addr))).will(line(answer));
        server.will(Line::Say(stamped(range(1, 1))));
        let client = client(&[&server]);
        assert_eq!(client.timestamps_before(1, deadline()).await, Ok(range(0, 1)));
        assert_eq!(client.timestamps_before(1, deadline()).await, Ok(range(1, 1)));
        assert_eq!(server.asked().len(), 3, "no request was repeated");
        assert_eq!(server.connections.load(Ordering::SeqCst), 2 - usize::from(is_kept));
    }
}

#[tokio::test]
async fn a_kept_connection_that_the_server_gives_up_with_408_is_no_failed_attempt() {
    let server = Server::start().await;
    server.will(Line::Say(led_by(server.addr)));
    server.will(Line::SayAndHangUp(response("408 Request Timeout", "connection: close\r\n", b"")));
    server.will(Line::Say(stamped(range(0, 1))));
    let client = client(&[&server]);
    assert_eq!(client.timestamps_before(1, deadline()).await, Ok(range(0, 1)));
    let expected = ["/members", "/timestamp?format=range&n=1", "/timestamp?format=range&n=1"];
    assert_eq!(server.asked(), expected);
}

#[tokio::test]
async fn a_malformed_answer_is_a_failed_attempt_that_is_not_repeated() {
    let server = Server::start().await;
    server.will(Line::Say(response("200 OK", "", b"")));
    server.will(Line::Say(response("200 OK", "Content-Length: 7\r\n", b"")));
    let (client, addr) = (client(&[&server]), server.addr.to_string());
    assert_eq!(client.leads(&addr, deadline()).await, Ok(true));
    let error = client.leads(&addr, deadline()).await.unwrap_err().to_string();
    assert!(error.contains("content-length comes twice"), "{error}");
    assert_eq!(server.asked().len(), 2);
}

#[tokio::test]
async fn an_address_cannot_add_a_line_to_a_request() {
    let server = Server::start().await;
    let client = client(&[&server]);
    for bad in [format!("{}\r\nx: y", server.addr), format!("x y@{}", server.addr), String::new()] {
        let error = client.leads(&bad, deadline()).await.unwrap_err();
        let is_right = matches!(&error, AskError::FailedAttempt(FailedAttempt::Unreachable { .. }));
        assert!(is_right, "{error}");
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_node_that_names_its_build_tells_it_and_an_older_one_does_not() {
    let server = Server::start().await;
    let new =
        br#"{"leader":null,"members":[],"version":"1.2","commit":"c","profile":"p","target":"t"}"#;
    server.will(Line::Say(response("200 OK", "", new))).will(Line::Say(led_by(server.addr)));
    let client = client(&[&server]);
    let addr = server.addr.to_string();
    let build = client.build(&addr, deadline()).await.unwrap().expect("the node says its build");
    let told = [build.version, build.commit, build.profile, build.target];
    assert_eq!(told, ["1.2", "c", "p", "t"]);
    assert_eq!(client.build(&addr, deadline()).await, Ok(None));
}

#[tokio::test]
async fn a_leader_that_dies_or_falls_silent_is_survived_inside_the_deadline() {
    for end in [Line::HangUp, Line::Silence] {
        let (old, new) = (Server::start().await, Server::start().await);
        old.will(Line::Say(led_by(old.addr))).will(end);
        for _ in 0..100 {
            new.will(Line::Say(led_by(new.addr))).will(Line::Say(stamped(range(0, 1))));
        }
        let got = client(&[&old, &new]).timestamps_before(1, deadline()).await;
        assert_eq!(got, Ok(range(0, 1)));
    }
}

#[tokio::test]
async fn nothing_is_returned_after_the_deadline() {
    let server = Server::start().await;
    let client = client(&[&server]);
    let silent = FailedAttempt::Silent { addr: server.addr.to_string() };
    let mut got = Ok(range(0, 1));
    // If the machine stalls, the deadline may pass before any request is sent. So the test is
    // repeated.
    for _ in 0..10 {
        let short = Instant::now() + Duration::from_millis(30);
        got = client.timestamps_before(1, short).await;
        if got != Err(TimestampsError::DeadlineExceeded { last: None }) {
            break;
        }
    }
    assert_eq!(got, Err(TimestampsError::DeadlineExceeded { last: Some(silent) }));
    let past = Instant::now();
    let got = client.timestamps_before(1, past).await;
    assert_eq!(got, Err(TimestampsError::DeadlineExceeded { last: None }));
}

#[tokio::test]
async fn an_endless_answer_is_cut_off() {
    let server = Server::start().await;
    for _ in 0..1000 {
        let head = format!("HTTP/1.1 200 OK\r\nepicepoch-cluster: {CLUSTER}\r\n");
        let body = vec![b' '; 1 << 20];
        let head = format!("{head}content-length: {}\r\n\r\n", u32::MAX);
        server.will(Line::SayAndHangUp([head.as_bytes(), &body].concat()));
    }
    let short = Instant::now() + Duration::from_millis(200);
    let got = client(&[&server]).members(short).await;
    assert!(got.is_err(), "{got:?}");
}

#[tokio::test]
async fn one_node_reports_its_state() {
    let server = Server::start().await;
    server.will(Line::Say(led_by(server.addr)));
    server.will(Line::Say(response("200 OK", "", b"leader=1 nodeID=1 raftAvailable=true\n")));
    server.will(Line::Say(response("503 Service Unavailable", "", b"")));
    server.will(Line::Say(response("404 Not Found", "", b"")));
    let (client, addr) = (client(&[&server]), server.addr.to_string());
    let Members { leader, members, .. } = client.members(deadline()).await.expect("a list");
    assert_eq!(leader.as_ref(), members.first());
    let readiness = client.ready(&addr, deadline()).await.expect("an answer");
    assert!(readiness.ready && readiness.detail == "leader=1 nodeID=1 raftAvailable=true");
    assert_eq!(client.leads(&addr, deadline()).await, Ok(false));
    let got = client.leads(&addr, deadline()).await;
    assert!(matches!(got, Err(AskError::BadAnswer(_))), "{got:?}");
}

/// These answers do not say the name of the cluster.
#[tokio::test]
async fn the_state_of_a_node_does_not_fix_the_cluster_of_a_client_that_knows_its_name() {
    let (wrong, right) = (Server::start().await, Server::start().await);
    for _ in 0..2 {
        wrong.will(Line::Say(response_of(OTHER, "200 OK", "", b"")));
    }
    let client = named_client(&[&wrong, &right]);
    let addr = wrong.addr.to_string();
    assert!(client.ready(&addr, deadline()).await.is_ok());
    assert!(client.leads(&addr, deadline()).await.is_ok());
    right.will(Line::Say(named("mine", &[&right], Some(right.addr))));
    right.will(Line::Say(stamped(range(0, 1))));
    wrong.will(Line::HangUp);
    assert_eq!(client.timestamps_before(1, deadline()).await, Ok(range(0, 1)));
}

#[tokio::test]
async fn addresses_are_checked_before_anything_is_sent() {
    for bad in [vec![], vec!["localhost"], vec!["a:1", "http://b:2"]] {
        assert!(Client::new(bad.clone(), Options::default()).is_err(), "{bad:?}");
    }
}

fn stamp(node: u64) -> IntervalStamp {
    IntervalStamp::new(10, 20, NodeId(node), 0).expect("an interval")
}

fn stamp_of(node: u64) -> Line {
    Line::Say(response("200 OK", "", &stamp(node).to_bytes()))
}

fn refused(status: &str, code: &str) -> Line {
    Line::Say(response(status, &format!("epicepoch-error: {code}\r\n"), b"no\n"))
}

fn other_mode() -> Line {
    refused("422 Unprocessable Content", "OTHER_MODE")
}

fn uncertain() -> Line {
    refused("503 Service Unavailable", "UNCERTAIN")
}

/// A node that lags behind a change of the mode says the same as a cluster in quorum mode.
#[tokio::test]
async fn a_node_that_lags_behind_a_change_of_the_mode_is_passed_over() {
    let (lagging, other) = (Server::start().await, Server::start().await);
    lagging.will(other_mode());
    other.will(stamp_of(2)).will(stamp_of(2));
    let client = client(&[&lagging, &other]);
    for _ in 0..2 {
        let got = client.intervals(1, deadline()).await.expect("the other node is certain");
        assert_eq!(got.timestamp, stamp(2).timestamp());
    }
    assert_eq!((lagging.asked().len(), other.asked().len()), (1, 2));
}

#[tokio::test]
async fn a_cluster_in_quorum_mode_ends_a_call_after_each_node_was_asked_once() {
    let nodes = [Server::start().await, Server::start().await, Server::start().await];
    for (node, line) in nodes.iter().zip([other_mode(), Line::HangUp, other_mode()]) {
        node.will(line);
    }
    let error = client(&[&nodes[0], &nodes[1], &nodes[2]]).intervals(1, deadline()).await;
    let Err(IntervalError::BadAnswer(BadAnswer::Refused { addr, code, .. })) = error else {
        panic!("{error:?}");
    };
    assert_eq!((addr, code), (nodes[0].addr.to_string(), ErrorCode::OtherMode));
    assert_eq!(nodes.map(|node| node.asked().len()), [1; 3]);
}

#[tokio::test]
async fn a_node_that_is_uncertain_proves_that_the_cluster_is_in_interval_mode() {
    let (lagging, unsure) = (Server::start().await, Server::start().await);
    lagging.will(other_mode()).will(other_mode()).will(stamp_of(1));
    unsure.will(uncertain()).will(uncertain());
    let got = client(&[&lagging, &unsure]).intervals(1, deadline()).await;
    assert_eq!(got.expect("the node has caught up").timestamp, stamp(1).timestamp());
    assert_eq!((lagging.asked().len(), unsure.asked().len()), (3, 2));
}

/// The way back from interval mode is rare, so the client needs no other node to believe that this one
/// lags.
#[tokio::test]
async fn a_client_that_has_met_interval_mode_knows_that_a_node_lags() {
    let node = Server::start().await;
    node.will(stamp_of(1)).will(other_mode()).will(other_mode()).will(stamp_of(1));
    let client = client(&[&node]);
    for _ in 0..2 {
        let got = client.intervals(1, deadline()).await.expect("it has caught up");
        assert_eq!(got.timestamp, stamp(1).timestamp());
    }
    assert_eq!(node.asked().len(), 4);
}

/// Each of these nodes is broken, old or behind a busy proxy. Another one is well.
#[tokio::test]
async fn a_refusal_of_one_node_does_not_end_a_call_for_an_interval() {
    for line in [
        refused("500 Internal Server Error", "INTERNAL"),
        refused("404 Not Found", "NOT_FOUND"),
        Line::Say(response("429 Too Many Requests", "", b"")),
        Line::Say(response("500 Internal Server Error", "", b"")),
        Line::Say(response("502 Bad Gateway", "", b"")),
    ] {
        let (bad, good) = (Server::start().await, Server::start().await);
        bad.will(line);
        good.will(stamp_of(2));
        let got = client(&[&bad, &good]).intervals(1, deadline()).await.expect("another is well");
        assert_eq!(got.timestamp, stamp(2).timestamp());
    }
    let node = Server::start().await;
    node.will(refused("404 Not Found", "NOT_FOUND"));
    let error = client(&[&node]).intervals(1, deadline()).await;
    let Err(IntervalError::BadAnswer(BadAnswer::Refused { code, .. })) = error else {
        panic!("{error:?}");
    };
    assert_eq!(code, ErrorCode::NotFound, "all nodes are too old");
}

#[tokio::test]
async fn a_node_that_ended_a_call_is_not_asked_first_by_the_next() {
    let (first, second) = (Server::start().await, Server::start().await);
    first.will(uncertain()).will(stamp_of(1));
    second.will(stamp_of(2)).will(refused("403 Forbidden", "FORBIDDEN"));
    let client = client(&[&first, &second]);
    assert!(client.intervals(1, deadline()).await.is_ok());
    assert!(client.intervals(1, deadline()).await.is_err(), "the second node is asked first");
    let got = client.intervals(1, deadline()).await.expect("the first node is well");
    assert_eq!(got.timestamp, stamp(1).timestamp());
    assert_eq!((first.asked().len(), second.asked().len()), (2, 2));
}

/// The answer and the end of the call's time come at the same moment, as in a process that was stopped.
#[tokio::test]
async fn an_interval_after_the_deadline_is_not_returned() {
    let node = Server::start().await;
    let Line::Say(bytes) = stamp_of(1) else { unreachable!("it says a stamp") };
    node.will(Line::SayAndStall(bytes, Duration::from_millis(400)));
    let short = Instant::now() + Duration::from_millis(200);
    let error = client(&[&node]).intervals(1, short).await;
    assert!(matches!(error, Err(IntervalError::DeadlineExceeded { .. })), "{error:?}");
}

/// Intervals do not say the name of their cluster, and this one is of a cluster that has no name yet.
#[tokio::test]
async fn a_client_that_knows_the_name_takes_no_interval_of_another_cluster() {
    let (wrong, right) = (Server::start().await, Server::start().await);
    wrong.will(Line::Say(named_of(OTHER, "yours", &[&wrong], None))).will(Line::HangUp);
    let client = named_client(&[&wrong, &right]);
    let error = client.intervals(1, deadline()).await;
    assert!(matches!(error, Err(IntervalError::AnotherCluster(_))), "{error:?}");
    assert_eq!(wrong.asked(), ["/members"]);
    // The second node has not joined at first.
    let unborn = r#"{"clusterName":"mine","leader":null,"members":[]}"#;
    right.will(Line::Say(response_of(NONE, "200 OK", "", unborn.as_bytes())));
    wrong.will(Line::HangUp);
    right.will(Line::Say(named("mine", &[&right], None))).will(stamp_of(2)).will(stamp_of(2));
    for _ in 0..2 {
        let got = client.intervals(1, deadline()).await.expect("the right node is certain");
        assert_eq!(got.timestamp, stamp(2).timestamp());
    }
    assert_eq!(right.asked(), ["/members", "/members", "/interval?n=1", "/interval?n=1"]);
}

#[tokio::test]
async fn an_interval_of_no_cluster_is_refused() {
    let bytes = stamp(1).to_bytes();
    let nameless =
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", bytes.len()).into_bytes();
    for answer in [[nameless, bytes.to_vec()].concat(), response_of(NONE, "200 OK", "", &bytes)] {
        let node = Server::start().await;
        node.will(stamp_of(1)).will(Line::Say(answer));
        let client = client(&[&node]);
        assert!(client.intervals(1, deadline()).await.is_ok());
        let error = client.intervals(1, deadline()).await;
        let is_right = matches!(error, Err(IntervalError::BadAnswer(BadAnswer::Foreign { .. })));
        assert!(is_right, "{error:?}");
    }
}

/// With an interval of zero, each call reads the members once.
#[tokio::test]
async fn the_members_are_read_again_also_while_calls_succeed() {
    let (old, new) = (Server::start().await, Server::start().await);
    let mut options = options();
    options.refresh_interval = Duration::ZERO;
    let client = client_with(&[&old], options);
    old.will(Line::Say(named("", &[&old, &new], None))).will(stamp_of(1));
    assert!(client.intervals(1, deadline()).await.is_ok());
    // The node that the client was given is gone.
    for _ in 0..2 {
        old.will(Line::HangUp);
    }
    new.will(stamp_of(2));
    let got = client.intervals(1, deadline()).await.expect("the new member is known");
    assert_eq!(got.timestamp, stamp(2).timestamp());
    new.will(Line::Say(led_by(new.addr))).will(stamp_of(2));
    assert!(client.intervals(1, deadline()).await.is_ok());
    new.will(Line::Say(led_by(new.addr))).will(Line::Say(led_by(new.addr)));
    new.will(Line::Say(stamped(range(0, 1))));
    client.members(deadline()).await.expect("a list");
    assert_eq!(client.timestamps_before(1, deadline()).await, Ok(range(0, 1)));
    let (members, interval) = ("/members", "/interval?n=1");
    let expected = [interval, members, interval, members, members, "/timestamp?format=range&n=1"];
    assert_eq!(new.asked(), expected);
}

#[tokio::test]
async fn a_reader_is_told_by_how_much_what_it_found_is_still_ahead() {
    let node = Server::start().await;
    // The node is sure that 10 ns are past.
    let found = |ms: u64| Timestamp::new(Epoch(9 + ms * 1_000_000), EpochIndex(0));
    let mut options = options();
    options.timeout = WAIT_MAX;
    node.will(stamp_of(1));
    let patient = client_with(&[&node], options.clone());
    assert_eq!(patient.must_retry(found(0), found(0)).await, Ok(true));
    options.timeout = Duration::from_millis(300);
    let mut text = String::new();
    // If the machine stalls, the answer may come after the deadline. So the test is repeated.
    for _ in 0..10 {
        node.will(stamp_of(1));
        let client = client_with(&[&node], options.clone());
        let error = client.must_retry(found(0), found(3_600_000)).await;
        text = error.expect_err("it is an hour ahead").to_string();
        if text.contains("3600000 ms ahead") {
            return;
        }
    }
    panic!("{text}");
}
