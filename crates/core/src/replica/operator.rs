//! What operators ask of a leader: to hand leadership to a member, and to change the members. It
//! refuses what would leave the cluster without voters that are there (S12), and says why. No order
//! and no uniqueness rests on it: a change that it would refuse is safe all the same, and may leave
//! nobody to answer.

use std::collections::BTreeSet;

use epicepoch_wire::NodeId;
use raft::{ProgressState, StateRole};
use thiserror::Error;

use super::{ChangeError, HandOver, Replica};
use crate::durable::Record;
use crate::planted::{self, Bug};
use crate::state::{MembershipChange, MembershipStep};
use crate::translate;

/// Most committed entries that a member may lack and still be caught up: seconds' worth of them, sent
/// in one message. A leader writes a few a second, whatever the load.
pub const LAG_MAX: u64 = 16;

/// Why leadership was not handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TransferError {
    /// Ask the leader.
    #[error("this node does not lead")]
    NotLeader,
    /// There is nothing to do.
    #[error("node {0} leads already")]
    LeadsAlready(NodeId),
    /// Name a member.
    #[error("node {0} is no member of the cluster")]
    Unknown(NodeId),
    /// Promote it first.
    #[error("node {0} is a learner: it has no vote and cannot lead before it is promoted")]
    Learner(NodeId),
    /// Wait until the member is there, or name another one.
    #[error(transparent)]
    NotCaughtUp(#[from] NotCaughtUp),
    /// Wait until another voter is there.
    #[error("no other voter is caught up and was heard within an election timeout")]
    Nobody,
    /// Wait until the handover that is under way has ended.
    #[error("leadership is being handed over already")]
    Busy,
    /// Wait until this leader has applied the changes of members that it found in its log, or has made
    /// itself: it does not know yet whether the node is a voter.
    #[error("node {0} is no voter yet, and a membership change is under way")]
    Changing(NodeId),
}

/// Why a member can neither lead nor vote for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NotCaughtUp {
    /// Make sure that it runs and is reached.
    #[error("node {0} was not heard within an election timeout: is it running, and is it reached?")]
    Silent(NodeId),
    /// Wait.
    #[error(
        "node {node} is not caught up: it lacks {entries} committed entries, and may lack {LAG_MAX}"
    )]
    Behind {
        /// The member.
        node: NodeId,
        /// Committed entries that it is not known to hold.
        entries: u64,
    },
}

impl Replica {
    /// Hands leadership to `to`, or to the most up-to-date voter that is heard, as an operator asks.
    /// Returns to whom; whether it takes over is seen later.
    ///
    /// # Errors
    /// Why nothing was done.
    pub fn hand_over_asked(
        &mut self,
        now_ns: u64,
        to: Option<NodeId>,
    ) -> Result<NodeId, TransferError> {
        self.now_ns = now_ns;
        let me = self.config.identity.node;
        if self.raw.raft.state != StateRole::Leader {
            return Err(TransferError::NotLeader);
        }
        if self.raw.raft.lead_transferee.is_some() {
            return Err(TransferError::Busy);
        }
        let incoming = self.incoming_voters();
        let to = match to {
            Some(node) if node == me => return Err(TransferError::LeadsAlready(me)),
            Some(node) if incoming.contains(&node) => {
                if !planted::is(Bug::HandsOverBehind) {
                    self.check_caught_up(node)?;
                }
                node
            }
            Some(node) if self.raw.raft.has_pending_conf() => {
                return Err(TransferError::Changing(node));
            }
            Some(node) if self.state.members.contains_key(&node) => {
                return Err(TransferError::Learner(node));
            }
            Some(node) => return Err(TransferError::Unknown(node)),
            None => {
                let voters = self.voters.iter().map(|(node, _)| node);
                let fit = voters.filter(|node| self.check_caught_up(*node).is_ok());
                let fit: BTreeSet<NodeId> = fit.collect();
                self.next_successor(|node| fit.contains(&node)).ok_or(TransferError::Nobody)?
            }
        };
        self.transfer(to, HandOver::Asked);
        Ok(to)
    }

    /// Proposes a membership change as [`Replica::propose_change`] does, unless it would leave the
    /// cluster without voters that are there (S12).
    ///
    /// # Errors
    /// When it was not proposed.
    pub fn propose_prudent_change(
        &mut self,
        now_ns: u64,
        change: &MembershipChange,
    ) -> Result<(), ChangeError> {
        self.now_ns = now_ns;
        self.check_proposal(change)?;
        self.check_prudence(change)?;
        self.propose_checked(change)
    }

    fn check_prudence(&self, change: &MembershipChange) -> Result<(), ChangeError> {
        let me = self.config.identity.node;
        let before = self.incoming_voters();
        let mut after = before.clone();
        for step in &change.steps {
            match step {
                MembershipStep::AddLearner(_) => {}
                MembershipStep::Promote(node) if before.contains(node) => {
                    return Err(ChangeError::Refused("the node is a voter already"));
                }
                MembershipStep::Promote(node) => {
                    // S12: whoever gets a vote is there, and has what was committed.
                    if !planted::is(Bug::PromotesBehind) {
                        self.check_caught_up(*node)?;
                    }
                    after.insert(*node);
                }
                MembershipStep::Remove(node) if *node == me => return Err(ChangeError::Leads(me)),
                MembershipStep::Remove(node) => {
                    after.remove(node);
                }
            }
        }
        let is_there = |node: &&NodeId| **node == me || self.is_heard(**node);
        let there = after.iter().filter(is_there).count();
        // S12: a majority of the voters that there will be is there.
        if after != before && there * 2 <= after.len() {
            return Err(ChangeError::Stranded { there, voters: after.len() });
        }
        Ok(())
    }

    /// Whether a member was heard within an election timeout and lacks no more than [`LAG_MAX`]
    /// committed entries, as far as this leader knows.
    pub(super) fn check_caught_up(&self, node: NodeId) -> Result<(), NotCaughtUp> {
        if !self.is_heard(node) {
            return Err(NotCaughtUp::Silent(node));
        }
        let entries = self.entries_behind(node);
        let progress = self.raw.raft.prs().get(node.0);
        let is_sent_snapshot = progress.is_none_or(|it| it.state == ProgressState::Snapshot);
        if entries > LAG_MAX || is_sent_snapshot {
            return Err(NotCaughtUp::Behind { node, entries });
        }
        Ok(())
    }

    /// How many committed entries a member is not known to hold. Only a leader knows.
    #[must_use]
    pub fn entries_behind(&self, node: NodeId) -> u64 {
        let raft = &self.raw.raft;
        let matched = raft.prs().get(node.0).map_or(0, |progress| progress.matched);
        raft.raft_log.committed.saturating_sub(matched)
    }

    /// The voters that there will be once a joint configuration is left.
    #[must_use]
    pub fn incoming_voters(&self) -> BTreeSet<NodeId> {
        let conf = self.raw.raft.prs().conf().to_conf_state();
        conf.voters.into_iter().map(NodeId).collect()
    }

    /// The state at the applied index: what was committed, so what an empty directory that is a
    /// member begins with.
    #[must_use]
    pub fn record(&self) -> Record {
        let conf = self.raw.raft.prs().conf().to_conf_state();
        Record {
            index: self.applied.0,
            term: self.applied.1,
            configuration: translate::configuration(&conf),
            data: self.remembered(),
        }
    }

    /// Whether this leader waits for another one to take over.
    #[must_use]
    pub fn is_handing_over(&self) -> bool {
        let raft = &self.raw.raft;
        raft.state == StateRole::Leader && raft.lead_transferee.is_some()
    }
}
