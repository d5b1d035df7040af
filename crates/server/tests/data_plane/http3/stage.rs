//! A node that serves HTTP/3, and clients of it: the `h3` crate, and one whose test writes each
//! byte.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use epicepoch_bench::quic;
use epicepoch_certs::config::ALPN_H3;
use epicepoch_certs::{LivePair, LiveRoots, Pair, PemFile, client_config, server_config};
use epicepoch_server::Config;
use epicepoch_server::front;
use epicepoch_server::front::http3::endpoint;
use epicepoch_server::security::authz::Port;
use h3::client::{RequestStream, SendRequest};
use h3::error::StreamError;
use http::Request;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Endpoint, VarInt};
use tempfile::TempDir;

use crate::node::{Cluster, TestNode, WAIT_MAX};
use epicepoch_wire::http::{HEADER_ERROR, HEADER_FORWARDED, HEADER_LEADER, HEADER_PROOF};

/// A node that serves HTTP/3, and the files that its clients need to trust it.
pub(super) struct Stage {
    pub(super) node: TestNode,
    pub(super) cluster: Cluster,
    pub(super) addr: SocketAddr,
    pub(super) dir: TempDir,
}

impl Stage {
    pub(super) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(super) fn with(change: impl FnOnce(&mut Config)) -> Self {
        Self::of(1, change)
    }

    /// Node 1 of a cluster of `count` nodes.
    pub(super) fn of(count: u64, change: impl FnOnce(&mut Config)) -> Self {
        let mut cluster = Cluster::new(count);
        let node = cluster.start_with(1, |config| {
            config.election_timeout = WAIT_MAX / 4;
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
        front::serve_http3(&node.workers, sockets, Arc::new(tls), Port::Shared, &node.shared)
            .unwrap();
        node.publish(cluster.leading(1, 3, true));
        node.await_metric("epicepoch_is_leader", 1);
        Self { node, cluster, addr, dir }
    }

    pub(super) fn metric(&self, name: &str) -> u64 {
        self.node.metric(name)
    }

    /// A client's UDP endpoint.
    pub(super) fn endpoint(&self) -> Endpoint {
        let ca = PemFile::new("--ca-file", self.dir.path().join("cert.pem"));
        let tls = client_config(LiveRoots::load(ca).unwrap(), None, &[ALPN_H3]);
        let quic = QuicClientConfig::try_from(tls).unwrap();
        let mut endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(quic)));
        endpoint
    }

    /// A connection of a client that does not allow the server to open a stream, so that the server
    /// cannot send its settings. The client keeps the connection from becoming idle.
    pub(super) async fn connect_as_miser(&self) -> (Endpoint, quinn::Connection) {
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

    pub(super) async fn connect(&self) -> Client {
        let endpoint = self.endpoint();
        let quic = endpoint.connect(self.addr, "localhost").unwrap().await.unwrap();
        Client::begin(quic, endpoint).await
    }

    pub(super) async fn connect_by_hand(&self) -> ByHand {
        let endpoint = self.endpoint();
        let quic = endpoint.connect(self.addr, "localhost").unwrap().await.unwrap();
        let mut control = quic.open_uni().await.unwrap();
        // Opens a control stream with empty settings.
        control.write_all(&[0, 4, 0]).await.unwrap();
        ByHand { quic, control, _endpoint: endpoint }
    }
}

/// A connection on which a test writes each byte.
pub(super) struct ByHand {
    pub(super) quic: quinn::Connection,
    pub(super) control: quinn::SendStream,
    _endpoint: Endpoint,
}

impl ByHand {
    /// Waits for a GOAWAY of the server, and returns the id in it.
    pub(super) async fn goaway(&self) -> u8 {
        loop {
            let mut stream = self.quic.accept_uni().await.unwrap();
            let mut byte = [0];
            stream.read_exact(&mut byte).await.unwrap();
            // Type 0 is the control stream. All numbers on it have one byte here.
            if byte != [0] {
                continue;
            }
            loop {
                let mut head = [0; 2];
                stream.read_exact(&mut head).await.unwrap();
                let mut payload = vec![0; head[1].into()];
                stream.read_exact(&mut payload).await.unwrap();
                if head[0] == 7 {
                    return payload[0];
                }
            }
        }
    }
}

/// The client of the `h3` crate.
pub(super) struct Client {
    pub(super) quic: quinn::Connection,
    pub(super) requests: SendRequest<quic::Connection, Bytes>,
    _endpoint: Endpoint,
}

pub(super) type Asked = RequestStream<quic::Stream, Bytes>;

/// The headers of an answer.
pub(super) struct Head {
    pub(super) status: u16,
    pub(super) error: String,
    pub(super) leader: String,
    pub(super) proof: String,
    pub(super) forwarded: String,
    pub(super) length: String,
}

impl Client {
    pub(super) async fn begin(quic: quinn::Connection, endpoint: Endpoint) -> Self {
        let (mut driver, requests) =
            h3::client::new(quic::Connection::new(quic.clone())).await.unwrap();
        tokio::spawn(async move { driver.wait_idle().await });
        Self { quic, requests, _endpoint: endpoint }
    }

    pub(super) async fn get(&self, path: &str) -> (Head, Vec<u8>) {
        let mut asked = self.ask("GET", path).await.unwrap();
        asked.finish().await.unwrap();
        answer(asked).await
    }

    /// Sends a `POST` with a body of `len` bytes to `/timestamp`.
    pub(super) async fn post(&self, len: usize) -> (Head, Vec<u8>) {
        let mut asked = self.ask("POST", "/timestamp").await.unwrap();
        // Errors are ignored: a server that refuses the request does not read the whole body.
        let _ = asked.send_data(vec![b'x'; len].into()).await;
        let _ = asked.finish().await;
        answer(asked).await
    }

    pub(super) async fn ask(&self, method: &str, path: &str) -> Result<Asked, StreamError> {
        let uri = format!("https://localhost{path}");
        let request = Request::builder().method(method).uri(uri).body(()).unwrap();
        self.requests.clone().send_request(request).await
    }
}

pub(super) async fn answer(mut asked: Asked) -> (Head, Vec<u8>) {
    let head = asked.recv_response().await.unwrap();
    let header = |name| head.headers().get(name).map_or("", |value| value.to_str().unwrap()).into();
    let (error, leader) = (header(HEADER_ERROR), header(HEADER_LEADER));
    let (proof, forwarded) = (header(HEADER_PROOF), header(HEADER_FORWARDED));
    let length = header("content-length");
    let mut body = Vec::new();
    while let Some(mut data) = asked.recv_data().await.unwrap() {
        body.extend_from_slice(&data.copy_to_bytes(data.remaining()));
    }
    let status = head.status().as_u16();
    (Head { status, error, leader, proof, forwarded, length }, body)
}
