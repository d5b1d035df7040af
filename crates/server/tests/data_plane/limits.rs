//! Limits on one client, so that others are served.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use epicepoch_attack::http2::get;
use epicepoch_server::Config;
use epicepoch_server::security::authz::Port;
use epicepoch_wire::http2::frame::{self, PREFACE, flag, kind};
use epicepoch_wire::native;
use socket2::{Domain, Socket, Type};

use crate::node::{Client, Cluster, TestNode, WAIT_MAX};

fn serving(change: impl FnOnce(&mut Config)) -> TestNode {
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| {
        config.election_timeout = WAIT_MAX / 4;
        change(config);
    });
    node.publish(cluster.leading(1, 3, true));
    node.await_metric("epicepoch_has_grant", 1);
    node
}

/// A connection from another address of this machine.
pub(crate) fn connect_from(last: u8, node: &TestNode) -> Client {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 0)).into()).unwrap();
    socket.connect(&node.addr.into()).unwrap();
    Client::new(socket.into())
}

#[test]
fn one_address_gets_only_its_share_of_the_connections() {
    let node = serving(|config| config.limits.address_connections_max = 2);
    let mut held: Vec<_> = (0..2).map(|_| connect_from(7, &node)).collect();
    for client in &mut held {
        assert_eq!(client.request("GET /up").status, 200);
    }
    let mut refused = connect_from(7, &node);
    refused.send("GET /up");
    assert!(refused.is_closed());
    let mut other = connect_from(8, &node);
    let text = other.request("GET /metrics");
    let count = "epicepoch_connections_refused_total{reason=\"address\"} 1\n";
    assert!(text.text().contains(count), "{}", text.text());
    held.pop().unwrap().leave();
    // A client that has left no longer counts, once the node has noticed that it has left.
    while connect_from(7, &node).try_request("GET /up").is_none() {
        std::thread::yield_now();
    }
}

#[test]
fn the_last_descriptors_are_not_given_to_clients() {
    let mut cluster = Cluster::new(1);
    // The limit is 3 descriptors. This process already has more than that open.
    let node = cluster.start_within(1, 3, |_| {});
    let mut refused = node.connect();
    refused.send("GET /up");
    assert!(refused.is_closed());
    assert_eq!(node.workers.connections(Port::Shared), 0);
}

/// Allowed requests per second for each address. A test sends all its requests within a tenth of a
/// second, so no further request becomes allowed meanwhile.
const RATE_MAX: u32 = 10;

fn rated() -> TestNode {
    serving(|config| config.limits.address_request_rate_max = NonZeroU32::new(RATE_MAX))
}

/// Sends twice as many requests as are allowed at once, and returns their statuses.
fn statuses(client: &mut Client, request: &str) -> Vec<u16> {
    (0..2 * RATE_MAX).map(|_| client.request(request).status).collect()
}

#[test]
fn requests_beyond_an_addresss_rate_are_refused_on_every_path_of_http() {
    for request in ["GET /timestamp", "GET /up", "GET /nowhere"] {
        let node = rated();
        let mut client = connect_from(3, &node);
        let statuses = statuses(&mut client, request);
        let expected = if request == "GET /nowhere" { 404 } else { 200 };
        let served = statuses.iter().take_while(|status| **status == expected).count();
        assert!(served >= RATE_MAX as usize, "{request}: {statuses:?}");
        assert!(statuses.contains(&503), "{request}: {statuses:?}");
        let reply = client.request(request);
        if reply.status == 503 {
            assert_eq!(reply.header("epicepoch-error"), "OVERLOADED");
            assert!(!reply.header("retry-after").is_empty());
        }
        assert_eq!(connect_from(4, &node).request(request).status, expected, "another address");
        assert!(node.metric("epicepoch_requests_over_rate_total") > 0, "{request}");
        let overloads = node.metric("epicepoch_refusals_total{code=\"OVERLOADED\"}");
        assert_eq!(overloads, 0, "{request}: the node has capacity");
    }
}

#[test]
fn bad_requests_count_for_the_rate_of_their_address() {
    let long_id = format!("host: t\r\nepicepoch-request-id: {}", "i".repeat(129));
    for fields in ["x-no: host", &long_id] {
        let node = rated();
        let mut client = connect_from(5, &node);
        let request = format!("GET /timestamp HTTP/1.1\r\n{fields}\r\n\r\n");
        let statuses = (0..2 * RATE_MAX).map(|_| {
            client.send_raw(request.as_bytes());
            client.reply().unwrap().status
        });
        let statuses: Vec<_> = statuses.collect();
        assert!(statuses[0] == 400 && statuses.contains(&503), "{fields}: {statuses:?}");
    }
}

#[test]
fn a_pipeline_beyond_the_rate_is_answered_in_order_and_its_rest_refused() {
    let node = rated();
    let mut client = connect_from(6, &node);
    client.send_raw("GET /timestamp HTTP/1.1\r\nhost: t\r\n\r\n".repeat(50).as_bytes());
    let statuses: Vec<_> = (0..50).map(|_| client.reply().unwrap().status).collect();
    let served = statuses.iter().filter(|status| **status == 200).count();
    assert!((RATE_MAX as usize..50).contains(&served), "{statuses:?}");
    assert_eq!(statuses[..RATE_MAX as usize], [200; RATE_MAX as usize]);
}

#[test]
fn a_request_that_waits_for_a_free_slot_is_counted_once() {
    const REQUESTS: usize = 60;
    // Only four requests can wait at a time, so the last ones wait for many rounds.
    let node = serving(|config| {
        config.request_buffer = 4;
        config.limits.address_request_rate_max = NonZeroU32::new(REQUESTS as u32);
    });
    let mut client = connect_from(9, &node);
    client.send_raw("GET /timestamp HTTP/1.1\r\nhost: t\r\n\r\n".repeat(REQUESTS).as_bytes());
    let statuses: Vec<_> = (0..REQUESTS).map(|_| client.reply().unwrap().status).collect();
    assert_eq!(statuses, [200; REQUESTS]);
}

#[test]
fn silent_clients_and_incomplete_requests_are_closed() {
    let node = serving(|config| config.limits.head_timeout = Duration::from_secs(1));
    let halves = [&b""[..], b"GET /timest", b"POST /admin HT", &[native::FIRST_BYTE], b"P"];
    let mut halves = halves.map(|bytes| {
        let mut client = node.connect();
        client.send_raw(bytes);
        client
    });
    let mut used = node.connect();
    assert_eq!(used.request("GET /timestamp").status, 200);
    for client in &mut halves {
        assert!(client.is_closed());
    }
    assert_eq!(used.request("GET /timestamp").status, 200, "one that has asked is kept");
}

#[test]
fn incomplete_frames_and_header_blocks_are_closed_as_incomplete_heads_are() {
    let node = serving(|config| config.limits.head_timeout = Duration::from_secs(1));
    let mut begun = PREFACE.to_vec();
    frame::put_settings(&mut begun, &[]);
    let headers = |flags| {
        let mut bytes = Vec::new();
        frame::put(&mut bytes, kind::HEADERS, flags, 1, &get("/up"));
        bytes
    };
    let whole = headers(flag::END_HEADERS | flag::END_STREAM);
    let clients = [&headers(0)[..], &whole[..whole.len() - 1], &whole].map(|bytes| {
        let mut client = node.connect();
        client.send_raw(&[&begun, bytes].concat());
        client
    });
    let [mut block, mut cut_off, mut used] = clients;
    block.read_to_end();
    cut_off.read_to_end();
    let mut ping = Vec::new();
    frame::put(&mut ping, kind::PING, 0, 0, b"is open?");
    used.send_raw(&ping);
    while !used.read_some_bytes().ends_with(b"is open?") {}
}

#[test]
fn a_client_that_falls_silent_after_a_request_is_closed_after_the_idle_time() {
    let node = serving(|config| config.limits.idle_timeout = Duration::from_secs(1));
    for request in ["GET /timestamp", "GET /up"] {
        let mut client = node.connect();
        assert_eq!(client.request(request).status, 200);
        assert!(client.is_closed(), "{request}");
    }
}

/// How many bytes the kernel holds for a client of `node`, sent or not.
fn held_by_the_kernel(node: &TestNode, client: &Client) -> Option<usize> {
    let port = |addr: SocketAddr| format!(":{:04X}", addr.port());
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| {
        row.len() > 4
            && row[1].ends_with(&port(node.addr))
            && row[2].ends_with(&port(client.local_addr()))
    })?;
    usize::from_str_radix(row[4].split_once(':')?.0, 16).ok()
}

#[test]
fn the_kernel_buffers_little_for_a_client_that_does_not_read() {
    // The most bytes that the kernel may hold for this client. They include bytes that are sent and
    // not acknowledged, which fit in the client's window.
    const HELD_MAX: usize = 512 << 10;
    let node = serving(|_| {});
    let mut deaf = node.connect();
    for _ in 0..64 {
        deaf.send("GET /timestamp?n=65536");
    }
    let mut most = 0;
    let mut other = node.connect();
    // Few looks, because the table of all connections on this machine may be long.
    for _ in 0..10 {
        for _ in 0..10 {
            assert_eq!(other.request("GET /timestamp").status, 200);
        }
        let Some(held) = held_by_the_kernel(&node, &deaf) else { return };
        most = most.max(held);
    }
    println!("held for a client that does not read: {most} bytes");
    assert!((1..=HELD_MAX).contains(&most), "{most} bytes");
}
