//! When a leader whose own disk is late hands over.
//!
//! A late write of the leader costs nothing while its range lasts; it only delays the next range.
//! At the end of the range the epoch stands still. So the leader keeps leading while its range
//! lasts, unless another voter's disk is known to be faster. It hands over before the range ends,
//! but never to a voter whose disk is as slow: that voter would have to wait for its own disk
//! before it answers at all.

use epicepoch_wire::NodeId;

use super::Replica;

/// How the disk of a voter compares with the late write of this leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disk {
    /// The voter is silent, or its version reports no writes.
    Unknown,
    /// Its slowest write took at most half as long as this leader's write has waited.
    Faster,
    /// Its slowest write took longer than that.
    AsSlow,
}

impl Replica {
    /// The voters to which leadership may go because this leader's own write is late. None while
    /// that is no reason to hand over.
    ///
    /// While the range lasts, the write must be very late, and the voter's disk known to be faster.
    /// After that, only voters whose disks are known to be as slow are left out.
    pub(super) fn successors_because_of_disk(&self) -> Vec<NodeId> {
        let (election, late) = (self.config.election_ticks, self.outbox.oldest_ticks());
        if late < election {
            return Vec::new();
        }
        let is_urgent = !self.does_range_last();
        let may = |node: &NodeId| match self.disk_of(*node) {
            Disk::Faster => is_urgent || late >= VERY_LATE_ELECTIONS * election,
            Disk::Unknown => is_urgent,
            Disk::AsSlow => false,
        };
        self.others().filter(may).collect()
    }

    /// Whether no write has waited for longer than half an election timeout.
    pub(super) fn does_disk_keep_up(&self) -> bool {
        self.outbox.oldest_ticks() <= (self.config.election_ticks / 2).max(1)
    }

    /// Whether this leader's range ends soon, and its write is late.
    pub(super) fn is_range_lost_to_disk(&self) -> bool {
        self.outbox.oldest_ticks() >= self.config.election_ticks && !self.does_range_last()
    }

    /// Whether this leader's range lasts for longer than a handover may take: the library gives one
    /// up after an election timeout.
    pub(super) fn does_range_last(&self) -> bool {
        let left_ns = |high: u64| high.saturating_sub(self.trusted_ns);
        self.grant.is_some_and(|grant| left_ns(grant.range.high.0) > self.election_ns())
    }

    fn disk_of(&self, node: NodeId) -> Disk {
        let slowest_ms = self.last_status_of(node).and_then(|status| status.slowest_write_ms);
        match slowest_ms.map(|ms| u64::from(ms) * 2 <= self.as_ms(self.outbox.oldest_ticks())) {
            None => Disk::Unknown,
            Some(true) => Disk::Faster,
            Some(false) => Disk::AsSlow,
        }
    }

    /// Whether a voter has said that its last writes took at most so many ticks each.
    pub(super) fn is_disk_fast(&self, node: NodeId, ticks: usize) -> bool {
        let slowest_ms = self.last_status_of(node).and_then(|status| status.slowest_write_ms);
        slowest_ms.is_some_and(|ms| u64::from(ms) <= self.as_ms(ticks))
    }

    /// The slowest of this node's last writes, for its status.
    pub(super) fn slowest_write_ms(&self) -> u16 {
        u16::try_from(self.as_ms(self.outbox.slowest_ticks())).unwrap_or(u16::MAX)
    }

    fn as_ms(&self, ticks: usize) -> u64 {
        self.config.tick_ns.saturating_mul(ticks as u64) / 1_000_000
    }

    fn others(&self) -> impl Iterator<Item = NodeId> {
        let me = self.config.identity.node;
        self.voters.iter().map(|(node, _)| node).filter(move |node| *node != me)
    }
}

/// Election timeouts after which a write is very late: 400 ms by default.
const VERY_LATE_ELECTIONS: usize = 2;
