//! A leader may fail to accept clients for long, because descriptors or memory are used up. Then it
//! hands leadership over. It acts only on what it can see itself (decision 29).
//!
//! Leadership does not move in circles. A node whose own accepts fail declines it. An offer is
//! repeated only after 25 election timeouts, and then after twice as long each time. A node that
//! has given leadership away [`MOVES_MAX`] times keeps it until its accepts have worked for a long
//! time. If accepts fail on all nodes, one of them still leads.

use std::collections::BTreeSet;

use epicepoch_wire::NodeId;
use raft::StateRole;

use super::{HandOver, Replica};

/// Whether clients can connect to this node, and the offers of leadership because they cannot.
#[derive(Debug, Default)]
pub(super) struct Clients {
    /// Whether every accept since the last success has failed.
    is_cut_off: bool,
    /// For how many ticks in a row accepts have failed while this node led and served.
    ticks: usize,
    /// Ticks since accepts last failed.
    well_ticks: u64,
    /// Ticks since the last offer.
    since_offer: usize,
    /// How many offers of leadership were made in a row.
    offers: u32,
    /// How many leaderships in a row have ended after an offer because of failed accepts.
    moves: u32,
    /// Whether leadership was offered in this term.
    is_offered: bool,
    /// The voters that leadership was offered to in this term.
    asked: BTreeSet<NodeId>,
}

impl Clients {
    /// Resets the counts as this node begins to lead a term.
    pub(super) fn begin_term(&mut self) {
        self.ticks = 0;
        if std::mem::take(&mut self.is_offered) {
            self.moves += 1;
        }
        self.asked.clear();
    }
}

impl Replica {
    /// Records whether every accept of a client since the last success has failed (`is_cut_off`).
    /// Call it before every tick.
    pub fn handle_clients(&mut self, is_cut_off: bool) {
        self.clients.is_cut_off = is_cut_off;
    }

    /// Whether new clients can connect to this node, as far as the node knows.
    pub(super) const fn are_clients_let_in(&self) -> bool {
        !self.clients.is_cut_off
    }

    /// Counts a tick, on a leader and on a follower.
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

    /// Offers leadership to a fit voter once clients have been cut off for long enough. Returns
    /// whether leadership was offered.
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

/// A leader offers leadership when accepts have failed for this many election timeouts. The same
/// limit holds for a leader whose rounds do not complete.
const CUT_OFF_ELECTIONS: usize = 2;
/// Election timeouts between the first offer and the next: 5 s by default.
const PAUSE_ELECTIONS: usize = 25;
/// The pause between offers is doubled at most this many times: up to 80 s by default.
const DOUBLINGS_MAX: u32 = 4;
/// At most this many leaderships of this node may end after offers because of failed accepts. The
/// node keeps the next leadership.
const MOVES_MAX: u32 = 4;
/// The counts of offers and leaderships start again after this many election timeouts without a
/// failed accept: 640 s by default.
const FORGOTTEN_ELECTIONS: u64 = 3_200;
