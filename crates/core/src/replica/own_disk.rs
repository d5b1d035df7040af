//! When a leader whose own disk is late hands over.
//!
//! A late write of the leader costs no answer while its range lasts. It only delays the next range.
//! So the leader keeps leading for that long, unless another voter's disk is known to be faster. It
//! hands over before the range ends, but never to a voter whose disk is as slow: that voter would
//! have to wait for its own disk before it answers.

use epicepoch_wire::NodeId;

use super::Replica;

/// How the disk of a voter compares with the late write of this leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disk {
    /// The voter is silent, or a node of 0.1.
    Unknown,
    /// Its slowest write took at most half as long as this leader's write has waited.
    Faster,
    /// Its slowest write took longer than that.
    AsSlow,
}

impl Replica {
    /// Whether this leader's own disk is a reason to hand over: its oldest write is late, and
    /// either its range ends soon, or the write is very late and another voter's disk is faster.
    pub(super) fn is_own_disk_in_the_way(&self) -> bool {
        let (election, late) = (self.config.election_ticks, self.outbox.oldest_ticks());
        let is_any_faster = || self.others().any(|node| self.disk_of(node) == Disk::Faster);
        late >= election
            && (!self.does_range_last()
                || late >= VERY_LATE_ELECTIONS * election && is_any_faster())
    }

    /// Whether this leader's range lasts for longer than a handover may take: the library gives one
    /// up after an election timeout.
    pub(super) fn does_range_last(&self) -> bool {
        let left_ns = |high: u64| high.saturating_sub(self.trusted_ns);
        self.grant.is_some_and(|grant| left_ns(grant.range.high.0) > self.election_ns())
    }

    /// The other voters whose disks are not known to be as slow as this leader's.
    pub(super) fn voters_with_better_disks(&self) -> Vec<NodeId> {
        self.others().filter(|node| self.disk_of(*node) != Disk::AsSlow).collect()
    }

    fn disk_of(&self, node: NodeId) -> Disk {
        let slowest_ms = self.last_status_of(node).and_then(|status| status.slowest_write_ms);
        match slowest_ms.map(|ms| u64::from(ms) * 2 <= self.as_ms(self.outbox.oldest_ticks())) {
            None => Disk::Unknown,
            Some(true) => Disk::Faster,
            Some(false) => Disk::AsSlow,
        }
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
