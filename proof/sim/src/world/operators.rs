//! The operators of simulated clusters. They hand over leadership, change the members, often at the
//! worst moment, and more. They send commands; the replicas decide.

use epicepoch_core::admin::{Command, Done};
use epicepoch_core::durable::Record;
use epicepoch_core::placement::Placement;
use epicepoch_core::publication::{Published, Role};
use epicepoch_core::replica::{ADVANCE_AHEAD_NS, Advance, HandOver, Placed};
use epicepoch_core::state::{MembershipChange, MembershipStep, State};
use epicepoch_wire::bootstrap::{Genesis, Member};
use epicepoch_wire::raft_message::Configuration;
use epicepoch_wire::voter_status::Zone;
use epicepoch_wire::{Epoch, LogIndex, NodeId, Term};

use crate::event::{AdminCommand, End, Event};
use crate::history::Invariant;
use crate::history::prudence::Deciding;
use crate::node::Node;
use crate::parameters::{MS, RESERVATION_NS, SECOND, START_NS};
use crate::plane::Plane;
use crate::plant::Plant;
use crate::world::World;
use crate::world::features::{Feature, ZONES};

impl World {
    /// Schedules the next act of operators, in runs with any of the features in [`OPERATED`].
    pub(crate) fn operate_later(&mut self) {
        if OPERATED.iter().any(|feature| self.has(*feature)) {
            let after_ns = self.random.u64(200..4_000) * MS;
            self.schedule_world(after_ns, Event::Operate);
        }
    }

    pub(crate) fn operate(&mut self) {
        if self.nemesis.pause_ns == 0 {
            return;
        }
        self.operate_later();
        let operated: Vec<Feature> = OPERATED.into_iter().filter(|it| self.has(*it)).collect();
        match operated[self.random.usize(0..operated.len())] {
            Feature::Restores => self.back_up_or_restore(),
            Feature::Settings => {
                let node = self.any_leading();
                self.admin(node, AdminCommand::Settings);
            }
            Feature::Versions => self.change_version(),
            _ => {
                let node = self.any_leading();
                self.admin(node, AdminCommand::Advance);
            }
        }
    }

    /// Sends a command to a node if its process runs. A paused process reads it later.
    pub(crate) fn admin(&mut self, node: NodeId, command: AdminCommand) {
        if self.at(node).running.is_some() {
            self.schedule_own(node, 0, Event::Admin { command });
        }
    }

    /// A node executes a command, which a pause may have delayed. It drops a change of epoch or
    /// settings if all faults have healed by then. It drops any other command if no fault may begin
    /// then.
    pub(crate) fn execute(&mut self, node: NodeId, command: AdminCommand) {
        match command {
            AdminCommand::Advance | AdminCommand::Settings if self.nemesis.pause_ns == 0 => {}
            AdminCommand::Advance => self.advance(node),
            AdminCommand::Settings => self.change_settings(node),
            AdminCommand::HandOver
            | AdminCommand::HandOverTo(_)
            | AdminCommand::Members
            | AdminCommand::Mistake
            | AdminCommand::Repeat
                if self.is_quiet() => {}
            AdminCommand::HandOver if self.slow_successor(node) => {}
            AdminCommand::HandOver => self.hand_over(node),
            AdminCommand::HandOverTo(to) => self.hand_over_to(node, Some(to)),
            AdminCommand::Members => self.change_members(node),
            AdminCommand::Mistake => self.mistake(node),
            AdminCommand::Repeat => self.repeat(node),
        }
    }

    /// An operator moves the epoch: within the owned range, back, beyond the ceiling, or too far,
    /// which the node refuses. In runs with wrong clocks the operator does not move it so far that
    /// right clocks look behind. A ceiling above all clocks proves nothing about them, which is a
    /// known gap of S11.
    fn advance(&mut self, node: NodeId) {
        let now_ns = START_NS + self.now_ns;
        let is_near = self.nemesis.is_clock;
        let (what, to) = match self.random.u32(0..10) {
            0..4 => ("advance in a window", now_ns + self.random.u64(0..=RESERVATION_NS)),
            4 => ("advance back", now_ns - self.random.u64(0..=10 * SECOND)),
            5..8 if is_near => {
                let beyond_ns = self.random.u64(0..=400 * MS);
                ("advance beyond a window", now_ns + RESERVATION_NS + beyond_ns)
            }
            5..8 => ("advance far", now_ns + self.random.u64(SECOND..=ALLOWED_NS - SECOND)),
            _ => {
                let beyond_ns = self.random.u64(SECOND..=2 * ADVANCE_AHEAD_NS);
                ("advance too far", self.history.trusted_max_ns + ALLOWED_NS + beyond_ns)
            }
        };
        self.count(what);
        let to = Epoch(to);
        let asked_before = self.history.advance_asked(to);
        let command = Command::Advance { to, allowed_ns: ALLOWED_NS, is_plan: false };
        let answer = self.command(node, command);
        // The epoch does not move if the command is denied or was carried out before.
        if let Some(Err(_) | Ok(Done::Advanced(Advance { is_done: true, .. }))) = answer {
            self.history.advance_refused(asked_before);
            return;
        }
        self.history.advance_taken(node, to, ALLOWED_NS);
        self.restores.advanced(self.now_ns, to);
        // A handover before any later timestamp: only the advance says where the next range begins.
        if self.chance(HANDED_OVER) {
            self.admin(node, AdminCommand::HandOver);
        }
        self.provoke(node);
    }

    /// An operator repeats a command because its answer was lost. Mostly the command has already
    /// been carried out.
    fn repeat(&mut self, node: NodeId) {
        let running = self.at(node).running();
        let published = running.shared.published();
        let removed: Vec<NodeId> = running.replica().state().removed.iter().copied().collect();
        let voters: Vec<NodeId> = published.voters.iter().map(|(voter, _)| voter).collect();
        if voters.is_empty() {
            return;
        }
        let voter = voters[self.random.usize(0..voters.len())];
        let command = match self.random.usize(0..3) {
            0 if !removed.is_empty() => {
                let removed = removed[self.random.usize(0..removed.len())];
                Command::Change(vec![MembershipStep::Remove(removed)])
            }
            1 => {
                let Some(member) = published.members.get(&voter) else { return };
                Command::Vacancy { node: voter, raft_addr: member.raft_addr.clone() }
            }
            _ => Command::Change(vec![MembershipStep::Promote(voter)]),
        };
        self.count("command repeated");
        self.command(node, command);
    }

    /// An operator asks for an impossible change, or asks the wrong node.
    fn mistake(&mut self, node: NodeId) {
        let published = self.at(node).running().shared.published();
        let leads = published.role == Role::Leader;
        let known = published.members.keys().next().copied().unwrap_or(node);
        let stranger = NodeId(STRANGER);
        let members = [known, stranger].map(|id| (id, self.member(id)));
        let add = |of: NodeId, store_of: NodeId| {
            let (_, as_known) = members.iter().find(|(id, _)| *id == store_of).expect("one of two");
            MembershipStep::AddLearner(Member { node: of, ..as_known.clone() })
        };
        let (name, steps) = match self.random.u32(0..8) {
            0 => ("nothing", vec![]),
            1 => ("twice", vec![MembershipStep::Remove(known), MembershipStep::Remove(known)]),
            2 => ("unknown", vec![MembershipStep::Remove(stranger)]),
            3 => ("nobody", vec![add(NodeId(0), stranger)]),
            4 => ("member already", vec![add(known, stranger)]),
            5 => ("store of another", vec![add(stranger, known)]),
            6 if !leads => ("no leader asked", vec![add(stranger, stranger)]),
            // The Raft library refuses the removal of the only voter after the entry is committed.
            // Until then the core treats the removal like any other change.
            _ if leads && published.voters.len() == 1 => {
                return self.remove_last(node);
            }
            _ => return,
        };
        self.count("mistaken change");
        self.nemesis.nonce += 1;
        let change = MembershipChange { nonce: self.nemesis.nonce, steps };
        if self.with(node, |replica, now| replica.propose_change(now, &change)).is_ok() {
            let what = || format!("node {node} takes a change of members: {name}");
            self.history.violate(Invariant::Possible, what);
        }
    }

    /// An operator removes the only voter.
    fn remove_last(&mut self, leader: NodeId) {
        self.nemesis.nonce += 1;
        let steps = vec![MembershipStep::Remove(leader)];
        let change = MembershipChange { nonce: self.nemesis.nonce, steps };
        if self.with(leader, |replica, now| replica.propose_change(now, &change)).is_ok() {
            self.count("removal of the only voter asked");
        }
    }

    fn hand_over(&mut self, node: NodeId) {
        let to = self.random.bool().then(|| self.any());
        // Often the target has a stuck disk and must decline.
        let is_stuck = |other: &&Node| other.disk.is_stuck && other.id != node;
        let stuck = self.nodes.iter().find(is_stuck).map(|other| other.id);
        let to = stuck.filter(|_| self.random.bool()).or(to);
        self.hand_over_to(node, to);
    }

    fn hand_over_to(&mut self, node: NodeId, to: Option<NodeId>) {
        self.count("handover asked");
        let leader = self.deciding(node);
        // The transfer is first requested as an admin command. If the node refuses the command at
        // once, the replica is called directly.
        if self.command(node, Command::Transfer(to)).is_some() {
            self.with(node, |replica, now| replica.hand_over(now, to, HandOver::Asked));
            return;
        }
        // The leader is asked to hand over to itself. It answers only after a barrier, so nothing
        // is handed over now.
        if to == Some(node) {
            return;
        }
        self.count("handover asked and taken");
        let Some(to) = self.at(node).running().replica().transferee() else {
            let what = || format!("node {node} takes a handover and hands over to nobody");
            return self.history.violate(Invariant::Possible, what);
        };
        let last = self.durable_last(to);
        self.history.hands_over(&leader, to, last);
    }

    fn change_members(&mut self, leader: NodeId) {
        let published = self.at(leader).running().shared.published();
        if published.role != Role::Leader {
            return;
        }
        let mut voters: Vec<NodeId> = published.voters.iter().map(|(node, _)| node).collect();
        let members = published.members.clone();
        let mut spares: Vec<NodeId> = (self.nemesis.voters + 1..=self.nodes.len() as u64)
            .map(NodeId)
            .filter(|spare| !voters.contains(spare))
            .collect();
        self.random.shuffle(&mut voters);
        self.random.shuffle(&mut spares);
        let (mut learners, mut strangers): (Vec<NodeId>, Vec<NodeId>) =
            spares.into_iter().partition(|spare| members.contains_key(spare));
        let most = self.random.usize(1..=2);
        learners.truncate(most);
        strangers.truncate(most);
        let kind = self.random.u32(0..8);
        let is_voting = !learners.is_empty() && (kind >= 2 || strangers.is_empty());
        let promoted = learners.into_iter().map(MembershipStep::Promote);
        let removed = voters.iter().copied().map(MembershipStep::Remove);
        let steps: Vec<MembershipStep> = match kind {
            2 if voters.len() > 2 => removed.take(most.min(voters.len() / 2)).collect(),
            3 if is_voting => promoted.collect(),
            // As many nodes are promoted as are removed.
            _ if is_voting => removed.zip(promoted).flat_map(|(out, come)| [come, out]).collect(),
            _ => strangers
                .into_iter()
                .map(|node| MembershipStep::AddLearner(self.member(node)))
                .collect(),
        };
        if steps.is_empty() {
            return;
        }
        self.nemesis.nonce += 1;
        let change = MembershipChange { nonce: self.nemesis.nonce, steps };
        let is_of_voters = !matches!(change.steps[0], MembershipStep::AddLearner(_));
        if is_of_voters && self.chance(self.nemesis.divided) {
            self.divide_around(leader, &published);
        }
        // A change that the checks of S12 refuse is still safe, so it is then proposed directly.
        // The leader may refuse that as busy.
        if self.propose_prudently(leader, &change)
            || self.with(leader, |replica, now| replica.propose_change(now, &change)).is_ok()
        {
            self.count("membership change");
            self.provoke(leader);
        }
    }

    /// Fills the empty directory of a spare node that was added, or of a first member that missed
    /// the founding. Its first record is the applied state of a node that knows this directory as a
    /// member's. Returns whether the directory was filled.
    pub(crate) fn join(&mut self, id: NodeId) -> bool {
        let store = self.at(id).store;
        let answers = |node: &&Node| {
            let running = node.running.as_ref().filter(|_| !self.is_paused(node.id));
            running.is_some_and(|running| running.replica().state().store_of(id) == store)
        };
        let answering: Vec<NodeId> = self.nodes.iter().filter(answers).map(|it| it.id).collect();
        if answering.is_empty() {
            return false;
        }
        let reads = self.at(id).version.reads;
        let needed = |node: &NodeId| self.at(*node).running().replica().format_needed();
        if answering.iter().map(needed).any(|needed| needed > reads) {
            self.refuse_joining(id);
            return false;
        }
        let from = answering[self.random.usize(..answering.len())];
        let mut record = self.at(from).running().replica().record();
        if self.is_planted(Plant::GenesisOfToday) {
            record = genesis_of_today(&record);
        }
        self.record(|| format!("{id} begins with the state of {from} at {}", record.index));
        self.count("joined with a member's state");
        let is_real = self.at(from).disk.is_real();
        let node = self.node(id);
        node.disk.found(record);
        if is_real {
            node.disk.make_real(id, store);
        }
        true
    }

    /// Proposes a change by an admin command, as operators do. The history checks that an accepted
    /// change leaves a majority of live voters.
    fn propose_prudently(&mut self, leader: NodeId, change: &MembershipChange) -> bool {
        let deciding = self.deciding(leader);
        if let Some(Err(_)) = self.command(leader, Command::Change(change.steps.clone())) {
            return false;
        }
        self.count("prudent change");
        self.history.changes(&deciding, change);
        for step in &change.steps {
            if let MembershipStep::Promote(node) = step {
                let last = self.durable_last(*node);
                self.history.trusts_with(&deciding, "a vote", *node, last);
            }
        }
        true
    }

    /// The leader's present view, on which it decides.
    fn deciding(&self, leader: NodeId) -> Deciding {
        let running = self.at(leader).running();
        Deciding {
            who: running.identity,
            monotonic_ns: self.monotonic_ns(leader),
            committed: running.replica().status().committed,
            voters: running.shared.published().voters.incoming().map(|(node, _)| node).collect(),
        }
    }

    /// A leader hands over to a node in a better zone. The history checks that this node is live
    /// (S12).
    pub(crate) fn prefers(&mut self, leader: NodeId, to: NodeId) {
        self.count("handover to a better place");
        // The leader made this decision at its last tick, so the check uses the time of that tick.
        let ticked_ns = self.at(leader).running().ticked_ns;
        let deciding = Deciding { monotonic_ns: ticked_ns, ..self.deciding(leader) };
        let last = self.durable_last(to);
        self.history.trusts_with(&deciding, "leadership", to, last);
    }

    /// The last index on a node's disk, unless the disk is rolled back.
    pub(crate) fn durable_last(&self, node: NodeId) -> Option<LogIndex> {
        let disk = &self.at(node).disk;
        let durable = disk.durable();
        let last = durable.entries.last().map_or(durable.record.index, |entry| entry.index);
        (!disk.is_rolled_back()).then_some(last)
    }

    /// A node's zone and its preferred leader zones, in runs with zones.
    pub(crate) fn placement(&self, node: NodeId) -> Option<Placement> {
        if !self.has(Feature::Zones) {
            return None;
        }
        let turned = self.hashed(ZONES);
        let leaders = if turned.is_multiple_of(2) { vec![zone(0)] } else { vec![zone(0), zone(1)] };
        Some(Placement { zone: Some(zone((node.0 + turned / 2) % (ZONES_KNOWN - 1))), leaders })
    }

    /// The node with the grant of the highest term. With a planted bug other nodes may keep older
    /// grants.
    pub(crate) fn serving(&self) -> Option<&Node> {
        let term = |node: &Node| node.published()?.grant.map(|grant| grant.term);
        self.nodes.iter().filter(|node| node.holds_grant()).max_by_key(|node| term(node))
    }

    /// Whether the leader is in the best zone that has voters. The zones come from the settings of
    /// the cluster or of the nodes. `None` if no preferred zone has a voter.
    pub(crate) fn is_well_placed(&self) -> Option<bool> {
        let told = self.placement(NodeId(1))?;
        let leader = self.serving()?;
        let settings = leader.running().replica().settings();
        let leaders = settings.map_or(told.leaders, |settings| settings.leader_zones.clone());
        let wanted = Placement { zone: None, leaders };
        let rank = |node: NodeId| {
            let placement = self.placement(node);
            wanted.rank(placement.and_then(|placement| placement.zone).as_ref())
        };
        let published = leader.running().shared.published();
        let best = published.voters.iter().map(|(node, _)| rank(node)).min()?;
        Some(rank(leader.id) == best)
    }

    /// Describes the first wrong zone in the leader's status, if any. The status must name the
    /// right zone of each member. All nodes must prefer the same zones. No voter may be in a zone
    /// that the status reports as empty.
    pub(crate) fn misplaced(&self) -> Option<String> {
        let leader = self.serving()?;
        let (id, running) = (leader.id, leader.running());
        let zone = |node: NodeId| self.placement(node).and_then(|placement| placement.zone);
        let is_wrong = |it: &Placed| !it.agrees || it.zone.is_some() && it.zone != zone(it.node);
        if let Some(placed) = running.replica().placed().into_iter().find(is_wrong) {
            return Some(format!("node {id} leads, and says {placed:?}"));
        }
        let published = running.shared.published();
        let is_voters = |empty: &Zone| {
            published.voters.iter().any(|(voter, _)| zone(voter).as_ref() == Some(empty))
        };
        let empty = running.replica().empty_zones().into_iter().find(is_voters)?;
        Some(format!("node {id} leads, and says that no voter is in {empty}"))
    }

    /// Prepares a partition for a change of members that is about to be proposed. On one side are
    /// the leader, all nodes that are not voters, and perhaps some voters. The other voters are cut
    /// off one after another: some before the change is sent, others while it is under way.
    fn divide_around(&mut self, leader: NodeId, published: &Published) {
        let lasts_ns = self.random.u64(20 * MS..=self.nemesis.lasts_ns);
        let planes: &[Plane] =
            if self.random.bool() { &[Plane::Raft, Plane::Workers] } else { &[Plane::Raft] };
        let is_clean = self.random.bool();
        let is_voter = |node: NodeId| published.voters.iter().any(|(voter, _)| voter == node);
        let (mut side, mut rest) = (0_u16, vec![]);
        for node in self.ids() {
            let stays = node == leader || !is_voter(node) || !is_clean && self.random.bool();
            if stays { side |= 1 << (node.0 - 1) } else { rest.push(node) }
        }
        self.count("divided in a change");
        for node in rest {
            if self.chance(300) {
                self.divide(node, side, planes);
            } else {
                let (_, delay_ns) = self.conditions.delay_ns;
                let after_ns = self.random.u64(0..=2 * delay_ns + 2 * MS);
                self.schedule_world(after_ns, Event::Divide { node, from: side, planes });
            }
        }
        self.schedule_world(lasts_ns, Event::End { end: End::Links });
    }

    pub(crate) fn divide(&mut self, node: NodeId, from: u16, planes: &[Plane]) {
        let others: Vec<NodeId> = self.ids().filter(|id| from >> (id.0 - 1) & 1 == 1).collect();
        if self.nemesis.pause_ns > 0 {
            self.record(|| format!("{node} is cut off from {others:?}, {planes:?}"));
            self.cut_all(&[node], &others, planes, true);
        }
    }
}

/// For a planted bug: makes the log's first entry from the current members instead of the first
/// members.
fn genesis_of_today(record: &Record) -> Record {
    let state = State::decode(&record.data).expect("a replica's own state");
    let members: Vec<Member> = state.members.values().cloned().collect();
    let voters = members.iter().map(|member| member.node).collect();
    let genesis = Genesis {
        cluster: state.cluster,
        history: state.history,
        members,
        floor: Epoch(0),
        removed: vec![],
    };
    Record {
        index: LogIndex(1),
        term: Term(1),
        configuration: Configuration { voters, ..Configuration::default() },
        data: State::new(&genesis).encode(),
    }
}

/// The features in which operators act.
const OPERATED: [Feature; 4] =
    [Feature::Restores, Feature::Settings, Feature::Versions, Feature::Advances];
/// How far operators allow the epoch to be ahead of the clock: ten minutes, which most runs never
/// reach.
const ALLOWED_NS: u64 = 600 * SECOND;
/// Of a thousand advances that are taken, operators hand leadership over right after this many.
const HANDED_OVER: u32 = 250;
/// The zone with this number. There are [`ZONES_KNOWN`] zones, and nodes are only in the first
/// three.
pub(crate) fn zone(number: u64) -> Zone {
    Zone::new(["a", "b", "c", "d"][(number % ZONES_KNOWN) as usize]).expect("a name")
}
/// Number of zones. No node is in the last one.
pub(crate) const ZONES_KNOWN: u64 = 4;
/// The id of a node that does not exist.
const STRANGER: u64 = 99;
