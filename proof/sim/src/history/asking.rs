//! Which voters a round asks: a quorum at once, and all of them once an answer is late.

use epicepoch_core::publication::Published;
use epicepoch_wire::{NodeId, Round, WorkerId};

use super::History;
use super::invariant::Invariant;
use crate::node_set::NodeSet;

/// Which nodes a worker has asked in its newest round.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) round: Round,
    pub(crate) nodes: NodeSet,
    /// Whether at the last tick of the worker an answer to this round was late, and a voter that
    /// could be asked was not.
    is_overdue: bool,
}

impl Asked {
    /// A round that begins by asking these nodes.
    pub(crate) const fn begun(round: Round, nodes: NodeSet) -> Self {
        Self { round, nodes, is_overdue: false }
    }

    /// The worker ticks. `is_overdue` says whether an answer is late now, and a voter that the
    /// worker reaches was not asked. Returns whether both were so at the tick before, too.
    pub(crate) const fn tick(&mut self, is_overdue: bool) -> bool {
        let before = self.is_overdue;
        self.is_overdue = is_overdue;
        before && is_overdue
    }
}

impl History {
    /// A worker of `node` has asked these nodes at the beginning of a round. If it reaches a quorum,
    /// it must have asked one. Majorities are counted from plain lists.
    pub(crate) fn check_asked(
        &mut self,
        node: NodeId,
        published: &Published,
        reached: NodeSet,
        asked: NodeSet,
    ) {
        let is_majority = |half: &[NodeId], of: NodeSet| {
            let yes = half.iter().filter(|it| **it == node || of.contains(**it)).count();
            half.is_empty() || yes * 2 > half.len()
        };
        let voters = &published.voters;
        let halves: [Vec<NodeId>; 2] = [
            voters.incoming().map(|(voter, _)| voter).collect(),
            voters.outgoing().map(|(voter, _)| voter).collect(),
        ];
        let is_quorum = |of| halves.iter().all(|half| is_majority(half, of));
        if is_quorum(reached) && !is_quorum(asked) {
            self.violate(Invariant::Asked, || {
                format!("{node} reaches {reached:?} and asks only {asked:?}, which is no quorum")
            });
        }
    }

    /// At two ticks of a worker in a row an answer was late, and a voter that it reaches was not
    /// asked.
    pub(crate) fn asks_too_few(&mut self, node: NodeId, worker: WorkerId, asked: Asked) {
        self.violate(Invariant::Asked, || {
            let Asked { round, nodes, .. } = asked;
            format!("{node}, worker {}: {round:?} is late, and only {nodes:?} was asked", worker.0)
        });
    }
}
