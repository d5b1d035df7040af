//! Connections between nodes, plain or with mutual TLS. Raft links, confirm links and the questions
//! of a bootstrap all begin here, at either end; connections that send requests on, at the dialling
//! end.
//!
//! Under TLS both ends verify the certificate before they trust the peer. The dialling end does so
//! before it sends a byte, the other end before it believes the hello. A node that joins by address
//! does not know which node it reaches. It sends its hello to any node of its cluster, and then
//! checks that the certificate belongs to the node that answered. Only `PEER_TLS` decides between
//! plain and TLS. Nothing on the network can downgrade a connection.
//!
//! - `handshake`: the checks of a peer's hello.
//! - `probe`: asks a node whether it is empty or a member.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use epicepoch_wire::NodeId;
use epicepoch_wire::peer_hello::{Refusal, RefusalCode};
use tokio::net::TcpStream;

use crate::addresses::Tried;
use crate::config::host_and_port;
use crate::security::authz::{Caller, Port, Reason, Right};
use crate::security::limits::Key;
use crate::security::tls::handshake::{Handshakes, Pace};
use crate::security::tls::peer_stream::PeerStream;
use crate::shared::NodeShared;

pub(crate) mod handshake;
pub(crate) mod probe;

/// The first byte of a TLS connection (RFC 8446, 5.1). A frame of the peer protocol begins with
/// another byte.
const TLS_HANDSHAKE: u8 = 0x16;

/// At most this many connections may be in the handshake, which ends with the hello. If one more
/// comes, a connection is closed: one of the address that has the most. Connections of members are
/// closed last.
pub(crate) const HANDSHAKES_MAX: usize = 128;
/// The limit of handshake steps per period. Some steps sign or verify, which takes a tenth of a
/// millisecond, and this thread also runs elections. A restart of the largest cluster takes a few
/// hundred steps.
const HANDSHAKE_PACE: Pace = Pace { steps: 20, period: Duration::from_millis(10) };

/// Connects to `node` at `addr`. Node 0 stands for any node; then call [`check_node`] when the peer
/// has sent its node id.
///
/// # Errors
/// When there is no connection, or the peer does not prove that it is that node.
pub(crate) async fn connect(
    shared: &NodeShared,
    addr: &str,
    node: NodeId,
) -> io::Result<PeerStream> {
    begin(shared, shared.addresses.dial_name(addr).await?, node).await
}

/// [`connect`], also at the address of the book if the link has not tried that lately.
///
/// # Errors
/// As [`connect`], once no address of the book is being tried.
pub(crate) async fn connect_link(
    shared: &NodeShared,
    addr: &str,
    node: NodeId,
    tried: &Tried,
) -> io::Result<PeerStream> {
    let stream = shared.addresses.dial(addr, node, tried).await?;
    let dialled = stream.peer_addr()?;
    begin(shared, stream, node).await.map_err(|error| named(error, addr, dialled))
}

/// Adds the address that was dialled to an error. A name may have several addresses, and an address
/// of the address book belongs to no name.
fn named(error: io::Error, addr: &str, dialled: SocketAddr) -> io::Error {
    let dialled = dialled.to_string();
    if dialled == addr {
        return error;
    }
    io::Error::new(error.kind(), format!("{error} (at {dialled})"))
}

/// [`connect`] over an open TCP connection.
///
/// # Errors
/// When the peer does not prove that it is that node.
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

/// Connects to the client port of `node` at `addr`, to send requests on. The connection is secured
/// as the links are, so that the other node knows who asks.
///
/// # Errors
/// When there is no connection, or the other end does not prove that it is that node.
pub(crate) async fn connect_to_forward(
    shared: &NodeShared,
    addr: &str,
    node: NodeId,
) -> io::Result<PeerStream> {
    let stream = shared.addresses.dial_name(addr).await?;
    stream.set_nodelay(true)?;
    match &shared.peer_tls {
        Some(tls) if tls.mode.dials() => tls.connect_to_forward(stream, node).await,
        Some(_) | None => Ok(PeerStream::Plain(stream)),
    }
}

/// Accepts a connection from a peer, plain or with TLS as `PEER_TLS` allows. Counts and logs a
/// refusal.
pub(crate) async fn accept(shared: &NodeShared, stream: TcpStream) -> Option<PeerStream> {
    let _nodelay = stream.set_nodelay(true);
    let Some(tls) = &shared.peer_tls else { return Some(PeerStream::Plain(stream)) };
    let caller = caller(&stream);
    let mut first = [0];
    let read = stream.peek(&mut first).await.ok()?;
    if read == 0 {
        return None;
    }
    if first[0] != TLS_HANDSHAKE {
        if tls.mode.accepts_plain() {
            return Some(PeerStream::Plain(stream));
        }
        let detail = "PEER_TLS of this node is on, and the peer speaks plain text";
        shared.record_denial_of(Right::Peer, Reason::Plain, &caller, detail);
        return None;
    }
    match tls.accept(stream).await {
        Ok(stream) => Some(stream),
        Err(error) => {
            let detail = error.to_string();
            shared.record_denial_of(Right::Peer, Reason::Handshake, &caller, &detail);
            None
        }
    }
}

/// Checks that the peer's certificate belongs to `node`. A plain connection has no certificate and
/// passes.
///
/// # Errors
/// The refusal to send. It was counted and logged already.
pub(crate) fn check_node(
    shared: &NodeShared,
    stream: &PeerStream,
    node: NodeId,
) -> Result<(), Refusal> {
    let (Some(tls), PeerStream::Secured(_)) = (&shared.peer_tls, stream) else { return Ok(()) };
    tls.check(stream, node).map_err(|text| {
        let detail = format!("the peer claims to be node {node}, but {text}");
        if let Ok(socket) = stream.socket() {
            let caller = caller(socket);
            shared.record_denial_of(Right::Peer, Reason::CertificateName, &caller, &detail);
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

/// The limit of handshakes on a peer port; a handshake includes the hello.
pub(crate) fn handshakes() -> Handshakes {
    Handshakes::new(HANDSHAKES_MAX, Some(HANDSHAKE_PACE))
}

/// Returns the outcome of [`Handshakes::advance`] under a timeout. Counts and logs handshakes that
/// this node ended early.
pub(crate) fn handshake_outcome<T, E>(
    ended: Result<Option<T>, E>,
    shared: &NodeShared,
    from: IpAddr,
) -> Option<T> {
    let detail = match ended {
        Ok(Some(outcome)) => return Some(outcome),
        Ok(None) => "too many handshakes were under way, most of them from this address",
        Err(_) => "no hello came in time",
    };
    shared.record_denial_of(Right::Peer, Reason::NoHello, &caller_at(Some(from)), detail);
    None
}

/// Whether the host of one of `addrs` (`host:port`) is the address `from`. Names are not resolved.
pub(crate) fn is_listed<'a>(addrs: impl IntoIterator<Item = &'a str>, from: IpAddr) -> bool {
    let hosts = addrs.into_iter().filter_map(|addr| host_and_port(addr));
    let mut keys = hosts.filter_map(|(host, _)| {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        bare.parse().ok().map(Key::of)
    });
    keys.any(|key| key == Key::of(from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_address_that_was_dialled_if_it_is_another() {
        let dialled = SocketAddr::from(([10, 0, 0, 1], 60_001));
        let shown = |addr: &str| named(io::ErrorKind::TimedOut.into(), addr, dialled);
        assert_eq!(shown("10.0.0.1:60001").to_string(), "timed out");
        assert_eq!(shown("n2:60001").to_string(), "timed out (at 10.0.0.1:60001)");
        assert_eq!(shown("n2:60001").kind(), io::ErrorKind::TimedOut);
    }
}
