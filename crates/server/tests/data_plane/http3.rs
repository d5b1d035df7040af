//! The same port over UDP: HTTP/3, with a client that says what it wants byte by byte, so that each
//! limit is met by one who does not keep to it.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use epicepoch_bench::http3::answer::Answers;
use epicepoch_bench::http3::control::Beside;
use epicepoch_bench::http3::qpack::Head;
use epicepoch_bench::http3::{CONTROL, kind, number, request};
use epicepoch_certs::authority::{Authority, Issued, Validity};
use epicepoch_certs::config::ALPN_H3;
use epicepoch_certs::{LivePair, LiveRoots, Pair, PemFile, client_config, server_config};
use epicepoch_server::Config;
use epicepoch_server::config::ClientTlsMode;
use epicepoch_server::http::http3::{endpoint, limits};
use epicepoch_server::rights::Port;
use epicepoch_server::tls::load_http3;
use epicepoch_server::tls::upkeep::Certificates;
use epicepoch_wire::NodeId;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ConnectionError, Endpoint, ReadToEndError, VarInt};
use tempfile::TempDir;

use crate::node::{Cluster, PATIENCE, TestNode};

/// `H3_EXCESSIVE_LOAD` (RFC 9114, 8.1).
const EXCESSIVE_LOAD: VarInt = VarInt::from_u32(0x107);
/// `H3_NO_ERROR`.
const NO_ERROR: VarInt = VarInt::from_u32(0x100);

/// A node that serves HTTP/3, and what its clients need to trust it.
struct Stage {
    node: TestNode,
    cluster: Cluster,
    addr: SocketAddr,
    dir: TempDir,
}

impl Stage {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Config)) -> Self {
        Self::of(1, change)
    }

    /// Node 1 of a cluster of so many.
    fn of(count: u64, change: impl FnOnce(&mut Config)) -> Self {
        let mut cluster = Cluster::new(count);
        let node = cluster.start_with(1, |config| {
            config.election_timeout = PATIENCE / 4;
            change(config);
        });
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| PemFile::new("CERT_FILE", dir.path().join(name));
        let names = ["localhost".to_owned()];
        let pair = Pair::load_or_make(file("cert.pem"), file("key.pem"), &names).unwrap();
        let tls = server_config(LivePair::new(pair), None, &[ALPN_H3]);
        let workers = node.shared.config.workers;
        let first = endpoint::bind((Ipv4Addr::LOCALHOST, 0).into(), 1).unwrap();
        let addr = first[0].local_addr().unwrap();
        let mut sockets = endpoint::bind(addr, workers - 1).unwrap();
        sockets.extend(first);
        node.workers
            .serve_http3(sockets, Arc::new(tls), Port::Shared, &node.shared.config)
            .unwrap();
        node.publish(cluster.leading(1, 3, true));
        node.await_metric("epicepoch_is_leader", 1);
        Self { node, cluster, addr, dir }
    }

    fn metric(&self, name: &str) -> u64 {
        self.node.metric(name)
    }

    /// A client's end of UDP.
    fn endpoint(&self) -> Endpoint {
        let ca = PemFile::new("--ca-file", self.dir.path().join("cert.pem"));
        let tls = client_config(LiveRoots::load(ca).unwrap(), None, &[ALPN_H3]);
        let quic = QuicClientConfig::try_from(tls).unwrap();
        let mut endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(quic)));
        endpoint
    }

    /// A connection of somebody who lets the server open no stream, so that it cannot say its first
    /// words, and who keeps the connection from being silent.
    async fn connect_as_miser(&self) -> (Endpoint, quinn::Connection) {
        let ca = PemFile::new("--ca-file", self.dir.path().join("cert.pem"));
        let tls = client_config(LiveRoots::load(ca).unwrap(), None, &[ALPN_H3]);
        let quic = QuicClientConfig::try_from(tls).unwrap();
        let mut transport = quinn::TransportConfig::default();
        transport.max_concurrent_uni_streams(VarInt::from_u32(0));
        transport.keep_alive_interval(Some(Duration::from_millis(100)));
        let mut config = quinn::ClientConfig::new(Arc::new(quic));
        config.transport_config(Arc::new(transport));
        let endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let connecting = endpoint.connect_with(config, self.addr, "localhost").unwrap();
        let quic = connecting.await.unwrap();
        (endpoint, quic)
    }

    async fn connect(&self) -> Client {
        let endpoint = self.endpoint();
        let quic = endpoint.connect(self.addr, "localhost").unwrap().await.unwrap();
        Client::begin(quic, endpoint).await
    }
}

struct Client {
    quic: quinn::Connection,
    control: quinn::SendStream,
    _endpoint: Endpoint,
}

impl Client {
    async fn begin(quic: quinn::Connection, endpoint: Endpoint) -> Self {
        let mut control = quic.open_uni().await.unwrap();
        control.write_all(CONTROL).await.unwrap();
        Self { quic, control, _endpoint: endpoint }
    }

    async fn get(&self, path: &str) -> (Head, Vec<u8>) {
        self.send(&request(path, "localhost", None)).await.expect("an answer")
    }

    /// What comes back for these bytes on a request's stream.
    async fn send(&self, bytes: &[u8]) -> Result<(Head, Vec<u8>), ReadToEndError> {
        let (mut send, mut recv) = self.quic.open_bi().await.unwrap();
        // A server that refuses does not read on.
        let _ = send.write_all(bytes).await;
        let _ = send.finish();
        let stream = recv.read_to_end(4 << 20).await?;
        let mut answers = Answers::default();
        let answer = answers.read(&stream).unwrap();
        Ok((answer.head.clone(), answer.body.into_owned()))
    }

    /// The code with which the server ends the connection.
    async fn ended(&self) -> VarInt {
        match self.quic.closed().await {
            ConnectionError::ApplicationClosed(close) => close.error_code,
            error => panic!("not ended by HTTP/3: {error}"),
        }
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let future = async { tokio::time::timeout(PATIENCE, future).await.expect("in time") };
    runtime.block_on(future)
}

#[test]
fn http3_gets_the_same_answers() {
    let stage = Stage::new();
    block_on(async {
        let client = stage.connect().await;
        let (head, first) = client.get("/timestamp").await;
        assert_eq!((head.status, first.len()), (200, 16));
        let (_, second) = client.get("/timestamp").await;
        assert!(first < second);
        assert_eq!(client.get("/timestamp?n=65536").await.1.len(), 1 << 20);
        assert_eq!(client.get("/timestamp?n=1000&format=range").await.1.len(), 24);
        let (head, text) = client.get("/timestamp?n=1000&format=json").await;
        assert_eq!(head.status, 200);
        assert!(text.ends_with(b"]}\n"));
        let (head, _) = client.get("/timestamp?n=0").await;
        assert_eq!((head.status, &*head.error), (400, "BAD_COUNT"));
        let (head, _) = client.get("/nowhere").await;
        assert_eq!((head.status, &*head.error), (404, "NOT_FOUND"));
        assert_eq!(stage.metric("epicepoch_http3_connections_open"), 1);
    });
}

/// The first answer that is not a timestamp: what was published is taken in at once, but not before
/// the next request.
async fn first_refusal(client: &Client) -> (Head, Vec<u8>) {
    loop {
        let (head, body) = client.get("/timestamp").await;
        if head.status != 200 {
            return (head, body);
        }
    }
}

#[test]
fn a_node_that_knows_no_leader_says_so_over_http3() {
    let stage = Stage::new();
    stage.node.publish(stage.cluster.nothing(1));
    block_on(async {
        let client = stage.connect().await;
        let (head, _) = first_refusal(&client).await;
        assert_eq!((head.status, &*head.error, &*head.leader), (503, "NO_LEADER", ""));
    });
}

#[test]
fn a_follower_names_the_leader_over_http3() {
    let stage = Stage::of(2, |_| {});
    let mut published = stage.cluster.nothing(1);
    published.leader = Some(NodeId(2));
    stage.node.publish(published);
    block_on(async {
        let client = stage.connect().await;
        let (head, body) = first_refusal(&client).await;
        assert_eq!((head.status, &*head.error), (409, "NOT_LEADER"));
        assert_eq!(&*head.leader, "client-2.test:80");
        assert_eq!(body, b"client-2.test:80");
    });
}

#[test]
fn streams_share_rounds_and_get_distinct_timestamps() {
    let stage = Stage::with(|config| config.workers = 2);
    block_on(async {
        let (one, two) = (stage.connect().await, stage.connect().await);
        let mut all = Vec::new();
        for _ in 0..10 {
            let asked = (0..20).map(|turn| if turn % 2 == 0 { &one } else { &two });
            let mut open = Vec::new();
            for client in asked {
                let (mut send, recv) = client.quic.open_bi().await.unwrap();
                send.write_all(&request("/timestamp", "localhost", None)).await.unwrap();
                send.finish().unwrap();
                open.push(recv);
            }
            for mut recv in open {
                let stream = recv.read_to_end(1 << 16).await.unwrap();
                all.push(Answers::default().read(&stream).unwrap().body.into_owned());
            }
        }
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 200);
    });
}

/// The head of a `POST`, with a body of this length behind it in one frame.
fn post(len: usize) -> Vec<u8> {
    let mut bytes = request("/timestamp", "localhost", None);
    let get = bytes.iter().position(|byte| *byte == 0xd1).unwrap();
    bytes[get] = 0xd4;
    number::put(&mut bytes, kind::DATA);
    number::put(&mut bytes, len as u64);
    bytes.resize(bytes.len() + len, b'x');
    bytes
}

#[test]
fn a_short_body_is_ignored_and_a_long_one_refused() {
    let stage = Stage::new();
    block_on(async {
        let client = stage.connect().await;
        assert_eq!(client.send(&post(4096)).await.unwrap().0.status, 200);
        let (head, _) = client.send(&post(4097)).await.unwrap();
        assert_eq!((head.status, &*head.error), (400, "BAD_REQUEST"));
    });
}

#[test]
fn a_head_that_is_too_large_is_refused() {
    let stage = Stage::new();
    block_on(async {
        let client = stage.connect().await;
        let path = format!("/up?{}", "x".repeat(limits::HEAD_LEN_MAX as usize));
        assert_eq!(client.get(&path).await.0.status, 431);
        assert_eq!(client.get("/up").await.0.status, 200);
    });
}

#[test]
fn a_stream_brings_no_more_than_it_may() {
    let stage = Stage::new();
    block_on(async {
        let client = stage.connect().await;
        for kind in [kind::HEADERS, 0x21] {
            // A frame of a terabyte, of which the library would keep whatever comes.
            let (mut send, _recv) = client.quic.open_bi().await.unwrap();
            let mut head = Vec::new();
            number::put(&mut head, kind);
            number::put(&mut head, 1 << 40);
            send.write_all(&head).await.unwrap();
            let part = vec![0; 1 << 10];
            let mut written = 0;
            while send.write_all(&part).await.is_ok() {
                written += part.len();
                assert!(written <= 2 * limits::REQUEST_LEN_MAX, "{written} bytes were taken");
            }
            let stopped = send.stopped().await.unwrap();
            assert_eq!(stopped, Some(EXCESSIVE_LOAD), "kind {kind}");
        }
        assert_eq!(client.get("/up").await.0.status, 200);
    });
}

#[test]
fn a_control_frame_that_says_it_is_long_ends_the_connection() {
    let stage = Stage::new();
    block_on(async {
        let mut client = stage.connect().await;
        let mut frame = Vec::new();
        number::put(&mut frame, 0x21);
        number::put(&mut frame, limits::CONTROL_FRAME_LEN_MAX + 1);
        client.control.write_all(&frame).await.unwrap();
        assert_eq!(client.ended().await, EXCESSIVE_LOAD);
    });
    stage.node.await_metric("epicepoch_http3_abusers_closed_total", 1);
}

#[test]
fn what_comes_beside_requests_has_an_end() {
    let stage = Stage::new();
    block_on(async {
        let mut client = stage.connect().await;
        // Frames that mean nothing, each of them short.
        let frame = [0x21, 32].into_iter().chain([0; 32]).collect::<Vec<_>>();
        while client.control.write_all(&frame).await.is_ok() {}
        assert_eq!(client.ended().await, EXCESSIVE_LOAD);
        let client = stage.connect().await;
        // Streams of a kind that means nothing.
        while let Ok(mut stream) = client.quic.open_uni().await {
            let _ = stream.write_all(&[0x21, 1]).await;
        }
        assert_eq!(client.ended().await, EXCESSIVE_LOAD);
    });
    stage.node.await_metric("epicepoch_http3_abusers_closed_total", 2);
}

#[test]
fn requests_that_are_taken_back_have_an_end() {
    let stage = Stage::new();
    block_on(async {
        let client = stage.connect().await;
        let path = request("/timestamp", "localhost", None);
        let mut opened = 0;
        while let Ok((mut send, mut recv)) = client.quic.open_bi().await {
            // Half of them before the server can know what they are.
            if opened % 2 == 0 {
                let _ = send.write_all(&path[..3]).await;
                tokio::task::yield_now().await;
                let _ = send.reset(EXCESSIVE_LOAD);
            } else {
                let _ = send.write_all(&path).await;
                let _ = recv.stop(EXCESSIVE_LOAD);
                let _ = send.reset(EXCESSIVE_LOAD);
            }
            opened += 1;
            assert!(opened < 100 * limits::TAKEN_BACK_MAX, "{opened} were taken");
        }
        assert_eq!(client.ended().await, EXCESSIVE_LOAD);
        let other = stage.connect().await;
        assert_eq!(other.get("/timestamp").await.0.status, 200);
    });
    stage.node.await_metric("epicepoch_http3_abusers_closed_total", 1);
}

#[test]
fn so_many_streams_are_open_at_once_and_no_datagrams_are_taken() {
    let stage = Stage::new();
    block_on(async {
        let client = stage.connect().await;
        assert_eq!(client.quic.max_datagram_size(), None);
        let mut open = Vec::new();
        for _ in 0..limits::STREAMS_MAX {
            open.push(client.quic.open_bi().await.unwrap());
        }
        let another = tokio::time::timeout(Duration::from_millis(200), client.quic.open_bi());
        assert!(another.await.is_err(), "more streams than {}", limits::STREAMS_MAX);
        let mut beside = vec![];
        for _ in 1..limits::STREAMS_BESIDE_MAX {
            beside.push(client.quic.open_uni().await.unwrap());
        }
        let another = tokio::time::timeout(Duration::from_millis(200), client.quic.open_uni());
        assert!(another.await.is_err(), "more than {}", limits::STREAMS_BESIDE_MAX);
    });
}

#[test]
fn connections_of_http3_count_as_all_do() {
    let stage = Stage::with(|config| config.connections_max = 2);
    block_on(async {
        let first = stage.connect().await;
        assert_eq!(first.get("/up").await.0.status, 200);
        let _second = stage.connect().await;
        let endpoint = stage.endpoint();
        let refused = endpoint.connect(stage.addr, "localhost").unwrap().await.unwrap_err();
        // It has proven its address before it is told.
        let ConnectionError::ConnectionClosed(close) = refused else { panic!("{refused}") };
        assert_eq!(close.error_code, quinn::TransportErrorCode::CONNECTION_REFUSED);
        assert_eq!(first.get("/up").await.0.status, 200);
        let tcp = std::net::TcpStream::connect(stage.node.addr).unwrap();
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        let read = std::io::Read::read(&mut &tcp, &mut [0; 1]);
        let is_closed = read.as_ref().is_ok_and(|len| *len == 0)
            || read.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
        assert!(is_closed, "TCP has no room either: {read:?}");
    });
}

#[test]
fn a_node_that_stops_says_so_and_answers_what_it_has() {
    let stage = Stage::new();
    block_on(async {
        let client = stage.connect().await;
        assert_eq!(client.get("/timestamp").await.0.status, 200);
        // Its head has come and its body has not: it is being answered.
        let (mut send, mut recv) = client.quic.open_bi().await.unwrap();
        let request = post(10);
        send.write_all(&request[..request.len() - 1]).await.unwrap();
        assert_eq!(client.get("/up").await.0.status, 200);
        let workers = stage.node.workers.clone();
        let stopping = std::thread::spawn(move || workers.shutdown(PATIENCE));
        let mut beside = Beside::default();
        let mut control = client.quic.accept_uni().await.unwrap();
        let mut bytes = [0; 64];
        loop {
            let len = control.read(&mut bytes).await.unwrap().expect("it says when it goes");
            if beside.receive(&bytes[..len]) {
                break;
            }
        }
        send.write_all(&request[request.len() - 1..]).await.unwrap();
        send.finish().unwrap();
        let stream = recv.read_to_end(1 << 16).await.unwrap();
        let status = Answers::default().read(&stream).unwrap().head.status;
        assert_eq!(status, 200);
        assert_eq!(client.ended().await, NO_ERROR);
        assert!(stopping.join().unwrap());
    });
}

#[test]
fn half_a_head_has_its_time_and_so_has_silence() {
    let second = Duration::from_secs(1);
    let stage = Stage::with(|config| {
        config.limits.head_timeout = second;
        config.limits.idle_timeout = 2 * second;
    });
    block_on(async {
        let client = stage.connect().await;
        let (mut send, mut recv) = client.quic.open_bi().await.unwrap();
        let head = request("/timestamp", "localhost", None);
        send.write_all(&head[..head.len() - 1]).await.unwrap();
        let cut = recv.read_to_end(1 << 16).await.unwrap_err();
        assert!(matches!(cut, ReadToEndError::Read(quinn::ReadError::Reset(_))), "{cut}");
        assert_eq!(client.get("/timestamp").await.0.status, 200);
        // From here on it says nothing.
        assert_eq!(client.ended().await, NO_ERROR);
        // And this one never did.
        let endpoint = stage.endpoint();
        let quic = endpoint.connect(stage.addr, "localhost").unwrap().await.unwrap();
        assert!(matches!(quic.closed().await, ConnectionError::ApplicationClosed(_)));
    });
    stage.node.await_metric("epicepoch_connections_idle_closed_total", 2);
}

#[test]
fn a_client_that_lets_the_server_open_no_stream_is_closed_all_the_same() {
    let stage = Stage::with(|config| config.limits.head_timeout = Duration::from_secs(1));
    block_on(async {
        let (_endpoint, quic) = stage.connect_as_miser().await;
        let ended = quic.closed().await;
        let ConnectionError::ApplicationClosed(close) = &ended else { panic!("{ended}") };
        assert_eq!(close.error_code, NO_ERROR);
    });
    stage.node.await_metric("epicepoch_connections_idle_closed_total", 1);
    assert_eq!(stage.metric("epicepoch_http3_connections_open"), 0);
}

#[test]
fn a_client_that_lets_the_server_open_no_stream_does_not_delay_a_node_that_stops() {
    let stage = Stage::new();
    block_on(async {
        let (_endpoint, quic) = stage.connect_as_miser().await;
        while stage.metric("epicepoch_http3_connections_open") == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let workers = stage.node.workers.clone();
        let stopping = std::thread::spawn(move || workers.shutdown(PATIENCE / 2));
        let ended = quic.closed().await;
        assert!(matches!(ended, ConnectionError::ApplicationClosed(_)), "{ended}");
        assert!(stopping.join().unwrap(), "it had to be cut off");
    });
}

#[test]
fn once_many_shake_hands_addresses_are_proven_first() {
    let stage = Stage::new();
    block_on(async {
        // Clients that never hear from the server: what they send is passed on, and nothing back.
        let deaf = tokio::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let front = deaf.local_addr().unwrap();
        let to = stage.addr;
        let passing = tokio::spawn(async move {
            let mut datagram = [0; 2048];
            loop {
                let (len, from) = deaf.recv_from(&mut datagram).await.unwrap();
                if from != to {
                    deaf.send_to(&datagram[..len], to).await.unwrap();
                }
            }
        });
        let endpoint = stage.endpoint();
        let connect = |_| endpoint.connect(front, "localhost").unwrap();
        let begun: Vec<_> = (0..2 * limits::HANDSHAKES_BEFORE_RETRY).map(connect).collect();
        while stage.metric("epicepoch_quic_retries_total") == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let before = stage.metric("epicepoch_quic_retries_total");
        let client = stage.connect().await;
        assert_eq!(client.get("/timestamp").await.0.status, 200);
        let after = stage.metric("epicepoch_quic_retries_total");
        assert!(after > before, "it was told to prove it: {before} {after}");
        let open = stage.metric("epicepoch_http3_connections_open");
        assert_eq!(open, 1);
        drop(begun);
        passing.abort();
    });
}

#[test]
fn clients_show_a_certificate_over_http3_where_they_have_to_over_tcp() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let authority = Authority::new("epicepoch").unwrap();
    let write = |name: &str, issued: &Issued| {
        std::fs::write(at(&format!("{name}.pem")), &issued.certificate).unwrap();
        std::fs::write(at(&format!("{name}.key")), &issued.key).unwrap();
    };
    let names = ["localhost".to_owned()];
    write("node", &authority.node(NodeId(1), &names, Validity::days(9)).unwrap());
    write("app", &authority.client("app", Validity::days(9)).unwrap());
    std::fs::write(at("ca.pem"), authority.certificate()).unwrap();
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| {
        config.tls.clients = ClientTlsMode::On;
        config.tls.cert_file = at("node.pem");
        config.tls.key_file = at("node.key");
        config.tls.client_ca_file = Some(at("ca.pem"));
        config.election_timeout = PATIENCE / 4;
    });
    let (config, tcp) = (&node.shared.config, node.shared.tls.as_ref());
    let tls = load_http3(config, tcp, &mut Certificates::default()).unwrap().expect("it is on");
    let sockets = endpoint::bind((Ipv4Addr::LOCALHOST, 0).into(), 1).unwrap();
    let addr = sockets[0].local_addr().unwrap();
    node.workers.serve_http3(sockets, tls, Port::Shared, config).unwrap();
    node.publish(cluster.leading(1, 3, true));
    let ca = LiveRoots::load(PemFile::new("--ca-file", at("ca.pem"))).unwrap();
    let file = |name: &str| PemFile::new("--cert-file", at(name));
    let pair = LivePair::new(Pair::load(file("app.pem"), file("app.key")).unwrap());
    block_on(async {
        for (pair, is_taken) in [(None, false), (Some(pair), true)] {
            let tls = client_config(ca.clone(), pair, &[ALPN_H3]);
            let quic = QuicClientConfig::try_from(tls).unwrap();
            let endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
            let client = quinn::ClientConfig::new(Arc::new(quic));
            let connecting = endpoint.connect_with(client, addr, "localhost").unwrap();
            match connecting.await {
                Ok(quic) if is_taken => {
                    let client = Client::begin(quic, endpoint).await;
                    assert_eq!(client.get("/up").await.0.status, 200);
                }
                // The client is through before the server has seen that there is none.
                Ok(quic) => {
                    let refused = quic.closed().await;
                    assert!(matches!(refused, ConnectionError::ConnectionClosed(_)), "{refused}");
                }
                Err(error) => assert!(!is_taken, "{error}"),
            }
        }
    });
}
