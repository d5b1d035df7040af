//! Requests over HTTP/3, on as many streams of one connection as may be open: a caller for each,
//! which asks again when it has its answer.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

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
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Endpoint, ReadError, VarInt};
use tokio::task::{JoinSet, spawn_local};
use tokio::time::{timeout, timeout_at};

use super::lane::{Answer, CONNECT_TIMEOUT, Lane, Next};
use super::ledger::Sent;
use crate::http3::answer::Answers;
use crate::http3::control::Beside;
use crate::http3::{CONTROL, request};

/// Asks until the measurement is over.
pub(super) async fn drive(lane: Lane, streams: usize) {
    let lane = Rc::new(lane);
    while !lane.is_over() {
        let opened = timeout(CONNECT_TIMEOUT, Connection::open(&lane)).await;
        let next = if let Ok(Ok(connection)) = opened {
            Rc::new(connection).ask_all(streams).await
        } else {
            lane.not_connected();
            Next::Elsewhere
        };
        lane.turn(next).await;
    }
    lane.finish();
}

/// A connection on which requests may be sent.
struct Connection {
    lane: Rc<Lane>,
    quic: quinn::Connection,
    endpoint: Endpoint,
    request: Vec<u8>,
    /// Once this node is to be left, nothing more is asked here.
    leaving: Cell<Next>,
    /// Streams of this end that are open as long as the connection is.
    _control: quinn::SendStream,
}

/// What came on a stream.
enum Came {
    Answer(Vec<u8>),
    /// The node says that it has not looked at the request.
    Unseen,
    Lost,
}

impl Connection {
    async fn open(lane: &Rc<Lane>) -> io::Result<Self> {
        let target = lane.target();
        let any: IpAddr = match target.addr {
            std::net::SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            std::net::SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let tls = match &lane.config.tls {
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
        let mut control = quic.open_uni().await?;
        control.write_all(CONTROL).await?;
        let authorization = lane.config.authorization();
        let request = request(&lane.config.path(), &target.name, authorization.as_deref());
        let leaving = Cell::new(Next::Stay);
        Ok(Self { lane: lane.clone(), quic, endpoint, request, leaving, _control: control })
    }

    /// Until the connection is of no more use, or the measurement is over.
    async fn ask_all(self: Rc<Self>, streams: usize) -> Next {
        let listening = spawn_local(self.clone().listen());
        let mut callers = JoinSet::new();
        for _ in 0..streams {
            callers.spawn_local(self.clone().call());
        }
        while callers.join_next().await.is_some() {}
        listening.abort();
        let stats = self.quic.stats();
        self.lane.count_bytes(stats.udp_tx.bytes, stats.udp_rx.bytes);
        self.quic.close(NO_ERROR, b"");
        // Its last datagram leaves; the node need not wait for silence.
        let _ = timeout(CONNECT_TIMEOUT, self.endpoint.wait_idle()).await;
        self.leaving.get()
    }

    /// Listens for the node to say that it goes away.
    async fn listen(self: Rc<Self>) {
        while let Ok(mut stream) = self.quic.accept_uni().await {
            let connection = self.clone();
            spawn_local(async move {
                let mut beside = Beside::default();
                while let Ok(Some(chunk)) = stream.read_chunk(usize::MAX, true).await {
                    if beside.receive(&chunk.bytes) {
                        connection.leave(Next::Elsewhere);
                    }
                }
            });
        }
    }

    /// One caller.
    async fn call(self: Rc<Self>) {
        let lane = &self.lane;
        let mut answers = Answers::default();
        while self.leaving.get() == Next::Stay {
            let Some(ticket) = lane.claim_at(Instant::now()) else { return };
            if ticket.in_time {
                lane.pacer.due(&ticket).await;
            }
            if self.leaving.get() != Next::Stay {
                return lane.give_back(ticket);
            }
            let sent = lane.sent_at(ticket, Instant::now());
            let came = timeout_at(lane.deadline(&sent), self.ask()).await;
            let next = match came {
                Ok(Came::Answer(stream)) => judge(lane, &sent, &mut answers, &stream),
                Ok(Came::Unseen) => {
                    lane.unseen(&sent);
                    Next::Elsewhere
                }
                Ok(Came::Lost) | Err(_) => {
                    lane.lost_at(&sent, Instant::now());
                    Next::Elsewhere
                }
            };
            match next {
                Next::Stay => {}
                Next::Pause => tokio::time::sleep(lane.config.retry_pause).await,
                Next::Leader(_) | Next::Elsewhere => self.leave(next),
            }
        }
    }

    async fn ask(&self) -> Came {
        let Ok((mut send, mut recv)) = self.quic.open_bi().await else { return Came::Lost };
        if send.write_all(&self.request).await.is_err() || send.finish().is_err() {
            return Came::Lost;
        }
        let mut stream = Vec::new();
        loop {
            match recv.read_chunk(usize::MAX, true).await {
                Ok(Some(chunk)) if stream.len() + chunk.bytes.len() <= ANSWER_LEN_MAX => {
                    stream.extend_from_slice(&chunk.bytes);
                }
                Ok(None) => return Came::Answer(stream),
                Err(ReadError::Reset(REQUEST_REJECTED)) => return Came::Unseen,
                Ok(Some(_)) | Err(_) => return Came::Lost,
            }
        }
    }

    /// Asks nothing more here. The first reason counts.
    fn leave(&self, next: Next) {
        self.leaving.set(self.leaving.get().or(next));
    }
}

/// Counts what a stream brought, and says whom to ask next.
fn judge(lane: &Lane, sent: &Sent, answers: &mut Answers, stream: &[u8]) -> Next {
    let now = Instant::now();
    let Ok(answer) = answers.read(stream) else {
        lane.lost_at(sent, now);
        let _counted = lane.violated();
        return Next::Elsewhere;
    };
    let head = answer.head;
    let error = (!head.error.is_empty()).then_some(&*head.error);
    let leader = (!head.leader.is_empty()).then_some(&*head.leader);
    lane.judge_at(sent, &Answer { status: head.status, error, leader, body: &answer.body }, now)
}

/// Bytes of an answer's stream at most: the largest `n`, and its head.
const ANSWER_LEN_MAX: usize = 2 << 20;
/// `H3_NO_ERROR` (RFC 9114, 8.1).
const NO_ERROR: VarInt = VarInt::from_u32(0x100);
/// `H3_REQUEST_REJECTED`.
const REQUEST_REJECTED: VarInt = VarInt::from_u32(0x10b);

/// TLS towards whoever answers. Nodes write a certificate of their own where none is named, and who
/// measures them tells them nothing.
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

/// Takes every certificate whose key the other end has.
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
