//! The checks that a leader makes in each tick: quorum, disk, data plane, clock, snapshots, limits.
//! Durations are counted in ticks, so a pause of the whole process counts as one tick.

use std::collections::{BTreeMap, BTreeSet};

use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::{LogIndex, Mode, NodeId, Term};
use raft::eraftpb::ConfChangeV2;
use raft::{ProgressState, StateRole};

use super::{Fatal, HandOver, PeerProgress, Replica, Report, Status};
use crate::publication::Role;
use crate::state::Command;

/// The memory of the checks.
#[derive(Debug, Default)]
pub(super) struct LeaderChecks {
    /// Term, role and leader as last published.
    pub(super) seen: Option<(Term, Role, Option<NodeId>)>,
    /// Members whose last hello has other addresses than the state has.
    pub(super) readdressed: BTreeMap<NodeId, Member>,
    /// Ticks until the next change of addresses may be proposed.
    readdress_pause: usize,
    /// When each peer was last heard.
    heard_ns: BTreeMap<NodeId, u64>,
    /// Peers to which a snapshot is being sent, each with the number of ticks so far.
    snapshots: BTreeMap<NodeId, usize>,
    /// For how many ticks this node has led in this term.
    led: usize,
    /// For how many ticks no quorum was heard within an election timeout.
    unheard: usize,
    /// Two values. First: when the last reported round completed, in nanoseconds of the data
    /// plane's clock. Second: for how many ticks with a grant this time has not changed.
    rounds: (u64, usize),
    /// Ticks since this leader last tried to hand over.
    since_hand_over: usize,
    /// Voters that were offered leadership in this term and did not take it.
    asked: BTreeSet<NodeId>,
    /// The voters that may lead instead, if this node's clock is off. Otherwise `None`.
    clock_successors: Option<Vec<NodeId>>,
    /// Two values. First: whether the wall clock was compared with another one since the start.
    /// Second: for how many ticks a leader has waited for this comparison.
    pub(super) clock_compared: (bool, usize),
    /// Whether a handover because of the disk or the data plane was tried in this term.
    is_giving_up: bool,
}

impl LeaderChecks {
    pub(super) fn heard(&mut self, node: NodeId, now_ns: u64) {
        self.heard_ns.insert(node, now_ns);
    }

    /// Forgets the snapshot on its way to `node`. Returns whether there was one.
    pub(super) fn snapshot_done(&mut self, node: NodeId) -> bool {
        self.snapshots.remove(&node).is_some()
    }

    /// Resets the checks as this node begins to lead a term.
    pub(super) fn begin_term(&mut self) {
        self.unheard = 0;
        self.led = 0;
        self.rounds.1 = 0;
        self.clock_compared.1 = 0;
        self.is_giving_up = false;
        self.since_hand_over = 0;
        self.asked.clear();
        self.snapshots.clear();
    }
}

impl Replica {
    /// Records when the data plane last completed a confirm round, by the data plane's clock. Only
    /// a change of the value matters.
    pub fn handle_rounds(&mut self, completed_ns: u64) {
        if self.leader_checks.rounds.0 != completed_ns {
            self.leader_checks.rounds = (completed_ns, 0);
        }
    }

    /// If this node leads and its clock is off, leadership goes to one of `successors`, whose
    /// clocks are right. `None` when the clock is believed.
    pub fn handle_clock(&mut self, successors: Option<Vec<NodeId>>) {
        self.leader_checks.clock_successors = successors;
    }

    /// Records whether this node's clock has been compared with a majority's since its start, and
    /// none of them had to be ignored. Until then, a leader waits with its first reservation, for a
    /// few election timeouts at most.
    pub fn handle_compared(&mut self, is_compared: bool) {
        self.leader_checks.clock_compared.0 = is_compared;
    }

    /// Whether a leader may reserve: its clock was compared, or the leader has waited long enough.
    pub(super) fn may_reserve(&self) -> bool {
        self.leader_checks.clock_compared.0 || self.has_waited_for_clocks()
    }

    /// Whether this leader has waited long enough for other clocks. Then it uses the known ones,
    /// although they prove nothing, and S11 holds only if the one that it believes is right.
    #[must_use]
    pub fn is_clock_unproved(&self) -> bool {
        let is_leader = self.raw.raft.state == StateRole::Leader;
        is_leader && !self.leader_checks.clock_compared.0 && self.has_waited_for_clocks()
    }

    /// For how many ticks this leader has led; meaningless on a follower.
    pub(super) const fn led_ticks(&self) -> usize {
        self.leader_checks.led
    }

    fn has_waited_for_clocks(&self) -> bool {
        self.leader_checks.clock_compared.1 > COMPARE_ELECTIONS_MAX * self.config.election_ticks
    }

    /// Whether the library's election timeout may run. It stops while this node's disk is stuck,
    /// for two reasons. A follower could not make its own vote durable. If a single voter campaigns
    /// with a write outstanding, the library panics.
    pub(super) fn may_tick(&mut self) -> bool {
        self.outbox.tick(self.config.election_ticks);
        if self.raw.raft.state == StateRole::Leader {
            return true;
        }
        // To campaign, the library reads the entries after the applied index. With a snapshot, that
        // index is set only once the snapshot is durable. A campaign before would make the library
        // panic.
        if self.snapshot_to_apply.is_some() {
            return false;
        }
        let is_single = self.voters.len() <= 1;
        let is_stuck = self.outbox.oldest_ticks() > self.config.election_ticks;
        !(is_stuck || is_single && self.outbox.outstanding() > 0)
    }

    /// Whether this node accepts leadership. It declines
    /// - while a snapshot is not durable (see [`Replica::may_tick`]);
    /// - while it is going to stop;
    /// - while clients cannot connect, which may be the reason for the offer;
    /// - while an old write is outstanding. This node's vote for itself would wait behind that
    ///   write. Until then it would refuse the old leader's rounds and not become the new leader.
    pub(super) fn may_take_over(&self) -> bool {
        self.snapshot_to_apply.is_none()
            && self.does_disk_keep_up()
            && self.are_clients_let_in()
            && !self.is_stopping()
    }

    pub(super) fn record_message(&mut self, message: &RaftMessage) {
        if message.kind == MessageKind::Snapshot {
            self.leader_checks.snapshots.insert(message.to, 0);
        }
    }

    /// Forgets the snapshot on its way to `node`, once the library says that it has arrived. An ack
    /// alone proves nothing: it may have been sent before the snapshot was lost.
    pub(super) fn forget_snapshot_if_taken(&mut self, node: NodeId) {
        let progress = self.raw.raft.prs().get(node.0);
        if progress.is_none_or(|progress| progress.state != ProgressState::Snapshot) {
            self.leader_checks.snapshot_done(node);
        }
    }

    /// The leader's checks of one tick.
    pub(super) fn look_after_leadership(&mut self) {
        if self.raw.raft.state != StateRole::Leader {
            return;
        }
        self.fail_late_snapshots();
        self.leave_joint();
        self.readdress();
        self.raise_format();
        self.seed_settings_if_due();
        self.leader_checks.since_hand_over += 1;
        // Without a grant no round is expected.
        let is_serving =
            self.grant.is_some() && !self.is_held_back && self.state.mode() == Mode::Quorum;
        self.leader_checks.rounds.1 = if is_serving { self.leader_checks.rounds.1 + 1 } else { 0 };
        self.leader_checks.clock_compared.1 += 1;
        self.leader_checks.led += 1;
        let election = self.config.election_ticks;
        self.leader_checks.unheard =
            if self.is_quorum_heard() { 0 } else { self.leader_checks.unheard + 1 };
        if self.leader_checks.unheard == 1 {
            // This process, or every process, may have been paused. The answer to the next
            // heartbeat could come too late. A heartbeat now leaves the most time for its answer.
            self.step(|raw| raw.raft.ping());
        }
        if self.leader_checks.unheard > election / UNHEARD_PARTS {
            return self.give_up_unheard();
        }
        if self.is_stopping() {
            self.forget_preferred();
            return self.give_away_again();
        }
        if self.is_giving_back() {
            // It ends soon. Another handover meanwhile would be mixed up with it.
            return self.forget_preferred();
        }
        let why = if !self.successors_because_of_disk().is_empty() {
            HandOver::DiskStuck
        } else if self.leader_checks.rounds.1 >= 2 * election {
            HandOver::RoundsStuck
        } else if self.leader_checks.clock_successors.is_some() {
            HandOver::ClockOff
        } else {
            // Disk and data plane work. If one of them fails later, a handover is tried first,
            // again.
            self.leader_checks.is_giving_up = false;
            if self.look_after_clients() {
                return self.forget_preferred();
            }
            return self.look_after_preference();
        };
        self.forget_preferred();
        if self.voters.len() > 1 {
            self.give_up(why);
        }
    }

    /// Gives up leadership because no quorum is heard. The library's own check comes later, within
    /// two election timeouts, and does not inform the others. They may still hear this node well,
    /// and would wait for another timeout. So this leader's last message asks a voter to campaign.
    /// A handover is impossible: it needs answers, which do not come.
    fn give_up_unheard(&mut self) {
        let why = HandOver::Unheard;
        let (now_ns, long_ns) = (self.now_ns, 2 * self.election_ns());
        let heard = &self.leader_checks.heard_ns;
        let is_recent =
            |node| heard.get(&node).is_some_and(|at| now_ns.saturating_sub(*at) <= long_ns);
        let to = self.most_up_to_date(is_recent);
        self.reports.push_back(Report::SteppedDown { why });
        let term = Term(self.raw.raft.term);
        self.step(|raw| raw.raft.become_follower(term.0, raft::INVALID_ID));
        if let Some(to) = to {
            self.reports.push_back(Report::HandingOver { to, why });
            self.outbox.push_offer(RaftMessage::plain(MessageKind::TimeoutNow, to, term));
        }
    }

    /// Hands over. The library gives up a transfer after an election timeout, and takes no proposal
    /// until then. So between two attempts there is time for a reservation. A leader that cannot
    /// answer because of its disk or data plane steps down if no voter has taken over.
    fn give_up(&mut self, why: HandOver) {
        let election = self.config.election_ticks;
        let is_urgent = match why {
            HandOver::ClockOff => false,
            HandOver::DiskStuck => !self.does_range_last(),
            _ => true,
        };
        let is_again = !self.leader_checks.asked.is_empty();
        let pause = if is_urgent || !is_again { election } else { HAND_OVER_ELECTIONS * election };
        if self.leader_checks.since_hand_over < pause {
            return;
        }
        self.leader_checks.since_hand_over = 0;
        if is_urgent && self.leader_checks.is_giving_up {
            self.reports.push_back(Report::SteppedDown { why });
            self.step(|raw| {
                let term = raw.raft.term;
                raw.raft.become_follower(term, raft::INVALID_ID);
            });
            return;
        }
        self.leader_checks.is_giving_up = is_urgent;
        let successors = self.successors_because_of(why);
        if let Some(to) = self.next_successor(|node| successors.contains(&node)) {
            self.transfer(to, why);
        }
    }

    /// The voters for which the reason for a handover does not hold, as far as is known.
    fn successors_because_of(&self, why: HandOver) -> Vec<NodeId> {
        match why {
            HandOver::ClockOff => self.leader_checks.clock_successors.clone().unwrap_or_default(),
            HandOver::DiskStuck => self.successors_because_of_disk(),
            _ => self.voters.iter().map(|(node, _)| node).collect(),
        }
    }

    /// The [`successor`](Self::successor) among the voters that were not asked yet. A voter that
    /// did not take over is asked again only after all other voters.
    pub(super) fn next_successor(&mut self, may: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        self.fresh_successor(&may).or_else(|| {
            self.leader_checks.asked.clear();
            self.fresh_successor(may)
        })
    }

    /// The [`successor`](Self::successor) among the voters not asked yet, if there is one.
    pub(super) fn fresh_successor(&mut self, may: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let to = self.successor(|node| may(node) && !self.leader_checks.asked.contains(&node))?;
        self.leader_checks.asked.insert(to);
        Some(to)
    }

    pub(super) fn transfer(&mut self, to: NodeId, why: HandOver) {
        self.reports.push_back(Report::HandingOver { to, why });
        self.release_lease();
        if self.may_give_back(why) {
            return self.begin_giving_back(to);
        }
        self.step(|raw| raw.transfer_leader(to.0));
    }

    /// The most up-to-date voter that was heard within an election timeout and for which `may` is
    /// true. Voters that would wait for leases come last.
    pub(super) fn successor(&self, may: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let may = |node| self.is_heard(node) && may(node);
        let at_once = self.most_up_to_date(|node| may(node) && !self.is_waiting_for_leases(node));
        at_once.or_else(|| self.most_up_to_date(may))
    }

    /// The most up-to-date of the other voters for which `may` is true.
    fn most_up_to_date(&self, may: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let me = self.config.identity.node;
        let progress = self.raw.raft.prs();
        let incoming = progress.conf().to_conf_state().voters;
        let candidates = self.voters.iter();
        let candidates =
            candidates.filter(|(node, _)| *node != me && incoming.contains(&node.0) && may(*node));
        let matched = |node: NodeId| progress.get(node.0).map_or(0, |peer| peer.matched);
        // Among equals the lowest id wins, so that every replay chooses the same voter.
        candidates.map(|(node, _)| node).max_by_key(|node| (matched(*node), u64::MAX - node.0))
    }

    pub(super) fn is_heard(&self, node: NodeId) -> bool {
        let heard = self.leader_checks.heard_ns.get(&node);
        heard.is_some_and(|at| self.now_ns.saturating_sub(*at) <= self.election_ns())
    }

    pub(crate) const fn election_ns(&self) -> u64 {
        self.config.tick_ns * self.config.election_ticks as u64
    }

    /// Whether a quorum, this node included, was heard within an election timeout.
    #[must_use]
    pub fn is_quorum_heard(&self) -> bool {
        let me = self.config.identity.node;
        self.voters.is_quorum_by(|node| node == me || self.is_heard(node))
    }

    /// Whether this node is connected to a quorum: as leader it hears a quorum, or as follower it
    /// hears its leader.
    #[must_use]
    pub fn is_quorum_reached(&self) -> bool {
        match (self.role(), self.leader()) {
            (Role::Leader, _) => self.is_quorum_heard(),
            (Role::Follower, Some(leader)) => self.is_heard(leader),
            (Role::Follower | Role::Candidate, _) => false,
        }
    }

    /// Whether this node cannot lead now: its disk does not answer, or it leads and its rounds do
    /// not complete. A leader with a late write can lead while its range lasts.
    #[must_use]
    pub fn is_impaired(&self) -> bool {
        let election = self.config.election_ticks;
        if self.role() == Role::Leader {
            self.is_range_lost_to_disk() || self.leader_checks.rounds.1 >= 2 * election
        } else {
            self.outbox.oldest_ticks() >= election
        }
    }

    fn fail_late_snapshots(&mut self) {
        let limit = self.config.election_ticks * SNAPSHOT_ELECTIONS_MAX;
        for ticks in self.leader_checks.snapshots.values_mut() {
            *ticks += 1;
        }
        let late = self.leader_checks.snapshots.iter().find(|(_, ticks)| **ticks > limit);
        if let Some(node) = late.map(|(node, _)| *node) {
            self.leader_checks.snapshots.remove(&node);
            self.step(|raw| raw.report_snapshot(node.0, raft::SnapshotStatus::Failure));
        }
    }

    /// Leaves a joint configuration as soon as it is applied, even if another leader entered it.
    fn leave_joint(&mut self) {
        let raft = &self.raw.raft;
        if self.voters.is_joint() && !raft.has_pending_conf() && !self.is_handing_over() {
            // If the proposal is dropped, it is made again at the next tick.
            let leave = ConfChangeV2::default();
            let _again = self.step(|raw| raw.propose_conf_change(Vec::new(), leave));
        }
    }

    /// Proposes one member's new addresses, and waits an election timeout before it proposes again.
    fn readdress(&mut self) {
        if self.leader_checks.readdress_pause > 0 {
            self.leader_checks.readdress_pause -= 1;
            return;
        }
        let news = self.leader_checks.readdressed.values();
        let mut news = news.filter(|member| self.state.members.get(&member.node) != Some(member));
        if let Some(member) = news.next()
            && !self.is_handing_over()
        {
            let command = Command::Readdress(member.clone()).encode();
            self.leader_checks.readdress_pause = self.config.election_ticks;
            // If the proposal is dropped, it is made again after the pause.
            let _again = self.step(|raw| raw.propose(Vec::new(), command));
        }
    }

    pub(super) fn check_limits(&self) -> Result<(), Fatal> {
        let (missed, limit) = (self.reservation.missed, self.config.deadline_limit);
        if missed >= limit {
            return Err(Fatal::DeadlineLimit { missed });
        }
        let outstanding = self.outbox.outstanding();
        if outstanding >= WRITES_OUTSTANDING_MAX {
            return Err(Fatal::DiskStuck { outstanding });
        }
        Ok(())
    }

    /// The status of this replica.
    #[must_use]
    pub fn status(&self) -> Status {
        let raft = &self.raw.raft;
        let peers = raft.prs().iter().map(|(id, progress)| PeerProgress {
            node: NodeId(*id),
            matched: LogIndex(progress.matched),
            is_heard: self.is_heard(NodeId(*id)),
        });
        let mut peers: Vec<_> = peers.collect();
        peers.sort_unstable_by_key(|peer| peer.node);
        Status {
            term: Term(raft.term),
            role: self.role(),
            leader: self.leader(),
            last: LogIndex(raft.raft_log.last_index()),
            committed: LogIndex(raft.raft_log.committed),
            applied: self.applied.0,
            log_len: self.raw.store().len(),
            writes_outstanding: self.outbox.outstanding(),
            messages_held: self.outbox.held(),
            peers,
        }
    }
}

/// A leader that has heard no quorum for an election timeout waits a little longer before it gives
/// up, because an answer may just be late. It waits for another election timeout, divided by this.
const UNHEARD_PARTS: usize = 4;
/// Election timeouts between two offers of leadership because of the clock. In the first, the
/// library waits and takes no proposal; the other two leave time for a reservation.
const HAND_OVER_ELECTIONS: usize = 3;
/// A leader waits at most this many election timeouts for a first sample of another clock. The
/// links that elected it also carry samples. If none has come by then, those links deliver none.
const COMPARE_ELECTIONS_MAX: usize = 5;
/// Election timeouts after which a snapshot that was not acknowledged counts as lost.
const SNAPSHOT_ELECTIONS_MAX: usize = 10;
/// Outstanding writes at which the disk counts as dead. With a few writes a second, it has then not
/// answered for minutes.
pub(super) const WRITES_OUTSTANDING_MAX: usize = 512;
