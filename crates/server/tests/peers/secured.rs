//! Nodes with certificates: the founding of a cluster, the checks at the start, and the change from
//! plain text.

use epicepoch_server::config::PeerTlsMode;
use epicepoch_server::reload::RELOAD_INTERVAL;
use epicepoch_server::{Node, StartError};

use crate::authorities::{CLUSTER, Fixture, Running, stamp, write};

/// The number of refused peers, for one reason or for all reasons.
fn denied(nodes: &[Running], reason: Option<&str>) -> u64 {
    let labels = reason.map(|reason| format!("{{right=\"peer\",reason=\"{reason}\"}}"));
    let name = format!("epicepoch_denied_total{}", labels.unwrap_or_default());
    nodes.iter().map(|node| node.metric(&name)).sum()
}

#[test]
fn nodes_with_certificates_found_a_cluster_and_confirm_rounds() {
    let fixture = Fixture::new();
    let nodes = [1, 2, 3].map(|node| fixture.start(node));
    let first = stamp(&nodes);
    let second = stamp(&nodes);
    assert_ne!(first, second);
    for node in &nodes {
        node.await_metric("epicepoch_confirm_links", 2);
    }
    // On a busy machine, a handshake may take too long.
    let unended = denied(&nodes, Some("handshake"));
    assert_eq!(denied(&nodes, None), unended, "no peer was refused");
}

#[test]
fn a_node_does_not_start_with_a_certificate_of_another_node() {
    let fixture = Fixture::new();
    let refused = |change: &dyn Fn()| {
        change();
        let error = Node::start(fixture.config(1)).expect_err("it must not start");
        assert!(matches!(error, StartError::PeerTls(_)), "{error}");
        let text = error.to_string();
        fixture.hand_out(1, &fixture.issued(1, 30));
        text
    };
    let text = refused(&|| fixture.hand_out(1, &fixture.issued(2, 30)));
    assert!(text.contains(&format!("node-1.{CLUSTER}.epicepoch.internal")), "{text}");
    assert!(text.contains("PEER_CERT_FILE"), "{text}");
    let text = refused(&|| write(&fixture.path("node-1.key"), &fixture.issued(1, 30).key));
    assert!(text.contains("PEER_KEY_FILE"), "{text}");
    let ca = fixture.authority.certificate().to_owned();
    let text = refused(&|| write(&fixture.path("ca.pem"), "nothing"));
    assert!(text.contains("PEER_CA_FILE"), "{text}");
    write(&fixture.path("ca.pem"), &ca);
}

#[test]
fn a_running_node_rejects_the_certificate_of_another_node() {
    let fixture = Fixture::new();
    let nodes = [1, 2, 3].map(|node| fixture.start(node));
    stamp(&nodes);
    let expiry = "epicepoch_certificate_expiry_timestamp_seconds{setting=\"PEER_CERT_FILE\"}";
    let before = nodes[0].metric(expiry);
    // Node 1 gets a valid certificate of node 2. It must not use this certificate, because peers
    // that know node 1 would refuse it.
    fixture.hand_out(1, &fixture.issued(2, 300));
    std::thread::sleep(4 * RELOAD_INTERVAL);
    assert_eq!(nodes[0].metric(expiry), before);
    fixture.hand_out(1, &fixture.issued(1, 300));
    nodes[0].await_metric(expiry, before + 1);
}

#[test]
fn nodes_change_from_plain_text_to_tls_one_restart_at_a_time() {
    use PeerTlsMode::{Accept, Dial, Off, On};
    let fixture = Fixture::new();
    let mut nodes: Vec<Running> =
        [1, 2, 3].map(|node| fixture.start_as(node, Some(Off))).into_iter().collect();
    let mut seen = vec![stamp(&nodes)];
    for mode in [Accept, Dial, On] {
        for at in 0..3 {
            let node = at as u64 + 1;
            drop(nodes.remove(at));
            nodes.insert(at, fixture.start_as(node, Some(mode)));
            // Each node is connected to both others before the next one restarts.
            for node in &nodes {
                node.await_metric("epicepoch_confirm_links", 2);
            }
            seen.push(stamp(&nodes));
        }
    }
    // If a node stops in the middle of a handshake, the node at the other end counts a failed
    // handshake.
    let unended = denied(&nodes, Some("handshake"));
    assert_eq!(denied(&nodes, None), unended, "no peer was refused meanwhile");
    assert!(unended <= 2 * 9, "one at each of the two others for each restart: {unended}");
    let count = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), count);
}
