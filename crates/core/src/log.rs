//! The Raft log as the library reads it: a copy in memory of the entries that went to the storage
//! thread. It touches no disk. It holds only the last entries; older ones are in the record.

use std::collections::VecDeque;

use epicepoch_wire::raft_message::LogEntry;
use epicepoch_wire::{LogIndex, Term};
use raft::eraftpb::{Entry, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use crate::durable::{Record, Restored};
use crate::translate;

/// The copy of the log in memory.
///
/// Invariant: `entries` are consecutive from `before.0 + 1`; `before.0 <= record.index`.
#[derive(Debug)]
pub struct Log {
    hard_state: raft::eraftpb::HardState,
    /// Index and term of the entry before the first of `entries`.
    before: (LogIndex, Term),
    entries: VecDeque<Entry>,
    record: Record,
}

impl Log {
    /// The log of a data directory.
    #[must_use]
    pub fn new(restored: &Restored) -> Self {
        let Restored { hard_state, record, entries, positions: _ } = restored;
        // The term of the entry before the first one is known only if the record ends with that
        // entry. Otherwise the log reaches further back. It then starts after its first entry, and
        // no caller asks for the predecessor of that entry.
        let before = match entries.first() {
            Some(first) if first.index.0 <= record.index.0 => (first.index, first.term),
            _ => (record.index, record.term),
        };
        let kept = entries.iter().filter(|entry| entry.index > before.0);
        Self {
            hard_state: translate::library_hard_state(hard_state),
            before,
            entries: kept.map(translate::library_entry).collect(),
            record: record.clone(),
        }
    }

    /// Appends entries, and drops the old entries from the first new index on.
    ///
    /// # Panics
    /// When the new entries leave a gap, or begin in the compacted part of the log.
    pub fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        let keep = first.index.checked_sub(self.before.0.0 + 1);
        let keep = keep.expect("entries are never appended below the compacted log") as usize;
        assert!(keep <= self.entries.len(), "a gap in the log before {}", first.index);
        self.entries.truncate(keep);
        self.entries.extend(entries.iter().cloned());
    }

    /// Replaces everything by a snapshot.
    pub fn install(&mut self, record: Record) {
        self.before = (record.index, record.term);
        self.entries.clear();
        self.record = record;
    }

    /// Records the state at the applied index, which peers get as a snapshot.
    pub fn record_applied(&mut self, record: Record) {
        assert!(record.index >= self.record.index, "applied goes back");
        self.record = record;
    }

    /// The state at the applied index.
    #[must_use]
    pub const fn record(&self) -> &Record {
        &self.record
    }

    /// Drops the entries up to and including `to`, which must be applied.
    pub fn compact(&mut self, to: LogIndex) {
        assert!(to <= self.record.index, "only applied entries are compacted");
        while let Some(entry) = self.entries.front()
            && entry.index <= to.0
        {
            self.before = (LogIndex(entry.index), Term(entry.term));
            self.entries.pop_front();
        }
    }

    /// How many entries are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no entry is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries, for tests and tools.
    pub fn iter(&self) -> impl Iterator<Item = LogEntry> {
        self.entries.iter().map(translate::entry)
    }

    fn position(&self, index: u64) -> Result<usize, raft::Error> {
        let position = index.checked_sub(self.before.0.0 + 1);
        position.map(|at| at as usize).ok_or(raft::Error::Store(StorageError::Compacted))
    }
}

impl Storage for Log {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let configuration = translate::library_configuration(&self.record.configuration);
        Ok(RaftState::new(self.hard_state.clone(), configuration))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let (from, to) = (self.position(low)?, self.position(high)?);
        if to > self.entries.len() {
            return Err(raft::Error::Store(StorageError::Unavailable));
        }
        let mut entries: Vec<Entry> = self.entries.range(from..to).cloned().collect();
        raft::util::limit_size(&mut entries, max_size.into());
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.before.0.0 {
            return Ok(self.before.1.0);
        }
        let position = self.position(index)?;
        let entry = self.entries.get(position);
        entry.map(|entry| entry.term).ok_or(raft::Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.before.0.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.before.0.0 + self.entries.len() as u64)
    }

    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        if self.record.index.0 < request_index {
            return Err(raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        Ok(translate::library_snapshot(&self.record))
    }
}

#[cfg(test)]
mod tests {
    use epicepoch_wire::raft_message::{Configuration, EntryKind};

    use super::*;
    use crate::durable::HardState;

    fn entry(index: u64, term: u64) -> LogEntry {
        LogEntry {
            kind: EntryKind::Normal,
            term: Term(term),
            index: LogIndex(index),
            data: vec![],
            context: vec![],
        }
    }

    fn record(index: u64, term: u64) -> Record {
        let configuration = Configuration::default();
        Record { index: LogIndex(index), term: Term(term), configuration, data: vec![] }
    }

    fn log(first: u64, last: u64, applied: u64) -> Log {
        Log::new(&Restored {
            hard_state: HardState::default(),
            record: record(applied, 1),
            entries: (first..=last).map(|index| entry(index, 1)).collect(),
            positions: crate::positions::Positions::default(),
        })
    }

    #[test]
    fn a_log_that_reaches_behind_its_record_keeps_what_has_a_predecessor() {
        let log = log(3, 9, 5);
        assert_eq!((log.first_index().unwrap(), log.last_index().unwrap()), (4, 9));
        assert_eq!(log.term(3).unwrap(), 1);
        assert!(log.term(2).is_err());
    }

    #[test]
    fn new_entries_replace_those_at_their_indexes() {
        let mut log = log(1, 4, 0);
        // A log that starts at the record keeps its first entry.
        assert_eq!(log.first_index().unwrap(), 1);
        log.append(&[translate::library_entry(&entry(3, 2))]);
        let terms: Vec<_> = (1..=3).map(|index| log.term(index).unwrap()).collect();
        assert_eq!((terms, log.last_index().unwrap()), (vec![1, 1, 2], 3));
    }

    #[test]
    fn compaction_and_snapshots_keep_the_term_of_what_came_before() {
        let mut log = log(1, 6, 0);
        log.record_applied(record(5, 1));
        log.compact(LogIndex(4));
        assert_eq!((log.first_index().unwrap(), log.term(4).unwrap()), (5, 1));
        assert!(log.term(3).is_err());
        assert_eq!(log.snapshot(5, 2).unwrap().get_metadata().index, 5);
        assert!(log.snapshot(6, 2).is_err());
        log.install(record(20, 3));
        assert_eq!((log.first_index().unwrap(), log.last_index().unwrap()), (21, 20));
        assert_eq!(log.term(20).unwrap(), 3);
    }

    #[test]
    #[should_panic(expected = "a gap in the log")]
    fn a_gap_is_never_appended() {
        log(1, 3, 0).append(&[translate::library_entry(&entry(6, 1))]);
    }

    #[test]
    fn the_log_returns_the_requested_entries() {
        let log = log(1, 5, 0);
        assert_eq!((log.len(), log.is_empty()), (5, false));
        assert_eq!(log.iter().map(|entry| entry.index.0).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        let asked = |low, high| {
            let entries = log.entries(low, high, None, GetEntriesContext::empty(false));
            entries.map(|entries| entries.iter().map(|entry| entry.index).collect::<Vec<_>>())
        };
        assert_eq!(asked(2, 4).unwrap(), [2, 3]);
        assert_eq!(asked(1, 6).unwrap(), [1, 2, 3, 4, 5]);
        assert_eq!(asked(1, 7), Err(raft::Error::Store(StorageError::Unavailable)));
        assert_eq!(asked(0, 3), Err(raft::Error::Store(StorageError::Compacted)));
        let first = log.entries(1, 6, 0, GetEntriesContext::empty(false)).unwrap();
        assert_eq!(first.len(), 1, "a limit of size leaves at least one");
        let mut empty = log;
        empty.install(record(20, 3));
        assert_eq!((empty.len(), empty.is_empty(), empty.iter().count()), (0, true, 0));
    }

    #[test]
    fn the_library_begins_with_the_stored_hard_state_and_configuration() {
        let mut record = record(5, 1);
        record.configuration.voters = vec![epicepoch_wire::NodeId(1), epicepoch_wire::NodeId(2)];
        let vote = epicepoch_wire::NodeId(2);
        let hard_state = HardState { term: Term(7), vote, commit: LogIndex(5) };
        let log = Log::new(&Restored {
            hard_state,
            record,
            entries: vec![],
            positions: crate::positions::Positions::default(),
        });
        let state = log.initial_state().unwrap();
        assert_eq!(translate::hard_state(&state.hard_state), hard_state);
        assert_eq!(state.conf_state.voters, [1, 2]);
    }
}
