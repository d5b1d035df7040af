//! How an empty directory gets its first record. The test plays the other nodes.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use epicepoch_server::config::PeerTlsMode;
use epicepoch_server::consensus::ConsensusError;
use epicepoch_server::{Config, Node, RunError};
use epicepoch_wire::backup::Backup;
use epicepoch_wire::bootstrap::{Claim, Empty};
use epicepoch_wire::frame::{FrameKind, split_frame, write_frame};
use epicepoch_wire::peer_hello::{LinkKind, PeerHello, Refusal, RefusalCode};
use epicepoch_wire::{ClusterId, Epoch, HistoryId, LogIndex, NodeId, StoreId};
use socket2::SockRef;

use crate::authorities::{CLUSTER, Fixture, Running, WAIT_MAX, get, stamp, wait_until, write};
use crate::intruders::{answer_of, hello};
use crate::lines;

/// A question to the process that the test plays: the asking node's hello, and where to answer.
pub(crate) struct Question {
    stream: TcpStream,
    from: NodeId,
    hello: PeerHello,
}

impl Question {
    /// Waits for the next connection that sends a hello.
    pub(crate) fn at(port: &TcpListener) -> Self {
        // On Linux, this limits the wait for a connection.
        SockRef::from(port).set_read_timeout(Some(WAIT_MAX)).unwrap();
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < WAIT_MAX, "no hello comes");
            let (mut stream, _) = port.accept().expect("a question");
            stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
            let mut bytes = vec![0; 4096];
            let length = stream.read(&mut bytes).unwrap_or(0);
            if let Ok(Some((header, payload, _))) = split_frame(&bytes[..length]) {
                assert_eq!(header.kind, FrameKind::PeerHello);
                let (from, hello) = (header.from, PeerHello::decode(payload).unwrap());
                return Self { stream, from, hello };
            }
        }
    }

    /// Waits for the next hello of a Raft link. The node has founded or found its cluster by then.
    fn of_raft(port: &TcpListener) -> Self {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < WAIT_MAX, "no Raft link comes");
            let question = Self::at(port);
            if question.hello.link == LinkKind::Raft {
                return question;
            }
        }
    }

    fn answer(mut self, kind: FrameKind, encode: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::new();
        write_frame(&mut out, kind, ClusterId(0), NodeId(2), encode);
        self.stream.write_all(&out).unwrap();
    }

    pub(crate) fn refuse(self, code: RefusalCode) {
        let refusal = Refusal::new(code, "no");
        self.answer(FrameKind::Refused, |out| refusal.encode(out));
    }
}

fn plain(mut config: Config) -> Config {
    config.links.tls = Some(PeerTlsMode::Off);
    config
}

/// Starts a node that must end by itself. The receiver gets how it ended.
fn ending(config: Config) -> mpsc::Receiver<Result<(), RunError>> {
    let node = Node::start(config).unwrap();
    let (ended, end) = mpsc::channel();
    spawn(move || ended.send(node.wait()));
    end
}

/// The refusal with which node 2 has ended a node.
fn refusal_of(end: &mpsc::Receiver<Result<(), RunError>>) -> RefusalCode {
    match end.recv_timeout(WAIT_MAX).expect("the node ends") {
        Err(RunError::Consensus(ConsensusError::Refused { by: NodeId(2), refusal })) => {
            refusal.code
        }
        other => panic!("{other:?}"),
    }
}

/// A passing refusal means that the node asks again. It logs what it waits for, but not each time.
#[test]
fn a_node_without_data_ends_only_when_a_refusal_is_final() {
    lines::keep();
    // A node that joins may be added later, so an unknown node asks again.
    let joining = |config: &mut Config, addr: &str| {
        (config.bootstrap, config.join) = (false, vec![addr.to_owned()]);
        config.peers.clear();
    };
    // A first member that the others do not know can only be a wiped disk.
    let founding = |config: &mut Config, addr: &str| {
        let own = config.raft_addr.clone();
        config.peers = [(NodeId(1), own), (NodeId(2), addr.to_owned())].into();
    };
    for (is_joining, to, passing, fatal) in [
        (true, NodeId(0), RefusalCode::UnknownNode, RefusalCode::WrongStore),
        (false, NodeId(2), RefusalCode::WrongNode, RefusalCode::UnknownNode),
    ] {
        let fixture = Fixture::new();
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = port.local_addr().unwrap().to_string();
        let mut config = plain(fixture.config(1));
        if is_joining {
            joining(&mut config, &addr);
        } else {
            founding(&mut config, &addr);
        }
        let end = ending(config);
        for code in [passing, passing, passing, fatal] {
            let question = Question::at(&port);
            assert_eq!((question.from, question.hello.to), (NodeId(1), to));
            assert_eq!(question.hello.link, LinkKind::Bootstrap);
            question.refuse(code);
        }
        assert_eq!(refusal_of(&end), fatal);
        if is_joining {
            let waiting = lines::lines_with(&["joining waiting_for=", &addr]);
            assert_eq!(waiting.len(), 1, "{waiting:?}");
        }
    }
}

/// The list of node 1 has an unreachable third member, whose address makes the lines unique.
#[test]
fn a_first_member_logs_what_it_waits_for_once_in_many_sweeps() {
    lines::keep();
    let fixture = Fixture::new();
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = port.local_addr().unwrap().to_string();
    let silent = fixture.raft[2].to_string();
    let mut config = plain(fixture.config(1));
    let own = config.raft_addr.clone();
    config.peers = [(NodeId(1), own), (NodeId(2), addr), (NodeId(3), silent.clone())].into();
    let _waiting = Running::of(Node::start(config).unwrap());
    for _ in 0..4 {
        Question::at(&port).refuse(RefusalCode::NotBootstrapped);
    }
    let waiting = lines::lines_with(&["bootstrap waiting_for=", &silent]);
    assert_eq!(waiting.len(), 1, "{waiting:?}");
}

/// Node 2 answers slowly, and its clock is the same machine's. The slow answer founds nothing: the
/// founder asks again.
#[test]
fn a_slow_answer_delays_a_restore_and_does_not_end_it() {
    let fixture = Fixture::new();
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = port.local_addr().unwrap().to_string();
    let now_ns = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let backup = Backup {
        name: CLUSTER.to_owned(),
        cluster: ClusterId(5),
        history: HistoryId(6),
        index: LogIndex(7),
        ceiling: Epoch(1),
        taken_ns: now_ns(),
        reservation_ms: 5000,
        clock_offset_max_ms: 500,
        lease_longest_ms: 0,
        settings: None,
        removed: vec![],
        members: vec![],
    };
    let path = fixture.path("a.backup");
    write(&path, &backup.text());
    let mut config = plain(fixture.config(1));
    let own = config.raft_addr.clone();
    config.peers = [(NodeId(1), own), (NodeId(2), addr)].into();
    (config.restore, config.restore_lease) = (Some(path), Duration::ZERO);
    let peers: Vec<_> = config.peers.clone().into_iter().collect();
    let bound = config.clock_offset_max;
    let node = Running::of(Node::start(config).unwrap());
    let (start, mut answered) = (Instant::now(), 0);
    // A Raft link shows that the cluster is founded.
    loop {
        assert!(start.elapsed() < WAIT_MAX, "{answered} answers have founded nothing");
        let question = Question::at(&port);
        if question.hello.link == LinkKind::Raft {
            break;
        }
        if answered == 0 {
            sleep(bound + Duration::from_millis(100));
        }
        answered += 1;
        let empty = Empty {
            store: StoreId(2),
            client_addr: "127.0.0.1:1".to_owned(),
            bootstrapping: true,
            peers: peers.clone(),
            claim: Some(Claim {
                backup: Some((backup.taken_ns, backup.checksum())),
                floor: Epoch(0),
                wall_ns: now_ns(),
            }),
        };
        question.answer(FrameKind::Empty, |out| empty.encode(out));
    }
    assert!(answered >= 2, "the slow answer has founded the cluster");
    assert_eq!(get(node.node().http_addr(), "/up").0, 200);
}

#[test]
fn an_empty_node_tells_its_state_only_to_nodes_of_its_cluster() {
    let fixture = Fixture::new();
    let waiting = Running::of(Node::start(plain(fixture.config(1))).unwrap());
    wait_until("it runs", || get(waiting.node().http_addr(), "/up").0 == 200);
    let ask = |from, name: &str, hello: PeerHello| {
        let mut stream = TcpStream::connect(fixture.raft[0]).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let hello = PeerHello { cluster_name: name.to_owned(), ..hello };
        let answered = answer_of(&mut stream, ClusterId(0), from, &hello).unwrap();
        let (kind, payload) = answered.expect("an answer");
        match kind {
            FrameKind::Empty => Ok(Empty::decode(&payload).unwrap()),
            FrameKind::Refused => Err(Refusal::decode(&payload).unwrap().code),
            other => panic!("{other:?}"),
        }
    };
    let asking = |to| hello(LinkKind::Bootstrap, to);
    let empty = ask(2, CLUSTER, asking(1)).expect("it is empty");
    assert!(empty.bootstrapping);
    assert_eq!(ask(2, CLUSTER, asking(0)), Ok(empty.clone()));
    for to in [0, 1] {
        assert_eq!(ask(2, "other", asking(to)), Err(RefusalCode::WrongClusterName), "{to}");
        assert_eq!(ask(1, CLUSTER, asking(to)), Err(RefusalCode::WrongStore), "another node 1");
    }
    assert_eq!(ask(2, CLUSTER, asking(3)), Err(RefusalCode::WrongNode));
    let link = hello(LinkKind::Raft, 1);
    assert_eq!(ask(2, CLUSTER, link), Err(RefusalCode::NotBootstrapped));
    // The node may ask itself, at an address that is spelt in another way.
    let own = PeerHello { store: empty.store, ..asking(0) };
    assert_eq!(ask(1, CLUSTER, own), Ok(empty.clone()));
    let own = PeerHello { store: empty.store, ..asking(1) };
    assert_eq!(ask(1, CLUSTER, own), Err(RefusalCode::WrongStore));
}

#[test]
fn a_node_dials_a_member_at_its_address_in_peers_also() {
    let fixture = Fixture::new();
    lines::keep();
    let start = |node| fixture.start_as(node, Some(PeerTlsMode::Off));
    let nodes = [1, 2, 3].map(start);
    stamp(&nodes);
    drop(nodes);
    // Nobody listens at the address of node 2 that the state names.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut config = plain(fixture.config(1));
    config.peers.insert(NodeId(2), port.local_addr().unwrap().to_string());
    config.workers = 1;
    let former = fixture.raft[1].to_string();
    let down = || lines::lines_with(&["confirm link down; trying again peer=2", &former]);
    let before = down().len();
    let _alone = Running::of(Node::start(config).unwrap());
    for _ in 0..4 {
        let question = Question::of_raft(&port);
        assert_eq!((question.from, question.hello.to), (NodeId(1), NodeId(2)));
    }
    // The confirm link has been tried as often, at the address in the state. It logs once that it is
    // down.
    wait_until("a line", || down().len() > before);
    assert_eq!(down().len(), before + 1, "{:?}", down());
}
