//! A node that is told to stop gives leadership away and takes none. As a new leader it would lead
//! only during its shutdown, in which it accepts no client. It votes and acknowledges until its
//! process ends, because others may need it for a quorum.
//!
//! The node never begins a campaign, and declines leadership that is offered. A campaign that
//! others have already voted in goes on. If the node wins it, it gives leadership away at once.
//! Without another voter the node keeps leadership: a cluster of one answers until it ends.

use epicepoch_wire::NodeId;
use raft::StateRole;

use super::{HandOver, Replica};

/// Whether this node is told to stop, and when it may offer leadership again.
#[derive(Debug, Default)]
pub(super) struct GracefulShutdown {
    is_begun: bool,
    /// Ticks until leadership may be offered again, in this term.
    pause: usize,
}

impl GracefulShutdown {
    /// Resets the pause as this node begins to lead a term.
    pub(super) fn begin_term(&mut self) {
        self.pause = 0;
    }
}

impl Replica {
    /// Begins the shutdown: this node declines leadership, and offers its own until another node
    /// has taken it. The shutdown lasts until the process ends.
    pub fn handle_shutdown_request(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        if std::mem::replace(&mut self.graceful_shutdown.is_begun, true) {
            return;
        }
        self.campaigns.forget();
        match self.raw.raft.state {
            // A pre-vote binds no voter, so this campaign can simply end.
            StateRole::PreCandidate => self.step(|raw| {
                let term = raw.raft.term;
                raw.raft.become_follower(term, raft::INVALID_ID);
            }),
            StateRole::Leader => self.give_away(),
            StateRole::Follower | StateRole::Candidate => {}
        }
    }

    /// Whether this node is going to stop.
    pub(super) const fn is_stopping(&self) -> bool {
        self.graceful_shutdown.is_begun
    }

    /// An election timeout has passed, and this node does not campaign. The library must still
    /// count it as timed out; otherwise this node would refuse its vote to others.
    pub(super) fn let_others_campaign(&mut self) {
        let elapsed = &mut self.raw.raft.election_elapsed;
        *elapsed = self.config.election_ticks.max(*elapsed);
    }

    /// Offers leadership again; called once per tick of a leader that is going to stop.
    pub(super) fn give_away_again(&mut self) {
        self.graceful_shutdown.pause = self.graceful_shutdown.pause.saturating_sub(1);
        self.give_away();
    }

    /// Offers leadership to the next voter that is heard. Voters not asked yet come first; among
    /// these, voters that say that they could not lead come last.
    fn give_away(&mut self) {
        if self.graceful_shutdown.pause > 0 || self.is_handing_over() {
            return;
        }
        let incoming = self.incoming_voters();
        let declining: Vec<_> =
            incoming.into_iter().filter(|node| self.is_declining(*node)).collect();
        let willing = |node: NodeId| !declining.contains(&node);
        let fresh = self.fresh_successor(willing).or_else(|| self.fresh_successor(|_| true));
        let next = fresh.or_else(|| self.next_successor(willing));
        if let Some(to) = next.or_else(|| self.next_successor(|_| true)) {
            let election = self.config.election_ticks;
            // The library waits for an election timeout, and takes no proposal during that time.
            // The rest of the pause leaves time for a reservation. A handover that gives back waits
            // before that; if it fails, this leader reserves before it offers leadership again.
            self.graceful_shutdown.pause = election + election.div_ceil(RESERVING_PARTS);
            self.transfer(to, HandOver::Stopping);
        }
    }
}

/// Between two offers, an election timeout divided by this is left for a reservation.
const RESERVING_PARTS: usize = 4;
