//! The monitor: a witness that a run does only what the specification allows. It follows the state
//! of `proof/spec/rounds.py` and `proof/spec/raft_log.py` beside the run. Each function that the
//! world calls is an action of these specifications, or a few of them. It checks the rules of the
//! action under the names that they have there. The first rule that does not hold ends the run.
//!
//! The monitor takes what it knows from what leaves the core: writes, messages, publications,
//! reports, frames and timestamps. It never asks the core whether a step is allowed, and changes
//! nothing. `places.py` compares its rules with those of the specifications, both ways.
//!
//! The specifications take a step at any time at which its rules hold, so the monitor chooses when:
//! - A single voter says that it leads before its vote for itself is durable. It wins when the vote
//!   is durable. If it crashes earlier, nothing of that term has happened.
//! - A disk may have entries that were replaced in memory by others, which are not durable. After a
//!   crash they are back, as if the others had never come.
//!
//! - `rounds`: batches, rounds, answers to them, and timestamps.
//! - `ranges`: reservations, grants, and what is given back.
//! - `elections`: votes, Promises, disks and leadership, in both specifications.
//! - `raft_log`: the log, commits, snapshots and crashes. `members`: configurations.

mod elections;
mod members;
mod raft_log;
mod ranges;
mod rounds;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use epicepoch_core::publication::{Grant, Identity};
use epicepoch_wire::bootstrap::Genesis;
use epicepoch_wire::{BootId, Epoch, LogIndex, NodeId, StoreId, Term, Timestamp};

use crate::history::{Invariant, Violation};
use crate::node_set::NodeSet;
use crate::parameters::WORKERS;
use members::Configuration;
use raft_log::{Line, Log};
use ranges::Ranges;
use rounds::Worker;

/// The state of the specifications beside a run.
#[derive(Debug)]
pub(crate) struct Monitor {
    is_on: bool,
    seed: u64,
    /// By node id, from 1 on.
    nodes: Vec<Watched>,
    /// The terms that were won.
    terms: BTreeMap<Term, Won>,
    line: Line,
    ranges: Ranges,
    /// The end of the node's log when an operator's command arrived, and the term that it led, by
    /// the command's nonce.
    asked_at: BTreeMap<u64, (LogIndex, Option<Term>)>,
    /// The first rule that was broken.
    pub(crate) broken: Option<Violation>,
    /// The rules that were checked at least once.
    #[cfg(test)]
    pub(crate) checked: BTreeSet<&'static str>,
}

/// A node: its data directory, and the run of its process if there is one.
#[derive(Debug, Default)]
struct Watched {
    store: StoreId,
    /// The Promise, as the workers see it.
    promised: Term,
    durable: Term,
    votes: BTreeMap<Term, Vote>,
    /// The candidates to which votes have left.
    sent: BTreeMap<Term, NodeId>,
    /// The terms in which requests for votes have left, or need not leave.
    asked: BTreeSet<Term>,
    /// The end of the log when the node campaigned in a term.
    heads: BTreeMap<Term, (LogIndex, Term)>,
    log: Log,
    /// The highest commit index that the node was seen to know.
    knows: LogIndex,
    /// The last entry that the node has acknowledged in each term, or that is durable on the
    /// leader.
    acked: BTreeMap<Term, LogIndex>,
    run: Option<Run>,
    /// Whether the disk was rolled back, which the specifications exclude. Peers refuse such a node.
    is_ignored: bool,
}

/// A vote in the memory of a voter.
#[derive(Clone, Copy, Debug)]
struct Vote {
    to: NodeId,
    /// The run that decided.
    by: BootId,
    is_kept: bool,
}

/// A run of a process.
#[derive(Debug)]
struct Run {
    me: Identity,
    /// The newest term and vote that it has handed to its disk.
    hard: (Term, NodeId),
    /// Its writes that are not durable: their numbers, and the hard state after each.
    writes: VecDeque<Pending>,
    campaigns: Option<Term>,
    counted: NodeSet,
    /// The term that it says it leads, and the voters by whom it was elected. The term counts as
    /// won when a quorum's votes are known: a single voter says so before its own vote is durable.
    believes: Option<(Term, Rc<Configuration>)>,
    leads: Option<Term>,
    /// The term that it has led at any time since the last actions of its consensus plane.
    led: Option<Term>,
    /// The last term that it has won.
    won: Option<Term>,
    /// The grant that the workers see.
    grant: Option<Grant>,
    /// The last grant that the workers have seen since the last actions of the consensus plane.
    granted: Option<Grant>,
    /// The allocator's position. An advance moves it, too.
    last: Option<Timestamp>,
    /// What was advanced to, and the highest latest timestamp that was shown, to tell three rules
    /// apart.
    advanced: Epoch,
    shown: Option<Timestamp>,
    applied: LogIndex,
    /// A commit index that a write of this turn must show.
    owed: Option<LogIndex>,
    workers: [Worker; WORKERS],
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    number: u64,
    hard: (Term, NodeId),
}

/// A term that was won.
#[derive(Debug)]
struct Won {
    by: NodeId,
    /// The voters whose votes won the term.
    election: NodeSet,
    /// The configuration that the leader has published last: rounds ask its voters.
    asks: Rc<Configuration>,
}

impl Monitor {
    /// A monitor of a cluster of `nodes` nodes that begins with `genesis`.
    pub(crate) fn new(seed: u64, nodes: usize, genesis: &Genesis) -> Self {
        Self {
            is_on: true,
            seed,
            nodes: (0..nodes).map(|_| Watched::default()).collect(),
            terms: BTreeMap::new(),
            line: Line::default(),
            ranges: Ranges::new(genesis.floor),
            asked_at: BTreeMap::new(),
            broken: None,
            #[cfg(test)]
            checked: BTreeSet::new(),
        }
    }

    /// Turns the monitor off for the rest of the run.
    pub(crate) const fn turn_off(&mut self) {
        self.is_on = false;
    }

    /// All data was lost, and a new history begins. The specifications have no restore.
    pub(crate) fn restored(&mut self, genesis: &Genesis) {
        let before = Self::new(self.seed, self.nodes.len(), genesis);
        let before = std::mem::replace(self, before);
        self.is_on = before.is_on;
        self.broken = before.broken;
        #[cfg(test)]
        self.checked.extend(before.checked);
    }

    /// Checks a rule of an action. The name has three parts: specification, action, rule.
    fn rule(&mut self, name: &'static str, holds: bool, what: impl FnOnce() -> String) {
        #[cfg(test)]
        self.checked.insert(name);
        if !holds && self.broken.is_none() {
            let mut parts = name.split('/');
            let mut part = || parts.next().unwrap_or_default();
            let (specification, action, rule) = (part(), part(), part());
            let what = format!(
                "the rule `{rule}` of the action `{action}` in {specification}.py does not hold in \
                 seed {}: {}",
                self.seed,
                what()
            );
            self.broken = Some(Violation { invariant: Invariant::Specification(name), what });
        }
    }

    /// Checks a rule by which an action needs a running process, and returns whether there is one.
    fn is_live(&mut self, name: &'static str, id: NodeId) -> bool {
        if !self.watches(id) {
            return false;
        }
        let is_live = self.at(id).run.is_some();
        self.rule(name, is_live, || format!("no process of node {id} runs"));
        is_live
    }

    fn watches(&self, id: NodeId) -> bool {
        self.is_on && !self.at(id).is_ignored
    }

    fn at(&self, id: NodeId) -> &Watched {
        &self.nodes[id.0 as usize - 1]
    }

    fn node(&mut self, id: NodeId) -> &mut Watched {
        &mut self.nodes[id.0 as usize - 1]
    }

    fn run(&mut self, id: NodeId) -> &mut Run {
        self.node(id).run.as_mut().expect("the process runs")
    }
}

impl Run {
    /// The term that the process says it leads, while its own vote for itself is not durable.
    fn believed(&self) -> Option<Term> {
        self.believes.as_ref().map(|(term, _)| *term)
    }
}

impl Watched {
    fn running(&self) -> &Run {
        self.run.as_ref().expect("the process runs")
    }
}
