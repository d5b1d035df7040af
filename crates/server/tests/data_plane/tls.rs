//! TLS on the client port, seen from outside: every protocol inside it, which clients are accepted,
//! and what refused clients are told.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use epicepoch_certs::authority::{Authority, Issued, Validity};
use epicepoch_certs::rustls::pki_types::ServerName;
use epicepoch_certs::rustls::{ClientConfig, ClientConnection, StreamOwned};
use epicepoch_certs::{LivePair, LiveRoots, Pair, PemFile, client_config};
use epicepoch_server::config::{ClientTlsMode, Config};
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::{
    ClientHello, FIRST_BYTE, Request, TO_CLIENT_TAIL_LEN_MAX, ToClient, split,
};
use epicepoch_wire::{NodeId, Timestamp};
use tempfile::TempDir;

use crate::node::{Cluster, TestNode, WAIT_MAX, await_metric};

/// A leader without peers, behind TLS, with its own authority.
struct Secured {
    directory: TempDir,
    authority: Authority,
    node: TestNode,
    roots: Arc<LiveRoots>,
}

type Stream = StreamOwned<ClientConnection, TcpStream>;

fn write(directory: &Path, name: &str, issued: &Issued) -> [std::path::PathBuf; 2] {
    let paths = [directory.join(format!("{name}.pem")), directory.join(format!("{name}.key"))];
    std::fs::write(&paths[0], &issued.certificate).unwrap();
    std::fs::write(&paths[1], &issued.key).unwrap();
    paths
}

impl Secured {
    fn start(mode: ClientTlsMode, asks_for_certificates: bool) -> Self {
        Self::start_with(mode, asks_for_certificates, |_| {})
    }

    fn start_with(
        mode: ClientTlsMode,
        asks_for_certificates: bool,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new("epicepoch").unwrap();
        let issued = authority.node(NodeId(1), &["localhost".into()], Validity::days(9)).unwrap();
        let [certificate, key] = write(directory.path(), "node", &issued);
        let ca = directory.path().join("ca.pem");
        std::fs::write(&ca, authority.certificate()).unwrap();
        let mut cluster = Cluster::new(1);
        let node = cluster.start_with(1, |config| {
            config.tls.clients = mode;
            config.tls.cert_file = certificate;
            config.tls.key_file = key;
            config.tls.client_ca_file = asks_for_certificates.then(|| ca.clone());
            config.election_timeout = WAIT_MAX / 4;
            change(config);
        });
        node.publish(cluster.leading(1, 3, true));
        let roots = LiveRoots::load(PemFile::new("ca", ca)).unwrap();
        Self { directory, authority, node, roots }
    }

    fn config(&self, pair: Option<Arc<LivePair>>, alpn: &[&[u8]]) -> Arc<ClientConfig> {
        Arc::new(client_config(self.roots.clone(), pair, alpn))
    }

    fn connect(&self, config: &Arc<ClientConfig>) -> Stream {
        connect(self.node.addr, config)
    }

    /// Opens a connection without a client certificate.
    fn open(&self, alpn: &[&[u8]]) -> Stream {
        self.connect(&self.config(None, alpn))
    }

    fn pair_of(&self, authority: &Authority) -> Arc<LivePair> {
        let issued = authority.client("app", Validity::days(1)).unwrap();
        let [certificate, key] = write(self.directory.path(), "app", &issued);
        let file = |path| PemFile::new("client", path);
        LivePair::new(Pair::load(file(certificate), file(key)).unwrap())
    }
}

fn connect(addr: SocketAddr, config: &Arc<ClientConfig>) -> Stream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.set_nodelay(true).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    StreamOwned::new(ClientConnection::new(config.clone(), name).unwrap(), stream)
}

const GET: &[u8] = b"GET /timestamp HTTP/1.1\r\nhost: a\r\n\r\n";

/// Reads `count` answers with status 200 and returns their bodies.
fn bodies(stream: &mut impl std::io::Read, count: usize) -> Vec<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut bodies = Vec::new();
    while bodies.len() < count {
        let head = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        if let Some(head) = head {
            let text = String::from_utf8(bytes[..head].to_vec()).unwrap().to_lowercase();
            assert!(text.starts_with("http/1.1 200"), "{text}");
            let length = text.split("content-length: ").nth(1).expect("a length");
            let length: usize = length.lines().next().unwrap().parse().unwrap();
            if bytes.len() >= head + 4 + length {
                bodies.push(bytes[head + 4..head + 4 + length].to_vec());
                bytes.drain(..head + 4 + length);
                continue;
            }
        }
        let mut chunk = [0; 16 << 10];
        let length = stream.read(&mut chunk).expect("an answer");
        assert!(length > 0, "the connection ended behind {} answers", bodies.len());
        bytes.extend_from_slice(&chunk[..length]);
    }
    assert!(bytes.is_empty(), "{} bytes too many", bytes.len());
    bodies
}

#[test]
fn http1_over_tls_is_answered_in_order_on_both_paths() {
    let secured = Secured::start(ClientTlsMode::On, false);
    for alpn in [&[][..], &[&b"http/1.1"[..]][..]] {
        let mut client = secured.open(alpn);
        let mut all = Vec::new();
        for burst in [1, 1, 64, 500] {
            client.write_all(&GET.repeat(burst)).unwrap();
            all.extend(bodies(&mut client, burst));
        }
        // Hyper serves this request. Its answer is longer than a socket buffer or a TLS record.
        client.write_all(b"GET /timestamp?n=65536 HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        let list = bodies(&mut client, 1).remove(0);
        assert_eq!(list.len(), 65536 * Timestamp::LEN);
        client.write_all(GET).unwrap();
        all.extend(list.chunks(Timestamp::LEN).map(<[u8]>::to_vec));
        all.extend(bodies(&mut client, 1));
        assert!(all.is_sorted_by(|a, b| a < b && a.len() == Timestamp::LEN));
    }
    let told = metrics(secured.open(&[]));
    assert!(told.contains("epicepoch_tls_handshakes_total{outcome=\"completed\"} 3"), "{told}");
}

fn metrics(mut stream: Stream) -> String {
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    String::from_utf8(bodies(&mut stream, 1).remove(0)).unwrap()
}

#[test]
fn http2_over_tls_works_with_and_without_alpn() {
    let secured = Secured::start(ClientTlsMode::On, false);
    for alpn in [&[&b"h2"[..], &b"http/1.1"[..]][..], &[][..]] {
        let mut client = secured.open(alpn);
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
        let mut head = [0; 9];
        client.read_exact(&mut head).unwrap();
        assert_eq!((head[3], &head[5..]), (4, &[0; 4][..]), "settings first: {head:?}");
        let expected = alpn.first().copied();
        assert_eq!(client.conn.alpn_protocol(), expected);
    }
    // A protocol that this port does not have is refused in the handshake.
    let mut client = secured.open(&[b"spdy/1"]);
    assert!(client.write_all(GET).and_then(|()| client.read(&mut [0])).is_err());
}

#[test]
fn the_native_protocol_is_spoken_inside_tls() {
    let secured = Secured::start(ClientTlsMode::Both, false);
    for alpn in [&[&b"epicepoch/1"[..]][..], &[][..]] {
        let mut client = secured.open(alpn);
        let mut bytes = Vec::new();
        ClientHello::default().encode(&mut bytes);
        for id in 1..=300 {
            bytes.extend_from_slice(&Request::new(id, 2).unwrap().to_bytes());
        }
        client.write_all(&bytes).unwrap();
        let (mut got, mut ranges) = (Vec::new(), Vec::new());
        while ranges.len() < 300 {
            if let Some(frame) = split(&got, TO_CLIENT_TAIL_LEN_MAX).unwrap() {
                match ToClient::decode(&frame).unwrap() {
                    ToClient::Answer { range, .. } => ranges.push(range.first()),
                    ToClient::Welcome(_) => {}
                    other => panic!("{other:?}"),
                }
                let length = frame.len();
                got.drain(..length);
                continue;
            }
            let mut chunk = [0; 4096];
            let length = client.read(&mut chunk).unwrap();
            assert!(length > 0);
            got.extend_from_slice(&chunk[..length]);
        }
        assert!(ranges.is_sorted_by(|a, b| a < b));
    }
}

#[test]
fn a_plain_client_at_a_port_that_requires_tls_is_told_so() {
    let secured = Secured::start(ClientTlsMode::On, false);
    let mut plain = secured.node.connect();
    let reply = plain.request("GET /timestamp");
    assert_eq!(reply.error(), (400, ErrorCode::BadRequest.name()));
    assert!(reply.text().contains("TLS"), "{}", reply.text());
    assert_eq!(reply.header("cache-control"), "no-store");
    assert_eq!(reply.header("connection"), "close");
    assert!(!reply.header("epicepoch-cluster").is_empty());
    assert!(plain.is_closed());
    let mut native = TcpStream::connect(secured.node.addr).unwrap();
    native.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let mut hello = Vec::new();
    ClientHello::default().encode(&mut hello);
    assert_eq!(hello[0], FIRST_BYTE);
    native.write_all(&hello).unwrap();
    let mut bytes = Vec::new();
    native.read_to_end(&mut bytes).unwrap();
    let frame = split(&bytes, TO_CLIENT_TAIL_LEN_MAX).unwrap().expect("a frame");
    let ToClient::Error(error) = ToClient::decode(&frame).unwrap() else { panic!("no error") };
    assert!(error.closes && error.text.contains("TLS"), "{}", error.text);
    let told = metrics(secured.open(&[]));
    assert!(told.contains("epicepoch_plain_connections_refused_total 2"), "{told}");

    let both = Secured::start(ClientTlsMode::Both, false);
    assert_eq!(both.node.request("GET /timestamp").timestamps().len(), 1);
    let mut client = both.open(&[]);
    client.write_all(GET).unwrap();
    bodies(&mut client, 1);
}

#[test]
fn no_client_without_the_required_certificate_gets_an_answer() {
    let secured = Secured::start(ClientTlsMode::On, true);
    let own = secured.config(Some(secured.pair_of(&secured.authority)), &[]);
    let stranger = Authority::new("epicepoch").unwrap();
    let foreign = secured.config(Some(secured.pair_of(&stranger)), &[]);
    let mut hello = Vec::new();
    ClientHello::default().encode(&mut hello);
    for config in [secured.config(None, &[]), foreign] {
        for bytes in [GET, &hello] {
            let mut client = secured.connect(&config);
            let asked = client.write_all(bytes).and_then(|()| client.read(&mut [0]));
            let error = asked.expect_err("no answer").to_string();
            // The client gets an alert with the reason before the connection is closed.
            assert!(error.contains("received fatal alert"), "{error}");
        }
    }
    let mut client = secured.connect(&own);
    client.write_all(GET).unwrap();
    bodies(&mut client, 1);
    let told = metrics(secured.connect(&own));
    assert!(told.contains("epicepoch_tls_handshakes_total{outcome=\"failed\"} 4"), "{told}");
    assert!(told.contains("epicepoch_certificate_expiry_timestamp_seconds"), "{told}");
}

#[test]
fn half_open_handshakes_keep_no_other_client_out() {
    let secured = Secured::start(ClientTlsMode::Both, false);
    // These clients send the first flight of a handshake and then nothing. There are more of them
    // than open handshakes are allowed.
    let name = ServerName::try_from("localhost").unwrap();
    let mut session = ClientConnection::new(secured.config(None, &[]), name).unwrap();
    let mut hello = Vec::new();
    session.write_tls(&mut hello).unwrap();
    let stuck = 600;
    let half_open: Vec<_> = (0..stuck)
        .map(|_| {
            let mut stream = TcpStream::connect(secured.node.addr).unwrap();
            stream.write_all(&hello).unwrap();
            stream
        })
        .collect();
    // The node has ended the oldest handshakes to make room for new ones.
    await_metric(secured.node.addr, "epicepoch_tls_handshakes_total{outcome=\"failed\"}", 88);
    for _ in 0..3 {
        let mut client = secured.open(&[]);
        client.write_all(GET).unwrap();
        bodies(&mut client, 1);
    }
    drop(half_open);
}

#[test]
fn a_client_behind_tls_is_told_of_an_orderly_end() {
    let secured = Secured::start(ClientTlsMode::On, false);
    let mut client = secured.open(&[]);
    client.write_all(b"GET /timestamp HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    bodies(&mut client, 1);
    // Without the `close_notify` alert this would be an error, because the answer may be
    // incomplete.
    assert_eq!(client.read(&mut [0]).expect("an orderly end"), 0);
}

/// Either the client ends the connection, or the node ends it because of a timeout.
#[test]
fn every_end_of_a_tls_connection_is_announced_to_its_client() {
    let secured = Secured::start_with(ClientTlsMode::On, false, |config| {
        config.limits.head_timeout = Duration::from_secs(1);
    });
    for request in [GET, b"GET /up HTTP/1.1\r\nhost: a\r\n\r\n"] {
        // The client sends no more, and reads.
        let mut client = secured.open(&[]);
        client.write_all(request).unwrap();
        client.conn.send_close_notify();
        client.flush().unwrap();
        bodies(&mut client, 1);
        assert_eq!(client.read(&mut [0]).expect("an orderly end"), 0);
        // The client leaves a request head incomplete for too long.
        let mut client = secured.open(&[]);
        client.write_all(request).unwrap();
        bodies(&mut client, 1);
        client.write_all(b"GET /timesta").unwrap();
        assert_eq!(client.read(&mut [0]).expect("an orderly end"), 0);
    }
}

#[test]
fn the_port_for_operators_requires_no_client_certificate() {
    let secured = Secured::start_with(ClientTlsMode::On, true, |config| {
        config.authz.ops_addr = Some("127.0.0.1:0".parse().unwrap());
    });
    let ops = secured.node.ops_addr.expect("a port for operators");
    let stranger = secured.config(None, &[b"http/1.1"]);
    let ask = |addr, path: &str| {
        let mut client = connect(addr, &stranger);
        write!(client, "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        client.read_to_string(&mut answer).ok()?;
        Some(answer)
    };
    for path in ["/up", "/metrics"] {
        let answer = ask(ops, path).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        assert_eq!(ask(secured.node.addr, path), None, "{path}");
    }
    let answer = ask(ops, "/timestamp").expect("an answer");
    assert!(!answer.starts_with("HTTP/1.1 200"), "timestamps are clients': {answer}");
}
