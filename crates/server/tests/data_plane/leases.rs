//! Answers of a leader that has a lease. The other voters of its cluster do not run, so no round can
//! prove an answer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use epicepoch_core::lease::Lease;
use epicepoch_core::publication::Published;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::ClientHello;
use epicepoch_wire::{Guarantee, Term};

use crate::native::{Got, Native};
use crate::node::{Cluster, TestNode};

const PATHS: [&str; 6] = [
    "/timestamp",
    "/timestamp?n=3",
    "/timestamp?n=9&format=range",
    "/latest",
    "/timestamp?n=2&format=json",
    "/latest?format=json",
];
/// Rounds that no quorum confirms fail after this time.
const ROUND: Duration = Duration::from_millis(200);

fn naming(path: &str, guarantee: &str) -> String {
    let separator = if path.contains('?') { '&' } else { '?' };
    format!("{path}{separator}guarantee={guarantee}")
}

fn leading(cluster: &Cluster, until_ns: u64) -> Published {
    let lease = Some(Lease { term: Term(3), until_ns });
    Published { lease, ..cluster.leading(1, 3, true) }
}

/// Node 1 of three, the only one that runs.
fn alone() -> (Cluster, TestNode) {
    let mut cluster = Cluster::new(3);
    let node = cluster.start_with(1, |config| config.election_timeout = ROUND);
    node.publish(leading(&cluster, u64::MAX - 1));
    node.await_metric("epicepoch_has_grant", 1);
    (cluster, node)
}

#[test]
fn a_lease_proves_the_answers_to_requests_that_accept_it_and_no_others() {
    let (cluster, node) = alone();
    let mut client = node.connect();
    for path in PATHS {
        let reply = client.request(&format!("GET {}", naming(path, "lease")));
        assert_eq!((reply.status, reply.header("epicepoch-proof")), (200, "lease"), "{path}");
    }
    for path in [naming("/timestamp", "quorum"), "/timestamp".into(), "/latest".into()] {
        let reply = client.request(&format!("GET {path}"));
        assert_eq!((reply.error(), reply.header("epicepoch-proof")), ((503, "NO_QUORUM"), ""));
    }
    let page = String::from_utf8(client.request("GET /metrics").body).expect("text");
    let by_lease = format!("epicepoch_proofs_total{{by=\"lease\"}} {}\n", PATHS.len());
    assert!(page.contains(&by_lease), "{page}");
    assert!(page.contains("epicepoch_proofs_total{by=\"round\"} 0\n"), "{page}");
    assert!(node.metric("epicepoch_lease_seconds") > 1_000);
    let status = client.request("GET /status");
    let status: serde_json::Value = serde_json::from_slice(&status.body).expect("JSON");
    assert!(status["leaseLeftMs"].as_f64().is_some_and(|it| it > 1e6), "{status}");
    assert_eq!(status["leaseWaitMs"], 0.0);
    assert_eq!(status["counters"]["batchesByLease"], PATHS.len() as f64);
    // The lease is over.
    node.publish(leading(&cluster, 1));
    let reply = client.request(&format!("GET {}", naming("/timestamp", "lease")));
    assert_eq!(reply.error(), (503, "NO_QUORUM"));
    assert_eq!(node.metric("epicepoch_lease_seconds"), 0);
}

/// The only voter: its rounds are confirmed at once. It has no lease.
#[test]
fn batches_that_a_round_has_proved_are_counted_by_themselves() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start(1);
    node.publish(cluster.leading(1, 3, true));
    node.await_metric("epicepoch_has_grant", 1);
    let mut client = node.connect();
    for path in [naming("/timestamp", "lease"), "/timestamp".into(), "/latest".into()] {
        assert_eq!(client.request(&format!("GET {path}")).status, 200, "{path}");
    }
    let page = String::from_utf8(client.request("GET /metrics").body).expect("text");
    assert!(page.contains("epicepoch_proofs_total{by=\"round\"} 3\n"), "{page}");
    assert!(page.contains("epicepoch_proofs_total{by=\"lease\"} 0\n"), "{page}");
}

#[test]
fn one_request_for_a_quorum_takes_a_round_for_all_that_were_read_with_it() {
    let (_cluster, node) = alone();
    let mut client = node.connect();
    let request = |query: &&str| format!("GET /timestamp{query} HTTP/1.1\r\nhost: t\r\n\r\n");
    for (asked, status) in [
        (["?guarantee=lease", "?n=3&guarantee=lease"], 200),
        (["?guarantee=lease", "?guarantee=quorum"], 503),
        (["?guarantee=lease", ""], 503),
    ] {
        client.send_raw(asked.iter().map(request).collect::<String>().as_bytes());
        for query in asked {
            assert_eq!(client.reply().unwrap().status, status, "{asked:?}: {query}");
        }
    }
}

#[test]
fn the_default_guarantee_is_that_of_requests_that_name_none() {
    let (cluster, node) = alone();
    node.shared.is_lease_default.store(true, Ordering::Relaxed);
    let mut client = node.connect();
    for path in PATHS {
        let reply = client.request(&format!("GET {path}"));
        assert_eq!((reply.status, reply.header("epicepoch-proof")), (200, "lease"), "{path}");
    }
    let reply = client.request(&format!("GET {}", naming("/timestamp", "quorum")));
    assert_eq!(reply.error(), (503, "NO_QUORUM"));
    // Without a lease, a round has to prove the answer.
    node.publish(cluster.leading(1, 3, true));
    assert_eq!(client.request("GET /timestamp").error(), (503, "NO_QUORUM"));
}

/// Over the native protocol, a node names the proof only on a connection that names a guarantee:
/// other clients may not know the flag.
#[test]
fn a_native_connection_that_names_no_guarantee_gets_the_default_and_is_not_told() {
    let (_cluster, node) = alone();
    let open = |guarantee| {
        let mut client = Native::connect(&node);
        client.hello(&ClientHello { guarantee, ..ClientHello::default() });
        assert!(matches!(client.next(), Got::Welcome(_)));
        client.ask(7, 2);
        client.next()
    };
    assert!(matches!(open(Some(Guarantee::Lease)), Got::Leased(7, range) if range.count() == 2));
    let is_refused = |got: &Got| {
        matches!(got, Got::Error { code: Some(ErrorCode::NoQuorum), closes: false, id: 7, .. })
    };
    for guarantee in [None, Some(Guarantee::Quorum)] {
        let got = open(guarantee);
        assert!(is_refused(&got), "{guarantee:?}: {got:?}");
    }
    node.shared.is_lease_default.store(true, Ordering::Relaxed);
    assert!(matches!(open(None), Got::Answer(7, range) if range.count() == 2));
    let got = open(Some(Guarantee::Quorum));
    assert!(is_refused(&got), "{got:?}");
}
