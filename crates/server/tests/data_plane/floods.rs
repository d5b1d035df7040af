//! Floods of HTTP/2 frames (RFC 9113, 10.5) by clients that break every rule. The node ends the
//! connection, counts it, and still serves others.

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
    // The worker counts a flood before it closes the connection, so the metrics show it by now.
    let counted = abuses(&node);
    assert_eq!(counted.len(), 1, "{kind:?}: {counted:?}");
    assert!(labels.contains(&counted[0].0.as_str()), "{kind:?}: {counted:?}");
    assert_eq!(counted[0].1, 1);
    assert_eq!(node.request("GET /timestamp").status, 200);
    assert_eq!(node.metric("epicepoch_waiting_requests"), 0, "a closed connection holds no slot");
    outcome
}

#[test]
fn many_requests_that_are_reset_at_once_end_the_connection() {
    ends(Flood::RapidReset, &["resets", "requests", "calm"]);
}

#[test]
fn many_requests_that_the_node_has_to_reset_end_the_connection() {
    ends(Flood::MadeYouReset, &["calm"]);
}

#[test]
fn a_header_block_without_an_end_ends_the_connection() {
    ends(Flood::Continuation, &["calm"]);
}

#[test]
fn requests_beyond_the_limit_of_streams_end_the_connection() {
    ends(Flood::Streams, &["calm", "requests"]);
}

#[test]
fn many_empty_parts_of_a_body_end_the_connection() {
    ends(Flood::EmptyData, &["calm", "data"]);
}

#[test]
fn endless_settings_frames_end_the_connection() {
    ends(Flood::Settings, &["settings"]);
}

#[test]
fn endless_ping_frames_end_the_connection() {
    ends(Flood::Ping, &["pings"]);
}

#[test]
fn endless_window_updates_end_the_connection() {
    ends(Flood::WindowUpdate, &["windows"]);
}

#[test]
fn endless_priority_frames_end_the_connection() {
    ends(Flood::Priority, &["other"]);
}

#[test]
fn a_forbidden_frame_ends_the_connection_and_is_counted() {
    let node = serving();
    let mut client = node.connect();
    client.send_raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    client.send_raw(&frame(kind::SETTINGS, 0, 0, b""));
    client.send_raw(&frame(kind::WINDOW_UPDATE, 0, 0, &[0; 4]));
    client.read_to_end();
    assert_eq!(abuses(&node), [("protocol".to_owned(), 1)]);
}

#[test]
fn many_frames_without_meaning_end_the_connection() {
    ends(Flood::Unknown, &["other"]);
}
