//! How much of a node clients may take: settings that bound one client so that others are served.

use std::num::NonZeroU32;
use std::time::Duration;

use super::ConfigError;
use super::bounds::{Bounds, CONNECTIONS_MAX, bounds, default_of};

/// What clients are held to, beside the number of connections and of waiting requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Client connections of one address at once (`ADDRESS_CONNECTIONS_MAX`); beyond it new ones are
    /// closed. An address of IPv6 stands for its first 64 bits. Default half of
    /// `CONNECTIONS_MAX`, so that no single address takes every place: see
    /// [`default_address_connections`].
    pub address_connections_max: usize,
    /// Requests of one address per second (`ADDRESS_REQUEST_RATE_MAX`); beyond a second's worth at
    /// once they are refused. Default off: behind a proxy, or a translation of addresses, all
    /// clients are one address.
    pub address_request_rate_max: Option<NonZeroU32>,
    /// Time from a connection's beginning, or a request's first byte, to the end of its head or
    /// hello (`HEAD_TIMEOUT_MS`), counted in whole seconds, rounded up. Default 10 s: a head is one
    /// packet, and this long is a dozen retransmissions.
    pub head_timeout: Duration,
    /// Silence after which a connection without requests is closed (`IDLE_TIMEOUT_MS`), counted in
    /// whole seconds, rounded up. Default 2 minutes: longer than the 90 seconds after which common
    /// clients close theirs, so that they seldom meet a closed one.
    pub idle_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let connections_max = CONNECTIONS_MAX.default.unwrap_or(1) as usize;
        Self {
            address_connections_max: default_address_connections(connections_max),
            address_request_rate_max: None,
            head_timeout: default_of(HEAD_TIMEOUT_MS),
            idle_timeout: default_of(IDLE_TIMEOUT_MS),
        }
    }
}

impl Limits {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        ADDRESS_CONNECTIONS_MAX.check(self.address_connections_max as u64)?;
        let rate = self.address_request_rate_max.map_or(0, NonZeroU32::get);
        ADDRESS_REQUEST_RATE_MAX.check(u64::from(rate))?;
        HEAD_TIMEOUT_MS.check_duration(self.head_timeout)?;
        IDLE_TIMEOUT_MS.check_duration(self.idle_timeout)
    }
}

/// Half of all connections, at least one.
#[must_use]
pub fn default_address_connections(connections_max: usize) -> usize {
    connections_max.div_ceil(2)
}

/// Bounds of [`Limits::address_connections_max`].
pub const ADDRESS_CONNECTIONS_MAX: Bounds =
    bounds("ADDRESS_CONNECTIONS_MAX", 1, 1_000_000, None, "");
/// Bounds of [`Limits::address_request_rate_max`]; 0 is no limit.
pub const ADDRESS_REQUEST_RATE_MAX: Bounds =
    bounds("ADDRESS_REQUEST_RATE_MAX", 0, 100_000_000, Some(0), "per second");
/// Bounds of [`Limits::head_timeout`].
pub const HEAD_TIMEOUT_MS: Bounds = bounds("HEAD_TIMEOUT_MS", 1_000, 60_000, Some(10_000), "ms");
/// Bounds of [`Limits::idle_timeout`].
pub const IDLE_TIMEOUT_MS: Bounds =
    bounds("IDLE_TIMEOUT_MS", 1_000, 86_400_000, Some(120_000), "ms");
