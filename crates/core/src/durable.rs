//! What must be on disk before what leaves: one [`Write`] per step of the Raft library, and what
//! a restart reads back. It never touches a disk: a storage thread does, in one transaction each.

use epicepoch_wire::raft_message::{LogEntry, Snapshot};
use epicepoch_wire::{LogIndex, NodeId, Term};

/// The replicated state at one applied index, as it is stored: ceiling, owner, members, and the
/// configuration at exactly that index. A snapshot is this record.
pub type Record = Snapshot;

/// Raft's durable word: the highest term promised, who got the vote in it, and the commit index.
///
/// Invariant: `term` and `commit` never go back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The current term.
    pub term: Term,
    /// Who was voted for in it; 0 for nobody.
    pub vote: NodeId,
    /// The highest index known to be committed.
    pub commit: LogIndex,
}

/// Everything that one step makes durable, in one transaction. Steps are written in the order of
/// their numbers; several may share a transaction, never a part of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Write {
    /// Rises from write to write, from 1 in each run; steps that write nothing skip numbers.
    pub number: u64,
    /// Replaces the stored hard state.
    pub hard_state: Option<HardState>,
    /// A snapshot from the leader: replaces the record and the whole log.
    pub snapshot: Option<Record>,
    /// Appended to the log; whatever is stored from the first one's index on is dropped first.
    /// Consecutive indexes.
    pub entries: Vec<LogEntry>,
    /// Replaces the record: the log is about to be compacted up to `compact_to <= record.index`.
    pub record: Option<Record>,
    /// Drops the log up to and including this index.
    pub compact_to: Option<LogIndex>,
}

impl Write {
    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hard_state.is_none()
            && self.snapshot.is_none()
            && self.entries.is_empty()
            && self.record.is_none()
            && self.compact_to.is_none()
    }
}

/// What a data directory holds when a member starts.
///
/// Invariant: `entries` have consecutive indexes; the first is at most `record.index + 1`, the
/// last at least `record.index` unless there are none; `hard_state.commit >= record.index`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The last stored hard state.
    pub hard_state: HardState,
    /// The last stored record.
    pub record: Record,
    /// The stored log.
    pub entries: Vec<LogEntry>,
}

impl Restored {
    /// Takes in a write: what a directory that holds `self` holds once the write is durable. For
    /// simulated disks; the storage thread does the same on a real one.
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
        self.check(before);
    }

    fn check(&self, before: HardState) {
        let Self { hard_state, record, entries } = self;
        assert!(hard_state.term >= before.term, "a durable term goes back");
        assert!(hard_state.commit >= before.commit, "a durable commit index goes back");
        let is_kept = before.vote == NodeId(0) || hard_state.vote == before.vote;
        assert!(hard_state.term > before.term || is_kept, "a durable vote is taken back");
        assert!(hard_state.commit >= record.index, "a record beyond the commit index");
        let follows = |a: &LogEntry, b: &LogEntry| a.index.0 + 1 == b.index.0;
        assert!(entries.is_sorted_by(follows), "a gap in the log");
        let first = entries.first().map_or(record.index.0 + 1, |entry| entry.index.0);
        let last = entries.last().map_or(record.index.0, |entry| entry.index.0);
        assert!(first <= record.index.0 + 1, "a gap between record and log");
        assert!(last >= record.index.0, "a record beyond the log");
        assert!(hard_state.commit.0 <= last, "a commit index beyond the log");
    }
}
