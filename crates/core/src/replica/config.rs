//! The configuration of a replica, which never changes while it runs.

use crate::publication::Identity;

/// The configuration of a replica. Durations are in its own ticks, or in nanoseconds of the
/// caller's clock.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaConfig {
    /// This node, its data directory and its boot.
    pub identity: Identity,
    /// Seed of all random draws.
    pub seed: u64,
    /// `E`: the shortest silence after which a follower campaigns, ticks. Each election timeout is
    /// drawn from `[E, 2E)`.
    pub election_ticks: usize,
    /// Ticks between two heartbeats of a leader; below `election_ticks`.
    pub heartbeat_ticks: usize,
    /// Length of a tick, nanoseconds.
    pub tick_ns: u64,
    /// How far ahead of trusted time a leader reserves, nanoseconds.
    pub reservation_ns: u64,
    /// Consecutive late reservations after which this replica gives up.
    pub deadline_limit: u32,
    /// The newest format that this node reads, as in its hello.
    pub format_max: u32,
}
