//! Calls of gRPC frame by frame, as PD's clients make them: which requests share a round, how calls
//! end, and what a client may send and must read.

use epicepoch_core::publication::Published;
use epicepoch_server::Config;
use epicepoch_wire::grpc::message::{self, MESSAGE_LEN_MAX, Message};
use epicepoch_wire::grpc::pd::{self, TsoRequest, TsoResponse, cluster_id};
use epicepoch_wire::grpc::{health, protobuf};
use epicepoch_wire::http2::frame::{self, flag, kind, setting};
use epicepoch_wire::{HistoryId, NodeId, TimestampFormat};

use crate::http2_frames::{Answer, Raw};
use crate::node::{CLUSTER, Cluster, TestNode};

pub(crate) const HEAD: u8 = flag::END_HEADERS;
/// The id of the tests' cluster, for clients of PD.
pub(crate) const ID: u64 = cluster_id(CLUSTER, HistoryId(9));

/// The header block of a call. It does not use the HPACK table.
pub(crate) fn head(path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = vec![0x83, 0x86, 0x04, path.len() as u8];
    block.extend_from_slice(path.as_bytes());
    for (name, value) in
        [("content-type", "application/grpc"), ("te", "trailers")].iter().chain(fields)
    {
        block.extend([&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8]].concat());
        block.extend_from_slice(value.as_bytes());
    }
    block
}

/// Frames that begin a call.
pub(crate) fn begin(stream: u32, path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::put(&mut bytes, kind::HEADERS, HEAD, stream, &head(path, &[]));
    bytes
}

/// A DATA frame with these messages.
pub(crate) fn data(stream: u32, flags: u8, messages: &[Vec<u8>]) -> Vec<u8> {
    let mut content = Vec::new();
    for bytes in messages {
        message::put(&mut content, |out| out.extend_from_slice(bytes));
    }
    let mut frames = Vec::new();
    frame::put(&mut frames, kind::DATA, flags, stream, &content);
    frames
}

/// A request for timestamps.
pub(crate) fn tso(cluster_id: u64, count: u32) -> Vec<u8> {
    let mut out = Vec::new();
    TsoRequest { cluster_id, count, is_global: true }.encode(&mut out);
    out
}

/// A frame that opens a window.
pub(crate) fn window(stream: u32, more: u32) -> Vec<u8> {
    let mut frame = Vec::new();
    frame::put(&mut frame, kind::WINDOW_UPDATE, 0, stream, &more.to_be_bytes());
    frame
}

/// A call with one request.
pub(crate) fn single(stream: u32, path: &str, request: &[u8]) -> Vec<u8> {
    [begin(stream, path), data(stream, flag::END_STREAM, &[request.to_vec()])].concat()
}

impl Answer {
    /// The status of a call, and its text.
    pub(crate) fn call_status(&self) -> (&str, &str) {
        assert_eq!(self.headers[":status"], "200", "{self:?}");
        assert_eq!(self.headers["content-type"], "application/grpc");
        let text = self.headers.get("grpc-message").map_or("", String::as_str);
        (&self.headers["grpc-status"], text)
    }

    pub(crate) fn messages(&self) -> Vec<Vec<u8>> {
        let (mut rest, mut found) = (&self.body[..], Vec::new());
        while let Some((message, behind)) = Message::split(rest).unwrap() {
            assert!(!message.is_compressed);
            found.push(message.bytes.to_vec());
            rest = behind;
        }
        assert!(rest.is_empty(), "half a message");
        found
    }

    pub(crate) fn tso(&self) -> Vec<TsoResponse> {
        self.messages().iter().map(|bytes| TsoResponse::decode(bytes).unwrap()).collect()
    }
}

pub(crate) fn compact(published: Published) -> Published {
    Published { timestamp_format: TimestampFormat::Compact, ..published }
}

pub(crate) fn started(cluster: &mut Cluster, change: impl FnOnce(&mut Config)) -> TestNode {
    cluster.start_with(1, |config| {
        (config.workers, config.pd_wire) = (1, true);
        change(config);
    })
}

/// A node that leads a cluster with compact timestamps.
fn serving() -> TestNode {
    let mut cluster = Cluster::new(1);
    let node = started(&mut cluster, |_| {});
    node.publish(compact(cluster.leading(1, 3, true)));
    node.await_metric("epicepoch_has_grant", 1);
    node
}

/// Checks answers to requests for `counts`: in order, and each with the logical part of its last
/// timestamp.
fn assert_in_order(answers: &[TsoResponse], counts: impl Iterator<Item = u32>) {
    let counts: Vec<_> = counts.collect();
    assert_eq!(answers.iter().map(|it| it.count).collect::<Vec<_>>(), counts);
    let mut next = (0, 0);
    for answer in answers {
        assert_eq!(answer.cluster_id, ID);
        let first = answer.logical + 1 - u64::from(answer.count);
        assert!(answer.logical < 1 << pd::LOGICAL_BITS && (answer.physical, first) >= next);
        next = (answer.physical, answer.logical + 1);
    }
}

#[test]
fn requests_of_a_stream_are_answered_in_order_and_those_of_one_write_share_a_round() {
    let node = serving();
    let mut client = Raw::new(&node, &[]);
    let rounds = node.metric("epicepoch_rounds_begun_total");
    let requests: Vec<_> = (1..=300).map(|count| tso(ID, count)).collect();
    client.send(&[begin(1, pd::TSO), data(1, flag::END_STREAM, &requests)].concat());
    let answer = &client.answers(1)[&1];
    assert_eq!(answer.call_status(), ("0", ""));
    assert_in_order(&answer.tso(), 1..=300);
    let rounds = node.metric("epicepoch_rounds_begun_total") - rounds;
    assert!(rounds < 20, "{rounds} rounds for one write");
    // The stream of a client that is not done stays open, and another call is served beside it.
    client.send(&[begin(3, pd::TSO), data(3, 0, &requests[..1])].concat());
    client.send(&single(5, pd::TSO, &requests[1]));
    assert_in_order(&client.answers(1)[&5].tso(), 2..=2);
    client.send(&data(3, flag::END_STREAM, &requests[2..3]));
    assert_in_order(&client.answers(1)[&3].tso(), [1, 3].into_iter());
}

#[test]
fn messages_may_be_cut_anywhere() {
    let node = serving();
    let mut client = Raw::new(&node, &[]);
    let mut content = Vec::new();
    for count in 1..=20 {
        message::put(&mut content, |out| out.extend(tso(ID, count)));
    }
    for (at, part) in [1, 2, 7, 100].into_iter().enumerate() {
        let id = 2 * at as u32 + 1;
        let mut bytes = begin(id, pd::TSO);
        for cut in content.chunks(part) {
            frame::put(&mut bytes, kind::DATA, 0, id, cut);
        }
        frame::put(&mut bytes, kind::DATA, flag::END_STREAM, id, &[]);
        client.send(&bytes);
        let answer = client.answers(1).remove(&id).unwrap();
        assert_eq!(answer.call_status(), ("0", ""));
        assert_in_order(&answer.tso(), 1..=20);
    }
}

#[test]
fn a_client_may_send_on_for_ever_and_gets_its_window_back() {
    let node = serving();
    let mut client = Raw::new(&node, &[(setting::INITIAL_WINDOW_SIZE, 1 << 30)]);
    client.send(&[window(0, 1 << 30), begin(1, pd::TSO)].concat());
    // Ten times the window of a stream that is never reopened.
    let requests = vec![tso(ID, 1); 200];
    let bytes = data(1, 0, &requests);
    let turns = 10 * 65_535 / bytes.len();
    for turn in 1..=turns {
        client.send(&bytes);
        client.await_body(1, turn * requests.len() * 30);
    }
    client.send(&data(1, flag::END_STREAM, &[]));
    let answer = client.answers(1).remove(&1).unwrap();
    assert_eq!((answer.call_status(), answer.tso().len()), (("0", ""), turns * requests.len()));
}

#[test]
fn answers_wait_for_the_clients_window() {
    let node = serving();
    let mut client = Raw::new(&node, &[(setting::INITIAL_WINDOW_SIZE, 10)]);
    client
        .send(&[begin(1, pd::TSO), data(1, flag::END_STREAM, &[tso(ID, 5), tso(ID, 6)])].concat());
    client.await_body(1, 10);
    client.send(&window(1, 1000));
    let answer = client.answers(1).remove(&1).unwrap();
    assert_eq!(answer.call_status(), ("0", ""));
    assert_in_order(&answer.tso(), 5..=6);
}

#[test]
fn wrong_requests_end_their_call_and_say_why() {
    let node = serving();
    let mut client = Raw::new(&node, &[]);
    let long = [&[0][..], &(MESSAGE_LEN_MAX as u32 + 1).to_be_bytes()].concat();
    let mut local = Vec::new();
    TsoRequest { cluster_id: ID, count: 1, is_global: false }.encode(&mut local);
    let raw = |id: u32, path: &str, bytes: &[u8]| {
        let mut frames = begin(id, path);
        frame::put(&mut frames, kind::DATA, flag::END_STREAM, id, bytes);
        frames
    };
    let mismatch = format!("mismatch cluster id, need {ID} but got {}", ID ^ 1);
    let request = |bytes: Vec<u8>| [&[0, 0, 0, 0, bytes.len() as u8][..], &bytes].concat();
    let too_few = "count is 0; give a whole number from 1 to 65536";
    let too_many = "count is 65537; give a whole number from 1 to 65536";
    let cases: [(&str, &[u8], &str, &str); 12] = [
        ("/pdpb.PD/AllocID", b"\0\0\0\0\0", "12", "/pdpb.PD/AllocID is not served here"),
        ("/a.B/C", b"", "12", "/a.B/C is not served here"),
        (pd::TSO, &request(tso(ID ^ 1, 1)), "9", &mismatch),
        (pd::TSO, &request(tso(ID, 0)), "3", too_few),
        (pd::TSO, &request(tso(ID, 65_537)), "3", too_many),
        (pd::TSO, &request(local), "3", "dc_location must be empty or global"),
        (pd::TSO, b"\x01\0\0\0\0", "12", "compressed messages are not read here"),
        (pd::TSO, b"\x02\0\0\0\0", "13", "a message begins with the byte 2"),
        (pd::TSO, b"\0\0\0\0\x01\x0b", "13", "the request cannot be read"),
        (pd::TSO, b"\0\0\0\0\x05\x0a", "13", "the call ended in the middle of a message"),
        (pd::TSO, &long, "8", "a message of 4097 bytes; the limit is 4096"),
        (health::CHECK, b"\0\0\0\0\0\0\0\0\0\0", "13", "the call has more than one request"),
    ];
    for (at, (path, bytes, code, text)) in cases.into_iter().enumerate() {
        let id = 2 * at as u32 + 1;
        client.send(&raw(id, path, bytes));
        let answer = client.answers(1).remove(&id).unwrap();
        let (found, said) = answer.call_status();
        assert!(found == code && said.starts_with(text) && answer.body.is_empty(), "{answer:?}");
    }
    let mut bytes = Vec::new();
    let whole = HEAD | flag::END_STREAM;
    frame::put(&mut bytes, kind::HEADERS, whole, 101, &head(pd::GET_MEMBERS, &[]));
    client.send(&bytes);
    assert_eq!(client.answers(1)[&101].call_status(), ("13", "the call has no request"));
    let mut unknown = Vec::new();
    protobuf::put_bytes(&mut unknown, 1, b"no.such");
    client.send(&single(103, health::CHECK, &unknown));
    assert_eq!(client.answers(1)[&103].call_status().0, "5");
    client.send(&single(105, pd::TSO, &tso(ID, 2)));
    assert_in_order(&client.answers(1)[&105].tso(), 2..=2);
}

#[test]
fn members_mode_and_health_are_told_by_leaders_and_followers() {
    let mut cluster = Cluster::new(2);
    let node = started(&mut cluster, |_| {});
    let mut client = Raw::new(&node, &[]);
    let mut id = 1;
    let mut ask = |path: &str| {
        client.send(&single(id, path, b""));
        let answer = client.answers(1).remove(&id).unwrap();
        id += 2;
        answer
    };
    let member = |node: u64| {
        let raft_addr = cluster.nothing(1).members[&NodeId(node)].raft_addr.clone();
        (format!("epicepoch-{node}"), node, format!("http://{raft_addr}"))
    };
    let expected = |leader: Option<u64>| {
        let members = [member(1), member(2)];
        let urls = ["http://client-1.test:80", "http://client-2.test:80"];
        let of = |node: u64| {
            let (name, id, peer_url) = &members[node as usize - 1];
            pd::Member { name, id: *id, peer_url, client_url: urls[node as usize - 1] }
        };
        let mut out = Vec::new();
        pd::put_members(&mut out, ID, [of(1), of(2)].into_iter(), leader.map(of).as_ref());
        out
    };
    let mut info = Vec::new();
    pd::put_cluster_info(&mut info, ID);
    for leader in [None, Some(2), Some(1)] {
        let mut published = match leader {
            Some(1) => cluster.leading(1, 3, true),
            _ => cluster.nothing(1),
        };
        published.leader = leader.map(NodeId);
        node.publish(compact(published));
        let asked = ask(pd::GET_MEMBERS);
        assert_eq!((asked.call_status(), asked.messages()), (("0", ""), vec![expected(leader)]));
        assert_eq!(ask(pd::GET_CLUSTER_INFO).messages(), [info.clone()]);
        assert_eq!(ask(health::CHECK).messages(), [b"\x08\x01".to_vec()]);
    }
    // Without compact timestamps, only the health is told.
    node.publish(cluster.leading(1, 4, true));
    for path in [pd::GET_MEMBERS, pd::GET_CLUSTER_INFO] {
        let answer = ask(path);
        let (code, text) = answer.call_status();
        assert!(code == "9" && text.contains("set TIMESTAMP_FORMAT=compact first"), "{text}");
    }
    assert_eq!(ask(health::CHECK).messages(), [b"\x08\x01".to_vec()]);
}

#[test]
fn a_request_that_cannot_take_wide_timestamps_counts_as_refused() {
    let mut cluster = Cluster::new(1);
    let node = started(&mut cluster, |_| {});
    node.publish(cluster.leading(1, 3, true));
    node.await_metric("epicepoch_has_grant", 1);
    let mut client = Raw::new(&node, &[]);
    client.send(&single(1, pd::TSO, &tso(ID, 1)));
    let answer = client.answers(1).remove(&1).unwrap();
    let (code, text) = answer.call_status();
    assert!(code == "9" && text.contains("set TIMESTAMP_FORMAT=compact first"), "{text}");
    let refused = "epicepoch_requests_total{path=\"timestamp\",status=\"400\"}";
    assert_eq!(node.metric(refused), 1);
    let page = node.request("GET /metrics");
    assert!(!page.text().contains("{path=\"timestamp\",status=\"200\"}"), "{}", page.text());
}

#[test]
fn a_node_that_does_not_lead_ends_calls_with_the_words_of_pd() {
    let mut cluster = Cluster::new(2);
    let node = started(&mut cluster, |_| {});
    let mut client = Raw::new(&node, &[]);
    node.publish(compact(cluster.nothing(1)));
    client.send(&single(1, pd::TSO, &tso(ID, 1)));
    let answer = client.answers(1).remove(&1).unwrap();
    let (code, text) = answer.call_status();
    assert!(code == "14" && text.starts_with("no leader: "), "{text}");
    let mut published = cluster.nothing(1);
    published.leader = Some(NodeId(2));
    node.publish(compact(published));
    client.send(&single(3, pd::TSO, &tso(ID, 1)));
    let answer = client.answers(1).remove(&3).unwrap();
    assert_eq!(answer.call_status(), ("14", "not leader; the leader is at client-2.test:80"));
}

#[test]
fn a_leader_that_steps_down_ends_its_streams_before_they_ask_again() {
    let mut cluster = Cluster::new(1);
    let node = started(&mut cluster, |_| {});
    node.publish(compact(cluster.leading(1, 3, true)));
    node.await_metric("epicepoch_has_grant", 1);
    let mut client = Raw::new(&node, &[]);
    client.send(&[begin(1, pd::TSO), data(1, 0, &[tso(ID, 4)])].concat());
    client.await_body(1, 30);
    node.publish(compact(cluster.nothing(1)));
    let answer = client.answers(1).remove(&1).unwrap();
    assert_in_order(&answer.tso(), 4..=4);
    let (code, text) = answer.call_status();
    assert!(code == "14" && text.starts_with("no leader: "), "{text}");
}

#[test]
fn calls_need_the_token_that_timestamps_need() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokens");
    std::fs::write(&file, "client-token-0123456789\n").unwrap();
    let mut cluster = Cluster::new(1);
    let node = started(&mut cluster, |config| config.authz.client_token_file = Some(file.clone()));
    node.publish(compact(cluster.leading(1, 3, true)));
    node.await_metric("epicepoch_has_grant", 1);
    let mut client = Raw::new(&node, &[]);
    for (id, path) in [(1, pd::TSO), (3, pd::GET_MEMBERS), (5, pd::GET_CLUSTER_INFO)] {
        client.send(&single(id, path, &tso(ID, 1)));
        assert_eq!(client.answers(1)[&id].call_status().0, "16", "{path}");
    }
    client.send(&single(7, health::CHECK, b""));
    assert_eq!(client.answers(1)[&7].call_status(), ("0", ""));
    let mut bytes = Vec::new();
    let token = [("authorization", "Bearer client-token-0123456789")];
    frame::put(&mut bytes, kind::HEADERS, HEAD, 9, &head(pd::TSO, &token));
    client.send(&[bytes, data(9, flag::END_STREAM, &[tso(ID, 3)])].concat());
    assert_in_order(&client.answers(1)[&9].tso(), 3..=3);
}

#[test]
fn a_node_without_the_setting_knows_no_calls() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| config.workers = 1);
    node.publish(compact(cluster.leading(1, 3, true)));
    let mut client = Raw::new(&node, &[]);
    client.send(&single(1, pd::TSO, &tso(ID, 1)));
    assert_eq!(client.answers(1)[&1].status(), "404");
}
