//! A simulated disk: writes become durable one by one, in their order, when the world says so. A
//! crash keeps some of what was not synced yet, from the oldest on, and loses the rest.

use std::collections::VecDeque;

use epicepoch_core::durable::{HardState, Record, Restored, Write};
use epicepoch_core::state::State;
use epicepoch_wire::bootstrap::Genesis;
use epicepoch_wire::raft_message::{Configuration, EntryKind, LogEntry};
use epicepoch_wire::{LogIndex, NodeId, Term};

use crate::plant::Plant;

/// One data directory.
#[derive(Debug)]
pub(crate) struct Disk {
    durable: Restored,
    pending: VecDeque<Write>,
    /// How long a write takes.
    pub(crate) write_ns: u64,
    /// A stuck disk finishes nothing.
    pub(crate) is_stuck: bool,
    /// The next write that should finish fails.
    pub(crate) is_failing: bool,
}

impl Disk {
    /// The disk of a first member, or of a node that knows its cluster and nothing else.
    pub(crate) fn founded(genesis: &Genesis, is_member: bool) -> Self {
        let members = if is_member { genesis.members.clone() } else { vec![] };
        let voters = members.iter().map(|member| member.node).collect();
        let start = u64::from(is_member);
        let record = Record {
            index: LogIndex(start),
            term: Term(start),
            configuration: Configuration { voters, ..Configuration::default() },
            data: State::new(&Genesis { members, ..genesis.clone() }).encode(),
        };
        let hard_state = HardState { term: record.term, vote: NodeId(0), commit: record.index };
        Self {
            durable: Restored { hard_state, record, entries: vec![] },
            pending: VecDeque::new(),
            write_ns: 0,
            is_stuck: false,
            is_failing: false,
        }
    }

    /// Adds committed empty entries, so that the log is soon compacted.
    pub(crate) fn fill(&mut self, entries: u64) {
        let Restored { hard_state, record, entries: log } = &mut self.durable;
        for index in record.index.0 + 1..=record.index.0 + entries {
            log.push(LogEntry {
                kind: EntryKind::Normal,
                term: record.term,
                index: LogIndex(index),
                data: vec![],
                context: vec![],
            });
        }
        hard_state.commit = LogIndex(record.index.0 + entries);
    }

    /// What a restart reads.
    pub(crate) const fn durable(&self) -> &Restored {
        &self.durable
    }

    pub(crate) fn submit(&mut self, write: Write) {
        self.pending.push_back(write);
    }

    pub(crate) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Finishes the oldest write, or all of them in one transaction. Returns the last number.
    pub(crate) fn finish(&mut self, is_all: bool) -> Option<u64> {
        let count = if is_all { self.pending.len() } else { 1 };
        let mut last = None;
        for write in self.pending.drain(..count.min(self.pending.len())) {
            self.durable.apply(&write);
            last = Some(write.number);
        }
        last
    }

    /// Loses what is not durable, but for the `kept` oldest writes, which had reached the disk
    /// although nobody was told.
    pub(crate) fn crash(&mut self, kept: usize) {
        for _ in 0..kept {
            self.finish(false);
        }
        self.pending.clear();
    }

    /// What a restart reads on a disk with a planted bug.
    pub(crate) fn restore(&mut self, plant: Option<Plant>) -> &Restored {
        if plant == Some(Plant::TermFromLog) {
            let Restored { hard_state, record, entries } = &mut self.durable;
            let last = entries.last().map_or(record.term, |entry| entry.term);
            *hard_state = HardState { term: last, vote: NodeId(0), ..*hard_state };
        }
        &self.durable
    }
}
