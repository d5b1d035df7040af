//! The page for operators and its document `/status`, seen from outside: how a browser gets there,
//! what the headers forbid, who sees it, and what the document says.

use std::collections::BTreeMap;

use epicepoch_core::publication::{Published, Role};
use epicepoch_core::quorum::Voters;
use epicepoch_server::front::routes::table::TABLE;
use epicepoch_server::security::authz::Right;
use epicepoch_wire::NodeId;
use serde_json::Value;

use crate::node::{Client, Cluster, Reply, TestNode};

const BROWSER: &str = "accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n";
const OPERATOR: &str = "operator-token-0123456789";

fn leading(count: u64) -> (Cluster, TestNode) {
    let mut cluster = Cluster::new(count);
    let node = cluster.start(1);
    node.publish(cluster.leading(1, 3, true));
    (cluster, node)
}

fn ask(client: &mut Client, method: &str, path: &str, headers: &str) -> Reply {
    let request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
    client.send_raw(request.as_bytes());
    client.reply().expect("an answer")
}

fn status(node: &TestNode) -> Value {
    let reply = node.request("GET /status");
    assert_eq!((reply.status, reply.header("content-type")), (200, "application/json"));
    serde_json::from_slice(&reply.body).expect("JSON")
}

fn page_paths() -> impl Iterator<Item = &'static str> {
    TABLE.iter().filter(|row| row.right == Right::Page).map(|row| row.path)
}

#[test]
fn a_browser_is_led_to_the_page_and_a_program_is_not() {
    let (_cluster, node) = leading(1);
    let mut client = node.connect();
    let reply = ask(&mut client, "GET", "/", BROWSER);
    assert_eq!((reply.status, reply.header("location")), (303, "/ui"));
    // A cache must not give a program the answer for a browser.
    assert_eq!((reply.header("vary"), reply.header("cache-control")), ("accept", "no-store"));
    for headers in ["", "accept: */*\r\n", "accept: application/json\r\n"] {
        let reply = ask(&mut client, "GET", "/", headers);
        assert_eq!(reply.error(), (404, "NOT_FOUND"), "{headers}");
        assert!(reply.text().contains("/timestamp"), "{}", reply.text());
    }
    let page = ask(&mut client, "GET", "/ui", BROWSER);
    assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"));
    assert!(page.text().starts_with("<!doctype html>"), "{}", page.text());
    // Paths have exact names here as everywhere.
    assert_eq!(ask(&mut client, "GET", "/ui/", BROWSER).status, 404);
}

#[test]
fn every_part_of_the_page_forbids_what_the_page_does_not_need() {
    let (_cluster, node) = leading(1);
    let mut client = node.connect();
    let mut len = 0;
    for path in page_paths() {
        let reply = client.request(&format!("GET {path}"));
        assert_eq!(reply.status, 200, "{path}");
        let directives: BTreeMap<_, _> = reply
            .header("content-security-policy")
            .split("; ")
            .map(|directive| directive.split_once(' ').expect("a name and sources"))
            .collect();
        let expected = [
            ("default-src", "'none'"),
            ("script-src", "'self'"),
            ("style-src", "'self'"),
            ("img-src", "'self'"),
            ("connect-src", "'self'"),
            ("base-uri", "'none'"),
            ("form-action", "'none'"),
            ("frame-ancestors", "'none'"),
            ("require-trusted-types-for", "'script'"),
            ("trusted-types", "'none'"),
        ];
        assert_eq!(directives, expected.into(), "{path}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            ("cache-control", "no-store"),
            ("www-authenticate", ""),
        ] {
            assert_eq!(reply.header(name), value, "{path}: {name}");
        }
        len += reply.body.len();
        let mut head = node.connect();
        let close = "host: localhost\r\nconnection: close\r\n";
        head.send_raw(format!("HEAD {path} HTTP/1.1\r\n{close}\r\n").as_bytes());
        let mut text = String::new();
        while !text.contains("\r\n\r\n") {
            text.push_str(&head.read_some());
        }
        assert!(text.starts_with("HTTP/1.1 200 ") && text.ends_with("\r\n\r\n"), "{text}");
        assert!(text.contains(&format!("content-length: {}\r\n", reply.body.len())), "{text}");
        assert!(head.is_closed(), "{path}: a body after the head");
        assert_eq!(client.request(&format!("POST {path}")).error(), (405, "METHOD_NOT_ALLOWED"));
    }
    println!("the page has {len} bytes");
}

/// Only a caller whom a token would let in gets the page without one. Its data needs the token.
#[test]
fn the_page_comes_without_a_token_and_its_data_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("operators");
    std::fs::write(&tokens, OPERATOR).unwrap();
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| {
        config.authz.ops_token_file = Some(tokens.clone());
        config.authz.ops_addr = Some("127.0.0.1:0".parse().unwrap());
    });
    node.publish(cluster.leading(1, 3, true));
    let mut operators = node.connect_ops();
    for path in page_paths() {
        let reply = operators.request(&format!("GET {path}"));
        assert_eq!(reply.status, 200, "{path}");
        // The page learns here that it has to ask for a token, so it sends no question in vain.
        assert_eq!(reply.header("www-authenticate"), "Bearer", "{path}");
        // The page is the same for everybody, so it can hold nothing of this node.
        let text = String::from_utf8(reply.body).unwrap();
        assert!(!text.contains("client-1.test"), "{path}");
        // The client port has no page.
        assert_eq!(node.request(&format!("GET {path}")).error(), (403, "FORBIDDEN"), "{path}");
    }
    for (headers, expected) in [
        (String::new(), 401),
        ("authorization: Bearer wrong-token-0123456789\r\n".to_owned(), 401),
        (format!("authorization: Bearer {OPERATOR}\r\n"), 200),
    ] {
        assert_eq!(ask(&mut operators, "GET", "/status", &headers).status, expected, "{headers}");
    }
    // A token in a path is no token.
    let reply = operators.request(&format!("GET /status?token={OPERATOR}"));
    assert_eq!(reply.error(), (401, "UNAUTHORIZED"));
}

#[test]
fn the_status_tells_what_the_node_knows() {
    let (cluster, node) = leading(3);
    let peers = &node.metrics.consensus.peers;
    let now_ns = node.shared.clock.monotonic_ns();
    peers.record_answer(NodeId(2), now_ns);
    peers.record_version(NodeId(2), "9.9.9".to_owned());
    let document = status(&node);
    assert_eq!(document["nodeID"], 1);
    assert_eq!(document["boot"], format!("{:016x}", 701));
    assert_eq!(document["leader"]["nodeID"], 1);
    assert_eq!((&document["leads"], &document["hasGrant"]), (&true.into(), &true.into()));
    assert_eq!((&document["term"], &document["role"]), (&3.into(), &"leader".into()));
    let members = document["members"].as_array().expect("members");
    let roles: Vec<_> = members.iter().map(|it| it["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["leader", "voter", "voter"]);
    assert_eq!(members[1]["version"], "9.9.9");
    assert!(members[1]["answerAgeMs"].as_f64().is_some_and(|ms| ms < 60_000.0), "{members:?}");
    assert!(members[2]["answerAgeMs"].is_null() && members[2]["version"].is_null());
    // Nothing has ticked, so the node is not ready, and the document says so.
    assert_eq!((&document["ready"], &document["quorumReached"]), (&false.into(), &false.into()));
    let buckets = document["boundsMs"].as_array().expect("bounds").len() + 1;
    for (name, counts) in document["latencies"].as_object().expect("latencies") {
        assert_eq!(counts.as_array().map(Vec::len), Some(buckets), "{name}");
    }
    let unknown = Published { term: epicepoch_wire::Term(4), ..cluster.nothing(1) };
    node.publish(Published { role: Role::Candidate, ..unknown });
    let document = status(&node);
    assert!(document["leader"].is_null(), "{document}");
    assert_eq!((&document["leads"], &document["role"]), (&false.into(), &"candidate".into()));
    assert!(document["lagMs"].is_null());
}

#[test]
fn the_status_expects_confirm_links_to_learners_too() {
    let (cluster, node) = leading(3);
    let published = cluster.leading(1, 3, true);
    let store = |node: NodeId| published.members[&node].store;
    let voters = Voters::new(&[NodeId(1), NodeId(2)], &[], store);
    node.publish(Published { voters, ..published });
    let document = status(&node);
    assert_eq!(document["members"][2]["role"], "learner");
    assert_eq!(document["confirmLinksMax"], 2);
    assert_eq!(node.metric("epicepoch_confirm_links_expected"), 2, "the same as the metric");
}

#[test]
fn the_status_counts_what_clients_get() {
    let (_cluster, node) = leading(1);
    let counter = |document: &Value, name: &str| document["counters"][name].as_f64().unwrap();
    let before = status(&node);
    let mut client = node.connect();
    for _ in 0..3 {
        assert_eq!(client.request("GET /timestamp?n=5").status, 200);
    }
    assert_eq!(client.request("GET /timestamp?n=0").status, 400);
    let after = status(&node);
    let grown = |name| counter(&after, name) - counter(&before, name);
    assert_eq!((grown("timestamps"), grown("answered")), (15.0, 3.0));
    assert_eq!(after["refusals"]["BAD_COUNT"], 1);
    let total = |document: &Value| -> u64 {
        let counts = document["latencies"]["confirm"].as_array().unwrap();
        counts.iter().map(|count| count.as_u64().unwrap()).sum()
    };
    assert_eq!(total(&after) - total(&before), 3);
}
