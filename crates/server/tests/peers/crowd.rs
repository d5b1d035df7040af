//! Connections to the peer port that send no hello. They are counted, and keep no member out.

use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use epicepoch_attack::peers::{Opening, client_hello, occupy};

use crate::authorities::{Fixture, Running, WAIT_MAX, stamp, wait_until};

/// Loopback has many addresses. The members use the first; the crowd uses this one.
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
/// Number of connections: twice the limit of handshakes.
const CROWD: usize = 256;
/// Longest time for a restarted node to connect, on a busy machine.
const BACK_MAX: Duration = Duration::from_secs(15);

fn no_hello(node: &Running) -> u64 {
    node.metric("epicepoch_denied_total{right=\"peer\",reason=\"no_hello\"}")
}

#[test]
fn a_flood_of_silent_connections_keeps_no_member_out() {
    let fixture = Fixture::new();
    let mut nodes: Vec<_> = [1, 2, 3].map(|node| fixture.start(node)).into_iter().collect();
    stamp(&nodes);
    for opening in [Opening::Silent, Opening::PeerHello] {
        drop(nodes.remove(2));
        let before = no_hello(&nodes[0]);
        let is_over = AtomicBool::new(false);
        let path = (ELSEWHERE, fixture.raft[0]);
        thread::scope(|scope| {
            let crowd =
                scope.spawn(|| occupy(path, opening, CROWD, || is_over.load(Ordering::Relaxed)));
            wait_until("a crowd", || no_hello(&nodes[0]) > before);
            let start = Instant::now();
            nodes.push(fixture.start(3));
            let is_back = || nodes[2].metric("epicepoch_confirm_links") >= 2;
            while !is_back() && start.elapsed() < WAIT_MAX {
                thread::sleep(Duration::from_millis(20));
            }
            let took = start.elapsed();
            is_over.store(true, Ordering::Relaxed);
            let occupied = crowd.join().unwrap().unwrap();
            assert!(took < BACK_MAX, "{opening:?}: {took:?}, {occupied:?}");
        });
        stamp(&nodes);
    }
}

#[test]
fn a_missing_hello_or_half_a_handshake_is_counted_at_the_timeout() {
    let fixture = Fixture::new();
    let nodes = [1, 2, 3].map(|node| fixture.start(node));
    stamp(&nodes);
    let connect = || {
        let stream = TcpStream::connect(fixture.raft[0]).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream
    };
    let silent = connect();
    let mut half = connect();
    std::io::Write::write_all(&mut half, &client_hello(1)).unwrap();
    let mut first = [0];
    half.read_exact(&mut first).unwrap();
    assert_eq!(first, [0x16], "a handshake, no alert: the server began the costly handshake");
    nodes[0].await_metric("epicepoch_denied_total{right=\"peer\",reason=\"no_hello\"}", 2);
    drop((silent, half));
}
