//! `GET /latest`: the latest timestamp, and who is refused it.

use epicepoch_wire::{NodeId, Term, Timestamp};

use crate::node::{Client, Cluster, START_NS, TestNode};

fn serving_alone() -> (Cluster, TestNode) {
    let mut cluster = Cluster::new(1);
    let node = cluster.start(1);
    node.publish(cluster.leading(1, 3, true));
    node.await_metric("epicepoch_has_grant", 1);
    (cluster, node)
}

fn one(client: &mut Client, request: &str) -> Timestamp {
    let [timestamp] = client.request(request).timestamps()[..] else { panic!("one: {request}") };
    timestamp
}

#[test]
fn the_latest_timestamp_comes_as_bytes_and_as_json_and_takes_none() {
    let (_cluster, node) = serving_alone();
    let mut client = node.connect();
    let reply = client.request("GET /latest");
    assert_eq!(reply.header("content-type"), "application/octet-stream");
    assert_eq!(reply.header("cache-control"), "no-store");
    assert_eq!(reply.header("content-length"), "16");
    let before = reply.timestamps()[0];
    assert_eq!(before, Timestamp::highest_at(START_NS), "nothing was given yet");
    let given = client.request("GET /timestamp?n=3").timestamps();
    assert!(given[0] > before);
    for _ in 0..3 {
        assert_eq!(one(&mut client, "GET /latest"), given[2]);
    }
    let reply = client.request("GET /latest?format=json");
    assert_eq!(reply.header("content-type"), "application/json");
    let start = format!(r#"{{"latest":{{"hex":"{}","#, given[2]);
    assert!(reply.text().starts_with(&start), "{}", reply.text());
    let next = one(&mut client, "GET /timestamp");
    assert!(next > given[2]);
    assert_eq!(one(&mut client, "GET /latest?format=binary"), next);
    assert_eq!(node.metric("epicepoch_timestamps_total"), 4);
    assert_eq!(node.metric("epicepoch_requests_total{path=\"latest\",status=\"200\"}"), 6);
    assert_eq!(node.metric("epicepoch_requests_total{path=\"timestamp\",status=\"200\"}"), 2);
}

#[test]
fn pipelined_requests_for_timestamps_and_for_the_latest_one_are_in_order() {
    let (_cluster, node) = serving_alone();
    let mut client = node.connect();
    let paths = ["/timestamp?n=2", "/latest", "/timestamp", "/latest", "/latest", "/timestamp?n=3"];
    let requests = paths.map(|path| format!("GET {path} HTTP/1.1\r\nhost: t\r\n\r\n"));
    let mut whole = 0;
    for _ in 0..20 {
        let before = one(&mut client, "GET /latest");
        client.send_raw(requests.concat().as_bytes());
        let replies = paths.map(|path| (path, client.reply().unwrap().timestamps()));
        let after = one(&mut client, "GET /latest");
        // A burst may end behind any request, if the bytes come in several reads. So R is the last
        // timestamp of this request or of a later one, and of all of them if there is one burst.
        let (mut ends, mut last) = (Vec::new(), before);
        for (path, timestamps) in &replies {
            if *path != "/latest" {
                assert!(timestamps.is_sorted() && timestamps[0] > last, "{path}");
                last = timestamps[timestamps.len() - 1];
            }
            ends.push(last);
        }
        assert_eq!(last, after);
        let mut latest = replies.iter().enumerate().filter(|(_, (path, _))| *path == "/latest");
        for (at, (_, timestamps)) in latest.clone() {
            assert!(ends[at..].contains(&timestamps[0]), "{timestamps:?} at {at} of {ends:?}");
        }
        whole += u32::from(latest.all(|(_, (_, timestamps))| timestamps[0] == last));
    }
    assert!(whole > 0, "no burst was read as a whole");
}

#[test]
fn invalid_requests_for_the_latest_timestamp_are_refused() {
    let (_cluster, node) = serving_alone();
    let mut client = node.connect();
    for (request, error) in [
        ("GET /latest?n=1", (400, "BAD_REQUEST")),
        ("GET /latest?format=range", (400, "BAD_FORMAT")),
        ("GET /latest?format=json&format=json", (400, "BAD_FORMAT")),
        ("POST /latest", (405, "METHOD_NOT_ALLOWED")),
        ("GET /latest/", (404, "NOT_FOUND")),
    ] {
        let reply = client.request(request);
        assert_eq!(reply.error(), error, "{request}");
        assert_eq!(reply.text().lines().count(), 1, "{request}");
    }
    assert!(client.request("GET /none").text().contains(" /latest "));
}

#[test]
fn a_node_that_does_not_lead_does_not_know_the_latest_timestamp() {
    let mut cluster = Cluster::new(3);
    let (follower, candidate) = (cluster.start(1), cluster.start(3));
    let mut published = cluster.nothing(1);
    published.leader = Some(NodeId(2));
    follower.publish(published);
    let mut client = follower.connect();
    let reply = loop {
        let reply = client.request("GET /latest");
        if reply.status != 503 {
            break reply;
        }
    };
    assert_eq!(reply.error(), (409, "NOT_LEADER"));
    assert_eq!(reply.header("epicepoch-leader"), "client-2.test:80");
    assert_eq!(reply.text(), "client-2.test:80");
    let reply = candidate.request("GET /latest");
    assert_eq!(reply.error(), (503, "NO_LEADER"));
    assert_eq!(reply.header("retry-after"), "1");
}

#[test]
fn a_leader_that_was_deposed_does_not_know_the_latest_timestamp() {
    let mut cluster = Cluster::new(2);
    let (a, b) = (cluster.start(1), cluster.start(2));
    b.publish(cluster.nothing(2));
    a.publish(cluster.leading(1, 3, true));
    a.await_metric("epicepoch_is_leader", 1);
    let mut client = a.connect();
    while client.request("GET /latest").error() == (503, "NO_LEADER") {}
    assert_eq!(client.request("GET /latest").status, 200);
    b.shared.core.promise.raise(Term(4));
    for _ in 0..3 {
        assert_eq!(client.request("GET /latest").error(), (503, "NO_LEADER"));
    }
}

#[test]
fn requests_for_the_latest_timestamp_count_in_the_request_buffer() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| config.request_buffer = 2);
    node.publish(cluster.leading(1, 3, false));
    node.await_metric("epicepoch_is_leader", 1);
    let mut clients = [node.connect(), node.connect()];
    for client in &mut clients {
        client.send("GET /latest");
    }
    node.await_metric("epicepoch_waiting_requests", 2);
    assert_eq!(node.request("GET /latest").error(), (503, "OVERLOADED"));
    node.publish(cluster.leading(1, 3, true));
    for client in &mut clients {
        assert_eq!(client.reply().unwrap().timestamps(), [Timestamp::highest_at(START_NS)]);
    }
    node.await_metric("epicepoch_waiting_requests", 0);
}
