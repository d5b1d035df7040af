//! The data that must be durable before messages leave: one [`Write`] per step of the Raft library.
//! Also the data that a restart reads back. This module touches no disk: a storage thread makes
//! each write durable in one transaction.

use std::collections::BTreeMap;

use epicepoch_wire::raft_message::{LogEntry, Snapshot};
use epicepoch_wire::{LogIndex, NodeId, StorePosition, Term};

use crate::positions::{Heard, Positions};

/// The replicated state at one applied index, as it is stored: ceiling, owner, members, and the
/// configuration at exactly that index. A snapshot is this record.
pub type Record = Snapshot;

/// Raft's hard state: the highest term promised, the vote in it, and the commit index.
///
/// Invariant: `term` and `commit` never go back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The current term.
    pub term: Term,
    /// The vote in that term; 0 for none.
    pub vote: NodeId,
    /// The highest index known to be committed.
    pub commit: LogIndex,
}

/// Everything that one step makes durable, in one transaction. Steps are written in the order of
/// their numbers. Several steps may share a transaction, but a step is never split.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Write {
    /// The write's number. It rises from write to write, from 1 in each boot. A step that writes
    /// nothing skips its number.
    pub number: u64,
    /// The write's number over all boots of this data directory; it never goes back.
    pub position: StorePosition,
    /// Positions that peers have named, if they changed. They replace the stored ones.
    pub peer_positions: Option<BTreeMap<NodeId, Heard>>,
    /// Replaces the stored hard state.
    pub hard_state: Option<HardState>,
    /// A snapshot from the leader: replaces the record and the whole log.
    pub snapshot: Option<Record>,
    /// Entries to append to the log, with consecutive indexes. Stored entries from the first of
    /// these indexes on are dropped first.
    pub entries: Vec<LogEntry>,
    /// A new record that replaces the stored one, because the log is about to be compacted up to
    /// `compact_to <= record.index`.
    pub record: Option<Record>,
    /// Drops the log up to and including this index.
    pub compact_to: Option<LogIndex>,
}

impl Write {
    /// Whether the write has nothing that must be durable by itself. New positions of peers alone
    /// need no write: they wait for the next one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hard_state.is_none()
            && self.snapshot.is_none()
            && self.entries.is_empty()
            && self.record.is_none()
            && self.compact_to.is_none()
    }
}

/// The content of a data directory when a member starts.
///
/// Invariant: `entries` have consecutive indexes; the first is at most `record.index + 1`, the last
/// at least `record.index` unless there are none; `hard_state.commit >= record.index`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The last stored hard state.
    pub hard_state: HardState,
    /// The last stored record.
    pub record: Record,
    /// The stored log.
    pub entries: Vec<LogEntry>,
    /// The positions of this data directory and of its peers.
    pub positions: Positions,
}

impl Restored {
    /// Applies a write to the content of the directory. The result is the content after the write
    /// is durable. Simulated disks use this function; the storage thread does the same on a real
    /// disk.
    ///
    /// # Panics
    /// When the write breaks an invariant of [`Restored`] or [`HardState`].
    pub fn apply(&mut self, write: &Write) {
        let before = self.hard_state;
        if let Some(hard_state) = write.hard_state {
            self.hard_state = hard_state;
        }
        if let Some(snapshot) = &write.snapshot {
            self.record = snapshot.clone();
            self.entries.clear();
        }
        if let Some(first) = write.entries.first() {
            let kept = self.entries.partition_point(|entry| entry.index < first.index);
            self.entries.truncate(kept);
            self.entries.extend_from_slice(&write.entries);
        }
        if let Some(record) = &write.record {
            self.record = record.clone();
        }
        if let Some(to) = write.compact_to {
            assert!(to <= self.record.index, "the log is compacted beyond the record");
            self.entries.retain(|entry| entry.index > to);
        }
        assert!(write.position >= self.positions.own, "a durable position goes back");
        self.positions.own = write.position;
        if let Some(peers) = &write.peer_positions {
            self.positions.peers.clone_from(peers);
        }
        self.check(before);
    }

    fn check(&self, before: HardState) {
        let Self { hard_state, record, entries, positions: _ } = self;
        assert!(hard_state.term >= before.term, "S6: a durable term goes back");
        assert!(hard_state.commit >= before.commit, "S6: a durable commit index goes back");
        let is_kept = before.vote == NodeId(0) || hard_state.vote == before.vote;
        assert!(hard_state.term > before.term || is_kept, "S6: a durable vote is taken back");
        assert!(hard_state.commit >= record.index, "S6: a record beyond the commit index");
        let follows = |a: &LogEntry, b: &LogEntry| a.index.0 + 1 == b.index.0;
        assert!(entries.is_sorted_by(follows), "S6: a gap in the log");
        let is_joined = |first: &LogEntry| first.index.0 <= record.index.0 + 1;
        assert!(entries.first().is_none_or(is_joined), "S6: a gap between record and log");
        let last = entries.last().map_or(record.index.0, |entry| entry.index.0);
        assert!(last >= record.index.0, "S6: a record beyond the log");
        assert!(hard_state.commit.0 <= last, "S6: a commit index beyond the log");
    }
}

#[cfg(test)]
mod tests {
    use epicepoch_wire::raft_message::{Configuration, EntryKind};

    use super::*;

    fn entry(index: u64, term: u64) -> LogEntry {
        LogEntry {
            kind: EntryKind::Normal,
            term: Term(term),
            index: LogIndex(index),
            data: vec![],
            context: vec![],
        }
    }

    fn record(index: u64) -> Record {
        let configuration = Configuration::default();
        Record { index: LogIndex(index), term: Term(1), configuration, data: vec![] }
    }

    fn hard_state(term: u64, vote: u64, commit: u64) -> HardState {
        HardState { term: Term(term), vote: NodeId(vote), commit: LogIndex(commit) }
    }

    /// A directory in term 2, with a vote for node 1. The record is at 2, the log has entries 3 to
    /// 6, and 4 is committed.
    fn restored() -> Restored {
        let entries = (3..=6).map(|index| entry(index, 2)).collect();
        Restored {
            hard_state: hard_state(2, 1, 4),
            record: record(2),
            entries,
            positions: Positions::default(),
        }
    }

    fn indexes(restored: &Restored) -> Vec<(u64, u64)> {
        restored.entries.iter().map(|entry| (entry.index.0, entry.term.0)).collect()
    }

    #[test]
    fn any_part_makes_a_write() {
        assert!(Write { number: 7, ..Write::default() }.is_empty());
        let parts = [
            Write { hard_state: Some(HardState::default()), ..Write::default() },
            Write { snapshot: Some(record(1)), ..Write::default() },
            Write { entries: vec![entry(1, 1)], ..Write::default() },
            Write { record: Some(record(1)), ..Write::default() },
            Write { compact_to: Some(LogIndex(1)), ..Write::default() },
        ];
        assert!(parts.iter().all(|part| !part.is_empty()));
    }

    #[test]
    fn entries_replace_the_tail_that_they_begin_in() {
        let mut restored = restored();
        restored.apply(&Write { entries: vec![entry(5, 3), entry(6, 3)], ..Write::default() });
        assert_eq!(indexes(&restored), [(3, 2), (4, 2), (5, 3), (6, 3)]);
        restored.apply(&Write { entries: vec![entry(5, 4)], ..Write::default() });
        assert_eq!(indexes(&restored), [(3, 2), (4, 2), (5, 4)]);
    }

    #[test]
    fn a_compaction_keeps_what_follows_its_index_and_a_snapshot_nothing() {
        let mut restored = restored();
        let write =
            Write { record: Some(record(4)), compact_to: Some(LogIndex(4)), ..Write::default() };
        restored.apply(&write);
        assert_eq!((indexes(&restored), restored.record.index.0), (vec![(5, 2), (6, 2)], 4));
        let write = Write {
            hard_state: Some(hard_state(3, 0, 9)),
            snapshot: Some(record(9)),
            ..Write::default()
        };
        restored.apply(&write);
        assert_eq!((indexes(&restored), restored.record.index.0), (vec![], 9));
        assert_eq!(restored.hard_state, hard_state(3, 0, 9));
    }

    #[test]
    fn a_vote_may_be_cast_and_kept_and_is_free_in_a_later_term() {
        let mut restored = restored();
        for allowed in [hard_state(2, 1, 5), hard_state(3, 0, 5), hard_state(3, 2, 6)] {
            restored.apply(&Write { hard_state: Some(allowed), ..Write::default() });
            assert_eq!(restored.hard_state, allowed);
        }
    }

    fn refused(write: &Write) -> String {
        let apply = std::panic::AssertUnwindSafe(|| restored().apply(write));
        let panic = std::panic::catch_unwind(apply).expect_err("a write that breaks an invariant");
        panic.downcast_ref::<&str>().map(ToString::to_string).unwrap_or_default()
    }

    #[test]
    fn a_write_that_breaks_an_invariant_is_refused() {
        let state = |state| Write { hard_state: Some(state), ..Write::default() };
        let entries = |entries: &[u64]| Write {
            entries: entries.iter().map(|index| entry(*index, 2)).collect(),
            ..Write::default()
        };
        let recorded = |index| Write { record: Some(record(index)), ..Write::default() };
        let cases = [
            (state(hard_state(1, 1, 4)), "S6: a durable term goes back"),
            (state(hard_state(2, 1, 3)), "S6: a durable commit index goes back"),
            (state(hard_state(2, 2, 4)), "S6: a durable vote is taken back"),
            (state(hard_state(2, 0, 4)), "S6: a durable vote is taken back"),
            (state(hard_state(2, 1, 7)), "S6: a commit index beyond the log"),
            (entries(&[7, 9]), "S6: a gap in the log"),
            (entries(&[8]), "S6: a gap in the log"),
            (entries(&[3]), "S6: a commit index beyond the log"),
            (recorded(5), "S6: a record beyond the commit index"),
            (recorded(1), "S6: a gap between record and log"),
            (
                Write { compact_to: Some(LogIndex(3)), ..Write::default() },
                "the log is compacted beyond the record",
            ),
        ];
        for (write, why) in cases {
            assert_eq!(refused(&write), why);
        }
    }
}
