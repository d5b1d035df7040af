//! A leader hands over to a voter in a better zone when the cluster is calm. Votes do not depend on
//! zones, so elections are as fast as ever. The elected node leads first and hands over later,
//! within milliseconds.
//!
//! Leadership does not move back and forth. It goes only to a voter in a strictly better zone, by
//! an order that both nodes share. That voter must have been fit without a break for
//! [`CALM_ELECTIONS`]. If a handover did not last, the next one waits twice as long, up to a limit.

use std::collections::BTreeMap;

use epicepoch_wire::voter_status::{VoterStatus, Zone};
use epicepoch_wire::{NodeId, Term};
use raft::StateRole;

use super::{HandOver, Replica};
use crate::placement::Placement;

/// The zones that a replica knows, and its offers of leadership because of zones.
#[derive(Debug, Default)]
pub(super) struct Preference {
    placement: Placement,
    /// The last status of each other voter, and when it arrived.
    voter_statuses: BTreeMap<NodeId, (u64, VoterStatus)>,
    /// Voters whose clocks are right, as far as this node knows.
    sound: Vec<NodeId>,
    /// When each peer last answered a ping of this node.
    reached_ns: BTreeMap<NodeId, u64>,
    /// The voter to hand over to, and the number of ticks for which the cluster has been calm.
    candidate: Option<(NodeId, usize)>,
    /// Offers of leadership, by voter.
    offers: BTreeMap<NodeId, Offer>,
    /// Ticks since the start.
    ticks: u64,
}

impl Preference {
    /// Sets the zones where leaders should be from now on.
    pub(super) fn prefer(&mut self, zones: Vec<Zone>) {
        self.placement.leaders = zones;
    }
}

/// An offer of leadership because of a zone.
#[derive(Clone, Copy, Debug)]
struct Offer {
    /// The tick of the offer.
    at: u64,
    /// How many offers were made in a row. A long time between two offers begins a new row.
    times: u32,
}

/// A member and its zone, as the leader knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The member.
    pub node: NodeId,
    /// The member's zone, once the member has named one.
    pub zone: Option<Zone>,
    /// Whether the member prefers leaders in the same zones as this node.
    pub agrees: bool,
}

/// Zones for leaders in which no voter is known to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZonesInDoubt {
    /// The zones, in the order of the setting.
    pub empty: Vec<Zone>,
    /// The known zones of voters, sorted.
    pub known: Vec<Zone>,
    /// Voters that may be in one of these zones, because they have not named their own. A voter
    /// names none while it is silent, or while this leader has not led long enough to have heard
    /// all. If the list is empty, no voter is in any of these zones.
    pub unplaced: Vec<NodeId>,
}

impl Replica {
    /// Sets this node's zone and the zones for leaders. Settings of the cluster override these
    /// zones for leaders. Before this call, no zone is preferred.
    pub fn place(&mut self, placement: Placement) {
        self.preference.placement = placement;
        if let Some(settings) = &self.state.settings {
            self.preference.prefer(settings.leader_zones.clone());
        }
    }

    /// Sets the voters whose clocks are right. Others get leadership only if nothing else helps.
    /// Call it on every change.
    pub fn handle_sound_clocks(&mut self, nodes: Vec<NodeId>) {
        self.preference.sound = nodes;
    }

    /// Records that a peer has answered a ping of this node.
    pub fn handle_reached(&mut self, now_ns: u64, node: NodeId) {
        self.now_ns = now_ns;
        self.preference.reached_ns.insert(node, now_ns);
        let members = &self.members;
        self.preference.reached_ns.retain(|node, _| members.contains_key(node));
    }

    /// Every member and its zone. Only a leader knows the zones of others.
    #[must_use]
    pub fn placed(&self) -> Vec<Placed> {
        let own = &self.preference.placement;
        let placed = self.members.keys().map(|node| {
            if *node == self.config.identity.node {
                return Placed { node: *node, zone: own.zone.clone(), agrees: true };
            }
            let said = self.preference.voter_statuses.get(node).map(|(_, status)| status);
            let agrees = said.is_none_or(|it| it.preference == own.preference());
            Placed { node: *node, zone: said.and_then(|it| it.zone.clone()), agrees }
        });
        placed.collect()
    }

    /// The voters in better zones than `node`, ascending, as far as this leader has heard their
    /// zones. If `node` leads, it hands leadership over to one of them after a calm time. Empty
    /// without `LEADER_ZONES`.
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

    /// Zones for leaders in which there is no voter: the name is misspelt, or the last voter has
    /// left. The list is empty until this node has led long enough to have heard all voters. It is
    /// also empty while a silent voter may be in one of the zones.
    #[must_use]
    pub fn empty_zones(&self) -> Vec<Zone> {
        if !self.has_listened_long_enough() {
            return Vec::new();
        }
        let doubt = self.doubt_of(&self.preference.placement.leaders);
        if doubt.unplaced.is_empty() { doubt.empty } else { Vec::new() }
    }

    /// The zones among `zones` in which no voter is known to be, and the silent voters that may be
    /// in them.
    pub(super) fn doubt_of(&self, zones: &[Zone]) -> ZonesInDoubt {
        let voters = self.zones_of_voters();
        let me = self.config.identity.node;
        let may_speak_yet =
            |node: NodeId| node != me && !(self.has_listened_long_enough() && self.is_heard(node));
        let unplaced = voters.iter().filter(|it| it.zone.is_none() && may_speak_yet(it.node));
        let unplaced = unplaced.map(|it| it.node).collect();
        let mut known: Vec<_> = voters.iter().filter_map(|it| it.zone.clone()).collect();
        known.sort_unstable();
        known.dedup();
        let empty = zones.iter().filter(|zone| !known.contains(zone)).cloned().collect();
        ZonesInDoubt { empty, known, unplaced }
    }

    /// Voters that are heard and have no zone, while zones for leaders are set. Leadership never
    /// goes to them because of a zone. Empty while it is too early for [`Replica::empty_zones`].
    #[must_use]
    pub fn voters_without_zone(&self) -> Vec<NodeId> {
        if self.preference.placement.leaders.is_empty() || !self.has_listened_long_enough() {
            return Vec::new();
        }
        let is_speaking = |node| node == self.config.identity.node || self.is_heard(node);
        let voters = self.zones_of_voters().into_iter();
        let nowhere = voters.filter(|it| it.zone.is_none() && is_speaking(it.node));
        nowhere.map(|it| it.node).collect()
    }

    /// The zones of all voters.
    fn zones_of_voters(&self) -> Vec<Placed> {
        let incoming = self.incoming_voters();
        self.placed().into_iter().filter(|it| incoming.contains(&it.node)).collect()
    }

    /// Whether this node has led long enough to have heard all voters. After that time, a heard
    /// voter that has named no zone is in no zone.
    pub(super) fn has_listened_long_enough(&self) -> bool {
        let is_leader = self.raw.raft.state == StateRole::Leader;
        let calm = CALM_ELECTIONS * self.config.election_ticks;
        is_leader && self.grant.is_some() && self.led_ticks() >= calm
    }

    /// This node's status for its leader.
    pub(super) fn own_status(&self) -> VoterStatus {
        let placement = &self.preference.placement;
        VoterStatus {
            is_fit: self.may_take_over() && self.reaches_majority(),
            preference: placement.preference(),
            zone: placement.zone.clone(),
            slowest_write_ms: Some(self.slowest_write_ms()),
            waits_for_leases: self.would_wait_for_leases(),
            closed: self.closed(),
        }
    }

    /// The status that a voter sent within the last election timeout.
    pub(super) fn last_status_of(&self, node: NodeId) -> Option<&VoterStatus> {
        let (at_ns, status) = self.preference.voter_statuses.get(&node)?;
        let is_recent = self.now_ns.saturating_sub(*at_ns) <= self.election_ns();
        is_recent.then_some(status)
    }

    /// Records the status of a voter. A status that cannot be read comes from another version, and
    /// is ignored.
    pub(super) fn record_voter_status(&mut self, node: NodeId, context: &[u8]) {
        if let Ok(status) = VoterStatus::decode(context) {
            self.record_closed(node, status.closed);
            self.preference.voter_statuses.insert(node, (self.now_ns, status));
        }
    }

    /// Counts a tick, and forgets removed members.
    pub(super) fn tick_preference(&mut self) {
        self.preference.ticks += 1;
        let members = &self.members;
        self.preference.voter_statuses.retain(|node, _| members.contains_key(node));
        self.preference.offers.retain(|node, _| members.contains_key(node));
        if self.raw.raft.state != StateRole::Leader {
            self.preference.candidate = None;
        }
    }

    /// Restarts the wait for calm, because something more urgent than zones has come up.
    pub(super) fn forget_preferred(&mut self) {
        self.preference.candidate = None;
    }

    /// Offers leadership to a voter in a better zone, once the handover has been possible for long
    /// enough.
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

    /// How many calm ticks must pass before leadership is offered to `node`, and how many offers in
    /// a row came before. An offer is forgotten after [`FORGOTTEN_WAITS`] such waits.
    fn wait_for(&self, node: NodeId) -> (usize, u32) {
        let calm = CALM_ELECTIONS * self.config.election_ticks;
        let wait = |times: u32| calm << times.min(DOUBLINGS_MAX);
        let offer = self.preference.offers.get(&node);
        let times = offer.map_or(0, |offer| {
            let since = self.preference.ticks - offer.at;
            if since < FORGOTTEN_WAITS * wait(offer.times) as u64 { offer.times } else { 0 }
        });
        (wait(times), times)
    }

    /// Whether this leader serves, no change or handover is in progress, and the disk keeps up.
    pub(super) fn is_calm(&self) -> bool {
        let raft = &self.raw.raft;
        self.grant.is_some_and(|grant| grant.term == Term(raft.term))
            && !self.voters.is_joint()
            && !raft.has_pending_conf()
            && !self.is_handing_over()
            && self.does_disk_keep_up()
    }

    /// Of the voters that could lead now, the one in the best zone, if that zone is better than
    /// this node's. Of voters in equal zones, `before` is chosen.
    fn better_placed(&self, before: Option<NodeId>) -> Option<NodeId> {
        let placement = &self.preference.placement;
        let me = self.config.identity.node;
        let own = placement.own_rank();
        if placement.leaders.is_empty() {
            return None;
        }
        let incoming = self.incoming_voters();
        let ranked = incoming.iter().filter(|node| **node != me).filter_map(|node| {
            let status = self.last_status_of(*node)?;
            let rank = placement.rank(status.zone.as_ref());
            let is_fit = self.is_fit(*node, status);
            (rank < own && is_fit).then_some((rank, Some(*node) != before, *node))
        });
        ranked.min().map(|(_, _, node)| node)
    }

    fn is_fit(&self, node: NodeId, status: &VoterStatus) -> bool {
        status.is_fit
            && !status.waits_for_leases
            && status.preference == self.preference.placement.preference()
            && self.preference.sound.contains(&node)
            && self.check_caught_up(node).is_ok()
    }

    /// Whether a voter could lead, as far as is known. A voter of an older version without a
    /// zone sends no status, and passes.
    pub(super) fn is_fit_for_clients(&self, node: NodeId) -> bool {
        !self.is_declining(node)
            && self.preference.sound.contains(&node)
            && self.check_caught_up(node).is_ok()
    }

    /// Whether a voter said within an election timeout that it could not lead.
    pub(super) fn is_declining(&self, node: NodeId) -> bool {
        self.last_status_of(node).is_some_and(|status| !status.is_fit)
    }

    /// Whether a voter said within an election timeout that it would wait for leases before its
    /// first answer as leader.
    pub(super) fn is_waiting_for_leases(&self, node: NodeId) -> bool {
        self.last_status_of(node).is_some_and(|status| status.waits_for_leases)
    }

    /// Whether a majority of the voters, including this node, has answered this node lately.
    fn reaches_majority(&self) -> bool {
        let me = self.config.identity.node;
        let is_reached = |node: NodeId| {
            let at_ns = self.preference.reached_ns.get(&node);
            at_ns.is_some_and(|at| self.now_ns.saturating_sub(*at) <= REACHED_NS_MAX)
        };
        self.voters.is_quorum_by(|node| node == me || is_reached(node))
    }
}

/// Election timeouts for which the cluster must be calm and a voter fit before leadership goes to
/// the voter because of its zone: 5 s by default.
const CALM_ELECTIONS: usize = 25;
/// While leadership does not stay where it was handed, the wait for calm is doubled, at most this
/// many times: up to 80 s by default.
const DOUBLINGS_MAX: u32 = 4;
/// An offer is forgotten after this many times the wait before the next offer.
const FORGOTTEN_WAITS: u64 = 8;
/// A peer counts as reached for this long after its last answer, nanoseconds: five pings.
const REACHED_NS_MAX: u64 = 1_000_000_000;
