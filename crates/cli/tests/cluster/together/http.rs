//! The HTTP contract of `docs/http.md`, on a real cluster. The tests of one node (every path, bad
//! input, floods and limits) are in `crates/server/tests/data_plane`.

use std::time::{Duration, Instant};

use epicepoch_bench::history::{read_range, read_timestamps};
use epicepoch_bench::{History, Operation, Outcome};
use epicepoch_wire::Timestamp;
use serde_json::Value;

use crate::support::operator::transferred;
use crate::support::process::{raise_descriptor_limit, resident_bytes};
use crate::support::wire::{Answer, Wire, request};
use crate::support::{Cluster, Node, WAIT_MAX, say, wait_until};

const LIMIT: Duration = Duration::from_secs(5);
/// Every path of the contract.
const PATHS: [&str; 8] =
    ["/up", "/ready", "/leader", "/timestamp", "/latest", "/members", "/membership", "/metrics"];

fn wire(node: &Node) -> Wire {
    Wire::open(node.http(), LIMIT).expect("the node accepts")
}

#[track_caller]
fn get(node: &Node, target: &str) -> Answer {
    wire(node).get(target).expect("the node answers")
}

#[track_caller]
fn json(answer: &Answer) -> Value {
    let kind = answer.header("content-type").unwrap_or_default();
    assert!(kind.starts_with("application/json"), "{kind}");
    serde_json::from_slice(&answer.body).expect("valid JSON")
}

/// Whether the value of a header is 32 hexadecimal digits, a dot, and 16 more hexadecimal digits.
fn is_cluster_header(value: &str) -> bool {
    let hex = |text: &str, len| text.len() == len && text.bytes().all(|b| b.is_ascii_hexdigit());
    value.split_once('.').is_some_and(|(cluster, history)| hex(cluster, 32) && hex(history, 16))
}

#[test]
fn the_leader_gives_timestamps_and_a_follower_names_it_with_409() {
    let cluster = Cluster::start_calm();
    let leader = cluster.wait_for_leader();
    let node = &cluster.nodes[leader];
    let mut history = History::new(Instant::now());
    for (target, count) in [
        ("/timestamp", 1),
        ("/timestamp?n=65536", 65_536),
        ("/timestamp?n=4294967296&format=range", 1 << 32),
    ] {
        let start = Instant::now();
        let answer = get(node, target);
        assert_eq!(answer.status, 200, "{target}: {answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/octet-stream"), "{target}");
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{target}");
        let is_range = target.ends_with("range");
        let read = if is_range { read_range } else { read_timestamps };
        let outcome = Outcome::Answered(read(&answer.body, count).expect(target));
        history.record(&Operation { start, end: Instant::now(), node: node.id, outcome });
    }
    history.settle(Instant::now()).assert_clean();
    assert!(!json(&get(node, "/timestamp?format=json&n=3")).is_null());
    assert_eq!(get(node, "/leader").status, 200);
    let addr = node.http().to_string();
    for follower in cluster.others(leader) {
        let answer = get(&cluster.nodes[follower], "/timestamp?n=3");
        assert_eq!((answer.status, answer.error()), (409, Some("NOT_LEADER")), "{answer:?}");
        assert_eq!(answer.header("epicepoch-leader"), Some(addr.as_str()), "{answer:?}");
        assert!(answer.text().contains(&addr), "{answer:?}");
        assert_eq!(get(&cluster.nodes[follower], "/leader").status, 503);
    }
}

/// `GET /latest` and `epicepoch latest`, while leadership is handed over.
#[test]
fn the_latest_timestamp_lies_between_the_answers_around_it_also_across_leader_changes() {
    let cluster = Cluster::start();
    // Asks the leader, or the next one, until one answers.
    let ask = |target: &str| {
        for _ in 0..50 {
            let answer = get(&cluster.nodes[cluster.wait_for_leader()], target);
            if answer.status == 200 {
                return read_timestamps(&answer.body, 1).expect(target).first();
            }
        }
        panic!("no leader answers {target}");
    };
    for _ in 0..3 {
        for _ in 0..20 {
            let given = ask("/timestamp");
            let (latest, again) = (ask("/latest"), ask("/latest"));
            assert!(given <= latest && latest <= again, "{given} {latest} {again}");
            let next = ask("/timestamp");
            assert!(again < next, "{again} {next}");
        }
        let given = ask("/timestamp");
        transferred(&cluster, &["leader", "transfer"]);
        // No timestamp of the new leader comes before.
        let latest = ask("/latest");
        assert!(given <= latest, "{given} {latest}");
        let shown: Timestamp = cluster.order(&["latest"]).trim().parse().expect("a timestamp");
        assert!(latest <= shown && shown < ask("/timestamp"), "{latest} {shown}");
    }
    let object: Value =
        serde_json::from_str(&cluster.order(&["latest", "--output", "json"])).expect("JSON");
    // It rises only if another node leads by now.
    let shown: Timestamp =
        object["hex"].as_str().and_then(|hex| hex.parse().ok()).expect("a timestamp");
    assert!(shown <= ask("/latest"), "{shown}");
}

#[test]
fn every_answer_names_the_cluster_and_gives_the_request_id_back() {
    let cluster = Cluster::start();
    let mut names = Vec::new();
    for node in &cluster.nodes {
        let mut wire = wire(node);
        for target in PATHS.into_iter().chain(["/nope", "/timestamp?n=0", "/timestamp?format=x"]) {
            for method in ["GET", "DELETE"] {
                let headers = [("epicepoch-request-id", "42-abc")];
                wire.send(&request(method, target, &headers, b"")).expect("the node reads");
                let answer = wire.receive().expect("the node answers");
                let name = answer.header("epicepoch-cluster");
                let name = name.unwrap_or_else(|| panic!("{method} {target}: {answer:?}"));
                assert!(is_cluster_header(name), "{name}");
                names.push(name.to_owned());
                if answer.status >= 400 {
                    assert!(answer.error().is_some(), "{method} {target}: {answer:?}");
                }
                if target.starts_with("/timestamp") {
                    let id = answer.header("epicepoch-request-id");
                    assert_eq!(id, Some("42-abc"), "{method} {target}: {answer:?}");
                }
            }
        }
    }
    names.dedup();
    assert_eq!(names.len(), 1, "one cluster has one name: {names:?}");
}

#[test]
fn members_and_ready_name_every_node_at_the_address_that_a_client_dials() {
    let cluster = Cluster::start_calm();
    let leader = &cluster.nodes[cluster.wait_for_leader()];
    for node in &cluster.nodes {
        let ready = get(node, "/ready");
        let expected = format!("leader={} nodeID={} raftAvailable=true", leader.id, node.id);
        assert_eq!((ready.status, ready.text().trim_end()), (200, expected.as_str()));
        // Nodes learn each other's client addresses from the messages of their peers, so this may
        // take a moment.
        wait_until("a node knows every member's address", WAIT_MAX, || {
            let listed = json(&get(node, "/members"));
            let members = listed["members"].as_array().map_or(&[][..], Vec::as_slice);
            members.len() == 3 && members.iter().all(|it| it["addr"].is_string())
        });
        for path in ["/members", "/membership"] {
            let listed = json(&get(node, path));
            assert_eq!(listed["leader"]["nodeID"], leader.id, "{listed}");
            assert_eq!(listed["leader"]["addr"], leader.http().to_string(), "{listed}");
            for other in &cluster.nodes {
                let members = listed["members"].as_array().expect("a list");
                let found = members.iter().find(|it| it["nodeID"] == other.id);
                let found = found.unwrap_or_else(|| panic!("node {}: {listed}", other.id));
                assert_eq!(found["addr"], other.http().to_string(), "{listed}");
            }
        }
    }
}

#[test]
fn without_a_quorum_the_answer_is_503_with_retry_after() {
    let mut cluster = Cluster::start();
    let leader = cluster.wait_for_leader();
    for index in cluster.others(leader) {
        cluster.nodes[index].kill();
    }
    let node = &cluster.nodes[leader];
    let answer = get(node, "/timestamp");
    assert_eq!(answer.status, 503, "{answer:?}");
    let error = answer.error().expect("a code");
    assert!(matches!(error, "NO_QUORUM" | "NO_LEADER"), "{error}");
    let after = answer.header("retry-after").expect("when to retry");
    assert!(after.parse::<u64>().is_ok(), "{after}");
    wait_until("the node knows that it is alone", WAIT_MAX, || {
        get(node, "/ready").status == 503 && get(node, "/leader").status == 503
    });
    assert_eq!(get(node, "/up").status, 200);
}

#[test]
fn five_thousand_idle_connections_cost_bounded_memory() {
    const CONNECTIONS: usize = 5000;
    raise_descriptor_limit(CONNECTIONS as u64 + 1000);
    let cluster = Cluster::start_calm();
    let node = &cluster.nodes[cluster.wait_for_leader()];
    let before = resident_bytes(node.pid());
    let open = |at: usize| {
        let wire = Wire::open(node.http(), LIMIT);
        wire.unwrap_or_else(|error| panic!("connection {at}: {error}"))
    };
    let mut idle: Vec<Wire> = (0..CONNECTIONS).map(open).collect();
    // Half of the idle connections send one request before they fall silent.
    for wire in idle.iter_mut().step_by(2) {
        assert_eq!(wire.get("/timestamp").expect("the node answers").status, 200);
    }
    let growth = resident_bytes(node.pid()).saturating_sub(before);
    say(&format!(
        "{CONNECTIONS} idle connections: {:.1} MB, {} bytes each",
        growth as f64 / 1e6,
        growth / CONNECTIONS as u64
    ));
    assert!(growth < 250 << 20, "grew by {growth} bytes");
    drop(idle);
    assert_eq!(get(node, "/timestamp").status, 200);
}
