//! The generator over h2c: streams, the leader, and a connection that ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use epicepoch_bench::run::{self, Arrivals, Pace, RunConfig, Target, Transport};
use epicepoch_bench::text;
use epicepoch_wire::{Epoch, EpochIndex, Timestamp};
use http::Response;

/// A node that leads, or names the leader. After `requests_max` it closes the connection.
fn serve(leader: Option<SocketAddr>, requests_max: u64) -> Target {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let next = Arc::new(AtomicU64::new(0));
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                let next = next.clone();
                tokio::spawn(async move {
                    // Whoever asks for metrics speaks HTTP/1.1.
                    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
                    let mut requests = 0;
                    while let Some(Ok((_, mut respond))) = connection.accept().await {
                        requests += 1;
                        if requests > requests_max {
                            return;
                        }
                        let (status, header) = match leader {
                            Some(leader) => (409, leader.to_string()),
                            None => (200, String::new()),
                        };
                        let response = Response::builder()
                            .status(status)
                            .header("epicepoch-leader", header)
                            .body(())
                            .unwrap();
                        let mut stream = respond.send_response(response, false).unwrap();
                        let index = EpochIndex(next.fetch_add(1, Ordering::SeqCst));
                        let body = Timestamp::new(Epoch(7), index).to_bytes();
                        stream.send_data(Bytes::copy_from_slice(&body), true).unwrap();
                    }
                });
            }
        });
    });
    Target { id: u64::from(addr.port()), name: addr.to_string(), addr }
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
        let table = text::run_table(&measured, None, &[]);
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
    let table = text::run_table(&measured, None, &[]);
    assert!(measured.counts.failures["lost"] > 0, "{table}");
    assert!(measured.counts.answers > 2 * PER_CONNECTION, "{table}");
    measured.checked.expect("on by default").verdict.assert_clean();
}

/// Requests that a server which ends its connections answers on each of them.
const PER_CONNECTION: u64 = 10;
