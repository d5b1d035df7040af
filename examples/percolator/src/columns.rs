//! The rows of one store. Each has Percolator's three columns:
//!
//! - *data*: values by start timestamp.
//! - *lock*: at most one.
//! - *write*: which data is valid from which commit timestamp on. The mark of a rollback is at the
//!   transaction's start timestamp.
//!
//! A request is atomic on one row. Time is an argument, and only decides how long a lock is
//! respected. All versions stay in memory.

use std::collections::BTreeMap;
use std::time::Duration;

use epicepoch_client::Timestamp;

use crate::plant::Plant;
use crate::protocol::{Lock, Reply, Request, Row, Version};

#[derive(Debug, Default)]
pub struct Columns {
    rows: BTreeMap<String, Columned>,
    plant: Option<Plant>,
}

#[derive(Debug, Default)]
struct Columned {
    data: BTreeMap<Timestamp, i64>,
    lock: Option<Held>,
    write: BTreeMap<Timestamp, Write>,
}

#[derive(Debug)]
struct Held {
    lock: Lock,
    expires: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    Put { start: Timestamp },
    Rollback,
}

/// The outcome of a transaction according to the write column.
enum Fate {
    Committed(Timestamp),
    RolledBack,
    Unknown,
}

impl Columns {
    /// Makes an empty store. `plant` is a planted mistake, for tests of the checker.
    pub fn new(plant: Option<Plant>) -> Self {
        Self { plant, ..Self::default() }
    }

    /// Executes a request. `now` may come from any clock that does not go back.
    pub fn handle(&mut self, request: Request, now: Duration) -> Reply {
        let plant = self.plant;
        match request {
            Request::Get { row, at } => {
                let past_locks = plant == Some(Plant::ReadPastLocks);
                self.rows.get(&row).map_or(Reply::Missing, |row| row.get(at, past_locks))
            }
            Request::Prewrite { row, start, value, primary, ttl_ms } => {
                let held = Held {
                    lock: Lock { start, primary },
                    expires: now + Duration::from_millis(ttl_ms),
                };
                let checks = plant != Some(Plant::NoConflictCheck);
                self.rows.entry(row).or_default().prewrite(held, value, checks)
            }
            Request::Commit { row, start, commit } => {
                let is_late_allowed = plant == Some(Plant::LateCommit);
                self.rows.entry(row).or_default().commit(start, commit, is_late_allowed)
            }
            Request::Rollback { row, start } => self.rows.entry(row).or_default().rollback(start),
            Request::Status { row, start } => self.rows.entry(row).or_default().status(start, now),
        }
    }

    /// All rows, with their versions.
    pub fn rows(&self) -> impl Iterator<Item = Row> {
        self.rows.iter().map(|(name, row)| row.dump(name))
    }
}

impl Columned {
    fn get(&self, at: Timestamp, past_locks: bool) -> Reply {
        if let Some(held) = &self.lock
            && held.lock.start <= at
            && !past_locks
        {
            // The lock's owner may already have a commit timestamp below `at`.
            return Reply::Locked(held.lock.clone());
        }
        let mut versions = self.write.range(..=at).rev();
        versions
            .find_map(|(commit, write)| self.version(*commit, *write))
            .map_or(Reply::Missing, Reply::Value)
    }

    fn prewrite(&mut self, held: Held, value: i64, checks: bool) -> Reply {
        let start = held.lock.start;
        if let Some(other) = &self.lock
            && other.lock.start != start
        {
            return Reply::Locked(other.lock.clone());
        }
        match self.fate(start) {
            Fate::RolledBack => return Reply::RolledBack,
            Fate::Committed(commit) => return Reply::Committed { commit },
            Fate::Unknown => {}
        }
        let mut puts = self.write.range(start..).rev();
        let newest = puts.find(|(_, write)| **write != Write::Rollback);
        if let Some((commit, _)) = newest
            && checks
        {
            return Reply::Conflict { commit: *commit };
        }
        self.data.insert(start, value);
        self.lock = Some(held);
        Reply::Done
    }

    fn commit(&mut self, start: Timestamp, commit: Timestamp, is_late_allowed: bool) -> Reply {
        if self.lock.take_if(|held| held.lock.start == start).is_some() || is_late_allowed {
            self.write.insert(commit, Write::Put { start });
            return Reply::Done;
        }
        match self.fate(start) {
            Fate::Committed(_) => Reply::Done,
            // Another transaction has already removed the expired lock.
            Fate::RolledBack | Fate::Unknown => Reply::RolledBack,
        }
    }

    fn rollback(&mut self, start: Timestamp) -> Reply {
        if let Fate::Committed(commit) = self.fate(start) {
            return Reply::Committed { commit };
        }
        self.lock.take_if(|held| held.lock.start == start);
        self.data.remove(&start);
        // Leave a mark, so that a prewrite of this transaction that comes later is refused.
        self.write.insert(start, Write::Rollback);
        Reply::RolledBack
    }

    fn status(&mut self, start: Timestamp, now: Duration) -> Reply {
        if let Some(held) = &self.lock
            && held.lock.start == start
            && let Some(left) = held.expires.checked_sub(now)
            && !left.is_zero()
        {
            return Reply::Alive { left_ms: left.as_millis() as u64 };
        }
        self.rollback(start)
    }

    /// Finds the outcome of a transaction. A commit timestamp is above its start timestamp, except
    /// with planted mistakes. So only the few entries above the start are read.
    fn fate(&self, start: Timestamp) -> Fate {
        if self.write.get(&start) == Some(&Write::Rollback) {
            return Fate::RolledBack;
        }
        let mut above = self.write.range(start..);
        above
            .find(|(_, write)| **write == Write::Put { start })
            .map_or(Fate::Unknown, |(commit, _)| Fate::Committed(*commit))
    }

    fn version(&self, commit: Timestamp, write: Write) -> Option<Version> {
        match write {
            // Data is missing only with a planted mistake: a commit after its rollback, or a commit
            // timestamp lower than its start timestamp. Then `fate` does not find the commit, and a
            // rollback removes the data.
            Write::Put { start } => {
                let value = *self.data.get(&start)?;
                Some(Version { commit, start, value })
            }
            Write::Rollback => None,
        }
    }

    fn dump(&self, name: &str) -> Row {
        Row {
            row: name.to_owned(),
            versions: self
                .write
                .iter()
                .filter_map(|(commit, write)| self.version(*commit, *write))
                .collect(),
            lock: self.lock.as_ref().map(|held| held.lock.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(number: u128) -> Timestamp {
        Timestamp::from(number)
    }

    fn row() -> String {
        "account/1".to_owned()
    }

    fn prewrite(start: u128) -> Request {
        let (row, primary) = (row(), row());
        Request::Prewrite { row, start: at(start), value: 7, primary, ttl_ms: 100 }
    }

    fn commit(start: u128, commit: u128) -> Request {
        Request::Commit { row: row(), start: at(start), commit: at(commit) }
    }

    fn status(start: u128) -> Request {
        Request::Status { row: row(), start: at(start) }
    }

    fn get(snapshot: u128) -> Request {
        Request::Get { row: row(), at: at(snapshot) }
    }

    /// Executes requests, each at the given time in milliseconds. Returns the replies.
    fn replies(requests: impl IntoIterator<Item = (u64, Request)>) -> Vec<Reply> {
        let mut columns = Columns::new(None);
        let handle = |(now, request)| columns.handle(request, Duration::from_millis(now));
        requests.into_iter().map(handle).collect()
    }

    #[test]
    fn a_lock_is_in_the_way_of_snapshots_above_it_alone() {
        let found = replies([(0, prewrite(10)), (0, get(9)), (0, get(10))]);
        let lock = Lock { start: at(10), primary: row() };
        assert_eq!(found[1..], [Reply::Missing, Reply::Locked(lock)]);
    }

    #[test]
    fn a_lock_is_respected_until_its_time_is_over_and_not_longer() {
        let found = replies([(0, prewrite(10)), (99, status(10)), (100, status(10))]);
        assert_eq!(found[1..], [Reply::Alive { left_ms: 1 }, Reply::RolledBack]);
    }

    #[test]
    fn a_rolled_back_transaction_can_neither_commit_nor_begin_again() {
        let found = replies([
            (0, prewrite(10)),
            (100, status(10)),
            (101, commit(10, 20)),
            (102, prewrite(10)),
            (103, get(30)),
        ]);
        assert_eq!(found[2..], [Reply::RolledBack, Reply::RolledBack, Reply::Missing]);
    }

    /// Another client asks for the transaction's status before the lock of the primary row arrives.
    /// The store answers with a rollback, so it must refuse the lock.
    #[test]
    fn a_lock_that_comes_after_its_rollback_is_refused() {
        let found = replies([(0, status(10)), (1, prewrite(10))]);
        assert_eq!(found, [Reply::RolledBack, Reply::RolledBack]);
    }

    #[test]
    fn a_committed_write_is_not_rolled_back_and_its_answers_repeat() {
        let rollback = Request::Rollback { row: row(), start: at(10) };
        let found = replies([
            (0, prewrite(10)),
            (0, prewrite(10)),
            (0, commit(10, 20)),
            (200, commit(10, 20)),
            (200, rollback),
            (200, status(10)),
        ]);
        let committed = Reply::Committed { commit: at(20) };
        assert_eq!(found[..4], vec![Reply::Done; 4]);
        assert_eq!(found[4..], [committed.clone(), committed]);
    }

    #[test]
    fn a_mark_of_a_rollback_is_no_conflict_for_others() {
        let found = replies([(0, status(30)), (0, prewrite(20))]);
        assert_eq!(found[1], Reply::Done);
    }
}
