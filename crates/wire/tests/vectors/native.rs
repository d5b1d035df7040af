//! Frames of the native protocol from both ends, and the bytes that each end must refuse.

use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::client_hello::{MAGIC, MemberAddr};
use epicepoch_wire::native::frame::{Header, KIND_ERROR, KIND_HELLO, KIND_WELCOME};
use epicepoch_wire::native::message::{goodbye, ping, pong};
use epicepoch_wire::native::{
    ClientHello, ClientHelloError, ErrorFrame, FEATURE_LATEST, LeaderNotice, Request,
    TO_CLIENT_TAIL_LEN_MAX, TO_SERVER_TAIL_LEN_MAX, ToClient, ToServer, Token, VERSION, Welcome,
    split,
};
use epicepoch_wire::{
    ClusterId, Epoch, EpochIndex, Guarantee, HistoryId, NodeId, ProvedBy, Timestamp,
    TimestampFormat,
};
use serde_json::{Value, json};

use super::{hex, hold, number, unhex};

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes);
    bytes
}

fn header(kind: u8, flags: u8, code: u16, argument: u32, id: u64) -> Vec<u8> {
    Header { kind, flags, code, argument, id }.to_bytes().to_vec()
}

fn hello_frame(kind: u8, code: u16, fields: &[u8]) -> Vec<u8> {
    let mut bytes = header(kind, VERSION, code, fields.len() as u32, MAGIC);
    bytes.extend_from_slice(fields);
    bytes
}

fn cluster() -> (ClusterId, HistoryId) {
    (ClusterId(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff), HistoryId(9))
}

fn hello() -> ClientHello {
    ClientHello {
        cluster_name: "epicepoch".into(),
        cluster: Some(cluster()),
        agent: "example/1.0".into(),
        ..ClientHello::default()
    }
}

fn welcome() -> Welcome {
    let member = |node, addr: &str| MemberAddr { node: NodeId(node), addr: addr.into() };
    Welcome {
        version: VERSION,
        features: 0,
        cluster_name: "epicepoch".into(),
        cluster: Some(cluster()),
        node: NodeId(1),
        leader: Some(member(2, "b.example:8080")),
        in_flight_max: 1024,
        idle_ms: 120_000,
        count_max: 1 << 32,
        members: vec![
            member(1, "a.example:8080"),
            member(2, "b.example:8080"),
            member(3, "[2001:db8::3]:8080"),
        ],
    }
}

/// Returns the welcome of a node that has not joined its cluster. It has only the required fields.
fn welcome_of_a_stranger() -> Welcome {
    Welcome {
        version: VERSION,
        node: NodeId(7),
        in_flight_max: 1,
        idle_ms: 1,
        count_max: 1,
        ..Welcome::default()
    }
}

fn to_server() -> Vec<(&'static str, Vec<u8>)> {
    let request = |id, count| Request::new(id, count).unwrap().to_bytes().to_vec();
    vec![
        ("a hello that says only its version", written(|out| ClientHello::default().encode(out))),
        ("a hello with every field", written(|out| hello().encode(out))),
        (
            "a hello that offers the feature of the latest timestamp",
            written(|out| ClientHello { features: FEATURE_LATEST, ..hello() }.encode(out)),
        ),
        (
            "a hello with a token",
            written(|out| {
                let token = Token::new("example-token-0123456789");
                ClientHello { token, ..hello() }.encode(out);
            }),
        ),
        (
            "a hello that asks for a quorum",
            written(|out| {
                let guarantee = Some(Guarantee::Quorum);
                ClientHello { guarantee, ..hello() }.encode(out);
            }),
        ),
        (
            "a hello that accepts a lease",
            written(|out| {
                let guarantee = Some(Guarantee::Lease);
                ClientHello { guarantee, ..hello() }.encode(out);
            }),
        ),
        (
            "a hello that needs compact timestamps",
            written(|out| {
                let timestamp_format = Some(TimestampFormat::Compact);
                ClientHello { timestamp_format, ..hello() }.encode(out);
            }),
        ),
        ("a request for one timestamp", request(0, 1)),
        ("a request for 1000", request(1, 1000)),
        ("a request for 2^32, the most there is", request(u64::MAX, 1 << 32)),
        ("a request for the latest timestamp", Request::latest(2).to_bytes().to_vec()),
        ("a ping", ping(42).to_vec()),
        ("a pong", pong(43).to_vec()),
    ]
}

fn to_client() -> Vec<(&'static str, Vec<u8>)> {
    let first = Timestamp::new(Epoch(1_700_000_000_123_456_789), EpochIndex(7));
    let answer = |id, count, first| Request::new(id, count).unwrap().answer(first).to_vec();
    let last = Timestamp::new(Epoch(5), EpochIndex(u64::MAX));
    let error = |code: ErrorCode, closes, id, text: &str| {
        written(|out| ErrorFrame { code: code as u16, closes, id, text }.encode(out))
    };
    let leader =
        |node, addr: &str| written(|out| LeaderNotice { node: NodeId(node), addr }.encode(out));
    vec![
        ("a welcome with every field", written(|out| welcome().encode(out))),
        (
            "a welcome with the feature of the latest timestamp",
            written(|out| Welcome { features: FEATURE_LATEST, ..welcome() }.encode(out)),
        ),
        (
            "a welcome of a node without a cluster",
            written(|out| {
                welcome_of_a_stranger().encode(out);
            }),
        ),
        ("an answer with one timestamp", answer(0, 1, first)),
        ("an answer with 1000", answer(1, 1000, first)),
        ("an answer with 2^32", answer(u64::MAX, 1 << 32, first)),
        ("an answer with the last index there is", answer(2, 1, last)),
        ("an answer with the latest timestamp", Request::latest(3).answer(first).to_vec()),
        (
            "an answer with the latest timestamp, at the last index",
            Request::latest(4).answer(last).to_vec(),
        ),
        (
            "an answer with 1000, proved by a lease",
            Request::new(5, 1000).unwrap().answer_proved_by(first, ProvedBy::Lease).to_vec(),
        ),
        (
            "an answer with the latest timestamp, proved by a lease",
            Request::latest(6).answer_proved_by(first, ProvedBy::Lease).to_vec(),
        ),
        ("not the leader", error(ErrorCode::NotLeader, false, 3, "b.example:8080")),
        ("overloaded", error(ErrorCode::Overloaded, false, 4, "")),
        (
            "another cluster; the connection ends",
            error(ErrorCode::WrongCluster, true, 0, "this is another cluster"),
        ),
        ("a leader", leader(2, "b.example:8080")),
        ("no leader", leader(0, "")),
        ("a ping", ping(44).to_vec()),
        ("a pong", pong(42).to_vec()),
        ("a goodbye", goodbye().to_vec()),
    ]
}

/// Returns frames of later versions, which this version reads but never writes. Each has its
/// sender, a description and its bytes.
fn later_versions() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let mut newer = hello_frame(KIND_HELLO, 0x0100, &[0x7f, 0xff, 0, 2, 1, 2]);
    newer[1] = 9;
    let welcome_and = |fields: &[u8]| {
        let mut bytes = written(|out| welcome_of_a_stranger().encode(out));
        bytes.extend_from_slice(fields);
        bytes[7] += fields.len() as u8;
        bytes
    };
    let unknown = [0x7f, 0xff, 0, 1, 5];
    let idle = [0, 8, 0, 4, 0, 0, 0, 1];
    let mut no_idle = welcome_and(&[]);
    let at = no_idle.windows(idle.len()).position(|field| field == idle).unwrap();
    no_idle.drain(at..at + idle.len());
    no_idle[7] -= idle.len() as u8;
    vec![
        ("client", "a hello of a client that speaks versions 1 to 9, with an unknown field", newer),
        ("client", "an unknown small frame", header(0x3f, 1, 2, 3, 4)),
        ("client", "an unknown wide frame", [header(0x7f, 1, 2, 3, 5), vec![9; 16]].concat()),
        ("client", "an unknown variable frame", [header(0xbf, 1, 2, 3, 6), vec![9; 3]].concat()),
        ("client", "a request with an unknown flag", header(0x01, 0x80, 0, 0, 7)),
        ("client", "a request for two latest timestamps", header(0x01, 1, 0, 1, 8)),
        ("client", "a request for the latest timestamp, with a code", header(0x01, 1, 1, 0, 9)),
        ("node", "a welcome with an unknown field", welcome_and(&unknown)),
        (
            "node",
            "a welcome with an unknown field that comes twice",
            welcome_and(&unknown.repeat(2)),
        ),
        ("node", "a welcome without an idle limit", no_idle),
        ("node", "an unknown small frame", header(0x3f, 1, 2, 3, 4)),
        ("node", "an unknown wide frame", [header(0x7f, 1, 2, 3, 5), vec![9; 16]].concat()),
        ("node", "an unknown variable frame", [header(0xbf, 1, 2, 3, 6), vec![9; 3]].concat()),
        ("node", "an error whose number is not known", header(KIND_ERROR, 0, 9999, 0, 8)),
    ]
}

/// Hellos that end the connection because of the format of timestamps that they name.
fn refused_formats() -> [(&'static str, &'static str, Vec<u8>); 2] {
    let unknown = hello_frame(KIND_HELLO, 0x0100, &[0x80, 4, 0, 1, 2]);
    let twice = hello_frame(KIND_HELLO, 0x0100, &[0x80, 4, 0, 1, 1].repeat(2));
    [
        ("client", "a format of timestamps that is not known yet", unknown),
        ("client", "a format of timestamps that comes twice", twice),
    ]
}

/// Bytes that end the connection.
fn refused() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let long = |kind, length: usize| header(kind, 1, 0x0100, length as u32, MAGIC);
    let twice = [0, 2, 0, 1, b'a', 0, 2, 0, 1, b'a'];
    let mut other_magic = hello_frame(KIND_HELLO, 0x0100, &[]);
    other_magic[15] ^= 1;
    let mut versions = hello_frame(KIND_HELLO, 0x0900, &[]);
    versions[1] = 10;
    let mut backwards = hello_frame(KIND_HELLO, 0x0200, &[]);
    backwards[1] = 1;
    let mut of_no_cluster = written(|out| welcome().encode(out));
    let id = cluster().0.0.to_be_bytes();
    let at = of_no_cluster.windows(id.len()).position(|bytes| bytes == id).unwrap();
    of_no_cluster[at..at + id.len()].fill(0);
    let mut answer = header(0x41, 0, 0, 1, 3);
    answer.extend_from_slice(&Timestamp::new(Epoch(1), EpochIndex(u64::MAX)).to_bytes());
    vec![
        ("client", "a kind that has no length", vec![0xc0]),
        ("client", "a hello over its limit", long(KIND_HELLO, TO_SERVER_TAIL_LEN_MAX + 1)),
        ("client", "a hello with another magic", other_magic),
        ("client", "a hello of versions 9 to 10", versions),
        ("client", "a hello of versions 2 to 1", backwards),
        ("client", "a hello of versions 0 to 1", hello_frame(KIND_HELLO, 0, &[])),
        ("client", "a field that is cut off", hello_frame(KIND_HELLO, 0x0100, &[0, 2, 0, 3, b'a'])),
        ("client", "a field that comes twice", hello_frame(KIND_HELLO, 0x0100, &twice)),
        (
            "client",
            "a name that is not UTF-8",
            hello_frame(KIND_HELLO, 0x0100, &[0, 2, 0, 1, 0xff]),
        ),
        (
            "client",
            "a token that comes twice",
            hello_frame(KIND_HELLO, 0x0100, &[0x80, 1, 0, 1, b'a'].repeat(2)),
        ),
        ("client", "an empty token", hello_frame(KIND_HELLO, 0x0100, &[0x80, 1, 0, 0])),
        (
            "client",
            "a token with a blank",
            hello_frame(KIND_HELLO, 0x0100, &[0x80, 1, 0, 3, b'a', b' ', b'b']),
        ),
        (
            "client",
            "a guarantee that is not known yet",
            hello_frame(KIND_HELLO, 0x0100, &[0x80, 2, 0, 1, 2]),
        ),
        (
            "client",
            "a guarantee of two bytes",
            hello_frame(KIND_HELLO, 0x0100, &[0x80, 2, 0, 2, 0, 1]),
        ),
        (
            "client",
            "a guarantee that comes twice",
            hello_frame(KIND_HELLO, 0x0100, &[0x80, 2, 0, 1, 1].repeat(2)),
        ),
        (
            "client",
            "a named oracle, which is not known yet",
            hello_frame(KIND_HELLO, 0x0100, &[0x80, 3, 0, 1, b'a']),
        ),
        (
            "client",
            "an answer, which only nodes send",
            [header(0x41, 0, 0, 0, 1), vec![0; 16]].concat(),
        ),
        ("client", "a goodbye, which only nodes send", header(0x04, 0, 0, 0, 0)),
        ("node", "a request, which only clients send", header(0x01, 0, 0, 0, 1)),
        ("node", "an answer that leaves its epoch", answer),
        (
            "node",
            "an answer with an unknown flag",
            [header(0x41, 0x80, 0, 0, 1), vec![0; 16]].concat(),
        ),
        (
            "node",
            "an answer with two latest timestamps",
            [header(0x41, 1, 0, 1, 1), vec![0; 16]].concat(),
        ),
        (
            "node",
            "an answer with two latest timestamps, proved by a lease",
            [header(0x41, 3, 0, 1, 1), vec![0; 16]].concat(),
        ),
        (
            "node",
            "an answer with the first flag that means nothing",
            [header(0x41, 4, 0, 0, 1), vec![0; 16]].concat(),
        ),
        ("node", "a welcome without a node", hello_frame(KIND_WELCOME, 0, &[])),
        ("node", "a welcome of the cluster 0, which is none", of_no_cluster),
        ("node", "a welcome over its limit", long(KIND_WELCOME, TO_CLIENT_TAIL_LEN_MAX + 1)),
        (
            "node",
            "an error whose text is not UTF-8",
            [header(KIND_ERROR, 0, 1, 1, 1), vec![0xff]].concat(),
        ),
        ("node", "an error with an unknown flag", header(KIND_ERROR, 2, 1, 0, 1)),
        ("node", "a leader without an address", header(0x83, 0, 0, 0, 2)),
    ]
}

fn hello_fields(hello: &ClientHello) -> Value {
    json!({
        "kind": "hello",
        "newest": hello.newest,
        "oldest": hello.oldest,
        "features": number(hello.features),
        "cluster_name": hello.cluster_name,
        "cluster": hello.cluster.map(|(cluster, _)| cluster.to_string()),
        "history": hello.cluster.map(|(_, history)| number(history.0)),
        "agent": hello.agent,
        "token": hello.token.as_ref().map(Token::reveal),
        "guarantee": hello.guarantee.map(Guarantee::name),
        "timestamp_format": hello.timestamp_format.map(TimestampFormat::name),
    })
}

fn welcome_fields(welcome: &Welcome) -> Value {
    let member = |member: &MemberAddr| json!({"node": number(member.node.0), "addr": member.addr});
    json!({
        "kind": "welcome",
        "version": welcome.version,
        "features": number(welcome.features),
        "cluster_name": welcome.cluster_name,
        "cluster": welcome.cluster.map(|(cluster, _)| cluster.to_string()),
        "history": welcome.cluster.map(|(_, history)| number(history.0)),
        "node": number(welcome.node.0),
        "leader": welcome.leader.as_ref().map(member),
        "in_flight_max": welcome.in_flight_max,
        "idle_ms": welcome.idle_ms,
        "count_max": number(welcome.count_max),
        "members": welcome.members.iter().map(member).collect::<Vec<_>>(),
    })
}

/// Reads bytes from a client as a node does: returns their meaning, or why the connection ends.
fn read_by_node(bytes: &[u8]) -> Result<Value, ClientHelloError> {
    let frame = split(bytes, TO_SERVER_TAIL_LEN_MAX)?.expect("a whole frame");
    assert_eq!(frame.len(), bytes.len());
    Ok(match ToServer::decode(&frame)? {
        ToServer::ClientHello(hello) => hello_fields(&hello),
        ToServer::Request(request) => {
            assert_eq!(Request::from_bytes(bytes.first_chunk().unwrap()), Some(request));
            if request.count() == 0 {
                json!({"kind": "latest", "id": number(request.id)})
            } else {
                json!({"kind": "request", "id": number(request.id), "count": number(request.count())})
            }
        }
        ToServer::Interval(_) => panic!("a vector of interval mode"),
        ToServer::Ping(id) => json!({"kind": "ping", "id": number(id)}),
        ToServer::Pong(id) => json!({"kind": "pong", "id": number(id)}),
        ToServer::Unknown { id } => json!({"kind": "unknown", "id": number(id)}),
    })
}

/// Reads bytes from a node as a client does: returns their meaning, or why the connection ends.
fn read_by_client(bytes: &[u8]) -> Result<Value, ClientHelloError> {
    let frame = split(bytes, TO_CLIENT_TAIL_LEN_MAX)?.expect("a whole frame");
    assert_eq!(frame.len(), bytes.len());
    Ok(match ToClient::decode(&frame)? {
        ToClient::Welcome(welcome) => welcome_fields(&welcome),
        ToClient::Answer { id, range, is_latest: true, proved_by } => json!({
            "kind": "latest_answer",
            "id": number(id),
            "latest": range.first().to_string(),
            "proof": proved_by.name(),
        }),
        ToClient::Answer { id, range, is_latest: false, proved_by } => json!({
            "kind": "answer",
            "id": number(id),
            "first": range.first().to_string(),
            "count": number(range.count()),
            "proof": proved_by.name(),
        }),
        ToClient::Error(error) => json!({
            "kind": "error",
            "id": number(error.id),
            "code": error.code,
            "name": error.error_code().map(ErrorCode::name),
            "closes": error.closes,
            "text": error.text,
        }),
        ToClient::Leader(leader) => {
            json!({"kind": "leader", "node": number(leader.node.0), "addr": leader.addr})
        }
        ToClient::Ping(id) => json!({"kind": "ping", "id": number(id)}),
        ToClient::Pong(id) => json!({"kind": "pong", "id": number(id)}),
        ToClient::Goodbye => json!({"kind": "goodbye"}),
        ToClient::Unknown => json!({"kind": "unknown"}),
    })
}

fn read(from: &str, bytes: &[u8]) -> Result<Value, ClientHelloError> {
    if from == "client" { read_by_node(bytes) } else { read_by_client(bytes) }
}

fn entries(from: &str, frames: Vec<(&'static str, Vec<u8>)>) -> Vec<Value> {
    let entry = |(name, bytes): (&str, Vec<u8>)| {
        let means = read(from, &bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        json!({"name": name, "hex": hex(&bytes), "means": means})
    };
    frames.into_iter().map(entry).collect()
}

#[test]
fn frames_are_what_the_vectors_say() {
    let read_only = later_versions().into_iter().map(|(from, name, bytes)| {
        let means = read(from, &bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        json!({"name": name, "from": from, "hex": hex(&bytes), "means": means})
    });
    let refused = refused().into_iter().chain(refused_formats());
    let refused = refused.map(|(from, name, bytes)| {
        let why = read(from, &bytes).expect_err(name).to_string();
        json!({"name": name, "from": from, "hex": hex(&bytes), "why": why})
    });
    let made = json!({
        "about": "Frames of the native protocol, version 1. to_server and to_client must be read \
                  as `means` and written as `hex`; read_only must be read as `means`; refused must \
                  end the connection (`why` is for people). 64-bit numbers are texts.",
        "to_server": entries("client", to_server()),
        "to_client": entries("node", to_client()),
        "read_only": read_only.collect::<Vec<_>>(),
        "refused": refused.collect::<Vec<_>>(),
    });
    let stored = hold("native", &made);
    for (list, from) in [("to_server", "client"), ("to_client", "node")] {
        for entry in stored[list].as_array().unwrap() {
            let bytes = unhex(entry["hex"].as_str().unwrap());
            assert_eq!(read(from, &bytes).as_ref(), Ok(&entry["means"]));
            assert_eq!(hex(&rewritten(from, &bytes)), entry["hex"], "{}", entry["name"]);
        }
    }
}

/// Decodes a frame from a client or a node, and encodes it again.
fn rewritten(from: &str, bytes: &[u8]) -> Vec<u8> {
    let frame = split(bytes, TO_CLIENT_TAIL_LEN_MAX).unwrap().unwrap();
    if from == "client" {
        return match ToServer::decode(&frame).unwrap() {
            ToServer::ClientHello(hello) => written(|out| hello.encode(out)),
            ToServer::Request(request) => request.to_bytes().to_vec(),
            ToServer::Interval(request) => request.to_bytes().to_vec(),
            ToServer::Ping(id) => ping(id).to_vec(),
            ToServer::Pong(id) => pong(id).to_vec(),
            ToServer::Unknown { .. } => panic!("this version writes no unknown frames"),
        };
    }
    match ToClient::decode(&frame).unwrap() {
        ToClient::Welcome(welcome) => written(|out| welcome.encode(out)),
        ToClient::Answer { id, range, is_latest, proved_by } => {
            let request = Request::new(id, range.count()).unwrap();
            let request = if is_latest { Request::latest(id) } else { request };
            request.answer_proved_by(range.first(), proved_by).to_vec()
        }
        ToClient::Error(error) => written(|out| error.encode(out)),
        ToClient::Leader(leader) => written(|out| leader.encode(out)),
        ToClient::Ping(id) => ping(id).to_vec(),
        ToClient::Pong(id) => pong(id).to_vec(),
        ToClient::Goodbye => goodbye().to_vec(),
        ToClient::Unknown => panic!("this version writes no unknown frames"),
    }
}
