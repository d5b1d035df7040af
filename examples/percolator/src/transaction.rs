//! A transaction by Percolator's protocol (Peng and Dabek, OSDI 2010, section 2.2). It reads the
//! snapshot at its start timestamp, and locks its rows. When it holds every lock, it takes its
//! commit timestamp. It is committed when its primary row is committed. A transaction that finds a
//! lock of a dead client asks the primary for the outcome, and rolls the lock forward or back.
//!
//! A transaction never waits for a lock while it holds one, so there are no deadlocks.
//!
//! In interval mode, it waits out both of its timestamps: the start timestamp before its first
//! read, so that no later commit is at or below it, and the commit timestamp before it ends, so
//! that every later snapshot has the commit. It holds no lock while it waits.

use std::collections::BTreeMap;
use std::time::Duration;

use epicepoch_client::{Epoch, Timestamp};

use crate::history::{Ended, Figures, Kind, Line, Outcome, Seen, Trying, Why, Written};
use crate::plant::Plant;
use crate::protocol::{Lock, Reply, Request};
use crate::world::{World, WorldError};

/// A running transaction.
#[derive(Debug)]
pub struct Transaction<'a, W> {
    world: &'a mut W,
    start: Timestamp,
    reads: Vec<Seen>,
    writes: BTreeMap<String, i64>,
    figures: Figures,
}

/// Why a transaction stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The transaction aborts.
    Aborted(Why),
    /// Stores, oracle or records failed.
    WorldError(WorldError),
}

impl From<WorldError> for Stopped {
    fn from(error: WorldError) -> Self {
        Self::WorldError(error)
    }
}

/// Runs `body` in a transaction, commits its writes, and records it.
pub fn transact<W: World>(
    world: &mut W,
    kind: Kind,
    body: impl FnOnce(&mut Transaction<'_, W>) -> Result<(), Stopped>,
) -> Result<Outcome, WorldError> {
    let began = world.now();
    let mut start = world.timestamp()?;
    world.commit_wait();
    if world.plant() == Some(Plant::ClockAhead) {
        start.epoch = Epoch(start.epoch.0 + AHEAD_NS);
    }
    let mut transaction = Transaction {
        world,
        start,
        reads: Vec::new(),
        writes: BTreeMap::new(),
        figures: Figures::default(),
    };
    let ended = body(&mut transaction).and_then(|()| transaction.commit());
    let outcome = match ended {
        Ok(outcome) => outcome,
        Err(Stopped::Aborted(why)) => Outcome::Aborted { why },
        Err(Stopped::WorldError(error)) => return Err(error),
    };
    let Transaction { world, start, reads, writes, figures } = transaction;
    let client = world.name().to_owned();
    let writes = written(writes);
    let (result, ended) = (outcome.clone(), world.now());
    let line = Ended { client, kind, start, reads, writes, outcome: result, figures, began, ended };
    world.record(&Line::Ended(line));
    Ok(outcome)
}

/// Returns the commit timestamp of a transaction that ended with [`WorldError::Unknown`], or `None`
/// if it has not committed. In that case it never will, because this call rolls it back: so a
/// request to commit that arrives later is refused. Only the transaction's own client may call this,
/// because it does not wait until the lock expires. If it fails, call it again.
pub fn outcome_of<W: World>(
    world: &mut W,
    start: Timestamp,
    primary: &str,
) -> Result<Option<Timestamp>, WorldError> {
    match world.call(Request::Rollback { row: primary.to_owned(), start })? {
        Reply::Committed { commit } => Ok(Some(commit)),
        Reply::RolledBack => Ok(None),
        other => Err(WorldError::unexpected(&other)),
    }
}

impl<W: World> Transaction<'_, W> {
    /// Returns the row's value at the start timestamp. If this transaction has written the row,
    /// returns the written value.
    pub fn read(&mut self, row: &str) -> Result<Option<i64>, Stopped> {
        if let Some(value) = self.writes.get(row) {
            return Ok(Some(*value));
        }
        for attempt in 0..READ_ATTEMPTS_MAX {
            let version = match self.call(Request::Get { row: row.to_owned(), at: self.start })? {
                Reply::Value(version) => Some(version),
                Reply::Missing => None,
                Reply::Locked(lock) => {
                    // The lock's owner may commit at a timestamp that belongs to this snapshot. So
                    // resolve the lock before reading.
                    if !self.resolve(row, lock)? {
                        self.world.pause(PAUSE_MIN * (1 << attempt.min(PAUSE_DOUBLINGS)));
                    }
                    continue;
                }
                other => return Err(WorldError::unexpected(&other).into()),
            };
            self.reads.push(Seen { row: row.to_owned(), version });
            return Ok(version.map(|version| version.value));
        }
        Err(Stopped::Aborted(Why::Locked))
    }

    /// Sets the row's value. It takes effect if the transaction commits.
    pub fn write(&mut self, row: &str, value: i64) {
        self.writes.insert(row.to_owned(), value);
    }

    fn commit(&mut self) -> Result<Outcome, Stopped> {
        let writes = written(self.writes.clone());
        let Some(primary) = writes.first().map(|first| first.row.clone()) else {
            return Ok(Outcome::ReadOnly);
        };
        let client = self.world.name().to_owned();
        let trying = Trying { client, start: self.start, writes: writes.clone() };
        self.world.record(&Line::Trying(trying));
        let too_early = if self.world.plant() == Some(Plant::CommitBeforeLocks) {
            Some(self.commit_timestamp(&[])?)
        } else {
            None
        };
        // 1. Lock every row, the primary first.
        for (at, written) in writes.iter().enumerate() {
            if let Err(why) = self.prewrite(written, &primary)? {
                return self.abort(&writes[..at], why);
            }
        }
        // 2. Only now take the commit timestamp. A transaction that starts later finds the locks or
        //    the commits.
        let commit = match too_early {
            Some(commit) => commit,
            None => self.commit_timestamp(&writes)?,
        };
        // 3. Commit the primary row. This decides the outcome. Without a reply the outcome is not
        //    known: a caller that tried again might pay twice.
        match self.call(self.commit_of(&primary, commit)) {
            Ok(Reply::Done) => {}
            Ok(Reply::RolledBack) => return self.abort(&writes[1..], Why::RolledBack),
            Ok(other) => return Err(WorldError::unexpected(&other).into()),
            Err(WorldError::Unavailable(why)) => {
                return Err(WorldError::Unknown { start: self.start, primary, why }.into());
            }
            Err(error) => return Err(error.into()),
        }
        // 4. Commit the other rows. No reply and no failure changes the outcome any more: the
        //    readers of a row that is still locked commit it. If another client ignored the
        //    primary, the checker will find that.
        for written in &writes[1..] {
            if self.call(self.commit_of(&written.row, commit)) == Err(WorldError::Killed) {
                return Err(WorldError::Killed.into());
            }
        }
        // 5. In interval mode, wait until the commit is in the past for everybody. Only then may
        //    the caller hear of it.
        self.world.commit_wait();
        Ok(Outcome::Committed { commit })
    }

    fn prewrite(
        &mut self,
        written: &Written,
        primary: &str,
    ) -> Result<Result<(), Why>, WorldError> {
        let request = Request::Prewrite {
            row: written.row.clone(),
            start: self.start,
            value: written.value,
            primary: primary.to_owned(),
            ttl_ms: LOCK_TTL.as_millis() as u64,
        };
        for _ in 0..PREWRITE_ATTEMPTS_MAX {
            match self.call(request.clone())? {
                Reply::Done => return Ok(Ok(())),
                // `Committed` means that another transaction has the same start timestamp, which
                // the oracle never gives.
                Reply::Conflict { .. } | Reply::Committed { .. } => return Ok(Err(Why::Conflict)),
                Reply::RolledBack => return Ok(Err(Why::RolledBack)),
                Reply::Locked(lock) => {
                    if !self.resolve(&written.row, lock)? {
                        break;
                    }
                }
                other => return Err(WorldError::unexpected(&other)),
            }
        }
        // Abort instead of waiting. Two transactions that hold locks and wait for each other would
        // wait for ever.
        Ok(Err(Why::Locked))
    }

    /// Removes a lock whose owner has ended or died. Returns false if the owner may still be
    /// running. Only the primary's store decides, and its decision also binds the owner.
    fn resolve(&mut self, row: &str, lock: Lock) -> Result<bool, WorldError> {
        let Lock { start, primary } = lock;
        let row = row.to_owned();
        if self.world.plant() == Some(Plant::IgnorePrimary) {
            self.call(Request::Rollback { row, start })?;
            return Ok(true);
        }
        let is_primary = row == primary;
        match self.call(Request::Status { row: primary, start })? {
            Reply::Alive { .. } => return Ok(false),
            Reply::Committed { commit } => {
                if !is_primary {
                    self.call(Request::Commit { row, start, commit })?;
                    self.figures.forward += 1;
                }
            }
            Reply::RolledBack => {
                if !is_primary {
                    self.call(Request::Rollback { row, start })?;
                }
                self.figures.back += 1;
            }
            other => return Err(WorldError::unexpected(&other)),
        }
        Ok(true)
    }

    /// Gets the commit timestamp. If no timestamp comes in time, rolls back the rows in `locked`.
    fn commit_timestamp(&mut self, locked: &[Written]) -> Result<Timestamp, Stopped> {
        match self.world.timestamp() {
            Ok(commit) => Ok(commit),
            Err(WorldError::Unavailable(_)) => {
                self.roll_back(locked)?;
                Err(Stopped::Aborted(Why::NoTimestamp))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn abort(&mut self, locked: &[Written], why: Why) -> Result<Outcome, Stopped> {
        self.roll_back(locked)?;
        Err(Stopped::Aborted(why))
    }

    fn roll_back(&mut self, locked: &[Written]) -> Result<(), WorldError> {
        for written in locked {
            self.call(Request::Rollback { row: written.row.clone(), start: self.start })?;
        }
        Ok(())
    }

    fn commit_of(&self, row: &str, commit: Timestamp) -> Request {
        Request::Commit { row: row.to_owned(), start: self.start, commit }
    }

    fn call(&mut self, request: Request) -> Result<Reply, WorldError> {
        self.world.call(request)
    }
}

fn written(writes: BTreeMap<String, i64>) -> Vec<Written> {
    writes.into_iter().map(|(row, value)| Written { row, value }).collect()
}

/// How long other transactions respect a lock. This is much longer than a transaction takes, and
/// longer than the oracle is without a leader.
pub const LOCK_TTL: Duration = Duration::from_millis(500);
/// How far a planted clock is ahead: well above the epoch interval, because a smaller offset could
/// go unnoticed.
const AHEAD_NS: u64 = 250_000_000;
/// First pause before a locked row is read again; it doubles up to [`PAUSE_DOUBLINGS`] times.
const PAUSE_MIN: Duration = Duration::from_micros(250);
const PAUSE_DOUBLINGS: u32 = 6;
/// At most this many attempts to read a locked row. They take about two seconds, four times
/// [`LOCK_TTL`]. After that the transaction aborts.
const READ_ATTEMPTS_MAX: u32 = 128;
/// At most this many attempts to lock a row. When one lock is removed, another transaction may lock
/// the row first.
const PREWRITE_ATTEMPTS_MAX: u32 = 3;
