//! The fast path and hyper give the same answers to the same bytes, however reads split them. The
//! tests use two connections to a real node in this process. One has asked for `/up` and stays with
//! hyper. The other has asked only for timestamps and is still on the fast path. Only the
//! timestamps and the second of a `Date` may differ.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};

use epicepoch_wire::{NodeId, Timestamp, TimestampRange};

use crate::node::{Cluster, TestNode, WAIT_MAX};

/// Number of changed requests that both paths get.
const CHANGED: usize = 2000;

/// At most this many requests of one connection are read and not answered by a node.
const IN_FLIGHT_MAX: u64 = 120;

const FAST: &[u8] = b"GET /timestamp HTTP/1.1\r\nHost: a\r\n\r\n";
const UP: &[u8] = b"GET /up HTTP/1.1\r\nHost: a\r\n\r\n";

/// Requests that the fast path takes, other requests, and bytes that are not a request.
const REQUESTS: [&[u8]; 34] = [
    FAST,
    b"GET /timestamp?n=3 HTTP/1.1\r\nhost: a\r\naccept: */*\r\n\r\n",
    b"GET /timestamp?n=1000 HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET /timestamp?n=1001 HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET /timestamp?format=range&n=4294967296 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /timestamp?format=binary HTTP/1.1\r\nHost: a\r\nConnection: Keep-Alive\r\n\r\n",
    b"GET /timestamp? HTTP/1.1\r\nHost: a\r\nEpicEpoch-Request-Id: \t42 abc \r\n\r\n",
    b"GET /timestamp?n=2 HTTP/1.1\r\nHost: a\r\nepicepoch-request-id: 7\r\nCookie: a=\"\tb\"\r\n\r\n",
    b"GET /timestamp HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"GET /timestamp?n=4 HTTP/1.1\r\nHost: a\r\nconnection:close\r\nepicepoch-request-id:9\r\n\r\n",
    b"GET /timestamp HTTP/1.1\r\nHost: a\r\nepicepoch-request-id: \r\n\r\n",
    b"GET /timestamp HTTP/1.1\r\nHost: a\r\nepicepoch-request-id: 1\r\nepicepoch-request-id: 2\r\n\r\n",
    b"GET /timestamp?format=json HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /timestamp?n=0 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /timestamp?n=1&n=1 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /timestamp?m=1 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /timestamp HTTP/1.1\r\n\r\n",
    b"GET /timestamp HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
    b"GET /timestamp HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"GET http://a/timestamp HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /timestamp HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
    b"GET /timestamp HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    b"GET /timestamp HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
    b"GET /timestamp HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"GET /timestamp HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n\
        0\r\n\r\n",
    b"GET /timestamp HTTP/1.1\r\nHost: a\r\nX: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET /timestamp HTTP/1.1\r\nHost: a\r\nX: y\r\n folded\r\n\r\n",
    b"GET /timestamp HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n",
    b"GET /timestamp HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n",
    b"GET /timestamp HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
    b"GET /nope HTTP/1.1\r\nHost: a\r\n\r\n",
    b"DELETE /timestamp HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\r\nGET /timestamp HTTP/1.1\r\nHost: a\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
];

/// A node without peers, with one worker.
fn serving() -> TestNode {
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| config.workers = 1);
    node.publish(cluster.leading(1, 3, true));
    node.await_metric("epicepoch_has_grant", 1);
    node
}

fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream
}

/// Sends a complete request and reads its answer.
fn exchange(stream: &mut TcpStream, request: &[u8]) -> String {
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    let mut bytes = [0; 4096];
    loop {
        if let Some((head, body)) = split_head(&answer)
            && body.len() >= content_length(&head)
        {
            assert_eq!(body.len(), content_length(&head), "one answer");
            return head;
        }
        let length = stream.read(&mut bytes).expect("the node answers");
        assert_ne!(length, 0, "the node closed the connection");
        answer.extend_from_slice(&bytes[..length]);
    }
}

/// Splits an answer into its head and the bytes behind it. The head may contain any byte, because
/// it may repeat a request id.
fn split_head(bytes: &[u8]) -> Option<(String, &[u8])> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    Some((bytes[..end].iter().map(|byte| char::from(*byte)).collect(), &bytes[end..]))
}

fn content_length(head: &str) -> usize {
    let line = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    line.map_or(0, |length| length.parse().expect("a length"))
}

/// Which path a connection takes.
#[derive(Clone, Copy)]
enum Path {
    FastRequests,
    Hyper,
}

/// A node with one worker, and a second connection to it. That connection shows when the worker has
/// read everything that was sent before.
struct Peer {
    addr: SocketAddr,
    barrier: TcpStream,
}

impl Peer {
    fn new(addr: SocketAddr) -> Self {
        Self { addr, barrier: connect(addr) }
    }

    /// Sends `parts`, each so that the node reads it separately, then ends sending. Returns
    /// everything that the node answers, except the answer to the request that chose the path.
    fn answers(&mut self, path: Path, parts: &[&[u8]]) -> Vec<u8> {
        let mut stream = connect(self.addr);
        exchange(
            &mut stream,
            match path {
                Path::FastRequests => FAST,
                Path::Hyper => UP,
            },
        );
        for (at, part) in parts.iter().enumerate() {
            if at > 0 {
                exchange(&mut self.barrier, FAST);
            }
            // If the node has closed the connection, the parts that are left cannot be sent.
            let _ = stream.write_all(part);
        }
        let _ = stream.shutdown(Shutdown::Write);
        let mut answers = Vec::new();
        stream.read_to_end(&mut answers).expect("the node ends the connection");
        answers
    }

    /// Checks that both paths answer these bytes alike.
    ///
    /// For bytes that are not a request, hyper's answer depends on the parts in which they come. If
    /// hyper reads the HTTP/2 preface in two parts, it answers 400; in one part, it does not. If a
    /// wrong head comes in one part, hyper answers at once; otherwise it answers at the end of the
    /// head. The same holds for the bytes that the fast path hands over. Hyper may get them in
    /// fewer parts than were sent.
    fn compare(&mut self, bytes: &[u8], parts: &[&[u8]]) {
        assert_eq!(bytes, parts.concat());
        let told = |answers: Vec<u8>| comparable(&answers).join("\n");
        let fast = told(self.answers(Path::FastRequests, parts));
        let mut others = Vec::new();
        for joined in 1..=parts.len() {
            let first = parts[..joined].concat();
            let parts: Vec<&[u8]> = [&first[..]].iter().chain(&parts[joined..]).copied().collect();
            let other = told(self.answers(Path::Hyper, &parts));
            if fast == other {
                return;
            }
            others.push(other);
        }
        panic!("to {}\n{fast}\nand not {others:#?}", bytes.escape_ascii());
    }
}

/// Returns the answers without the parts that depend on when they are given. Checks that timestamps
/// rise.
fn comparable(bytes: &[u8]) -> Vec<String> {
    let mut last: Option<Timestamp> = None;
    let mut answers = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let Some((head, body)) = split_head(rest) else {
            panic!("half an answer: {}", rest.escape_ascii());
        };
        let (body, behind) = body.split_at(content_length(&head));
        let is_json = head.contains("content-type: application/json");
        let mut text: Vec<String> = head.lines().map(str::to_owned).collect();
        for line in &mut text {
            if let Some(date) = line.strip_prefix("date: ") {
                assert!(date.len() == 29 && date.ends_with(" GMT"), "{date}");
                "date: now".clone_into(line);
            }
            if is_json && line.starts_with("content-length: ") {
                "content-length: some".clone_into(line);
            }
        }
        if head.contains("octet-stream") {
            let own = match body.len() {
                TimestampRange::LEN => vec![
                    TimestampRange::from_bytes(body.try_into().expect("24 bytes"))
                        .expect("a range")
                        .first(),
                ],
                _ => body.as_chunks().0.iter().map(|it| Timestamp::from_bytes(*it)).collect(),
            };
            for timestamp in own {
                assert!(last.is_none_or(|last| last < timestamp), "timestamps rise");
                last = Some(timestamp);
            }
        } else if !is_json {
            text.push(body.escape_ascii().to_string());
        }
        answers.push(text.join("\n"));
        rest = behind;
    }
    answers
}

#[test]
fn every_pair_of_requests_gets_the_same_answers_from_both_paths() {
    let node = serving();
    let mut peer = Peer::new(node.addr);
    for first in REQUESTS {
        peer.compare(first, &[first]);
        for second in REQUESTS {
            let bytes = [first, second].concat();
            peer.compare(&bytes, &[&bytes]);
        }
        // The request comes between others. The bytes come in two reads, then in one.
        let bytes = [FAST, FAST, first, FAST].concat();
        peer.compare(&bytes, &[FAST, &bytes[FAST.len()..]]);
        peer.compare(&bytes, &[&bytes]);
    }
}

#[test]
fn the_points_at_which_bytes_are_split_change_no_answer() {
    let node = serving();
    let mut peer = Peer::new(node.addr);
    for requests in [
        &[REQUESTS[1], REQUESTS[7]][..],
        &[REQUESTS[4], REQUESTS[9]],
        &[FAST, REQUESTS[20], FAST],
        &[FAST, REQUESTS[23], FAST],
        &[FAST, REQUESTS[27]],
    ] {
        let bytes = requests.concat();
        for cut in 1..bytes.len() {
            peer.compare(&bytes, &[&bytes[..cut], &bytes[cut..]]);
        }
        // The bytes end early, at every third position.
        for cut in (0..bytes.len()).step_by(3) {
            peer.compare(&bytes[..cut], &[&bytes[..cut]]);
        }
        let each: Vec<&[u8]> = bytes.chunks(1).collect();
        peer.compare(&bytes, &each);
    }
}

/// Bytes that have a meaning in a head, or are not allowed in one.
const SPECIAL: &[u8] = b"\r\n \t:,;=?&/\0\x0b\x7f\x80\xffGT1c";

/// A few requests one behind the other, with some bytes changed.
fn changed(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..random.usize(1..=4) {
        let request = if random.bool() { FAST } else { REQUESTS[random.usize(..REQUESTS.len())] };
        bytes.extend_from_slice(request);
    }
    for _ in 0..random.usize(..4) {
        let at = random.usize(..bytes.len());
        let special = SPECIAL[random.usize(..SPECIAL.len())];
        match random.u8(..6) {
            0 => bytes[at] = special,
            1 => bytes[at] = random.u8(..),
            2 => bytes.insert(at, special),
            3 => drop(bytes.remove(at)),
            4 => bytes[at] ^= 0x20,
            _ => {
                // Repeats a line, or inserts a line of another request.
                let from = REQUESTS[random.usize(..REQUESTS.len())];
                let lines: Vec<&[u8]> = from.split_inclusive(|byte| *byte == b'\n').collect();
                let line = lines[random.usize(..lines.len())];
                let end = bytes[at..].iter().position(|byte| *byte == b'\n');
                let at = end.map_or(bytes.len(), |end| at + end + 1);
                bytes.splice(at..at, line.iter().copied());
            }
        }
    }
    bytes
}

#[test]
fn changed_requests_get_the_same_answers_from_both_paths() {
    let node = serving();
    let mut peer = Peer::new(node.addr);
    let mut random = fastrand::Rng::with_seed(6);
    for _ in 0..CHANGED {
        let bytes = changed(&mut random);
        let mut cuts: Vec<usize> =
            (0..random.usize(..4)).map(|_| random.usize(..bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        cuts.dedup();
        let parts: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
        peer.compare(&bytes, &parts);
    }
}

#[test]
fn refusals_are_the_same_from_both_paths() {
    let mut cluster = Cluster::new(2);
    let mut start = |node: u64| cluster.start_with(node, |config| config.workers = 1);
    let (follower, candidate) = (start(1), start(2));
    let mut published = cluster.nothing(1);
    published.leader = Some(NodeId(2));
    follower.publish(published);
    for (addr, error) in [(follower.addr, "NOT_LEADER"), (candidate.addr, "NO_LEADER")] {
        // Waits until the worker has seen the publication.
        while !exchange(&mut connect(addr), FAST).contains(error) {
            std::thread::yield_now();
        }
        let mut peer = Peer::new(addr);
        for request in REQUESTS {
            peer.compare(request, &[request]);
        }
        let bytes = [REQUESTS[7], FAST, REQUESTS[4], REQUESTS[9]].concat();
        peer.compare(&bytes, &[&bytes]);
        let refused = comparable(&peer.answers(Path::FastRequests, &[&bytes]));
        assert_eq!(refused.len(), 4);
        assert!(refused.iter().all(|it| it.contains(error)), "{refused:?}");
        assert!(refused[0].contains("epicepoch-request-id: 7"), "{refused:?}");
        assert!(refused[3].contains("connection: close"), "{refused:?}");
    }
}

/// The requests of one write share a round on the fast path. With hyper each has its own round,
/// because hyper reads the next request only after an answer. So the test shows that the two paths
/// differ.
#[test]
fn fast_path_requests_of_one_write_share_a_round() {
    const REQUESTS: usize = 100;
    let node = serving();
    let mut peer = Peer::new(node.addr);
    let rounds = || node.metric("epicepoch_rounds_begun_total");
    let bytes = FAST.repeat(REQUESTS);
    for (path, is_many) in [(Path::FastRequests, false), (Path::Hyper, true)] {
        let before = rounds();
        let answers = comparable(&peer.answers(path, &[&bytes]));
        let begun = rounds() - before;
        assert_eq!(answers.len(), REQUESTS);
        assert_eq!(begun >= REQUESTS as u64, is_many, "{begun} rounds");
    }
}

#[test]
fn a_client_that_reads_late_gets_every_answer_once_and_in_order() {
    let node = serving();
    let addr = node.addr;
    let requests = [
        &b"GET /timestamp?n=1000 HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1000)[..],
        &FAST.repeat(20_000),
    ]
    .concat();
    let mut stream = connect(addr);
    let mut sender = stream.try_clone().expect("a second handle");
    let sending = std::thread::spawn(move || {
        // This write blocks until the client reads: the node reads no more while many answers wait.
        sender.write_all(&requests).unwrap();
        sender.shutdown(Shutdown::Write).expect("the node is there");
    });
    exchange(&mut connect(addr), FAST);
    let mut answers = Vec::new();
    stream.read_to_end(&mut answers).expect("the node answers");
    sending.join().expect("no panic");
    assert_eq!(comparable(&answers).len(), 21_000);
}

#[test]
fn requests_beyond_the_buffer_wait_behind_those_of_their_connection() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| (config.workers, config.request_buffer) = (1, 4));
    node.publish(cluster.leading(1, 3, true));
    node.await_metric("epicepoch_has_grant", 1);
    let answers =
        comparable(&Peer::new(node.addr).answers(Path::FastRequests, &[&FAST.repeat(1000)]));
    assert_eq!(answers.len(), 1000);
    assert!(answers.iter().all(|answer| answer.starts_with("HTTP/1.1 200 OK")), "{answers:?}");
}

/// The node stops while requests wait. Each of them gets its answer. The last answer says that the
/// connection closes.
#[test]
fn a_node_that_stops_answers_every_request_that_it_has_read() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| config.workers = 1);
    node.publish(cluster.leading(1, 3, false));
    node.await_metric("epicepoch_is_leader", 1);
    let (mut busy, mut begun) = (connect(node.addr), connect(node.addr));
    begun.write_all(&FAST[..10]).unwrap();
    busy.write_all(&[&FAST.repeat(3), &FAST[..10]].concat()).unwrap();
    node.await_metric("epicepoch_waiting_requests", 3);
    node.stop_accepting();
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| node.workers.shutdown(WAIT_MAX));
        let mut answers = Vec::new();
        assert_eq!(begun.read_to_end(&mut answers).unwrap(), 0);
        node.publish(cluster.leading(1, 3, true));
        busy.read_to_end(&mut answers).unwrap();
        let answers = comparable(&answers);
        let closes: Vec<_> = answers.iter().map(|it| it.contains("connection: close")).collect();
        assert_eq!(closes, [false, false, true], "{answers:?}");
        drop((busy, begun));
        assert!(stopping.join().unwrap());
    });
}

/// Hyper takes the connection over only after every answer of the fast path.
#[test]
fn a_request_for_hyper_waits_for_the_answers_before_it() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| config.workers = 1);
    node.publish(cluster.leading(1, 3, false));
    node.await_metric("epicepoch_is_leader", 1);
    let mut stream = connect(node.addr);
    stream.write_all(&[FAST, FAST, UP, FAST].concat()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    node.await_metric("epicepoch_waiting_requests", 2);
    node.publish(cluster.leading(1, 3, true));
    let mut answers = Vec::new();
    stream.read_to_end(&mut answers).unwrap();
    let answers = comparable(&answers);
    let lengths: Vec<_> = answers.iter().map(|it| content_length(it)).collect();
    assert_eq!(lengths, [16, 16, 2, 16], "{answers:?}");
}

/// Bytes that the node no longer reads are still in its socket when it closes the connection. They
/// must not cause the loss of answers that are on their way.
#[test]
fn a_node_that_stops_while_requests_arrive_loses_no_answer() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| config.workers = 1);
    node.publish(cluster.leading(1, 3, false));
    node.await_metric("epicepoch_is_leader", 1);
    let (mut stream, mut begun) = (connect(node.addr), connect(node.addr));
    begun.write_all(&FAST[..10]).unwrap();
    stream.write_all(&FAST.repeat(1000)).unwrap();
    node.await_metric("epicepoch_waiting_requests", IN_FLIGHT_MAX);
    node.stop_accepting();
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| node.workers.shutdown(WAIT_MAX));
        // The end of this connection shows that the worker closes its connections now.
        assert_eq!(begun.read_to_end(&mut Vec::new()).unwrap(), 0);
        node.publish(cluster.leading(1, 3, true));
        let mut answers = Vec::new();
        stream.read_to_end(&mut answers).expect("the connection is not reset");
        let answers = comparable(&answers);
        assert!(answers.last().is_some_and(|last| last.contains("connection: close")));
        assert!(answers.len() as u64 >= IN_FLIGHT_MAX, "{} answers", answers.len());
        drop((stream, begun));
        assert!(stopping.join().unwrap());
    });
}

#[test]
fn answers_of_both_paths_are_counted_in_the_same_way() {
    let node = serving();
    let mut peer = Peer::new(node.addr);
    let counts = || {
        let ok = node.metric("epicepoch_requests_total{path=\"timestamp\",status=\"200\"}");
        (ok, node.metric("epicepoch_timestamps_total"))
    };
    // The metrics list a counter only after its first request.
    exchange(&mut connect(node.addr), FAST);
    let bytes = [REQUESTS[1], REQUESTS[2], FAST].concat();
    let mut added = Vec::new();
    for path in [Path::FastRequests, Path::Hyper] {
        let before = counts();
        peer.answers(path, &[&bytes]);
        let after = counts();
        added.push((after.0 - before.0, after.1 - before.1));
    }
    // On each path, one more request comes first, to choose the path. On the fast path, it asks for
    // a timestamp, so it is counted here, too.
    assert_eq!(added, [(4, 1005), (3, 1004)]);
}
