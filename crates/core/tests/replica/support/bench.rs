//! One replica on the bench: every message to it is made by hand, every write becomes durable when
//! the story says so.

use std::sync::Arc;

use epicepoch_core::durable::Restored;
use epicepoch_core::publication::{Identity, Published, Role, Shared};
use epicepoch_core::replica::{MessageError, Outgoing, Replica, ReplicaConfig, Report, Status};
use epicepoch_core::state::FORMATS;
use epicepoch_wire::bootstrap::Genesis;
use epicepoch_wire::raft_message::{EntryKind, LogEntry, MessageKind, RaftMessage};
use epicepoch_wire::{BootId, ClusterId, Epoch, HistoryId, LogIndex, NodeId, StoreId, Term};

use super::disk::Disk;
use super::node::{ELECTION_TICKS, RESERVATION_NS, TICK_NS, member};
use super::world::START_NS;

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

/// A message to node 1 that says nothing yet.
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

/// An append of empty entries of the message's term after `(index, log_term)`.
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
    /// A first member of a cluster with these voters.
    pub(crate) fn new(voters: &[u64]) -> Self {
        Self::of(Disk::genesis(&genesis(voters)))
    }

    /// Node 1 as leader of these voters, everything durable and acknowledged.
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

    /// A replica of a disk.
    pub(crate) fn of(disk: Disk) -> Self {
        Self::drawing(disk, 5)
    }

    /// A replica of a disk that draws from a seed.
    pub(crate) fn drawing(disk: Disk, seed: u64) -> Self {
        Self::beating(disk, seed, 1)
    }

    /// The same, with as many ticks between two heartbeats.
    pub(crate) fn beating(disk: Disk, seed: u64, heartbeat_ticks: usize) -> Self {
        Self::made(disk, |config| (config.seed, config.heartbeat_ticks) = (seed, heartbeat_ticks))
    }

    /// A replica of node `node`: the bench of another one than node 1. Messages have to say so.
    pub(crate) fn being(node: u64, disk: Disk, seed: u64) -> Self {
        Self::made(disk, |config| {
            config.seed = seed;
            (config.identity.node, config.identity.store) = (NodeId(node), store(node));
        })
    }

    /// One that reads formats up to `format_max`; the others read the oldest alone.
    pub(crate) fn reading(disk: Disk, format_max: u32) -> Self {
        Self::made(disk, |config| config.format_max = format_max)
    }

    /// A replica of node 1 that behaves as usual, but for what `differ` changes.
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

    /// What the disk holds, started again.
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

    /// Ticks as a leader that `others` hear and answer, and do nothing else.
    pub(crate) fn beats(&mut self, count: usize, others: &[u64]) {
        for _ in 0..count {
            self.tick();
            for other in others {
                self.hear(*other);
            }
        }
    }

    /// A follower says that it is there, and nothing of what it has.
    pub(crate) fn hear(&mut self, from: u64) {
        let beat = message(MessageKind::HeartbeatResponse, self.status().term.0);
        self.take(from, &beat).expect("an answer is taken");
    }

    /// Takes in a message from a node with its right store.
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
        self.drain();
        taken
    }

    /// Makes the oldest write durable, if there is one.
    pub(crate) fn persist_one(&mut self) -> bool {
        let Some(number) = self.disk.finish_one() else { return false };
        self.replica.handle_persisted(self.now_ns, number);
        self.drain();
        true
    }

    /// Makes every write durable, and those that follow from it.
    pub(crate) fn persist(&mut self) {
        while self.persist_one() {}
    }

    /// What has left since this was last asked.
    pub(crate) fn sent(&mut self) -> Vec<Outgoing> {
        std::mem::take(&mut self.sent)
    }

    /// The kinds of what has left to `to` since this was last asked; the rest is forgotten.
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

    /// Ticks until this node leads; `others` say yes to everything.
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
