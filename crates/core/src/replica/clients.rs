//! Leadership goes away from a node that cannot take clients in: its accepts have failed without a break,
//! for want of descriptors or memory. It never goes for what a leader cannot see (decision 29), and never
//! round and round.
//!
//! What bounds it: a node whose own accepts fail takes no leadership that is offered; an offer is repeated
//! only after 25 election timeouts, and then after twice as long each time; and a node that has given
//! leadership away [`MOVES_MAX`] times keeps it until its accepts have worked for long. So where all nodes
//! fail, it comes to rest with one of them.

use std::collections::BTreeSet;

use epicepoch_wire::NodeId;
use raft::StateRole;

use super::{HandOver, Replica};

/// What a replica remembers about its clients.
#[derive(Debug, Default)]
pub(super) struct Clients {
    /// Whether accepts fail now, and have since the last one that did not.
    is_cut_off: bool,
    /// For how many ticks in a row, while this node led and served.
    ticks: usize,
    /// Ticks since accepts last failed.
    well_ticks: u64,
    /// Ticks since the last offer.
    since_offer: usize,
    /// How often in a row leadership was offered.
    offers: u32,
    /// How often in a row leadership ended after such an offer.
    moves: u32,
    /// Whether it was offered in this term.
    is_offered: bool,
    /// To whom, in this term.
    asked: BTreeSet<NodeId>,
}

impl Clients {
    /// A term as leader begins.
    pub(super) fn begin_term(&mut self) {
        self.ticks = 0;
        if std::mem::take(&mut self.is_offered) {
            self.moves += 1;
        }
        self.asked.clear();
    }
}

impl Replica {
    /// Whether this node's accepts of clients fail, and have failed since the last that did not. Has to be
    /// told before every tick.
    pub fn handle_clients(&mut self, is_cut_off: bool) {
        self.clients.is_cut_off = is_cut_off;
    }

    /// Whether clients that are new can come to this node, as far as it knows.
    pub(super) const fn are_clients_let_in(&self) -> bool {
        !self.clients.is_cut_off
    }

    /// Counts time, whether this node leads or not.
    pub(super) fn tick_clients(&mut self) {
        let clients = &mut self.clients;
        clients.since_offer = clients.since_offer.saturating_add(1);
        clients.well_ticks = if clients.is_cut_off { 0 } else { clients.well_ticks + 1 };
        if clients.well_ticks >= FORGOTTEN_ELECTIONS * self.config.election_ticks as u64 {
            (clients.offers, clients.moves) = (0, 0);
        }
        let leads = self.raw.raft.state == StateRole::Leader && self.grant.is_some();
        clients.ticks = if leads && clients.is_cut_off { clients.ticks + 1 } else { 0 };
    }

    /// Offers leadership to a voter that is fit, once clients have been cut off for long enough. Returns
    /// whether it was offered.
    pub(super) fn look_after_clients(&mut self) -> bool {
        let election = self.config.election_ticks;
        let clients = &self.clients;
        let pause = match clients.offers.checked_sub(1) {
            None => 0,
            Some(times) => (PAUSE_ELECTIONS * election) << times.min(DOUBLINGS_MAX),
        };
        let is_due = clients.ticks >= CUT_OFF_ELECTIONS * election && clients.since_offer >= pause;
        if !is_due || clients.moves >= MOVES_MAX || !self.is_calm() {
            return false;
        }
        let asked = clients.asked.clone();
        let fit = |node| self.is_fit_for_clients(node);
        let fresh = self.successor(|node| fit(node) && !asked.contains(&node));
        let Some(to) = fresh.or_else(|| self.successor(fit)) else { return false };
        let clients = &mut self.clients;
        if fresh.is_none() {
            clients.asked.clear();
        }
        clients.asked.insert(to);
        (clients.offers, clients.since_offer) = (clients.offers + 1, 0);
        clients.is_offered = true;
        self.transfer(to, HandOver::ClientsCut);
        true
    }
}

/// Election timeouts for which accepts must have failed before leadership is offered, as for rounds.
const CUT_OFF_ELECTIONS: usize = 2;
/// Election timeouts after the first offer before the next: 5 s by default.
const PAUSE_ELECTIONS: usize = 25;
/// How often that is doubled at most: 80 s by default.
const DOUBLINGS_MAX: u32 = 4;
/// Leaderships that end after such an offer, before this node keeps the next.
const MOVES_MAX: u32 = 4;
/// Election timeouts in which no accept has failed, after which all that is forgotten: 640 s by default.
const FORGOTTEN_ELECTIONS: u64 = 3_200;
