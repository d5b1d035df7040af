//! Mistakes and attacks in the bytes of clients. Each gets the right answer, and the node still
//! serves.

use crate::node::{Cluster, TestNode};

fn serving() -> TestNode {
    let mut cluster = Cluster::new(1);
    let node = cluster.start(1);
    node.publish(cluster.leading(1, 3, true));
    node.await_metric("epicepoch_has_grant", 1);
    node
}

#[test]
fn bad_requests_are_refused_with_their_codes_on_one_connection() {
    let node = serving();
    let mut client = node.connect();
    for (request, status, code) in [
        ("GET /timestamp?n=0", 400, "BAD_COUNT"),
        ("GET /timestamp?n=-1", 400, "BAD_COUNT"),
        ("GET /timestamp?n=1e30", 400, "BAD_COUNT"),
        ("GET /timestamp?n=abc", 400, "BAD_COUNT"),
        ("GET /timestamp?n=", 400, "BAD_COUNT"),
        ("GET /timestamp?n=65537", 400, "BAD_COUNT"),
        ("GET /timestamp?n=1&n=2", 400, "BAD_COUNT"),
        ("POST /timestamp?n=4294967297&format=range", 400, "BAD_COUNT"),
        ("GET /timestamp?format=xml", 400, "BAD_FORMAT"),
        ("GET /timestamp?nn=3", 400, "BAD_REQUEST"),
        ("GET /", 404, "NOT_FOUND"),
        ("GET /timestamp/", 404, "NOT_FOUND"),
        ("DELETE /timestamp", 405, "METHOD_NOT_ALLOWED"),
        ("PUT /members", 405, "METHOD_NOT_ALLOWED"),
        ("OPTIONS /up", 405, "METHOD_NOT_ALLOWED"),
    ] {
        let reply = client.request(request);
        assert_eq!(reply.error(), (status, code), "{request}");
        assert_eq!(reply.text().lines().count(), 1, "{request}");
        assert!(reply.header("epicepoch-cluster").len() > 40, "{request}");
        assert_eq!(reply.header("allow").is_empty(), status != 405, "{request}");
    }
    assert_eq!(client.request("GET /timestamp").status, 200);
}

#[test]
fn a_small_body_is_ignored_and_a_large_one_refused() {
    let node = serving();
    let mut client = node.connect();
    for method in ["GET", "POST"] {
        let head = format!("{method} /timestamp HTTP/1.1\r\nhost: t\r\n");
        client.send_raw(format!("{head}content-length: 5\r\n\r\nhello").as_bytes());
        assert_eq!(client.reply().unwrap().timestamps().len(), 1);
        let chunked = "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
        client.send_raw(format!("{head}{chunked}").as_bytes());
        assert_eq!(client.reply().unwrap().timestamps().len(), 1);
    }
    client.send_raw(b"POST /timestamp HTTP/1.1\r\nhost: t\r\ncontent-length: 1000000\r\n\r\n");
    client.send_raw(&vec![b'x'; 1_000_000]);
    let reply = client.reply().unwrap();
    assert_eq!(reply.error(), (400, "BAD_REQUEST"));
    assert_eq!(reply.header("connection"), "close");
    assert!(client.is_closed());
    let mut client = node.connect();
    client.send_raw(b"POST /timestamp HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n");
    for _ in 0..100 {
        client.send_raw(format!("400\r\n{}\r\n", "x".repeat(0x400)).as_bytes());
    }
    assert_eq!(client.reply().unwrap().error(), (400, "BAD_REQUEST"));
    assert!(client.is_closed());
    assert_eq!(node.request("GET /timestamp").status, 200);
}

#[test]
fn a_request_of_http_1_1_names_exactly_one_host() {
    let node = serving();
    let mut client = node.connect();
    for (head, status) in [
        ("GET /timestamp HTTP/1.1\r\n", 400),
        ("GET http://t/timestamp HTTP/1.1\r\n", 400),
        ("GET /timestamp HTTP/1.1\r\nhost: t\r\nhost: t\r\n", 400),
        ("GET /timestamp HTTP/1.1\r\nhost:\r\n", 200),
        ("GET /timestamp HTTP/1.0\r\nconnection: keep-alive\r\n", 200),
    ] {
        client.send_raw(format!("{head}\r\n").as_bytes());
        let reply = client.reply().unwrap();
        let code = if status == 400 { "BAD_REQUEST" } else { "" };
        assert_eq!(reply.error(), (status, code), "{head}");
    }
    assert_eq!(node.metric("epicepoch_timestamps_total"), 2);
}

/// These requests have a content length and a transfer encoding (RFC 9112, 6.1). Hyper reads the
/// body by its transfer encoding, answers, and closes the connection.
#[test]
fn a_body_with_two_lengths_ends_the_connection() {
    let node = serving();
    for lengths in [
        "content-length: 4\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 4\r\n",
    ] {
        let mut client = node.connect();
        let body = "0\r\n\r\nGET /timestamp HTTP/1.1\r\nhost: smuggled\r\n\r\n";
        let head = format!("POST /timestamp HTTP/1.1\r\nhost: t\r\n{lengths}\r\n");
        client.send_raw(format!("{head}{body}").as_bytes());
        let reply = client.reply().unwrap();
        assert_eq!(reply.timestamps().len(), 1, "{lengths}");
        assert_eq!(reply.header("connection"), "close", "{lengths}");
        assert!(client.is_closed(), "{lengths}");
    }
    assert_eq!(node.metric("epicepoch_timestamps_total"), 2);
}

#[test]
fn a_head_of_a_megabyte_is_refused_and_the_client_can_read_why() {
    let node = serving();
    let mut client = node.connect();
    client.send_raw(b"GET /timestamp HTTP/1.1\r\nhost: t\r\nx: ");
    client.send_raw(&vec![b'x'; 1 << 20]);
    assert_eq!(client.reply().unwrap().status, 431);
    assert!(client.is_closed());
    let mut client = node.connect();
    client.send_raw(b"GET /timestamp HTTP/1.1\r\n");
    client.send_raw("a: b\r\n".repeat(200).as_bytes());
    client.send_raw(b"\r\n");
    assert_eq!(client.reply().unwrap().status, 431);
    assert_eq!(node.request("GET /timestamp").status, 200);
}

#[test]
fn bytes_that_are_not_http_are_refused() {
    let node = serving();
    let mut client = node.connect();
    client.send_raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n");
    assert_eq!(client.reply().map(|reply| reply.status), Some(400));
    assert!(client.is_closed());
    let mut client = node.connect();
    client.send_raw(b"INVALID CONNECTION PREFACE\r\n\r\n");
    assert!(client.reply().is_none(), "RFC 9113, 3.4");
    assert!(client.is_closed());
    let mut client = node.connect();
    client.send_raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    client.send_raw(&[0xFF; 100]);
    client.read_to_end();
    assert_eq!(node.request("GET /timestamp").status, 200);
}

#[test]
fn a_slow_reader_of_a_long_answer_delays_no_other_client() {
    let node = serving();
    let mut slow = node.connect();
    for _ in 0..20 {
        slow.send("GET /timestamp?n=65536&format=json");
    }
    for _ in 0..100 {
        assert_eq!(node.request("GET /timestamp").status, 200);
    }
}
