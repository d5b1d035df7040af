//! A data directory in memory. Writes become durable one by one, in order. A restart loses the
//! writes that are not durable.

use std::collections::VecDeque;

use epicepoch_core::durable::{HardState, Record, Restored, Write};
use epicepoch_core::positions::Positions;
use epicepoch_core::state::State;
use epicepoch_wire::bootstrap::Genesis;
use epicepoch_wire::raft_message::{Configuration, EntryKind, LogEntry};
use epicepoch_wire::{LogIndex, NodeId, Term};

#[derive(Debug)]
pub(crate) struct Disk {
    durable: Restored,
    pending: VecDeque<Write>,
}

impl Disk {
    /// The disk of a first member.
    pub(crate) fn genesis(genesis: &Genesis) -> Self {
        Self::genesis_of(genesis, &State::new(genesis))
    }

    /// The disk of a first member of a cluster that begins with this state.
    pub(crate) fn genesis_of(genesis: &Genesis, state: &State) -> Self {
        let voters = genesis.members.iter().map(|member| member.node).collect();
        Self::holding(Record {
            index: LogIndex(1),
            term: Term(1),
            configuration: Configuration { voters, ..Configuration::default() },
            data: state.encode(),
        })
    }

    /// The disk of a node that knows its cluster but has no log.
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
        Self { durable, pending: VecDeque::new() }
    }

    /// Adds `entries` committed empty entries, so the log is soon compacted.
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

    /// The content that a restart reads.
    pub(crate) const fn durable(&self) -> &Restored {
        &self.durable
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

    /// Loses the writes that are not durable.
    pub(crate) fn crash(&mut self) {
        self.pending.clear();
    }
}
