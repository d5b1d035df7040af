//! The invariants of what is stored. Every write is checked against them before it reaches the
//! disk, and everything that is read back before it is believed: a broken one is a panic when we
//! would write it, and damage when we have read it.
//!
//! With `first..next` the stored log, `record` the record's index and `commit` the hard state's:
//! `first <= record + 1`, and `record <= commit < next`. Indexes are consecutive. Term, commit and
//! record never go back; a vote changes only with its term; nothing committed is dropped from the
//! log before it is in the record.

use epicepoch_core::durable::{HardState, Record, Restored, Write};
use epicepoch_wire::raft_message::{
    CONFIGURATION_MAX, Configuration, ENTRY_LEN_MAX, LogEntry, SNAPSHOT_LEN_MAX,
};
use epicepoch_wire::{LogIndex, NodeId, Term};

/// What the checks need to know of what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    /// The hard state.
    pub(super) hard_state: HardState,
    /// The record's index.
    pub(super) record: u64,
    /// Index of the first stored entry; equal to `next` when there is none.
    pub(super) first: u64,
    /// Index that the next entry has.
    pub(super) next: u64,
}

impl Stored {
    /// After a founding: the record, and nothing else.
    pub(super) fn founded(record: &Record) -> Self {
        assert!(record.index >= LogIndex(1) && record.term >= Term(1), "a record of nothing");
        assert_record_readable(record);
        let hard_state = HardState { term: record.term, vote: NodeId(0), commit: record.index };
        let next = record.index.0 + 1;
        Self { hard_state, record: record.index.0, first: next, next }
    }

    /// Of what was read back.
    ///
    /// # Errors
    /// Says which invariant it breaks.
    pub(super) fn restored(restored: &Restored) -> Result<Self, String> {
        let Restored { hard_state, record, entries } = restored;
        let after_record = record.index.0.checked_add(1).ok_or("the record has no next index")?;
        let first = entries.first().map_or(after_record, |entry| entry.index.0);
        let mut next = first;
        let mut term = Term(0);
        for entry in entries {
            if entry.index.0 != next {
                return Err(format!("the log has entry {} where {next} belongs", entry.index));
            }
            if entry.term < term {
                return Err(format!("entry {} has a term below the one before", entry.index));
            }
            if entry.index == record.index && entry.term != record.term {
                return Err(format!("entry {} and the record disagree on a term", entry.index));
            }
            term = entry.term;
            next = next.checked_add(1).ok_or("the log has no next index")?;
        }
        if term.max(record.term) > hard_state.term {
            return Err(format!("the term {} is below what is stored", hard_state.term));
        }
        if record.index < LogIndex(1) || first > after_record {
            return Err(format!("the log begins at {first}, the record is at {}", record.index));
        }
        let commit = hard_state.commit.0;
        if record.index.0 > commit || commit >= next {
            let record = record.index;
            return Err(format!("commit {commit} is not between {record} and the end {next}"));
        }
        Ok(Self { hard_state: *hard_state, record: record.index.0, first, next })
    }

    /// After one more write.
    ///
    /// # Panics
    /// When the write breaks an invariant. It must not reach the disk.
    pub(super) fn after(self, write: &Write) -> Self {
        let mut after = self;
        if let Some(snapshot) = &write.snapshot {
            assert!(snapshot.index >= self.hard_state.commit, "a snapshot takes the commit back");
            assert_record_readable(snapshot);
            let next = snapshot.index.0 + 1;
            after = Self { record: snapshot.index.0, first: next, next, ..after };
        }
        if let Some(first) = write.entries.first() {
            let index = first.index.0;
            assert!(first.index > self.hard_state.commit, "entry {index} replaces a committed one");
            assert!(
                after.first <= index && index <= after.next,
                "entry {index} does not continue the log {}..{}",
                after.first,
                after.next
            );
            after.next = index;
            for entry in &write.entries {
                assert_eq!(entry.index.0, after.next, "entries are not consecutive");
                assert_entry_readable(entry);
                after.next += 1;
            }
        }
        if let Some(hard_state) = write.hard_state {
            let before = self.hard_state;
            assert!(hard_state.term >= before.term, "the term goes back");
            assert!(hard_state.commit >= before.commit, "the commit index goes back");
            assert!(
                hard_state.term > before.term
                    || hard_state.vote == before.vote
                    || before.vote == NodeId(0),
                "the vote of term {} changes",
                before.term
            );
            after.hard_state = hard_state;
        }
        if let Some(record) = &write.record {
            assert!(record.index.0 >= after.record, "the record goes back");
            assert_record_readable(record);
            after.record = record.index.0;
        }
        if let Some(compact_to) = write.compact_to {
            assert!(compact_to.0 <= after.record, "the log is compacted beyond the record");
            after.first = after.first.max(compact_to.0 + 1);
        }
        after.assert_consistent(write);
        after
    }

    fn assert_consistent(&self, write: &Write) {
        let Self { hard_state, record, first, next } = *self;
        let commit = hard_state.commit.0;
        assert!(
            first <= record + 1 && record <= commit && commit < next,
            "write {} leaves log {first}..{next}, record {record}, commit {commit}",
            write.number
        );
        let terms = write.entries.iter().map(|entry| entry.term);
        let terms = terms.chain(write.snapshot.iter().map(|record| record.term));
        let highest = terms.chain(write.record.iter().map(|record| record.term)).max();
        assert!(highest <= Some(hard_state.term), "a term above the hard state's is stored");
    }
}

/// What is written must be readable again: the codec refuses what is over its limits.
fn assert_entry_readable(entry: &LogEntry) {
    let longest = entry.data.len().max(entry.context.len());
    assert!(longest <= ENTRY_LEN_MAX, "entry {} has {longest} bytes", entry.index);
}

fn assert_record_readable(record: &Record) {
    let Configuration { voters, learners, voters_outgoing, learners_next, auto_leave: _ } =
        &record.configuration;
    let longest = [voters, learners, voters_outgoing, learners_next].map(Vec::len);
    assert!(longest.iter().all(|length| *length <= CONFIGURATION_MAX), "a list over its limit");
    let length = record.data.len();
    assert!(length <= SNAPSHOT_LEN_MAX, "the record at {} has {length} bytes", record.index);
}
