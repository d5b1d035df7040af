//! Values for the script of one node, drawn from its bytes: messages, entries, snapshots, states
//! and settings. They are near the state of the replica, so that many pass its checks.

use epicepoch_core::publication::EpochRange;
use epicepoch_core::replica::Replica;
use epicepoch_core::state::{Command, FORMATS, MembershipChange, MembershipStep, Owner, State};
use epicepoch_wire::bootstrap::{Genesis, Member};
use epicepoch_wire::raft_message::{
    Configuration, EntryKind, LogEntry, MessageKind, RaftMessage, Snapshot,
};
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::voter_status::Zone;
use epicepoch_wire::{
    BootId, ClusterId, Epoch, Guarantee, HistoryId, LogIndex, Mode, NodeId, StoreId, Term,
    TimestampFormat,
};

use crate::script::Script;

/// Unix time at which a script begins, in nanoseconds.
pub(super) const START_NS: u64 = 1_700_000_000_000_000_000;

/// Draws a message near the state of the replica.
pub(super) fn message(replica: &Replica, script: &mut Script<'_>) -> RaftMessage {
    let status = replica.status();
    let kind = MessageKind::ALL[script.below(MessageKind::ALL.len() as u64) as usize];
    let term = script.near(status.term.0);
    let at = if script.byte() & 1 == 0 { status.last } else { status.committed };
    let index = script.near(at.0);
    let log_term = script.near(term);
    let flags = script.byte();
    let count = if kind == MessageKind::Append { script.below(4) } else { 0 };
    let entries =
        (1..=count).map(|step| drawn_entry(replica, script, index.saturating_add(step), term));
    let entries = entries.collect();
    let snapshot = (kind == MessageKind::Snapshot).then(|| snapshot(replica, script, index, term));
    RaftMessage {
        to: if flags & 0xF0 == 0xF0 { NodeId(script.below(3)) } else { NodeId(1) },
        log_term: Term(log_term),
        index: LogIndex(index),
        commit: LogIndex(script.near(status.committed.0)),
        commit_term: Term(script.near(log_term)),
        reject: flags & 1 != 0,
        reject_hint: LogIndex(script.near(index)),
        request_snapshot: LogIndex(if flags & 0x0E == 0x0E { script.near(index) } else { 0 }),
        context: if flags & 0x30 == 0x30 { b"CampaignTransfer".to_vec() } else { vec![] },
        entries,
        snapshot,
        ..empty(kind, term)
    }
}

fn drawn_entry(replica: &Replica, script: &mut Script<'_>, index: u64, term: u64) -> LogEntry {
    let term = if script.byte() < 16 { script.near(term) } else { term };
    let node = NodeId(1 + script.below(6));
    let owner = Owner { term: Term(script.near(term)), node, boot: BootId(script.below(4)) };
    match script.below(8) {
        0 => entry(index, term, script.bytes(24)),
        1 => LogEntry { context: script.bytes(24), ..entry(index, term, vec![]) },
        2 => LogEntry {
            kind: EntryKind::Membership,
            context: script.bytes(24),
            ..entry(index, term, script.bytes(8))
        },
        3 => {
            let step = match script.below(3) {
                0 => MembershipStep::AddLearner(member(node)),
                1 => MembershipStep::Promote(node),
                _ => MembershipStep::Remove(node),
            };
            let change = MembershipChange { nonce: 1, steps: vec![step] };
            let context = change.encode();
            LogEntry { kind: EntryKind::Membership, context, ..entry(index, term, vec![]) }
        }
        4 => {
            let until = Epoch(script.near(START_NS));
            entry(index, term, Command::Reserve { owner, until, lease_ms: 0 }.encode())
        }
        5 => entry(index, term, Command::Readdress(member(node)).encode()),
        6 if script.byte() & 1 == 0 => {
            // The format may also be one that no node reads.
            let to = script.below(u64::from(FORMATS.newest) + 2) as u32;
            entry(index, term, Command::Raise(to).encode())
        }
        6 => {
            let settings = settings(script);
            let is_seed = script.byte() & 1 == 0;
            entry(index, term, Command::Settings { nonce: 1, is_seed, settings }.encode())
        }
        7 if script.below(4) == 0 => {
            // What the replica has, or near it.
            let (low, high) = replica
                .state()
                .owner
                .map_or((0, START_NS), |(_, range)| (range.low.0, range.high.0));
            let range = EpochRange { low: Epoch(script.near(low)), high: Epoch(script.near(high)) };
            entry(index, term, Command::GiveBack { owner, range }.encode())
        }
        _ => entry(index, term, vec![]),
    }
}

fn snapshot(replica: &Replica, script: &mut Script<'_>, index: u64, term: u64) -> Snapshot {
    let ids = |script: &mut Script<'_>| -> Vec<NodeId> {
        let bits = script.byte();
        (1..7).filter(|node| bits >> node & 1 == 1).map(NodeId).collect()
    };
    let is_plain = script.byte() & 1 == 0;
    let configuration = if is_plain {
        configuration(&genesis(&[1, 2, 3]))
    } else {
        Configuration {
            voters: ids(script),
            learners: ids(script),
            voters_outgoing: if script.byte() & 1 == 0 { vec![] } else { ids(script) },
            learners_next: if script.byte() & 7 != 0 { vec![] } else { ids(script) },
            auto_leave: script.below(8) == 0,
        }
    };
    let data = match script.below(4) {
        0 => script.bytes(64),
        1 => replica.state().encode(),
        2 => drawn_state(script, &[1, 2, 3]).encode(),
        _ => drawn_state(script, &[1, 2, 3, 4, 5, 6]).encode(),
    };
    let term = Term(script.near(term));
    Snapshot { index: LogIndex(index), term, configuration, data }
}

/// Draws a state of any format, with settings if the format has them.
fn drawn_state(script: &mut Script<'_>, voters: &[u64]) -> State {
    let format = FORMATS.oldest + script.below(u64::from(FORMATS.newest)) as u32;
    let mut state = State { format, ..State::new(&genesis(voters)) };
    state.ceiling = Epoch(script.near(0));
    let command = Command::Settings { nonce: 1, is_seed: true, settings: settings(script) };
    state.apply(Term(1), &command);
    if script.byte() == 255 {
        state.reservation_longest_ms = script.near(state.reservation_longest_ms);
    }
    state
}

/// Draws settings, mostly valid ones.
pub(super) fn settings(script: &mut Script<'_>) -> ClusterSettings {
    ClusterSettings {
        epoch_interval_ms: 1 + script.below(60_000),
        reservation_ms: 200 + script.below(60_000),
        clock_offset_max_ms: 1 + script.below(60_000),
        max_n: script.below(1 << 20),
        leader_zones: vec![],
        lease_ms: 0,
        guarantee_default: Guarantee::Quorum,
        timestamp_format: TimestampFormat::ALL[script.below(8) as usize / 7],
        mode: Mode::Quorum,
    }
}

pub(super) fn zone(script: &mut Script<'_>) -> Option<Zone> {
    Zone::new(["", "near", "far", "else"][script.below(4) as usize])
}

pub(super) fn member(node: NodeId) -> Member {
    let (raft_addr, client_addr) = (format!("n{node}:1"), format!("n{node}:2"));
    Member { node, store: StoreId(u128::from(node.0) + 100), raft_addr, client_addr }
}

pub(super) fn genesis(voters: &[u64]) -> Genesis {
    let members = voters.iter().map(|node| member(NodeId(*node))).collect();
    Genesis {
        cluster: ClusterId(9),
        history: HistoryId(1),
        members,
        floor: Epoch(0),
        removed: vec![],
    }
}

pub(super) fn configuration(genesis: &Genesis) -> Configuration {
    let voters = genesis.members.iter().map(|member| member.node).collect();
    Configuration { voters, ..Configuration::default() }
}

pub(super) fn entry(index: u64, term: u64, data: Vec<u8>) -> LogEntry {
    let (index, term) = (LogIndex(index), Term(term));
    LogEntry { kind: EntryKind::Normal, term, index, data, context: vec![] }
}

/// A message to node 1 with empty fields.
pub(super) fn empty(kind: MessageKind, term: u64) -> RaftMessage {
    RaftMessage {
        kind,
        to: NodeId(1),
        term: Term(term),
        log_term: Term(0),
        index: LogIndex(0),
        commit: LogIndex(0),
        commit_term: Term(0),
        reject: false,
        reject_hint: LogIndex(0),
        request_snapshot: LogIndex(0),
        context: vec![],
        entries: vec![],
        snapshot: None,
    }
}
