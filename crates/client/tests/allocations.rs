//! Tests how often a call allocates memory in the client once all buffers have grown: never over
//! the native protocol, a few times over HTTP. The future of the call belongs to the caller and is
//! not counted.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use epicepoch_client::{Client, Epoch, EpochIndex, Options, Timestamp, TimestampRange, Via};
use epicepoch_wire::native::client_hello::MemberAddr;
use epicepoch_wire::native::{COUNT_MAX, TO_SERVER_TAIL_LEN_MAX, ToServer, Welcome, split};
use epicepoch_wire::{ClusterId, HistoryId, NodeId};

/// Starts a leader on its own thread, whose allocations are not counted. Returns its address.
fn leader() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        let (mut input, mut next) = (Vec::new(), 0);
        let mut chunk = [0; 4096];
        while let Ok(length @ 1..) = stream.read(&mut chunk) {
            input.extend_from_slice(&chunk[..length]);
            while let Some(frame) = split(&input, TO_SERVER_TAIL_LEN_MAX).unwrap() {
                let mut out = Vec::new();
                match ToServer::decode(&frame).unwrap() {
                    ToServer::ClientHello(_) => {
                        let leader = MemberAddr { node: NodeId(1), addr: addr.to_string() };
                        let welcome = Welcome {
                            version: 1,
                            cluster: Some((ClusterId(1), HistoryId(1))),
                            node: NodeId(1),
                            leader: Some(leader),
                            in_flight_max: 1024,
                            idle_ms: 120_000,
                            count_max: COUNT_MAX,
                            ..Welcome::default()
                        };
                        welcome.encode(&mut out);
                    }
                    ToServer::Request(request) => {
                        let first = Timestamp::new(Epoch(1), EpochIndex(next));
                        next += request.count();
                        out.extend(request.answer(first));
                    }
                    other => panic!("{other:?}"),
                }
                let length = frame.len();
                input.drain(..length);
                stream.write_all(&out).unwrap();
            }
        }
    });
    addr
}

/// Starts a leader over HTTP, with a thread for each connection. Returns its address.
fn http_leader() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let next = Arc::new(AtomicU64::new(0));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, next) = (stream.unwrap(), next.clone());
            stream.set_nodelay(true).unwrap();
            std::thread::spawn(move || {
                let (mut input, mut chunk) = (Vec::new(), [0; 4096]);
                while let Ok(length @ 1..) = stream.read(&mut chunk) {
                    input.extend_from_slice(&chunk[..length]);
                    if !input.ends_with(b"\r\n\r\n") {
                        continue;
                    }
                    let body = if input.starts_with(b"GET /members") {
                        let member = format!(r#"{{"nodeID":1,"addr":"{addr}"}}"#);
                        format!(r#"{{"leader":{member},"members":[{member}]}}"#).into_bytes()
                    } else {
                        // Answers may overtake each other on the way to the client, so their order
                        // is of no use. Each has an epoch above those before it.
                        let epoch = Epoch(1 + next.fetch_add(1, Ordering::SeqCst));
                        let first = Timestamp::new(epoch, EpochIndex(0));
                        TimestampRange::new(first, 1).unwrap().to_bytes().to_vec()
                    };
                    let cluster = epicepoch_wire::http::cluster_header(ClusterId(1), HistoryId(1));
                    let head = format!(
                        "HTTP/1.1 200 OK\r\nepicepoch-cluster: {cluster}\r\n\
                         content-length: {}\r\n\r\n",
                        body.len()
                    );
                    stream.write_all(&[head.as_bytes(), &body].concat()).unwrap();
                    input.clear();
                }
            });
        }
    });
    addr
}

/// Returns how many allocations `calls` calls by each of `callers` tasks make, after a warm-up.
fn taken(via: Via, callers: usize, calls: usize) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let addr = match via {
        Via::Http => http_leader(),
        _ => leader(),
    };
    let mut options = Options::default();
    options.via = via;
    let client = Client::new([addr.to_string()], options).unwrap();
    let (go, gate) = tokio::sync::watch::channel(false);
    let mut tasks = Vec::new();
    let warm = Arc::new(AtomicUsize::new(0));
    for _ in 0..callers {
        let (client, mut gate, warm) = (client.clone(), gate.clone(), warm.clone());
        tasks.push(runtime.spawn(async move {
            for _ in 0..calls {
                client.timestamp().await.unwrap();
            }
            warm.fetch_add(1, Ordering::SeqCst);
            gate.wait_for(|is_open| *is_open).await.unwrap();
            for _ in 0..calls {
                client.timestamp().await.unwrap();
            }
        }));
    }
    runtime.block_on(async {
        while warm.load(Ordering::SeqCst) < callers {
            tokio::task::yield_now().await;
        }
    });
    let measured = allocation_counter::measure(|| {
        go.send(true).unwrap();
        runtime.block_on(async {
            for task in &mut tasks {
                task.await.unwrap();
            }
        });
    });
    measured.count_total
}

#[test]
fn a_call_allocates_nothing_once_buffers_have_grown() {
    // The first wake-ups allocate, but the number of these allocations does not depend on the
    // number of calls.
    let (few, many) = (taken(Via::Native, 50, 20), taken(Via::Native, 50, 2000));
    assert!(many <= few + 64, "{few} for 1,000 calls, {many} for 100,000");
}

#[test]
fn a_call_over_http_allocates_its_steps_and_nothing_for_the_answer() {
    // The future of the call, and the address. Nothing is allocated for the request, the answer or
    // a task.
    const EACH: u64 = 2;
    let (few, many) = (taken(Via::Http, 8, 100), taken(Via::Http, 8, 1100));
    let each = many.saturating_sub(few) as f64 / 8_000.0;
    assert!(each < EACH as f64 + 0.1, "{each} for each call");
}

#[test]
fn the_count_sees_allocations() {
    let measured = allocation_counter::measure(|| drop(std::hint::black_box(Box::new(1_u64))));
    assert_eq!(measured.count_total, 1);
}
