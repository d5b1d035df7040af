//! The metrics of the consensus plane. The plane's thread and the storage thread write them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use epicepoch_core::clock::ClockStatus;
use epicepoch_wire::{Epoch, NodeId};

use super::cell::{Count, Histogram};
use super::peers::Peers;

/// The metrics of the consensus plane.
#[derive(Debug)]
pub struct ConsensusMetrics {
    /// How often this node has seen the leader change.
    pub leader_changes: Count,
    /// Reservations of this node that were applied.
    pub reservations: Count,
    /// Time from the proposal of a reservation until it was applied, nanoseconds.
    pub reservation_ns: Histogram,
    /// Reservations that missed their deadline, which is half a window.
    pub reservation_deadlines_missed: Count,
    /// Duration of one durable write, nanoseconds.
    pub fsync_ns: Histogram,
    /// Raft messages handed to a peer's connection.
    pub raft_messages_sent: Count,
    /// Raft messages dropped because the queue of the peer's link was full. A link that is down
    /// discards its messages uncounted.
    pub raft_messages_dropped: Count,
    /// Since when this node has seen the present leader, or none, monotonic nanoseconds.
    pub leader_since_ns: Count,
    /// How long this leader still waits for the leases of others, nanoseconds.
    pub lease_wait_ns: Count,
    /// The other members.
    pub peers: Peers,
    ceiling: Count,
    clock_status: Count,
    peer_clock_offsets_ns: Mutex<BTreeMap<NodeId, i64>>,
    round_trips_ns: Mutex<BTreeMap<NodeId, u64>>,
}

impl Default for ConsensusMetrics {
    fn default() -> Self {
        Self {
            leader_changes: Count::default(),
            reservations: Count::default(),
            reservation_ns: Histogram::of_durations(),
            reservation_deadlines_missed: Count::default(),
            fsync_ns: Histogram::of_durations(),
            raft_messages_sent: Count::default(),
            raft_messages_dropped: Count::default(),
            leader_since_ns: Count::default(),
            lease_wait_ns: Count::default(),
            peers: Peers::default(),
            ceiling: Count::default(),
            clock_status: Count::default(),
            peer_clock_offsets_ns: Mutex::default(),
            round_trips_ns: Mutex::default(),
        }
    }
}

impl ConsensusMetrics {
    /// Sets the replicated ceiling that this node has applied.
    pub fn set_ceiling(&self, ceiling: Epoch) {
        self.ceiling.set(ceiling.0);
    }

    /// Sets the clock firewall's verdict on this node's wall clock.
    pub fn set_clock_status(&self, status: ClockStatus) {
        let position = CLOCK_STATUSES.iter().position(|(known, _)| *known == status);
        self.clock_status.set(position.unwrap_or_default() as u64);
    }

    /// Sets the offset of a peer's clock: its wall clock minus this node's, nanoseconds.
    pub fn set_peer_clock_offset(&self, peer: NodeId, offset_ns: i64) {
        self.offsets().insert(peer, offset_ns);
    }

    /// Sets the usual round trip to a peer, nanoseconds.
    pub fn set_round_trip(&self, peer: NodeId, round_trip_ns: u64) {
        self.trips().insert(peer, round_trip_ns);
    }

    /// Removes the values of peers that are no longer members.
    pub fn retain_peers(&self, is_member: impl Fn(NodeId) -> bool) {
        self.offsets().retain(|peer, _| is_member(*peer));
        self.trips().retain(|peer, _| is_member(*peer));
        self.peers.retain(is_member);
    }

    pub(crate) fn ceiling(&self) -> Epoch {
        Epoch(self.ceiling.load())
    }

    pub(crate) fn clock_status(&self) -> usize {
        self.clock_status.load() as usize
    }

    pub(crate) fn peer_clock_offsets(&self) -> Vec<(NodeId, i64)> {
        self.offsets().iter().map(|(peer, offset)| (*peer, *offset)).collect()
    }

    pub(crate) fn round_trips(&self) -> Vec<(NodeId, u64)> {
        self.trips().iter().map(|(peer, ns)| (*peer, *ns)).collect()
    }

    fn trips(&self) -> MutexGuard<'_, BTreeMap<NodeId, u64>> {
        self.round_trips_ns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn offsets(&self) -> MutexGuard<'_, BTreeMap<NodeId, i64>> {
        self.peer_clock_offsets_ns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The verdicts of the clock firewall, and their labels.
pub(crate) const CLOCK_STATUSES: [(ClockStatus, &str); 3] = [
    (ClockStatus::Followed, "followed"),
    (ClockStatus::Outvoted, "outvoted"),
    (ClockStatus::Jumped, "jumped"),
];
