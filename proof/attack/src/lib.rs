//! Malicious clients at the socket, for tests of the server and for `scripts/attack`. They connect
//! only to the addresses that the caller gives. No product crate depends on them.
//!
//! - [`http2`]: floods of HTTP/2 frames.
//! - [`connections`]: many idle or slow connections.
//! - [`peers`]: connections to the peer port without a handshake.
//! - [`requests`]: more requests or connections than a node can serve.
//! - [`quic`]: floods of first packets of QUIC connections, with garbage or with handshakes that
//!   are not continued.
//! - [`client`]: a well-behaved client that measures latency during an attack.
//! - [`echo`]: a server that does nothing but answer, to measure the machine's own limit.

pub mod client;
pub mod connections;
pub mod echo;
pub mod http2;
pub mod peers;
pub mod quic;
pub mod requests;
