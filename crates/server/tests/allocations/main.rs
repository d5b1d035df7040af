//! Counts the memory allocations of a request once all buffers have grown, on the leader and on the
//! voters that confirm. The native protocol, HTTP/2 and the fast path of HTTP/1.1 allocate nothing.
//! A request through hyper allocates a map of headers. Every thread of this process is counted, so
//! the client here allocates nothing while counting, and only one test runs at a time.

#[path = "../data_plane/node.rs"]
#[allow(dead_code, reason = "shared with the tests of the data plane")]
mod node;

use std::alloc::System;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use epicepoch_attack::http2::get;
use epicepoch_wire::http2::frame::{self, Frame, PREFACE, flag, kind};
use epicepoch_wire::native::frame::{ANSWER_LEN, REQUEST_LEN};
use epicepoch_wire::native::{ClientHello, Request, TO_CLIENT_TAIL_LEN_MAX, split};
use node::{Cluster, TestNode, WAIT_MAX};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The requests are counted in so many pieces. Timers and sweeps allocate in a few of them.
const PIECES: usize = 40;
/// Number of counted requests: one allocation in a hundred requests shows in every piece.
const REQUESTS: usize = 100 * PIECES;
/// How many requests are sent at once: one, some, and as many as may wait on a connection.
const DEPTHS: [usize; 3] = [1, 64, 512];
/// At most this many allocations for a request and its answer through hyper. Hyper needs a map of
/// the answer's headers, which allocates an index and a list. The map of the request's headers is
/// reused. Our own code allocates nothing.
const HTTP_MAX: f64 = 2.0;

static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A leader and two voters that confirm its rounds.
fn serving() -> (Cluster, Vec<TestNode>) {
    let mut cluster = Cluster::new(3);
    let nodes: Vec<_> = (1..=3).map(|node| cluster.start(node)).collect();
    for node in 2..=3 {
        nodes[node as usize - 1].publish(cluster.nothing(node));
    }
    nodes[0].publish(cluster.leading(1, 3, true));
    nodes[0].await_metric("epicepoch_confirm_links", 2);
    (cluster, nodes)
}

fn connect(node: &TestNode) -> TcpStream {
    let stream = TcpStream::connect(node.addr).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Estimates the allocations of all threads during `rounds` calls of `round`: counts them in pieces,
/// and takes the median piece for all. So timers and sweeps do not count, however long the pieces
/// take, nor a buffer that grew because a voter got no processor for a while. An allocation for each
/// request shows in every piece.
fn taken(rounds: usize, mut round: impl FnMut()) -> usize {
    // Lets the buffers grow to the size that they need, before the count.
    for _ in 0..rounds.min(500) {
        round();
    }
    let pieces = rounds.min(PIECES);
    let mut counts = [0; PIECES];
    for count in &mut counts[..pieces] {
        let region = Region::new(ALLOCATOR);
        for _ in 0..rounds / pieces {
            round();
        }
        let change = region.change();
        *count = change.allocations + change.reallocations;
    }
    counts[..pieces].sort_unstable();
    counts[pieces / 2] * pieces
}

fn connected(node: &TestNode) -> TcpStream {
    let mut stream = connect(node);
    let mut hello = Vec::new();
    ClientHello::default().encode(&mut hello);
    stream.write_all(&hello).unwrap();
    let (mut input, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let length = stream.read(&mut chunk).unwrap();
        input.extend_from_slice(&chunk[..length]);
        if let Some(frame) = split(&input, TO_CLIENT_TAIL_LEN_MAX).unwrap() {
            assert_eq!(frame.len(), input.len(), "nothing behind the welcome");
            return stream;
        }
    }
}

#[test]
fn a_native_request_takes_no_memory_on_the_leader_nor_on_the_voters() {
    let _alone = alone();
    let (_cluster, nodes) = serving();
    for depth in DEPTHS {
        let mut stream = connected(&nodes[0]);
        let request = Request::new(7, 3).unwrap().to_bytes();
        let requests: Vec<u8> = request.repeat(depth);
        assert_eq!(requests.len(), depth * REQUEST_LEN);
        let mut answers = vec![0; depth * ANSWER_LEN];
        let taken = taken(REQUESTS / depth, || {
            stream.write_all(&requests).unwrap();
            stream.read_exact(&mut answers).unwrap();
        });
        println!("native, {depth} at once: {taken} allocations for {REQUESTS} requests");
        assert_eq!(answers[0], 0x41, "an answer");
        assert_eq!(taken, 0, "{depth} at once");
    }
}

/// Counts the allocations of a request over HTTP/1.1, with `depth` requests in one write.
fn taken_by_http(node: &TestNode, request: &[u8], depth: usize) -> usize {
    let mut stream = connect(node);
    let mut answer = vec![0; 4096];
    stream.write_all(request).unwrap();
    let length = stream.read(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"));
    let requests = request.repeat(depth);
    let mut answers = vec![0; depth * length];
    let taken = taken(REQUESTS / depth, || {
        stream.write_all(&requests).unwrap();
        stream.read_exact(&mut answers).unwrap();
    });
    assert!(answers.starts_with(b"HTTP/1.1 200"));
    println!("HTTP/1.1, {depth} at once: {taken} allocations for {REQUESTS} requests");
    taken
}

#[test]
fn a_hot_request_over_http_takes_no_memory() {
    let _alone = alone();
    let (_cluster, nodes) = serving();
    for request in [
        "GET /timestamp HTTP/1.1\r\nhost: test\r\n\r\n",
        "GET /timestamp?n=100 HTTP/1.1\r\nhost: test\r\n\r\n",
        "GET /timestamp?format=range&n=3 HTTP/1.1\r\nhost: t\r\nepicepoch-request-id: 7\r\n\r\n",
    ] {
        for depth in [1, 64] {
            let taken = taken_by_http(&nodes[0], request.as_bytes(), depth);
            assert_eq!(taken, 0, "{depth} at once of {request}");
        }
    }
}

/// An HTTP/2 client that does not allocate while it runs. It sends one block of requests again and
/// again, with new stream ids, and reads into one buffer.
struct Http2 {
    stream: TcpStream,
    requests: Vec<u8>,
    next: u32,
    input: Vec<u8>,
}

impl Http2 {
    fn new(node: &TestNode, block: &[u8], depth: usize) -> Self {
        let mut stream = connect(node);
        let mut hello = PREFACE.to_vec();
        frame::put_settings(&mut hello, &[]);
        let window = (1_u32 << 30).to_be_bytes();
        frame::put(&mut hello, kind::WINDOW_UPDATE, 0, 0, &window);
        stream.write_all(&hello).unwrap();
        let mut requests = Vec::new();
        for _ in 0..depth {
            let flags = flag::END_HEADERS | flag::END_STREAM;
            frame::put(&mut requests, kind::HEADERS, flags, 0, block);
        }
        Self { stream, requests, next: 1, input: Vec::with_capacity(1 << 20) }
    }

    /// Sends a request on each of `depth` streams, and reads until as many answers have ended.
    fn round(&mut self, depth: usize) {
        let len = self.requests.len() / depth;
        for request in self.requests.chunks_mut(len) {
            request[5..9].copy_from_slice(&self.next.to_be_bytes());
            self.next += 2;
        }
        self.stream.write_all(&self.requests).unwrap();
        let (mut ended, mut at, mut chunk) = (0, 0, [0; 16 << 10]);
        while ended < depth {
            let read = self.stream.read(&mut chunk).unwrap();
            assert!(read > 0, "the node has closed");
            self.input.extend_from_slice(&chunk[..read]);
            while let Some(frame) = Frame::split(&self.input[at..]).unwrap() {
                assert_ne!(frame.kind, kind::GOAWAY);
                ended += usize::from(frame.kind == kind::DATA && frame.has(flag::END_STREAM));
                at += frame.len();
            }
        }
        assert_eq!(at, self.input.len(), "an answer for each request");
        self.input.clear();
    }
}

#[test]
fn a_hot_request_over_http2_takes_no_memory() {
    let _alone = alone();
    let (_cluster, nodes) = serving();
    let mut told = get("/timestamp?n=3");
    told.extend([&b"\0\x14epicepoch-request-id\x02"[..], b"42"].concat());
    for block in [get("/timestamp"), get("/timestamp?n=100"), told] {
        for depth in [1, 64, 200] {
            let mut client = Http2::new(&nodes[0], &block, depth);
            let taken = taken(REQUESTS / depth, || client.round(depth));
            println!("HTTP/2, {depth} at once: {taken} allocations for {REQUESTS} requests");
            assert_eq!(taken, 0, "{depth} at once");
        }
    }
}

#[test]
fn a_request_through_hyper_takes_a_map_of_headers() {
    let _alone = alone();
    let (_cluster, nodes) = serving();
    let request = b"POST /timestamp HTTP/1.1\r\nhost: test\r\n\r\n";
    let each = taken_by_http(&nodes[0], request, 1) as f64 / REQUESTS as f64;
    assert!(each <= HTTP_MAX + 0.01, "{each} allocations for a request");
}

#[test]
fn the_count_sees_what_another_thread_takes() {
    let _alone = alone();
    let region = Region::new(ALLOCATOR);
    std::thread::spawn(|| drop(std::hint::black_box(Box::new(1_u64)))).join().unwrap();
    assert!(region.change().allocations >= 1);
}
