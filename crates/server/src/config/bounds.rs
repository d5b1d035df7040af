//! What every number of the configuration may be, with its default and its unit. One table, so
//! that the check, the help text and the documentation cannot disagree.

use std::time::Duration;

use epicepoch_core::state::FORMATS;

use super::ConfigError;

/// What a number may be. Invariant: `min <= default <= max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The environment variable of the setting.
    pub setting: &'static str,
    /// Least value allowed.
    pub min: u64,
    /// Greatest value allowed.
    pub max: u64,
    /// Value when none is given; `None` if it is required or depends on others.
    pub default: Option<u64>,
    /// Unit in words, empty for a plain count.
    pub unit: &'static str,
}

impl Bounds {
    /// What is allowed, in words: the end of every error about this number.
    #[must_use]
    pub fn allowed(&self) -> String {
        let unit = if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) };
        if self.max == u64::MAX {
            format!("allowed is a whole number from {}{unit}", self.min)
        } else {
            format!("allowed is a whole number from {} to {}{unit}", self.min, self.max)
        }
    }

    /// Refuses a value outside `min..=max`.
    ///
    /// # Errors
    /// [`ConfigError::OutOfRange`].
    pub fn check(&self, value: u64) -> Result<(), ConfigError> {
        if (self.min..=self.max).contains(&value) {
            return Ok(());
        }
        Err(ConfigError::OutOfRange { bounds: *self, value })
    }

    pub(super) fn check_duration(&self, value: Duration) -> Result<(), ConfigError> {
        self.check(millis(value))
    }
}

pub(super) fn default_of(bounds: Bounds) -> Duration {
    Duration::from_millis(bounds.default.unwrap_or(bounds.min))
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Voters at most: each adds to every quorum, and 9 already survive the loss of 4.
pub const PEERS_MAX: usize = 9;
/// Bytes of a cluster name at most: it is a label in metrics and part of every hello of a peer.
pub const CLUSTER_NAME_LEN_MAX: usize = 64;
/// Cluster name when none is given.
pub const CLUSTER_NAME_DEFAULT: &str = "epicepoch";
/// Client port when none is given.
pub const HTTP_PORT_DEFAULT: u16 = 8080;
/// Election timeouts that a reservation must cover: twice the two that must remain at half.
pub const RESERVATION_ELECTIONS_MIN: u64 = 4;
/// Heartbeats that must fit into one election timeout.
pub const HEARTBEATS_MIN: u64 = 3;
pub(super) const fn bounds(
    setting: &'static str,
    min: u64,
    max: u64,
    default: Option<u64>,
    unit: &'static str,
) -> Bounds {
    Bounds { setting, min, max, default, unit }
}

/// Bounds of [`Config::node_id`](super::Config::node_id).
pub const NODE_ID: Bounds = bounds("NODE_ID", 1, u64::MAX, None, "");
/// Bounds of [`Config::http_port`](super::Config::http_port).
pub const HTTP_PORT: Bounds = bounds("HTTP_PORT", 0, 65_535, Some(HTTP_PORT_DEFAULT as u64), "");
/// Bounds of [`Config::epoch_interval`](super::Config::epoch_interval).
pub const EPOCH_INTERVAL_MS: Bounds = bounds("EPOCH_INTERVAL_MS", 1, 60_000, Some(100), "ms");
/// Bounds of [`Config::epoch_deadline_limit`](super::Config::epoch_deadline_limit).
pub const EPOCH_DEADLINE_LIMIT: Bounds =
    bounds("EPOCH_DEADLINE_LIMIT", 1, 1_000_000, Some(100), "");
/// Bounds of [`Config::format_max`](super::Config::format_max).
pub const FORMAT_MAX: Bounds =
    bounds("FORMAT_MAX", FORMATS.oldest as u64, FORMATS.newest as u64, None, "");
/// Bounds of [`Config::request_buffer`](super::Config::request_buffer).
pub const TIMESTAMP_REQUEST_BUFFER: Bounds =
    bounds("TIMESTAMP_REQUEST_BUFFER", 1, 10_000_000, Some(10_000), "");
/// Bounds of [`Config::reservation`](super::Config::reservation).
pub const RESERVATION_MS: Bounds = bounds("RESERVATION_MS", 200, 60_000, Some(1_000), "ms");
/// Bounds of [`Config::clock_offset_max`](super::Config::clock_offset_max).
pub const CLOCK_OFFSET_MAX_MS: Bounds = bounds("CLOCK_OFFSET_MAX_MS", 1, 60_000, Some(500), "ms");
/// Bounds of [`Config::max_n`](super::Config::max_n).
pub const MAX_N: Bounds = bounds("MAX_N", 1, 1 << 20, Some(65_536), "");
/// Bounds of [`Config::election_timeout`](super::Config::election_timeout).
pub const ELECTION_TIMEOUT_MS: Bounds = bounds("ELECTION_TIMEOUT_MS", 50, 10_000, Some(200), "ms");
/// Bounds of [`Config::heartbeat`](super::Config::heartbeat).
pub const HEARTBEAT_MS: Bounds = bounds("HEARTBEAT_MS", 1, 3_333, None, "ms");
/// Bounds of [`Config::request_timeout`](super::Config::request_timeout).
pub const REQUEST_TIMEOUT_MS: Bounds = bounds("REQUEST_TIMEOUT_MS", 1, 60_000, Some(1_000), "ms");
/// Bounds of [`Config::connections_max`](super::Config::connections_max).
pub const CONNECTIONS_MAX: Bounds = bounds("CONNECTIONS_MAX", 1, 1_000_000, Some(20_000), "");
/// Bounds of [`Config::workers`](super::Config::workers).
pub const WORKERS: Bounds = bounds("WORKERS", 1, 64, None, "");
/// Bounds of each of [`Config::worker_cpus`](super::Config::worker_cpus): as many as the kernel's
/// set of processors holds.
pub const WORKER_CPUS: Bounds = bounds("WORKER_CPUS", 0, 1023, None, "");
/// Bounds of [`Config::shutdown_timeout`](super::Config::shutdown_timeout).
pub const SHUTDOWN_TIMEOUT_MS: Bounds = bounds("SHUTDOWN_TIMEOUT_MS", 1, 60_000, Some(3_000), "ms");
