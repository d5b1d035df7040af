//! Floods of HTTP/2 frames (RFC 9113, 10.5), each by a client that holds to no rule: the node ends
//! the connection, counts it, and serves others on.

use epicepoch_attack::http2::{Flood, Outcome, flood, frame, kind};

use crate::node::{Cluster, TestNode, WAIT_MAX};

fn serving() -> TestNode {
    let mut cluster = Cluster::new(1);
    let node = cluster.start(1);
    node.publish(cluster.leading(1, 3, true));
    node.await_metric("epicepoch_has_grant", 1);
    node
}

/// Number of connections that were ended for a flood, by the kind of frames.
fn abuses(node: &TestNode) -> Vec<(String, u64)> {
    let text = node.request("GET /metrics");
    let counts = text.text().lines().filter_map(|line| {
        let (label, count) =
            line.strip_prefix("epicepoch_http2_abuse_total{frames=\"")?.split_once("\"} ")?;
        Some((label.to_owned(), count.parse().unwrap()))
    });
    counts.filter(|(_, count)| *count > 0).collect()
}

/// Runs a flood against a new node while another client sends requests.
fn ends(kind: Flood, labels: &[&str]) -> Outcome {
    let node = serving();
    let mut other = node.connect();
    let outcome = std::thread::scope(|scope| {
        let flooding = scope.spawn(|| flood(node.addr, kind, WAIT_MAX).unwrap());
        while !flooding.is_finished() {
            assert_eq!(other.request("GET /timestamp").status, 200, "{kind:?}");
        }
        flooding.join().unwrap()
    });
    assert!(outcome.is_ended, "{kind:?}: {outcome:?}");
    // The worker counts the flood before it does anything else.
    let counted = abuses(&node);
    assert_eq!(counted.len(), 1, "{kind:?}: {counted:?}");
    assert!(labels.contains(&counted[0].0.as_str()), "{kind:?}: {counted:?}");
    assert_eq!(counted[0].1, 1);
    assert_eq!(node.request("GET /timestamp").status, 200);
    assert_eq!(node.metric("epicepoch_waiting_requests"), 0, "what it asked for keeps no place");
    outcome
}

#[test]
fn requests_that_are_taken_back_at_once_end_the_connection() {
    ends(Flood::RapidReset, &["resets", "requests", "calm"]);
}

#[test]
fn requests_that_make_the_node_reset_them_end_the_connection() {
    ends(Flood::MadeYouReset, &["calm"]);
}

#[test]
fn a_header_block_without_an_end_ends_the_connection() {
    ends(Flood::Continuation, &["calm"]);
}

#[test]
fn requests_beyond_the_streams_that_are_allowed_end_the_connection() {
    ends(Flood::Streams, &["calm", "requests"]);
}

#[test]
fn empty_parts_of_a_body_end_the_connection() {
    ends(Flood::EmptyData, &["calm", "data"]);
}

#[test]
fn settings_without_end_end_the_connection() {
    ends(Flood::Settings, &["settings"]);
}

#[test]
fn pings_without_end_end_the_connection() {
    ends(Flood::Ping, &["pings"]);
}

#[test]
fn windows_without_end_end_the_connection() {
    ends(Flood::WindowUpdate, &["windows"]);
}

#[test]
fn priorities_without_end_end_the_connection() {
    ends(Flood::Priority, &["other"]);
}

#[test]
fn a_frame_that_is_forbidden_ends_the_connection_and_is_counted() {
    let node = serving();
    let mut client = node.connect();
    client.send_raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    client.send_raw(&frame(kind::SETTINGS, 0, 0, b""));
    client.send_raw(&frame(kind::WINDOW_UPDATE, 0, 0, &[0; 4]));
    client.read_to_end();
    assert_eq!(abuses(&node), [("protocol".to_owned(), 1)]);
}

#[test]
fn frames_that_mean_nothing_end_the_connection() {
    ends(Flood::Unknown, &["other"]);
}
