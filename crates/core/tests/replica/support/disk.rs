//! A simulated disk: writes become durable one by one, in their order, when the world says so. A
//! crash loses the rest. It holds what a write means to the invariants of [`Restored`].

use std::collections::VecDeque;

use epicepoch_core::durable::{HardState, Record, Restored, Write};
use epicepoch_core::positions::Positions;
use epicepoch_core::state::State;
use epicepoch_wire::bootstrap::Genesis;
use epicepoch_wire::raft_message::{Configuration, EntryKind, LogEntry};
use epicepoch_wire::{LogIndex, NodeId, Term};

/// One data directory.
#[derive(Debug)]
pub(crate) struct Disk {
    durable: Restored,
    pending: VecDeque<Write>,
    /// How long a write takes.
    pub(crate) write_ns: u64,
    /// A stuck disk finishes nothing.
    pub(crate) is_stuck: bool,
}

impl Disk {
    /// The disk of a first member.
    pub(crate) fn genesis(genesis: &Genesis) -> Self {
        let voters = genesis.members.iter().map(|member| member.node).collect();
        Self::holding(Record {
            index: LogIndex(1),
            term: Term(1),
            configuration: Configuration { voters, ..Configuration::default() },
            data: State::new(genesis).encode(),
        })
    }

    /// The disk of a node that knows its cluster and nothing else.
    pub(crate) fn joining(genesis: &Genesis) -> Self {
        let nothing = Genesis { members: vec![], ..genesis.clone() };
        Self::holding(Record {
            index: LogIndex(0),
            term: Term(0),
            configuration: Configuration::default(),
            data: State::new(&nothing).encode(),
        })
    }

    fn holding(record: Record) -> Self {
        let hard_state = HardState { term: record.term, vote: NodeId(0), commit: record.index };
        let durable =
            Restored { hard_state, record, entries: vec![], positions: Positions::default() };
        Self { durable, pending: VecDeque::new(), write_ns: 0, is_stuck: false }
    }

    /// Adds committed empty entries, so that the log is soon compacted.
    pub(crate) fn fill(&mut self, entries: u64) {
        let Restored { hard_state, record, entries: log, .. } = &mut self.durable;
        let next = record.index.0 + 1;
        log.extend((next..next + entries).map(|index| LogEntry {
            kind: EntryKind::Normal,
            term: record.term,
            index: LogIndex(index),
            data: vec![],
            context: vec![],
        }));
        hard_state.commit = LogIndex(record.index.0 + entries);
    }

    /// What a restart reads.
    pub(crate) const fn durable(&self) -> &Restored {
        &self.durable
    }

    /// Sets the directory back to an older state, as a restore from a backup would.
    pub(crate) fn roll_back(&mut self, durable: Restored) {
        self.durable = durable;
        self.pending.clear();
    }

    pub(crate) fn submit(&mut self, write: Write) {
        self.pending.push_back(write);
    }

    /// Finishes the oldest write. Returns its number.
    pub(crate) fn finish_one(&mut self) -> Option<u64> {
        let write = self.pending.pop_front()?;
        self.durable.apply(&write);
        Some(write.number)
    }

    /// Finishes the oldest write, or all of them in one transaction. Returns the last number.
    pub(crate) fn finish_some(&mut self, is_all: bool) -> Option<u64> {
        let mut number = self.finish_one();
        while is_all && !self.pending.is_empty() {
            number = self.finish_one();
        }
        number
    }

    /// Loses what is not durable.
    pub(crate) fn crash(&mut self) {
        self.pending.clear();
    }
}
