//! A barrier: an empty entry of the log. A barrier that is applied in its own term proves two
//! facts. This node still led after the barrier was requested, and its state has everything that
//! was committed before the request. The state of a leader alone proves neither, because the leader
//! may be deposed and not know it (Raft dissertation, 6.4).

use epicepoch_wire::{LogIndex, Term};
use raft::StateRole;

use super::Replica;

/// A barrier that was proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barrier {
    term: Term,
    index: LogIndex,
}

/// The status of a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierState {
    /// The entry is not applied.
    Pending,
    /// The entry is applied, and this node leads its term.
    Passed,
    /// This node no longer leads the term.
    Lost,
}

impl Replica {
    /// Proposes a barrier. `None` when this node does not lead or hands leadership over.
    pub fn propose_barrier(&mut self, now_ns: u64) -> Option<Barrier> {
        self.now_ns = now_ns;
        if self.raw.raft.state != StateRole::Leader {
            return None;
        }
        let term = Term(self.raw.raft.term);
        self.step(|raw| {
            raw.propose(Vec::new(), Vec::new()).ok()?;
            Some(Barrier { term, index: LogIndex(raw.raft.raft_log.last_index()) })
        })
    }

    /// The status of `barrier` now.
    #[must_use]
    pub fn barrier_state(&self, barrier: Barrier) -> BarrierState {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader || Term(raft.term) != barrier.term {
            return BarrierState::Lost;
        }
        if self.applied.0 < barrier.index {
            return BarrierState::Pending;
        }
        // S17: a leader never overwrites its log, so the entry at this index is the barrier. For an
        // entry that was compacted, the library returns term 0.
        let term = raft.raft_log.term(barrier.index.0).unwrap_or(0);
        assert!([0, barrier.term.0].contains(&term), "S17: a barrier was overwritten");
        BarrierState::Passed
    }
}
