//! HTTP/3 on the UDP port with the number of the TCP port. Most tests use the client of the `h3`
//! crate; a client that sends single bytes breaks the limits.

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use epicepoch_certs::authority::{Authority, Issued, Validity};
use epicepoch_certs::config::ALPN_H3;
use epicepoch_certs::{LivePair, LiveRoots, Pair, PemFile, client_config};
use epicepoch_core::publication::Published;
use epicepoch_server::config::ClientTlsMode;
use epicepoch_server::front;
use epicepoch_server::front::http3::{endpoint, limits};
use epicepoch_server::security::authz::Port;
use epicepoch_server::security::tls::load_http3;
use epicepoch_server::security::tls::reloader::Certificates;
use epicepoch_wire::http2::hpack;
use epicepoch_wire::{NodeId, Term};
use h3::error::StreamError;
use http::Request;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ConnectionError, Endpoint, ReadToEndError, VarInt};

use crate::forwarding::{following, with_addresses};
use crate::log;
use crate::node::{Cluster, WAIT_MAX};
use epicepoch_wire::http::HEADER_DIRECT;
use stage::{Client, Head, Stage, answer};

mod stage;

/// `H3_EXCESSIVE_LOAD` (RFC 9114, 8.1).
const EXCESSIVE_LOAD: VarInt = VarInt::from_u32(0x107);
/// `H3_REQUEST_REJECTED`.
const REQUEST_REJECTED: VarInt = VarInt::from_u32(0x10b);
/// `H3_NO_ERROR`.
const NO_ERROR: VarInt = VarInt::from_u32(0x100);
/// Types of frames (RFC 9114, 7.2): a header section, and a reserved type without meaning.
const HEADERS: u8 = 1;
const UNKNOWN: u8 = 0x21;
const GOAWAY: u8 = 7;

/// Waits until the server closes the connection, and returns its code.
async fn ended(quic: &quinn::Connection) -> VarInt {
    match quic.closed().await {
        ConnectionError::ApplicationClosed(close) => close.error_code,
        error => panic!("not ended by HTTP/3: {error}"),
    }
}

/// The first bytes of a frame: its type, and its length as a number of eight bytes (RFC 9000, 16).
fn frame_head(kind: u8, len: u64) -> Vec<u8> {
    [&[kind][..], &(len | 3 << 62).to_be_bytes()].concat()
}

/// A HEADERS frame with a `GET`, from entries and names of the static table (RFC 9204, 4.5).
fn get_frame(path: &str) -> Vec<u8> {
    let mut section = vec![0, 0, 0xd1, 0xd7, 0x50];
    hpack::put_string(&mut section, b"localhost");
    section.push(0x51);
    hpack::put_string(&mut section, path.as_bytes());
    [frame_head(HEADERS, section.len() as u64), section].concat()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let future = async { tokio::time::timeout(WAIT_MAX, future).await.expect("in time") };
    runtime.block_on(future)
}

#[test]
fn requests_over_http3_get_the_same_answers_as_over_http1() {
    let stage = Stage::new();
    block_on(async {
        let client = stage.connect().await;
        let (head, first) = client.get("/timestamp").await;
        assert_eq!((head.status, first.len()), (200, 16));
        let (_, second) = client.get("/timestamp").await;
        assert!(first < second);
        let (head, latest) = client.get("/latest").await;
        assert_eq!((head.status, latest), (200, second));
        let (head, text) = client.get("/latest?format=json").await;
        assert!(head.status == 200 && text.starts_with(b"{\"latest\":{\"hex\":"));
        for path in ["/timestamp?guarantee=lease", "/latest?format=json&guarantee=quorum"] {
            let (head, _) = client.get(path).await;
            assert_eq!((head.status, &*head.proof), (200, "round"), "{path}");
        }
        let (head, _) = client.get("/timestamp?guarantee=none").await;
        assert_eq!((head.status, &*head.error, &*head.proof), (400, "BAD_REQUEST", ""));
        let (head, _) = client.get("/latest?n=1").await;
        assert_eq!((head.status, &*head.error), (400, "BAD_REQUEST"));
        assert_eq!(client.get("/timestamp?n=65536").await.1.len(), 1 << 20);
        assert_eq!(client.get("/timestamp?n=1000&format=range").await.1.len(), 24);
        let (head, text) = client.get("/timestamp?n=1000&format=json").await;
        assert_eq!(head.status, 200);
        assert!(text.ends_with(b"]}\n"));
        let (head, _) = client.get("/timestamp?n=0").await;
        assert_eq!((head.status, &*head.error), (400, "BAD_COUNT"));
        let (head, _) = client.get("/nowhere").await;
        assert_eq!((head.status, &*head.error), (404, "NOT_FOUND"));
        assert_eq!(stage.metric("epicepoch_http3_connections_open"), 1);
    });
}

#[test]
fn an_answer_to_head_has_no_body_whatever_it_says() {
    let stage = Stage::new();
    block_on(async {
        let client = stage.connect().await;
        for (path, status) in [("/up", 200), ("/nowhere", 404), ("/timestamp", 405)] {
            let (whole, text) = client.get(path).await;
            let mut asked = client.ask("HEAD", path).await.unwrap();
            asked.finish().await.unwrap();
            let (head, body) = answer(asked).await;
            assert_eq!((head.status, body), (status, vec![]), "{path}");
            if whole.status == status {
                assert_eq!(head.length, text.len().to_string(), "{path}");
            }
        }
    });
}

/// A follower sends requests on that came over HTTP/3, as over the other versions of HTTP.
#[test]
fn a_follower_sends_requests_over_http3_on_and_refuses_what_must_not_be_sent_on() {
    let mut stage = Stage::of(2, |config| config.forward = true);
    let leader = stage.cluster.start(2);
    let both = [&stage.node, &leader];
    let follows = Published { term: Term(4), ..following(&stage.cluster, 1, 2) };
    stage.node.publish(with_addresses(follows, both));
    leader.publish(with_addresses(stage.cluster.leading(2, 4, true), both));
    let addr = leader.addr.to_string();
    block_on(async {
        let client = stage.connect().await;
        // Until the workers know the leader, requests are refused.
        let (mut head, mut body) = client.get("/timestamp").await;
        while head.status != 200 || head.forwarded.is_empty() {
            (head, body) = client.get("/timestamp").await;
        }
        for (path, len) in [("/timestamp?n=3", 48), ("/timestamp?n=9000", 144_000)] {
            let (head, more) = client.get(path).await;
            let named = (head.status, &*head.forwarded, &*head.leader, more.len());
            assert_eq!(named, (200, "1", &*addr, len), "{path}");
            assert!(body[..16] < more[..16], "{path}");
            body = more;
        }
        for path in ["/latest", "/timestamp?guarantee=lease", "/timestamp?format=u64"] {
            let (head, _) = client.get(path).await;
            let named = (head.status, &*head.error, &*head.leader);
            assert_eq!(named, (409, "NOT_LEADER", &*addr), "{path}");
        }
        let uri = "https://localhost/timestamp";
        let request = Request::builder().uri(uri).header(HEADER_DIRECT, "1").body(()).unwrap();
        let mut asked = client.requests.clone().send_request(request).await.unwrap();
        asked.finish().await.unwrap();
        let (head, _) = answer(asked).await;
        assert_eq!((head.status, &*head.error), (409, "NOT_LEADER"));
    });
}

/// Over TLS, the client itself compares the name with the certificate. A page of another site is
/// refused as over HTTP/1.
#[test]
fn another_site_gets_nothing_of_operators_over_http3() {
    let stage = Stage::new();
    block_on(async {
        let client = stage.connect().await;
        let ask = async |uri: &str, origin: &str| {
            let request = Request::builder().uri(uri).header("origin", origin).body(()).unwrap();
            let mut asked = client.requests.clone().send_request(request).await.unwrap();
            asked.finish().await.unwrap();
            answer(asked).await.0.status
        };
        for authority in ["localhost", "another-name.example:80"] {
            let own = format!("https://{authority}");
            let uri = format!("{own}/status");
            assert_eq!(ask(&uri, &own).await, 200, "{uri}");
            assert_eq!(ask(&uri, "https://evil.example").await, 403, "{uri}");
            let uri = format!("{own}/timestamp");
            assert_eq!(ask(&uri, "https://evil.example").await, 200, "{uri}");
        }
    });
}

/// Sends requests until one is not answered with a timestamp, and returns that answer. The worker
/// may answer one more request before it sees a new publication.
async fn first_refusal(client: &Client) -> (Head, Vec<u8>) {
    loop {
        let (head, body) = client.get("/timestamp").await;
        if head.status != 200 {
            return (head, body);
        }
    }
}

#[test]
fn a_node_that_knows_no_leader_says_so_over_http3() {
    let stage = Stage::new();
    stage.node.publish(stage.cluster.nothing(1));
    block_on(async {
        let client = stage.connect().await;
        let (head, _) = first_refusal(&client).await;
        assert_eq!((head.status, &*head.error, &*head.leader), (503, "NO_LEADER", ""));
    });
}

#[test]
fn a_follower_names_the_leader_over_http3() {
    let stage = Stage::of(2, |_| {});
    let mut published = stage.cluster.nothing(1);
    published.leader = Some(NodeId(2));
    stage.node.publish(published);
    block_on(async {
        let client = stage.connect().await;
        let (head, body) = first_refusal(&client).await;
        assert_eq!((head.status, &*head.error), (409, "NOT_LEADER"));
        assert_eq!(&*head.leader, "client-2.test:80");
        assert_eq!(body, b"client-2.test:80");
    });
}

#[test]
fn streams_share_rounds_and_get_distinct_timestamps() {
    let stage = Stage::with(|config| config.workers = 2);
    block_on(async {
        let (one, two) = (stage.connect().await, stage.connect().await);
        let mut all = Vec::new();
        for _ in 0..10 {
            let asked = (0..20).map(|turn| if turn % 2 == 0 { &one } else { &two });
            let mut open = Vec::new();
            for client in asked {
                let mut asked = client.ask("GET", "/timestamp").await.unwrap();
                asked.finish().await.unwrap();
                open.push(asked);
            }
            for asked in open {
                all.push(answer(asked).await.1);
            }
        }
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 200);
    });
}

#[test]
fn a_short_body_is_ignored_and_a_long_one_refused() {
    let stage = Stage::new();
    block_on(async {
        let client = stage.connect().await;
        assert_eq!(client.post(4096).await.0.status, 200);
        let (head, _) = client.post(4097).await;
        assert_eq!((head.status, &*head.error), (400, "BAD_REQUEST"));
    });
}

#[test]
fn a_head_that_is_too_large_is_refused() {
    let stage = Stage::new();
    block_on(async {
        let client = stage.connect().await;
        // The client of the library would not send this request.
        let path = format!("/up?{}", "x".repeat(limits::HEAD_LEN_MAX as usize));
        let (mut send, mut recv) = client.quic.open_bi().await.unwrap();
        let _ = send.write_all(&get_frame(&path)).await;
        let stream = recv.read_to_end(1 << 10).await.unwrap();
        // Entry 24 of the static table, `:status`, with `431` in Huffman's code (RFC 7541, B).
        let status = [0x5f, 0x09, 0x83, 0x69, 0x90, 0xff];
        assert!(stream.windows(status.len()).any(|part| part == status), "{stream:x?}");
        assert_eq!(client.get("/up").await.0.status, 200);
    });
}

#[test]
fn a_request_stream_beyond_its_limit_is_stopped() {
    let stage = Stage::new();
    block_on(async {
        let client = stage.connect().await;
        for kind in [HEADERS, UNKNOWN] {
            // The frame claims a terabyte. The library would buffer all received bytes of it.
            let (mut send, _recv) = client.quic.open_bi().await.unwrap();
            send.write_all(&frame_head(kind, 1 << 40)).await.unwrap();
            let part = vec![0; 1 << 10];
            let mut written = 0;
            while send.write_all(&part).await.is_ok() {
                written += part.len();
                assert!(written <= 2 * limits::REQUEST_LEN_MAX, "{written} bytes were taken");
            }
            let stopped = send.stopped().await.unwrap();
            assert_eq!(stopped, Some(EXCESSIVE_LOAD), "kind {kind}");
        }
        assert_eq!(client.get("/up").await.0.status, 200);
    });
}

#[test]
fn a_control_frame_that_announces_a_large_length_ends_the_connection() {
    log::keep();
    let stage = Stage::new();
    block_on(async {
        let mut client = stage.connect_by_hand().await;
        let frame = frame_head(UNKNOWN, limits::CONTROL_FRAME_LEN_MAX + 1);
        client.control.write_all(&frame).await.unwrap();
        assert_eq!(ended(&client.quic).await, EXCESSIVE_LOAD);
    });
    stage.node.await_metric("epicepoch_http3_abusers_closed_total", 1);
    let (kind, reason) = ("kind=\"http3_abuse\"", "a control frame is too long");
    log::await_line(&["a client sends too much", "addr=\"127.0.0.1\"", kind, reason]);
}

#[test]
fn a_flood_beside_requests_ends_the_connection() {
    let stage = Stage::new();
    block_on(async {
        let mut client = stage.connect_by_hand().await;
        // The client sends frames of a reserved type without meaning, until the server ends the
        // connection.
        let frame = [UNKNOWN, 32].into_iter().chain([0; 32]).collect::<Vec<_>>();
        while client.control.write_all(&frame).await.is_ok() {}
        assert_eq!(ended(&client.quic).await, EXCESSIVE_LOAD);
        let client = stage.connect().await;
        // The client opens streams of a reserved type without meaning, until the server ends the
        // connection.
        while let Ok(mut stream) = client.quic.open_uni().await {
            let _ = stream.write_all(&[UNKNOWN, 1]).await;
        }
        assert_eq!(ended(&client.quic).await, EXCESSIVE_LOAD);
    });
    stage.node.await_metric("epicepoch_http3_abusers_closed_total", 2);
}

#[test]
fn a_flood_of_cancelled_requests_ends_the_connection() {
    let stage = Stage::new();
    block_on(async {
        let client = stage.connect().await;
        let path = get_frame("/timestamp");
        let mut opened = 0;
        while let Ok((mut send, mut recv)) = client.quic.open_bi().await {
            // Half of the streams are reset before the server can know what they are.
            if opened % 2 == 0 {
                let _ = send.write_all(&path[..3]).await;
                tokio::task::yield_now().await;
                let _ = send.reset(EXCESSIVE_LOAD);
            } else {
                let _ = send.write_all(&path).await;
                let _ = recv.stop(EXCESSIVE_LOAD);
                let _ = send.reset(EXCESSIVE_LOAD);
            }
            opened += 1;
            assert!(opened < 100 * limits::TAKEN_BACK_MAX, "{opened} were taken");
        }
        assert_eq!(ended(&client.quic).await, EXCESSIVE_LOAD);
        let other = stage.connect().await;
        assert_eq!(other.get("/timestamp").await.0.status, 200);
    });
    stage.node.await_metric("epicepoch_http3_abusers_closed_total", 1);
}

#[test]
fn the_number_of_open_streams_is_limited_and_datagrams_are_off() {
    let stage = Stage::new();
    block_on(async {
        let client = stage.connect().await;
        assert_eq!(client.quic.max_datagram_size(), None);
        let mut open = Vec::new();
        for _ in 0..limits::STREAMS_MAX {
            open.push(client.quic.open_bi().await.unwrap());
        }
        let another = tokio::time::timeout(Duration::from_millis(200), client.quic.open_bi());
        assert!(another.await.is_err(), "more streams than {}", limits::STREAMS_MAX);
        let client = stage.connect_by_hand().await;
        let mut beside = vec![];
        for _ in 1..limits::STREAMS_BESIDE_MAX {
            beside.push(client.quic.open_uni().await.unwrap());
        }
        let another = tokio::time::timeout(Duration::from_millis(200), client.quic.open_uni());
        assert!(another.await.is_err(), "more than {}", limits::STREAMS_BESIDE_MAX);
    });
}

#[test]
fn http3_connections_count_toward_the_limit_of_connections() {
    let stage = Stage::with(|config| config.connections_max = 2);
    block_on(async {
        let first = stage.connect().await;
        assert_eq!(first.get("/up").await.0.status, 200);
        let _second = stage.connect().await;
        let endpoint = stage.endpoint();
        let refused = endpoint.connect(stage.addr, "localhost").unwrap().await.unwrap_err();
        // The client has proven its address before it is refused.
        let ConnectionError::ConnectionClosed(close) = refused else { panic!("{refused}") };
        assert_eq!(close.error_code, quinn::TransportErrorCode::CONNECTION_REFUSED);
        assert_eq!(first.get("/up").await.0.status, 200);
        let tcp = std::net::TcpStream::connect(stage.node.addr).unwrap();
        tcp.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let read = std::io::Read::read(&mut &tcp, &mut [0; 1]);
        let is_closed = read.as_ref().is_ok_and(|len| *len == 0)
            || read.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
        assert!(is_closed, "TCP has no room either: {read:?}");
    });
}

#[test]
fn a_node_that_stops_announces_it_and_answers_received_requests() {
    let stage = Stage::new();
    block_on(async {
        let client = stage.connect().await;
        assert_eq!(client.get("/timestamp").await.0.status, 200);
        // The server has the head of this request but not its body, so the request is still open.
        let mut asked = client.ask("POST", "/timestamp").await.unwrap();
        asked.send_data(Bytes::from_static(b"half")).await.unwrap();
        assert_eq!(client.get("/up").await.0.status, 200);
        let workers = stage.node.workers.clone();
        let stopping = std::thread::spawn(move || workers.shutdown(WAIT_MAX));
        // The server sends GOAWAY, so the library sends no further request.
        while !matches!(client.ask("GET", "/up").await, Err(StreamError::RemoteClosing { .. })) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        asked.finish().await.unwrap();
        assert_eq!(answer(asked).await.0.status, 200);
        assert_eq!(ended(&client.quic).await, NO_ERROR);
        assert!(stopping.join().unwrap());
    });
}

#[test]
fn a_node_that_stops_waits_for_a_request_whose_head_is_on_its_way() {
    let stage = Stage::new();
    block_on(async {
        let client = stage.connect().await;
        let (mut send, mut recv) = client.quic.open_bi().await.unwrap();
        let head = get_frame("/up");
        let (last, before) = head.split_last().unwrap();
        send.write_all(before).await.unwrap();
        // The server takes streams in their order.
        assert_eq!(client.get("/up").await.0.status, 200);
        let workers = stage.node.workers.clone();
        let stopping = std::thread::spawn(move || workers.shutdown(WAIT_MAX));
        while !matches!(client.ask("GET", "/up").await, Err(StreamError::RemoteClosing { .. })) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Longer than a client has for its last answers.
        let closed = tokio::time::timeout(Duration::from_millis(150), client.quic.closed());
        assert!(closed.await.is_err(), "the server has closed before it knew the request");
        send.write_all(&[*last]).await.unwrap();
        send.finish().unwrap();
        assert!(recv.read_to_end(1 << 10).await.unwrap().ends_with(b"ok"));
        assert_eq!(ended(&client.quic).await, NO_ERROR);
        assert!(stopping.join().unwrap());
    });
}

/// A request that comes after the GOAWAY is not carried out, as the GOAWAY says.
#[test]
fn a_node_that_stops_rejects_what_it_has_announced_to_reject() {
    let stage = Stage::new();
    block_on(async {
        let client = stage.connect_by_hand().await;
        // The node waits for the end of this request's body.
        let (mut first, mut answer) = client.quic.open_bi().await.unwrap();
        let head = get_frame("/up");
        first.write_all(&head).await.unwrap();
        let (mut up, mut known) = client.quic.open_bi().await.unwrap();
        up.write_all(&head).await.unwrap();
        up.finish().unwrap();
        assert!(known.read_to_end(1 << 10).await.unwrap().ends_with(b"ok"));
        let workers = stage.node.workers.clone();
        let stopping = std::thread::spawn(move || workers.shutdown(WAIT_MAX));
        assert_eq!(client.goaway().await, 8, "two requests were taken");
        let (mut late, mut rejected) = client.quic.open_bi().await.unwrap();
        late.write_all(&head).await.unwrap();
        late.finish().unwrap();
        let end = rejected.read_to_end(1 << 10).await.unwrap_err();
        let ReadToEndError::Read(quinn::ReadError::Reset(code)) = end else { panic!("{end}") };
        assert_eq!(code, REQUEST_REJECTED);
        first.finish().unwrap();
        assert!(answer.read_to_end(1 << 10).await.unwrap().ends_with(b"ok"));
        assert!(stopping.join().unwrap());
    });
}

#[test]
fn a_client_that_announces_its_end_gets_its_whole_answer() {
    let stage = Stage::new();
    block_on(async {
        let mut client = stage.connect_by_hand().await;
        let (mut send, mut recv) = client.quic.open_bi().await.unwrap();
        send.write_all(&get_frame("/timestamp?n=65536")).await.unwrap();
        send.finish().unwrap();
        client.control.write_all(&[GOAWAY, 1, 0]).await.unwrap();
        assert!(recv.read_to_end(2 << 20).await.unwrap().len() > 1 << 20);
        client.quic.close(NO_ERROR, b"");
        while stage.node.metric("epicepoch_http3_connections_open") > 0 {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn a_client_that_waits_to_be_asked_for_its_body_is_answered_without_it() {
    let stage = Stage::new();
    block_on(async {
        let client = stage.connect().await;
        let request = Request::post("https://localhost/timestamp");
        let request = request.header("expect", "100-continue").body(()).unwrap();
        let asked = client.requests.clone().send_request(request).await.unwrap();
        assert_eq!(answer(asked).await.0.status, 200);
    });
}

/// The library remembers each of these requests.
#[test]
fn a_connection_with_many_requests_without_heads_is_replaced() {
    let stage = Stage::new();
    block_on(async {
        let client = stage.connect_by_hand().await;
        let head = get_frame("/up");
        let open = async |head: &[u8]| {
            let (mut send, recv) = client.quic.open_bi().await?;
            let _closed = send.write_all(head).await;
            let _closed = send.finish();
            Ok::<_, ConnectionError>(recv)
        };
        // Each answer allows another request without a head.
        for turn in 0_u32.. {
            assert!(turn <= limits::HEADLESS_MAX, "the connection goes on");
            let Ok(mut recv) = open(&head).await else { break };
            let _closed = recv.read_to_end(1 << 10).await;
            let Ok(mut recv) = open(b"").await else { break };
            let _reset = recv.read_to_end(1 << 10).await;
        }
        assert_eq!(ended(&client.quic).await, NO_ERROR);
        assert_eq!(stage.connect().await.get("/up").await.0.status, 200);
    });
}

#[test]
fn a_head_that_never_ends_does_not_delay_a_node_that_stops() {
    let stage = Stage::with(|config| config.limits.head_timeout = WAIT_MAX * 2);
    block_on(async {
        let client = stage.connect().await;
        let (mut send, _recv) = client.quic.open_bi().await.unwrap();
        send.write_all(&get_frame("/up")[..3]).await.unwrap();
        assert_eq!(client.get("/up").await.0.status, 200);
        let (workers, began) = (stage.node.workers.clone(), Instant::now());
        let stopping = std::thread::spawn(move || workers.shutdown(WAIT_MAX / 2));
        assert_eq!(ended(&client.quic).await, NO_ERROR);
        assert!(stopping.join().unwrap());
        assert!(began.elapsed() < WAIT_MAX / 2, "the connection was cut off");
    });
}

#[test]
fn an_incomplete_head_and_a_silent_connection_time_out() {
    let second = Duration::from_secs(1);
    let stage = Stage::with(|config| {
        config.limits.head_timeout = second;
        config.limits.idle_timeout = 2 * second;
    });
    block_on(async {
        let client = stage.connect().await;
        let (mut send, mut recv) = client.quic.open_bi().await.unwrap();
        let head = get_frame("/timestamp");
        send.write_all(&head[..head.len() - 1]).await.unwrap();
        let cut = recv.read_to_end(1 << 16).await.unwrap_err();
        assert!(matches!(cut, ReadToEndError::Read(quinn::ReadError::Reset(_))), "{cut}");
        assert_eq!(client.get("/timestamp").await.0.status, 200);
        // The client sends nothing more.
        assert_eq!(ended(&client.quic).await, NO_ERROR);
        // This client has never sent anything.
        let endpoint = stage.endpoint();
        let quic = endpoint.connect(stage.addr, "localhost").unwrap().await.unwrap();
        assert!(matches!(quic.closed().await, ConnectionError::ApplicationClosed(_)));
    });
    stage.node.await_metric("epicepoch_connections_idle_closed_total", 2);
}

#[test]
fn a_client_that_lets_the_server_open_no_stream_is_closed_all_the_same() {
    let stage = Stage::with(|config| config.limits.head_timeout = Duration::from_secs(1));
    block_on(async {
        let (_endpoint, quic) = stage.connect_as_miser().await;
        let ended = quic.closed().await;
        let ConnectionError::ApplicationClosed(close) = &ended else { panic!("{ended}") };
        assert_eq!(close.error_code, NO_ERROR);
    });
    stage.node.await_metric("epicepoch_connections_idle_closed_total", 1);
    assert_eq!(stage.metric("epicepoch_http3_connections_open"), 0);
}

#[test]
fn a_client_that_lets_the_server_open_no_stream_does_not_delay_a_node_that_stops() {
    let stage = Stage::new();
    block_on(async {
        let (_endpoint, quic) = stage.connect_as_miser().await;
        while stage.metric("epicepoch_http3_connections_open") == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let workers = stage.node.workers.clone();
        let stopping = std::thread::spawn(move || workers.shutdown(WAIT_MAX / 2));
        let ended = quic.closed().await;
        assert!(matches!(ended, ConnectionError::ApplicationClosed(_)), "{ended}");
        assert!(stopping.join().unwrap(), "it had to be cut off");
    });
}

#[test]
fn with_many_handshakes_under_way_a_client_must_prove_its_address() {
    let stage = Stage::new();
    block_on(async {
        // Clients that receive nothing from the server: their datagrams are passed on, and no
        // answers come back.
        let deaf = tokio::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let front = deaf.local_addr().unwrap();
        let to = stage.addr;
        let passing = tokio::spawn(async move {
            let mut datagram = [0; 2048];
            loop {
                let (len, from) = deaf.recv_from(&mut datagram).await.unwrap();
                if from != to {
                    deaf.send_to(&datagram[..len], to).await.unwrap();
                }
            }
        });
        let endpoint = stage.endpoint();
        let connect = |_| endpoint.connect(front, "localhost").unwrap();
        let begun: Vec<_> = (0..2 * limits::HANDSHAKES_BEFORE_RETRY).map(connect).collect();
        while stage.metric("epicepoch_quic_retries_total") == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let before = stage.metric("epicepoch_quic_retries_total");
        let client = stage.connect().await;
        assert_eq!(client.get("/timestamp").await.0.status, 200);
        let after = stage.metric("epicepoch_quic_retries_total");
        assert!(after > before, "it was told to prove it: {before} {after}");
        let open = stage.metric("epicepoch_http3_connections_open");
        assert_eq!(open, 1);
        drop(begun);
        passing.abort();
    });
}

#[test]
fn a_client_certificate_is_required_over_http3_as_over_tcp() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let authority = Authority::new("epicepoch").unwrap();
    let write = |name: &str, issued: &Issued| {
        std::fs::write(at(&format!("{name}.pem")), &issued.certificate).unwrap();
        std::fs::write(at(&format!("{name}.key")), &issued.key).unwrap();
    };
    let names = ["localhost".to_owned()];
    write("node", &authority.node(NodeId(1), &names, Validity::days(9)).unwrap());
    write("app", &authority.client("app", Validity::days(9)).unwrap());
    std::fs::write(at("ca.pem"), authority.certificate()).unwrap();
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| {
        config.tls.clients = ClientTlsMode::On;
        config.tls.cert_file = at("node.pem");
        config.tls.key_file = at("node.key");
        config.tls.client_ca_file = Some(at("ca.pem"));
        config.election_timeout = WAIT_MAX / 4;
    });
    let (config, tcp) = (&node.shared.config, node.shared.tls.as_ref());
    let tls = load_http3(config, tcp, &mut Certificates::default()).unwrap().expect("it is on");
    let sockets = endpoint::bind((Ipv4Addr::LOCALHOST, 0).into(), 1).unwrap();
    let addr = sockets[0].local_addr().unwrap();
    front::serve_http3(&node.workers, sockets, tls, Port::Shared, &node.shared).unwrap();
    node.publish(cluster.leading(1, 3, true));
    let ca = LiveRoots::load(PemFile::new("--ca-file", at("ca.pem"))).unwrap();
    let file = |name: &str| PemFile::new("--cert-file", at(name));
    let pair = LivePair::new(Pair::load(file("app.pem"), file("app.key")).unwrap());
    block_on(async {
        for (pair, is_taken) in [(None, false), (Some(pair), true)] {
            let tls = client_config(ca.clone(), pair, &[ALPN_H3]);
            let quic = QuicClientConfig::try_from(tls).unwrap();
            let endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
            let client = quinn::ClientConfig::new(Arc::new(quic));
            let connecting = endpoint.connect_with(client, addr, "localhost").unwrap();
            match connecting.await {
                Ok(quic) if is_taken => {
                    let client = Client::begin(quic, endpoint).await;
                    assert_eq!(client.get("/up").await.0.status, 200);
                }
                // The client's handshake may be complete before the server has noticed that there
                // is no certificate.
                Ok(quic) => {
                    let refused = quic.closed().await;
                    assert!(matches!(refused, ConnectionError::ConnectionClosed(_)), "{refused}");
                }
                Err(error) => assert!(!is_taken, "{error}"),
            }
        }
    });
}
