//! Requests over HTTP/3, with the `h3` crate. Each stream of a connection has its own task, which
//! sends the next request when it has its answer.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Buf as _, Bytes};
use epicepoch_certs::config::ALPN_H3;
use epicepoch_certs::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use epicepoch_certs::rustls::crypto::ring::default_provider;
use epicepoch_certs::rustls::crypto::{
    CryptoProvider, verify_tls12_signature, verify_tls13_signature,
};
use epicepoch_certs::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use epicepoch_certs::rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use epicepoch_wire::http::{HEADER_ERROR, HEADER_LEADER, HEADER_PROOF};
use h3::client::SendRequest;
use h3::error::{Code, ConnectionError, StreamError};
use http::header::AUTHORIZATION;
use http::{Request, Response};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Endpoint, VarInt};
use tokio::task::{JoinSet, spawn_local};
use tokio::time::{timeout, timeout_at};

use super::load_connection::{Answer, CONNECT_TIMEOUT, LoadConnection, Next};
use crate::quic;

/// Sends requests until the measurement is over.
pub(super) async fn drive(load: LoadConnection, streams: usize) {
    let load = Rc::new(load);
    while !load.is_over() {
        let opened = timeout(CONNECT_TIMEOUT, Connection::open(&load)).await;
        let next = if let Ok(Ok((connection, driver))) = opened {
            Rc::new(connection).ask_all(driver, streams).await
        } else {
            load.not_connected();
            Next::Elsewhere
        };
        load.turn(next).await;
    }
    load.finish();
}

type Driver = h3::client::Connection<quic::Connection, Bytes>;

/// A connection on which requests may be sent.
struct Connection {
    load: Rc<LoadConnection>,
    quic: quinn::Connection,
    endpoint: Endpoint,
    requests: SendRequest<quic::Connection, Bytes>,
    request: Request<()>,
    /// Which node to ask next. Unless this is `Stay`, no more requests are sent on this connection.
    leaving: Cell<Next>,
}

impl Connection {
    async fn open(load: &Rc<LoadConnection>) -> io::Result<(Self, Driver)> {
        let target = load.target();
        let any: IpAddr = match target.addr {
            std::net::SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            std::net::SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let tls = match &load.config.tls {
            Some(tls) => {
                tls.refresh();
                tls.config(ALPN_H3)
            }
            None => Arc::new(trusting_anybody()),
        };
        let crypto = QuicClientConfig::try_from(tls).map_err(io::Error::other)?;
        let mut endpoint = Endpoint::client((any, 0).into())?;
        endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(crypto)));
        let host = target.name.rsplit_once(':').map_or(&*target.name, |(host, _)| host);
        let host = host.trim_matches(['[', ']']);
        let connecting = endpoint.connect(target.addr, host).map_err(io::Error::other)?;
        let quic = connecting.await?;
        let mut builder = h3::client::builder();
        let building = builder.send_grease(false).build(quic::Connection::new(quic.clone()));
        let (driver, requests) = building.await.map_err(io::Error::other)?;
        let uri = format!("https://{}{}", target.name, load.config.path());
        let mut request = Request::get(uri);
        if let Some(authorization) = load.config.authorization() {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(()).map_err(io::Error::other)?;
        let (load, leaving) = (load.clone(), Cell::new(Next::Stay));
        Ok((Self { load, quic, endpoint, requests, request, leaving }, driver))
    }

    /// Sends requests until the connection is of no more use, or the measurement is over.
    async fn ask_all(self: Rc<Self>, mut driver: Driver, streams: usize) -> Next {
        let connection = self.clone();
        let driving = spawn_local(async move {
            if let ConnectionError::Local { .. } = driver.wait_idle().await {
                let _counted = connection.load.violated();
            }
            connection.leave(Next::Elsewhere);
        });
        let mut callers = JoinSet::new();
        for _ in 0..streams {
            callers.spawn_local(self.clone().call());
        }
        while callers.join_next().await.is_some() {}
        driving.abort();
        let stats = self.quic.stats();
        self.load.count_bytes(stats.udp_tx.bytes, stats.udp_rx.bytes);
        self.quic.close(NO_ERROR, b"");
        // Waits until the closing datagram is sent, so that the node need not wait for its idle
        // timeout.
        let _ = timeout(CONNECT_TIMEOUT, self.endpoint.wait_idle()).await;
        self.leaving.get()
    }

    /// Sends requests one after another, each when the answer to the one before has come.
    async fn call(self: Rc<Self>) {
        let load = &self.load;
        let mut requests = self.requests.clone();
        while self.leaving.get() == Next::Stay {
            let Some(ticket) = load.claim_at(Instant::now()) else { return };
            if ticket.in_time {
                load.pacer.due(&ticket).await;
            }
            if self.leaving.get() != Next::Stay {
                return load.give_back(ticket);
            }
            let sent = load.sent_at(ticket, Instant::now());
            let asking = self.ask(&mut requests);
            let next = match timeout_at(load.deadline(&sent), asking).await {
                Ok(Ok((head, body))) => {
                    let header = |name| head.headers().get(name)?.to_str().ok();
                    let (error, leader) = (header(HEADER_ERROR), header(HEADER_LEADER));
                    let (status, proof) = (head.status().as_u16(), header(HEADER_PROOF));
                    let answer = Answer { status, error, leader, proof, body: &body };
                    load.judge_at(&sent, &answer, Instant::now())
                }
                Ok(Err(Failure::Unseen)) => {
                    load.unseen(&sent);
                    Next::Elsewhere
                }
                Ok(Err(Failure::Lost)) | Err(_) => {
                    load.lost_at(&sent, Instant::now());
                    Next::Elsewhere
                }
            };
            match next {
                Next::Stay => {}
                Next::Pause => tokio::time::sleep(load.config.retry_pause).await,
                Next::Leader(_) | Next::Elsewhere => self.leave(next),
            }
        }
    }

    async fn ask(
        &self,
        requests: &mut SendRequest<quic::Connection, Bytes>,
    ) -> Result<(Response<()>, Vec<u8>), Failure> {
        let mut stream = requests.send_request(self.request.clone()).await?;
        stream.finish().await?;
        let head = stream.recv_response().await?;
        let mut body = Vec::new();
        while let Some(mut data) = stream.recv_data().await? {
            while data.has_remaining() {
                let chunk = data.chunk();
                if body.len() + chunk.len() > BODY_LEN_MAX {
                    return Err(Failure::Lost);
                }
                body.extend_from_slice(chunk);
                let len = chunk.len();
                data.advance(len);
            }
        }
        Ok((head, body))
    }

    /// Ends sending on this connection. If there are several reasons, the first one decides which
    /// node is asked next.
    fn leave(&self, next: Next) {
        self.leaving.set(self.leaving.get().or(next));
    }
}

/// Why a request got no answer.
enum Failure {
    /// The node says that it has not processed the request.
    Unseen,
    Lost,
}

impl From<StreamError> for Failure {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::RemoteClosing { .. }
            | StreamError::RemoteTerminate { code: Code::H3_REQUEST_REJECTED, .. } => Self::Unseen,
            _ => Self::Lost,
        }
    }
}

/// The body of an answer has at most this many bytes. The answer with the largest `n` fits.
const BODY_LEN_MAX: usize = 2 << 20;
/// `H3_NO_ERROR` (RFC 9114, 8.1).
const NO_ERROR: VarInt = VarInt::from_u32(0x100);

/// TLS that trusts any node, for a run without `--ca-file`. A node without a configured certificate
/// uses a self-signed one.
fn trusting_anybody() -> ClientConfig {
    let provider = Arc::new(default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone());
    let Ok(builder) = builder.with_safe_default_protocol_versions() else {
        unreachable!("ring has suites for every version");
    };
    let verifier = Arc::new(Anybody(provider));
    let mut config =
        builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    config.alpn_protocols = vec![ALPN_H3.to_vec()];
    config
}

/// Accepts every certificate if the other end proves that it has the key.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
