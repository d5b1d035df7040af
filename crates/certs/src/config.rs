//! rustls as this project uses it: TLS 1.2 and 1.3 towards clients, only 1.3 between nodes, and
//! ring's suites, all of them with forward secrecy and authenticated encryption. A session is never
//! resumed: each handshake checks the certificates against the trust of that moment. No data is
//! accepted before the handshake is over (no 0-RTT).

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::server::NoServerSessionStorage;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion};

use crate::live::LivePair;
use crate::roots::LiveRoots;

/// HTTP/2 in ALPN (RFC 9113, section 3.2).
pub const ALPN_H2: &[u8] = b"h2";
/// HTTP/1.1 in ALPN (RFC 7301).
pub const ALPN_HTTP1: &[u8] = b"http/1.1";
/// HTTP/3 in ALPN (RFC 9114, section 3.1).
pub const ALPN_H3: &[u8] = b"h3";
/// The native protocol in ALPN.
pub const ALPN_NATIVE: &[u8] = b"epicepoch/1";
/// The peer protocol in ALPN. The client port refuses it, and the peer port refuses all others.
pub const ALPN_PEER: &[u8] = b"epicepoch-peer/1";
/// The native protocol from a node that sends requests on, in ALPN. On the client port it needs the
/// certificate of a node, and no other name in ALPN comes with the rights of one.
pub const ALPN_FORWARD: &[u8] = b"epicepoch-forward/1";

/// Versions of TLS that clients may use.
const CLIENTS: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
/// Versions of TLS between programs of this project.
const OURS: &[&SupportedProtocolVersion] = &[&TLS13];

/// The configuration of a server that shows `pair`. If `clients` is given, it accepts only clients
/// with a certificate of these authorities. It accepts TLS 1.2 and 1.3, so it also works for QUIC,
/// which needs 1.3.
pub fn server_config(
    pair: Arc<LivePair>,
    clients: Option<Arc<LiveRoots>>,
    alpn: &[&[u8]],
) -> ServerConfig {
    server(CLIENTS, pair, clients, alpn)
}

/// The configuration of a client that trusts `roots`, and shows `pair` if that is given.
pub fn client_config(
    roots: Arc<LiveRoots>,
    pair: Option<Arc<LivePair>>,
    alpn: &[&[u8]],
) -> ClientConfig {
    client(roots, pair, alpn)
}

/// The configuration of a node for peers that connect to it. A peer must show a certificate of
/// `roots`. The caller must check whose certificate it is, against the node that the hello claims
/// ([`is_named`](crate::is_named)).
pub fn peer_server_config(pair: Arc<LivePair>, roots: Arc<LiveRoots>) -> ServerConfig {
    server(OURS, pair, Some(roots), &[ALPN_PEER])
}

/// The configuration of a node for other nodes that send requests on to its client port. As
/// [`peer_server_config`], the caller must check whose certificate it is
/// ([`node_of`](crate::node_of)).
pub fn forward_server_config(pair: Arc<LivePair>, roots: Arc<LiveRoots>) -> ServerConfig {
    server(OURS, pair, Some(roots), &[ALPN_FORWARD])
}

/// The configuration of a node that sends requests on to another node. As [`peer_client_config`].
pub fn forward_client_config(pair: Arc<LivePair>, roots: Arc<LiveRoots>) -> ClientConfig {
    client(roots, Some(pair), &[ALPN_FORWARD])
}

/// The configuration of a node for peers that it connects to. It shows `pair`. It accepts the
/// server's certificate if one of `roots` signed it for the dialled name
/// ([`node_name`](crate::node_name)).
pub fn peer_client_config(pair: Arc<LivePair>, roots: Arc<LiveRoots>) -> ClientConfig {
    client(roots, Some(pair), &[ALPN_PEER])
}

fn server(
    versions: &[&'static SupportedProtocolVersion],
    pair: Arc<LivePair>,
    clients: Option<Arc<LiveRoots>>,
    alpn: &[&[u8]],
) -> ServerConfig {
    let builder = ServerConfig::builder_with_provider(provider());
    let Ok(builder) = builder.with_protocol_versions(versions) else {
        unreachable!("ring has suites for every version");
    };
    let builder = match clients {
        Some(roots) => builder.with_client_cert_verifier(roots),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(pair);
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config
}

/// A client speaks only TLS 1.3. Our servers speak it, and so do well-maintained proxies in front
/// of them.
fn client(roots: Arc<LiveRoots>, pair: Option<Arc<LivePair>>, alpn: &[&[u8]]) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(provider());
    let Ok(builder) = builder.with_protocol_versions(OURS) else {
        unreachable!("ring has suites for every version");
    };
    let builder = builder.dangerous().with_custom_certificate_verifier(roots);
    let mut config = match pair {
        Some(pair) => builder.with_client_cert_resolver(pair),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    config.resumption = Resumption::disabled();
    config
}

/// ring's suites and curves.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(default_provider())
}
