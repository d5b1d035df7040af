//! Measures how much memory a silent client connection costs a node, also after it was busy. The
//! bounds are those of docs/operations/deploy.md. Every thread of this process is counted, so the
//! client here keeps no memory, and only one test runs at a time.

#[path = "../data_plane/node.rs"]
#[allow(dead_code, reason = "shared with the tests of the data plane")]
mod node;

use std::alloc::System;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use epicepoch_attack::http2::{frame, get, kind};
use epicepoch_server::security::authz::Port;
use epicepoch_wire::native::{ClientHello, Request};
use node::{Cluster, TestNode, WAIT_MAX};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Connections that are measured together.
const CONNECTIONS: usize = 50;
/// Requests in the burst that each connection sends.
const BURST: usize = 200;
/// During the measurement, a node allocates at most this many bytes for anything other than the
/// measured connections.
const BACKGROUND_MAX: usize = 16 << 10;
/// The most bytes that a silent connection may keep. `OWN_MAX` is for the fast path of HTTP/1.1 and
/// the native protocol. `HYPER_MAX` is for hyper. `HTTP2_MAX` is for HTTP/2, without the header
/// table of the client. The test prints the measured values.
const OWN_MAX: usize = 3 << 10;
const HYPER_MAX: usize = 40 << 10;
const HTTP2_MAX: usize = 6 << 10;

static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serving() -> TestNode {
    let mut cluster = Cluster::new(1);
    let node = cluster.start(1);
    node.publish(cluster.leading(1, 3, true));
    node.await_metric("epicepoch_has_grant", 1);
    node
}

/// Serves `CONNECTIONS` clients, which are then silent, and returns the bytes that each leaves
/// allocated. Each client sends `words` and reads until `is_answered`. The measurement repeats
/// until the result is at most `max`.
fn kept(words: &[u8], max: usize, mut is_answered: impl FnMut(&[u8]) -> bool) -> usize {
    let _alone = alone();
    let node = serving();
    let mut held = Vec::with_capacity(CONNECTIONS);
    let mut chunk = vec![0; 256 << 10];
    // Serves one connection before the measurement, because the buffers that a worker's connections
    // share must grow first.
    drop(busy(&node, words, &mut chunk, &mut is_answered));
    while node.workers.connections(Port::Shared) > 0 {
        std::thread::yield_now();
    }
    let region = Region::new(ALLOCATOR);
    for _ in 0..CONNECTIONS {
        held.push(busy(&node, words, &mut chunk, &mut is_answered));
    }
    let start = Instant::now();
    loop {
        let change = region.change();
        let kept = change.bytes_allocated.saturating_sub(change.bytes_deallocated);
        let each = kept.saturating_sub(BACKGROUND_MAX) / CONNECTIONS;
        if each <= max || start.elapsed() > WAIT_MAX / 2 {
            assert_eq!(
                node.workers.connections(Port::Shared),
                CONNECTIONS,
                "none was closed meanwhile"
            );
            return each;
        }
        std::thread::yield_now();
    }
}

/// A connection that was busy and is now silent.
fn busy(
    node: &TestNode,
    words: &[u8],
    chunk: &mut [u8],
    is_answered: &mut impl FnMut(&[u8]) -> bool,
) -> TcpStream {
    let mut stream = TcpStream::connect(node.addr).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.write_all(words).unwrap();
    let mut length = 0;
    while !is_answered(&chunk[..length]) {
        let read = stream.read(&mut chunk[length..]).unwrap();
        assert!(read > 0, "the node has closed: {:?}", &chunk[..length]);
        length += read;
    }
    stream
}

fn count(bytes: &[u8], mark: &[u8]) -> usize {
    bytes.windows(mark.len()).filter(|it| *it == mark).count()
}

#[test]
fn a_silent_connection_of_the_fast_path_keeps_little_after_a_burst() {
    let id = "i".repeat(128);
    let request =
        format!("GET /timestamp HTTP/1.1\r\nhost: t\r\nepicepoch-request-id: {id}\r\n\r\n");
    let words = request.repeat(BURST);
    let kept = kept(words.as_bytes(), OWN_MAX, |answer| count(answer, b"HTTP/1.1 200") == BURST);
    println!("HTTP/1.1, fast: {kept} bytes");
    assert!(kept <= OWN_MAX, "{kept} bytes");
}

#[test]
fn a_silent_native_connection_keeps_little_after_a_burst() {
    let mut words = Vec::new();
    ClientHello::default().encode(&mut words);
    for id in 0..BURST as u64 {
        words.extend_from_slice(&Request::new(id, 1).unwrap().to_bytes());
    }
    let kept = kept(&words, OWN_MAX, |answer| answer.len() >= BURST * 32);
    println!("native: {kept} bytes");
    assert!(kept <= OWN_MAX, "{kept} bytes");
}

#[test]
fn a_silent_connection_of_hyper_keeps_what_it_has_grown_to_and_no_more() {
    let words = "GET /up HTTP/1.1\r\nhost: t\r\n\r\n".repeat(BURST);
    let kept = kept(words.as_bytes(), HYPER_MAX, |answer| count(answer, b"HTTP/1.1 200") == BURST);
    println!("HTTP/1.1 through hyper: {kept} bytes");
    assert!(kept <= HYPER_MAX, "{kept} bytes");
}

#[test]
fn a_silent_connection_of_http2_keeps_little_after_a_burst() {
    const STREAMS: u32 = 200;
    let mut words = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    words.extend(frame(kind::SETTINGS, 0, 0, b""));
    for stream in 0..STREAMS {
        words.extend(frame(kind::HEADERS, 5, 1 + 2 * stream, &get("/timestamp")));
    }
    // Each answer ends its stream with a DATA frame of 16 bytes. The test counts these frames.
    let ends = |answer: &[u8]| count(answer, &[0, 0, 16, kind::DATA, 1]) == STREAMS as usize;
    let kept = kept(&words, HTTP2_MAX, ends);
    println!("HTTP/2 after {STREAMS} streams at once: {kept} bytes");
    assert!(kept <= HTTP2_MAX, "{kept} bytes");
}
