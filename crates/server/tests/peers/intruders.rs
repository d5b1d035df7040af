//! Peers with a false identity are refused, logged and counted before a node trusts them.

use std::io;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use epicepoch_certs::authority::{Authority, Issued, Validity};
use epicepoch_certs::config::ALPN_PEER;
use epicepoch_certs::rustls::pki_types::ServerName;
use epicepoch_certs::rustls::{ClientConfig, ClientConnection, StreamOwned};
use epicepoch_certs::{
    LivePair, LiveRoots, Pair, PemFile, client_config, node_name, peer_client_config,
};
use epicepoch_core::state::FORMATS;
use epicepoch_server::config::PeerTlsMode;
use epicepoch_wire::frame::{FrameKind, split_frame, write_frame};
use epicepoch_wire::peer_hello::{LinkKind, PeerHello, Refusal, RefusalCode, SharedSettings};
use epicepoch_wire::{BootId, ClusterId, HistoryId, NodeId, StoreId, StorePosition, WorkerId};

use crate::authorities::{CLUSTER, Fixture, Running, WAIT_MAX, stamp, write};

/// A valid hello of a member.
pub(crate) fn hello(link: LinkKind, to: u64) -> PeerHello {
    PeerHello {
        link,
        to: NodeId(to),
        store: StoreId(7),
        position: StorePosition(0),
        boot: BootId(7),
        history: HistoryId(7),
        cluster_name: CLUSTER.to_owned(),
        raft_addr: "127.0.0.1:1".to_owned(),
        client_addr: "127.0.0.1:2".to_owned(),
        workers: 1,
        settings: SharedSettings {
            epoch_interval_ms: 100,
            reservation_ms: 5000,
            clock_offset_max_ms: 500,
            election_timeout_ms: 1000,
            max_n: 65_536,
        },
        formats: FORMATS,
        version: String::new(),
        reads_intervals: false,
    }
}

pub(crate) fn pair(dir: &Path, issued: &Issued) -> Arc<LivePair> {
    let (certificate, key) = (dir.join("intruder.pem"), dir.join("intruder.key"));
    write(&certificate, &issued.certificate);
    write(&key, &issued.key);
    let file = |path| PemFile::new("INTRUDER", path);
    LivePair::new(Pair::load(file(certificate), file(key)).unwrap())
}

/// Returns the answer of a node to the hello of a member of no cluster, if it answers.
fn answer(
    stream: &mut (impl io::Read + io::Write),
    from: u64,
    hello: &PeerHello,
) -> io::Result<Option<(FrameKind, Vec<u8>)>> {
    answer_of(stream, ClusterId(9), from, hello)
}

/// Returns the answer of a node to a hello, if it answers.
pub(crate) fn answer_of(
    stream: &mut (impl io::Read + io::Write),
    cluster: ClusterId,
    from: u64,
    hello: &PeerHello,
) -> io::Result<Option<(FrameKind, Vec<u8>)>> {
    let mut out = Vec::new();
    write_frame(&mut out, FrameKind::PeerHello, cluster, NodeId(from), |out| hello.encode(out));
    stream.write_all(&out)?;
    stream.flush()?;
    let mut bytes = Vec::new();
    loop {
        if let Ok(Some((header, payload, _))) = split_frame(&bytes) {
            return Ok(Some((header.kind, payload.to_vec())));
        }
        let mut chunk = [0; 1024];
        match stream.read(&mut chunk)? {
            0 => return Ok(None),
            read => bytes.extend_from_slice(&chunk[..read]),
        }
    }
}

struct Target {
    fixture: Fixture,
    nodes: [Running; 3],
}

impl Target {
    fn new() -> Self {
        let fixture = Fixture::new();
        let nodes = [1, 2, 3].map(|node| fixture.start(node));
        stamp(&nodes);
        Self { fixture, nodes }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.fixture.raft[0]).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream
    }

    fn say(
        &self,
        config: ClientConfig,
        from: u64,
        hello: &PeerHello,
    ) -> io::Result<Option<(FrameKind, Vec<u8>)>> {
        let name = ServerName::try_from(node_name(CLUSTER, NodeId(1))).unwrap();
        let session = ClientConnection::new(Arc::new(config), name).unwrap();
        answer(&mut StreamOwned::new(session, self.connect()), from, hello)
    }

    fn roots(&self) -> Arc<LiveRoots> {
        LiveRoots::load(PemFile::new("ROOTS", self.fixture.path("ca.pem"))).unwrap()
    }

    fn as_peer(&self, issued: &Issued) -> ClientConfig {
        peer_client_config(pair(self.fixture.dir.path(), issued), self.roots())
    }

    fn denied(&self, reason: &str) -> u64 {
        let name = format!("epicepoch_denied_total{{right=\"peer\",reason=\"{reason}\"}}");
        self.nodes[0].metric(&name)
    }

    /// Checks that every kind of link refuses this peer, and that `reason` counts each refusal.
    fn refuses(&self, config: impl Fn() -> ClientConfig, from: u64, reason: &str) {
        for link in [LinkKind::Raft, LinkKind::Confirm(WorkerId(0)), LinkKind::Bootstrap] {
            let before = self.denied(reason);
            match self.say(config(), from, &hello(link, 1)) {
                Err(_) | Ok(None) => {}
                Ok(Some((FrameKind::Refused, payload))) => {
                    let refusal = Refusal::decode(&payload).unwrap();
                    assert_eq!(refusal.code, RefusalCode::WrongCertificate, "{link:?}");
                }
                Ok(Some((kind, _))) => panic!("{link:?} was answered with {kind:?}"),
            }
            self.await_denied(reason, before + 1);
        }
    }

    /// Waits until exactly `count` peers were refused. A connection may end before it is counted.
    #[track_caller]
    fn await_denied(&self, reason: &str, count: u64) {
        let deadline = Instant::now() + WAIT_MAX;
        while self.denied(reason) < count {
            assert!(Instant::now() < deadline, "not counted: {reason}");
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(self.denied(reason), count, "{reason}");
    }
}

#[test]
fn a_peer_with_the_certificate_of_another_node_cluster_or_time_is_refused_and_counted() {
    let target = Target::new();
    let fixture = &target.fixture;
    // The peer shows the certificate of node 3 and sends the hello of node 2.
    let third = fixture.issued(3, 30);
    target.refuses(|| target.as_peer(&third), 2, "certificate_name");
    // The peer shows the certificate of node 2 of another cluster. This cluster does not trust its
    // authority.
    let other = Authority::new("other").unwrap();
    let foreign = other.node(NodeId(2), &[], Validity::days(30)).unwrap();
    target.refuses(|| target.as_peer(&foreign), 2, "handshake");
    // The peer shows a client's certificate, then one from another authority with the same name.
    let client = fixture.authority.client("somebody", Validity::days(30)).unwrap();
    target.refuses(|| target.as_peer(&client), 2, "certificate_name");
    let same_name = Authority::new(CLUSTER).unwrap();
    let forged = same_name.node(NodeId(2), &[], Validity::days(30)).unwrap();
    target.refuses(|| target.as_peer(&forged), 2, "handshake");
    // The peer shows an expired certificate, then none.
    let past = SystemTime::now() - Duration::from_mins(1);
    let expired = fixture.authority.node(NodeId(2), &[], Validity::until(past)).unwrap();
    target.refuses(|| target.as_peer(&expired), 2, "handshake");
    let none = || client_config(target.roots(), None, &[ALPN_PEER]);
    target.refuses(none, 2, "handshake");
    // The peer shows a self-signed certificate.
    let paths = ["self.pem", "self.key"].map(|name| PemFile::new("SELF", fixture.path(name)));
    let [certificate, key] = paths;
    let names = [node_name(CLUSTER, NodeId(2))];
    let own = LivePair::new(Pair::load_or_make(certificate, key, &names).unwrap());
    target.refuses(|| peer_client_config(own.clone(), target.roots()), 2, "handshake");
    // The right certificate is accepted. Then the wrong data directory is refused, because it is
    // not the member's.
    let second = fixture.issued(2, 30);
    let (kind, payload) =
        target.say(target.as_peer(&second), 2, &hello(LinkKind::Bootstrap, 1)).unwrap().unwrap();
    assert_eq!(kind, FrameKind::Refused);
    assert_eq!(Refusal::decode(&payload).unwrap().code, RefusalCode::WrongStore);
    // The cluster still serves.
    stamp(&target.nodes);
}

#[test]
fn a_node_of_another_cluster_is_refused_though_its_authority_is_trusted() {
    let fixture = Fixture::new();
    let other = Authority::new("other").unwrap();
    let both = format!("{}{}", fixture.authority.certificate(), other.certificate());
    write(&fixture.path("ca.pem"), &both);
    let nodes = [1, 2, 3].map(|node| fixture.start(node));
    stamp(&nodes);
    let target = Target { fixture, nodes };
    let foreign = other.node(NodeId(2), &[], Validity::days(30)).unwrap();
    target.refuses(|| target.as_peer(&foreign), 2, "certificate_name");
}

#[test]
fn a_plain_peer_is_refused_and_counted() {
    let target = Target::new();
    for link in [LinkKind::Raft, LinkKind::Confirm(WorkerId(0)), LinkKind::Bootstrap] {
        let before = target.denied("plain_text");
        let answered = answer(&mut target.connect(), 2, &hello(link, 1));
        assert!(matches!(answered, Err(_) | Ok(None)), "{link:?}: {answered:?}");
        target.await_denied("plain_text", before + 1);
    }
}

#[test]
fn a_session_that_speaks_no_peer_protocol_is_refused() {
    let target = Target::new();
    let second = target.fixture.issued(2, 30);
    let config = || {
        let pair = pair(target.fixture.dir.path(), &second);
        client_config(target.roots(), Some(pair), &[])
    };
    target.refuses(config, 2, "handshake");
}

#[test]
fn an_empty_node_trusts_no_peer_without_a_certificate() {
    let fixture = Fixture::new();
    let waiting = fixture.start(1);
    let mut stream = TcpStream::connect(fixture.raft[0]).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let answered = answer(&mut stream, 2, &hello(LinkKind::Bootstrap, 1));
    assert!(matches!(answered, Err(_) | Ok(None)), "{answered:?}");
    waiting.await_metric("epicepoch_denied_total{right=\"peer\",reason=\"plain_text\"}", 1);
    let third = fixture.issued(3, 30);
    let roots = LiveRoots::load(PemFile::new("ROOTS", fixture.path("ca.pem"))).unwrap();
    let config = peer_client_config(pair(fixture.dir.path(), &third), roots);
    let name = ServerName::try_from(node_name(CLUSTER, NodeId(1))).unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    let stream = TcpStream::connect(fixture.raft[0]).unwrap();
    let mut stream = StreamOwned::new(session, stream);
    let (kind, _) = answer(&mut stream, 2, &hello(LinkKind::Bootstrap, 1)).unwrap().unwrap();
    assert_eq!(kind, FrameKind::Refused);
    // In the mode `Accept`, an empty node accepts plain text, too.
    drop(waiting);
    let open = fixture.start_as(1, Some(PeerTlsMode::Accept));
    let mut stream = TcpStream::connect(fixture.raft[0]).unwrap();
    let (kind, _) = answer(&mut stream, 2, &hello(LinkKind::Bootstrap, 1)).unwrap().unwrap();
    assert_eq!(kind, FrameKind::Empty);
    drop(open);
}
