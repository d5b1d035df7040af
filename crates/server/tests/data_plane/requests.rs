//! Requests of clients: the table of paths, waiting, refusals, and a node that stops.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use epicepoch_core::publication::Role;
use epicepoch_server::security::authz::Port;
use epicepoch_wire::{NodeId, Timestamp, TimestampRange};

use crate::node::{Cluster, REFUSED_WORKERS, TestNode, WAIT_MAX};

const CLUSTER_HEADER: &str = "000000000000000000000000000000c1.0000000000000009";

fn serving_alone() -> (Cluster, TestNode) {
    let mut cluster = Cluster::new(1);
    let node = cluster.start(1);
    node.publish(cluster.leading(1, 3, true));
    (cluster, node)
}

#[test]
fn a_single_voter_answers_every_path() {
    let (_cluster, node) = serving_alone();
    node.shared.health.is_quorum_reached.store(true, Ordering::Relaxed);
    let mut client = node.connect();
    for (request, status, media_type, body) in [
        ("GET /up", 200, "text/plain; charset=utf-8", "ok"),
        ("GET /leader", 200, "text/plain; charset=utf-8", "ok"),
        ("GET /ready", 200, "text/plain; charset=utf-8", "leader=1 nodeID=1 raftAvailable=true"),
    ] {
        let reply = client.request(request);
        assert_eq!((reply.status, reply.text()), (status, body), "{request}");
        assert_eq!(reply.header("content-type"), media_type);
        assert_eq!(reply.header("epicepoch-cluster"), CLUSTER_HEADER);
    }
    for path in ["/members", "/membership"] {
        let reply = client.request(&format!("GET {path}"));
        let start = r#"{"leader":{"nodeID":1,"addr":"client-1.test:80"},"members":[{"nodeID":1,"#;
        assert!(reply.text().starts_with(start), "{}", reply.text());
        assert_eq!(reply.header("content-type"), "application/json");
    }
    let reply = client.request("GET /metrics");
    assert_eq!(reply.status, 200);
    assert!(reply.text().contains("epicepoch_requests_total{path=\"up\",status=\"200\"} 1\n"));
    assert!(reply.text().contains("epicepoch_node_info{node_id=\"1\""));
    let version = env!("CARGO_PKG_VERSION");
    let build = format!("version=\"{version}\",commit=\"unknown\",profile=\"unknown\",target=\"");
    assert!(reply.text().contains(&build), "{}", reply.text());
}

/// Compares the metrics that the operations manual documents with a scrape of `/metrics`.
#[test]
fn every_metric_is_documented_and_every_documented_metric_exists() {
    let (_cluster, node) = serving_alone();
    let scrape = node.connect().request("GET /metrics").text().to_owned();
    let families: BTreeSet<String> = scrape
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(name, kind)| match kind {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name.to_owned(),
        })
        .collect();
    let book = include_str!("../../../../docs/operations/monitoring.md");
    let (_, after) = book.split_once("\n## Metrics\n").unwrap();
    let (section, _) = after.split_once("\n## ").unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let names = rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`'));
    let documented: BTreeSet<String> = names
        .filter(|name| name.starts_with("epicepoch_") || name.starts_with("process_"))
        .map(|name| name.split('{').next().unwrap().to_owned())
        .collect();
    let missing: Vec<_> = families.difference(&documented).collect();
    let unknown: Vec<_> = documented.difference(&families).collect();
    assert!(families.len() > 40, "{families:?}");
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "no row: {missing:?}; no metric: {unknown:?}"
    );
}

#[test]
fn metrics_come_in_the_format_that_the_scraper_prefers() {
    let (_cluster, node) = serving_alone();
    let mut client = node.connect();
    let mut ask = |accept: &str| {
        let head = format!("GET /metrics HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\n\r\n");
        client.send_raw(head.as_bytes());
        let reply = client.reply().unwrap();
        assert_eq!(reply.status, 200);
        (reply.header("content-type").to_owned(), reply.text().to_owned())
    };
    for accept in ["*/*", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"] {
        let (media_type, page) = ask(accept);
        assert_eq!(media_type, "application/openmetrics-text; version=1.0.0; charset=utf-8");
        assert!(page.contains("# TYPE epicepoch_timestamps counter\n"), "{page}");
        assert!(page.ends_with("# EOF\n") && !page.contains('\\'), "{page}");
    }
    let (media_type, page) = ask("text/plain;version=0.0.4;q=0.5,application/*;q=0.1");
    assert_eq!(media_type, "text/plain; version=0.0.4; charset=utf-8");
    assert!(page.contains("# TYPE epicepoch_timestamps_total counter\n"), "{page}");
    assert!(page.contains("# TYPE epicepoch_node_info gauge\n"), "{page}");
    assert!(page.contains("\n# TYPE process_cpu_seconds_total counter\n"), "{page}");
    assert!(!page.contains("# EOF") && !page.contains("# UNIT"), "{page}");
}

/// The cluster's id is a label of the metrics whose sum over a cluster has a meaning, so that the
/// clusters of one Prometheus server are not added up.
#[test]
fn what_is_added_up_over_a_cluster_has_its_id() {
    let (_cluster, node) = serving_alone();
    let reply = node.connect().request("GET /metrics");
    let id = reply.text().split_once(",cluster=\"").unwrap().1.split_once('"').unwrap().0;
    assert!(id.len() > 8, "{id}");
    for name in ["is_leader", "has_grant"] {
        let line = format!("\nepicepoch_{name}{{cluster=\"{id}\"}} 1\n");
        assert!(reply.text().contains(&line), "{line}: {}", reply.text());
    }
}

#[test]
fn timestamps_come_in_every_format() {
    let (_cluster, node) = serving_alone();
    let mut client = node.connect();
    let reply = client.request("GET /timestamp");
    assert_eq!(reply.header("content-type"), "application/octet-stream");
    assert_eq!(reply.header("cache-control"), "no-store");
    assert_eq!(reply.header("content-length"), "16");
    assert_eq!(reply.header("epicepoch-cluster"), CLUSTER_HEADER);
    let mut all = reply.timestamps();
    all.extend(client.request("POST /timestamp?n=3").timestamps());
    all.extend(client.request("GET /timestamp?n=65536").timestamps());
    assert_eq!(all.len(), 65_540);
    let reply = client.request("GET /timestamp?n=4294967296&format=range");
    let range = TimestampRange::from_bytes(reply.body[..].try_into().unwrap()).unwrap();
    assert_eq!(range.count(), 1 << 32);
    all.push(range.first());
    let reply = client.request("GET /timestamp?format=json&n=200");
    assert_eq!(reply.header("content-type"), "application/json");
    assert!(reply.text().contains(r#"{"timestamps":["#));
    all.extend(client.request("GET /timestamp").timestamps());
    assert!(all.is_sorted_by(|a, b| a < b));
    assert!(all.last() > Some(&range.last()));
}

#[test]
fn a_request_id_comes_back() {
    let (_cluster, node) = serving_alone();
    let mut client = node.connect();
    for (id, expected) in [("abc-123", (200, "")), (&"x".repeat(129), (400, "BAD_REQUEST"))] {
        client.send_raw(
            format!("GET /timestamp HTTP/1.1\r\nhost: t\r\nepicepoch-request-id: {id}\r\n\r\n")
                .as_bytes(),
        );
        let reply = client.reply().unwrap();
        assert_eq!(reply.error(), expected);
        let echoed = reply.header("epicepoch-request-id");
        assert_eq!(echoed, if expected.0 == 200 { id } else { "" });
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let (_cluster, node) = serving_alone();
    let mut client = node.connect();
    client.send_raw("GET /timestamp HTTP/1.1\r\nhost: t\r\n\r\n".repeat(50).as_bytes());
    let all: Vec<_> = (0..50).flat_map(|_| client.reply().unwrap().timestamps()).collect();
    assert!(all.is_sorted_by(|a, b| a < b));
}

#[test]
fn a_head_request_gets_headers_but_no_timestamp() {
    let (_cluster, node) = serving_alone();
    let mut client = node.connect();
    client.send_raw(
        b"HEAD /up HTTP/1.1\r\nhost: t\r\n\r\nHEAD /timestamp HTTP/1.1\r\nhost: t\r\n\r\n",
    );
    // Reads to the end of the answer to `/none`. An answer to `HEAD` has no body, so all bytes
    // before are heads.
    let mut heads = String::new();
    client.send_raw(b"GET /none HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n");
    while !heads.contains("no such path") {
        heads.push_str(&client.read_some());
    }
    assert!(heads.starts_with("HTTP/1.1 200 OK\r\n"), "{heads}");
    assert!(heads.contains("content-length: 2\r\n"), "{heads}");
    assert!(heads.contains("HTTP/1.1 405 Method Not Allowed\r\n"), "{heads}");
    assert!(heads.contains("allow: GET, POST\r\n"), "{heads}");
    assert_eq!(node.metric("epicepoch_timestamps_total"), 0);
}

#[test]
fn a_follower_names_the_leader() {
    let mut cluster = Cluster::new(2);
    let node = cluster.start(1);
    let mut published = cluster.nothing(1);
    published.leader = Some(NodeId(2));
    node.publish(published);
    let mut client = node.connect();
    node.await_metric("epicepoch_term", 0);
    let reply = loop {
        let reply = client.request("GET /timestamp");
        if reply.status != 503 {
            break reply;
        }
    };
    assert_eq!(reply.error(), (409, "NOT_LEADER"));
    assert_eq!(reply.header("epicepoch-leader"), "client-2.test:80");
    assert_eq!(reply.text(), "client-2.test:80");
    let reply = client.request("GET /leader");
    assert_eq!(reply.error(), (503, "NOT_LEADER"));
    let reply = client.request("GET /ready");
    assert_eq!(reply.error(), (503, "NOT_READY"));
    assert_eq!(reply.text(), "leader=2 nodeID=1 raftAvailable=false");
    node.shared.health.is_quorum_reached.store(true, Ordering::Relaxed);
    assert_eq!(client.request("GET /ready").status, 200);
}

#[test]
fn without_a_leader_requests_are_refused_at_once() {
    let mut cluster = Cluster::new(2);
    let node = cluster.start(1);
    let reply = node.request("GET /timestamp");
    assert_eq!(reply.error(), (503, "NO_LEADER"));
    assert_eq!(reply.header("retry-after"), "1");
    assert_eq!(reply.text().lines().count(), 1);
    assert_eq!(node.request("GET /leader").error(), (503, "NO_LEADER"));
}

#[test]
fn requests_wait_for_the_grant_and_beyond_the_buffer_are_refused() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| config.request_buffer = 2);
    node.publish(cluster.leading(1, 3, false));
    node.await_metric("epicepoch_is_leader", 1);
    let mut clients = [node.connect(), node.connect()];
    for client in &mut clients {
        client.send("GET /timestamp");
    }
    node.await_metric("epicepoch_waiting_requests", 2);
    let reply = node.request("GET /timestamp");
    assert_eq!(reply.error(), (503, "OVERLOADED"));
    assert_eq!(reply.header("retry-after"), "1");
    node.publish(cluster.leading(1, 3, true));
    let all = clients.iter_mut().flat_map(|client| client.reply().unwrap().timestamps());
    assert_eq!(all.count(), 2);
    assert_eq!(node.request("GET /timestamp").status, 200);
}

#[test]
fn a_client_that_closes_its_sending_side_gets_its_answers() {
    let (_cluster, node) = serving_alone();
    node.await_metric("epicepoch_has_grant", 1);
    for (request, count) in [
        ("GET /timestamp HTTP/1.0\r\n\r\n", 1),
        ("GET /timestamp HTTP/1.1\r\nhost: t\r\n\r\n", 1),
        ("GET /timestamp HTTP/1.1\r\nhost: t\r\n\r\n", 50),
        ("POST /timestamp HTTP/1.1\r\nhost: t\r\ncontent-length: 2\r\n\r\nhi", 50),
    ] {
        let mut client = node.connect();
        client.send_raw(request.repeat(count).as_bytes());
        client.finish_sending();
        for _ in 0..count {
            assert_eq!(client.reply().expect(request).timestamps().len(), 1);
        }
        assert!(client.is_closed());
    }
}

#[test]
fn a_client_that_closed_its_sending_side_may_wait_for_the_grant() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start(1);
    node.publish(cluster.leading(1, 3, false));
    node.await_metric("epicepoch_is_leader", 1);
    let mut client = node.connect();
    client.send("GET /timestamp");
    client.finish_sending();
    node.await_metric("epicepoch_waiting_requests", 1);
    node.publish(cluster.leading(1, 3, true));
    assert_eq!(client.reply().unwrap().timestamps().len(), 1);
    assert!(client.is_closed());
}

/// Over HTTP/1.1, a node cannot tell a client that has left from one that only closed its sending
/// side. So the slot stays taken until the request times out.
#[test]
fn a_client_that_leaves_frees_its_slot_at_the_deadline() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| {
        config.request_buffer = 1;
        config.request_timeout = std::time::Duration::from_millis(20);
    });
    node.publish(cluster.leading(1, 3, false));
    node.await_metric("epicepoch_is_leader", 1);
    for expired in 1..=5 {
        let mut client = node.connect();
        client.send("GET /timestamp?n=5");
        client.leave();
        // If the client that left still counted, the next request would be refused as `OVERLOADED`.
        node.await_metric("epicepoch_refusals_total{code=\"NO_QUORUM\"}", expired);
    }
    node.await_metric("epicepoch_waiting_requests", 0);
    node.publish(cluster.leading(1, 3, true));
    node.await_metric("epicepoch_has_grant", 1);
    assert_eq!(node.request("GET /timestamp").timestamps().len(), 1);
}

#[test]
fn requests_that_wait_when_leadership_ends_are_refused() {
    let mut cluster = Cluster::new(2);
    let node = cluster.start(1);
    node.publish(cluster.leading(1, 3, false));
    node.await_metric("epicepoch_is_leader", 1);
    let mut client = node.connect();
    client.send("GET /timestamp");
    node.await_metric("epicepoch_waiting_requests", 1);
    let mut published = cluster.nothing(1);
    published.leader = Some(NodeId(2));
    node.publish(published);
    let reply = client.reply().unwrap();
    assert_eq!(reply.error(), (409, "NOT_LEADER"));
    assert_eq!(reply.text(), "client-2.test:80");
    node.await_metric("epicepoch_waiting_requests", 0);
}

#[test]
fn a_request_waits_no_longer_than_its_timeout() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| {
        config.request_timeout = std::time::Duration::from_millis(20);
    });
    node.publish(cluster.leading(1, 3, false));
    node.await_metric("epicepoch_is_leader", 1);
    let mut client = node.connect();
    let reply = loop {
        let reply = client.request("GET /timestamp");
        if reply.header("epicepoch-error") != "NO_LEADER" {
            break reply;
        }
    };
    assert_eq!(reply.error(), (503, "NO_QUORUM"));
}

#[test]
fn timestamps_are_unique_across_workers_and_rise_on_every_connection() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| config.workers = 3);
    node.publish(cluster.leading(1, 3, true));
    let node = &node;
    let mut all: Vec<Timestamp> = std::thread::scope(|scope| {
        let ask = |_| {
            scope.spawn(move || {
                let mut client = node.connect();
                let ask = |n: usize| client.request(&format!("GET /timestamp?n={}", 1 + n % 5));
                let mine = (0..200).map(ask).flat_map(|reply| {
                    // Until the worker has seen the publication, it refuses requests.
                    if reply.status == 200 { reply.timestamps() } else { Vec::new() }
                });
                let mine: Vec<_> = mine.collect();
                assert!(mine.is_sorted_by(|a, b| a < b));
                mine
            })
        };
        let threads: Vec<_> = (0..6).map(ask).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let count = all.len();
    assert!(count > 1000);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
}

#[test]
fn a_stopping_node_answers_waiting_requests_and_closes_idle_connections() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start(1);
    node.publish(cluster.leading(1, 3, false));
    node.await_metric("epicepoch_is_leader", 1);
    let (mut idle, mut busy, mut used) = (node.connect(), node.connect(), node.connect());
    assert_eq!(used.request("GET /up").status, 200);
    busy.send("GET /timestamp");
    node.await_metric("epicepoch_waiting_requests", 1);
    node.stop_accepting();
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| node.workers.shutdown(WAIT_MAX));
        assert!(idle.is_closed());
        assert!(used.is_closed());
        node.publish(cluster.leading(1, 3, true));
        let reply = busy.reply().unwrap();
        assert_eq!(reply.timestamps().len(), 1);
        assert_eq!(reply.header("connection"), "close");
        assert!(busy.is_closed());
        assert!(stopping.join().unwrap());
    });
    assert_eq!(node.workers.connections(Port::Shared), 0);
}

#[test]
fn a_node_that_stops_does_not_wait_for_ever() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start(1);
    node.publish(cluster.leading(1, 3, false));
    node.await_metric("epicepoch_is_leader", 1);
    let mut busy = node.connect();
    busy.send("GET /timestamp");
    node.await_metric("epicepoch_waiting_requests", 1);
    assert!(node.workers.shutdown(std::time::Duration::from_millis(10)));
    assert!(busy.is_closed());
}

#[test]
fn connections_beyond_the_limit_are_closed_and_counted() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| config.connections_max = 2);
    let (mut first, mut second) = (node.connect(), node.connect());
    assert_eq!(first.request("GET /up").status, 200);
    assert_eq!(second.request("GET /up").status, 200);
    let mut third = node.connect();
    third.send("GET /up");
    assert!(third.is_closed());
    let text = first.request("GET /metrics");
    let refused = "epicepoch_connections_refused_total{reason=\"all\"} 1\n";
    assert!(text.text().contains(refused));
    assert!(text.text().contains("epicepoch_connections_open 2.0\n"));
}

/// A worker without links sends its Confirms over the links of another worker.
#[test]
fn a_worker_without_links_uses_those_of_another_worker() {
    REFUSED_WORKERS.store(0b10, Ordering::SeqCst);
    let mut cluster = Cluster::new(2);
    let two_workers = |config: &mut epicepoch_server::Config| {
        config.cluster_name = "refuses".into();
        config.election_timeout = WAIT_MAX / 4;
        config.workers = 2;
    };
    let (a, b) = (cluster.start_with(1, two_workers), cluster.start_with(2, two_workers));
    let mut following = cluster.nothing(2);
    (following.leader, following.role) = (Some(NodeId(1)), Role::Follower);
    b.publish(following);
    a.publish(cluster.leading(1, 3, true));
    a.await_metric("epicepoch_confirm_links", 1);
    // Workers get connections in turn, so every second one belongs to worker 1.
    for _ in 0..4 {
        assert_eq!(a.request("GET /timestamp").status, 200);
    }
    assert!(a.metric("epicepoch_confirms_borrowed_total") >= 1);
}
