//! What does not belong on the peer port: garbage, cut frames, other protocols, and nodes of
//! another cluster. The cluster notices and serves on.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use crate::support::process::resident_bytes;
use crate::support::{Cluster, Node, Watch, holds_for, let_pass, say};

/// Memory that a barrage of garbage may leave behind, bytes.
const GROWTH_MAX: u64 = 64 << 20;
/// How long a stranger is watched: several elections and reconnects.
const STRANGER: Duration = Duration::from_secs(4);

/// Sends bytes and ends the connection; the node may end it first.
fn throw(addr: SocketAddr, bytes: &[u8]) {
    let mut stream = TcpStream::connect(addr).expect("the peer port accepts");
    let limit = Some(Duration::from_millis(50));
    stream.set_write_timeout(limit).expect("a timeout can be set");
    stream.set_read_timeout(limit).expect("a timeout can be set");
    // Being cut off while throwing garbage is what should happen.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read(&mut [0; 64]);
}

#[test]
fn garbage_on_the_peer_port_costs_no_leader_and_no_memory() {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let before: Vec<u64> = cluster.nodes.iter().map(|node| resident_bytes(node.pid())).collect();
    let mut random = fastrand::Rng::with_seed(7);
    for node in &cluster.nodes {
        let addr = node.raft_addr();
        for len in [0, 1, 7, 8, 15, 16, 31, 32, 64, 100, 1000, 100_000] {
            for _ in 0..3 {
                let bytes: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
                throw(addr, &bytes);
            }
            throw(addr, &vec![0; len]);
            // Whatever field is the length, it is as large as can be.
            throw(addr, &vec![0xff; len]);
        }
        throw(addr, b"GET /timestamp HTTP/1.1\r\nhost: x\r\n\r\n");
        throw(addr, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        throw(addr, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
    }
    // Held open and silent, or in the middle of something.
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
    let_pass(Duration::from_secs(1));
    for (node, before) in cluster.nodes.iter().zip(before) {
        let growth = resident_bytes(node.pid()).saturating_sub(before);
        assert!(growth < GROWTH_MAX, "node {} grew by {growth} bytes", node.id);
    }
    drop(held);
    let seen = watch.finish();
    say(&format!("garbage on the peer port: {}", seen.report));
}

/// The settings of a first member of the cluster, as node `id` of a cluster of another name.
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
    let old_logs: Vec<usize> = cluster.nodes.iter().map(|node| node.log().len()).collect();
    for bootstrap in [false, true] {
        let mut fourth = stranger(&cluster, 4, &format!("fourth-{bootstrap}"));
        fourth.set("PEERS", format!("{known},4={}", fourth.raft_addr()));
        if bootstrap {
            fourth.set("BOOTSTRAP", 1);
        }
        fourth.start();
        holds_for("the stranger does not serve", STRANGER, || {
            !fourth.is_running() || !(fourth.serves() || fourth.is_ready())
        });
        let log = fourth.log().to_lowercase();
        // Without BOOTSTRAP it does not even ask; with it, the members refuse it.
        let words = if bootstrap { ["cluster", "other"] } else { ["bootstrap", "off"] };
        assert!(words.iter().all(|word| log.contains(word)), "{log}");
        cluster.assert_well();
    }
    let told = cluster.nodes.iter().zip(old_logs).any(|(node, from)| {
        let log = node.log();
        log.get(from..).is_some_and(|new| new.contains("other"))
    });
    assert!(told, "no member says that a node of cluster \"other\" was refused");
    watch.finish();
}
