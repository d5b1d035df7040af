//! What a replica does besides Raft: it looks after its leadership (quorum, disk, data plane,
//! clock), it resolves snapshots, and it keeps to its limits. Durations are counted in ticks, so
//! that a pause of the whole process counts as one.

use std::collections::{BTreeMap, BTreeSet};

use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::{LogIndex, NodeId, Term};
use raft::eraftpb::ConfChangeV2;
use raft::{ProgressState, StateRole};

use super::{Fatal, HandOver, PeerProgress, Replica, Report, Status};
use crate::planted::{self, Bug};
use crate::publication::Role;
use crate::state::Command;

/// What the duties remember.
#[derive(Debug, Default)]
pub(super) struct Duties {
    /// Term, role and leader as last published.
    pub(super) seen: Option<(Term, Role, Option<NodeId>)>,
    /// Members as they introduced themselves, where the state does not say the same yet.
    pub(super) introduced: BTreeMap<NodeId, Member>,
    /// Ticks until the next change of addresses may be proposed.
    readdress_pause: usize,
    /// When each peer was last heard.
    heard_ns: BTreeMap<NodeId, u64>,
    /// Peers that a snapshot is on its way to, and for how many ticks.
    snapshots: BTreeMap<NodeId, usize>,
    /// For how many ticks this node has led in this term.
    led: usize,
    /// For how many ticks no quorum was heard within an election timeout.
    unheard: usize,
    /// The last completed round that was reported, and for how many ticks no other was.
    rounds: (u64, usize),
    /// Ticks since the last handover was tried.
    since_hand_over: usize,
    /// Who was offered leadership in this term, and did not take it.
    asked: BTreeSet<NodeId>,
    /// Whether a worker's clock says that leadership should go elsewhere, and who may take it.
    clock_successors: Option<Vec<NodeId>>,
    /// Whether the wall clock was compared with another one since the start, and for how many ticks
    /// a leader has waited for it.
    pub(super) clock_compared: (bool, usize),
    /// Whether a handover because of the disk or the data plane was tried in this term.
    is_giving_up: bool,
}

impl Duties {
    pub(super) fn heard(&mut self, node: NodeId, now_ns: u64) {
        self.heard_ns.insert(node, now_ns);
    }

    /// Whether a snapshot was on its way to `node`; it is not any more.
    pub(super) fn snapshot_done(&mut self, node: NodeId) -> bool {
        self.snapshots.remove(&node).is_some()
    }

    /// A term as leader begins.
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
    /// When the data plane last completed a confirm round, on its own clock; any change counts.
    pub fn handle_rounds(&mut self, completed_ns: u64) {
        if self.duties.rounds.0 != completed_ns {
            self.duties.rounds = (completed_ns, 0);
        }
    }

    /// This node's clock is off while it leads: hand leadership to one of `successors`, whose
    /// clocks are not. `None` when the clock is believed.
    pub fn handle_clock(&mut self, successors: Option<Vec<NodeId>>) {
        self.duties.clock_successors = successors;
    }

    /// Whether this node's clock was compared with a majority's since its start. Until it is, a leader
    /// waits with its first reservation, for a few election timeouts at most.
    pub fn handle_compared(&mut self, is_compared: bool) {
        self.duties.clock_compared.0 = is_compared;
    }

    /// Whether a leader may reserve: its clock was compared, or it has waited long enough.
    pub(super) fn may_reserve(&self) -> bool {
        if planted::is(Bug::EveryVoterAwaited) && !self.is_everybody_heard() {
            return false;
        }
        self.duties.clock_compared.0 || self.has_waited_for_clocks()
    }

    /// What a planted bug waits for.
    fn is_everybody_heard(&self) -> bool {
        let me = self.config.identity.node;
        self.voters.iter().all(|(node, _)| node == me || self.is_heard(node))
    }

    /// Whether this leader has waited long enough for other clocks, and goes by those that it knows,
    /// which are fewer than a majority: then S11 holds only if one of them is right.
    #[must_use]
    pub fn is_clock_unproved(&self) -> bool {
        let is_leader = self.raw.raft.state == StateRole::Leader;
        is_leader && !self.duties.clock_compared.0 && self.has_waited_for_clocks()
    }

    /// For how many ticks this leader has led; of no meaning for another.
    pub(super) const fn led_ticks(&self) -> usize {
        self.duties.led
    }

    fn has_waited_for_clocks(&self) -> bool {
        self.duties.clock_compared.1 > COMPARE_ELECTIONS_MAX * self.config.election_ticks
    }

    /// Whether the library's clock may move. A follower whose disk is stuck could not make its own
    /// vote durable, and a single voter that campaigns with a write outstanding makes the library
    /// panic.
    pub(super) fn may_tick(&mut self) -> bool {
        self.outbox.tick();
        if self.raw.raft.state == StateRole::Leader {
            return true;
        }
        // To campaign, the library reads the entries behind the applied index, which it moves to a
        // snapshot only once that is durable: it would panic.
        if self.snapshot_to_apply.is_some() {
            return false;
        }
        let is_single = self.voters.len() <= 1;
        let is_stuck = self.outbox.oldest_ticks() > self.config.election_ticks;
        !(is_stuck || is_single && self.outbox.outstanding() > 0)
    }

    /// Whether leadership that is offered can be taken: not while a snapshot is not durable (see
    /// [`Replica::may_tick`]), and not while a write has waited so long that the vote for itself
    /// would, too: this node would refuse the old leader's rounds and not become the new one. Nor
    /// while clients cannot come here: who offers it may do so for that very reason. Nor when this node
    /// is going to stop.
    pub(super) fn may_take_over(&self) -> bool {
        let patience = (self.config.election_ticks / 2).max(1);
        self.snapshot_to_apply.is_none()
            && self.outbox.oldest_ticks() <= patience
            && self.are_clients_let_in()
            && !self.is_departing()
    }

    pub(super) fn note_message(&mut self, message: &RaftMessage) {
        if message.kind == MessageKind::Snapshot {
            self.duties.snapshots.insert(message.to, 0);
        }
    }

    /// A snapshot has arrived when the library says so, and not with just any ack: an older one may
    /// have been under way while the snapshot is lost.
    pub(super) fn forget_snapshot_if_taken(&mut self, node: NodeId) {
        let progress = self.raw.raft.prs().get(node.0);
        if progress.is_none_or(|progress| progress.state != ProgressState::Snapshot) {
            self.duties.snapshot_done(node);
        }
    }

    /// Everything a leader sees to once per tick.
    pub(super) fn look_after_leadership(&mut self) {
        if self.raw.raft.state != StateRole::Leader {
            return;
        }
        self.fail_late_snapshots();
        self.leave_joint();
        self.readdress();
        self.raise_format();
        self.seed_settings_if_due();
        self.duties.since_hand_over += 1;
        // Without a grant there is nothing to confirm: no round can be missed.
        let is_serving = self.grant.is_some();
        self.duties.rounds.1 = if is_serving { self.duties.rounds.1 + 1 } else { 0 };
        self.duties.clock_compared.1 += 1;
        self.duties.led += 1;
        let election = self.config.election_ticks;
        self.duties.unheard = if self.is_quorum_heard() { 0 } else { self.duties.unheard + 1 };
        if self.duties.unheard == 1 {
            // It may be this process, or all of them, that stood still: the next heartbeat's answer
            // could come too late, that of one sent now has all the time that is left.
            self.step(|raw| raw.raft.ping());
        }
        if self.duties.unheard > election / UNHEARD_PARTS {
            return self.give_up_unheard();
        }
        if self.is_departing() {
            self.forget_preferred();
            return self.give_away_again();
        }
        let why = if self.outbox.oldest_ticks() >= election {
            HandOver::DiskStuck
        } else if self.duties.rounds.1 >= 2 * election {
            HandOver::RoundsStuck
        } else if self.duties.clock_successors.is_some() {
            HandOver::ClockOff
        } else {
            // Whatever was tried before, this leader is well again.
            self.duties.is_giving_up = false;
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
    /// two election timeouts, and says nothing to the others, who may hear this node well, and would
    /// wait for yet another one: so the last word of this leader asks a voter to campaign. It is not
    /// handed over to, because the answers that this needs do not come.
    fn give_up_unheard(&mut self) {
        let why = HandOver::Unheard;
        let (now_ns, long_ns) = (self.now_ns, 2 * self.election_ns());
        let heard = &self.duties.heard_ns;
        let is_recent =
            |node| heard.get(&node).is_some_and(|at| now_ns.saturating_sub(*at) <= long_ns);
        let to = self.most_up_to_date(is_recent);
        self.reports.push_back(Report::SteppedDown { why });
        let term = Term(self.raw.raft.term);
        self.step(|raw| raw.raft.become_follower(term.0, raft::INVALID_ID));
        if let Some(to) = to {
            self.reports.push_back(Report::HandingOver { to, why });
            self.outbox.push_last_word(RaftMessage::plain(MessageKind::TimeoutNow, to, term));
        }
    }

    /// Hands over. The library gives up a transfer after an election timeout, and takes no proposal
    /// meanwhile: between two attempts there is time for a reservation. A leader whose disk or data
    /// plane is stuck steps down when nobody has taken over.
    fn give_up(&mut self, why: HandOver) {
        let election = self.config.election_ticks;
        let is_stuck = why != HandOver::ClockOff;
        let is_again = !self.duties.asked.is_empty();
        let pause = if is_stuck || !is_again { election } else { HAND_OVER_ELECTIONS * election };
        if self.duties.since_hand_over < pause {
            return;
        }
        self.duties.since_hand_over = 0;
        if is_stuck && self.duties.is_giving_up {
            self.reports.push_back(Report::SteppedDown { why });
            self.step(|raw| {
                let term = raw.raft.term;
                raw.raft.become_follower(term, raft::INVALID_ID);
            });
            return;
        }
        self.duties.is_giving_up = is_stuck;
        let allowed = self.duties.clock_successors.clone();
        let may = |node: NodeId| match (&allowed, is_stuck) {
            (Some(allowed), false) => allowed.contains(&node),
            _ => true,
        };
        if let Some(to) = self.next_successor(may) {
            self.transfer(to, why);
        }
    }

    /// The [`successor`](Self::successor) of those that this leader has not asked yet; whoever did not
    /// take over is asked again only after all others.
    pub(super) fn next_successor(&mut self, may: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        self.fresh_successor(&may).or_else(|| {
            self.duties.asked.clear();
            self.fresh_successor(may)
        })
    }

    /// The [`successor`](Self::successor) of those that this leader has not asked yet, if there is one.
    pub(super) fn fresh_successor(&mut self, may: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let to = self.successor(|node| may(node) && !self.duties.asked.contains(&node))?;
        self.duties.asked.insert(to);
        Some(to)
    }

    pub(super) fn transfer(&mut self, to: NodeId, why: HandOver) {
        if planted::is(Bug::TransfereeKept) && self.is_handing_over() {
            return;
        }
        self.reports.push_back(Report::HandingOver { to, why });
        self.step(|raw| raw.transfer_leader(to.0));
    }

    /// The most up-to-date voter that was heard within an election timeout and that `may` take
    /// leadership.
    pub(super) fn successor(&self, may: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        self.most_up_to_date(|node| self.is_heard(node) && may(node))
    }

    /// The most up-to-date of the other voters that `may` take leadership.
    fn most_up_to_date(&self, may: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let me = self.config.identity.node;
        let progress = self.raw.raft.prs();
        let incoming = progress.conf().to_conf_state().voters;
        let candidates = self.voters.iter();
        let candidates =
            candidates.filter(|(node, _)| *node != me && incoming.contains(&node.0) && may(*node));
        let matched = |node: NodeId| progress.get(node.0).map_or(0, |peer| peer.matched);
        // Of equals the lowest id, so that the choice is the same in every replay.
        candidates.map(|(node, _)| node).max_by_key(|node| (matched(*node), u64::MAX - node.0))
    }

    pub(super) fn is_heard(&self, node: NodeId) -> bool {
        let heard = self.duties.heard_ns.get(&node);
        heard.is_some_and(|at| self.now_ns.saturating_sub(*at) <= self.election_ns())
    }

    pub(super) const fn election_ns(&self) -> u64 {
        self.config.tick_ns * self.config.election_ticks as u64
    }

    /// Whether a quorum, this node included, was heard within an election timeout.
    #[must_use]
    pub fn is_quorum_heard(&self) -> bool {
        let me = self.config.identity.node;
        self.voters.is_quorum_by(|node| node == me || self.is_heard(node))
    }

    /// Whether this node takes part: it leads and hears a quorum, or hears its leader.
    #[must_use]
    pub fn is_quorum_reached(&self) -> bool {
        match (self.role(), self.leader()) {
            (Role::Leader, _) => self.is_quorum_heard(),
            (Role::Follower, Some(leader)) => self.is_heard(leader),
            (Role::Follower | Role::Candidate, _) => false,
        }
    }

    /// Whether this node cannot carry leadership now: its disk does not answer, or, while it leads,
    /// its rounds do not complete.
    #[must_use]
    pub fn is_impaired(&self) -> bool {
        let election = self.config.election_ticks;
        let are_rounds_stuck = self.role() == Role::Leader && self.duties.rounds.1 >= 2 * election;
        self.outbox.oldest_ticks() >= election || are_rounds_stuck
    }

    fn fail_late_snapshots(&mut self) {
        if planted::is(Bug::SnapshotNeverFailed) {
            return;
        }
        let limit = self.config.election_ticks * SNAPSHOT_ELECTIONS_MAX;
        for ticks in self.duties.snapshots.values_mut() {
            *ticks += 1;
        }
        let late = self.duties.snapshots.iter().find(|(_, ticks)| **ticks > limit);
        if let Some(node) = late.map(|(node, _)| *node) {
            self.duties.snapshots.remove(&node);
            self.step(|raw| raw.report_snapshot(node.0, raft::SnapshotStatus::Failure));
        }
    }

    /// Leaves a joint configuration as soon as it is applied, whoever entered it.
    fn leave_joint(&mut self) {
        let raft = &self.raw.raft;
        let is_due = self.voters.is_joint() && !planted::is(Bug::JointNeverLeft);
        if is_due && !raft.has_pending_conf() && raft.lead_transferee.is_none() {
            // A dropped proposal is tried again at the next tick.
            let leave = ConfChangeV2::default();
            let _again = self.step(|raw| raw.propose_conf_change(Vec::new(), leave));
        }
    }

    /// Proposes one member's new addresses, and gives that an election timeout to come about.
    fn readdress(&mut self) {
        if self.duties.readdress_pause > 0 {
            self.duties.readdress_pause -= 1;
            return;
        }
        let news = self.duties.introduced.values();
        let mut news = news.filter(|member| self.state.members.get(&member.node) != Some(member));
        if let Some(member) = news.next()
            && self.raw.raft.lead_transferee.is_none()
        {
            let command = Command::Readdress(member.clone()).encode();
            self.duties.readdress_pause = self.config.election_ticks;
            // A proposal that is dropped is made again after the pause.
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

    /// Where this replica stands.
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

/// After an election timeout in which no quorum was heard, a leader waits for so small a part of
/// another one before it gives up: an answer may just be late.
const UNHEARD_PARTS: usize = 4;
/// Election timeouts between two offers of leadership because of the clock: one in which the
/// library waits and takes no proposal, and two to reserve.
const HAND_OVER_ELECTIONS: usize = 3;
/// Election timeouts that a leader waits for a first sample of another clock: samples come with the
/// links that elected it, so a leader without one reaches its voters in a way that carries none.
const COMPARE_ELECTIONS_MAX: usize = 5;
/// Election timeouts after which a snapshot that was not acknowledged counts as lost.
const SNAPSHOT_ELECTIONS_MAX: usize = 10;
/// Writes that may be outstanding before the disk counts as dead: at a few writes a second, it has
/// not answered for minutes.
pub(super) const WRITES_OUTSTANDING_MAX: usize = 512;
