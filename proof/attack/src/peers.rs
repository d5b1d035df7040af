//! Attacks on the peer port: connections that do not complete a handshake, again and again. Silent
//! connections use up the admission limit. The beginning of a TLS handshake costs the server a
//! signature.

use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

/// The bytes that each connection sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// No bytes.
    Silent,
    /// A whole `ClientHello` of TLS 1.3.
    PeerHello,
}

/// The result of [`occupy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupied {
    /// Connections that were opened.
    pub opened: u64,
    /// Connections that could not be opened.
    pub refused: u64,
}

impl Opening {
    /// Returns the opening with this name on the command line.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "silent" => Some(Self::Silent),
            "hello" => Some(Self::PeerHello),
            _ => None,
        }
    }
}

/// How long to wait until the server accepts a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause between two connections. It allows a few thousand connections per second, far more than
/// nodes need.
const PAUSE: Duration = Duration::from_micros(200);

/// Keeps `count` connections open from the address `from` to `addr`. Replaces the oldest connection
/// by a new one as fast as possible, until `is_over` returns true.
///
/// # Errors
/// The system has no socket, or none at that address.
pub fn occupy(
    (from, addr): (IpAddr, SocketAddr),
    opening: Opening,
    count: usize,
    mut is_over: impl FnMut() -> bool,
) -> io::Result<Occupied> {
    let mut held: Vec<Option<TcpStream>> = Vec::new();
    held.resize_with(count.max(1), || None);
    let mut occupied = Occupied::default();
    let mut at = 0;
    while !is_over() {
        // Close the old connection before the new one is opened.
        held[at] = None;
        let socket = bound(from, addr)?;
        match open(socket, addr, opening, occupied.opened) {
            Ok(stream) => {
                occupied.opened += 1;
                held[at] = Some(stream);
            }
            Err(_) => occupied.refused += 1,
        }
        at = (at + 1) % held.len();
        std::thread::sleep(PAUSE);
    }
    Ok(occupied)
}

/// Runs [`occupy`] for `limit`.
///
/// # Errors
/// As [`occupy`].
pub fn occupy_for(
    path: (IpAddr, SocketAddr),
    opening: Opening,
    count: usize,
    limit: Duration,
) -> io::Result<Occupied> {
    let start = Instant::now();
    occupy(path, opening, count, || start.elapsed() >= limit)
}

/// Opens one connection from the address `from` to `addr`. It ends with a reset, so that its port is
/// free again at once.
///
/// # Errors
/// The system has no socket, or none at that address, or the server does not accept.
pub fn open_from(
    (from, addr): (IpAddr, SocketAddr),
    opening: Opening,
    seed: u64,
) -> io::Result<TcpStream> {
    open(bound(from, addr)?, addr, opening, seed)
}

/// A socket at the address `from` whose connection ends with a reset.
fn bound(from: IpAddr, addr: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    socket.set_linger(Some(Duration::ZERO))?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    Ok(socket)
}

fn open(socket: Socket, addr: SocketAddr, opening: Opening, seed: u64) -> io::Result<TcpStream> {
    socket.connect_timeout(&addr.into(), CONNECT_TIMEOUT)?;
    let mut stream = TcpStream::from(socket);
    if opening == Opening::PeerHello {
        stream.write_all(&client_hello(seed))?;
    }
    Ok(stream)
}

/// Returns a TLS record with a `ClientHello` (RFC 8446, 4.1.2). A TLS 1.3 server answers it with
/// its certificate and a signature.
#[must_use]
pub fn client_hello(seed: u64) -> Vec<u8> {
    let mut random = [0x5a; 32];
    random[..8].copy_from_slice(&seed.to_be_bytes());
    let mut extensions = Vec::new();
    let mut extension = |kind: u16, body: &[u8]| {
        extensions.extend(kind.to_be_bytes());
        extensions.extend((body.len() as u16).to_be_bytes());
        extensions.extend(body);
    };
    // Versions: 1.3. Groups: x25519. Signatures: ECDSA on P-256, Ed25519, RSA-PSS.
    extension(0x002b, &[2, 0x03, 0x04]);
    extension(0x000a, &[0, 2, 0x00, 0x1d]);
    extension(0x000d, &[0, 6, 0x04, 0x03, 0x08, 0x07, 0x08, 0x04]);
    // Nearly any 32 bytes are a valid x25519 key share.
    let mut share = vec![0, 36, 0x00, 0x1d, 0, 32];
    share.extend(random);
    extension(0x0033, &share);
    let mut alpn = vec![0, ALPN_PEER.len() as u8 + 1, ALPN_PEER.len() as u8];
    alpn.extend(ALPN_PEER);
    extension(0x0010, &alpn);

    let mut body = vec![0x03, 0x03];
    body.extend(random);
    // No session; TLS_AES_128_GCM_SHA256; no compression.
    body.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
    body.extend((extensions.len() as u16).to_be_bytes());
    body.extend(extensions);
    let mut record = vec![0x16, 0x03, 0x01];
    record.extend((body.len() as u16 + 4).to_be_bytes());
    record.extend([1, 0]);
    record.extend((body.len() as u16).to_be_bytes());
    record.extend(body);
    record
}

/// ALPN protocol name of peers.
const ALPN_PEER: &[u8] = b"epicepoch-peer/1";
