//! Limits of one client, so that the other clients are still served.

use std::num::NonZeroU32;
use std::time::Duration;

/// Limits of one client or one address. [`Config`](crate::Config) has the limits of all clients
/// together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// At most this many client connections of one address at once (`ADDRESS_CONNECTIONS_MAX`);
    /// more are closed. For IPv6 the first 64 bits count as the address. Default half of
    /// `CONNECTIONS_MAX`, so that no single address takes every connection.
    pub address_connections_max: usize,
    /// At most this many requests of one address per second (`ADDRESS_REQUEST_RATE_MAX`). As many
    /// requests as are allowed in one second may come at once; more are refused. Default off:
    /// behind a proxy or address translation, all clients have one address.
    pub address_request_rate_max: Option<NonZeroU32>,
    /// Longest time for a request head or a hello (`HEAD_TIMEOUT_MS`). It runs from the beginning
    /// of the connection, or from the first byte of the request, to the end of the head or hello.
    /// It counts in whole seconds, rounded up. Default 10 s: a head is one packet, and this is time
    /// for a dozen retransmissions.
    pub head_timeout: Duration,
    /// How long a connection without requests may be silent before it is closed
    /// (`IDLE_TIMEOUT_MS`), in whole seconds, rounded up. Default 2 minutes. Common clients close
    /// their connections after 90 seconds, so they seldom meet one that the node has closed.
    pub idle_timeout: Duration,
}
