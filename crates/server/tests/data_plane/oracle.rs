//! Our own gRPC service frame by frame: its answers and errors, health checks, reflection, and
//! clients that ask faster than they read.

use std::num::NonZeroU32;
use std::time::Instant;

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use epicepoch_core::publication::Published;
use epicepoch_wire::grpc::oracle::{
    self, NOT_LEADER, NotLeader, TimestampRequest, TimestampResponse,
};
use epicepoch_wire::grpc::protobuf::{put_bytes, put_message};
use epicepoch_wire::grpc::status::{Code, put_details};
use epicepoch_wire::grpc::{health, message, pd, reflection};
use epicepoch_wire::http::cluster_header;
use epicepoch_wire::http2::frame::{self, flag, kind, setting};
use epicepoch_wire::{ClusterId, Guarantee, HistoryId, NodeId, ProvedBy, Timestamp};

use crate::forwarding::{await_leader, both, following, two, with_addresses};
use crate::grpc::{HEAD, ID, begin, compact, data, head, single, tso, window};
use crate::http2_frames::{Answer, Raw};
use crate::limits::connect_from;
use crate::node::{CLUSTER, Cluster, TestNode, WAIT_MAX};

pub(crate) const ONE: TimestampRequest<'static> =
    TimestampRequest { count: 1, is_compact: false, guarantee: None, cluster: "" };

pub(crate) fn encoded(request: TimestampRequest<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    request.encode(&mut out);
    out
}

pub(crate) fn with_grpc(cluster: &mut Cluster) -> TestNode {
    cluster.start_with(1, |config| (config.workers, config.grpc) = (1, true))
}

/// A node that leads a cluster with wide timestamps.
pub(crate) fn serving() -> TestNode {
    leading().1
}

/// The same, with its cluster.
pub(crate) fn leading() -> (Cluster, TestNode) {
    let mut cluster = Cluster::new(1);
    let node = with_grpc(&mut cluster);
    node.publish(cluster.leading(1, 3, true));
    node.await_metric("epicepoch_has_grant", 1);
    (cluster, node)
}

pub(crate) fn stamped(answer: &Answer) -> Vec<TimestampResponse> {
    answer.messages().iter().map(|bytes| TimestampResponse::decode(bytes).unwrap()).collect()
}

/// Asks once, and returns the answer with its single message.
fn ask(client: &mut Raw, id: u32, request: TimestampRequest<'_>) -> TimestampResponse {
    client.send(&single(id, oracle::GET_TIMESTAMP, &encoded(request)));
    let answer = client.answers(1).remove(&id).unwrap();
    assert_eq!(answer.call_status(), ("0", ""), "{answer:?}");
    let answers = stamped(&answer);
    assert_eq!(answers.len(), 1);
    answers[0]
}

#[test]
fn single_calls_streams_and_the_first_service_share_one_order() {
    let node = serving();
    let mut client = Raw::new(&node, &[]);
    let first = ask(&mut client, 1, ONE);
    assert_eq!((first.count, first.compact, first.proved_by), (1, None, ProvedBy::Round));
    assert_eq!(first.forwarded_by, None);
    let range = ask(&mut client, 3, TimestampRequest { count: 1 << 20, ..ONE });
    assert_eq!(range.count, 1 << 20);
    assert!(range.first > first.first);
    // An empty message asks for one.
    client.send(&single(5, oracle::FIRST_GET_TIMESTAMP, b""));
    let answer = client.answers(1).remove(&5).unwrap();
    assert_eq!(answer.call_status(), ("0", ""));
    let messages = answer.messages();
    let (bytes, tag) = (&messages[0][2..], &messages[0][..2]);
    assert_eq!(tag, b"\x0a\x10");
    let third = Timestamp::from_bytes(bytes.try_into().unwrap());
    assert!(third > range.first && third.index.0 >= range.first.index.0 + range.count);
    let rounds = node.metric("epicepoch_rounds_begun_total");
    let requests: Vec<_> =
        (1..=300).map(|count| encoded(TimestampRequest { count, ..ONE })).collect();
    client.send(
        &[begin(7, oracle::STREAM_TIMESTAMPS), data(7, flag::END_STREAM, &requests)].concat(),
    );
    let answer = client.answers(1).remove(&7).unwrap();
    assert_eq!(answer.call_status(), ("0", ""));
    let mut last = third;
    for (answer, count) in stamped(&answer).iter().zip(1..) {
        assert!(answer.count == count && answer.first > last, "{answer:?}");
        last = answer.first;
    }
    let rounds = node.metric("epicepoch_rounds_begun_total") - rounds;
    assert!(rounds < 20, "{rounds} rounds for one write");
}

#[test]
fn compact_timestamps_are_given_where_the_cluster_has_them() {
    let node = serving();
    let mut client = Raw::new(&node, &[]);
    let wanted = TimestampRequest { is_compact: true, count: 5, ..ONE };
    client.send(&single(1, oracle::GET_TIMESTAMP, &encoded(wanted)));
    let answer = client.answers(1).remove(&1).unwrap();
    let (code, text) = answer.call_status();
    assert!(code == "9" && text.contains("TIMESTAMP_FORMAT=compact"), "{text}");
    assert_eq!(node.metric("epicepoch_refusals_total{code=\"NOT_COMPACT\"}"), 1);
    let refused = "epicepoch_requests_total{path=\"timestamp\",status=\"422\"}";
    assert_eq!(node.metric(refused), 1);
    let page = node.request("GET /metrics");
    assert!(!page.text().contains("{path=\"timestamp\",status=\"200\"}"), "{}", page.text());
    let mut cluster = Cluster::new(1);
    let node = with_grpc(&mut cluster);
    node.publish(compact(cluster.leading(1, 3, true)));
    node.await_metric("epicepoch_has_grant", 1);
    let mut client = Raw::new(&node, &[]);
    let given = ask(&mut client, 3, wanted);
    assert_eq!((given.count, given.compact), (5, given.first.to_compact()));
    assert!(given.compact.is_some());
    assert_eq!(ask(&mut client, 5, ONE).compact, None, "only who asks for it");
    let many = TimestampRequest { count: (1 << 18) + 1, ..ONE };
    client.send(&single(7, oracle::GET_TIMESTAMP, &encoded(many)));
    let answer = client.answers(1).remove(&7).unwrap();
    let most = "count is 262145; give a whole number from 1 to 262144";
    assert_eq!(answer.call_status(), ("3", most));
}

/// A new leader, or one that was paused, may not know yet that the cluster has become compact.
#[test]
fn a_leader_that_does_not_know_yet_that_timestamps_are_compact_refuses_no_request_for_them() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| {
        (config.workers, config.grpc, config.pd_wire) = (1, true, true);
    });
    node.publish(cluster.leading(1, 3, false));
    node.await_metric("epicepoch_is_leader", 1);
    let mut client = Raw::new(&node, &[]);
    let wanted = TimestampRequest { is_compact: true, count: 5, ..ONE };
    client.send(&single(1, oracle::GET_TIMESTAMP, &encoded(wanted)));
    client.send(&single(3, pd::TSO, &tso(ID, 7)));
    node.await_metric("epicepoch_waiting_requests", 2);
    node.publish(compact(cluster.leading(1, 3, true)));
    let answers = client.answers(2);
    assert_eq!(answers[&1].call_status(), ("0", ""));
    assert!(stamped(&answers[&1])[0].compact.is_some());
    assert_eq!(answers[&3].tso().len(), 1);
}

#[test]
fn wrong_requests_say_why() {
    let node = serving();
    let mut client = Raw::new(&node, &[]);
    let own = cluster_header(CLUSTER, HistoryId(9));
    assert_eq!(ask(&mut client, 1, TimestampRequest { cluster: &own, ..ONE }).count, 1);
    let guarantee = Some(Guarantee::Quorum);
    assert_eq!(ask(&mut client, 3, TimestampRequest { guarantee, ..ONE }).count, 1);
    let other = cluster_header(CLUSTER, HistoryId(8));
    let other = encoded(TimestampRequest { cluster: &other, ..ONE });
    let many = encoded(TimestampRequest { count: (1 << 32) + 1, ..ONE });
    let cases: [(&str, &[u8], &str, &str); 6] = [
        (oracle::GET_TIMESTAMP, &other, "9", "this node belongs to another cluster"),
        (oracle::STREAM_TIMESTAMPS, &many, "3", "count is 4294967297; give a whole number"),
        (oracle::GET_TIMESTAMP, b"\x18\x07", "3", "guarantee must be GUARANTEE_QUORUM"),
        (oracle::GET_TIMESTAMP, b"\x0b", "13", "the request cannot be read"),
        (pd::TSO, b"", "12", "/pdpb.PD/Tso is not served here: set PD_WIRE=on"),
        ("/epicepoch.v1.Oracle/Other", b"", "12", "/epicepoch.v1.Oracle/Other is not served"),
    ];
    for (id, (path, request, code, text)) in (5..).step_by(2).zip(cases) {
        client.send(&single(id, path, request));
        let answer = client.answers(1).remove(&id).unwrap();
        let (found, said) = answer.call_status();
        assert!(found == code && said.starts_with(text), "{answer:?}");
        assert!(!answer.headers.contains_key("grpc-status-details-bin"));
    }
}

#[test]
fn a_node_that_has_not_joined_tells_clients_of_a_cluster_to_ask_again() {
    let mut cluster = Cluster::new(1);
    let node = with_grpc(&mut cluster);
    node.publish(Published { cluster: ClusterId(0), ..cluster.nothing(1) });
    let mut client = Raw::new(&node, &[]);
    let own = cluster_header(CLUSTER, HistoryId(9));
    let wanted = encoded(TimestampRequest { cluster: &own, ..ONE });
    for (id, path, request) in
        [(1, oracle::GET_TIMESTAMP, &wanted[..]), (3, oracle::GET_MEMBERS, b"")]
    {
        client.send(&single(id, path, request));
        let answer = client.answers(1).remove(&id).unwrap();
        let text = "this node has not joined its cluster yet; retry";
        assert_eq!(answer.call_status(), ("14", text), "{path}");
    }
}

#[test]
fn a_follower_names_the_leader_in_the_details() {
    let mut cluster = Cluster::new(2);
    let node = with_grpc(&mut cluster);
    let mut client = Raw::new(&node, &[]);
    node.publish(cluster.nothing(1));
    client.send(&single(1, oracle::GET_TIMESTAMP, b""));
    let answer = client.answers(1).remove(&1).unwrap();
    let (code, text) = answer.call_status();
    assert!(code == "14" && text.starts_with("no leader: "), "{text}");
    assert!(!answer.headers.contains_key("grpc-status-details-bin"));
    node.publish(Published { leader: Some(NodeId(2)), ..cluster.nothing(1) });
    for (id, path) in [
        (3, oracle::GET_TIMESTAMP),
        (5, oracle::STREAM_TIMESTAMPS),
        (7, oracle::FIRST_GET_TIMESTAMP),
    ] {
        client.send(&single(id, path, b""));
        let answer = client.answers(1).remove(&id).unwrap();
        let text = "not leader; the leader is at client-2.test:80";
        assert_eq!(answer.call_status(), ("14", text));
        let mut expected = Vec::new();
        let leader = NotLeader { node: 2, address: "client-2.test:80" };
        put_details(&mut expected, Code::Unavailable, text, NOT_LEADER, |out| leader.encode(out));
        let details = &answer.headers["grpc-status-details-bin"];
        assert_eq!(BASE64_STANDARD_NO_PAD.decode(details).unwrap(), expected);
    }
    client.send(&single(9, oracle::GET_MEMBERS, b""));
    let answer = client.answers(1).remove(&9).unwrap();
    let mut expected = Vec::new();
    let members = [1, 2].map(|node: u64| {
        let address = ["client-1.test:80", "client-2.test:80"][node as usize - 1];
        oracle::Member { node, address, is_voter: true }
    });
    let name = cluster_header(CLUSTER, HistoryId(9));
    oracle::put_members(&mut expected, &name, Some(2), members.into_iter());
    assert_eq!(answer.messages(), [expected]);
}

#[test]
fn a_stream_ends_when_its_node_no_longer_leads() {
    let (cluster, node) = leading();
    let mut client = Raw::new(&node, &[]);
    client.send(&[begin(1, oracle::STREAM_TIMESTAMPS), data(1, 0, &[encoded(ONE)])].concat());
    client.await_body(1, 20);
    node.publish(cluster.nothing(1));
    let answer = client.answers(1).remove(&1).unwrap();
    assert_eq!(stamped(&answer).len(), 1);
    let (code, text) = answer.call_status();
    assert!(code == "14" && text.starts_with("no leader: "), "{text}");
}

#[test]
fn a_follower_that_forwards_answers_calls_unless_their_client_follows() {
    let (cluster, nodes) = two(WAIT_MAX, |config| config.grpc = true);
    nodes[1].publish(with_addresses(following(&cluster, 2, 1), both(&nodes)));
    nodes[0].publish(with_addresses(cluster.leading(1, 3, true), both(&nodes)));
    await_leader(&nodes[0], 1);
    await_leader(&nodes[1], 1);
    let mut client = Raw::new(&nodes[1], &[]);
    let first = ask(&mut client, 1, ONE);
    assert_eq!(first.forwarded_by, Some(2));
    client.send(&[begin(3, oracle::STREAM_TIMESTAMPS), data(3, 0, &[encoded(ONE)])].concat());
    client.await_body(3, 20);
    client.send(&data(3, flag::END_STREAM, &[encoded(ONE)]));
    let answers = stamped(&client.answers(1).remove(&3).unwrap());
    assert!(answers.len() == 2 && answers[0].first > first.first);
    client.send(&single(5, health::CHECK, &service(oracle::SERVICE)));
    assert_eq!(client.answers(1)[&5].messages(), [b"\x08\x01".to_vec()]);
    for (stream, value, code) in [(7, "1", "14"), (9, "0", "0")] {
        let mut direct = Vec::new();
        let block = head(oracle::GET_TIMESTAMP, &[("epicepoch-direct", value)]);
        frame::put(&mut direct, kind::HEADERS, HEAD, stream, &block);
        client.send(&[direct, data(stream, flag::END_STREAM, &[Vec::new()])].concat());
        let answer = client.answers(1).remove(&stream).unwrap();
        let (told, text) = answer.call_status();
        assert!(told == code && (code == "0" || text.starts_with("not leader; ")), "{answer:?}");
    }
}

pub(crate) fn service(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, 1, name.as_bytes());
    out
}

/// A call with one request counts once for the rate of its address.
#[test]
fn a_call_counts_for_the_rate_as_a_request_over_http_does() {
    /// All that the rate allows at once.
    const CALLS: u32 = 60;
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| {
        (config.workers, config.grpc) = (1, true);
        config.limits.address_request_rate_max = NonZeroU32::new(CALLS);
    });
    node.publish(cluster.leading(1, 3, true));
    // Requests of another address do not count.
    let (mut other, start) = (connect_from(3, &node), Instant::now());
    while other.request("GET /timestamp").status != 200 {
        assert!(start.elapsed() < WAIT_MAX, "the node does not serve");
    }
    let mut client = Raw::new(&node, &[]);
    let calls: Vec<_> =
        (0..CALLS).flat_map(|at| single(2 * at + 1, oracle::GET_TIMESTAMP, b"")).collect();
    client.send(&calls);
    for answer in client.answers(CALLS as usize).values() {
        assert_eq!(answer.call_status(), ("0", ""));
    }
}

#[test]
fn the_health_of_our_service_follows_leadership() {
    let mut cluster = Cluster::new(1);
    let node = with_grpc(&mut cluster);
    let mut client = Raw::new(&node, &[]);
    let watch = |id: u32, name: &str| single(id, health::WATCH, &service(name));
    client.send(&[watch(1, oracle::SERVICE), watch(3, ""), watch(5, "no.such")].concat());
    // An answer is a head of five bytes and a field of two.
    for id in [1, 3, 5] {
        client.await_body(id, 7);
    }
    let told =
        |client: &Raw, id: u32| client.body(id).chunks(7).map(|it| it[6]).collect::<Vec<_>>();
    assert_eq!([1, 3, 5].map(|id| told(&client, id)), [vec![2], vec![1], vec![3]]);
    node.publish(cluster.leading(1, 3, true));
    client.await_body(1, 14);
    let mut check = |id: u32, name: &str| {
        client.send(&single(id, health::CHECK, &service(name)));
        client.answers(1).remove(&id).unwrap()
    };
    for (id, name) in [(7, oracle::SERVICE), (9, ""), (11, oracle::FIRST_SERVICE)] {
        assert_eq!(check(id, name).messages(), [b"\x08\x01".to_vec()], "{name}");
    }
    for (id, name) in [(13, "no.such"), (15, pd::SERVICE)] {
        assert_eq!(check(id, name).call_status().0, "5", "{name}");
    }
    node.publish(cluster.nothing(1));
    client.await_body(1, 21);
    assert_eq!([1, 3, 5].map(|id| told(&client, id)), [vec![2, 1, 2], vec![1], vec![3]]);
}

#[test]
fn reflection_lists_services_and_gives_their_definitions() {
    let node = serving();
    let mut client = Raw::new(&node, &[]);
    let asked = |field: u32, name: &str| {
        let mut out = Vec::new();
        put_message(&mut out, field, |out| out.extend_from_slice(name.as_bytes()));
        out
    };
    let requests = [asked(7, "*"), asked(4, oracle::SERVICE), asked(3, "no.proto")];
    for (id, path) in [(1, reflection::INFO), (3, reflection::INFO_ALPHA)] {
        client.send(&[begin(id, path), data(id, flag::END_STREAM, &requests)].concat());
        let answer = client.answers(1).remove(&id).unwrap();
        assert_eq!(answer.call_status(), ("0", ""));
        let services = [
            oracle::SERVICE,
            oracle::FIRST_SERVICE,
            health::SERVICE,
            "grpc.reflection.v1.ServerReflection",
        ];
        let expected: Vec<_> = requests
            .iter()
            .map(|request| {
                let mut out = Vec::new();
                reflection::put_answer(&mut out, request, services.into_iter()).unwrap();
                out
            })
            .collect();
        assert_eq!(answer.messages(), expected);
    }
}

/// Sends as many requests on a stream as the node's windows allow. It stops when the node, which
/// has handled all of them, gives no more window. Returns how many it has sent.
pub(crate) fn send_without_reading(client: &mut Raw, id: u32) -> usize {
    const BURST: usize = 500;
    let bytes = data(id, 0, &vec![encoded(ONE); BURST]);
    let len = bytes.len() - frame::HEAD_LEN;
    let (mut sent, mut quiet) = (0, 0);
    while quiet < 5 {
        let used = ((sent / BURST + 1) * len) as i64;
        if used <= client.window(id).min(client.window(0)) {
            client.send(&bytes);
            sent += BURST;
            quiet = 0;
        } else {
            client.ping();
            quiet += 1;
        }
    }
    sent
}

#[test]
fn a_client_that_does_not_read_waits_and_loses_nothing() {
    let node = serving();
    let mut client = Raw::new(&node, &[(setting::INITIAL_WINDOW_SIZE, 0)]);
    client.send(&[begin(1, oracle::STREAM_TIMESTAMPS), window(0, 1 << 30)].concat());
    let sent = send_without_reading(&mut client, 1);
    let len = data(1, 0, &[encoded(ONE)]).len() - frame::HEAD_LEN;
    assert!((sent + 500) * len > 65_535, "it may send a whole window: {sent}");
    assert!(sent * len < 4 * 65_535, "the node takes {sent} requests of a client that reads none");
    // Calls beside it are answered.
    client.send(&[single(3, oracle::GET_TIMESTAMP, b""), window(3, 100)].concat());
    assert_eq!(stamped(&client.answers(1)[&3]).len(), 1);
    client.send(&[window(1, 1 << 30), data(1, flag::END_STREAM, &[])].concat());
    let answer = client.answers(1).remove(&1).unwrap();
    assert_eq!(answer.call_status(), ("0", ""));
    let answers = stamped(&answer);
    assert_eq!(answers.len(), sent);
    assert!(answers.is_sorted_by(|one, next| one.first < next.first));
}

/// Without a limit for the connection, each stream could fill a window of its own.
#[test]
fn all_streams_of_a_client_that_does_not_read_share_a_limit() {
    let node = serving();
    let mut client = Raw::new(&node, &[(setting::INITIAL_WINDOW_SIZE, 0)]);
    client.send(&window(0, 1 << 30));
    let request = encoded(ONE);
    let burst = (data(1, 0, &vec![request.clone(); 500]).len() - frame::HEAD_LEN) as i64;
    let (mut sent, mut open) = (0, Vec::new());
    for id in (1..=399).step_by(2) {
        client.send(&begin(id, oracle::STREAM_TIMESTAMPS));
        let mut count = 0;
        for _ in 0..8 {
            if sent + burst <= client.window(0) && (count + 1) * burst <= client.window(id) {
                client.send(&data(id, 0, &vec![request.clone(); 500]));
                (sent, count) = (sent + burst, count + 1);
            }
            client.ping();
        }
        open.push((id, count as usize * 500));
    }
    assert!(sent < 1 << 20, "the node takes {sent} bytes from a client that reads nothing");
    for (id, _) in &open {
        client.send(&[window(*id, 1 << 20), data(*id, flag::END_STREAM, &[])].concat());
    }
    let answers = client.answers(open.len());
    for (id, count) in open {
        assert_eq!(answers[&id].call_status(), ("0", ""), "{id}");
        assert_eq!(stamped(&answers[&id]).len(), count, "{id}");
    }
    // The connection's window is open again: more than one window goes through.
    let mut body = Vec::new();
    for _ in 0..20_000 {
        message::put(&mut body, |out| out.extend_from_slice(&request));
    }
    client.send(&[begin(401, oracle::STREAM_TIMESTAMPS), window(401, 1 << 20)].concat());
    let mut used = sent;
    let mut on_stream = 0;
    for chunk in body.chunks(8 << 10) {
        while used + chunk.len() as i64 > client.window(0)
            || on_stream + chunk.len() as i64 > client.window(401)
        {
            client.ping();
        }
        let mut part = Vec::new();
        frame::put(&mut part, kind::DATA, 0, 401, chunk);
        client.send(&part);
        used += chunk.len() as i64;
        on_stream += chunk.len() as i64;
    }
    client.send(&data(401, flag::END_STREAM, &[]));
    assert_eq!(stamped(&client.answers(1)[&401]).len(), 20_000);
}
