//! Connections between nodes: plain, or with mutual TLS, in which each end shows a certificate of an
//! authority that both trust, and whose name is that of the cluster and the node that it claims to
//! be. Raft links, confirm links and the questions of a bootstrap all begin here, on either end.
//!
//! What a certificate proves is checked before a byte is said to who was dialled, and before a hello
//! is believed of who has dialled. Who joins by addresses alone says hello to any node of its own
//! cluster, and holds the answer to the certificate. It never falls back: what a connection has to be
//! is said by `PEER_TLS` alone, so that nobody on the way can choose.
//!
//! - `stream`: the connection itself.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use epicepoch_certs::config::ALPN_PEER;
use epicepoch_certs::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use epicepoch_certs::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use epicepoch_certs::rustls::server::danger::ClientCertVerifier;
use epicepoch_certs::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme,
};
use epicepoch_certs::{
    LivePair, LiveRoots, Pair, PairError, PemFile, RootsError, is_named, node_name, node_of,
    peer_client_config, peer_server_config,
};
use epicepoch_wire::NodeId;
use epicepoch_wire::hello::{Refusal, RefusalCode};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::config::{Config, PeerTlsMode, host_and_port};
use crate::origins::Key;
use crate::rights::{Caller, Port, Reason, Right};
use crate::shared::NodeShared;
use crate::tls::handshake::{Handshakes, Pace};
use crate::tls::upkeep::Certificates;

pub(crate) mod stream;

use stream::{Movable, PeerStream};

/// The first byte of a connection that begins with a handshake (RFC 8446, 5.1). A frame of the peer
/// protocol begins with another one.
const HANDSHAKE: u8 = 0x16;

/// Connections that may be saying who they are at once, handshakes included. Beyond it one gives
/// way: of the address that has the most, behind which no member is known.
pub(crate) const GREETINGS_MAX: usize = 128;
/// Steps of greetings that are taken in a while, whoever comes: some are a signature or the check of
/// one, a tenth of a millisecond, and the thread has elections to hold. A restart of the largest
/// cluster takes a few hundred.
const GREETING_PACE: Pace = Pace { steps: 20, period: Duration::from_millis(10) };

/// What mutual TLS between nodes needs.
#[derive(Debug)]
pub struct PeerTls {
    mode: PeerTlsMode,
    cluster_name: String,
    server: Arc<ServerConfig>,
    /// Towards a node that is known by its id.
    client: Arc<ClientConfig>,
    /// Towards whoever is there: who joins knows addresses alone.
    client_of_anybody: Arc<ClientConfig>,
    pair: Arc<LivePair>,
    roots: Arc<LiveRoots>,
}

/// Why there is no TLS between nodes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerTlsError {
    /// Correct `PEER_CERT_FILE` or `PEER_KEY_FILE`, or what is in them.
    #[error(transparent)]
    Pair(#[from] PairError),
    /// Correct `PEER_CA_FILE`, or what is in it.
    #[error(transparent)]
    Roots(#[from] RootsError),
}

impl PeerTls {
    /// Reads what a configuration names; `None` where nodes speak in plain text alone.
    ///
    /// # Errors
    /// When a file cannot be used, or the certificate is another node's.
    pub fn load(config: &Config) -> Result<Option<Self>, PeerTlsError> {
        let mode = config.links.mode();
        let links = &config.links;
        let (PeerTlsMode::Accept | PeerTlsMode::Dial | PeerTlsMode::On) = mode else {
            return Ok(None);
        };
        let file =
            |setting, path: &Option<_>| PemFile::new(setting, path.clone().unwrap_or_default());
        let certificate = file("PEER_CERT_FILE", &links.cert_file);
        let pair = Pair::load(certificate, file("PEER_KEY_FILE", &links.key_file))?;
        let cluster_name = config.cluster_name.clone();
        let pair = LivePair::named(pair, node_name(&cluster_name, config.node_id))?;
        let roots = LiveRoots::load(file("PEER_CA_FILE", &links.ca_file))?;
        let server = Arc::new(peer_server_config(pair.clone(), roots.clone()));
        let client = peer_client_config(pair.clone(), roots.clone());
        let mut client_of_anybody = client.clone();
        let verifier = AnyNode { roots: roots.clone(), cluster_name: cluster_name.clone() };
        let verifier = Arc::new(verifier);
        client_of_anybody.dangerous().set_certificate_verifier(verifier);
        Ok(Some(Self {
            mode,
            cluster_name,
            server,
            client: Arc::new(client),
            client_of_anybody: Arc::new(client_of_anybody),
            pair,
            roots,
        }))
    }

    /// Has what was read kept up to date.
    pub fn keep(&self, certificates: &mut Certificates) {
        certificates.add_pair(self.pair.clone());
        certificates.add_roots(self.roots.clone());
    }

    async fn connect(&self, stream: TcpStream, node: NodeId) -> io::Result<PeerStream> {
        let is_known = node != NodeId(0);
        let config = if is_known { &self.client } else { &self.client_of_anybody };
        let name = node_name(&self.cluster_name, node);
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        let connector = TlsConnector::from(config.clone());
        let stream = connector.connect(name, Movable::Watched(stream)).await?;
        require_alpn(stream.get_ref().1.alpn_protocol())?;
        let stream = PeerStream::secured(tokio_rustls::TlsStream::from(stream));
        if is_known {
            self.check(&stream, node).map_err(io::Error::other)?;
        }
        Ok(stream)
    }

    async fn accept(&self, stream: TcpStream) -> io::Result<PeerStream> {
        let acceptor = TlsAcceptor::from(self.server.clone());
        let stream = acceptor.accept(Movable::Watched(stream)).await?;
        require_alpn(stream.get_ref().1.alpn_protocol())?;
        Ok(PeerStream::secured(tokio_rustls::TlsStream::from(stream)))
    }

    /// Whether the other end is the node that it says it is.
    fn check(&self, stream: &PeerStream, node: NodeId) -> Result<(), String> {
        let name = node_name(&self.cluster_name, node);
        match stream.certificate() {
            Some(certificate) if is_named(certificate, &name) => Ok(()),
            Some(_) => Err(format!("the certificate shown is not that of {name}")),
            None => Err("no certificate was shown".to_owned()),
        }
    }
}

/// A handshake may end without a common protocol where one end has none; not between nodes.
fn require_alpn(spoken: Option<&[u8]>) -> io::Result<()> {
    if spoken == Some(ALPN_PEER) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "it does not speak the peer protocol"))
}

/// Connects to `node`, or to whoever is there if that is 0: then [`check_node`] has to follow, once
/// he has said who he is.
///
/// # Errors
/// When nobody is there, or somebody who does not prove that he is that node.
pub(crate) async fn connect(
    shared: &NodeShared,
    addr: &str,
    node: NodeId,
) -> io::Result<PeerStream> {
    begin(shared, TcpStream::connect(addr).await?, node).await
}

/// The same on a TCP connection that there is already.
///
/// # Errors
/// When who is there does not prove that he is that node.
pub(crate) async fn begin(
    shared: &NodeShared,
    stream: TcpStream,
    node: NodeId,
) -> io::Result<PeerStream> {
    stream.set_nodelay(true)?;
    match &shared.peer_tls {
        Some(tls) if tls.mode.dials() => tls.connect(stream, node).await,
        Some(_) | None => Ok(PeerStream::Plain(stream)),
    }
}

/// Takes a connection from a peer, as `PEER_TLS` says; what is refused is counted and logged.
pub(crate) async fn accept(shared: &NodeShared, stream: TcpStream) -> Option<PeerStream> {
    let _nodelay = stream.set_nodelay(true);
    let Some(tls) = &shared.peer_tls else { return Some(PeerStream::Plain(stream)) };
    let caller = caller(&stream);
    let mut first = [0];
    let read = stream.peek(&mut first).await.ok()?;
    if read == 0 {
        return None;
    }
    if first[0] != HANDSHAKE {
        if tls.mode.accepts_plain() {
            return Some(PeerStream::Plain(stream));
        }
        let detail = "PEER_TLS of this node is on, and the peer speaks plain text";
        shared.note_denial_of(Right::Peer, Reason::Plain, &caller, detail);
        return None;
    }
    match tls.accept(stream).await {
        Ok(stream) => Some(stream),
        Err(error) => {
            let detail = error.to_string();
            shared.note_denial_of(Right::Peer, Reason::Handshake, &caller, &detail);
            None
        }
    }
}

/// Whether who says that he is `node` has proved it. On a plain connection nothing is proved, and
/// nothing asked.
///
/// # Errors
/// Why not, for him; it is counted and logged here.
pub(crate) fn check_node(
    shared: &NodeShared,
    stream: &PeerStream,
    node: NodeId,
) -> Result<(), Refusal> {
    let (Some(tls), PeerStream::Secured(_)) = (&shared.peer_tls, stream) else { return Ok(()) };
    tls.check(stream, node).map_err(|text| {
        let detail = format!("it says that it is node {node}, and {text}");
        if let Ok(socket) = stream.socket() {
            let caller = caller(socket);
            shared.note_denial_of(Right::Peer, Reason::CertificateName, &caller, &detail);
        }
        Refusal::new(RefusalCode::WrongCertificate, detail)
    })
}

fn caller(stream: &TcpStream) -> Caller {
    caller_at(stream.peer_addr().ok().map(|addr| addr.ip()))
}

fn caller_at(from: Option<IpAddr>) -> Caller {
    Caller { from, port: Port::Peers, is_encrypted: false }
}

/// Those who connect to the peer port, until they have said who they are.
pub(crate) fn greetings() -> Handshakes {
    Handshakes::new(GREETINGS_MAX, Some(GREETING_PACE))
}

/// What a greeting ended with: that of [`Handshakes::advance`] under a timeout. Where its end is this
/// node's doing, that is counted and logged.
pub(crate) fn greeted<T, E>(
    ended: Result<Option<T>, E>,
    shared: &NodeShared,
    from: IpAddr,
) -> Option<T> {
    let detail = match ended {
        Ok(Some(greeted)) => return Some(greeted),
        Ok(None) => "too many were connecting, most of them from there",
        Err(_) => "it did not say in time who it is",
    };
    shared.note_denial_of(Right::Peer, Reason::NoHello, &caller_at(Some(from)), detail);
    None
}

/// Whether one of these addresses, `host:port`, is that of `from`. Names are not looked up.
pub(crate) fn is_named_in<'a>(addrs: impl IntoIterator<Item = &'a str>, from: IpAddr) -> bool {
    let hosts = addrs.into_iter().filter_map(|addr| host_and_port(addr));
    let mut keys = hosts.filter_map(|(host, _)| {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        bare.parse().ok().map(Key::of)
    });
    keys.any(|key| key == Key::of(from))
}

/// Verifies that a server is some node of our cluster; that it is the one it says is checked when it
/// has said so.
#[derive(Debug)]
struct AnyNode {
    roots: Arc<LiveRoots>,
    cluster_name: String,
}

impl ServerCertVerifier for AnyNode {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // Nodes show the same certificate whoever has dialled, and it is good for both.
        self.roots.verify_client_cert(end_entity, intermediates, now)?;
        if node_of(end_entity, &self.cluster_name).is_none() {
            return Err(Error::InvalidCertificate(CertificateError::NotValidForName));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        ServerCertVerifier::verify_tls12_signature(&*self.roots, message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        ServerCertVerifier::verify_tls13_signature(&*self.roots, message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ServerCertVerifier::supported_verify_schemes(&*self.roots)
    }
}
