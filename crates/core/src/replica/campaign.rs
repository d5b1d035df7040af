//! When a follower campaigns besides the library's own timeout: in its turn when the connection of
//! its leader has closed, and once again, in its turn, when a campaign comes to nothing. It never
//! makes an election timeout shorter: whoever still hears a leader refuses a pre-vote.

use epicepoch_wire::NodeId;
use raft::StateRole;

use super::Replica;

/// When to campaign.
#[derive(Debug, Default)]
pub(super) struct Campaigns {
    /// After the leader's connection closed, in this node's turn.
    due_ns: Option<u64>,
    /// Again, after a campaign that the library's timeout began or that was due.
    again_ns: Option<u64>,
}

impl Campaigns {
    /// There is a leader: nobody's turn comes.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

impl Replica {
    /// The connection from a peer has closed. If it was the leader's, its process is gone or cut
    /// off: this node stops waiting for it, and campaigns after those of a lower rank have had
    /// their turn. A leader that lives on is not disturbed: others ignore a pre-vote while they
    /// hear it.
    pub fn handle_closed(&mut self, now_ns: u64, node: NodeId) {
        self.now_ns = now_ns;
        let raft = &self.raw.raft;
        if raft.state != StateRole::Follower || raft.leader_id != node.0 || !raft.promotable() {
            return;
        }
        let rank = self.rank(Some(node));
        self.campaigns.due_ns = Some(now_ns + rank * self.turn_ns() + self.jitter_ns());
        self.step(|raw| {
            let term = raw.raft.term;
            raw.raft.become_follower(term, raft::INVALID_ID);
        });
    }

    /// Campaigns when this node's turn has come.
    pub(super) fn campaign_if_due(&mut self) {
        if self.is_departing() {
            return self.campaigns.forget();
        }
        let is_due = |at: Option<u64>, now_ns| at.is_some_and(|at| at <= now_ns);
        if is_due(self.campaigns.due_ns, self.now_ns) {
            self.campaigns.due_ns = None;
            let raft = &self.raw.raft;
            let is_leaderless =
                raft.state == StateRole::Follower && raft.leader_id == raft::INVALID_ID;
            if is_leaderless && self.outbox.outstanding() == 0 {
                self.campaign();
                self.campaign_again_later();
            }
        }
        if is_due(self.campaigns.again_ns, self.now_ns) {
            self.campaigns.again_ns = None;
            match self.raw.raft.state {
                // Its own vote, or its request for others', waits for the disk.
                StateRole::PreCandidate | StateRole::Candidate if self.outbox.outstanding() > 0 => {
                    self.campaigns.again_ns = Some(self.now_ns + self.turn_ns());
                }
                // Grants that were counted are dropped, and have to come again; those that are on
                // their way count for the second question as well.
                StateRole::PreCandidate => self.campaign(),
                // Votes that are on their way would not count any more.
                StateRole::Candidate if self.is_vote_split() => self.campaign(),
                StateRole::Candidate | StateRole::Follower | StateRole::Leader => {}
            }
        }
    }

    /// A campaign has begun. It may come to nothing although nobody leads: a voter that heard the
    /// leader a moment later than this one ignores a pre-vote, and of two that campaign at once
    /// neither may win. Both would wait for another election timeout; whoever is still a candidate
    /// half a turn after its turn asks once more instead.
    pub(super) fn campaign_again_later(&mut self) {
        let turn_ns = self.turn_ns();
        let after_ns = (1 + self.rank(None)) * turn_ns + turn_ns / 2 + self.jitter_ns();
        self.campaigns.again_ns = Some(self.now_ns + after_ns);
    }

    fn campaign(&mut self) {
        // An error here means that the library is not ready to: its own timeout comes later.
        let _later = self.step(raft::RawNode::campaign);
    }

    /// Whether somebody has voted for another candidate.
    fn is_vote_split(&self) -> bool {
        let (_, refused, _) = self.raw.raft.prs().tally_votes();
        refused > 0
    }

    /// How many voters have their turn before this node, `gone` not counted.
    fn rank(&self, gone: Option<NodeId>) -> u64 {
        let me = self.config.identity.node;
        self.voters.iter().filter(|(id, _)| Some(*id) != gone && *id < me).count() as u64
    }

    fn turn_ns(&self) -> u64 {
        self.config.tick_ns * self.config.election_ticks as u64 / CAMPAIGN_TURNS
    }

    fn jitter_ns(&mut self) -> u64 {
        self.random.u64(0..=self.turn_ns() / 8)
    }
}

/// Voters campaign one after the other, by the order of their ids, this many within an election
/// timeout: time for a whole election each, so that they do not split the vote.
const CAMPAIGN_TURNS: u64 = 4;
