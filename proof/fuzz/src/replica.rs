//! Target of the consensus plane of one node. The bytes decide its events. The events are messages
//! of members and strangers, ticks, clocks, writes that become durable late, crashes, closed links,
//! refusals, membership changes, rounds and their answers, handshakes and store positions, formats,
//! zones, settings, and a moved epoch.
//!
//! The node must never panic. It may send only what it has promised and made durable (S4, S6). Its
//! timestamps must rise and lie in its grant (S1, S3). It must be able to start from its durable
//! state at any time.

mod drawn;

use std::collections::VecDeque;
use std::sync::Arc;

use epicepoch_core::allocator::{Allocator, Now};
use epicepoch_core::clock::{ClockReading, TrustedClock};
use epicepoch_core::confirm::Rounds;
use epicepoch_core::durable::{HardState, Record, Restored, Write};
use epicepoch_core::node::{Action, Health, Node};
use epicepoch_core::placement::Placement;
use epicepoch_core::positions::{Positions, RolledBack};
use epicepoch_core::publication::{Identity, Published, Role, Shared};
use epicepoch_core::replica::{Fatal, HandOver, Outgoing, ReplicaConfig, Report};
use epicepoch_core::state::{FORMATS, MembershipChange, MembershipStep, State};
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::confirm::ConfirmReply;
use epicepoch_wire::gossip::Pong;
use epicepoch_wire::peer_hello::{Formats, RefusalCode};
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::voter_status::VoterStatus;
use epicepoch_wire::{
    BootId, Epoch, LogIndex, NodeId, Round, StorePosition, Term, Timestamp, WorkerId,
};

use crate::script::Script;
use drawn::{START_NS, configuration, empty, entry, genesis, member, settings, zone};

/// Runs the bytes as a script.
pub(crate) fn replica(data: &[u8]) {
    let mut script = Script::new(data);
    let mut bench = Bench::drawn(&mut script);
    for _ in 0..EVENTS_MAX {
        if script.is_over() {
            break;
        }
        bench.happen(&mut script);
    }
    // The replica must be able to start from the durable state.
    bench.crash();
}

/// Node 1 and its surroundings.
struct Bench {
    node: Node,
    shared: Arc<Shared>,
    allocator: Allocator,
    rounds: Rounds<u64>,
    durable: Restored,
    pending: VecDeque<Write>,
    health: Health,
    /// How many nanoseconds this node's wall clock is ahead of true time.
    ahead_ns: u64,
    now_ns: u64,
    boots: u64,
    nonce: u64,
    stamped: Option<Timestamp>,
    /// The highest latest timestamp that was shown since the node started.
    shown: Option<Timestamp>,
    /// An operator has moved the epoch to this one, in this term. Answers of the term must be above
    /// it. Later terms are not checked, because in this target peers may lie about entries of a
    /// later term, and so about the ceiling.
    advanced: Option<(Term, Epoch)>,
}

impl Bench {
    fn drawn(script: &mut Script<'_>) -> Self {
        let voters: &[u64] = match script.below(5) {
            0 => &[1],
            1 => &[1, 2],
            2 => &[2, 3, 4],
            _ => &[1, 2, 3],
        };
        let how = script.byte();
        let genesis = genesis(if how & 1 == 0 { voters } else { &[] });
        let start = u64::from(how & 1 == 0);
        let mut durable = Restored {
            hard_state: HardState { term: Term(start), vote: NodeId(0), commit: LogIndex(start) },
            record: Record {
                index: LogIndex(start),
                term: Term(start),
                configuration: configuration(&genesis),
                data: State::new(&genesis).encode(),
            },
            entries: vec![],
            positions: Positions::default(),
        };
        if how & 6 == 6 && start == 1 {
            durable.entries = (2..=FILLED).map(|index| entry(index, 1, vec![])).collect();
            durable.hard_state.commit = LogIndex(FILLED);
        }
        let (node, shared, allocator, rounds) = boot(&durable, 1, 0);
        let pending = VecDeque::new();
        let mut bench = Self {
            node,
            shared,
            allocator,
            rounds,
            durable,
            pending,
            health: Health { round_completed_ns: 0, are_accepts_failing: false, lease_asked_ns: 0 },
            ahead_ns: 0,
            now_ns: 0,
            boots: 1,
            nonce: 0,
            stamped: None,
            shown: None,
            advanced: None,
        };
        bench.drain();
        bench
    }

    fn happen(&mut self, script: &mut Script<'_>) {
        let code = script.byte();
        if WIDER.contains(&code) {
            self.happen_wider(code, script);
            return self.drain();
        }
        match code % 20 {
            0 => self.tick(1),
            1 => self.tick(1 + script.below(32)),
            2 => self.persist(1),
            3 => self.persist(usize::MAX),
            4 => self.crash(),
            5 => self.campaign(script),
            6 => self.acknowledge(script),
            7 => {
                let peer = NodeId(1 + script.below(5));
                self.node.handle_closed(self.now_ns, peer);
            }
            8 => {
                let to = Some(NodeId(script.below(6))).filter(|node| *node != NodeId(0));
                self.node.replica_mut().hand_over(self.now_ns, to, HandOver::Asked);
            }
            9 => self.change(script),
            10 => {
                let node = NodeId(1 + script.below(6));
                let raft_addr = String::from_utf8_lossy(&script.bytes(12)).into_owned();
                let moved = Member { raft_addr, ..member(node) };
                self.node.handle_peer_addresses(moved);
            }
            11 => self.health.round_completed_ns = self.now_ns,
            12 | 13 => self.round(script),
            14 => {
                let bits = script.byte();
                self.ahead_ns = if bits & 1 == 0 { HOUR_NS } else { 0 };
                for peer in (2..5).filter(|node| bits >> node & 1 == 1) {
                    self.answer_ping(NodeId(peer));
                }
            }
            _ => {
                let message = drawn::message(self.node.replica(), script);
                self.receive(1 + script.below(6), &message);
            }
        }
        self.drain();
    }

    /// Handles the events whose codes are in [`WIDER`]. These codes once stood for messages, as
    /// many other codes still do.
    fn happen_wider(&mut self, code: u8, script: &mut Script<'_>) {
        // This node has the id 1, and no link to itself. So draw another id.
        let peer = NodeId(2 + script.below(5));
        let status = self.node.replica().status();
        match code {
            199 => {
                let refusal = REFUSALS[script.below(REFUSALS.len() as u64) as usize];
                let _ = self.node.handle_refused(self.now_ns, peer, refusal);
            }
            215 => {
                let (boot, began) = (BootId(script.below(4)), StorePosition(script.near(8)));
                let _ = self.node.handle_peer_hello(peer, boot, began, FORMATS);
            }
            216 => {
                let (boot, named) = (BootId(script.below(4)), StorePosition(script.near(8)));
                let since = StorePosition(script.near(named.0));
                let _ = self.pong(peer, boot, named, since);
            }
            217 => {
                let newest = script.below(u64::from(FORMATS.newest) + 2) as u32;
                let oldest = FORMATS.oldest.min(newest);
                let (boot, began) = (BootId(0), StorePosition(0));
                let formats = Formats { oldest, newest };
                let _ = self.node.handle_peer_hello(peer, boot, began, formats);
            }
            218 => {
                let (is_fit, preference) = (script.byte() & 1 == 0, u32::from(script.byte() & 3));
                let waits_for_leases = script.below(8) == 0;
                let slowest_write_ms =
                    (script.byte() & 1 == 0).then(|| u16::from(script.byte()) * 4);
                let said = VoterStatus {
                    is_fit,
                    preference,
                    zone: zone(script),
                    slowest_write_ms,
                    waits_for_leases,
                    closed: None,
                };
                let is_readable = script.byte() & 7 != 0;
                let context = if is_readable { said.encode() } else { script.bytes(24) };
                let empty = empty(MessageKind::HeartbeatResponse, script.near(status.term.0));
                self.receive(peer.0, &RaftMessage { context, ..empty });
            }
            219 => {
                let change = self.drawn_change(script);
                let _ = self.node.replica_mut().propose_prudent_change(self.now_ns, &change);
            }
            235 => {
                let leader_zones = zone(script).into_iter().collect();
                let settings = ClusterSettings { leader_zones, ..settings(script) };
                let replica = self.node.replica_mut();
                if script.below(4) == 0 {
                    return replica.seed_settings(settings);
                }
                self.nonce += 1;
                let _ = replica.judge_zones(&settings, script.byte() & 1 == 0);
                let _ = replica.change_settings(self.now_ns, self.nonce, &settings);
            }
            236 => {
                let at = START_NS + self.now_ns;
                // Move the epoch to a place within the owned range, or beyond it.
                let step_ns = script.below(8) * RESERVATION_NS / 4;
                let to = Epoch(script.near(at + step_ns));
                let allowed_ns = script.near(10 * RESERVATION_NS);
                let replica = self.node.replica_mut();
                let planned = replica.plan_advance(to, allowed_ns);
                let taken = replica.advance(self.now_ns, to, allowed_ns);
                assert_eq!(planned, taken, "it is taken as it was planned");
            }
            237 => {
                let own = zone(script);
                let leaders = zone(script).into_iter().collect();
                self.node.replica_mut().place(Placement { zone: own, leaders });
            }
            238 => {
                let bits = script.byte();
                for peer in (2..6).filter(|node| bits >> node & 1 == 1) {
                    self.answer_ping(NodeId(peer));
                }
                self.answer_ping(peer);
                self.health.are_accepts_failing = bits & 1 == 1;
            }
            _ => {
                let to = Some(NodeId(script.below(6))).filter(|node| *node != NodeId(0));
                if let Ok(to) = self.node.replica_mut().hand_over_asked(self.now_ns, to) {
                    assert_ne!(to, NodeId(1), "to somebody else");
                }
            }
        }
    }

    fn tick(&mut self, count: u64) {
        for _ in 0..count {
            self.now_ns += TICK_NS;
            let ticked = self.node.handle_tick(self.reading(), self.health);
            self.drain();
            if matches!(ticked, Err(Fatal::Removed { .. })) {
                self.crash();
            }
            // The node may ask to stop for another reason. This target lets it run on, and then it
            // must do no harm.
        }
    }

    fn reading(&self) -> ClockReading {
        reading(self.now_ns, self.ahead_ns)
    }

    /// Lets a peer with a right clock answer a ping.
    fn answer_ping(&mut self, from: NodeId) {
        let known = self.shared.positions();
        let boot = known.peers.get(&from).map_or(BootId(1), |heard| heard.boot);
        let named = known.of(from);
        let _ = self.pong(from, boot, named, named);
    }

    fn pong(
        &mut self,
        from: NodeId,
        boot: BootId,
        position: StorePosition,
        since: StorePosition,
    ) -> Result<(), RolledBack> {
        let now_ns = self.now_ns;
        let pong = Pong { sent_ns: now_ns, wall_ns: START_NS + now_ns, position, interval: None };
        self.node.handle_pong(now_ns, from, boot, since, &pong, now_ns)
    }

    fn persist(&mut self, count: usize) {
        for _ in 0..count.min(self.pending.len()) {
            let Some(write) = self.pending.pop_front() else { break };
            self.durable.apply(&write);
            self.node.handle_persisted(self.now_ns, write.number);
            self.drain();
        }
    }

    fn crash(&mut self) {
        self.pending.clear();
        self.boots += 1;
        // This target does not check that timestamps of a later boot are above those of this boot.
        // That holds only if no peer lies about committed entries, and in this target peers lie.
        // The simulator checks it.
        (self.stamped, self.shown, self.advanced) = (None, None, None);
        let parts = boot(&self.durable, self.boots, self.now_ns);
        (self.node, self.shared, self.allocator, self.rounds) = parts;
        self.drain();
    }

    /// Carries out the node's actions, and checks its messages.
    fn drain(&mut self) {
        while let Some(action) = self.node.poll_action() {
            match action {
                Action::StopAllocator => {
                    let last = self.allocator.stop();
                    assert!(last.is_some(), "S18: it has a grant, or is in use");
                    self.node.handle_allocator_stopped(self.now_ns, last);
                }
                Action::Write(write) => self.pending.push_back(write),
                Action::Send(out) => self.check(&out),
                Action::Report(Report::Advanced { to }) => {
                    let term = self.node.replica().status().term;
                    self.advanced = self.advanced.max(Some((term, to)));
                }
                Action::Published(_) | Action::Report(_) => {}
            }
        }
        let published = self.shared.published();
        if let Some(grant) = published.grant {
            assert_eq!(published.role, Role::Leader, "S3: only a leader holds a grant");
            assert_eq!(grant.term, published.term, "S3: of its own term");
            assert_eq!(grant.boot, BootId(self.boots), "S3: of its own run");
        }
    }

    fn check(&self, out: &Outgoing) {
        let RaftMessage { kind, term, reject, index, .. } = out.message;
        if matches!(kind, MessageKind::RequestPreVote | MessageKind::RequestPreVoteResponse) {
            return;
        }
        assert!(self.shared.promise.load() >= term, "S4: {out:?}");
        let Restored { hard_state, record, entries, .. } = &self.durable;
        let last = entries.last().map_or(record.index, |entry| entry.index);
        assert!(hard_state.term >= term, "S6: {out:?} at {hard_state:?}");
        let is_later = hard_state.term > term;
        let is_durable = match kind {
            MessageKind::RequestVote => is_later || hard_state.vote == NodeId(1),
            MessageKind::RequestVoteResponse => reject || is_later || hard_state.vote == out.to,
            MessageKind::AppendResponse => reject || is_later || last >= index,
            _ => true,
        };
        assert!(is_durable, "S6: {out:?} at {hard_state:?} and {last}");
        let mut bytes = Vec::new();
        out.message.encode(&mut bytes);
        assert_eq!(RaftMessage::decode(&bytes).as_ref(), Ok(&out.message), "it has an encoding");
    }

    fn receive(&mut self, from: u64, message: &RaftMessage) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        // Deliver only messages that the codec accepts.
        if RaftMessage::decode(&bytes).is_ok() {
            let (from, store) = (NodeId(from), member(NodeId(from)).store);
            let _ = self.node.handle_message(self.now_ns, from, store, message);
            self.node.follow_offer(self.now_ns);
            self.drain();
        }
    }

    /// Ticks until the replica campaigns, then grants it every pre-vote and vote.
    fn campaign(&mut self, script: &mut Script<'_>) {
        for kind in [MessageKind::RequestPreVoteResponse, MessageKind::RequestVoteResponse] {
            let before = self.node.replica().status();
            let mut left = 3 * ELECTION_TICKS;
            while self.node.replica().status().role == Role::Follower && left > 0 {
                self.tick(1);
                left -= 1;
            }
            self.persist(usize::MAX);
            let term = self.node.replica().status().term.0;
            let term = if kind == MessageKind::RequestPreVoteResponse { term + 1 } else { term };
            let reject = script.byte() == 255;
            for from in 2..=4 {
                self.receive(from, &RaftMessage { reject, ..empty(kind, term) });
            }
            if before.role == Role::Leader {
                return;
            }
        }
        self.persist(usize::MAX);
    }

    fn acknowledge(&mut self, script: &mut Script<'_>) {
        if script.byte() & 1 == 0 {
            self.persist(usize::MAX);
        }
        let status = self.node.replica().status();
        let index = LogIndex(status.last.0.saturating_sub(script.below(3)));
        let kind = MessageKind::AppendResponse;
        self.receive(2 + script.below(3), &RaftMessage { index, ..empty(kind, status.term.0) });
    }

    fn change(&mut self, script: &mut Script<'_>) {
        let change = self.drawn_change(script);
        let _ = self.node.replica_mut().propose_change(self.now_ns, &change);
    }

    fn drawn_change(&mut self, script: &mut Script<'_>) -> MembershipChange {
        let steps = (0..=script.below(3)).map(|_| {
            let node = NodeId(1 + script.below(7));
            match script.below(3) {
                0 => MembershipStep::AddLearner(member(node)),
                1 => MembershipStep::Promote(node),
                _ => MembershipStep::Remove(node),
            }
        });
        self.nonce += 1;
        MembershipChange { nonce: self.nonce, steps: steps.collect() }
    }

    /// Begins a round, answers yes or no for some voters, and allocates if the round is confirmed.
    fn round(&mut self, script: &mut Script<'_>) {
        let count = script.near(1);
        let close = || (count, count);
        let Ok(begun) = self.rounds.begin(close, &self.shared, self.now_ns + 1) else { return };
        for _ in 0..script.below(4) {
            let from = NodeId(1 + script.below(6));
            let promise = Term(script.near(begun.confirm.term.0));
            let reply = ConfirmReply {
                leader: NodeId(1),
                store: member(from).store,
                boot: BootId(self.boots),
                worker: WorkerId(0),
                term: begun.confirm.term,
                round: Round(script.near(begun.confirm.round.0)),
                promise,
            };
            self.rounds.handle_reply(from, &reply);
        }
        while let Some((count, confirmed)) = self.rounds.poll_confirmed() {
            let now =
                Now { monotonic_ns: self.now_ns, trusted_ns: script.near(START_NS + self.now_ns) };
            assert_eq!(confirmed.count(), count, "a key is for what its batch asks for");
            if count == 0 {
                // S19: the latest timestamp is not below the last one.
                if let Ok(latest) = self.allocator.latest(confirmed) {
                    assert!(Some(latest) >= self.stamped, "S19: {latest} below {:?}", self.stamped);
                    self.shown = self.shown.max(Some(latest));
                }
                continue;
            }
            let Ok(range) = self.allocator.allocate(confirmed, now) else { continue };
            assert_eq!(range.count(), count);
            assert!(self.stamped < Some(range.first()), "S1: {range:?} after {:?}", self.stamped);
            assert!(self.shown < Some(range.first()), "S19: {range:?} after {:?}", self.shown);
            self.stamped = Some(range.last());
            let grant = self.shared.published().grant;
            if let Some((term, to)) = self.advanced
                && grant.is_some_and(|grant| grant.term == term)
            {
                assert!(to < range.first().epoch, "{range:?} is not above {to:?}");
            }
            let is_inside = grant.is_some_and(|grant| grant.range.contains(range.first().epoch));
            assert!(is_inside, "S3: {range:?} is not in {grant:?}");
        }
        while self.rounds.poll_failed(self.now_ns + 1, &self.shared).is_some() {}
    }
}

/// Returns a clock reading whose wall time is `ahead_ns` ahead of true time.
const fn reading(monotonic_ns: u64, ahead_ns: u64) -> ClockReading {
    ClockReading { monotonic_ns, wall_ns: START_NS + monotonic_ns + ahead_ns }
}

fn boot(
    durable: &Restored,
    boots: u64,
    now_ns: u64,
) -> (Node, Arc<Shared>, Allocator, Rounds<u64>) {
    let identity =
        Identity { node: NodeId(1), store: member(NodeId(1)).store, boot: BootId(boots) };
    let nothing = Published::nothing(identity);
    let shared = Arc::new(Shared::new(durable.hard_state.term, nothing));
    let config = ReplicaConfig {
        identity,
        seed: boots,
        election_ticks: ELECTION_TICKS as usize,
        heartbeat_ticks: 2,
        tick_ns: TICK_NS,
        reservation_ns: RESERVATION_NS,
        deadline_limit: 100,
        format_max: FORMATS.newest,
    };
    let mut clock = TrustedClock::new(BOUND_NS, reading(now_ns, 0));
    // Give the node readings of other clocks, so that it need not wait for them when it leads.
    for peer in 2..=4 {
        clock.handle_sample(NodeId(peer), START_NS + now_ns, now_ns, now_ns);
    }
    let node = Node::new(config, durable, shared.clone(), clock).expect("a sound disk");
    let allocator = Allocator::new(shared.clone(), EPOCH_INTERVAL_NS);
    (node, shared, allocator, Rounds::new(identity, WorkerId(0)))
}

/// At most this many events of one script.
const EVENTS_MAX: usize = 128;
/// Codes of the events that [`Bench::happen_wider`] handles.
const WIDER: [u8; 11] = [199, 215, 216, 217, 218, 219, 235, 236, 237, 238, 239];
/// Refusals with different effects on the refused node, one for each effect.
const REFUSALS: [RefusalCode; 4] = [
    RefusalCode::Removed,
    RefusalCode::DuplicateNode,
    RefusalCode::WrongStore,
    RefusalCode::NotBootstrapped,
];
const ELECTION_TICKS: u64 = 5;
const TICK_NS: u64 = 10_000_000;
const RESERVATION_NS: u64 = 1_000_000_000;
const EPOCH_INTERVAL_NS: u64 = 100_000_000;
const BOUND_NS: u64 = 500_000_000;
const HOUR_NS: u64 = 3_600_000_000_000;
/// Last log index of a node that begins with a long log.
const FILLED: u64 = 1_022;
