//! Tests of the client on an idle or a flooded connection, against a node that takes one step at a
//! time.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use epicepoch_client::{Client, Epoch, EpochIndex, Options, Timestamp, TimestampsError};
use epicepoch_wire::native::client_hello::MemberAddr;
use epicepoch_wire::native::message::{ping, pong};
use epicepoch_wire::native::{COUNT_MAX, TO_SERVER_TAIL_LEN_MAX, ToServer, Welcome, split};
use epicepoch_wire::{ClusterId, HistoryId, NodeId};

/// A node sends at most this many bytes of pings. That is several times the size of all buffers
/// between node and client.
const PINGS_LEN_MAX: usize = 64 << 20;

/// A node's end of a connection.
struct End {
    stream: TcpStream,
    input: Vec<u8>,
    /// The index of the node's next timestamp.
    next: u64,
}

impl End {
    /// Waits for a frame and answers it. Returns `false` if the client has closed the connection.
    fn serve_one(&mut self, addr: SocketAddr) -> bool {
        let mut chunk = [0; 4096];
        loop {
            let mut out = Vec::new();
            let Some(frame) = split(&self.input, TO_SERVER_TAIL_LEN_MAX).unwrap() else {
                let Ok(length @ 1..) = self.stream.read(&mut chunk) else { return false };
                self.input.extend_from_slice(&chunk[..length]);
                continue;
            };
            match ToServer::decode(&frame).unwrap() {
                ToServer::ClientHello(_) => welcome(addr).encode(&mut out),
                ToServer::Request(request) => {
                    let first = Timestamp::new(Epoch(1), EpochIndex(self.next));
                    self.next += request.count();
                    out.extend(request.answer(first));
                }
                other => panic!("{other:?}"),
            }
            let length = frame.len();
            self.input.drain(..length);
            return self.stream.write_all(&out).is_ok();
        }
    }
}

fn welcome(addr: SocketAddr) -> Welcome {
    Welcome {
        version: 1,
        cluster: Some((ClusterId(1), HistoryId(1))),
        node: NodeId(1),
        leader: Some(MemberAddr { node: NodeId(1), addr: addr.to_string() }),
        in_flight_max: 1024,
        idle_ms: 120_000,
        count_max: COUNT_MAX,
        ..Welcome::default()
    }
}

/// Returns a client that has got a timestamp, and the leader's end of its connection, which the
/// test controls.
async fn connected() -> (Client, End) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let is_answered = Arc::new(AtomicBool::new(false));
    let answered = is_answered.clone();
    // If the machine stalls, the client may time out and connect again. So connections are accepted
    // until the first answer has arrived.
    let serving = std::thread::spawn(move || {
        let (mut ends, mut next) = (Vec::new(), 0);
        loop {
            let (stream, _) = listener.accept().unwrap();
            if answered.load(Ordering::SeqCst) {
                return ends;
            }
            stream.set_nodelay(true).unwrap();
            let mut end = End { stream, input: Vec::new(), next };
            let is_whole = end.serve_one(addr) && end.serve_one(addr);
            next = end.next;
            if is_whole {
                ends.push(end);
            }
        }
    });
    let mut options = Options::default();
    options.attempt_timeout = Duration::from_millis(100);
    let client = Client::new([addr.to_string()], options).unwrap();
    let got = client.timestamp().await.unwrap();
    is_answered.store(true, Ordering::SeqCst);
    drop(TcpStream::connect(addr).unwrap());
    let mut ends = serving.join().unwrap().into_iter();
    (client, ends.find(|end| end.next > got.index.0).expect("the end that answered"))
}

#[tokio::test]
async fn a_call_that_comes_together_with_another_frame_still_has_its_deadline() {
    let (client, mut end) = connected().await;
    // Meanwhile the client becomes idle: its timer is set to the next ping, in 40 s.
    tokio::time::sleep(Duration::from_millis(100)).await;
    end.stream.write_all(&pong(0)).unwrap();
    // The frame wakes the client's driver, but this task runs first and makes a call. So the driver
    // finds both at the same time.
    tokio::task::yield_now().await;
    let begin = Instant::now();
    let call = client.timestamps_before(1, begin + Duration::from_millis(300));
    let got = tokio::time::timeout(Duration::from_secs(10), call).await;
    let error = got.expect("an end long before the next ping").unwrap_err();
    assert!(matches!(error, TimestampsError::DeadlineExceeded { .. }), "{error}");
}

#[tokio::test]
async fn a_node_that_pings_and_never_reads_is_left() {
    let (_client, mut end) = connected().await;
    let pings = ping(7).repeat(4096);
    let pinging = tokio::task::spawn_blocking(move || {
        let mut sent = 0;
        while sent < PINGS_LEN_MAX && end.stream.write_all(&pings).is_ok() {
            sent += pings.len();
        }
        sent
    });
    let sent = pinging.await.unwrap();
    assert!(sent < PINGS_LEN_MAX, "the client is still there after {sent} bytes");
}

#[tokio::test]
async fn an_answer_read_after_the_deadline_is_not_returned() {
    // On a stalled machine a call may end before its request is sent, so the test is repeated.
    for _ in 0..10 {
        let (client, mut end) = connected().await;
        let addr = end.stream.local_addr().unwrap();
        let deadline = Instant::now() + Duration::from_millis(50);
        let call = tokio::spawn(async move { client.timestamps_before(1, deadline).await });
        end.stream.set_nonblocking(true).unwrap();
        while !matches!(end.stream.peek(&mut [0]), Ok(1..)) && !call.is_finished() {
            tokio::task::yield_now().await;
        }
        if call.is_finished() {
            continue;
        }
        end.stream.set_nonblocking(false).unwrap();
        // The node answers, then this loop blocks the only thread until the deadline has passed.
        // When the client runs again, the answer has arrived, but too late.
        assert!(end.serve_one(addr), "the client has left");
        while Instant::now() <= deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(error, TimestampsError::DeadlineExceeded { .. }), "{error}");
        return;
    }
    panic!("no request was sent within 50 ms");
}

#[tokio::test]
async fn a_node_that_never_stops_sending_delays_no_deadline() {
    // Chance decides whether the client ever finds the connection empty, and then the test shows
    // nothing. So it runs three times.
    for _ in 0..3 {
        let (client, mut end) = connected().await;
        let pongs = pong(7).repeat(1 << 16);
        // The node sends pongs until the client closes the connection. It never answers the
        // client's request.
        let talking = std::thread::spawn(move || while end.stream.write_all(&pongs).is_ok() {});
        // After 100 ms all buffers between the two are full. Only then the client begins to read.
        std::thread::sleep(Duration::from_millis(100));
        let deadline = Instant::now() + Duration::from_millis(300);
        let call = tokio::spawn(async move { client.timestamps_before(1, deadline).await });
        let got = tokio::time::timeout(Duration::from_secs(10), call).await;
        let error = got.expect("an end at the deadline").unwrap().unwrap_err();
        assert!(matches!(error, TimestampsError::DeadlineExceeded { .. }), "{error}");
        talking.join().unwrap();
    }
}
