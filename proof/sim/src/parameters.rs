//! Figures that every run shares: units, limits, and the configuration of all nodes.

use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::voter_status::Zone;
use epicepoch_wire::{Guarantee, Mode, TimestampFormat};

/// A millisecond in nanoseconds.
pub(crate) const MS: u64 = 1_000_000;
/// A second in nanoseconds.
pub(crate) const SECOND: u64 = 1_000 * MS;
/// Unix time when a run begins, nanoseconds.
pub(crate) const START_NS: u64 = 1_700_000_000_000_000_000;
/// A run has at most this many nodes, members or not.
pub(crate) const NODES_MAX: usize = 16;
/// Length of a tick, nanoseconds.
pub(crate) const TICK_NS: u64 = 10_000_000;
/// Shortest election timeout, as in production.
pub(crate) const ELECTION_TICKS: usize = 20;
/// Ticks between two heartbeats, as in production.
pub(crate) const HEARTBEAT_TICKS: usize = 4;
/// How far ahead of trusted time leaders reserve, nanoseconds.
pub(crate) const RESERVATION_NS: u64 = 1_000_000_000;
/// How far a believed wall clock may be off, nanoseconds.
pub(crate) const CLOCK_OFFSET_MAX_NS: u64 = 500_000_000;
/// Workers of a node.
pub(crate) const WORKERS: usize = 2;
/// Threads of a node. Each can be paused by itself.
pub(crate) const THREADS: usize = 1 + WORKERS;
/// At most this many requests wait on a worker. The limit is low, so that workers refuse some
/// requests.
pub(crate) const SLOTS_MAX: usize = 8;
/// Longest time that a request may wait, nanoseconds.
pub(crate) const REQUEST_NS: u64 = SECOND;
/// Time between two rounds of an idle leader, nanoseconds: half an election timeout, as in
/// production.
pub(crate) const PROBE_NS: u64 = ELECTION_TICKS as u64 * TICK_NS / 2;
/// Clients with sessions have numbers from this one on.
pub(crate) const SESSIONS_FROM: usize = 1_000;
/// All frames of forwarders come from the client of this number.
pub(crate) const FORWARDERS_FROM: usize = 2_000;
/// Time between two advances of the epoch, nanoseconds.
pub(crate) const EPOCH_INTERVAL_NS: u64 = 100_000_000;

/// The initial settings of every node. The first leader proposes them as the cluster's settings.
pub(crate) const fn initial_settings(
    leader_zones: Vec<Zone>,
    lease_ms: u64,
    timestamp_format: TimestampFormat,
) -> ClusterSettings {
    ClusterSettings {
        epoch_interval_ms: EPOCH_INTERVAL_NS / MS,
        reservation_ms: RESERVATION_NS / MS,
        clock_offset_max_ms: CLOCK_OFFSET_MAX_NS / MS,
        max_n: 65_536,
        leader_zones,
        lease_ms,
        guarantee_default: Guarantee::Quorum,
        timestamp_format,
        mode: Mode::Quorum,
    }
}
