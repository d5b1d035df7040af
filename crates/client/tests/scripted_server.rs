//! Tests of the client over HTTP, against scripted servers on real sockets.

#[path = "scripted_server/intervals.rs"]
mod intervals;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use epicepoch_client::{
    AskError, BadAnswer, Client, FailedAttempt, Members, Options, TimestampsError, Via,
};
use epicepoch_wire::http::ErrorCode;
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
fn named_client(servers: &[&Server], mut options: Options) -> Client {
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
    let client = named_client(&[&wrong, &right], options());
    let addr = wrong.addr.to_string();
    assert!(client.ready(&addr, deadline()).await.is_ok());
    assert!(client.leads(&addr, deadline()).await.is_ok());
    right.will(Line::Say(named("mine", &[&right], Some(right.addr))));
    right.will(Line::Say(stamped(range(0, 1))));
    // The request goes over the kept connection, and then over a new one.
    wrong.will(Line::HangUp).will(Line::HangUp);
    assert_eq!(client.timestamps_before(1, deadline()).await, Ok(range(0, 1)));
}

#[tokio::test]
async fn addresses_are_checked_before_anything_is_sent() {
    for bad in [vec![], vec!["localhost"], vec!["a:1", "http://b:2"]] {
        assert!(Client::new(bad.clone(), Options::default()).is_err(), "{bad:?}");
    }
}
