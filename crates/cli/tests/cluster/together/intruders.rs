//! Intruders connect to the peer port. They send garbage, incomplete frames or other protocols, or
//! are nodes of another cluster or version. The cluster refuses them and still serves.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use epicepoch_wire::frame::{
    FrameKind, HEADER_LEN, VERSION, split_frame, write_frame, write_frame_of,
};
use epicepoch_wire::peer_hello::{
    Formats, LinkKind, PeerHello, Refusal, RefusalCode, SharedSettings,
};
use epicepoch_wire::{BootId, ClusterId, HistoryId, NodeId, StoreId, StorePosition};

use crate::support::process::resident_bytes;
use crate::support::{
    Campaigns, Cluster, Disturbed, Node, WAIT_MAX, Watch, holds_for, let_pass, say, undisturbed,
    wait_until,
};

/// After it has received garbage, a node may use at most this much more memory than before, in
/// bytes.
const GROWTH_MAX: u64 = 64 << 20;
/// A node of another cluster is watched for this long. Several elections and new connections fit
/// into this time.
const STRANGER: Duration = Duration::from_secs(2);
/// How a member refuses a node of the cluster "other", as a line of the log has it.
const ANOTHER_CLUSTER: &str = r#"belongs to the cluster named \"epicepoch\", not \"other\""#;

/// Sends bytes and closes the connection. The node may close it first.
fn throw(addr: SocketAddr, bytes: &[u8]) {
    let mut stream = TcpStream::connect(addr).expect("the peer port accepts");
    let limit = Some(Duration::from_millis(50));
    stream.set_write_timeout(limit).expect("a timeout can be set");
    stream.set_read_timeout(limit).expect("a timeout can be set");
    // The node may close the connection because of the garbage, so the write may fail.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read(&mut [0; 64]);
}

#[test]
fn garbage_on_the_peer_port_changes_no_leader_and_uses_no_memory() {
    undisturbed(throw_garbage);
}

fn throw_garbage() -> Result<(), Disturbed> {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let campaigns = Campaigns::so_far(&cluster);
    let before = (cluster.wait_for_leader(), term(&cluster));
    let sizes: Vec<u64> = cluster.nodes.iter().map(|node| resident_bytes(node.pid())).collect();
    let mut random = fastrand::Rng::with_seed(7);
    for node in &cluster.nodes {
        let addr = node.raft_addr();
        for len in [0, 1, 7, 8, 15, 16, 31, 32, 64, 100, 1000, 100_000] {
            for _ in 0..3 {
                let bytes: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
                throw(addr, &bytes);
            }
            throw(addr, &vec![0; len]);
            // All bytes are 0xff, so every field of a frame has its largest value, even the length.
            throw(addr, &vec![0xff; len]);
        }
        throw(addr, b"GET /timestamp HTTP/1.1\r\nhost: x\r\n\r\n");
        throw(addr, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        throw(addr, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
    }
    // These connections stay open. Some are silent, the others stop in the middle of a frame.
    let mut held = Vec::new();
    for node in &cluster.nodes {
        for len in [0, 5, 20, 200] {
            let mut stream = TcpStream::connect(node.raft_addr()).expect("the peer port accepts");
            let bytes: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
            stream.write_all(&bytes).expect("a few bytes fit the socket buffer");
            held.push(stream);
        }
    }
    cluster.assert_well();
    let_pass(Duration::from_millis(500));
    for (node, size) in cluster.nodes.iter().zip(sizes) {
        let growth = resident_bytes(node.pid()).saturating_sub(size);
        assert!(growth < GROWTH_MAX, "node {} grew by {growth} bytes", node.id);
    }
    let is_same = (cluster.wait_for_leader(), term(&cluster)) == before;
    let judged = campaigns.judge(&cluster, 0, is_same, "the same node leads in the same term");
    drop(held);
    let seen = watch.finish();
    say(&format!("garbage on the peer port: {}", seen.report));
    judged
}

/// The highest term of all nodes.
fn term(cluster: &Cluster) -> f64 {
    cluster.nodes.iter().map(|node| node.wait_for_metric("epicepoch_term")).fold(0.0, f64::max)
}

/// Returns a node with this id and the settings of a first member, but with another cluster name.
/// It is not started.
fn stranger(cluster: &Cluster, id: u64, name: &str) -> Node {
    let mut node = Node::new(id, cluster.dir.path(), name);
    node.set("CLUSTER", "other");
    node
}

#[test]
fn a_node_of_another_cluster_is_refused_and_both_sides_say_so() {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let known = cluster.nodes[0].settings()["PEERS"].clone();
    for bootstrap in [false, true] {
        let mut fourth = stranger(&cluster, 4, &format!("fourth-{bootstrap}"));
        fourth.set("PEERS", format!("{known},4={}", fourth.raft_addr()));
        if bootstrap {
            fourth.set("BOOTSTRAP", 1);
        }
        fourth.start();
        // Without BOOTSTRAP the node asks no member and ends by itself. With BOOTSTRAP it asks the
        // members, and they refuse it.
        let why = if bootstrap { ANOTHER_CLUSTER } else { "BOOTSTRAP is off" };
        wait_until(&format!("it says {why}"), WAIT_MAX, || {
            assert!(!fourth.serves() && !fourth.is_ready(), "the stranger serves");
            fourth.log().contains(why)
        });
        holds_for("the stranger does not serve", STRANGER, || {
            !fourth.is_running() || !(fourth.serves() || fourth.is_ready())
        });
        cluster.assert_well();
    }
    wait_until("a member says that it has refused the stranger", WAIT_MAX, || {
        cluster.nodes.iter().any(|node| node.log().contains(ANOTHER_CLUSTER))
    });
    watch.finish();
}

/// Sends one frame to a node. Returns everything that the node sends until it closes the
/// connection.
fn answered(node: &Node, frame: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(node.raft_addr()).expect("the peer port accepts");
    stream.set_read_timeout(Some(WAIT_MAX)).expect("a timeout can be set");
    stream.write_all(frame).expect("a frame fits the socket buffer");
    let mut bytes = Vec::new();
    // The node closes the connection of a peer that it refuses, so the read may fail. `bytes` then
    // has what arrived before.
    let _whole = stream.read_to_end(&mut bytes);
    bytes
}

fn hello(to: u64, formats: Formats) -> PeerHello {
    PeerHello {
        link: LinkKind::Raft,
        to: NodeId(to),
        store: StoreId(1),
        position: StorePosition(0),
        boot: BootId(1),
        history: HistoryId(0),
        cluster_name: "epicepoch".into(),
        raft_addr: "127.0.0.1:1".into(),
        client_addr: "127.0.0.1:2".into(),
        workers: 1,
        settings: SharedSettings::default(),
        formats,
        version: "99.0.0".into(),
        reads_intervals: true,
    }
}

#[test]
fn a_node_of_another_version_is_refused_in_frames_that_it_understands() {
    let mut cluster = Cluster::start();
    let node = &cluster.nodes[0];
    // Each frame below names another node as its sender or has another error, because a node does
    // not log the same refusal twice.
    let (stranger, no_cluster) = (NodeId(2), ClusterId(0));
    // A node of an older version is refused in frames of that version, so that it can read the
    // refusal.
    let mut frame = Vec::new();
    write_frame_of(VERSION - 1, &mut frame, FrameKind::PeerHello, no_cluster, stranger, |_| ());
    let mut bytes = answered(node, &frame);
    let theirs = bytes.get(2).copied();
    assert_eq!(theirs, Some(VERSION - 1), "{bytes:?}");
    let text = String::from_utf8_lossy(&bytes.split_off(HEADER_LEN)).into_owned();
    assert!(text.contains("update the older one of the two"), "{text}");
    // These frames have our version of the protocol, but name formats of the state that no node
    // here reads.
    for (stranger, formats, words) in [
        (NodeId(2), Formats { oldest: 98, newest: 99 }, "node 2 is too new"),
        (NodeId(3), Formats { oldest: 0, newest: 0 }, "node 3 is too old"),
    ] {
        let mut frame = Vec::new();
        let said = hello(node.id, formats);
        write_frame(&mut frame, FrameKind::PeerHello, no_cluster, stranger, |out| said.encode(out));
        let bytes = answered(node, &frame);
        let (header, payload, _) = split_frame(&bytes).expect("a frame").expect("a whole one");
        assert_eq!(header.kind, FrameKind::Refused);
        let refusal = Refusal::decode(payload).expect("a refusal");
        assert_eq!(refusal.code, RefusalCode::Format, "{refusal}");
        assert!(refusal.text.contains(words) && refusal.text.contains("99.0.0"), "{refusal}");
        assert!(node.log().contains(words), "{}", node.log());
    }
    cluster.assert_well();
}

/// Waits for a Raft link of a peer at this port. Welcomes the peer as the node `node`, whose data
/// directory was at `position` when it started. Returns what the peer sends next; nothing if the
/// peer closes the connection.
fn sent_behind_welcome(port: &TcpListener, node: (NodeId, StoreId), position: u64) -> Vec<u8> {
    let deadline = Instant::now() + WAIT_MAX;
    while Instant::now() < deadline {
        let (mut stream, _) = port.accept().expect("peers dial again and again");
        stream.set_read_timeout(Some(WAIT_MAX)).expect("a timeout can be set");
        // The peer may have closed the connection before the test accepted it. Then the test waits
        // for the next one.
        let Some(hello) = first_frame(&mut stream) else { continue };
        let (header, payload, _) = split_frame(&hello).expect("a frame").expect("a whole one");
        let theirs = PeerHello::decode(payload).expect("a hello");
        if theirs.link != LinkKind::Raft {
            continue;
        }
        let (to, store, position) = (header.from, node.1, StorePosition(position));
        let raft_addr = port.local_addr().expect("a port").to_string();
        let welcome = PeerHello { to, store, position, boot: BootId(77), raft_addr, ..theirs };
        let mut frame = Vec::new();
        write_frame(&mut frame, FrameKind::Welcome, header.cluster, node.0, |out| {
            welcome.encode(out);
        });
        stream.write_all(&frame).expect("a frame fits the socket buffer");
        return first_frame(&mut stream).unwrap_or_default();
    }
    panic!("no peer opens a Raft link");
}

/// Reads until the first frame is complete, and returns all bytes read. Returns `None` if the
/// connection ends before that.
fn first_frame(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    while split_frame(&bytes).expect("frames").is_none() {
        let mut part = [0; 4096];
        let read = stream.read(&mut part).ok().filter(|read| *read > 0)?;
        bytes.extend_from_slice(&part[..read]);
    }
    Some(bytes)
}

/// A peer that gets a welcome with a lower position than before closes the connection. The
/// simulator relies on this rule.
#[test]
fn a_peer_sends_nothing_to_a_node_whose_disk_was_rolled_back() {
    let mut cluster = Cluster::start();
    let index = cluster.others(cluster.wait_for_leader())[0];
    let identity = fs::read_to_string(cluster.nodes[index].data_dir().join("IDENTITY"));
    let identity = identity.expect("a data directory");
    let store = identity.lines().find_map(|line| line.strip_prefix("store ")).expect("a store");
    let store = StoreId(u128::from_str_radix(store, 16).expect("a number"));
    let node = (NodeId(cluster.nodes[index].id), store);
    // In this time the leader makes a few reservations, so the other nodes learn a higher position
    // of the node.
    let_pass(Duration::from_secs(3));
    cluster.nodes[index].kill();
    let port = TcpListener::bind(cluster.nodes[index].raft_addr()).expect("its port is free");
    assert_eq!(sent_behind_welcome(&port, node, 0), [0_u8; 0], "it had come further");
    // The test welcomes a peer as the same node again, now with a higher position. This is no
    // rollback, so the peer sends its next frame.
    let sent = sent_behind_welcome(&port, node, 1 << 40);
    let (header, ..) = split_frame(&sent).expect("frames").expect("a whole one");
    assert!(matches!(header.kind, FrameKind::Raft | FrameKind::Ping), "{:?}", header.kind);
    let is_logged = cluster
        .others(index)
        .into_iter()
        .any(|other| cluster.nodes[other].log().contains("rolled back to an older state"));
    assert!(is_logged, "the node that refused it logs why");
}
