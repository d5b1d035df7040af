//! The native protocol of `docs/protocol.md` over real sockets.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use epicepoch_core::publication::Published;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::frame::Header;
use epicepoch_wire::native::message::ping;
use epicepoch_wire::native::{
    ClientHello, FEATURE_LATEST, FEATURES_OF_NODE, Request, TO_CLIENT_TAIL_LEN_MAX, ToClient,
    Welcome, split,
};
use epicepoch_wire::{
    ClusterId, Guarantee, HistoryId, NodeId, ProvedBy, Timestamp, TimestampFormat, TimestampRange,
};

use crate::node::{CLUSTER, Cluster, START_NS, TestNode, WAIT_MAX};

/// The in-flight limit of `docs/protocol.md`.
const IN_FLIGHT_MAX: u64 = 1024;

fn serving_alone() -> (Cluster, TestNode) {
    let mut cluster = Cluster::new(1);
    let node = cluster.start(1);
    node.publish(cluster.leading(1, 3, true));
    (cluster, node)
}

/// A frame from a node, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    Welcome(Box<Welcome>),
    Answer(u64, TimestampRange),
    /// An answer that says that a lease has proved it.
    Leased(u64, TimestampRange),
    Latest(u64, Timestamp),
    Error {
        code: Option<ErrorCode>,
        closes: bool,
        id: u64,
        text: String,
    },
    Leader(NodeId, String),
    Pong(u64),
    Goodbye,
    End,
}

pub(crate) struct Native {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Native {
    pub(crate) fn connect(node: &TestNode) -> Self {
        Self::connect_to(node.addr)
    }

    pub(crate) fn connect_to(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, buffer: Vec::new() }
    }

    /// A connection after the handshake.
    fn open(node: &TestNode) -> Self {
        let mut client = Self::connect(node);
        client.hello(&ClientHello::default());
        assert!(matches!(client.next(), Got::Welcome(_)));
        client
    }

    pub(crate) fn hello(&mut self, hello: &ClientHello) {
        let mut bytes = Vec::new();
        hello.encode(&mut bytes);
        self.send(&bytes);
    }

    fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub(crate) fn ask(&mut self, id: u64, count: u64) {
        self.send(&Request::new(id, count).unwrap().to_bytes());
    }

    /// Asks for the latest timestamp.
    pub(crate) fn ask_latest(&mut self, id: u64) {
        self.send(&Request::latest(id).to_bytes());
    }

    pub(crate) fn next(&mut self) -> Got {
        loop {
            if let Some(frame) = split(&self.buffer, TO_CLIENT_TAIL_LEN_MAX).unwrap() {
                let got = match ToClient::decode(&frame).unwrap() {
                    ToClient::Welcome(welcome) => Got::Welcome(welcome),
                    ToClient::Answer { id, range, proved_by: ProvedBy::Lease, .. } => {
                        Got::Leased(id, range)
                    }
                    ToClient::Answer { id, range, is_latest: false, .. } => Got::Answer(id, range),
                    ToClient::Answer { id, range, is_latest: true, .. } => {
                        Got::Latest(id, range.first())
                    }
                    ToClient::Error(error) => Got::Error {
                        code: error.error_code(),
                        closes: error.closes,
                        id: error.id,
                        text: error.text.to_owned(),
                    },
                    ToClient::Leader(leader) => Got::Leader(leader.node, leader.addr.to_owned()),
                    ToClient::Pong(id) => Got::Pong(id),
                    ToClient::Goodbye => Got::Goodbye,
                    other => panic!("no node sends {other:?}"),
                };
                let length = frame.len();
                self.buffer.drain(..length);
                return got;
            }
            let mut chunk = [0; 16 << 10];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Got::End,
                Ok(length) => self.buffer.extend_from_slice(&chunk[..length]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Got::End,
                Err(error) => panic!("nothing comes: {error}"),
            }
        }
    }

    /// Returns the range of the next answer, which must be to request `id`.
    pub(crate) fn range(&mut self, id: u64) -> TimestampRange {
        match self.next() {
            Got::Answer(of, range) if of == id => range,
            other => panic!("no answer to {id}: {other:?}"),
        }
    }

    /// Returns the code of the next refusal. It must be to request `id` and leave the connection
    /// open.
    fn refusal(&mut self, id: u64) -> (ErrorCode, String) {
        match self.next() {
            Got::Error { code: Some(code), closes: false, id: of, text } if of == id => {
                (code, text)
            }
            other => panic!("no refusal of {id}: {other:?}"),
        }
    }

    /// Returns the code of the next error, after which the connection must end.
    pub(crate) fn end(&mut self) -> ErrorCode {
        let got = self.next();
        let Got::Error { code: Some(code), closes: true, .. } = got else {
            panic!("no error that closes: {got:?}")
        };
        assert_eq!(self.next(), Got::End);
        code
    }
}

#[test]
fn the_welcome_has_everything_that_a_client_must_know() {
    let (_cluster, node) = serving_alone();
    let mut client = Native::connect(&node);
    let hello = ClientHello {
        cluster_name: "epicepoch".into(),
        cluster: Some((CLUSTER, HistoryId(9))),
        agent: "test".into(),
        features: u64::MAX,
        newest: 9,
        ..ClientHello::default()
    };
    client.hello(&hello);
    let Got::Welcome(welcome) = client.next() else { panic!("not welcome") };
    let both = FEATURES_OF_NODE;
    assert_eq!((welcome.version, welcome.features, welcome.node), (1, both, NodeId(1)));
    assert_eq!(welcome.cluster, Some((CLUSTER, HistoryId(9))));
    assert_eq!(welcome.cluster_name, "epicepoch");
    assert_eq!((welcome.in_flight_max, welcome.count_max), (1024, 1 << 32));
    assert_eq!(welcome.idle_ms, 120_000);
    let leader = welcome.leader.unwrap();
    assert_eq!((leader.node, leader.addr.as_str()), (NodeId(1), "client-1.test:80"));
    assert_eq!(welcome.members, [leader]);
    assert_eq!(node.metric("epicepoch_native_connections_open"), 1);
}

#[test]
fn a_request_gets_as_many_consecutive_timestamps_as_it_asks_for() {
    let (_cluster, node) = serving_alone();
    let mut client = Native::open(&node);
    let mut last = None;
    for (id, count) in [(0, 1), (u64::MAX, 3), (7, 1 << 32), (7, 1)] {
        client.ask(id, count);
        let range = client.range(id);
        assert_eq!(range.count(), count);
        assert!(Some(range.first()) > last);
        last = Some(range.last());
    }
    assert_eq!(node.metric("epicepoch_native_requests_total{outcome=\"answered\"}"), 4);
    assert_eq!(node.metric("epicepoch_timestamps_total"), (1 << 32) + 5);
}

#[test]
fn a_cluster_with_wide_timestamps_refuses_requests_that_need_compact_ones() {
    let (_cluster, node) = serving_alone();
    let mut client = Native::connect(&node);
    let timestamp_format = Some(TimestampFormat::Compact);
    client.hello(&ClientHello { timestamp_format, ..ClientHello::default() });
    assert!(matches!(client.next(), Got::Welcome(_)));
    client.ask(7, 1);
    let (code, text) = (Some(ErrorCode::NotCompact), String::new());
    assert_eq!(client.next(), Got::Error { code, closes: false, id: 7, text });
    for (name, value) in [
        ("native_requests_total{outcome=\"refused\"}", 1),
        ("native_requests_total{outcome=\"answered\"}", 0),
        ("refusals_total{code=\"NOT_COMPACT\"}", 1),
    ] {
        assert_eq!(node.metric(&format!("epicepoch_{name}")), value, "{name}");
    }
}

#[test]
fn requests_that_come_together_get_ranges_of_their_own_in_order() {
    let (_cluster, node) = serving_alone();
    let mut client = Native::connect(&node);
    let mut bytes = Vec::new();
    ClientHello::default().encode(&mut bytes);
    for id in 0..900 {
        bytes.extend_from_slice(&Request::new(id, 1 + id % 3).unwrap().to_bytes());
    }
    client.send(&bytes);
    assert!(matches!(client.next(), Got::Welcome(_)));
    let ranges: Vec<_> = (0..900).map(|id| client.range(id)).collect();
    assert!(ranges.is_sorted_by(|a, b| a.last() < b.first()));
    assert!(ranges.iter().zip(0..).all(|(range, id)| range.count() == 1 + id % 3));
}

#[test]
fn the_latest_timestamp_takes_none_and_a_node_offers_the_request() {
    let (_cluster, node) = serving_alone();
    for (offered, both) in [(0, 0), (u64::MAX, FEATURES_OF_NODE), (FEATURE_LATEST, FEATURE_LATEST)]
    {
        let mut client = Native::connect(&node);
        client.hello(&ClientHello { features: offered, ..ClientHello::default() });
        let Got::Welcome(welcome) = client.next() else { panic!("no welcome") };
        assert_eq!(welcome.features, both);
    }
    let mut client = Native::open(&node);
    client.ask_latest(1);
    assert_eq!(client.next(), Got::Latest(1, Timestamp::highest_at(START_NS)), "none was given");
    client.ask(2, 3);
    let given = client.range(2);
    for id in 3..6 {
        client.ask_latest(id);
        assert_eq!(client.next(), Got::Latest(id, given.last()));
    }
    client.ask(6, 1);
    assert!(client.range(6).first() > given.last());
    assert_eq!(node.metric("epicepoch_timestamps_total"), 4);
}

#[test]
fn requests_of_one_read_for_the_latest_timestamp_get_the_last_one_of_all() {
    let (_cluster, node) = serving_alone();
    let mut client = Native::open(&node);
    let counts = [0, 2, 0, 1, 0, 0, 3, 0];
    let mut bytes = Vec::new();
    for (id, count) in (0..).zip(counts) {
        let request = Request::new(id, count).unwrap_or_else(|| Request::latest(id));
        bytes.extend_from_slice(&request.to_bytes());
    }
    let mut highest = Timestamp::default();
    let mut whole = 0;
    for _ in 0..20 {
        client.send(&bytes);
        let got: Vec<_> = counts.iter().map(|_| client.next()).collect();
        // A burst may end behind any request, if the bytes come in several reads. So R is the last
        // timestamp of this request or of a later one, and of all of them if there is one burst.
        let (mut ends, mut last) = (Vec::new(), highest);
        for got in &got {
            if let Got::Answer(_, range) = got {
                assert!(range.first() > last);
                last = range.last();
            }
            ends.push(last);
        }
        let mut latest = got.iter().enumerate().filter_map(|(at, got)| match got {
            Got::Latest(id, latest) => Some((at, *id, *latest)),
            _ => None,
        });
        assert!(latest.clone().all(|(at, id, r)| at as u64 == id && ends[at..].contains(&r)));
        whole += u32::from(latest.all(|(_, _, r)| r == last));
        highest = last;
    }
    assert!(whole > 0, "no burst was read as a whole");
}

#[test]
fn a_client_may_name_a_guarantee_for_its_connection() {
    let (_cluster, node) = serving_alone();
    for guarantee in [Guarantee::Quorum, Guarantee::Lease] {
        let mut client = Native::connect(&node);
        client.hello(&ClientHello { guarantee: Some(guarantee), ..ClientHello::default() });
        assert!(matches!(client.next(), Got::Welcome(_)));
        client.ask(1, 2);
        // This node has no lease. So a round proves the answer, and the request is not refused.
        let range = client.range(1);
        client.ask_latest(2);
        assert_eq!(client.next(), Got::Latest(2, range.last()));
    }
}

#[test]
fn frames_may_come_byte_by_byte() {
    let (_cluster, node) = serving_alone();
    let mut client = Native::connect(&node);
    let mut bytes = Vec::new();
    ClientHello { agent: "slow".into(), ..ClientHello::default() }.encode(&mut bytes);
    bytes.extend_from_slice(&Request::new(1, 1).unwrap().to_bytes());
    bytes.extend_from_slice(&ping(5));
    for byte in bytes {
        client.send(&[byte]);
        // Pauses, so that the node parses each byte before the next one comes.
        std::thread::sleep(Duration::from_micros(300));
    }
    assert!(matches!(client.next(), Got::Welcome(_)));
    client.range(1);
    assert_eq!(client.next(), Got::Pong(5));
}

#[test]
fn an_unknown_frame_is_refused_by_its_id_and_the_connection_continues() {
    let (_cluster, node) = serving_alone();
    let mut client = Native::open(&node);
    let unknown = |kind, flags, argument, id| {
        Header { kind, flags, code: 0, argument, id }.to_bytes().to_vec()
    };
    let mut bytes = unknown(0x3f, 0, 0, 1);
    bytes.extend([unknown(0x7f, 0, 0, 2), vec![1; 16]].concat());
    bytes.extend([unknown(0xbf, 0, 3000, 3), vec![1; 3000]].concat());
    bytes.extend(unknown(0x01, 2, 0, 4));
    bytes.extend(unknown(0x02, 0, 1, 5));
    // There is only one latest timestamp.
    bytes.extend(unknown(0x01, 1, 1, 6));
    client.send(&bytes);
    client.ask(7, 1);
    for id in 1..=6 {
        assert_eq!(client.refusal(id), (ErrorCode::Unsupported, String::new()));
    }
    client.range(7);
    assert_eq!(node.metric("epicepoch_timestamps_total"), 1);
}

#[test]
fn garbage_ends_the_connection_after_the_answers_to_earlier_requests() {
    let (_cluster, node) = serving_alone();
    let mut hello = Vec::new();
    ClientHello::default().encode(&mut hello);
    let answer = [&[0x41][..], &[0; 31]].concat();
    let long = Header { kind: 0x80, flags: 1, code: 256, argument: 4097, id: 0 };
    for garbage in [vec![0xff; 40], vec![0xc0], answer, hello.clone(), long.to_bytes().into()] {
        let mut client = Native::connect(&node);
        let request = Request::new(1, 1).unwrap().to_bytes();
        client.send(&[&hello[..], &request, &garbage].concat());
        assert!(matches!(client.next(), Got::Welcome(_)));
        client.range(1);
        assert_eq!(client.end(), ErrorCode::BadRequest, "{garbage:x?}");
    }
    for first in [vec![0x80; 40], long.to_bytes().into()] {
        let mut client = Native::connect(&node);
        client.send(&first);
        assert_eq!(client.end(), ErrorCode::BadRequest);
    }
}

/// The last client of this test is refused because its hello has an unknown field that must be
/// understood.
#[test]
fn clients_of_another_cluster_or_version_are_refused() {
    let (_cluster, node) = serving_alone();
    let refused = |hello: ClientHello| {
        let mut client = Native::connect(&node);
        client.hello(&hello);
        client.ask(1, 1);
        client.end()
    };
    let expecting = |cluster| ClientHello { cluster: Some(cluster), ..ClientHello::default() };
    assert_eq!(refused(expecting((ClusterId(1), HistoryId(9)))), ErrorCode::WrongCluster);
    assert_eq!(refused(expecting((CLUSTER, HistoryId(8)))), ErrorCode::WrongCluster);
    let named = ClientHello { cluster_name: "other".into(), ..ClientHello::default() };
    assert_eq!(refused(named), ErrorCode::WrongCluster);
    let newer = ClientHello { newest: 3, oldest: 2, ..ClientHello::default() };
    assert_eq!(refused(newer), ErrorCode::UnsupportedVersion);
    let mut client = Native::connect(&node);
    let mut mode = Vec::new();
    ClientHello::default().encode(&mut mode);
    mode.extend_from_slice(&[0x80, 2, 0, 1, 2]);
    mode[7] = 5;
    client.send(&mode);
    assert_eq!(client.end(), ErrorCode::Unsupported);
    assert_eq!(node.metric("epicepoch_timestamps_total"), 0);
}

#[test]
fn a_follower_names_the_leader_and_reports_every_new_one() {
    let mut cluster = Cluster::new(3);
    let node = cluster.start(1);
    let following = |leader| Published { leader, ..cluster.nothing(1) };
    node.publish(following(Some(NodeId(2))));
    node.await_metric("epicepoch_is_leader", 0);
    let mut client = Native::open(&node);
    client.ask(1, 1);
    let named = (ErrorCode::NotLeader, "client-2.test:80".to_owned());
    // The welcome may leave before the worker has seen the publication. Then a frame with the
    // leader follows the welcome.
    match client.next() {
        Got::Leader(..) => assert_eq!(client.refusal(1), named),
        Got::Error { code, text, .. } => assert_eq!((code, text), (Some(named.0), named.1)),
        other => panic!("{other:?}"),
    }
    node.publish(following(None));
    assert_eq!(client.next(), Got::Leader(NodeId(0), String::new()));
    client.ask(2, 1);
    assert_eq!(client.refusal(2), (ErrorCode::NoLeader, String::new()));
    node.publish(following(Some(NodeId(3))));
    assert_eq!(client.next(), Got::Leader(NodeId(3), "client-3.test:80".into()));
    node.publish(following(Some(NodeId(3))));
    client.send(&ping(9));
    assert_eq!(client.next(), Got::Pong(9));
    assert_eq!(node.metric("epicepoch_native_requests_total{outcome=\"refused\"}"), 2);
}

#[test]
fn a_deposed_leader_refuses_waiting_requests_and_names_the_new_leader() {
    let mut cluster = Cluster::new(3);
    let node = cluster.start(1);
    node.publish(cluster.leading(1, 3, false));
    let mut client = Native::open(&node);
    for id in 0..50 {
        client.ask(id, 1);
    }
    node.await_metric("epicepoch_waiting_requests", 50);
    node.publish(Published { leader: Some(NodeId(2)), ..cluster.nothing(1) });
    let mut refused = 0;
    while refused < 50 {
        match client.next() {
            Got::Leader(..) => {}
            Got::Error { code: Some(ErrorCode::NotLeader), closes: false, id, text } => {
                assert_eq!((id, text.as_str()), (refused, "client-2.test:80"));
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn requests_beyond_the_buffer_are_refused_at_once_and_the_others_are_answered() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| config.request_buffer = 8);
    node.publish(cluster.leading(1, 3, false));
    let mut client = Native::open(&node);
    let bytes: Vec<_> = (0..20).flat_map(|id| Request::new(id, 2).unwrap().to_bytes()).collect();
    client.send(&bytes);
    let refused: Vec<_> = (0..12).map(|_| client.next()).collect();
    let overloaded =
        |got: &Got| matches!(got, Got::Error { code: Some(ErrorCode::Overloaded), .. });
    assert!(refused.iter().all(overloaded), "{refused:?}");
    node.publish(cluster.leading(1, 3, true));
    let ranges: Vec<_> = (0..8).map(|_| client.next()).collect();
    assert!(ranges.iter().all(|got| matches!(got, Got::Answer(_, range) if range.count() == 2)));
    client.ask(77, 1);
    client.range(77);
}

#[test]
fn a_node_reads_no_more_than_the_in_flight_limit_ahead_of_its_answers() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start(1);
    node.publish(cluster.leading(1, 3, false));
    let mut client = Native::open(&node);
    let bytes: Vec<_> = (0..5000).flat_map(|id| Request::new(id, 1).unwrap().to_bytes()).collect();
    client.send(&bytes);
    node.await_metric("epicepoch_waiting_requests", IN_FLIGHT_MAX);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(node.metric("epicepoch_waiting_requests"), IN_FLIGHT_MAX);
    node.publish(cluster.leading(1, 3, true));
    let all: Vec<_> = (0..5000).map(|id| client.range(id).first()).collect();
    assert!(all.is_sorted_by(|a, b| a < b));
}

#[test]
fn a_client_that_does_not_read_is_stopped_and_gets_every_answer_later() {
    let (_cluster, node) = serving_alone();
    let mut client = Native::open(&node);
    client.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let (mut sent, mut id) = (0_usize, 0_u64);
    let batch: Vec<_> = (0..1000).flat_map(|_| Request::new(3, 1).unwrap().to_bytes()).collect();
    // The kernel buffers a few MB in each direction. A node that buffered answers would read
    // everything.
    let is_stopped = loop {
        match client.stream.write(&batch[sent % 16..]) {
            Ok(length) => sent += length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break true,
            Err(error) => panic!("{error}"),
        }
        if sent > 64 << 20 {
            break false;
        }
    };
    assert!(is_stopped, "the node read {sent} bytes of a client that reads nothing");
    let whole = sent / 16;
    let mut last = None;
    while id < whole as u64 {
        let first = client.range(3).first();
        assert!(Some(first) > last);
        last = Some(first);
        id += 1;
    }
}

#[test]
fn a_client_that_closes_its_side_gets_its_answers() {
    let (_cluster, node) = serving_alone();
    let mut client = Native::open(&node);
    client.ask(1, 1);
    client.ask(2, 1);
    client.stream.shutdown(Shutdown::Write).unwrap();
    assert!(client.range(1).first() < client.range(2).first());
    assert_eq!(client.next(), Got::End);
    node.await_metric("epicepoch_native_connections_open", 0);
}

#[test]
fn a_client_that_disappears_frees_its_slots() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| config.request_timeout = Duration::from_millis(50));
    node.publish(cluster.leading(1, 3, false));
    let mut client = Native::open(&node);
    client.ask(1, 1);
    node.await_metric("epicepoch_waiting_requests", 1);
    drop(client);
    node.await_metric("epicepoch_waiting_requests", 0);
    node.await_metric("epicepoch_native_connections_open", 0);
}

#[test]
fn without_a_grant_a_request_is_refused_after_its_timeout() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| config.request_timeout = Duration::from_millis(50));
    node.publish(cluster.leading(1, 3, false));
    let mut client = Native::open(&node);
    client.ask(1, 1);
    assert_eq!(client.refusal(1).0, ErrorCode::NoQuorum);
}

#[test]
fn a_stopping_node_answers_then_says_goodbye_and_closes() {
    let (_cluster, node) = serving_alone();
    let mut client = Native::open(&node);
    client.ask(1, 1);
    client.range(1);
    node.stop_accepting();
    node.shared.health.is_shutting_down.store(true, Ordering::SeqCst);
    assert!(node.workers.shutdown(WAIT_MAX));
    assert_eq!(client.next(), Got::Goodbye);
    assert_eq!(client.next(), Got::End);
}

/// A client may send requests before it has read the node's goodbye.
#[test]
fn requests_that_cross_the_goodbye_do_not_reset_the_connection() {
    for _ in 0..10 {
        let (_cluster, node) = serving_alone();
        let mut client = Native::open(&node);
        let begin = Instant::now();
        let workers = node.workers.clone();
        let stopping = std::thread::spawn(move || workers.shutdown(WAIT_MAX));
        assert_eq!(client.next(), Got::Goodbye);
        client.ask(1, 1);
        std::thread::sleep(Duration::from_millis(2));
        let end = client.stream.read(&mut [0; 64]);
        let is_in_time = begin.elapsed() < Duration::from_millis(40);
        drop(client);
        assert!(stopping.join().unwrap());
        if is_in_time {
            assert_eq!(end.expect("no reset"), 0);
            return;
        }
    }
    panic!("this machine is too slow to tell");
}

/// A request as its client sees it: when it began and ended, and the timestamps that it got.
struct Call {
    begin: Instant,
    end: Instant,
    first: Timestamp,
    last: Timestamp,
}

#[test]
fn native_and_http_clients_share_one_order() {
    let (_cluster, node) = serving_alone();
    let calls: Vec<Call> = std::thread::scope(|scope| {
        let native = (0..3).map(|_| {
            scope.spawn(|| {
                let mut client = Native::open(&node);
                let call = |id: u64| {
                    let begin = Instant::now();
                    client.ask(id, 1 + id % 4);
                    let range = client.range(id);
                    Call { begin, end: Instant::now(), first: range.first(), last: range.last() }
                };
                (0..300).map(call).collect::<Vec<_>>()
            })
        });
        let http = (0..3).map(|_| {
            scope.spawn(|| {
                let mut client = node.connect();
                let call = |_| {
                    let begin = Instant::now();
                    let all = client.request("GET /timestamp?n=2").timestamps();
                    Call { begin, end: Instant::now(), first: all[0], last: all[1] }
                };
                (0..300).map(call).collect()
            })
        });
        let threads: Vec<_> = native.chain(http.collect::<Vec<_>>()).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    check_order(calls);
}

/// Checks that a call that began after another one ended has greater timestamps, and that no
/// timestamp comes twice.
fn check_order(mut calls: Vec<Call>) {
    calls.sort_by_key(|call| call.first);
    assert!(calls.is_sorted_by(|a, b| a.last < b.first), "a timestamp came twice");
    let mut latest_begin = None;
    for call in &calls {
        assert!(latest_begin <= Some(call.end), "a later call got a lower timestamp");
        latest_begin = latest_begin.max(Some(call.begin));
    }
}

#[test]
#[should_panic(expected = "a later call got a lower timestamp")]
fn the_order_check_finds_a_swapped_pair() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let call = |begin, end, first| {
        let first = Timestamp::lowest_at(first);
        Call { begin: at(begin), end: at(end), first, last: first }
    };
    check_order(vec![call(0, 1, 9), call(2, 3, 8)]);
}
