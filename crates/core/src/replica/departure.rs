//! A node that is told to stop gives leadership away and takes none: it would lead for what is left of its
//! shutdown, while it lets nobody in, and end without a word. It votes and acknowledges until its process
//! ends, since others may need it for a quorum.
//!
//! What it never does: begin a campaign, or take leadership that is offered. A campaign that others have
//! voted in already goes on, and what comes of it is given away at once. Where no other voter is there, it
//! leads on: a cluster of one answers until it ends.

use epicepoch_wire::NodeId;
use raft::StateRole;

use super::{HandOver, Replica};

/// What a replica remembers about its departure.
#[derive(Debug, Default)]
pub(super) struct Departure {
    is_begun: bool,
    /// Ticks until leadership may be offered again, in this term.
    pause: usize,
}

impl Departure {
    /// A term as leader begins.
    pub(super) fn begin_term(&mut self) {
        self.pause = 0;
    }
}

impl Replica {
    /// This node is going to stop: from now on it takes no leadership, and gives away what it has, again
    /// and again until somebody has taken it. Nothing takes that back but the end of the process.
    pub fn handle_departure(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        if std::mem::replace(&mut self.departure.is_begun, true) {
            return;
        }
        self.campaigns.forget();
        match self.raw.raft.state {
            // A pre-vote binds nobody: others lose nothing by it.
            StateRole::PreCandidate => self.step(|raw| {
                let term = raw.raft.term;
                raw.raft.become_follower(term, raft::INVALID_ID);
            }),
            StateRole::Leader => self.give_away(),
            StateRole::Follower | StateRole::Candidate => {}
        }
    }

    /// Whether this node is going to stop.
    pub(super) const fn is_departing(&self) -> bool {
        self.departure.is_begun
    }

    /// An election timeout has passed, and this node does not campaign. Its own patience with a leader that
    /// is gone is over all the same: otherwise it would refuse others its vote.
    pub(super) fn let_others_campaign(&mut self) {
        let elapsed = &mut self.raw.raft.election_elapsed;
        *elapsed = self.config.election_ticks.max(*elapsed);
    }

    /// Once per tick of a leader that is going to stop.
    pub(super) fn give_away_again(&mut self) {
        self.departure.pause = self.departure.pause.saturating_sub(1);
        self.give_away();
    }

    /// Offers leadership to the next voter that is heard. Who says that it could not lead is asked after the
    /// others, and who was asked already after all.
    fn give_away(&mut self) {
        if self.departure.pause > 0 || self.is_handing_over() {
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
            // The library waits for an election timeout and takes no proposal meanwhile: what is left of
            // the pause is for a reservation.
            self.departure.pause = election + election.div_ceil(RESERVING_PARTS);
            self.transfer(to, HandOver::Stopping);
        }
    }
}

/// Between two offers, so small a part of an election timeout is for a reservation: a round trip.
const RESERVING_PARTS: usize = 4;
