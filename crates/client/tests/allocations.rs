//! What a call costs in memory once everything has grown: nothing. The future of the call is the
//! caller's, wherever it puts it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use epicepoch_client::{Client, Epoch, EpochIndex, Options, Timestamp};
use epicepoch_wire::native::hello::MemberAddr;
use epicepoch_wire::native::{COUNT_MAX, TO_SERVER_TAIL_LEN_MAX, ToServer, Welcome, split};
use epicepoch_wire::{ClusterId, HistoryId, NodeId};

/// A leader on a thread of its own, so that what it takes is not counted.
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
                    ToServer::Hello(_) => {
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

/// How often `calls` calls by each of `callers` tasks take memory, after some that do not count.
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
fn a_call_takes_no_memory_once_everything_has_grown() {
    // What waking the tasks takes at first does not depend on how many calls they make.
    let (few, many) = (taken(50, 20), taken(50, 2000));
    assert!(many <= few + 64, "{few} for 1,000 calls, {many} for 100,000");
}

#[test]
fn the_count_sees_memory_that_is_taken() {
    let measured = allocation_counter::measure(|| drop(std::hint::black_box(Box::new(1_u64))));
    assert_eq!(measured.count_total, 1);
}
