//! One worker's socket of a UDP port, before the front serves it.

use std::net::UdpSocket;
use std::sync::Arc;

use crate::security::authz::Port;
use crate::security::limits::AddressLimits;

/// One worker's socket of a UDP port, and the QUIC settings for it.
#[derive(Debug)]
pub(crate) struct QuicSocket {
    pub(crate) socket: UdpSocket,
    pub(crate) server: quinn::ServerConfig,
    /// The port whose rights its clients have.
    pub(crate) port: Port,
    pub(crate) address_limits: Arc<AddressLimits>,
}
