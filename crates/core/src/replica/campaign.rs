//! Campaigns beside the library's own timeout. A follower campaigns in its turn when its leader's
//! connection closes, and once more when a campaign fails. These campaigns need no shorter election
//! timeout. They do not disturb a leader: a voter that still hears it refuses a pre-vote.

use epicepoch_wire::NodeId;
use raft::StateRole;

use super::Replica;

/// When this node campaigns next.
#[derive(Debug, Default)]
pub(super) struct Campaigns {
    /// When this node's turn comes, after the leader's connection has closed.
    due_ns: Option<u64>,
    /// When this node repeats a campaign that it began, by its turn or by the library's timeout.
    again_ns: Option<u64>,
}

impl Campaigns {
    /// Cancels all campaigns, because there is a leader.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

impl Replica {
    /// Handles the closed connection of a peer. If the peer is the leader, its process has ended or
    /// is cut off. Then this node stops waiting for it, and campaigns after the voters of lower
    /// rank. A leader that is alive is not disturbed: the others ignore a pre-vote while they hear
    /// the leader.
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

    /// Campaigns if this node's turn has come.
    pub(super) fn campaign_if_due(&mut self) {
        if self.is_stopping() {
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
                // This node's vote for itself, or its request for votes, waits for the disk. So the
                // repeat waits for another turn.
                StateRole::PreCandidate | StateRole::Candidate if self.outbox.outstanding() > 0 => {
                    self.campaigns.again_ns = Some(self.now_ns + self.turn_ns());
                }
                // A new campaign forgets the pre-votes that have arrived. Pre-votes that arrive
                // later still count.
                StateRole::PreCandidate => self.campaign(),
                // A new campaign has a new term, in which votes on their way do not count.
                StateRole::Candidate if self.is_vote_split() => self.campaign(),
                StateRole::Candidate | StateRole::Follower | StateRole::Leader => {}
            }
        }
    }

    /// Schedules a repeat of the campaign that has begun. A campaign may fail although there is no
    /// leader: a voter that heard the leader a moment later ignores a pre-vote, or two candidates
    /// split the vote. A candidate does not wait for another election timeout. It asks again
    /// after one and a half turns, and one more turn for each voter with a lower id.
    pub(super) fn campaign_again_later(&mut self) {
        let turn_ns = self.turn_ns();
        let after_ns = (1 + self.rank(None)) * turn_ns + turn_ns / 2 + self.jitter_ns();
        self.campaigns.again_ns = Some(self.now_ns + after_ns);
    }

    fn campaign(&mut self) {
        // On an error the library is not ready to campaign. Then its own timeout decides.
        let _later = self.step(raft::RawNode::campaign);
    }

    /// Whether a voter has voted for another candidate.
    fn is_vote_split(&self) -> bool {
        let (_, refused, _) = self.raw.raft.prs().tally_votes();
        refused > 0
    }

    /// How many voters have their turn before this node, not counting `gone`.
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

/// This many voters campaign within an election timeout, in the order of their ids. Each has time
/// for a whole election, so that they do not split the vote.
const CAMPAIGN_TURNS: u64 = 4;
