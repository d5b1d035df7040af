//! The invariants of stored data. Every write is checked before it reaches the disk, and all data
//! that is read back is checked before it is used. A broken invariant is a panic on writing, and
//! damage on reading.
//!
//! Let `first..next` be the stored log, `record` the record's index, and `commit` the commit index
//! of the hard state. Then `first <= record + 1`, and `record <= commit < next`. Indexes are
//! consecutive. Term, commit and record never go back. A vote changes only with its term. No
//! committed entry is dropped from the log before it is in the record.

use epicepoch_core::durable::{HardState, Record, Restored, Write};
use epicepoch_wire::raft_message::{
    CONFIGURATION_MAX, Configuration, ENTRY_LEN_MAX, LogEntry, SNAPSHOT_LEN_MAX,
};
use epicepoch_wire::{LogIndex, NodeId, StorePosition, Term};

/// A summary of the stored data, as the checks need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// The hard state.
    pub(crate) hard_state: HardState,
    /// The record's index.
    pub(crate) record: u64,
    /// Index of the first stored entry; equal to `next` when there is none.
    pub(crate) first: u64,
    /// The index of the next entry.
    pub(crate) next: u64,
    /// Number of the last write, over all boots.
    pub(crate) position: StorePosition,
}

impl Stored {
    /// The summary right after the founding: only the record exists.
    pub(crate) fn founded(record: &Record) -> Self {
        assert!(record.index >= LogIndex(1) && record.term >= Term(1), "a record of nothing");
        assert_record_readable(record);
        let hard_state = HardState { term: record.term, vote: NodeId(0), commit: record.index };
        let next = record.index.0 + 1;
        let position = StorePosition(0);
        Self { hard_state, record: record.index.0, first: next, next, position }
    }

    /// The summary of data that was read back.
    ///
    /// # Errors
    /// The broken invariant.
    pub(crate) fn restored(restored: &Restored) -> Result<Self, String> {
        let Restored { hard_state, record, entries, positions } = restored;
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
        let (record, position) = (record.index.0, positions.own);
        Ok(Self { hard_state: *hard_state, record, first, next, position })
    }

    /// The summary after one more write.
    ///
    /// # Panics
    /// When the write breaks an invariant. It must not reach the disk.
    pub(crate) fn after(self, write: &Write) -> Self {
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
        assert!(write.position >= self.position, "the position goes back");
        after.position = write.position;
        after.assert_consistent(write);
        after
    }

    fn assert_consistent(&self, write: &Write) {
        let Self { hard_state, record, first, next, position: _ } = *self;
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

/// Checks that an entry can be read again: the codec refuses values above its limits.
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

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use epicepoch_core::positions::Positions;
    use epicepoch_disk::model::{Model, entry, genesis};

    use super::*;

    const LOG: std::ops::Range<u64> = 5..10;

    /// A member's data: record and commit are at 7, the log is from 5 to 9, the vote is for 2 in
    /// term 3.
    fn restored() -> Restored {
        let hard_state = HardState { term: Term(3), vote: NodeId(2), commit: LogIndex(7) };
        let record = Record { index: LogIndex(7), term: Term(2), ..genesis() };
        let entries = LOG.map(|index| entry(index, 2, 0)).collect();
        let positions = Positions { own: StorePosition(4), ..Positions::default() };
        Restored { hard_state, record, entries, positions }
    }

    fn hard_state(term: u64, vote: u64, commit: u64) -> Write {
        let hard_state =
            HardState { term: Term(term), vote: NodeId(vote), commit: LogIndex(commit) };
        Write { hard_state: Some(hard_state), position: StorePosition(5), ..Write::default() }
    }

    fn entries(indexes: &[u64], term: u64) -> Write {
        let entries = indexes.iter().map(|index| entry(*index, term, 0)).collect();
        Write { entries, position: StorePosition(5), ..Write::default() }
    }

    fn record(index: u64, compact_to: u64) -> Write {
        let record = Some(Record { index: LogIndex(index), ..genesis() });
        Write {
            record,
            compact_to: Some(LogIndex(compact_to)),
            position: StorePosition(5),
            ..Write::default()
        }
    }

    fn snapshot(index: u64, commit: u64) -> Write {
        let snapshot = Some(Record { index: LogIndex(index), ..genesis() });
        Write { snapshot, ..hard_state(3, 2, commit) }
    }

    #[test]
    fn writes_move_the_bounds() {
        let stored = Stored::restored(&restored()).unwrap();
        assert_eq!((stored.first, stored.record, stored.next), (5, 7, 10));
        let moved = |write: &Write| {
            let stored = stored.after(write);
            (stored.first, stored.record, stored.next)
        };
        assert_eq!(moved(&Write { position: StorePosition(4), ..Write::default() }), (5, 7, 10));
        assert_eq!(moved(&entries(&[10, 11], 3)), (5, 7, 12));
        assert_eq!(moved(&entries(&[8], 3)), (5, 7, 9));
        assert_eq!(moved(&record(7, 6)), (7, 7, 10));
        assert_eq!(moved(&record(7, 3)), (5, 7, 10));
        assert_eq!(moved(&snapshot(20, 20)), (21, 20, 21));
        assert_eq!(moved(&hard_state(4, 0, 9)), (5, 7, 10));
    }

    #[test]
    fn a_write_that_breaks_an_invariant_panics() {
        let stored = Stored::restored(&restored()).unwrap();
        let long = Write {
            entries: vec![entry(10, 3, ENTRY_LEN_MAX + 1)],
            position: StorePosition(5),
            ..Write::default()
        };
        for (broken, write) in [
            ("the term goes back", hard_state(2, 2, 7)),
            ("the commit goes back", hard_state(3, 2, 6)),
            ("the commit is beyond the log", hard_state(3, 2, 10)),
            ("the vote changes", hard_state(3, 1, 7)),
            ("the vote is taken back", hard_state(3, 0, 7)),
            ("a committed entry is replaced", entries(&[7], 3)),
            ("entries leave a gap", entries(&[11], 3)),
            ("entries are not consecutive", entries(&[10, 12], 3)),
            ("an entry has a term of nobody", entries(&[10], 4)),
            ("an entry could not be read back", long),
            ("the record is beyond the commit", record(8, 5)),
            ("the record goes back", record(6, 5)),
            ("the log is compacted beyond the record", record(7, 8)),
            ("a snapshot takes the commit back", snapshot(6, 7)),
            ("a snapshot is not committed", snapshot(20, 7)),
            ("the position goes back", Write { position: StorePosition(3), ..entries(&[10], 3) }),
        ] {
            assert!(catch_unwind(|| stored.after(&write)).is_err(), "{broken}");
        }
    }

    #[test]
    fn stored_data_that_breaks_an_invariant_is_rejected() {
        type Damage = fn(&mut Restored);
        let broken: [(&str, Damage); 9] = [
            ("the log has a gap", |r| drop(r.entries.remove(2))),
            ("the log begins after the record", |r| drop(r.entries.drain(..4))),
            ("the log ends before the record", |r| r.entries.truncate(2)),
            ("the log ends before the commit", |r| r.hard_state.commit = LogIndex(10)),
            ("the commit is before the record", |r| r.hard_state.commit = LogIndex(6)),
            ("terms go back in the log", |r| r.entries[1].term = Term(3)),
            ("the record has another term than its entry", |r| r.record.term = Term(1)),
            ("the hard state's term is below the log's", |r| r.hard_state.term = Term(1)),
            ("the record is of nothing", |r| {
                r.entries.clear();
                r.record.index = LogIndex(0);
                r.hard_state.commit = LogIndex(0);
            }),
        ];
        for (broken, damage) in broken {
            let mut restored = restored();
            damage(&mut restored);
            assert!(Stored::restored(&restored).is_err(), "{broken}");
        }
    }

    #[test]
    fn checking_each_write_is_checking_the_whole() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut model = Model::founded();
        let mut stored = Stored::founded(&genesis());
        for _ in 0..1000 {
            stored = model.batch(&mut random).iter().fold(stored, Stored::after);
            assert_eq!(Stored::restored(&model.restored), Ok(stored));
        }
    }
}
