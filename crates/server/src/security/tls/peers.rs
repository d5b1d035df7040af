//! Mutual TLS between nodes. Each end shows a certificate of an authority that both trust. The
//! certificate names the cluster and the node. This module opens no connection.

use std::io;
use std::sync::Arc;

use epicepoch_certs::config::{ALPN_FORWARD, ALPN_PEER};
use epicepoch_certs::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use epicepoch_certs::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use epicepoch_certs::rustls::server::danger::ClientCertVerifier;
use epicepoch_certs::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme,
};
use epicepoch_certs::{
    LivePair, LiveRoots, Pair, PairError, PemFile, RootsError, forward_client_config,
    forward_server_config, is_named, node_name, node_of, peer_client_config, peer_server_config,
};
use epicepoch_wire::NodeId;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::peer_stream::{Movable, PeerStream};
use super::reloader::Certificates;
use crate::config::{Config, PeerTlsMode};

/// The certificates and settings of mutual TLS between nodes.
#[derive(Debug)]
pub struct PeerTls {
    pub(crate) mode: PeerTlsMode,
    cluster_name: String,
    server: Arc<ServerConfig>,
    /// For connecting to a node whose id is known.
    client: Arc<ClientConfig>,
    /// For connecting to any node, because a node that joins knows only addresses.
    client_of_any_node: Arc<ClientConfig>,
    /// For nodes that send requests on to this node's client port.
    forward_server: Arc<ServerConfig>,
    /// For sending requests on to another node's client port.
    forward_client: Arc<ClientConfig>,
    pair: Arc<LivePair>,
    roots: Arc<LiveRoots>,
}

/// Why TLS between nodes cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerTlsError {
    /// `PEER_CERT_FILE` or `PEER_KEY_FILE` cannot be used. Correct the setting or the file.
    #[error(transparent)]
    Pair(#[from] PairError),
    /// `PEER_CA_FILE` cannot be used. Correct the setting or the file.
    #[error(transparent)]
    Roots(#[from] RootsError),
}

impl PeerTls {
    /// Reads the files that a configuration names; `None` if nodes speak only plain text.
    ///
    /// # Errors
    /// When a file cannot be used, or the certificate belongs to another node.
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
        let mut client_of_any_node = client.clone();
        let verifier = AnyNode { roots: roots.clone(), cluster_name: cluster_name.clone() };
        let verifier = Arc::new(verifier);
        client_of_any_node.dangerous().set_certificate_verifier(verifier);
        Ok(Some(Self {
            mode,
            cluster_name,
            server,
            client: Arc::new(client),
            client_of_any_node: Arc::new(client_of_any_node),
            forward_server: Arc::new(forward_server_config(pair.clone(), roots.clone())),
            forward_client: Arc::new(forward_client_config(pair.clone(), roots.clone())),
            pair,
            roots,
        }))
    }

    /// Registers the files for reloading.
    pub fn keep(&self, certificates: &mut Certificates) {
        certificates.add_pair(self.pair.clone());
        certificates.add_roots(self.roots.clone());
    }

    pub(crate) async fn connect(&self, stream: TcpStream, node: NodeId) -> io::Result<PeerStream> {
        let is_known = node != NodeId(0);
        let config = if is_known { &self.client } else { &self.client_of_any_node };
        let stream = self.dial(config, stream, node, ALPN_PEER).await?;
        if is_known {
            self.check(&stream, node).map_err(io::Error::other)?;
        }
        Ok(stream)
    }

    /// Connects to the client port of `node`, as a node that sends requests on.
    pub(crate) async fn connect_to_forward(
        &self,
        stream: TcpStream,
        node: NodeId,
    ) -> io::Result<PeerStream> {
        let stream = self.dial(&self.forward_client, stream, node, ALPN_FORWARD).await?;
        self.check(&stream, node).map_err(io::Error::other)?;
        Ok(stream)
    }

    async fn dial(
        &self,
        config: &Arc<ClientConfig>,
        stream: TcpStream,
        node: NodeId,
        alpn: &[u8],
    ) -> io::Result<PeerStream> {
        let name = node_name(&self.cluster_name, node);
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        let connector = TlsConnector::from(config.clone());
        let stream = connector.connect(name, Movable::Attached(stream)).await?;
        require_alpn(stream.get_ref().1.alpn_protocol(), alpn)?;
        Ok(PeerStream::secured(tokio_rustls::TlsStream::from(stream)))
    }

    /// The settings of rustls for nodes that send requests on to this node's client port.
    pub(crate) fn forwarders(&self) -> &Arc<ServerConfig> {
        &self.forward_server
    }

    /// The node whose certificate this is; `None` if it is no node of this cluster.
    pub(crate) fn node_of(&self, certificate: &CertificateDer<'_>) -> Option<NodeId> {
        node_of(certificate, &self.cluster_name)
    }

    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<PeerStream> {
        let acceptor = TlsAcceptor::from(self.server.clone());
        let stream = acceptor.accept(Movable::Attached(stream)).await?;
        require_alpn(stream.get_ref().1.alpn_protocol(), ALPN_PEER)?;
        Ok(PeerStream::secured(tokio_rustls::TlsStream::from(stream)))
    }

    /// Checks that the peer's certificate belongs to `node`.
    pub(crate) fn check(&self, stream: &PeerStream, node: NodeId) -> Result<(), String> {
        let name = node_name(&self.cluster_name, node);
        match stream.certificate() {
            Some(certificate) if is_named(certificate, &name) => Ok(()),
            Some(_) => Err(format!("its certificate is not that of {name}")),
            None => Err("it showed no certificate".to_owned()),
        }
    }
}

/// Checks that both ends agreed on this protocol. TLS alone allows a handshake without a common
/// protocol.
fn require_alpn(spoken: Option<&[u8]>, alpn: &[u8]) -> io::Result<()> {
    if spoken == Some(alpn) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        "the other end does not speak the protocol between nodes",
    ))
}

/// Verifies that a server is a node of this cluster. Its node id is checked after its hello.
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
        // A node shows the same certificate as client and as server.
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
