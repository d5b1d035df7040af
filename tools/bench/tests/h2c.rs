//! The generator over h2c: streams, the leader, and connections that end.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use epicepoch_bench::http2::session::STREAM_WINDOW;
use epicepoch_bench::run::{self, Arrivals, Pace, RunConfig, Target, Transport};
use epicepoch_wire::http2::frame::{self, flag, kind};
use epicepoch_wire::{Epoch, EpochIndex, Guarantee, Timestamp};
use http::Response;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Starts a node that names `leader` as the leader, or that leads if `leader` is `None`. It closes
/// a connection after `requests_max` requests.
fn serve(leader: Option<SocketAddr>, requests_max: u64) -> Target {
    listen(move |stream| async move {
        let Ok(mut connection) = h2::server::handshake(stream).await else { return };
        for _ in 0..requests_max {
            let Some(Ok((_, mut respond))) = connection.accept().await else { return };
            let Some(leader) = leader else {
                answer(respond);
                continue;
            };
            let head =
                Response::builder().status(409).header("epicepoch-leader", leader.to_string());
            let _gone = respond.send_response(head.body(()).unwrap(), true);
        }
        // One more `accept` lets the connection send the answers that are left. It takes the next
        // request, which gets no answer.
        let _next = connection.accept().await;
    })
}

fn config(targets: Vec<Target>) -> RunConfig {
    RunConfig {
        transport: Transport::H2c { streams: 8 },
        connections: 2,
        warmup: Duration::ZERO,
        duration: Duration::from_millis(500),
        ..RunConfig::new(targets)
    }
}

#[test]
fn the_leader_is_followed_over_h2c_in_both_loops() {
    let leader = serve(None, u64::MAX);
    let follower = serve(Some(leader.addr), u64::MAX);
    for pace in [Pace::Closed, Pace::Open { rate: 2000.0, arrivals: Arrivals::Poisson }] {
        let config = RunConfig { pace, ..config(vec![follower.clone(), leader.clone()]) };
        let measured = run::run(config, |_, _| {});
        let table = measured.to_string();
        assert_eq!(measured.counts.failed(), 0, "{table}");
        assert!(measured.counts.redirects > 0 && measured.counts.answers > 0, "{table}");
        assert_eq!(measured.counts.answers_by_node.keys().collect::<Vec<_>>(), [&leader.id]);
        measured.checked.expect("on by default").verdict.assert_clean();
    }
}

#[test]
fn a_connection_that_ends_costs_what_was_open_on_it_and_is_opened_again() {
    let leader = serve(None, PER_CONNECTION);
    let measured = run::run(config(vec![leader]), |_, _| {});
    let table = measured.to_string();
    assert!(measured.counts.failures["lost"] > 0, "{table}");
    assert!(measured.counts.answers > 2 * PER_CONNECTION, "{table}");
    measured.checked.expect("on by default").verdict.assert_clean();
}

/// A server of the `h2` crate; `serve` handles each connection.
fn listen<F, T>(serve: F) -> Target
where
    F: Fn(TcpStream) -> T + Send + 'static,
    T: Future<Output = ()> + 'static,
{
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                tokio::task::spawn_local(serve(stream));
            }
        });
    });
    Target::new(u64::from(addr.port()), addr)
}

/// The next timestamp, above all earlier ones.
fn stamp() -> Bytes {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let index = EpochIndex(NEXT.fetch_add(1, Ordering::SeqCst));
    Bytes::copy_from_slice(&Timestamp::new(Epoch(7), index).to_bytes())
}

fn answer(respond: h2::server::SendResponse<Bytes>) {
    // The answer has a header that is in no table. Its value has every visible byte, and the `h2`
    // crate encodes it in Huffman code.
    let visible: Vec<u8> = (0x20..=0x7e).chain(0x80..=0xff).collect();
    answer_with(respond, Response::builder().header("x-visible", &visible[..]));
}

fn answer_with(mut respond: h2::server::SendResponse<Bytes>, head: http::response::Builder) {
    let response = head.body(()).unwrap();
    let Ok(mut stream) = respond.send_response(response, false) else { return };
    let _gone = stream.send_data(stamp(), true);
}

#[test]
fn a_server_that_goes_away_gracefully_fails_nobody() {
    let target = listen(|stream| async move {
        let Ok(mut connection) = h2::server::handshake(stream).await else { return };
        let mut requests = 0;
        while let Some(Ok((_, respond))) = connection.accept().await {
            requests += 1;
            if requests == PER_CONNECTION {
                connection.graceful_shutdown();
            }
            answer(respond);
        }
    });
    let measured = run::run(config(vec![target]), |_, _| {});
    let table = measured.to_string();
    assert_eq!(measured.counts.failed(), 0, "{table}");
    assert!(measured.counts.answers > 5 * PER_CONNECTION, "{table}");
    measured.checked.expect("on by default").verdict.assert_clean();
}

#[test]
fn no_more_streams_are_opened_than_the_server_allows_and_refused_ones_are_sent_again() {
    static OPEN: AtomicU64 = AtomicU64::new(0);
    static OPEN_MAX: AtomicU64 = AtomicU64::new(0);
    let target = listen(|stream| async move {
        let mut builder = h2::server::Builder::new();
        let Ok(mut connection) = builder.max_concurrent_streams(3).handshake(stream).await else {
            return;
        };
        let mut requests = 0;
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            requests += 1;
            if requests % 50 == 0 {
                respond.send_reset(h2::Reason::REFUSED_STREAM);
                continue;
            }
            OPEN_MAX.fetch_max(OPEN.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::spawn_local(async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                OPEN.fetch_sub(1, Ordering::SeqCst);
                answer(respond);
            });
        }
    });
    let config = RunConfig { connections: 1, ..config(vec![target]) };
    let measured = run::run(config, |_, _| {});
    let table = measured.to_string();
    assert_eq!((measured.counts.failed(), OPEN_MAX.load(Ordering::SeqCst)), (0, 3), "{table}");
    assert!(measured.counts.answers > 100 && measured.counts.redirects > 0, "{table}");
    measured.checked.expect("on by default").verdict.assert_clean();
}

#[test]
fn a_request_without_an_answer_times_out_alone() {
    static REQUESTS: AtomicU64 = AtomicU64::new(0);
    let target = listen(|stream| async move {
        let Ok(mut connection) = h2::server::handshake(stream).await else { return };
        let mut forgotten = Vec::new();
        while let Some(Ok((_, respond))) = connection.accept().await {
            if REQUESTS.fetch_add(1, Ordering::SeqCst) == FORGOTTEN {
                forgotten.push(respond);
            } else {
                answer(respond);
            }
        }
    });
    let config = RunConfig {
        connections: 1,
        // The forgotten request times out after 1 s, in the middle of the run, while other requests
        // are open.
        duration: Duration::from_millis(1500),
        request_timeout: Duration::from_secs(1),
        ..config(vec![target])
    };
    let measured = run::run(config, |_, _| {});
    let (counts, table) = (&measured.counts, measured.to_string());
    assert_eq!(counts.failures, [("timeout", 1)].into(), "{table}");
    // All other requests are answered, also those that were sent before and after the forgotten one
    // on its connection.
    assert_eq!(counts.answers + 1, REQUESTS.load(Ordering::SeqCst), "{table}");
    assert!(counts.answers > 2 * FORGOTTEN, "{table}");
    measured.checked.expect("on by default").verdict.assert_clean();
}

#[test]
fn an_answer_that_a_lease_has_proved_is_a_violation_if_a_quorum_was_asked_for() {
    for guarantee in [None, Some(Guarantee::Quorum), Some(Guarantee::Lease)] {
        let target = listen(|stream| async move {
            let Ok(mut connection) = h2::server::handshake(stream).await else { return };
            while let Some(Ok((_, respond))) = connection.accept().await {
                answer_with(respond, Response::builder().header("epicepoch-proof", "lease"));
            }
        });
        let measured = run::run(RunConfig { guarantee, ..config(vec![target]) }, |_, _| {});
        let (counts, table) = (&measured.counts, measured.to_string());
        let is_right = guarantee != Some(Guarantee::Quorum);
        assert_eq!(counts.answers > 0, is_right, "{table}");
        // Also the requests that are open when the first answer comes: their heads are repeated.
        assert_eq!(counts.failures.get("protocol").is_some_and(|it| *it > 8), !is_right, "{table}");
    }
}

#[test]
fn a_server_that_sends_more_than_it_may_is_reported() {
    let target = listen(|mut stream| async move {
        let mut bytes = Vec::new();
        frame::put_settings(&mut bytes, &[]);
        frame::put(&mut bytes, kind::HEADERS, flag::END_HEADERS, 1, &[0x88]);
        for _ in 0..=STREAM_WINDOW as usize / frame::PAYLOAD_LEN_MAX {
            frame::put(&mut bytes, kind::DATA, 0, 1, &[0; frame::PAYLOAD_LEN_MAX]);
        }
        // The server sends its settings first. It sends the rest, the answer, after a request has
        // come.
        let (settings, rest) = bytes.split_at(9);
        let _gone = stream.write_all(settings).await;
        let mut heard = [0; 1024];
        let mut bytes = 0;
        while bytes < BEFORE_REQUESTS {
            match stream.read(&mut heard).await {
                Ok(len @ 1..) => bytes += len,
                _ => return,
            }
        }
        let _gone = stream.write_all(rest).await;
    });
    let config = RunConfig { connections: 1, ..config(vec![target]) };
    let measured = run::run(config, |_, _| {});
    let table = measured.to_string();
    assert!(measured.counts.failures.get("protocol").is_some_and(|it| *it > 0), "{table}");
    // When the connection is closed, at least the requests on its eight streams are lost.
    assert!(measured.counts.failures["lost"] >= 8, "{table}");
    assert_eq!(measured.counts.answers, 0, "{table}");
}

/// One byte more than a client sends before its first request: preface, settings, window update,
/// acknowledgement.
const BEFORE_REQUESTS: usize = 24 + (9 + 12) + (9 + 4) + 9 + 1;
/// Number, from 0, of the request that a server does not answer.
const FORGOTTEN: u64 = 10;
/// A server closes a connection after it has answered this many requests.
const PER_CONNECTION: u64 = 10;
