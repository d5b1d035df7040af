//! The expected content of a data directory after any writes, in its simplest form, and random
//! writes that a replica could make.

use epicepoch_core::durable::{HardState, Record, Restored, Write};
use epicepoch_core::positions::{Heard, Positions};
use epicepoch_wire::raft_message::{Configuration, EntryKind, LogEntry};
use epicepoch_wire::{BootId, LogIndex, NodeId, Term};
use fastrand::Rng;

/// A genesis of three voters.
#[must_use]
pub fn genesis() -> Record {
    record(1, 1)
}

fn record(index: u64, term: u64) -> Record {
    let voters = vec![NodeId(1), NodeId(2), NodeId(3)];
    Record {
        index: LogIndex(index),
        term: Term(term),
        configuration: Configuration { voters, ..Configuration::default() },
        data: vec![index as u8; 80],
    }
}

/// An entry of `length` bytes.
#[must_use]
pub fn entry(index: u64, term: u64, length: usize) -> LogEntry {
    LogEntry {
        kind: EntryKind::Normal,
        term: Term(term),
        index: LogIndex(index),
        data: vec![index as u8; length],
        context: Vec::new(),
    }
}

/// The stored content, and the last write.
#[derive(Clone, Debug)]
pub struct Model {
    /// The data that a restart reads.
    pub restored: Restored,
    /// The number of the last write.
    pub number: u64,
}

impl Model {
    /// A directory that holds [`genesis`] and nothing else.
    #[must_use]
    pub fn founded() -> Self {
        let record = genesis();
        let hard_state = HardState { term: Term(1), vote: NodeId(0), commit: LogIndex(1) };
        let positions = Positions::default();
        Self {
            restored: Restored { hard_state, record, entries: Vec::new(), positions },
            number: 0,
        }
    }

    /// Makes some random writes for one transaction, and applies them to the model.
    pub fn batch(&mut self, random: &mut Rng) -> Vec<Write> {
        (0..random.usize(1..6)).map(|_| self.write(random)).collect()
    }

    /// Makes a random write, and applies it to the model.
    fn write(&mut self, random: &mut Rng) -> Write {
        self.number += 1;
        let mut write = Write { number: self.number, ..Write::default() };
        let mut hard_state = self.restored.hard_state;
        if random.u8(..) < 30 {
            hard_state.term.0 += random.u64(1..4);
            hard_state.vote = NodeId(0);
        }
        if hard_state.vote == NodeId(0) && random.u8(..) < 60 {
            hard_state.vote = NodeId(random.u64(0..4));
        }
        if random.u8(..) < 8 {
            let index = hard_state.commit.0 + random.u64(0..50);
            write.snapshot = Some(record(index, hard_state.term.0));
            hard_state.commit = LogIndex(index);
        } else if random.u8(..) < 160 {
            let first = random.u64(hard_state.commit.0 + 1..=self.next());
            let entries = first..first + random.u64(1..20);
            let term = hard_state.term.0;
            write.entries = entries.map(|i| entry(i, term, random.usize(..200))).collect();
        }
        self.apply(&write);
        if random.u8(..) < 120 {
            hard_state.commit.0 = random.u64(hard_state.commit.0..self.next());
        }
        if hard_state != self.restored.hard_state || random.u8(..) < 10 {
            write.hard_state = Some(hard_state);
            self.restored.hard_state = hard_state;
        }
        if random.u8(..) < 25 {
            self.compact(&mut write, random);
        }
        self.place(&mut write, random);
        write
    }

    fn place(&mut self, write: &mut Write, random: &mut Rng) {
        let Positions { own, peers, .. } = &mut self.restored.positions;
        if !write.is_empty() {
            own.0 += random.u64(1..4);
            if random.u8(..) < 50 {
                let heard = Heard { boot: BootId(random.u64(..)), position: *own };
                peers.insert(NodeId(random.u64(1..5)), heard);
                write.peer_positions = Some(peers.clone());
            }
        }
        write.position = *own;
    }

    fn compact(&mut self, write: &mut Write, random: &mut Rng) {
        let Restored { hard_state, record: old, entries, .. } = &mut self.restored;
        let index = random.u64(old.index.0..=hard_state.commit.0);
        let at_index = entries.iter().find(|entry| entry.index.0 == index);
        let new = record(index, at_index.map_or(old.term, |entry| entry.term).0);
        let compact_to = LogIndex(random.u64(index.saturating_sub(20)..=index));
        entries.retain(|entry| entry.index > compact_to);
        *old = new.clone();
        write.record = Some(new);
        write.compact_to = Some(compact_to);
    }

    fn apply(&mut self, write: &Write) {
        if let Some(snapshot) = &write.snapshot {
            self.restored.record = snapshot.clone();
            self.restored.entries.clear();
        }
        if let Some(first) = write.entries.first() {
            self.restored.entries.retain(|entry| entry.index < first.index);
            self.restored.entries.extend_from_slice(&write.entries);
        }
    }

    fn next(&self) -> u64 {
        let last = self.restored.entries.last().map(|entry| entry.index);
        last.unwrap_or(self.restored.record.index).0 + 1
    }
}
