//! A single replica. The test writes every message to it, and decides when a write becomes durable.

use std::sync::Arc;

use epicepoch_core::durable::Restored;
use epicepoch_core::publication::{Identity, Published, Role, Shared};
use epicepoch_core::replica::{MessageError, Outgoing, Replica, ReplicaConfig, Report, Status};
use epicepoch_core::state::FORMATS;
use epicepoch_wire::bootstrap::{Genesis, Member};
use epicepoch_wire::peer_hello::Formats;
use epicepoch_wire::raft_message::{EntryKind, LogEntry, MessageKind, RaftMessage};
use epicepoch_wire::{BootId, ClusterId, Epoch, HistoryId, LogIndex, NodeId, StoreId, Term};

use super::disk::Disk;

/// A millisecond in nanoseconds.
pub(crate) const MS: u64 = 1_000_000;
/// Unix time when a test begins, nanoseconds.
pub(crate) const START_NS: u64 = 1_700_000_000_000 * MS;
/// Length of a tick, nanoseconds.
pub(crate) const TICK_NS: u64 = 10 * MS;
/// Shortest election timeout, ticks.
pub(crate) const ELECTION_TICKS: usize = 5;
/// How far ahead of trusted time leaders reserve, nanoseconds.
pub(crate) const RESERVATION_NS: u64 = 1_000 * MS;
/// How often the epoch advances, nanoseconds.
pub(crate) const EPOCH_INTERVAL_NS: u64 = 100 * MS;

/// A replica of node 1.
pub(crate) struct Bench {
    pub(crate) replica: Replica,
    pub(crate) shared: Arc<Shared>,
    pub(crate) disk: Disk,
    pub(crate) now_ns: u64,
    sent: Vec<Outgoing>,
    pub(crate) reports: Vec<Report>,
}

/// The store of a node on the bench.
pub(crate) fn store(node: u64) -> StoreId {
    StoreId(u128::from(node) + 100)
}

/// A member whose addresses follow from its id.
pub(crate) fn member(node: NodeId, store: StoreId) -> Member {
    let (raft_addr, client_addr) = (format!("n{node}:1"), format!("n{node}:2"));
    Member { node, store, raft_addr, client_addr }
}

/// The genesis of a cluster with these voters.
pub(crate) fn genesis(voters: &[u64]) -> Genesis {
    let members = voters.iter().map(|node| member(NodeId(*node), store(*node))).collect();
    Genesis {
        cluster: ClusterId(9),
        history: HistoryId(1),
        members,
        floor: Epoch(0),
        removed: vec![],
    }
}

/// A message to node 1 with empty fields.
pub(crate) fn message(kind: MessageKind, term: u64) -> RaftMessage {
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

/// An append message with `count` empty entries of the message's own term. They follow the entry
/// `(index, log_term)`.
pub(crate) fn append(
    term: u64,
    (index, log_term): (u64, u64),
    count: u64,
    commit: u64,
) -> RaftMessage {
    let entry = |index| LogEntry {
        kind: EntryKind::Normal,
        term: Term(term),
        index: LogIndex(index),
        data: vec![],
        context: vec![],
    };
    RaftMessage {
        index: LogIndex(index),
        log_term: Term(log_term),
        commit: LogIndex(commit),
        entries: (index + 1..=index + count).map(entry).collect(),
        ..message(MessageKind::Append, term)
    }
}

impl Bench {
    /// Node 1 as a first member of a cluster with these voters.
    pub(crate) fn new(voters: &[u64]) -> Self {
        Self::of(Disk::genesis(&genesis(voters)))
    }

    /// Node 1 as the leader of these voters. All entries are durable and acknowledged.
    pub(crate) fn led(voters: &[u64]) -> Self {
        let mut bench = Self::new(voters);
        let others: Vec<u64> = voters.iter().copied().filter(|id| *id != 1).collect();
        bench.elect(&others);
        bench.persist();
        for other in others {
            bench.ack_all(other);
        }
        bench
    }

    /// A replica that starts from a disk.
    pub(crate) fn of(disk: Disk) -> Self {
        Self::drawing(disk, 5)
    }

    /// A replica that starts from a disk. `seed` decides its random draws.
    pub(crate) fn drawing(disk: Disk, seed: u64) -> Self {
        Self::beating(disk, seed, 1)
    }

    /// Like [`Bench::drawing`], with this many ticks between two heartbeats.
    pub(crate) fn beating(disk: Disk, seed: u64, heartbeat_ticks: usize) -> Self {
        Self::made(disk, |config| (config.seed, config.heartbeat_ticks) = (seed, heartbeat_ticks))
    }

    /// A replica of node `node`. Messages to it must name that node.
    pub(crate) fn being(node: u64, disk: Disk, seed: u64) -> Self {
        Self::made(disk, |config| {
            config.seed = seed;
            (config.identity.node, config.identity.store) = (NodeId(node), store(node));
        })
    }

    /// A replica that reads formats up to `format_max`. The other nodes read only the oldest.
    pub(crate) fn reading(disk: Disk, format_max: u32) -> Self {
        Self::made(disk, |config| config.format_max = format_max)
    }

    /// A replica of node 1 with the usual configuration, which `differ` may change.
    pub(crate) fn made(disk: Disk, differ: impl FnOnce(&mut ReplicaConfig)) -> Self {
        let mut config = ReplicaConfig {
            identity: Identity { node: NodeId(1), store: store(1), boot: BootId(7) },
            seed: 5,
            election_ticks: ELECTION_TICKS,
            heartbeat_ticks: 1,
            tick_ns: TICK_NS,
            reservation_ns: RESERVATION_NS,
            deadline_limit: 100,
            format_max: FORMATS.oldest,
        };
        differ(&mut config);
        let shared = Arc::new(Shared::new(Term(0), Published::nothing(config.identity)));
        let mut replica =
            Replica::new(config, disk.durable(), shared.clone()).expect("a sound disk");
        replica.handle_compared(true);
        Self { replica, shared, disk, now_ns: 0, sent: vec![], reports: vec![] }
    }

    /// Restarts the replica from its disk.
    pub(crate) fn restarted(mut self) -> Self {
        self.disk.crash();
        Self::of(self.disk)
    }

    pub(crate) fn durable(&self) -> &Restored {
        self.disk.durable()
    }

    pub(crate) fn drain(&mut self) {
        while let Some(write) = self.replica.poll_write() {
            self.disk.submit(write);
        }
        while let Some(out) = self.replica.poll_message() {
            self.sent.push(out);
        }
        while let Some(report) = self.replica.poll_report() {
            self.reports.push(report);
        }
    }

    pub(crate) fn tick(&mut self) {
        self.now_ns += TICK_NS;
        self.replica.handle_rounds(self.now_ns);
        self.replica.handle_tick(self.now_ns, START_NS + self.now_ns).expect("no reason to stop");
        self.drain();
    }

    pub(crate) fn ticks(&mut self, count: usize) {
        for _ in 0..count {
            self.tick();
        }
    }

    /// Ticks as a leader. `others` hear it and answer heartbeats, but acknowledge no entry.
    pub(crate) fn beats(&mut self, count: usize, others: &[u64]) {
        for _ in 0..count {
            self.tick();
            for other in others {
                self.hear(*other);
            }
        }
    }

    /// A follower sends a heartbeat response, which reports nothing about its log.
    pub(crate) fn hear(&mut self, from: u64) {
        let beat = message(MessageKind::HeartbeatResponse, self.status().term.0);
        self.take(from, &beat).expect("an answer is taken");
    }

    /// Handles a message from a node, with that node's right store id. No other event has arrived.
    pub(crate) fn take(&mut self, from: u64, message: &RaftMessage) -> Result<(), MessageError> {
        self.take_of(from, store(from), message)
    }

    pub(crate) fn take_of(
        &mut self,
        from: u64,
        store: StoreId,
        message: &RaftMessage,
    ) -> Result<(), MessageError> {
        let taken = self.replica.handle_message(self.now_ns, NodeId(from), store, message);
        self.replica.follow_offer(self.now_ns);
        self.drain();
        taken
    }

    /// Makes the oldest pending write durable. Returns whether there was one.
    pub(crate) fn persist_one(&mut self) -> bool {
        let Some(number) = self.disk.finish_one() else { return false };
        self.replica.handle_persisted(self.now_ns, number);
        self.drain();
        true
    }

    /// Makes every pending write durable, and the writes that follow from these.
    pub(crate) fn persist(&mut self) {
        while self.persist_one() {}
    }

    /// The messages sent since the last call.
    pub(crate) fn sent(&mut self) -> Vec<Outgoing> {
        std::mem::take(&mut self.sent)
    }

    /// The kinds of messages sent to `to` since the last call; drops the other messages.
    pub(crate) fn kinds_to(&mut self, to: u64) -> Vec<MessageKind> {
        let sent = self.sent().into_iter().filter(|out| out.to == NodeId(to));
        sent.map(|out| out.message.kind).collect()
    }

    pub(crate) fn status(&self) -> Status {
        self.replica.status()
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.status().role == Role::Leader
    }

    /// Ticks until this node leads. `others` grant it every vote.
    pub(crate) fn elect(&mut self, others: &[u64]) {
        for _ in 0..10 * ELECTION_TICKS {
            self.tick();
            self.persist();
            for _ in 0..2 {
                for out in self.sent() {
                    let kind = match out.message.kind {
                        MessageKind::RequestPreVote => MessageKind::RequestPreVoteResponse,
                        MessageKind::RequestVote => MessageKind::RequestVoteResponse,
                        _ => continue,
                    };
                    if others.contains(&out.to.0) {
                        let yes = message(kind, out.message.term.0);
                        self.take(out.to.0, &yes).expect("a vote is taken");
                        self.persist();
                    }
                }
            }
            if self.is_leader() {
                return;
            }
        }
        panic!("not elected: {:?}", self.status());
    }

    /// `others` acknowledge everything, and report that they read formats up to `newest`.
    pub(crate) fn report_formats(&mut self, others: &[u64], newest: u32) {
        for other in others {
            self.ack_all(*other);
            let formats = Formats { oldest: FORMATS.oldest, newest };
            self.replica.handle_formats(NodeId(*other), formats);
        }
    }

    /// `from` acknowledges everything up to `index`.
    pub(crate) fn ack(&mut self, from: u64, index: LogIndex) {
        let term = self.status().term.0;
        let ack = RaftMessage { index, ..message(MessageKind::AppendResponse, term) };
        self.take(from, &ack).expect("an ack is taken");
    }

    /// `from` acknowledges everything, until nothing is left to acknowledge.
    pub(crate) fn ack_all(&mut self, from: u64) {
        for _ in 0..4 {
            let last = self.status().last;
            self.persist();
            self.ack(from, last);
        }
    }
}
