//! Limits of an HTTP/3 client: memory and time. By default, the libraries let a client of QUIC or
//! HTTP/3 make some things grow without a limit. Each of these things has a limit here.

use std::sync::Arc;
use std::time::Duration;

use epicepoch_certs::rustls;
use quinn::{EndpointConfig, ServerConfig, TransportConfig, ValidationTokenConfig, VarInt};
use quinn_proto::crypto::rustls::{NoInitialCipherSuite, QuicServerConfig};

/// At most this many open requests of one connection.
pub const STREAMS_MAX: u32 = 256;
/// At most this many streams that do not carry requests. HTTP/3 needs three (RFC 9114, 6.2); some
/// clients open more to test that servers ignore unknown ones.
pub const STREAMS_BESIDE_MAX: u32 = 8;
/// At most this many bytes in a request's head, as HTTP/3 counts them: each field counts its name,
/// its value and 32 bytes.
pub const HEAD_LEN_MAX: u64 = 16 << 10;
/// At most this many bytes on one request's stream: its head, its body, and ignored frames.
pub const REQUEST_LEN_MAX: usize = 32 << 10;
/// At most this many bytes, between two requests, on streams that do not carry requests.
pub const BESIDE_LEN_MAX: usize = 16 << 10;
/// At most this many bytes in a frame on the control stream. Settings and priorities have a few
/// dozen.
pub const CONTROL_FRAME_LEN_MAX: u64 = 4 << 10;
/// Requests that a client may cancel at once. Each answer allows one more cancelled request. A
/// client that cancels more is disconnected.
pub const TAKEN_BACK_MAX: u32 = 256;
/// A client may cancel this many requests per second without an answer, for as long as it likes.
/// While no leader is known, a client with deadlines cancels all its requests.
pub const TAKEN_BACK_PER_SECOND: u32 = 5_000;
/// Requests of one connection whose heads did not come. The library keeps the id of each until the
/// connection ends ([h3#365](https://github.com/hyperium/h3/pull/365)). So after this many, the node
/// tells the client to use another connection.
pub const HEADLESS_MAX: u32 = 4_096;
/// Bytes of one stream that a client may send before the node reads them.
const STREAM_WINDOW: u32 = 16 << 10;
/// Bytes of all streams together that a client may send before the node reads them.
const WINDOW: u32 = 256 << 10;
/// At most this many bytes of answers are unsent or not acknowledged.
const SEND_WINDOW: u64 = 256 << 10;
/// Time from a client's first datagram to the end of its handshake.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// At most this many handshakes are under way on one worker. Beyond this, clients are refused.
pub const HANDSHAKES_MAX: usize = 256;
/// While clients must prove their address, at most this many handshakes of one address are under
/// way on one worker. Beyond this, the address is refused, so that others still get in.
pub const HANDSHAKES_OF_ADDRESS_MAX: usize = HANDSHAKES_MAX / 4;
/// While this many handshakes are under way, a new client must first prove that it receives at its
/// address. Until then the node keeps no state for the client. A faked address then costs one
/// datagram and no memory.
pub const HANDSHAKES_BEFORE_RETRY: usize = 32;
/// QUIC's idle timeout is longer than the node's by this time, so that the node closes first. QUIC
/// would close without telling the client.
const IDLE_GRACE: Duration = Duration::from_secs(5);
/// At most this many new clients wait with their first datagram. The QUIC library refuses further
/// clients by itself.
const INCOMING_MAX: usize = 256;
/// At most this many bytes of a client's datagrams are kept before the node handles the first one.
const INCOMING_LEN_MAX: u64 = 8 << 10;

/// The QUIC settings of all endpoints of a node.
///
/// # Errors
/// When `tls` has no cipher suite for QUIC's first packets, which is a bug.
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
    // The node hands out no tokens for later connections, because it would have to remember which
    // ones were used.
    let mut tokens = ValidationTokenConfig::default();
    tokens.sent(0);
    let mut server = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    server
        .transport_config(Arc::new(transport))
        .validation_token_config(tokens)
        .max_incoming(INCOMING_MAX)
        .incoming_buffer_size(INCOMING_LEN_MAX)
        .incoming_buffer_size_total(INCOMING_LEN_MAX * INCOMING_MAX as u64)
        // The client's address decides which worker gets its datagrams. From a new address they
        // would reach another worker, which does not know the connection.
        .migration(false);
    Ok(server)
}

/// The other settings of the endpoints.
pub(crate) fn endpoint() -> EndpointConfig {
    EndpointConfig::default()
}
