//! Tests of the consensus plane without its IO.

use epicepoch_wire::bootstrap::Genesis;
use epicepoch_wire::raft_message::Configuration;
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::{
    ClusterId, Epoch, Guarantee, HistoryId, LogIndex, Mode, Term, TimestampFormat,
};

use super::*;
use crate::durable::{HardState, Record};
use crate::positions::Positions;
use crate::publication::{Identity, Role};
use crate::state::{Command, FORMATS, State};

const MS: u64 = 1_000_000;
const TICK_NS: u64 = 10 * MS;
/// Wall time at monotonic time 0.
const START_NS: u64 = 1_700_000_000_000 * MS;
const HOUR_NS: u64 = 3_600_000 * MS;
const PEER: NodeId = NodeId(2);
const OTHER: NodeId = NodeId(3);
const BOOT: BootId = BootId(1);
const FINE: Health =
    Health { round_completed_ns: 0, are_accepts_failing: false, lease_asked_ns: 0 };

/// Node 1 of three voters, and what it shares with its workers.
fn node() -> (Node, Arc<Shared>) {
    node_of(|_| ())
}

fn node_of(differ: impl FnOnce(&mut State)) -> (Node, Arc<Shared>) {
    let member = |id: u64| {
        let (raft_addr, client_addr) = (format!("n{id}:1"), format!("n{id}:2"));
        Member { node: NodeId(id), store: StoreId(id.into()), raft_addr, client_addr }
    };
    let members: Vec<_> = (1..=3).map(member).collect();
    let voters = members.iter().map(|member| member.node).collect();
    let (cluster, history) = (ClusterId(9), HistoryId(1));
    let genesis = Genesis { cluster, history, members, floor: Epoch(0), removed: vec![] };
    let mut state = State::new(&genesis);
    differ(&mut state);
    let restored = Restored {
        hard_state: HardState { term: Term(1), vote: NodeId(0), commit: LogIndex(1) },
        record: Record {
            index: LogIndex(1),
            term: Term(1),
            configuration: Configuration { voters, ..Configuration::default() },
            data: state.encode(),
        },
        entries: vec![],
        positions: Positions::default(),
    };
    let identity = Identity { node: NodeId(1), store: StoreId(1), boot: BootId(7) };
    let config = ReplicaConfig {
        identity,
        seed: 5,
        election_ticks: 5,
        heartbeat_ticks: 1,
        tick_ns: TICK_NS,
        reservation_ns: 1_000 * MS,
        deadline_limit: 100,
        format_max: FORMATS.newest,
    };
    let shared = Arc::new(Shared::new(Term(1), Published::nothing(identity)));
    let clock = TrustedClock::new(500 * MS, at(0, 0));
    let node = Node::new(config, &restored, shared.clone(), clock).expect("a sound disk");
    (node, shared)
}

/// A reading whose wall clock is ahead of true time.
fn at(monotonic_ns: u64, ahead_ns: u64) -> ClockReading {
    ClockReading { monotonic_ns, wall_ns: START_NS + monotonic_ns + ahead_ns }
}

/// A peer whose clock is right answers a ping, which took `took_ns`.
fn answer(node: &mut Node, from: NodeId, now_ns: u64, took_ns: u64) {
    let wall_ns = START_NS + now_ns - took_ns / 2;
    let pong =
        Pong { sent_ns: now_ns - took_ns, wall_ns, position: StorePosition(0), interval: None };
    let heard = node.handle_pong(now_ns, from, BOOT, StorePosition(0), &pong, now_ns);
    assert_eq!(heard, Ok(()));
}

fn drained(node: &mut Node) -> Vec<Action> {
    std::iter::from_fn(|| node.poll_action()).collect()
}

#[test]
fn a_tick_outvotes_a_wrong_clock_and_says_so_once() {
    let (mut node, _shared) = node();
    answer(&mut node, PEER, TICK_NS, MS);
    answer(&mut node, OTHER, TICK_NS, MS);
    let seen = node.handle_tick(at(TICK_NS, HOUR_NS), FINE).expect("no reason to stop");
    assert_eq!(seen.clock_changed, Some(ClockStatus::Outvoted));
    assert_eq!(seen.trusted_offset_ns, START_NS as i64, "that of the other two");
    let seen = node.handle_tick(at(2 * TICK_NS, HOUR_NS), FINE).expect("no reason to stop");
    assert_eq!(seen.clock_changed, None);
    let seen = node.handle_tick(at(3 * TICK_NS, 0), FINE).expect("no reason to stop");
    assert_eq!(seen.clock_changed, Some(ClockStatus::Followed));
}

const fn rank(action: &Action) -> usize {
    match action {
        Action::Published(_) => 0,
        Action::StopAllocator => 1,
        Action::Write(_) => 2,
        Action::Send(_) => 3,
        Action::Report(_) => 4,
    }
}

/// Runs an election, until the leader has sent its first entries. The leader sends these entries
/// before its own disk has written them.
#[test]
fn actions_come_in_one_order_after_the_promise_and_after_the_term_is_durable() {
    let (mut node, shared) = node();
    let (mut durable, mut is_sent_with_write) = (Term(1), false);
    for now_ns in (1..=20).map(|tick| tick * TICK_NS) {
        node.handle_tick(at(now_ns, 0), FINE).expect("no reason to stop");
        loop {
            let (actions, durable_before) = (drained(&mut node), durable);
            let ranks: Vec<_> = actions.iter().map(rank).collect();
            assert!(ranks.is_sorted(), "{actions:?}");
            let leads = node.replica().status().role == Role::Leader;
            is_sent_with_write |= leads && ranks.contains(&2) && ranks.contains(&3);
            if actions.is_empty() {
                break;
            }
            for action in actions {
                match action {
                    Action::Published(published) => {
                        assert!(shared.promise.load() >= published.term, "S4");
                        assert!(shared.published().term >= published.term, "S7");
                    }
                    Action::StopAllocator => panic!("nothing is handed over"),
                    Action::Write(write) => {
                        durable = write.hard_state.map_or(durable, |state| state.term);
                        node.handle_persisted(now_ns, write.number);
                    }
                    Action::Send(Outgoing { message, .. }) => {
                        let yes = match message.kind {
                            MessageKind::RequestPreVote => MessageKind::RequestPreVoteResponse,
                            _ => MessageKind::RequestVoteResponse,
                        };
                        let is_vote = message.kind == MessageKind::RequestVote;
                        let is_pre_vote = message.kind == MessageKind::RequestPreVote;
                        assert!(is_pre_vote || message.term <= durable_before, "S6: {message:?}");
                        if is_vote || is_pre_vote {
                            let yes = RaftMessage::plain(yes, NodeId(1), message.term);
                            node.handle_message(now_ns, PEER, StoreId(2), &yes).expect("a vote");
                        }
                    }
                    Action::Report(_) => {}
                }
            }
        }
    }
    assert!(is_sent_with_write, "it has led");
}

/// Ticks, and does all actions. Both peers say yes to everything. Returns the entries that were
/// written, as commands, and whether the allocator was to be stopped.
fn run(node: &mut Node, ticks: std::ops::Range<u64>) -> (Vec<Command>, bool) {
    let (mut written, mut stops) = (vec![], false);
    for now_ns in ticks.map(|tick| tick * TICK_NS) {
        node.handle_tick(at(now_ns, 0), FINE).expect("no reason to stop");
        while let Some(action) = node.poll_action() {
            match action {
                Action::Published(_) | Action::Report(_) => {}
                Action::StopAllocator => stops = true,
                Action::Write(write) => {
                    let data = write.entries.iter().map(|entry| Command::decode(&entry.data));
                    written.extend(data.flatten());
                    node.handle_persisted(now_ns, write.number);
                }
                Action::Send(Outgoing { to, message }) => {
                    let kind = match message.kind {
                        MessageKind::RequestPreVote => MessageKind::RequestPreVoteResponse,
                        MessageKind::RequestVote => MessageKind::RequestVoteResponse,
                        MessageKind::Append => MessageKind::AppendResponse,
                        MessageKind::Heartbeat => MessageKind::HeartbeatResponse,
                        _ => continue,
                    };
                    let index = LogIndex(message.index.0 + message.entries.len() as u64);
                    let yes = RaftMessage::plain(kind, NodeId(1), message.term);
                    let yes = RaftMessage { index, ..yes };
                    node.handle_message(now_ns, to, StoreId(to.0.into()), &yes).expect("taken");
                }
            }
        }
    }
    (written, stops)
}

#[test]
fn a_leader_that_stops_gives_back_what_its_stopped_allocator_has_not_used() {
    let (mut node, shared) = node_of(|state| state.format = FORMATS.newest);
    for peer in [PEER, OTHER] {
        answer(&mut node, peer, TICK_NS, MS);
        let heard = node.handle_peer_hello(peer, BOOT, StorePosition(0), FORMATS);
        assert_eq!(heard, Ok(()));
    }
    run(&mut node, 1..40);
    let range = shared.published().grant.expect("it leads").range;
    node.handle_shutdown_request(40 * TICK_NS);
    assert_eq!(run(&mut node, 40..41), (vec![], true), "it waits for the allocator");
    let last = Epoch(range.low.0 + 7);
    node.handle_allocator_stopped(41 * TICK_NS, Some(last));
    let (written, _) = run(&mut node, 41..42);
    let is_given_back = |command: &Command| match command {
        Command::GiveBack { range: back, .. } => back.low == last,
        _ => false,
    };
    assert!(written.iter().any(is_given_back), "{written:?}");
}

#[test]
fn what_a_peer_says_in_its_hello_is_followed() {
    let (mut node, _shared) = node();
    let hello = |node: &mut Node, boot, began| {
        node.handle_peer_hello(PEER, BootId(boot), StorePosition(began), FORMATS)
    };
    assert_eq!(hello(&mut node, 1, 5), Ok(()));
    assert!(hello(&mut node, 2, 4).is_err(), "its directory was rolled back");
    drained(&mut node);
    let moved = Member {
        node: PEER,
        store: StoreId(2),
        raft_addr: "elsewhere:1".to_owned(),
        client_addr: "elsewhere:2".to_owned(),
    };
    node.handle_peer_addresses(moved.clone());
    let published = drained(&mut node).into_iter().find_map(|action| match action {
        Action::Published(published) => Some(published),
        _ => None,
    });
    let published = published.expect("the new addresses are for all workers");
    assert_eq!(published.members.get(&PEER), Some(&moved));
}

#[test]
fn the_clock_of_a_node_that_is_no_voter_does_not_count() {
    let (mut node, _shared) = node();
    answer(&mut node, NodeId(9), TICK_NS, MS);
    let seen = node.handle_tick(at(TICK_NS, HOUR_NS), FINE).expect("no reason to stop");
    assert_eq!(seen.trusted_offset_ns, (START_NS + HOUR_NS) as i64, "its own is the only one");
}

#[test]
fn the_settings_of_the_cluster_bound_the_clocks_when_they_are_published() {
    let settings = ClusterSettings {
        epoch_interval_ms: 100,
        reservation_ms: 1_000,
        clock_offset_max_ms: 100,
        max_n: 1_000,
        leader_zones: vec![],
        lease_ms: 0,
        guarantee_default: Guarantee::Quorum,
        timestamp_format: TimestampFormat::Wide,
        mode: Mode::Quorum,
    };
    let (mut node, _shared) = node_of(|state| {
        state.format = FORMATS.newest;
        let command = Command::Settings { nonce: 1, is_seed: true, settings };
        state.apply(Term(1), &command);
    });
    answer(&mut node, PEER, 1_000 * MS, 101 * MS);
    assert_eq!(node.clock().peer_offsets().len(), 1);
    assert!(matches!(node.poll_action(), Some(Action::Published(_))));
    assert_eq!(node.clock().peer_offsets(), [], "the answer took too long");
    answer(&mut node, PEER, 1_000 * MS, 101 * MS);
    assert_eq!(node.clock().peer_offsets(), []);
    answer(&mut node, PEER, 1_000 * MS, 99 * MS);
    assert_eq!(node.clock().peer_offsets().len(), 1);
}

#[test]
fn a_removed_node_ends_at_the_tick_after_a_majority_of_the_others_has_confirmed_it() {
    let (mut node, _shared) = node();
    let confirm = |node: &mut Node, by| node.handle_refused(MS, by, RefusalCode::Removed);
    assert_eq!(confirm(&mut node, PEER), Refused::Removed { is_first: true });
    assert_eq!(confirm(&mut node, PEER), Refused::Removed { is_first: false });
    node.handle_tick(at(TICK_NS, 0), FINE).expect("the other one may need its vote");
    assert_eq!(confirm(&mut node, OTHER), Refused::Removed { is_first: false });
    let ended = node.handle_tick(at(2 * TICK_NS, 0), FINE);
    assert_eq!(ended, Err(Fatal::Removed { node: NodeId(1) }));
}

#[test]
fn a_duplicate_ends_when_one_peer_has_refused_it_often_without_an_answer_in_between() {
    let (mut node, _shared) = node();
    let refusals = |node: &mut Node, by, count| {
        (0..count)
            .map(|_| node.handle_refused(MS, by, RefusalCode::DuplicateNode))
            .max_by_key(|refused| *refused == Refused::ForGood)
    };
    let most = DUPLICATE_REFUSALS_MAX - 1;
    assert_eq!(refusals(&mut node, PEER, most), Some(Refused::ForNow));
    assert_eq!(refusals(&mut node, OTHER, most), Some(Refused::ForNow), "another peer");
    answer(&mut node, PEER, MS, 0);
    assert_eq!(refusals(&mut node, PEER, most), Some(Refused::ForNow), "it was admitted since");
    assert_eq!(
        node.handle_refused(MS, PEER, RefusalCode::NotBootstrapped),
        Refused::ForNow,
        "refused for another reason"
    );
    assert_eq!(refusals(&mut node, PEER, most), Some(Refused::ForNow));
    assert_eq!(refusals(&mut node, PEER, 1), Some(Refused::ForGood));
}

#[test]
fn a_node_with_a_wrong_directory_ends_at_the_first_refusal() {
    let (mut node, _shared) = node();
    for code in [RefusalCode::WrongStore, RefusalCode::RolledBack, RefusalCode::EndedHistory] {
        assert_eq!(node.handle_refused(MS, PEER, code), Refused::ForGood, "{code:?}");
    }
    assert_eq!(node.unreachable_at_ns.get(&PEER), None, "this node ends");
    let mut now_ns = MS;
    for code in [RefusalCode::NotBootstrapped, RefusalCode::WrongNode, RefusalCode::Format] {
        now_ns += UNREACHABLE_INTERVAL_NS;
        assert_eq!(node.handle_refused(now_ns, PEER, code), Refused::ForNow, "{code:?}");
        assert_eq!(node.unreachable_at_ns.get(&PEER), Some(&now_ns), "{code:?}");
    }
}

#[test]
fn an_unreachable_peer_is_reported_now_and_then_and_a_lost_snapshot_at_once() {
    let (mut node, _shared) = node();
    let mut now_ns = UNREACHABLE_INTERVAL_NS;
    let mut at = |node: &mut Node, after_ns, how: fn(&mut Node, u64)| {
        now_ns += after_ns;
        how(node, now_ns);
        node.unreachable_at_ns.get(&PEER) == Some(&now_ns)
    };
    let down = |node: &mut Node, now_ns: u64| node.handle_unreachable(now_ns, PEER);
    assert!(at(&mut node, 0, down));
    assert!(!at(&mut node, UNREACHABLE_INTERVAL_NS - 1, down));
    assert!(!at(&mut node, 0, |node, now_ns| node.handle_unsent(
        now_ns,
        PEER,
        MessageKind::Append
    )));
    assert!(at(&mut node, 0, |node, now_ns| {
        node.handle_unsent(now_ns, PEER, MessageKind::Snapshot);
    }));
    assert!(at(&mut node, 1, |node, now_ns| node.handle_closed(now_ns, PEER)));
    assert!(!at(&mut node, 1, down));
    assert!(at(&mut node, UNREACHABLE_INTERVAL_NS - 1, down));
}
