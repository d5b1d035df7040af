//! What a client of HTTP/3 may hold, and for how long. Nothing that a peer of QUIC or HTTP/3 can grow
//! is left at a default without an end.

use std::sync::Arc;
use std::time::Duration;

use epicepoch_certs::rustls;
use quinn::{EndpointConfig, ServerConfig, TransportConfig, ValidationTokenConfig, VarInt};
use quinn_proto::crypto::rustls::{NoInitialCipherSuite, QuicServerConfig};

/// Requests of one connection that may be open at once.
pub const STREAMS_MAX: u32 = 256;
/// Streams beside those of requests: three that HTTP/3 has (RFC 9114, 6.2), and some that clients
/// open to see whether servers ignore what they do not know.
pub const STREAMS_BESIDE_MAX: u32 = 8;
/// Bytes of a request's head at most, as HTTP/3 counts them: names, values, and 32 for each.
pub const HEAD_LEN_MAX: u64 = 16 << 10;
/// Bytes of one request's stream at most: its head, a body, and frames that mean nothing.
pub const REQUEST_LEN_MAX: usize = 32 << 10;
/// Bytes that streams beside requests may bring before the next request comes.
pub const BESIDE_LEN_MAX: usize = 16 << 10;
/// Bytes of a frame on the control stream at most; settings and priorities are a few dozen.
pub const CONTROL_FRAME_LEN_MAX: u64 = 4 << 10;
/// Requests that a client may take back at once before it has got as many answers, after which it
/// is sent away.
pub const TAKEN_BACK_MAX: u32 = 256;
/// Requests that a client may take back per second without an answer, on end. While no leader is
/// there, a client whose requests have a deadline takes all of them back.
pub const TAKEN_BACK_PER_SECOND: u32 = 5_000;
/// Bytes of one stream that a client may send before they are read.
const STREAM_WINDOW: u32 = 16 << 10;
/// Bytes of all streams together that a client may send before they are read.
const WINDOW: u32 = 256 << 10;
/// Bytes of answers that wait for a client, or for its acknowledgement.
const SEND_WINDOW: u64 = 256 << 10;
/// Time from a client's first datagram to the end of its handshake.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// Handshakes of one worker that are under way: beyond it, clients are refused.
pub const HANDSHAKES_MAX: usize = 256;
/// Handshakes of one worker that one address has under way, once clients have to prove theirs:
/// beyond it, it is refused, and others are not kept out.
pub const HANDSHAKES_OF_ADDRESS_MAX: usize = HANDSHAKES_MAX / 4;
/// From so many handshakes under way on, a client has to prove that it receives at its address
/// before any state is kept for it: addresses that are made up cost a datagram and no memory.
pub const HANDSHAKES_BEFORE_RETRY: usize = 32;
/// What QUIC waits longer than this node for a silent client, who is told when this node closes and
/// not when QUIC does.
const IDLE_GRACE: Duration = Duration::from_secs(5);
/// First datagrams that wait to be looked at; more are refused by QUIC itself.
const INCOMING_MAX: usize = 256;
/// Bytes that are kept of a client's datagrams before its first was looked at.
const INCOMING_LEN_MAX: u64 = 8 << 10;

/// What endpoints are set to: all workers of a node the same.
///
/// # Errors
/// When `tls` has no cipher suite that QUIC begins with, which is a mistake in the program.
pub(crate) fn server(
    tls: Arc<rustls::ServerConfig>,
    idle_timeout: Duration,
) -> Result<ServerConfig, NoInitialCipherSuite> {
    let idle_ms = (idle_timeout + IDLE_GRACE).as_millis();
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(STREAMS_MAX.into())
        .max_concurrent_uni_streams(STREAMS_BESIDE_MAX.into())
        .stream_receive_window(STREAM_WINDOW.into())
        .receive_window(WINDOW.into())
        .send_window(SEND_WINDOW)
        .datagram_receive_buffer_size(None)
        .max_idle_timeout(Some(VarInt::from_u32(idle_ms as u32).into()));
    // A token for later connections would have to be remembered as used.
    let mut tokens = ValidationTokenConfig::default();
    tokens.sent(0);
    let mut server = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    server
        .transport_config(Arc::new(transport))
        .validation_token_config(tokens)
        .max_incoming(INCOMING_MAX)
        .incoming_buffer_size(INCOMING_LEN_MAX)
        .incoming_buffer_size_total(INCOMING_LEN_MAX * INCOMING_MAX as u64)
        // A client's datagrams reach the worker that its address leads to: from another address,
        // another worker's, which knows nothing of it.
        .migration(false);
    Ok(server)
}

/// What the endpoints of all workers have in common beside it.
pub(crate) fn endpoint() -> EndpointConfig {
    EndpointConfig::default()
}
