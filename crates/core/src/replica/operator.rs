//! Operators' commands to a leader: hand leadership to a member, change the members. A change that
//! would leave the cluster without a majority of live voters is refused, with the reason (S12).
//! Order and uniqueness do not depend on these checks: a refused change would be safe, but might
//! end availability.

use std::collections::BTreeSet;

use epicepoch_wire::NodeId;
use raft::{ProgressState, StateRole};

use super::{ChangeError, HandOver, LAG_MAX, NotCaughtUp, Replica, TransferError};
use crate::durable::Record;
use crate::state::{MembershipChange, MembershipStep};
use crate::translate;

impl Replica {
    /// Hands leadership to `to`, or to the most up-to-date voter that is heard, as an operator
    /// asks. Returns the successor, which may still fail to take over.
    ///
    /// # Errors
    /// Why leadership stays with this node.
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
        if self.is_handing_over() {
            return Err(TransferError::Busy);
        }
        let incoming = self.incoming_voters();
        let to = match to {
            Some(node) if node == me => return Err(TransferError::LeadsAlready(me)),
            Some(node) if incoming.contains(&node) => {
                self.check_caught_up(node)?;
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
                self.next_successor(|node| fit.contains(&node)).ok_or(TransferError::NoCandidate)?
            }
        };
        self.transfer(to, HandOver::Asked);
        Ok(to)
    }

    /// Proposes a membership change like [`Replica::propose_change`], unless it would leave the
    /// cluster without a majority of live voters (S12).
    ///
    /// # Errors
    /// When the change was not proposed.
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
                    // S12: a promoted member is heard, and lacks at most `LAG_MAX` committed
                    // entries.
                    self.check_caught_up(*node)?;
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
        // S12: a majority of the new voters is heard.
        if after != before && there * 2 <= after.len() {
            return Err(ChangeError::Stranded { there, voters: after.len() });
        }
        Ok(())
    }

    /// Checks that a member was heard within an election timeout and lacks at most [`LAG_MAX`]
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

    /// Whether a member has told this leader which entries it holds. A new leader does not know it
    /// of any other member.
    #[must_use]
    pub fn knows_progress(&self, node: NodeId) -> bool {
        self.raw.raft.prs().get(node.0).is_some_and(|progress| progress.matched > 0)
    }

    /// How many committed entries a member is not known to hold. Only the leader knows this.
    #[must_use]
    pub fn entries_behind(&self, node: NodeId) -> u64 {
        let raft = &self.raw.raft;
        let matched = raft.prs().get(node.0).map_or(0, |progress| progress.matched);
        raft.raft_log.committed.saturating_sub(matched)
    }

    /// The voters. Of a joint configuration, the voters that remain when it is left.
    #[must_use]
    pub fn incoming_voters(&self) -> BTreeSet<NodeId> {
        let conf = self.raw.raft.prs().conf().to_conf_state();
        conf.voters.into_iter().map(NodeId).collect()
    }

    /// The state at the applied index, which a member with an empty directory begins with.
    #[must_use]
    pub fn record(&self) -> Record {
        let conf = self.raw.raft.prs().conf().to_conf_state();
        Record {
            index: self.applied.0,
            term: self.applied.1,
            configuration: translate::configuration(&conf),
            data: self.state.encode(),
        }
    }

    /// Whether this leader waits for its successor.
    #[must_use]
    pub fn is_handing_over(&self) -> bool {
        self.transferee().is_some()
    }

    /// The successor that this leader waits for.
    #[must_use]
    pub fn transferee(&self) -> Option<NodeId> {
        let raft = &self.raw.raft;
        let is_leader = raft.state == StateRole::Leader;
        let to = raft.lead_transferee.map(NodeId).or_else(|| self.successor_waiting());
        to.filter(|_| is_leader)
    }
}
