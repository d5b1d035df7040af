//! S17: operators get only true answers. The checker takes outcomes from applied entries and knows
//! a leader by its actions. It ignores what the answering node believes.

use std::collections::{BTreeMap, BTreeSet};

use epicepoch_core::admin::{Answer, Denied, Done};
use epicepoch_core::state::Outcome;
use epicepoch_wire::{LogIndex, NodeId, Term};

use super::{History, Invariant};

/// The commands of operators and their outcomes.
#[derive(Debug, Default)]
pub(super) struct Orders {
    /// The outcomes of applied entries, by the nonce of the change.
    outcomes: BTreeMap<u64, Outcome>,
    /// The changes that were denied. None of them may happen.
    denied: BTreeSet<u64>,
}

/// A command when it arrives at a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) nonce: u64,
    /// The highest term in which any leader had acted when the command arrived.
    led: Term,
}

/// A node that answers an operator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Teller {
    pub(crate) node: NodeId,
    pub(crate) term: Term,
    pub(crate) applied: LogIndex,
}

impl History {
    /// A command arrives.
    pub(crate) fn ordered(&self, nonce: u64) -> Asked {
        let led = self.leaders.keys().next_back().copied().unwrap_or(Term(0));
        Asked { nonce, led }
    }

    /// A node has applied the entry of a change.
    pub(crate) fn check_outcome(&mut self, node: NodeId, nonce: u64, outcome: &Outcome) {
        // Nonce 0 belongs to no operator: with it a leader proposes the first settings of the
        // cluster.
        if nonce == 0 {
            return;
        }
        let known = self.orders.outcomes.entry(nonce).or_insert_with(|| outcome.clone()).clone();
        if known != *outcome {
            self.violate(Invariant::Ranges, || {
                format!("change {nonce} is {known:?}, and {outcome:?} on node {node}")
            });
        }
        self.check_denied(nonce);
    }

    /// A node answers a command.
    pub(crate) fn check_told(&mut self, by: Teller, asked: Asked, answer: &Answer) {
        let outcome = self.orders.outcomes.get(&asked.nonce);
        let is_so = match answer {
            Ok(Done::Planned(_) | Done::Vacant) | Err(Denied::Unsettled(_)) => true,
            // The report of the advance is true if later answers are above it, which S14 checks
            // from now on.
            Ok(Done::Advanced(advance)) => {
                self.advanced(advance.to);
                true
            }
            Ok(Done::Transferred { is_already: true, .. } | Done::Member { .. }) => {
                by.term >= asked.led
            }
            Ok(Done::Transferred { to, term, is_already: false, .. }) => {
                self.leaders.get(term).is_some_and(|(leader, _)| leader == to)
            }
            Ok(Done::Changed { is_already: true, .. }) => by.term >= asked.led,
            Ok(Done::Changed { is_already: false, .. }) => {
                let is_joint =
                    self.states.get(&by.applied).is_some_and(|(_, voters)| voters.is_joint());
                outcome == Some(&Outcome::Changed) && !is_joint
            }
            Ok(Done::Set { .. }) => outcome == Some(&Outcome::Set),
            Err(Denied::Refused(_)) => matches!(outcome, Some(Outcome::Refused(_))),
            Err(_) => {
                self.orders.denied.insert(asked.nonce);
                self.check_denied(asked.nonce);
                true
            }
        };
        if !is_so {
            let Teller { node, term, .. } = by;
            self.violate(Invariant::Told, || {
                format!("node {node} in {term} answers {asked:?} with {answer:?}")
            });
        }
    }

    fn check_denied(&mut self, nonce: u64) {
        let Orders { outcomes, denied } = &self.orders;
        let is_done = matches!(outcomes.get(&nonce), Some(Outcome::Changed | Outcome::Set));
        if is_done && denied.contains(&nonce) {
            self.violate(Invariant::Told, || format!("change {nonce} was denied, and happened"));
        }
    }
}
