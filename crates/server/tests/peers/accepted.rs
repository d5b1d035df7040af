//! What a node answers to a member that speaks the protocol correctly. The test plays that member,
//! node 3, with the hello that the real node 3 has sent.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use epicepoch_attack::peers::{Opening, open_from};
use epicepoch_certs::rustls::pki_types::ServerName;
use epicepoch_certs::rustls::{ClientConnection, StreamOwned};
use epicepoch_certs::{LiveRoots, PemFile, node_name, peer_client_config};
use epicepoch_server::config::PeerTlsMode;
use epicepoch_wire::confirm::{Confirm, ConfirmReply};
use epicepoch_wire::frame::{FrameKind, MAGIC, VERSION, split_frame, write_frame, write_frame_of};
use epicepoch_wire::gossip::Ping;
use epicepoch_wire::peer_hello::{LinkKind, PeerHello, Refusal, RefusalCode};
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::{BootId, ClusterId, LogIndex, NodeId, Round, StorePosition, Term, WorkerId};

use crate::authorities::{CLUSTER, Fixture, Running, WAIT_MAX, stamp, wait_until};
use crate::dialled::said_to;
use crate::intruders::{answer_of, pair};

/// A process counts as alive for this long after its last frame.
const ALIVE_WITHIN: Duration = Duration::from_millis(500);
/// The longest time of a handshake.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// The largest number of handshakes under way.
const HANDSHAKES_MAX: u8 = 128;
/// A test that the machine has delayed too much begins again, this often at most.
const ATTEMPTS_MAX: usize = 20;

/// Nodes 1 and 2 of a cluster of three, and the hello of node 3, which has ended.
struct Cluster {
    fixture: Fixture,
    nodes: [Running; 2],
    id: ClusterId,
    hello: PeerHello,
}

impl Cluster {
    fn with(tls: Option<PeerTlsMode>) -> Self {
        let fixture = Fixture::new();
        let start = |node| fixture.start_as(node, tls);
        let [first, second, third] = [1, 2, 3].map(start);
        let [first, second, third] = {
            let nodes = [first, second, third];
            stamp(&nodes);
            nodes
        };
        drop(second);
        let port = TcpListener::bind(fixture.raft[1]).unwrap();
        let (id, hello) = hello_of_third(&fixture, &port, tls.is_none());
        drop((port, third));
        let nodes = [first, start(2)];
        stamp(&nodes);
        Self { fixture, nodes, id, hello }
    }

    /// The peer hello of node 3 in its run `boot`. It names more writes than any that node 3 has made.
    fn hello(&self, link: LinkKind, boot: u64) -> PeerHello {
        self.hello_at(link, boot, u64::MAX / 2)
    }

    /// The peer hello of node 3 in its run `boot`, with this position of its data directory.
    fn hello_at(&self, link: LinkKind, boot: u64, position: u64) -> PeerHello {
        let position = StorePosition(position);
        PeerHello { link, to: NodeId(1), boot: BootId(boot), position, ..self.hello.clone() }
    }

    fn connect(&self, from: IpAddr) -> TcpStream {
        let stream = open_from((from, self.fixture.raft[0]), Opening::Silent, 0).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream
    }

    /// Sends a hello in plain text, and returns the answer.
    fn say(&self, stream: &mut TcpStream, link: LinkKind, boot: u64) -> Option<FrameKind> {
        let hello = self.hello(link, boot);
        let (kind, payload) = answer_of(stream, self.id, 3, &hello).ok().flatten()?;
        if kind == FrameKind::Refused {
            assert_eq!(Refusal::decode(&payload).unwrap().code, RefusalCode::DuplicateNode);
        }
        Some(kind)
    }

    fn link(&self, link: LinkKind, boot: u64) -> (TcpStream, FrameKind) {
        let mut stream = self.connect(Ipv4Addr::LOCALHOST.into());
        let kind = self.say(&mut stream, link, boot).expect("an answer");
        (stream, kind)
    }

    fn send(&self, stream: &mut TcpStream, kind: FrameKind, payload: impl FnOnce(&mut Vec<u8>)) {
        self.try_send(stream, kind, payload).unwrap();
    }

    fn try_send(
        &self,
        stream: &mut TcpStream,
        kind: FrameKind,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> io::Result<()> {
        let mut out = Vec::new();
        write_frame(&mut out, kind, self.id, NodeId(3), payload);
        stream.write_all(&out)
    }

    /// Sends a ping and reads until its answer.
    fn ping(&self, stream: &mut TcpStream) {
        self.send(stream, FrameKind::Ping, |out| Ping { sent_ns: 1 }.encode(out));
        read_until(stream, FrameKind::Pong).expect("the link has not ended");
    }

    /// Whether node 1 confirms, over the link of a worker, that it has promised no term above `term`.
    fn confirms(&self, stream: &mut TcpStream, term: Term, round: u64) -> bool {
        let (store, round) = (self.hello.store, Round(round));
        let confirm = Confirm { store, boot: BootId(1), worker: WorkerId(0), term, round };
        self.send(stream, FrameKind::Confirm, |out| confirm.encode(out));
        let reply = read_until(stream, FrameKind::ConfirmReply);
        reply.is_some_and(|reply| ConfirmReply::decode(&reply).unwrap().is_yes())
    }

    /// Whether a connection from `from` that is older than all others keeps its place when
    /// strangers from as many addresses take all places. Then `finish` has to get a welcome on it.
    fn keeps_its_place(
        &self,
        from: [u8; 4],
        finish: impl Fn(TcpStream) -> Option<FrameKind>,
    ) -> bool {
        let dropped =
            || self.nodes[0].metric("epicepoch_denied_total{right=\"peer\",reason=\"no_hello\"}");
        for _ in 0..ATTEMPTS_MAX {
            let (before, start) = (dropped(), Instant::now());
            let first = self.connect(IpAddr::from(from));
            let mut crowd: Vec<_> = (1..=HANDSHAKES_MAX)
                .map(|last| self.connect(IpAddr::from([127, 0, 1, last])))
                .collect();
            wait_until("one is dropped", || dropped() > before);
            let answered = finish(first);
            let is_in_time = start.elapsed() < HELLO_TIMEOUT;
            // Each handshake of the crowd ends at its timeout. The next test needs their places.
            for stream in &mut crowd {
                let _ended = stream.read(&mut [0]);
            }
            if is_in_time {
                return answered == Some(FrameKind::Welcome);
            }
        }
        panic!("each of {ATTEMPTS_MAX} attempts took more than {HELLO_TIMEOUT:?}");
    }
}

/// The cluster and the hello that node 3 names when it dials node 2.
fn hello_of_third(fixture: &Fixture, port: &TcpListener, is_tls: bool) -> (ClusterId, PeerHello) {
    let second = fixture.issued(2, 30);
    for _ in 0..100 {
        let said = if is_tls {
            said_to(fixture, port, &second)
        } else {
            let mut said = vec![0; 4096];
            let (mut stream, _) = port.accept().unwrap();
            stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
            let length = stream.read(&mut said).unwrap_or(0);
            said.truncate(length);
            said
        };
        if let Ok(Some((header, payload, _))) = split_frame(&said)
            && header.from == NodeId(3)
        {
            return (header.cluster, PeerHello::decode(payload).unwrap());
        }
    }
    panic!("node 3 has not dialled node 2");
}

/// Reads frames until one of this kind, and returns its payload; `None` when the link has ended.
fn read_until(stream: &mut TcpStream, kind: FrameKind) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let used = match split_frame(&bytes).unwrap() {
            Some((header, payload, _)) if header.kind == kind => return Some(payload.to_vec()),
            Some((_, _, used)) => used,
            None => 0,
        };
        bytes.drain(..used);
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk).unwrap_or(0) {
            0 => return None,
            read => bytes.extend_from_slice(&chunk[..read]),
        }
    }
}

/// Closes a link, and waits until the other end has noticed.
fn close(mut stream: TcpStream) {
    stream.shutdown(Shutdown::Write).unwrap();
    let _rest = stream.read_to_end(&mut Vec::new());
}

#[test]
fn of_two_processes_of_a_member_only_the_first_that_lives_has_a_raft_link() {
    let cluster = Cluster::with(Some(PeerTlsMode::Off));
    let attempt = || {
        let (mut old, kind) = cluster.link(LinkKind::Raft, 1);
        assert_eq!(kind, FrameKind::Welcome);
        let (mut new, kind) = cluster.link(LinkKind::Raft, 1);
        assert_eq!(kind, FrameKind::Welcome, "the same process again");
        cluster.ping(&mut old);
        close(old);
        // Only frames show that a process lives: for longer than a hello would.
        let start = Instant::now();
        let mut heard_at = start;
        while start.elapsed() < ALIVE_WITHIN * 2 {
            heard_at = Instant::now();
            cluster.ping(&mut new);
            std::thread::sleep(ALIVE_WITHIN / 20);
        }
        let (confirm, kind) = cluster.link(LinkKind::Confirm(WorkerId(0)), 2);
        assert_eq!(kind, FrameKind::Welcome, "only Raft links are of one process");
        let (other, kind) = cluster.link(LinkKind::Raft, 2);
        let is_disturbed = heard_at.elapsed() >= ALIVE_WITHIN;
        close(new);
        close(other);
        drop(confirm);
        // When the first process has closed its link, the other one is welcome at once.
        let (third, after) = cluster.link(LinkKind::Raft, 3);
        assert_eq!(after, FrameKind::Welcome);
        close(third);
        (!is_disturbed).then_some(kind)
    };
    let refused = (0..ATTEMPTS_MAX).find_map(|_| attempt());
    assert_eq!(refused, Some(FrameKind::Refused), "a second process");
    // A process that falls silent gives way, although its link is open.
    let (silent, kind) = cluster.link(LinkKind::Raft, 4);
    assert_eq!(kind, FrameKind::Welcome);
    wait_until("another process is welcome", || {
        cluster.link(LinkKind::Raft, 5).1 == FrameKind::Welcome
    });
    drop(silent);
}

/// Only a later peer hello shows that the directory was rolled back, so the first one is accepted.
#[test]
fn the_link_of_a_process_that_is_found_rolled_back_later_is_closed() {
    let cluster = Cluster::with(Some(PeerTlsMode::Off));
    let linked = |boot, position| {
        let mut stream = cluster.connect(Ipv4Addr::LOCALHOST.into());
        let hello = cluster.hello_at(LinkKind::Raft, boot, position);
        let answer = answer_of(&mut stream, cluster.id, 3, &hello).unwrap();
        (stream, answer.expect("an answer").0)
    };
    let (mut rolled_back, kind) = linked(2, u64::MAX / 2);
    assert_eq!(kind, FrameKind::Welcome);
    cluster.ping(&mut rolled_back);
    // The process is silent for a while, so that another one is welcome.
    let mut newer = None;
    wait_until("a process with the newer directory is welcome", || {
        let (stream, kind) = linked(1, u64::MAX / 2 + 1);
        newer = Some(stream);
        kind == FrameKind::Welcome
    });
    wait_until("the link is closed", || {
        let ping = |out: &mut Vec<u8>| Ping { sent_ns: 1 }.encode(out);
        cluster.try_send(&mut rolled_back, FrameKind::Ping, ping).is_err()
            || read_until(&mut rolled_back, FrameKind::Pong).is_none()
    });
    cluster.ping(&mut newer.expect("a link"));
}

/// The workers live on after the consensus plane, for as long as clients take to leave.
#[test]
fn a_process_whose_disk_has_lost_entries_confirms_nothing_more() {
    let cluster = Cluster::with(Some(PeerTlsMode::Off));
    let term = Term(1 << 40);
    let (mut confirm, kind) = cluster.link(LinkKind::Confirm(WorkerId(0)), 1);
    assert_eq!(kind, FrameKind::Welcome);
    assert!(cluster.confirms(&mut confirm, term, 1));
    let (mut raft, kind) = cluster.link(LinkKind::Raft, 1);
    assert_eq!(kind, FrameKind::Welcome);
    let plain = RaftMessage::plain(MessageKind::Heartbeat, NodeId(1), term);
    let heartbeat = RaftMessage { commit: LogIndex(1 << 40), ..plain };
    cluster.send(&mut raft, FrameKind::Raft, |out| heartbeat.encode(out));
    // The end of the link is the end of the plane.
    assert_eq!(read_until(&mut raft, FrameKind::Admitted), None);
    assert!(!cluster.confirms(&mut confirm, term, 2));
    let [ended, _] = cluster.nodes;
    assert!(ended.ended().is_err());
}

#[test]
fn a_member_with_frames_of_another_version_is_refused_in_frames_of_that_version() {
    let cluster = Cluster::with(Some(PeerTlsMode::Off));
    let mut stream = cluster.connect(Ipv4Addr::LOCALHOST.into());
    let mut out = Vec::new();
    let hello = cluster.hello(LinkKind::Raft, 1);
    let kind = FrameKind::PeerHello;
    write_frame_of(VERSION + 1, &mut out, kind, cluster.id, NodeId(3), |out| hello.encode(out));
    stream.write_all(&out).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let [low, high] = MAGIC.to_le_bytes();
    assert_eq!(answer[..4], [low, high, VERSION + 1, FrameKind::Refused as u8]);
}

#[test]
fn in_a_crowd_only_the_handshakes_of_members_keep_their_places() {
    let cluster = Cluster::with(Some(PeerTlsMode::Off));
    let finish =
        |mut stream: TcpStream| cluster.say(&mut stream, LinkKind::Confirm(WorkerId(0)), 1);
    // The state of the cluster names this address for its members.
    assert!(cluster.keeps_its_place([127, 0, 0, 1], finish), "the address of members");
    // Without TLS, a hello proves nothing about the address that it comes from.
    for _ in 0..2 {
        assert!(!cluster.keeps_its_place([127, 0, 0, 3], finish), "another address");
        let stream = cluster.connect([127, 0, 0, 3].into());
        assert_eq!(finish(stream.try_clone().unwrap()), Some(FrameKind::Welcome));
        stream.shutdown(Shutdown::Both).unwrap();
    }
}

#[test]
fn a_member_that_has_shown_its_certificate_keeps_its_place_in_a_crowd() {
    let cluster = Cluster::with(None);
    let fixture = &cluster.fixture;
    let roots = LiveRoots::load(PemFile::new("ROOTS", fixture.path("ca.pem"))).unwrap();
    let third = fixture.issued(3, 30);
    let config = Arc::new(peer_client_config(pair(fixture.dir.path(), &third), roots));
    let finish = |stream: TcpStream| {
        let name = ServerName::try_from(node_name(CLUSTER, NodeId(1))).unwrap();
        let session = ClientConnection::new(config.clone(), name).unwrap();
        let mut stream = StreamOwned::new(session, stream);
        let hello = cluster.hello(LinkKind::Confirm(WorkerId(0)), 1);
        Some(answer_of(&mut stream, cluster.id, 3, &hello).ok().flatten()?.0)
    };
    assert!(!cluster.keeps_its_place([127, 0, 0, 3], finish), "an address that is unknown yet");
    let stream = cluster.connect([127, 0, 0, 3].into());
    assert_eq!(finish(stream), Some(FrameKind::Welcome));
    assert!(cluster.keeps_its_place([127, 0, 0, 3], finish), "the address of node 3");
}
