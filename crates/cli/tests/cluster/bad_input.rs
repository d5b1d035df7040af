//! Clients that are wrong, slow or too many: each gets the answer of the contract, and the node
//! serves on.

use std::time::{Duration, Instant};

use crate::support::process::{raise_descriptor_limit, resident_bytes};
use crate::support::wire::{Answer, Wire, request};
use crate::support::{Cluster, Node, say};

/// No single step of an answer takes longer.
const LIMIT: Duration = Duration::from_secs(5);
/// How long a client may say nothing in the middle of a request, with room.
const SILENT_CLIENT_LIMIT: Duration = Duration::from_secs(30);

fn leader(cluster: &Cluster) -> &Node {
    &cluster.nodes[cluster.wait_for_leader()]
}

/// Asks on a connection of its own.
#[track_caller]
fn ask(node: &Node, bytes: &[u8]) -> Answer {
    let mut wire = Wire::open(node.http(), LIMIT).expect("the node accepts");
    wire.send(bytes).expect("the node reads");
    wire.receive().expect("the node answers")
}

#[track_caller]
fn get(node: &Node, target: &str) -> Answer {
    ask(node, &request("GET", target, &[], b""))
}

#[track_caller]
fn assert_error(answer: &Answer, status: u16, code: &str, about: &str) {
    assert_eq!((answer.status, answer.error()), (status, Some(code)), "{about}: {answer:?}");
    let text = answer.text();
    assert_eq!(text.trim_end().lines().count(), 1, "{about}: one line that helps: {text:?}");
    assert!(answer.header("epicepoch-cluster").is_some(), "{about}: {answer:?}");
}

#[track_caller]
fn assert_serves(node: &Node) {
    let answer = get(node, "/timestamp");
    assert_eq!((answer.status, answer.body.len()), (200, 16), "{answer:?}");
}

#[test]
fn a_bad_count_or_format_is_a_400_with_its_code() {
    let cluster = Cluster::start_calm();
    let node = leader(&cluster);
    for count in ["0", "-1", "1e30", "abc", "", "65537", "18446744073709551616", "1.0", "+1", "%00"]
    {
        let target = format!("/timestamp?n={count}");
        assert_error(&get(node, &target), 400, "BAD_COUNT", &target);
    }
    for target in [
        "/timestamp?n=1&n=1",
        "/timestamp?n=1&n=2",
        "/timestamp?n",
        "/timestamp?n=4294967297&format=range",
        "/timestamp?n=0&format=range",
    ] {
        assert_error(&get(node, target), 400, "BAD_COUNT", target);
    }
    for target in
        ["/timestamp?format=xml", "/timestamp?format=", "/timestamp?format=json&format=range"]
    {
        assert_error(&get(node, target), 400, "BAD_FORMAT", target);
    }
    assert_serves(node);
}

#[test]
fn a_wrong_method_is_a_405_that_names_the_right_one() {
    let cluster = Cluster::start_calm();
    let node = leader(&cluster);
    for (method, path) in [
        ("PUT", "/timestamp"),
        ("DELETE", "/timestamp"),
        ("PATCH", "/timestamp"),
        ("POST", "/members"),
        ("POST", "/up"),
        ("POST", "/metrics"),
        ("DELETE", "/leader"),
        ("PUT", "/ready"),
    ] {
        let answer = ask(node, &request(method, path, &[], b""));
        assert_error(&answer, 405, "METHOD_NOT_ALLOWED", path);
        let allow = answer.header("allow").expect("a 405 says what is allowed");
        assert!(allow.contains("GET"), "{path}: {allow}");
        assert_eq!(allow.contains("POST"), path == "/timestamp", "{path}: {allow}");
    }
    assert_serves(node);
}

#[test]
fn a_megabyte_of_header_is_refused_and_not_kept() {
    let cluster = Cluster::start_calm();
    let node = leader(&cluster);
    let before = resident_bytes(node.pid());
    let long = "x".repeat(1 << 20);
    for _ in 0..20 {
        let mut wire = Wire::open(node.http(), LIMIT).expect("the node accepts");
        // The node may close before it has read everything.
        let sent = wire.send(&request("GET", "/timestamp", &[("x-long", &long)], b""));
        match wire.receive() {
            Ok(answer) => assert!(matches!(answer.status, 400 | 431), "{answer:?}"),
            Err(error) => assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "{sent:?}"),
        }
    }
    let target = format!("/timestamp?{}", "n".repeat(1 << 20));
    let mut wire = Wire::open(node.http(), LIMIT).expect("the node accepts");
    let _ = wire.send(&request("GET", &target, &[], b""));
    if let Ok(answer) = wire.receive() {
        assert!(matches!(answer.status, 400 | 414 | 431), "{answer:?}");
    }
    let growth = resident_bytes(node.pid()).saturating_sub(before);
    assert!(growth < 32 << 20, "grew by {growth} bytes");
    assert_serves(node);
}

#[test]
fn a_request_id_too_long_is_refused() {
    let cluster = Cluster::start_calm();
    let node = leader(&cluster);
    let id = "i".repeat(129);
    let answer = ask(node, &request("GET", "/timestamp", &[("epicepoch-request-id", &id)], b""));
    assert_error(&answer, 400, "BAD_REQUEST", "129 characters");
    assert_serves(node);
}

#[test]
fn a_body_on_a_get_changes_nothing_and_is_not_kept() {
    let cluster = Cluster::start_calm();
    let node = leader(&cluster);
    let before = resident_bytes(node.pid());
    for len in [1, 1000, 1 << 20] {
        let body = vec![b'b'; len];
        for method in ["GET", "POST"] {
            let mut wire = Wire::open(node.http(), LIMIT).expect("the node accepts");
            // An early answer to a long body may come before the body was read.
            let _ = wire.send(&request(method, "/timestamp", &[], &body));
            match wire.receive() {
                Ok(answer) => assert!(matches!(answer.status, 200 | 400 | 413), "{answer:?}"),
                Err(error) => assert!(len > 1000, "{method} with {len} bytes: {error}"),
            }
        }
    }
    let growth = resident_bytes(node.pid()).saturating_sub(before);
    assert!(growth < 32 << 20, "grew by {growth} bytes");
    assert_serves(node);
}

#[test]
fn half_a_request_and_then_silence_is_ended_by_the_node() {
    let cluster = Cluster::start_calm();
    let node = leader(&cluster);
    let mut halves: Vec<Wire> = (0..50)
        .map(|_| {
            let mut wire = Wire::open(node.http(), SILENT_CLIENT_LIMIT).expect("the node accepts");
            wire.send(b"GET /timestamp HTTP/1.1\r\nhost: epi").expect("the node reads");
            wire
        })
        .collect();
    assert_serves(node);
    let from = Instant::now();
    assert!(halves.iter_mut().all(Wire::is_closed_by_server), "half a request is held for ever");
    say(&format!("half a request is ended after {:.1} s", from.elapsed().as_secs_f64()));
    assert_serves(node);
}

#[test]
fn what_is_no_request_at_all_ends_only_its_own_connection() {
    let cluster = Cluster::start_calm();
    let node = leader(&cluster);
    let mut random = fastrand::Rng::with_seed(11);
    for len in [1, 10, 100, 10_000] {
        let mut wire = Wire::open(node.http(), LIMIT).expect("the node accepts");
        let bytes: Vec<u8> = (0..len).map(|_| random.u8(128..)).collect();
        // The node may close while we send.
        let _ = wire.send(&[&bytes, &b"\r\n\r\n"[..]].concat());
        if let Ok(answer) = wire.receive() {
            assert_eq!(answer.status, 400, "{answer:?}");
        }
    }
    assert_serves(node);
}

#[test]
fn five_thousand_idle_connections_cost_bounded_memory() {
    const CONNECTIONS: usize = 5000;
    raise_descriptor_limit(CONNECTIONS as u64 + 1000);
    let cluster = Cluster::start_calm();
    let node = leader(&cluster);
    let before = resident_bytes(node.pid());
    let open = |at: usize| {
        let wire = Wire::open(node.http(), LIMIT);
        wire.unwrap_or_else(|error| panic!("connection {at}: {error}"))
    };
    let mut idle: Vec<Wire> = (0..CONNECTIONS).map(open).collect();
    // Half of them have asked something before they fell silent.
    for wire in idle.iter_mut().step_by(2) {
        assert_eq!(wire.get("/timestamp").expect("the node answers").status, 200);
    }
    assert_serves(node);
    let growth = resident_bytes(node.pid()).saturating_sub(before);
    say(&format!(
        "{CONNECTIONS} idle connections: {:.1} MB, {} bytes each",
        growth as f64 / 1e6,
        growth / CONNECTIONS as u64
    ));
    assert!(growth < 250 << 20, "grew by {growth} bytes");
    drop(idle);
    assert_serves(node);
}
