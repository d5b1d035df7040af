//! Tests that a call allocates no memory in the client once all buffers have grown. The future of
//! the call belongs to the caller and is not counted.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use epicepoch_client::{Client, Epoch, EpochIndex, Options, Timestamp};
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

/// Returns how many allocations `calls` calls by each of `callers` tasks make, after a warm-up.
fn taken(callers: usize, calls: usize) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = Client::new([leader().to_string()], Options::default()).unwrap();
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
    let (few, many) = (taken(50, 20), taken(50, 2000));
    assert!(many <= few + 64, "{few} for 1,000 calls, {many} for 100,000");
}

#[test]
fn the_count_sees_allocations() {
    let measured = allocation_counter::measure(|| drop(std::hint::black_box(Box::new(1_u64))));
    assert_eq!(measured.count_total, 1);
}
