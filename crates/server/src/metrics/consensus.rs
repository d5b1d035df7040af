//! What the consensus plane counts. Its thread and the storage thread write the cells; any
//! thread reads them at a scrape. No decision reads them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use epicepoch_core::clock::ClockStatus;
use epicepoch_wire::{Epoch, NodeId};

use super::cell::{Count, Histogram};

/// The cells of the consensus plane.
#[derive(Debug)]
pub struct ConsensusMetrics {
    /// Changes of the leader that this node has seen.
    pub leader_changes: Count,
    /// Reservations of this node that were applied.
    pub reservations: Count,
    /// From the proposal of a reservation until it was applied, nanoseconds.
    pub reservation_ns: Histogram,
    /// Reservations that missed their deadline, half a window.
    pub reservation_deadlines_missed: Count,
    /// Duration of one durable write, nanoseconds.
    pub fsync_ns: Histogram,
    /// Raft messages handed to a peer's connection.
    pub raft_messages_sent: Count,
    /// Raft messages dropped because there was no connection, or it was full.
    pub raft_messages_dropped: Count,
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
            ceiling: Count::default(),
            clock_status: Count::default(),
            peer_clock_offsets_ns: Mutex::default(),
            round_trips_ns: Mutex::default(),
        }
    }
}

impl ConsensusMetrics {
    /// The replicated ceiling as this node has applied it.
    pub fn set_ceiling(&self, ceiling: Epoch) {
        self.ceiling.set(ceiling.0);
    }

    /// What the clock firewall thinks of this node's wall clock.
    pub fn set_clock_status(&self, status: ClockStatus) {
        let position = CLOCK_STATUSES.iter().position(|(known, _)| *known == status);
        self.clock_status.set(position.unwrap_or_default() as u64);
    }

    /// A peer's wall clock minus this node's, nanoseconds.
    pub fn set_peer_clock_offset(&self, peer: NodeId, offset_ns: i64) {
        self.offsets().insert(peer, offset_ns);
    }

    /// The usual round trip to a peer and back, nanoseconds.
    pub fn set_round_trip(&self, peer: NodeId, round_trip_ns: u64) {
        self.trips().insert(peer, round_trip_ns);
    }

    /// Forgets every peer that is no member any more.
    pub fn retain_peers(&self, is_member: impl Fn(NodeId) -> bool) {
        self.offsets().retain(|peer, _| is_member(*peer));
        self.trips().retain(|peer, _| is_member(*peer));
    }

    pub(super) fn ceiling(&self) -> Epoch {
        Epoch(self.ceiling.load())
    }

    pub(super) fn clock_status(&self) -> usize {
        self.clock_status.load() as usize
    }

    pub(super) fn peer_clock_offsets(&self) -> Vec<(NodeId, i64)> {
        self.offsets().iter().map(|(peer, offset)| (*peer, *offset)).collect()
    }

    pub(super) fn round_trips(&self) -> Vec<(NodeId, u64)> {
        self.trips().iter().map(|(peer, ns)| (*peer, *ns)).collect()
    }

    fn trips(&self) -> MutexGuard<'_, BTreeMap<NodeId, u64>> {
        self.round_trips_ns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn offsets(&self) -> MutexGuard<'_, BTreeMap<NodeId, i64>> {
        self.peer_clock_offsets_ns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the firewall may think, and the labels of it.
pub(super) const CLOCK_STATUSES: [(ClockStatus, &str); 3] = [
    (ClockStatus::Followed, "followed"),
    (ClockStatus::Outvoted, "outvoted"),
    (ClockStatus::Jumped, "jumped"),
];
