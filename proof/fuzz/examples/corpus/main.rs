//! Writes the seeds of the corpus: real encodings for every decoder, and scripts for the targets of
//! the core and the simulator. It writes the same files every time, and keeps the files that the
//! engine has found: `cargo run -p epicepoch-fuzz --example corpus`

mod clock;

use std::fs;
use std::io;
use std::path::Path;

use epicepoch_certs::expiry::not_after;
use epicepoch_certs::rustls::pki_types::CertificateDer;
use epicepoch_certs::{node_name, node_of};
use epicepoch_core::publication::EpochRange;
use epicepoch_core::state::{Command, FORMATS, MembershipChange, MembershipStep, Owner, State};
use epicepoch_storage::Identity;
use epicepoch_wire::backup::Backup;
use epicepoch_wire::bootstrap::{Claim, Empty, Genesis, Member};
use epicepoch_wire::confirm::{Confirm, ConfirmReply};
use epicepoch_wire::frame::{FrameKind, write_frame};
use epicepoch_wire::gossip::{Ping, Pong};
use epicepoch_wire::grpc::message;
use epicepoch_wire::grpc::oracle::{TimestampRequest, TimestampResponse};
use epicepoch_wire::grpc::pd::{TsoRequest, TsoResponse};
use epicepoch_wire::http2::frame::{self, flag, kind, setting};
use epicepoch_wire::peer_hello::{LinkKind, PeerHello, Refusal, RefusalCode, SharedSettings};
use epicepoch_wire::raft_message::{
    Configuration, EntryKind, LogEntry, MessageKind, RaftMessage, Snapshot,
};
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::voter_status::Zone;
use epicepoch_wire::{
    BootId, ClusterId, Epoch, EpochIndex, Guarantee, HistoryId, LogIndex, Mode, NodeId, ProvedBy,
    Round, StoreId, StorePosition, Term, Timestamp, TimestampFormat, TimestampRange, WorkerId,
};
use fastrand::Rng;
use serde_json::{Value, json};

fn main() -> io::Result<()> {
    frames_and_payloads()?;
    raft_messages()?;
    native()?;
    records()?;
    timestamps()?;
    texts()?;
    http2()?;
    grpc()?;
    certificates()?;
    links()?;
    clock::sources()?;
    scripts()
}

fn put(target: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    fs::create_dir_all(&directory)?;
    fs::write(directory.join(name), bytes)
}

fn member(node: u64) -> Member {
    Member {
        node: NodeId(node),
        store: StoreId(u128::from(node) << 64 | 7),
        raft_addr: format!("node{node}.example:60001"),
        client_addr: format!("[::{node}]:8080"),
    }
}

fn genesis() -> Genesis {
    let members = (1..=3).map(member).collect();
    Genesis {
        cluster: ClusterId(0xC1),
        history: HistoryId(1),
        members,
        floor: Epoch(0),
        removed: vec![],
    }
}

/// Writes two corpus files. One has the payload after the byte that selects its kind. The other has
/// frames with the payload.
fn payload(kind: FrameKind, choice: u8, name: &str, bytes: &[u8]) -> io::Result<()> {
    put("payload", name, &[&[choice], bytes].concat())?;
    let mut frame = Vec::new();
    write_frame(&mut frame, kind, ClusterId(0xC1), NodeId(1), |out| out.extend(bytes));
    // Two whole frames, then the first half of a third one.
    let stream = [&frame[..], &frame, &frame[..frame.len() / 2]].concat();
    put("frame", name, &stream)
}

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

fn frames_and_payloads() -> io::Result<()> {
    let settings = SharedSettings {
        epoch_interval_ms: 100,
        reservation_ms: 1_000,
        clock_offset_max_ms: 500,
        election_timeout_ms: 200,
        max_n: 65_536,
    };
    let links = [LinkKind::Raft, LinkKind::Confirm(WorkerId(3)), LinkKind::Bootstrap];
    for (name, link) in ["hello-raft", "hello-confirm", "hello-bootstrap"].into_iter().zip(links) {
        let hello = PeerHello {
            link,
            to: NodeId(2),
            store: member(1).store,
            position: StorePosition(4_711),
            boot: BootId(77),
            history: HistoryId(1),
            cluster_name: "epicepoch".into(),
            raft_addr: "node1.example:60001".into(),
            client_addr: "[::1]:8080".into(),
            workers: 4,
            settings,
            formats: FORMATS,
            version: "0.1.0".into(),
            reads_intervals: true,
        };
        payload(FrameKind::PeerHello, 0, name, &encoded(|out| hello.encode(out)))?;
    }
    let refusal = Refusal::new(RefusalCode::WrongStore, "another data directory; see DATA_DIR");
    payload(FrameKind::Refused, 1, "refusal", &encoded(|out| refusal.encode(out)))?;
    let (store, boot, worker) = (member(1).store, BootId(77), WorkerId(1));
    let (term, round) = (Term(5), Round(9));
    let confirm = Confirm { store, boot, worker, term, round };
    payload(FrameKind::Confirm, 2, "confirm", &encoded(|out| confirm.encode(out)))?;
    let leader = NodeId(1);
    let reply = ConfirmReply { leader, store, boot, worker, term, round, promise: Term(5) };
    payload(FrameKind::ConfirmReply, 3, "reply", &encoded(|out| reply.encode(out)))?;
    let (sent_ns, wall_ns) = (1 << 40, 1_700_000_000_000_000_000);
    payload(FrameKind::Ping, 4, "ping", &encoded(|out| Ping { sent_ns }.encode(out)))?;
    let mut pong = Pong { sent_ns, wall_ns, position: StorePosition(4_711), interval: None };
    payload(FrameKind::Pong, 5, "pong", &encoded(|out| pong.encode(out)))?;
    pong.interval = Some((wall_ns - 1_000_000, wall_ns + 1_000_000));
    payload(FrameKind::Pong, 5, "pong-interval", &encoded(|out| pong.encode(out)))?;
    let peers = (1..=3).map(|node| (NodeId(node), member(node).raft_addr)).collect();
    let claim = Some(Claim { backup: Some((wall_ns, 7)), floor: Epoch(wall_ns), wall_ns });
    let empty = Empty { store, client_addr: "a:1".into(), bootstrapping: true, peers, claim };
    payload(FrameKind::Empty, 6, "empty", &encoded(|out| empty.encode(out)))?;
    payload(FrameKind::Admitted, 7, "admitted", &encoded(|out| snapshot().encode(out)))
}

/// Writes the golden vectors as two streams, one for each direction.
fn native() -> io::Result<()> {
    let vectors = include_str!("../../../../crates/wire/vectors/native.json");
    let vectors: Value = serde_json::from_str(vectors).expect("JSON");
    for list in ["to_server", "to_client", "read_only", "refused"] {
        let vectors = vectors[list].as_array().expect("a list");
        for end in 0..2_u8 {
            let mut stream = vec![end];
            for vector in vectors {
                let hex = vector["hex"].as_str().expect("text");
                let digits = hex.as_bytes().chunks(2).map(|pair| {
                    let pair = std::str::from_utf8(pair).expect("digits");
                    u8::from_str_radix(pair, 16).expect("digits")
                });
                let bytes: Vec<u8> = digits.collect();
                if list == "refused" {
                    let name = format!("refused-{end}-{}", stream.len() + bytes.len());
                    put("native", &name, &[&[end][..], &bytes].concat())?;
                }
                stream.extend(bytes);
            }
            put("native", &format!("{list}-{end}"), &stream)?;
        }
    }
    Ok(())
}

fn entries() -> Vec<LogEntry> {
    let owner = Owner { term: Term(5), node: NodeId(1), boot: BootId(77) };
    let reserve = Command::Reserve { owner, until: Epoch(1_700_000_001_000_000_000), lease_ms: 0 };
    let entry = |index, kind, data, context| LogEntry {
        kind,
        term: Term(5),
        index: LogIndex(index),
        data,
        context,
    };
    vec![
        entry(11, EntryKind::Normal, vec![], vec![]),
        entry(12, EntryKind::Normal, reserve.encode(), vec![]),
        entry(13, EntryKind::Membership, vec![], change().encode()),
    ]
}

fn change() -> MembershipChange {
    let steps = vec![
        MembershipStep::AddLearner(member(4)),
        MembershipStep::Promote(NodeId(4)),
        MembershipStep::Remove(NodeId(2)),
    ];
    MembershipChange { nonce: 0xFEED, steps }
}

fn state() -> State {
    let mut state = State::new(&genesis());
    let owner = Owner { term: Term(5), node: NodeId(1), boot: BootId(77) };
    let (low, high) = (Epoch(1_700_000_000_000_000_000), Epoch(1_700_000_001_000_000_000));
    state.owner = Some((owner, EpochRange { low, high }));
    state.ceiling = high;
    state.removed.insert(NodeId(9));
    state
}

fn snapshot() -> Snapshot {
    let configuration = Configuration {
        voters: vec![NodeId(1), NodeId(2), NodeId(3)],
        learners: vec![NodeId(4)],
        voters_outgoing: vec![NodeId(1), NodeId(2)],
        learners_next: vec![],
        auto_leave: false,
    };
    Snapshot { index: LogIndex(10), term: Term(4), configuration, data: state().encode() }
}

fn raft_messages() -> io::Result<()> {
    for kind in MessageKind::ALL {
        let message = RaftMessage {
            kind,
            to: NodeId(2),
            term: Term(5),
            log_term: Term(4),
            index: LogIndex(10),
            commit: LogIndex(9),
            commit_term: Term(4),
            reject: kind == MessageKind::AppendResponse,
            reject_hint: LogIndex(8),
            request_snapshot: LogIndex(0),
            context: if kind == MessageKind::RequestVote { vec![1; 16] } else { vec![] },
            entries: if kind == MessageKind::Append { entries() } else { vec![] },
            snapshot: (kind == MessageKind::Snapshot).then(snapshot),
        };
        let name = format!("{kind:?}").to_lowercase();
        put("raft_message", &name, &encoded(|out| message.encode(out)))?;
    }
    Ok(())
}

fn settings() -> ClusterSettings {
    ClusterSettings {
        epoch_interval_ms: 100,
        reservation_ms: 1_000,
        clock_offset_max_ms: 500,
        max_n: 65_536,
        leader_zones: Zone::new("near").into_iter().collect(),
        lease_ms: 0,
        guarantee_default: Guarantee::Quorum,
        timestamp_format: TimestampFormat::Wide,
        mode: Mode::Quorum,
    }
}

fn records() -> io::Result<()> {
    let chosen = |choice: u8, bytes: Vec<u8>| [vec![choice], bytes].concat();
    put("record", "state", &chosen(0, state().encode()))?;
    put("record", "state-empty", &chosen(0, State::new(&genesis()).encode()))?;
    let readdress = Command::Readdress(member(2));
    put("record", "readdress", &chosen(1, readdress.encode()))?;
    put("record", "raise", &chosen(1, Command::Raise(2).encode()))?;
    let set = Command::Settings { nonce: 0xFEED, is_seed: false, settings: settings() };
    put("record", "settings", &chosen(1, set.encode()))?;
    let settings = ClusterSettings { timestamp_format: TimestampFormat::Compact, ..settings() };
    let compact = Command::Settings { nonce: 0xFEED, is_seed: false, settings };
    put("record", "settings-compact", &chosen(1, compact.encode()))?;
    let Some((owner, range)) = state().owner else { unreachable!("the state has an owner") };
    let range = EpochRange { low: Epoch(range.low.0 + 7), ..range };
    let back = Command::GiveBack { owner, range };
    put("record", "give-back", &chosen(1, back.encode()))?;
    let mut newest = State { format: FORMATS.newest, ..state() };
    newest.apply(Term(5), &set);
    put("record", "state-settings", &chosen(0, newest.encode()))?;
    for mode in [Mode::Interval, Mode::Quorum] {
        let settings = ClusterSettings { mode, ..self::settings() };
        newest.apply(Term(5), &Command::Settings { nonce: 1, is_seed: false, settings });
    }
    put("record", "state-closing", &chosen(0, newest.encode()))?;
    let (highest_ns, stopped) = (1_795_000_000_000_000_000, (1..=3).map(NodeId).collect());
    let end = Command::EndIntervals { change: 2, highest_ns, stopped };
    put("record", "end-intervals", &chosen(1, end.encode()))?;
    put("record", "reserve", &chosen(1, entries()[1].data.clone()))?;
    put("record", "change", &chosen(2, change().encode()))?;
    put("record", "entry", &chosen(3, encoded(|out| entries()[2].encode(out))))?;
    put("record", "snapshot", &chosen(4, encoded(|out| snapshot().encode(out))))
}

fn timestamps() -> io::Result<()> {
    let first = Timestamp::new(Epoch(1_700_000_000_000_000_000), EpochIndex(5));
    put("timestamp", "text", first.to_string().as_bytes())?;
    put("timestamp", "text-capitals", first.to_string().to_uppercase().as_bytes())?;
    let range = TimestampRange::new(first, 1_000).expect("a range");
    put("timestamp", "range", &[&range.to_bytes()[..], &7_u64.to_be_bytes()].concat())
}

/// Writes backups, identities and tokens. The target's comment describes the first byte.
fn files() -> io::Result<()> {
    let backup = Backup {
        name: "orders".into(),
        cluster: ClusterId(0xC1),
        history: HistoryId(3),
        index: LogIndex(4711),
        ceiling: Epoch(1_795_000_000_000_000_000),
        taken_ns: 1_794_999_999_000_000_000,
        reservation_ms: 1_000,
        clock_offset_max_ms: 500,
        lease_longest_ms: 0,
        settings: Some(settings()),
        removed: vec![NodeId(4), NodeId(9)],
        members: (1..=3).map(member).collect(),
    };
    let identity = Identity::new(NodeId(2), StoreId(7), "orders \u{e9}");
    let without = Backup { settings: None, ..backup.clone() };
    for (name, which, text) in [
        ("backup", 1, backup.text()),
        ("backup-without-settings", 1, without.text()),
        ("identity", 2, identity.text()),
    ] {
        put("files", name, &[&[which], text.as_bytes()].concat())?;
        // Also write the file without its last line, the checksum. The target adds this line.
        let (body, _) = text.split_at(text.rfind("crc32").expect("a checksum"));
        let unsealed: u8 = 0x80 | if which == 1 { 2 } else { 0 };
        assert_eq!(unsealed % 3, which, "the same kind");
        put("files", &format!("{name}_unsealed"), &[&[unsealed], body.as_bytes()].concat())?;
    }
    put("files", "tokens", b"\0# of the team\n\nold-token-0123456789\r\n  new-token-0123456789\n")
}

fn texts() -> io::Result<()> {
    let max_n = 65_536_u32.to_le_bytes();
    for (name, query) in [
        ("count", "n=16"),
        ("range", "format=range&n=4294967296"),
        ("json", "n=3&format=json"),
        ("twice", "n=1&n=2"),
        ("unknown", "count=1&format=binary"),
    ] {
        put("http_query", name, &[&max_n[..], query.as_bytes()].concat())?;
    }
    for (name, request) in [
        ("plain", &b"GET /timestamp HTTP/1.1\r\nHost: a:8080\r\n\r\n"[..]),
        (
            "many",
            b"GET /timestamp?n=100&format=binary HTTP/1.1\r\nHost: a\r\nUser-Agent: curl/8.5.0\r\n\
            Accept: */*\r\nConnection: Keep-Alive\r\nepicepoch-request-id: 42-abc\r\n\r\nGET /",
        ),
        ("last", b"GET /timestamp?format=range&n=4294967296 HTTP/1.1\r\nconnection:close\r\nhost:\r\n\r\n"),
        ("begun", b"GET /timestamp?n=3 HTTP/1.1\r\nHost: a\r\nCookie: \t"),
        ("body", b"GET /timestamp HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"),
        (
            "smuggled",
            b"GET /timestamp HTTP/1.1\r\nHost: a\r\nX: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        ("folded", b"GET /timestamp HTTP/1.1\r\nHost: a\r\nX: y\r\n z: a\r\n\r\n"),
        ("latest", b"GET /latest?format=binary HTTP/1.1\r\nHost: a\r\n\r\n"),
    ] {
        put("http_request", name, &[&max_n[..], request].concat())?;
    }
    for (name, frames) in [
        ("pings", &[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8][..]),
        ("empty_data", &[0, 0, 0, 0, 0, 0, 0, 0, 1]),
        ("rapid_reset", &[0, 0, 1, 1, 5, 0, 0, 0, 1, 0x82, 0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 8]),
        ("long", &[0, 1, 0, 0, 0, 0, 0, 0, 1]),
    ] {
        put("http2_frames", name, &[&[6], frames].concat())?;
    }
    for (name, stream) in [
        ("settings", &[9, 0, 4, 4, 1, 0x40, 0x64, 6, 0x80, 0, 0x10, 0][..]),
        ("long", &[0, 0, 0x21, 0x50, 1]),
        ("grease", &[2, 0, 0x40, 0x5f, 3, 1, 2, 3, 7, 1, 0]),
        ("other", &[0, 2, 0x3f, 0xe1, 0x1f]),
    ] {
        put("http3_control", name, stream)?;
    }
    files()?;
    let deployed = include_str!("../../../../deploy/epicepoch.toml");
    put("settings", "deployed", deployed.as_bytes())?;
    let least = "node_id = 1\nraft_addr = 'a:1'\nsingle = true\nworkers = 2\nmax_n = 10\n";
    put("settings", "single", least.as_bytes())?;
    let three = "node_id = 1\nraft_addr = 'a:1'\nhttp_port = 8080\nelection_timeout_ms = 200\n\
        heartbeat_ms = 40\nreservation_ms = 1000\ncluster = 'c'\n[peers]\n1 = 'a:1'\n2 = 'b:2'\n";
    put("settings", "three", three.as_bytes())?;
    let members = br#"{"leader":{"nodeID":1,"addr":"a:1"},"members":[{"nodeID":1,"addr":"a:1"},
        {"nodeID":2,"addr":"[::1]:2","more":[true,null,1.5e3]}],"cluster":"x"}"#;
    put("members", "three", members)?;
    put("members", "nobody", br#"{"leader":null,"members":[]}"#)?;
    let answer =
        b"HTTP/1.1 200 OK\r\ncontent-length: 16\r\nepicepoch-cluster: c\r\n\r\n0123456789abcdef\
        HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\nHTTP/1.1";
    put("http_answer", "two", answer)?;
    let refused = b"HTTP/1.1 409 Conflict\r\nepicepoch-leader: a:1\r\ncontent-length: 3\r\n\r\na:1";
    put("http_answer", "refused", refused)?;
    // The first byte cuts the bytes into parts. If it is odd, the connection ends behind them.
    for (name, first, answer) in [
        (
            "node",
            20,
            &b"HTTP/1.1 200 OK\r\nepicepoch-cluster: 0abc.01\r\nepicepoch-proof: round\r\n\
                content-length: 16\r\ndate: Tue, 14 Nov 2023 22:13:20 GMT\r\n\r\n0123456789abcdefHTTP"[..],
        ),
        (
            "refusal",
            2,
            b"HTTP/1.1 409 Conflict\r\nEpicEpoch-Error: NOT_LEADER\r\nepicepoch-leader:\ta:1 \r\n\
                Connection: x, close\r\nContent-Length: 3\r\n\r\na:1",
        ),
        (
            "chunks",
            6,
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0a \t;x=\"y\"\r\n\
                0123456789\r\n0\r\ncontent-length: 1\r\n\r\n0\r\n\r\n",
        ),
        (
            "interim",
            0,
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 \r\nlink: a\r\n\r\nHTTP/1.1 204\r\n\r\nHTTP",
        ),
        ("old", 9, b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 02\r\n\r\nab"),
        ("ended", 3, b"HTTP/1.1 200 OK\r\nvia: a\r\nvia: b\r\nx: \xff\r\n\r\nto the end"),
        ("cut", 1, b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"),
        ("folded", 4, b"HTTP/1.1 200 OK\r\nx: y\r\n content-length: 5\r\n\r\n"),
        ("two_lengths", 4, b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef"),
        (
            "two_ends",
            4,
            b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
    ] {
        put("client_answer", name, &[&[first], answer].concat())?;
    }
    Ok(())
}

/// Writes a stream of HTTP/2 answers: a plain one, one with Huffman-coded literals, and one in
/// parts. At its end is a GOAWAY. Four requests are open.
fn http2() -> io::Result<()> {
    const WHOLE: u8 = flag::END_HEADERS;
    const END: u8 = flag::END_STREAM;
    let mut bytes = vec![3 | 16 << 3];
    frame::put_settings(&mut bytes, &[(setting::MAX_CONCURRENT_STREAMS, 256)]);
    frame::put(&mut bytes, kind::SETTINGS, flag::ACK, 0, &[]);
    // Status 200, `content-type: application/octet-stream`, `content-length: 16`. They are stored
    // in the compression table.
    let head = b"\x88\x5f\x18application/octet-stream\x5c\x0216";
    frame::put(&mut bytes, kind::HEADERS, WHOLE, 1, head);
    frame::put(&mut bytes, kind::DATA, END, 1, b"0123456789abcdef");
    frame::put(&mut bytes, kind::HEADERS, WHOLE, 5, &[0x88, 0xbf, 0xbe]);
    frame::put(&mut bytes, kind::DATA, flag::PADDED, 5, b"\x0201234567\0\0");
    frame::put(&mut bytes, kind::DATA, END, 5, b"89abcdef");
    frame::put(&mut bytes, kind::PING, 0, 0, b"12345678");
    put("http2_answer", "plain", &bytes)?;
    let refusal = b"\x08\x03409\x40\x10epicepoch-leader\x03a:1";
    frame::put(&mut bytes, kind::HEADERS, 0, 3, &refusal[..9]);
    frame::put(&mut bytes, kind::CONTINUATION, WHOLE, 3, &refusal[9..]);
    frame::put(&mut bytes, kind::HEADERS, WHOLE | END, 3, b"\x00\x83\x1c\x64\x5f\x01x");
    frame::put(&mut bytes, kind::RST_STREAM, 0, 7, &[0, 0, 0, 7]);
    frame::put(&mut bytes, kind::WINDOW_UPDATE, 0, 0, &[0, 1, 0, 0]);
    frame::put(&mut bytes, kind::GOAWAY, 0, 0, &[0, 0, 0, 9, 0, 0, 0, 0]);
    put("http2_answer", "goaway", &bytes)?;
    http2_requests()
}

/// Writes bodies of calls: requests and answers of PD, a health check, and messages that must be
/// refused.
fn grpc() -> io::Result<()> {
    let mut bytes = Vec::new();
    for (cluster_id, count, is_global) in [(7, 1, true), (u64::MAX, 262_144, true), (0, 0, false)] {
        let request = TsoRequest { cluster_id, count, is_global };
        message::put(&mut bytes, |out| request.encode(out));
    }
    put("grpc", "requests", &bytes)?;
    bytes.clear();
    for (count, physical, logical) in [(1, 1_700_000_000_000, 0), (u32::MAX, u64::MAX, 262_143)] {
        let answer = TsoResponse { cluster_id: 7, count, physical, logical };
        message::put(&mut bytes, |out| answer.encode(out));
    }
    put("grpc", "answers", &bytes)?;
    put("grpc", "health", b"\0\0\0\0\x09\x0a\x07pdpb.PD\x01\0\0\0\0\x02\0\0\0\0")?;
    bytes.clear();
    for (count, guarantee) in [(1, None), (u64::MAX, Some(Guarantee::Lease))] {
        let request = TimestampRequest { count, is_compact: count == 1, guarantee, cluster: "c.1" };
        message::put(&mut bytes, |out| request.encode(out));
    }
    let first = Timestamp::new(Epoch(1_700_000_000_000_000_000), EpochIndex(7));
    let (compact, proved_by) = (first.to_compact(), ProvedBy::Lease);
    let answer = TimestampResponse { first, count: 3, compact, proved_by, forwarded_by: Some(2) };
    message::put(&mut bytes, |out| answer.encode(out));
    put("grpc", "oracle", &bytes)?;
    let symbol = b"\0\0\0\0\x1a\x22\x18epicepoch.v1.Oracle.Other\0\0\0\0\x03\x3a\x01*";
    put("grpc", "reflection", symbol)?;
    // Fields of each kind, unknown ones, and a header in two parts.
    let fields = b"\x0a\x02\x08\x01\x7912345678\x7d1234\x0a\x02\x10\x05\x10\xff\x01\x0b";
    put("grpc", "fields", fields)?;
    put("grpc", "too_long", b"\0\0\0\x10\x01\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02")
}

/// Writes a stream of HTTP/2 requests: the common one, the same one with fields from the table, and
/// one with a request id. Others have bodies, come in parts, or are cancelled. The stream also has
/// WINDOW_UPDATE and SETTINGS frames.
fn http2_requests() -> io::Result<()> {
    const WHOLE: u8 = flag::END_HEADERS | flag::END_STREAM;
    let mut bytes = vec![2 | 6 << 2];
    frame::put_settings(&mut bytes, &[(setting::INITIAL_WINDOW_SIZE, 20)]);
    let fast_path = b"\x82\x86\x44\x0e/timestamp?n=2\x41\x01a";
    frame::put(&mut bytes, kind::HEADERS, WHOLE, 1, fast_path);
    frame::put(&mut bytes, kind::HEADERS, WHOLE, 3, b"\x82\x86\xbf\xbe");
    frame::put(&mut bytes, kind::HEADERS, WHOLE, 5, b"\x82\x86\xbf\xbe");
    let told = b"\x82\x86\xbf\xbe\0\x14epicepoch-request-id\x0242";
    frame::put(&mut bytes, kind::HEADERS, WHOLE, 7, told);
    put("http2_request", "fast_path", &bytes)?;
    // `/timestamp` and `a:8080` in the Huffman code, with a dependency and padding.
    let coded = b"\x02\0\0\0\x05\x10\x83\x86\x04\x88\x62\x7b\x6b\x69\x1d\x48\x5a\xdf\0\0";
    let flags = flag::END_HEADERS | flag::PADDED | flag::PRIORITY;
    frame::put(&mut bytes, kind::HEADERS, flags, 9, coded);
    frame::put(&mut bytes, kind::DATA, flag::PADDED, 9, b"\x02body\0\0");
    frame::put(&mut bytes, kind::DATA, flag::END_STREAM, 9, b"body");
    frame::put(&mut bytes, kind::HEADERS, 0, 11, b"\x83\x86\xbf\x0f\x0d");
    frame::put(&mut bytes, kind::CONTINUATION, flag::END_HEADERS, 11, b"\x019");
    frame::put(&mut bytes, kind::DATA, 0, 11, b"012");
    frame::put(&mut bytes, kind::RST_STREAM, 0, 11, &[0, 0, 0, 8]);
    frame::put(&mut bytes, kind::WINDOW_UPDATE, 0, 9, &[0, 0, 1, 0]);
    frame::put_settings(&mut bytes, &[(setting::HEADER_TABLE_SIZE, 0)]);
    frame::put(&mut bytes, kind::PRIORITY, 0, 13, &[0, 0, 0, 1, 16]);
    frame::put(&mut bytes, kind::PING, 0, 0, b"12345678");
    frame::put(&mut bytes, kind::HEADERS, WHOLE, 13, b"\x3f\x81\x1f\x82\x86\x84\x40\x01x\x01y");
    frame::put(&mut bytes, kind::GOAWAY, 0, 0, &[0; 8]);
    put("http2_request", "others", &bytes)?;
    // Write a head that exceeds its limit because it repeats one entry. Then write a head that is
    // not a request.
    let mut long = b"\x82\x86\x84\x40\x01x\x7f\x01".to_vec();
    long.resize(long.len() + 0x80, b'v');
    long.resize(long.len() + 0x80, 0xbe);
    frame::put(&mut bytes, kind::HEADERS, WHOLE, 15, &long);
    frame::put(&mut bytes, kind::HEADERS, WHOLE, 17, b"\x82\x86");
    frame::put(&mut bytes, kind::DATA, 0, 17, b"x");
    frame::put(&mut bytes, kind::HEADERS, WHOLE, 17, b"\x80");
    put("http2_request", "malformed", &bytes)
}

/// Encodes a value of ASN.1 in DER.
fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let len = u8::try_from(content.len()).expect("short");
    let head = if len < 0x80 { vec![tag, len] } else { vec![tag, 0x81, len] };
    [head, content].concat()
}

/// Writes unsigned certificates of a node: one for each of the two forms of time, and one of X.509
/// version 1.
fn certificates() -> io::Result<()> {
    const SEQUENCE: u8 = 0x30;
    const OCTETS: u8 = 4;
    const OBJECT: u8 = 6;
    const BITS: u8 = 3;
    let ecdsa = der(SEQUENCE, &[&der(OBJECT, &[&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2]])]);
    let p256 = [
        der(OBJECT, &[&[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1]]),
        der(OBJECT, &[&[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7]]),
    ]
    .concat();
    let key = der(SEQUENCE, &[&der(SEQUENCE, &[&p256]), &der(BITS, &[&[0, 4], &[7; 64]])]);
    let name = node_name("fuzz", NodeId(3));
    let names = der(OCTETS, &[&der(SEQUENCE, &[&der(0x82, &[name.as_bytes()])])]);
    let extension = der(SEQUENCE, &[&der(OBJECT, &[&[0x55, 0x1d, 0x11]]), &names]);
    let extensions = der(0xa3, &[&der(SEQUENCE, &[&extension])]);
    let nobody = der(SEQUENCE, &[]);
    let from = der(0x17, &[b"260101000000Z"]);
    for (file, until, is_of_a_node) in [
        ("node", der(0x17, &[b"491231235959Z"]), true),
        ("long", der(0x18, &[b"20991231235959Z"]), true),
        ("first-version", der(0x17, &[b"700101000000Z"]), false),
    ] {
        let validity = der(SEQUENCE, &[&from, &until]);
        let number = der(2, &[&[1]]);
        let version = der(0xa0, &[&der(2, &[&[2]])]);
        let mut fields = vec![&number, &ecdsa, &nobody, &validity, &nobody, &key];
        if is_of_a_node {
            fields.insert(0, &version);
            fields.push(&extensions);
        }
        let body = long_sequence(&fields.into_iter().flatten().copied().collect::<Vec<u8>>());
        let certificate = long_sequence(&[body, ecdsa.clone(), der(BITS, &[&[0, 1]])].concat());
        assert!(not_after(&certificate).is_some(), "it has an expiry");
        let node = node_of(&CertificateDer::from(&certificate[..]), "fuzz");
        assert_eq!(node, is_of_a_node.then_some(NodeId(3)));
        put("certificate", file, &certificate)?;
    }
    // The serial number is replaced by a field whose length exceeds memory.
    let endless = [&[2, 0x88][..], &u64::MAX.to_be_bytes()].concat();
    let certificate = der(SEQUENCE, &[&der(SEQUENCE, &[&endless]), &ecdsa, &der(BITS, &[&[0, 1]])]);
    assert_eq!(not_after(&certificate), None, "it has no end");
    put("certificate", "endless", &certificate)
}

/// Encodes a sequence. Its length takes two bytes if one byte is too small for it.
fn long_sequence(content: &[u8]) -> Vec<u8> {
    if content.len() < 0x100 {
        return der(0x30, &[content]);
    }
    let [high, low] = (content.len() as u16).to_be_bytes();
    [&[0x30, 0x82, high, low], content].concat()
}

/// Writes answers of nodes about their links: near links, far links with a reservation that is too
/// short, an answer of an earlier version, one with numbers out of range, and a silent node.
fn links() -> io::Result<()> {
    let said = |election: u64, trips: &[(u64, f64)]| {
        let trip = |(to, ms): &(u64, f64)| json!({"nodeID": to, "usualMs": ms, "maxMs": ms * 2.0});
        json!({
            "electionTimeoutMs": election, "heartbeatMs": election / 5, "reservationMs": 1_000,
            "requestTimeoutMs": 500, "clockOffsetMaxMs": 100, "voters": [1, 2, 3],
            "roundTrips": trips.iter().map(trip).collect::<Vec<_>>(),
        })
    };
    let near = [(1, 0.25), (2, 0.3), (3, 0.5)];
    let others = |own: u64, all: [(u64, f64); 3]| all.into_iter().filter(move |it| it.0 != own);
    let of = |own, all| said(200, &others(own, all).collect::<Vec<_>>());
    let put = |name: &str, answers: Value| put("tune", name, answers.to_string().as_bytes());
    put("near", json!([of(1, near), of(2, near), of(3, near)]))?;
    let far = near.map(|(node, _)| (node, 70.5));
    put("far", json!([of(1, far), said(1_800, &[(1, 70.5), (3, 1_000.0)]), of(3, far)]))?;
    let earlier = json!({
        "electionTimeoutMs": 200, "heartbeatMs": 40, "reservationMs": 1_000,
        "roundTrips": [{"nodeID": 1, "usualMs": 1e300, "maxMs": 2e15}],
    });
    let endless = said(u64::MAX, &[(1, -1.0)]);
    put("endless", json!([said(u64::MAX, &near[1..2]), of(2, near)]))?;
    put("nonsense", json!([of(1, near), earlier, {"status": "followed"}, null, endless]))
}

/// Writes random events for the engine to start from.
fn scripts() -> io::Result<()> {
    let mut random = Rng::with_seed(1);
    put("storage", "sound", &[4])?;
    for target in ["storage", "replica", "cluster"] {
        put(target, "nothing", &[0])?;
        for script in 0..SCRIPTS {
            let length = random.usize(20..SCRIPT_LEN_MAX);
            let bytes: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
            put(target, &format!("random-{script}"), &bytes)?;
        }
    }
    // An election comes first, so that the other events meet a leader.
    for script in 0..SCRIPTS {
        let mut bytes = vec![3, 0, 5, 0, 0, 6, 0, 0, 0, 6, 0, 0, 1, 12, 1, 1, 40, 40, 40];
        bytes.extend((0..random.usize(20..SCRIPT_LEN_MAX)).map(|_| random.u8(..)));
        put("replica", &format!("leader-{script}"), &bytes)?;
    }
    // The same election, followed by each kind of event whose code is in the target's list `WIDER`.
    for script in 0..SCRIPTS {
        let mut bytes = vec![3, 0, 5, 0, 0, 6, 0, 0, 0, 6, 0, 0, 1, 12, 1, 1, 40, 40, 40];
        for code in [215, 216, 217, 218, 219, 235, 236, 237, 238, 239] {
            bytes.push(code);
            bytes.extend((0..random.usize(2..8)).map(|_| random.u8(..)));
            bytes.extend([3, 6, 0, 0, 0, 3]);
        }
        put("replica", &format!("wider-{script}"), &bytes)?;
    }
    Ok(())
}

const SCRIPTS: u64 = 4;
const SCRIPT_LEN_MAX: usize = 200;
