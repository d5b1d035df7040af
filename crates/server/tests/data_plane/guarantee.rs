//! The guarantee that a request names, and what an answer says of its proof. This cluster has no
//! lease, so a round proves every answer.

use epicepoch_wire::Guarantee;

use crate::node::{Client, Cluster, TestNode};

fn serving_alone() -> (Cluster, TestNode) {
    let mut cluster = Cluster::new(1);
    let node = cluster.start(1);
    node.publish(cluster.leading(1, 3, true));
    node.await_metric("epicepoch_has_grant", 1);
    (cluster, node)
}

/// Requests that HTTP/1.1's fast path answers, and one for each that the service answers.
const PATHS: [&str; 6] = [
    "/timestamp",
    "/timestamp?n=3",
    "/timestamp?n=9&format=range",
    "/latest",
    "/timestamp?n=2&format=json",
    "/latest?format=json",
];

fn naming(path: &str, guarantee: &str) -> String {
    let separator = if path.contains('?') { '&' } else { '?' };
    format!("{path}{separator}guarantee={guarantee}")
}

#[test]
fn an_answer_says_what_has_proved_it_if_and_only_if_its_request_names_a_guarantee() {
    let (_cluster, node) = serving_alone();
    let mut client = node.connect();
    for path in PATHS {
        for guarantee in [Guarantee::Quorum, Guarantee::Lease] {
            let reply = client.request(&format!("GET {}", naming(path, guarantee.name())));
            assert_eq!((reply.status, reply.header("epicepoch-proof")), (200, "round"), "{path}");
        }
        let plain = client.request(&format!("GET {path}"));
        assert_eq!((plain.status, plain.header("epicepoch-proof")), (200, ""), "{path}");
        let named = client.request(&format!("GET {}", naming(path, "lease")));
        let others = |headers: &std::collections::BTreeMap<String, String>| {
            let mut headers = headers.clone();
            headers.retain(|name, _| !["epicepoch-proof", "date"].contains(&name.as_str()));
            headers
        };
        assert_eq!(others(&plain.headers), others(&named.headers), "{path}: the rest is the same");
    }
    let mut closing = node.connect();
    let head = "GET /timestamp?guarantee=quorum HTTP/1.1\r\nhost: t\r\n\
                epicepoch-request-id: 7\r\nconnection: close\r\n\r\n";
    closing.send_raw(head.as_bytes());
    let reply = closing.reply().unwrap();
    let said = ["epicepoch-proof", "epicepoch-request-id", "connection"].map(|it| reply.header(it));
    assert_eq!(said, ["round", "7", "close"]);
}

#[test]
fn an_unknown_guarantee_is_refused_and_takes_no_timestamp() {
    let (_cluster, node) = serving_alone();
    let mut client = node.connect();
    for guarantee in
        ["", "Lease", "round", "none", "lease&guarantee=lease", "quorum&guarantee=lease"]
    {
        for path in PATHS {
            let reply = client.request(&format!("GET {}", naming(path, guarantee)));
            assert_eq!(reply.error(), (400, "BAD_REQUEST"), "{path} {guarantee}");
            assert!(reply.text().contains("guarantee"), "{}", reply.text());
        }
    }
    assert_eq!(
        client.request("GET /members?guarantee=lease").status,
        200,
        "it takes no parameters"
    );
    assert_eq!(node.metric("epicepoch_timestamps_total"), 0);
}

#[test]
fn pipelined_requests_of_different_guarantees_are_answered_in_order() {
    let (_cluster, node) = serving_alone();
    let mut client = node.connect();
    let asked = ["", "?guarantee=lease", "?n=2&guarantee=quorum", "?guarantee=lease", "?n=3"];
    let request = |query: &&str| format!("GET /timestamp{query} HTTP/1.1\r\nhost: t\r\n\r\n");
    client.send_raw(asked.iter().map(request).collect::<String>().as_bytes());
    let mut last = None;
    for query in asked {
        let reply = client.reply().unwrap();
        let proof = if query.contains("guarantee") { "round" } else { "" };
        assert_eq!(reply.header("epicepoch-proof"), proof, "{query}");
        for timestamp in reply.timestamps() {
            assert!(Some(timestamp) > last, "{query}");
            last = Some(timestamp);
        }
    }
}

#[test]
fn a_refused_request_says_nothing_of_a_proof() {
    let mut cluster = Cluster::new(3);
    let node = cluster.start(1);
    let mut client: Client = node.connect();
    for path in PATHS {
        let reply = client.request(&format!("GET {}", naming(path, "lease")));
        assert_eq!((reply.error(), reply.header("epicepoch-proof")), ((503, "NO_LEADER"), ""));
    }
}
