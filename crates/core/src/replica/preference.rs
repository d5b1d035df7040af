//! Leadership goes where it is wanted: to a voter in a better zone, when all is calm. It never makes
//! an election slower, since nobody votes by it: whoever is elected leads, and hands over later, for
//! milliseconds. And it never hands over to and fro.
//!
//! What keeps it calm: only to a strictly better place, by an order on which both agree; only to who
//! has been fit without a break for [`CALM_ELECTIONS`], which is more than one voter's hiccup; and
//! what did not hold is tried again after twice as long, up to a limit.

use std::collections::BTreeMap;

use epicepoch_wire::standing::{Standing, Zone};
use epicepoch_wire::{NodeId, Term};
use raft::StateRole;

use super::{HandOver, Replica};
use crate::placement::Placement;
use crate::planted::{self, Bug};

/// What a replica remembers about places.
#[derive(Debug, Default)]
pub(super) struct Preference {
    placement: Placement,
    /// What other voters last said of themselves, and when.
    standings: BTreeMap<NodeId, (u64, Standing)>,
    /// Voters whose clocks are not off, as far as is known.
    sound: Vec<NodeId>,
    /// When each peer last answered a question of this node.
    reached_ns: BTreeMap<NodeId, u64>,
    /// Who could lead in a better place, and for how many ticks all has been calm.
    candidate: Option<(NodeId, usize)>,
    /// To whom leadership was offered.
    offers: BTreeMap<NodeId, Offer>,
    /// Ticks since the start.
    ticks: u64,
}

impl Preference {
    /// Where leaders should be from now on.
    pub(super) fn prefer(&mut self, zones: Vec<Zone>) {
        self.placement.leaders = zones;
    }
}

/// Leadership was offered because of a place.
#[derive(Clone, Copy, Debug)]
struct Offer {
    /// At which tick.
    at: u64,
    /// How often in a row, without a long time between two.
    times: u32,
}

/// A member and its place, as its leader knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The member.
    pub node: NodeId,
    /// Its zone, if it has said one.
    pub zone: Option<Zone>,
    /// Whether it prefers leaders in the same zones as this node.
    pub agrees: bool,
}

/// Zones that leaders should be in, and no voter is known to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZonesInDoubt {
    /// The zones, in the order in which they were named.
    pub empty: Vec<Zone>,
    /// The zones that voters are known to be in, sorted.
    pub known: Vec<Zone>,
    /// Voters that have not said where they are, and may be there: they are not heard, or this leader
    /// has not led for long enough to have heard from everybody. Without any the zones are unknown.
    pub unplaced: Vec<NodeId>,
}

impl Replica {
    /// Where this node is, and where leaders should be, unless the settings of the cluster say where.
    /// Before it is told, nothing is preferred.
    pub fn place(&mut self, placement: Placement) {
        self.preference.placement = placement;
        if let Some(settings) = &self.state.settings {
            self.preference.prefer(settings.leader_zones.clone());
        }
    }

    /// The voters whose clocks are not off: leadership is handed to others only in need. Has to be
    /// told again whenever it changes.
    pub fn handle_sound_clocks(&mut self, nodes: Vec<NodeId>) {
        self.preference.sound = nodes;
    }

    /// A peer has answered a question of this node.
    pub fn handle_reached(&mut self, now_ns: u64, node: NodeId) {
        self.now_ns = now_ns;
        if self.preference.placement.zone.is_some() {
            self.preference.reached_ns.insert(node, now_ns);
            let members = &self.members;
            self.preference.reached_ns.retain(|node, _| members.contains_key(node));
        }
    }

    /// Every member and its place. Only a leader hears of others'.
    #[must_use]
    pub fn placed(&self) -> Vec<Placed> {
        let own = &self.preference.placement;
        let placed = self.members.keys().map(|node| {
            if *node == self.config.identity.node {
                return Placed { node: *node, zone: own.zone.clone(), agrees: true };
            }
            let said = self.preference.standings.get(node).map(|(_, standing)| standing);
            let agrees = said.is_none_or(|it| it.preference == own.preference());
            Placed { node: *node, zone: said.map(|it| it.zone.clone()), agrees }
        });
        placed.collect()
    }

    /// The voters in better places than `node`, ascending, as far as a leader, or who led until now, has
    /// heard where they are: led by `node`, the cluster hands leadership over to one of them when all has
    /// been calm for long enough. Without `LEADER_ZONES` nobody is.
    #[must_use]
    pub fn better_placed_than(&self, node: NodeId) -> Vec<NodeId> {
        let placement = &self.preference.placement;
        let placed: BTreeMap<_, _> = self.placed().into_iter().map(|it| (it.node, it)).collect();
        let rank = |node: NodeId| {
            let place = placed.get(&node).filter(|place| place.agrees);
            placement.rank(place.and_then(|place| place.zone.as_ref()))
        };
        let mut better: Vec<_> =
            self.incoming_voters().into_iter().filter(|it| rank(*it) < rank(node)).collect();
        better.sort_unstable();
        better
    }

    /// Zones that leaders should be in and no voter is: a slip in a name, or no voter was left there.
    /// Empty unless this node leads and has been calm for long enough to have heard from everybody,
    /// and while a voter that has not said where it is is not heard: it may be there.
    #[must_use]
    pub fn empty_zones(&self) -> Vec<Zone> {
        if !self.has_listened_long_enough() {
            return Vec::new();
        }
        let doubt = self.doubt_of(&self.preference.placement.leaders);
        if doubt.unplaced.is_empty() { doubt.empty } else { Vec::new() }
    }

    /// Which of these zones no voter is known to be in, and who may be there unheard.
    pub(super) fn doubt_of(&self, zones: &[Zone]) -> ZonesInDoubt {
        let places = self.places_of_voters();
        let me = self.config.identity.node;
        let may_speak_yet =
            |node: NodeId| node != me && !(self.has_listened_long_enough() && self.is_heard(node));
        let unplaced = places.iter().filter(|it| it.zone.is_none() && may_speak_yet(it.node));
        let unplaced = unplaced.map(|it| it.node).collect();
        let mut known: Vec<_> = places.iter().filter_map(|it| it.zone.clone()).collect();
        known.sort_unstable();
        known.dedup();
        let empty = zones.iter().filter(|zone| !known.contains(zone)).cloned().collect();
        ZonesInDoubt { empty, known, unplaced }
    }

    /// Voters without a zone, as they are heard, while leaders should be in some: leadership never goes
    /// to them because of a place. Empty where [`Replica::empty_zones`] is too early.
    #[must_use]
    pub fn voters_without_zone(&self) -> Vec<NodeId> {
        if self.preference.placement.leaders.is_empty() || !self.has_listened_long_enough() {
            return Vec::new();
        }
        let is_speaking = |node| node == self.config.identity.node || self.is_heard(node);
        let places = self.places_of_voters().into_iter();
        let nowhere = places.filter(|it| it.zone.is_none() && is_speaking(it.node));
        nowhere.map(|it| it.node).collect()
    }

    /// The places of all voters.
    fn places_of_voters(&self) -> Vec<Placed> {
        let incoming = self.incoming_voters();
        self.placed().into_iter().filter(|it| incoming.contains(&it.node)).collect()
    }

    /// Whether this node leads and has been calm for long enough to have heard from everybody: a voter
    /// that is heard and has said no zone is in none.
    fn has_listened_long_enough(&self) -> bool {
        let is_leader = self.raw.raft.state == StateRole::Leader;
        let calm = CALM_ELECTIONS * self.config.election_ticks;
        is_leader && self.grant.is_some() && self.led_ticks() >= calm
    }

    /// What this node says of itself to its leader; nothing without a zone.
    pub(super) fn standing(&self) -> Option<Standing> {
        let placement = &self.preference.placement;
        let zone = placement.zone.clone()?;
        let is_fit = self.may_take_over() && self.reaches_majority();
        Some(Standing { is_fit, preference: placement.preference(), zone })
    }

    /// A voter has said something of itself. What cannot be read is of another version.
    pub(super) fn note_standing(&mut self, node: NodeId, context: &[u8]) {
        if let Ok(standing) = Standing::decode(context) {
            self.preference.standings.insert(node, (self.now_ns, standing));
        }
    }

    /// Forgets who is no member any more, and counts time.
    pub(super) fn tick_preference(&mut self) {
        self.preference.ticks += 1;
        let members = &self.members;
        self.preference.standings.retain(|node, _| members.contains_key(node));
        self.preference.offers.retain(|node, _| members.contains_key(node));
        if self.raw.raft.state != StateRole::Leader {
            self.preference.candidate = None;
        }
    }

    /// Something has to be seen to before places: what comes after it is another calm.
    pub(super) fn forget_preferred(&mut self) {
        self.preference.candidate = None;
    }

    /// Offers leadership to a voter in a better place, once that has been possible for long enough.
    pub(super) fn look_after_preference(&mut self) {
        let before = self.preference.candidate;
        let better = if self.is_calm() { self.better_placed(before.map(|it| it.0)) } else { None };
        let Some(node) = better else {
            self.preference.candidate = None;
            return;
        };
        let ticks = before.filter(|it| it.0 == node).map_or(0, |it| it.1) + 1;
        self.preference.candidate = Some((node, ticks));
        let (wait, times) = self.wait_for(node);
        if ticks < wait {
            return;
        }
        self.preference.candidate = None;
        let at = self.preference.ticks;
        self.preference.offers.insert(node, Offer { at, times: times + 1 });
        self.transfer(node, HandOver::Preferred);
    }

    /// For how many ticks all has to be calm before leadership is offered to `node`, and how often
    /// in a row it was before. An offer counts as long as its voter could have come to lead for long,
    /// had it held.
    fn wait_for(&self, node: NodeId) -> (usize, u32) {
        let calm = CALM_ELECTIONS * self.config.election_ticks;
        if planted::is(Bug::RestlessHandover) || planted::is(Bug::UnfitPreferred) {
            return (3 * self.config.election_ticks, 0);
        }
        let wait = |times: u32| calm << times.min(DOUBLINGS_MAX);
        let offer = self.preference.offers.get(&node);
        let times = offer.map_or(0, |offer| {
            let since = self.preference.ticks - offer.at;
            if since < FORGOTTEN_WAITS * wait(offer.times) as u64 { offer.times } else { 0 }
        });
        (wait(times), times)
    }

    /// Whether nothing else is going on.
    pub(super) fn is_calm(&self) -> bool {
        let raft = &self.raw.raft;
        let patience = (self.config.election_ticks / 2).max(1);
        self.grant.is_some_and(|grant| grant.term == Term(raft.term))
            && !self.voters.is_joint()
            && !raft.has_pending_conf()
            && raft.lead_transferee.is_none()
            && self.outbox.oldest_ticks() <= patience
    }

    /// The voter in the best of the better places that could lead now; `before` rather than another
    /// in a place as good.
    fn better_placed(&self, before: Option<NodeId>) -> Option<NodeId> {
        let placement = &self.preference.placement;
        let me = self.config.identity.node;
        let own = placement.own_rank();
        if placement.leaders.is_empty() {
            return None;
        }
        let incoming = self.incoming_voters();
        let ranked = incoming.iter().filter(|node| **node != me).filter_map(|node| {
            let (at_ns, standing) = self.preference.standings.get(node)?;
            let rank = placement.rank(Some(&standing.zone));
            let is_better = rank < own || planted::is(Bug::RestlessHandover) && rank == own;
            let is_fit = self.is_fit(*node, *at_ns, standing) || planted::is(Bug::UnfitPreferred);
            (is_better && is_fit).then_some((rank, Some(*node) != before, *node))
        });
        ranked.min().map(|(_, _, node)| node)
    }

    fn is_fit(&self, node: NodeId, said_ns: u64, standing: &Standing) -> bool {
        standing.is_fit
            && standing.preference == self.preference.placement.preference()
            && self.now_ns.saturating_sub(said_ns) <= self.election_ns()
            && self.preference.sound.contains(&node)
            && self.check_caught_up(node).is_ok()
    }

    /// Whether a voter could lead, as far as it is known: one without a zone says nothing of itself.
    pub(super) fn is_fit_for_clients(&self, node: NodeId) -> bool {
        !self.is_declining(node)
            && self.preference.sound.contains(&node)
            && self.check_caught_up(node).is_ok()
    }

    /// Whether a voter said within an election timeout that it could not lead.
    pub(super) fn is_declining(&self, node: NodeId) -> bool {
        let is_recent = |at_ns: u64| self.now_ns.saturating_sub(at_ns) <= self.election_ns();
        let said = self.preference.standings.get(&node);
        said.is_some_and(|(at_ns, standing)| is_recent(*at_ns) && !standing.is_fit)
    }

    /// Whether a majority of the voters, this node included, has answered it lately.
    fn reaches_majority(&self) -> bool {
        let me = self.config.identity.node;
        let is_reached = |node: NodeId| {
            let at_ns = self.preference.reached_ns.get(&node);
            at_ns.is_some_and(|at| self.now_ns.saturating_sub(*at) <= REACHED_NS_MAX)
        };
        self.voters.is_quorum_by(|node| node == me || is_reached(node))
    }
}

/// Election timeouts for which all has to be calm and a voter fit before leadership goes to it
/// because of its place: 5 s by default.
const CALM_ELECTIONS: usize = 25;
/// How often that is doubled at most, while handovers do not hold: 80 s by default.
const DOUBLINGS_MAX: u32 = 4;
/// An offer is forgotten after so many times what the next one would have to wait.
const FORGOTTEN_WAITS: u64 = 8;
/// How long an answer of a peer says that it is reached, nanoseconds: five questions.
const REACHED_NS_MAX: u64 = 1_000_000_000;
