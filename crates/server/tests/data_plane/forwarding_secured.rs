//! Nodes that send requests on where clients show tokens and certificates: the leader lets a node in
//! by the node's own certificate.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use epicepoch_certs::authority::{Authority, Issued, Validity};
use epicepoch_certs::config::ALPN_FORWARD;
use epicepoch_certs::rustls::pki_types::ServerName;
use epicepoch_certs::rustls::{ClientConfig, ClientConnection, StreamOwned};
use epicepoch_certs::{LivePair, LiveRoots, Pair, PemFile, client_config, node_name};
use epicepoch_core::publication::Published;
use epicepoch_server::Config;
use epicepoch_server::config::{ClientTlsMode, PeerTlsMode};
use epicepoch_server::security::authz::{Reason, Right};
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::{
    ClientHello, FEATURE_CHECKED_CERTIFICATES, FEATURE_CHECKED_TOKENS, FEATURE_DIRECT,
    IntervalRequest, Request, TO_CLIENT_TAIL_LEN_MAX, ToClient, Token, split,
};
use epicepoch_wire::{Guarantee, NodeId, Term};
use tempfile::TempDir;

use crate::forwarding::{await_leader, following, with_addresses};
use crate::node::{Cluster, TestNode, WAIT_MAX};

const TOKEN: &str = "client-token-0123456789";
const OTHER: &str = "other-token-0123456789";
const CLUSTER: &str = "epicepoch";

/// The files of a cluster's certificates, and its clients' token.
struct Files {
    dir: TempDir,
    authority: Authority,
}

type Secured = StreamOwned<ClientConnection, TcpStream>;

impl Files {
    fn new() -> Self {
        let (dir, authority) = (tempfile::tempdir().unwrap(), Authority::new(CLUSTER).unwrap());
        std::fs::write(dir.path().join("ca.pem"), authority.certificate()).unwrap();
        std::fs::write(dir.path().join("tokens"), TOKEN).unwrap();
        Self { dir, authority }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, issued: &Issued) -> [PathBuf; 2] {
        let paths = [self.path(&format!("{name}.pem")), self.path(&format!("{name}.key"))];
        std::fs::write(&paths[0], &issued.certificate).unwrap();
        std::fs::write(&paths[1], &issued.key).unwrap();
        paths
    }

    /// Gives a node its certificate, for other nodes and for clients.
    fn secure(&self, id: u64, mode: PeerTlsMode, config: &mut Config) {
        let names = ["localhost".to_owned()];
        let issued = self.authority.node(NodeId(id), &names, Validity::days(9)).unwrap();
        let [certificate, key] = self.write(&format!("node-{id}"), &issued);
        (config.tls.cert_file, config.tls.key_file) = (certificate.clone(), key.clone());
        config.links.cert_file = Some(certificate);
        config.links.key_file = Some(key);
        config.links.ca_file = Some(self.path("ca.pem"));
        config.links.tls = Some(mode);
        config.election_timeout = WAIT_MAX / 4;
    }

    fn pair(&self, name: &str, issued: &Issued) -> Arc<LivePair> {
        let [certificate, key] = self.write(name, issued);
        let file = |path| PemFile::new("client", path);
        LivePair::new(Pair::load(file(certificate), file(key)).unwrap())
    }

    fn pair_of_client(&self) -> Arc<LivePair> {
        self.pair("app", &self.authority.client("app", Validity::days(1)).unwrap())
    }

    fn pair_of_node(&self, authority: &Authority, id: u64) -> Arc<LivePair> {
        let names = ["localhost".to_owned()];
        let issued = authority.node(NodeId(id), &names, Validity::days(1)).unwrap();
        self.pair(&format!("test-{id}"), &issued)
    }

    /// The settings of a caller that shows `pair`.
    fn caller(&self, pair: Option<Arc<LivePair>>, alpn: &[&[u8]]) -> Arc<ClientConfig> {
        let roots = LiveRoots::load(PemFile::new("ca", self.path("ca.pem"))).unwrap();
        Arc::new(client_config(roots, pair, alpn))
    }
}

fn connect(node: &TestNode, name: &str, config: &Arc<ClientConfig>) -> Secured {
    let stream = TcpStream::connect(node.addr).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.set_nodelay(true).unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    StreamOwned::new(ClientConnection::new(config.clone(), name).unwrap(), stream)
}

/// Sends a request of HTTP/1.1 with a token. Returns status and text of the answer; 0 if there is
/// none.
fn ask_over(mut stream: impl Read + Write, path: &str, more: &str) -> (u16, String) {
    let head = "host: localhost\r\nconnection: close\r\n";
    // An error is no answer, too.
    let _ = stream.write_all(format!("GET {path} HTTP/1.1\r\n{head}{more}\r\n").as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let text = String::from_utf8_lossy(&answer).to_lowercase();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or(0), text)
}

fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}\r\n")
}

/// A leader and a follower that sends requests on. Both ask their clients for the same.
fn two(files: &Files, change: impl Fn(&mut Config)) -> [TestNode; 2] {
    let mut cluster = Cluster::new(2);
    // The peer ports of these tests have no TLS, and the leader asks the follower for its promise.
    let nodes = [(1, PeerTlsMode::Accept), (2, PeerTlsMode::On)].map(|(id, mode)| {
        cluster.start_with(id, |config| {
            files.secure(id, mode, config);
            config.forward = true;
            change(config);
        })
    });
    let both = nodes.each_ref();
    let follows = Published { term: Term(3), ..following(&cluster, 2, 1) };
    nodes[1].publish(with_addresses(follows, both));
    nodes[0].publish(with_addresses(cluster.leading(1, 3, true), both));
    nodes
}

#[test]
fn a_node_sends_requests_on_where_clients_show_tokens_and_certificates() {
    let files = Files::new();
    for (mode, has_ca, has_tokens) in [
        (ClientTlsMode::Off, false, true),
        (ClientTlsMode::Both, false, true),
        (ClientTlsMode::On, false, false),
        (ClientTlsMode::On, true, true),
    ] {
        let name = format!("{mode:?}, certificates {has_ca}, tokens {has_tokens}");
        let nodes = two(&files, |config| {
            config.tls.clients = mode;
            config.tls.client_ca_file = has_ca.then(|| files.path("ca.pem"));
            config.authz.client_token_file = has_tokens.then(|| files.path("tokens"));
        });
        let config = files.caller(has_ca.then(|| files.pair_of_client()), &[]);
        let ask = |node: &TestNode, more: &str| match mode {
            ClientTlsMode::Off => {
                let stream = TcpStream::connect(node.addr).unwrap();
                stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
                ask_over(stream, "/timestamp", more)
            }
            ClientTlsMode::On | ClientTlsMode::Both => {
                ask_over(connect(node, "localhost", &config), "/timestamp", more)
            }
        };
        let token = bearer(TOKEN);
        let began = Instant::now();
        let answer = loop {
            let answer = ask(&nodes[1], &token);
            // Until its worker knows the leader, the follower says so.
            if answer.0 != 503 || began.elapsed() > WAIT_MAX {
                break answer;
            }
        };
        assert_eq!(answer.0, 200, "{name}: {}", answer.1);
        assert!(answer.1.contains("\r\nepicepoch-forwarded: 2\r\n"), "{name}: {}", answer.1);
        let direct = format!("{token}epicepoch-direct: 1\r\n");
        assert_eq!(ask(&nodes[1], &direct).0, 409, "{name}");
        assert_eq!(ask(&nodes[0], &token).0, 200, "{name}");
        if has_tokens {
            for wrong in [String::new(), bearer(OTHER)] {
                for node in &nodes {
                    assert_eq!(ask(node, &wrong).0, 401, "{name}: {wrong}");
                }
            }
            let refused = |at: usize| {
                let denials = &nodes[at].shared.authz.denials;
                [Reason::NoToken, Reason::WrongToken]
                    .map(|reason| denials.count(Right::Timestamps, reason))
            };
            // The follower has refused what it was asked, and sent nothing of it on.
            assert_eq!((refused(0), refused(1)), ([1, 1], [1, 1]), "{name}");
        }
        if has_ca {
            let none = files.caller(None, &[]);
            for node in &nodes {
                let answer = ask_over(connect(node, "localhost", &none), "/timestamp", &token);
                assert_eq!(answer.0, 0, "{name}: {}", answer.1);
            }
        }
    }
}

/// What a node answers to a native client.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Welcome,
    Answer,
    Error(Option<ErrorCode>),
    /// The connection ended, or its handshake failed.
    Nothing,
}

fn next(stream: &mut impl Read) -> Told {
    let mut bytes = Vec::new();
    loop {
        if let Some(frame) = split(&bytes, TO_CLIENT_TAIL_LEN_MAX).unwrap() {
            assert_eq!(frame.len(), bytes.len(), "one answer at a time");
            return match ToClient::decode(&frame).unwrap() {
                ToClient::Welcome(_) => Told::Welcome,
                ToClient::Answer { .. } => Told::Answer,
                ToClient::Error(error) => Told::Error(error.error_code()),
                other => panic!("{other:?}"),
            };
        }
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => bytes.push(byte[0]),
            Ok(_) => return Told::Nothing,
            Err(error) => {
                let is_late = error.kind() == std::io::ErrorKind::WouldBlock;
                assert!(!is_late, "neither an answer nor the end: {error}");
                return Told::Nothing;
            }
        }
    }
}

fn hello(stream: &mut (impl Read + Write), features: u64) -> Told {
    hello_with(stream, &ClientHello { features, ..ClientHello::default() })
}

fn hello_with(stream: &mut (impl Read + Write), hello: &ClientHello) -> Told {
    let mut bytes = Vec::new();
    hello.encode(&mut bytes);
    told(stream, &bytes)
}

fn told(stream: &mut (impl Read + Write), frame: &[u8]) -> Told {
    // The error shows when the answer is read.
    let _ = stream.write_all(frame);
    next(stream)
}

/// A leader without other voters, which asks its clients for tokens, and its member node 2.
fn leader(files: &Files, mode: ClientTlsMode) -> (TestNode, Published) {
    leader_with(files, mode, |_| {})
}

fn leader_with(
    files: &Files,
    mode: ClientTlsMode,
    change: impl FnOnce(&mut Config),
) -> (TestNode, Published) {
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| {
        change(config);
        files.secure(1, PeerTlsMode::On, config);
        config.tls.clients = mode;
        config.authz.client_token_file = Some(files.path("tokens"));
        if mode == ClientTlsMode::On {
            config.tls.client_ca_file = Some(files.path("ca.pem"));
        }
    });
    let alone = cluster.leading(1, 3, true);
    let mut members = (*alone.members).clone();
    let second = Member { node: NodeId(2), ..members[&NodeId(1)].clone() };
    members.insert(NodeId(2), second);
    node.publish(Published { members: Arc::new(members), ..alone.clone() });
    (node, alone)
}

const ALL: u64 = FEATURE_DIRECT | FEATURE_CHECKED_TOKENS | FEATURE_CHECKED_CERTIFICATES;
const FORBIDDEN: Told = Told::Error(Some(ErrorCode::Forbidden));

#[test]
fn only_a_member_with_its_certificate_may_send_requests_on() {
    for mode in [ClientTlsMode::Off, ClientTlsMode::On] {
        let files = Files::new();
        let stranger = Authority::new("other").unwrap();
        // The other cluster has an authority that these nodes trust.
        let bundle = [files.authority.certificate(), stranger.certificate()].concat();
        std::fs::write(files.path("ca.pem"), bundle).unwrap();
        let (node, alone) = leader(&files, mode);
        // A node may count a refusal a moment after its caller has seen it.
        let assert_denied = |reason, expected| {
            let (began, denials) = (Instant::now(), &node.shared.authz.denials);
            while denials.count(Right::Peer, reason) < expected && began.elapsed() < WAIT_MAX {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(denials.count(Right::Peer, reason), expected, "{reason:?}");
        };
        let all = ALL;
        let name = node_name(CLUSTER, NodeId(1));
        let open = |pair: Option<Arc<LivePair>>, alpn: &[&[u8]]| {
            connect(&node, &name, &files.caller(pair, alpn))
        };
        let forwarder = |pair| open(Some(pair), &[ALPN_FORWARD]);
        let of_node = |id| files.pair_of_node(&files.authority, id);

        // A client that says what only a node may say.
        if mode == ClientTlsMode::Off {
            let mut plain = TcpStream::connect(node.addr).unwrap();
            plain.set_read_timeout(Some(WAIT_MAX)).unwrap();
            assert_eq!(hello(&mut plain, all), Told::Error(Some(ErrorCode::Unauthorized)));
        } else {
            let mut client = open(Some(files.pair_of_client()), &[b"epicepoch/1"]);
            assert_eq!(hello(&mut client, all), Told::Error(Some(ErrorCode::Unauthorized)));
            // A node that connects as a client is a client.
            let mut client = open(Some(of_node(2)), &[b"epicepoch/1"]);
            assert_eq!(hello(&mut client, all), Told::Error(Some(ErrorCode::Unauthorized)));
        }
        // No certificate, or that of a client, another cluster's node, or an authority that nobody
        // trusts.
        assert_eq!(hello(&mut open(None, &[ALPN_FORWARD]), all), Told::Nothing);
        // Other names in ALPN beside that of a node do not help.
        let mut both = open(None, &[b"h2", ALPN_FORWARD]);
        assert_eq!(hello(&mut both, all), Told::Nothing);
        assert_eq!(hello(&mut forwarder(files.pair_of_client()), all), Told::Nothing);
        let of_other = files.pair_of_node(&stranger, 2);
        assert_eq!(hello(&mut forwarder(of_other), all), Told::Nothing);
        let unknown = files.pair_of_node(&Authority::new(CLUSTER).unwrap(), 2);
        assert_eq!(hello(&mut forwarder(unknown), all), Told::Nothing);
        let expired = Validity::until(SystemTime::now() - Duration::from_hours(1));
        let issued = files.authority.node(NodeId(2), &[], expired).unwrap();
        assert_eq!(hello(&mut forwarder(files.pair("expired", &issued)), all), Told::Nothing);
        assert_denied(Reason::Handshake, 4);
        assert_denied(Reason::CertificateName, 2);
        // No member, and a member that lets clients in without what this node asks them for.
        assert_eq!(hello(&mut forwarder(of_node(7)), all), FORBIDDEN);
        assert_denied(Reason::NotMember, 1);
        for features in [FEATURE_DIRECT, FEATURE_DIRECT | FEATURE_CHECKED_CERTIFICATES] {
            assert_eq!(hello(&mut forwarder(of_node(2)), features), FORBIDDEN);
        }
        let tokens = FEATURE_DIRECT | FEATURE_CHECKED_TOKENS;
        let expected = if mode == ClientTlsMode::On { FORBIDDEN } else { Told::Welcome };
        assert_eq!(hello(&mut forwarder(of_node(2)), tokens), expected);
        // Nothing but the native protocol.
        assert_eq!(ask_over(forwarder(of_node(2)), "/timestamp", &bearer(TOKEN)).0, 0);

        // A member is let in, until it is removed.
        let mut member = forwarder(of_node(2));
        assert_eq!(hello(&mut member, all), Told::Welcome);
        let request = Request::new(1, 3).unwrap().to_bytes();
        member.write_all(&request).unwrap();
        assert_eq!(next(&mut member), Told::Answer);
        node.publish(alone);
        let began = Instant::now();
        let told = loop {
            // The worker may answer some requests before it sees the publication.
            member.write_all(&request).unwrap();
            let told = next(&mut member);
            if told != Told::Answer || began.elapsed() > WAIT_MAX {
                break told;
            }
        };
        assert_eq!(told, FORBIDDEN);
        assert_eq!(hello(&mut forwarder(of_node(2)), all), FORBIDDEN);
    }
}

/// What a forwarder of this project never asks for.
#[test]
fn a_node_that_sends_requests_on_gets_timestamps_by_rounds_and_nothing_else() {
    let files = Files::new();
    let (node, _) = leader(&files, ClientTlsMode::On);
    let name = node_name(CLUSTER, NodeId(1));
    let config = files.caller(Some(files.pair_of_node(&files.authority, 2)), &[ALPN_FORWARD]);
    let unsupported = || Told::Error(Some(ErrorCode::Unsupported));
    let by = |guarantee| ClientHello { features: ALL, guarantee, ..ClientHello::default() };
    let mut refused = connect(&node, &name, &config);
    assert_eq!(hello_with(&mut refused, &by(Some(Guarantee::Lease))), unsupported());
    for guarantee in [None, Some(Guarantee::Quorum)] {
        let mut member = connect(&node, &name, &config);
        assert_eq!(hello_with(&mut member, &by(guarantee)), Told::Welcome);
        let one = Request::new(1, 1).unwrap().to_bytes();
        assert_eq!(told(&mut member, &one), Told::Answer);
        assert_eq!(told(&mut member, &Request::latest(2).to_bytes()), unsupported());
        let interval = IntervalRequest::new(3, 1).unwrap().to_bytes();
        assert_eq!(told(&mut member, &interval), unsupported());
        assert_eq!(told(&mut member, &one), Told::Answer, "the connection goes on");
    }
}

/// All clients of a node that forwards share its address, and it has counted each of them.
#[test]
fn a_node_that_sends_requests_on_is_limited_by_requests_under_way_and_by_no_rate() {
    let files = Files::new();
    let (node, _) = leader_with(&files, ClientTlsMode::On, |config| {
        config.limits.address_request_rate_max = NonZeroU32::new(1);
    });
    let name = node_name(CLUSTER, NodeId(1));
    let config = files.caller(Some(files.pair_of_node(&files.authority, 2)), &[ALPN_FORWARD]);
    let mut member = connect(&node, &name, &config);
    assert_eq!(hello(&mut member, ALL), Told::Welcome);
    let one = Request::new(1, 1).unwrap().to_bytes();
    for _ in 0..100 {
        assert_eq!(told(&mut member, &one), Told::Answer);
    }
    // One record of TLS is read at once.
    member.write_all(&one.repeat(40)).unwrap();
    let overloaded = Told::Error(Some(ErrorCode::Overloaded));
    let (mut answered, mut refused) = (0, 0);
    for _ in 0..40 {
        match next(&mut member) {
            Told::Answer => answered += 1,
            other if other == overloaded => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((answered, refused), (16, 24));
    assert_eq!(told(&mut member, &one), Told::Answer);
}

/// With certificates of nodes, the port of clients without TLS takes TLS from nodes.
#[test]
fn a_port_in_plain_text_has_tls_for_nodes_alone() {
    let files = Files::new();
    let (node, _) = leader(&files, ClientTlsMode::Off);
    let name = node_name(CLUSTER, NodeId(1));
    let of_node = || Some(files.pair_of_node(&files.authority, 2));
    let pairs = [None, Some(files.pair_of_client()), of_node()];
    let offers: [&[&[u8]]; 4] = [&[], &[b"h2"], &[b"http/1.1"], &[b"epicepoch/1"]];
    for pair in pairs {
        for alpn in offers {
            let config = files.caller(pair.clone(), alpn);
            let open = || connect(&node, &name, &config);
            let (status, text) = ask_over(open(), "/timestamp", &bearer(TOKEN));
            assert_eq!(status, 0, "{alpn:?}: {text}");
            let token = Token::new(TOKEN);
            let hello = ClientHello { features: ALL, token, ..ClientHello::default() };
            assert_eq!(hello_with(&mut open(), &hello), Told::Nothing, "{alpn:?}");
        }
    }
    let config = files.caller(of_node(), &[ALPN_FORWARD]);
    assert_eq!(hello(&mut connect(&node, &name, &config), ALL), Told::Welcome);
}

/// One hop also for a node whose hello does not say so.
#[test]
fn what_a_node_with_its_certificate_asks_is_never_sent_on() {
    let files = Files::new();
    let nodes = two(&files, |_| {});
    await_leader(&nodes[1], 1);
    let pair = files.pair_of_node(&files.authority, 1);
    let config = files.caller(Some(pair), &[ALPN_FORWARD]);
    let mut member = connect(&nodes[1], &node_name(CLUSTER, NodeId(2)), &config);
    assert_eq!(hello(&mut member, 0), Told::Welcome);
    let one = Request::new(1, 1).unwrap().to_bytes();
    assert_eq!(told(&mut member, &one), Told::Error(Some(ErrorCode::NotLeader)));
    let client = TcpStream::connect(nodes[1].addr).unwrap();
    client.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let answer = ask_over(client, "/timestamp", "");
    assert!(answer.0 == 200 && answer.1.contains("epicepoch-forwarded: 2"), "{answer:?}");
}
