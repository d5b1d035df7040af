//! The rows of one store, each in Percolator's three columns: *data* (values by start timestamp),
//! *lock* (at most one) and *write* (by commit timestamp, which data is valid from there; a
//! rollback stands at its own start timestamp). A request sees and changes one row, at once.
//!
//! It reads no clock: time is an argument, and only says how long a lock is respected. It keeps all
//! versions for ever, and nothing on a disk.

use std::collections::BTreeMap;
use std::time::Duration;

use epicepoch_client::Timestamp;

use crate::plant::Plant;
use crate::protocol::{Lock, Reply, Request, Row, Version};

/// All rows of a store.
#[derive(Debug, Default)]
pub struct Columns {
    rows: BTreeMap<String, Columned>,
    ticks: u64,
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

/// What the write column says of a transaction.
enum Fate {
    Committed(Timestamp),
    RolledBack,
    Unknown,
}

impl Columns {
    /// No rows. `plant` is a mistake to make, for tests of the checker.
    pub fn new(plant: Option<Plant>) -> Self {
        Self { plant, ..Self::default() }
    }

    /// Carries one request out. `now` is on any clock that does not go back.
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
                self.rows.entry(row).or_default().commit(start, commit)
            }
            Request::Rollback { row, start } => self.rows.entry(row).or_default().rollback(start),
            Request::Status { row, start } => self.rows.entry(row).or_default().status(start, now),
            Request::Tick => {
                self.ticks += 1;
                Reply::Tick { tick: self.ticks }
            }
            Request::Dump { after } => self.dump(&after),
        }
    }

    fn dump(&self, after: &str) -> Reply {
        let mut above = self
            .rows
            .range::<str, _>((std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded));
        above.next().map_or(Reply::End, |(name, row)| Reply::Row(row.dump(name)))
    }
}

impl Columned {
    fn get(&self, at: Timestamp, past_locks: bool) -> Reply {
        if let Some(held) = &self.lock
            && held.lock.start <= at
            && !past_locks
        {
            // Its owner may have a commit timestamp below `at` already.
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

    fn commit(&mut self, start: Timestamp, commit: Timestamp) -> Reply {
        if self.lock.take_if(|held| held.lock.start == start).is_some() {
            self.write.insert(commit, Write::Put { start });
            return Reply::Done;
        }
        match self.fate(start) {
            Fate::Committed(_) => Reply::Done,
            // Whoever found the lock too old has removed it.
            Fate::RolledBack | Fate::Unknown => Reply::RolledBack,
        }
    }

    fn rollback(&mut self, start: Timestamp) -> Reply {
        if let Fate::Committed(commit) = self.fate(start) {
            return Reply::Committed { commit };
        }
        self.lock.take_if(|held| held.lock.start == start);
        self.data.remove(&start);
        // It stays, so that a prewrite that is still under way comes too late.
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

    /// Commits stand above their start, but for planted mistakes, so this looks at few entries.
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
            // A planted duplicate may have taken the data with it.
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
