//! A transaction by Percolator's protocol (Peng and Dabek, OSDI 2010, section 2.2): it reads the
//! snapshot at its start timestamp, locks what it writes, takes its commit timestamp when it holds
//! every lock, and is committed at the moment when its primary row is. Whoever finds a lock whose
//! owner is dead asks the primary what became of it, and finishes or removes it.
//!
//! It never waits for a lock while it holds one, so there are no deadlocks.

use std::collections::BTreeMap;
use std::time::Duration;

use epicepoch_client::Timestamp;

use crate::history::{Course, Ended, Kind, Line, Outcome, Seen, Stamp, Trying, Why, Written};
use crate::plant::{Plant, Purpose};
use crate::protocol::{Lock, Reply, Request};
use crate::world::{Setback, World};

/// A transaction under way.
#[derive(Debug)]
pub struct Transaction<'a, W> {
    world: &'a mut W,
    start: Stamp,
    reads: Vec<Seen>,
    writes: BTreeMap<String, i64>,
    course: Course,
}

/// Why the body of a transaction went no further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It is to be given up.
    Aborted(Why),
    /// The world is at fault.
    Setback(Setback),
}

impl From<Setback> for Stopped {
    fn from(setback: Setback) -> Self {
        Self::Setback(setback)
    }
}

/// Runs `body` in a transaction, commits what it wrote, and records all of it.
///
/// # Errors
/// See [`Setback`]. If it is not [`Setback::Unavailable`], nobody knows what came of it.
pub fn transact<W: World>(
    world: &mut W,
    kind: Kind,
    body: impl FnOnce(&mut Transaction<'_, W>) -> Result<(), Stopped>,
) -> Result<Outcome, Setback> {
    let began = world.now();
    let mut course = Course::default();
    let start = stamp(world, Purpose::Start, &mut course)?;
    let mut transaction =
        Transaction { world, start, reads: Vec::new(), writes: BTreeMap::new(), course };
    let ended = body(&mut transaction).and_then(|()| transaction.commit());
    let outcome = match ended {
        Ok(outcome) => outcome,
        Err(Stopped::Aborted(why)) => Outcome::Aborted { why },
        Err(Stopped::Setback(setback)) => return Err(setback),
    };
    let Transaction { world, start, reads, writes, mut course } = transaction;
    let now = world.now();
    course.ended_ms = now.as_millis() as u64;
    course.took_us = now.saturating_sub(began).as_micros() as u64;
    let client = world.name().to_owned();
    let writes = written(writes);
    let ended = Ended { client, kind, start, reads, writes, outcome: outcome.clone(), course };
    world.record(&Line::Ended(ended))?;
    Ok(outcome)
}

impl<W: World> Transaction<'_, W> {
    /// The row as of the start timestamp, or as this transaction has written it.
    ///
    /// # Errors
    /// [`Stopped::Aborted`] if somebody held a lock on it for too long.
    pub fn read(&mut self, row: &str) -> Result<Option<i64>, Stopped> {
        if let Some(value) = self.writes.get(row) {
            return Ok(Some(*value));
        }
        for attempt in 0..READ_ATTEMPTS_MAX {
            let version =
                match self.call(Request::Get { row: row.to_owned(), at: self.start.at })? {
                    Reply::Value(version) => Some(version),
                    Reply::Missing => None,
                    Reply::Locked(lock) => {
                        // A lock below the snapshot: its owner's commit may be part of it, or not.
                        if !self.resolve(row, lock)? {
                            self.world.pause(PAUSE_MIN * (1 << attempt.min(PAUSE_DOUBLINGS)))?;
                        }
                        continue;
                    }
                    other => return Err(Setback::unexpected(&other).into()),
                };
            self.reads.push(Seen { row: row.to_owned(), version });
            return Ok(version.map(|version| version.value));
        }
        Err(Stopped::Aborted(Why::Locked))
    }

    /// The row becomes `value` if the transaction commits.
    pub fn write(&mut self, row: &str, value: i64) {
        self.writes.insert(row.to_owned(), value);
    }

    fn commit(&mut self) -> Result<Outcome, Stopped> {
        let writes = written(self.writes.clone());
        let Some(primary) = writes.first().map(|first| first.row.clone()) else {
            return Ok(Outcome::ReadOnly);
        };
        let client = self.world.name().to_owned();
        let trying = Trying { client, start: self.start.at, writes: writes.clone() };
        self.world.record(&Line::Trying(trying))?;
        let too_early = if self.world.plant() == Some(Plant::CommitBeforeLocks) {
            Some(self.commit_stamp(&[])?)
        } else {
            None
        };
        // 1. Lock every row, the primary first.
        for (at, written) in writes.iter().enumerate() {
            if let Err(why) = self.prewrite(written, &primary)? {
                return self.abort(&writes[..at], why);
            }
        }
        // 2. Only now the commit timestamp: whoever starts above it finds the locks or the commits.
        let commit = match too_early {
            Some(commit) => commit,
            None => self.commit_stamp(&writes)?,
        };
        // 3. The primary decides.
        match self.call(self.commit_of(&primary, commit.at))? {
            Reply::Done => {}
            Reply::RolledBack => return self.abort(&writes[1..], Why::RolledBack),
            other => return Err(Setback::unexpected(&other).into()),
        }
        // 4. The others follow. Were we killed here, whoever reads them would do it.
        for written in &writes[1..] {
            match self.call(self.commit_of(&written.row, commit.at))? {
                // Rolled back means that somebody ignored the primary: the checker will tell.
                Reply::Done | Reply::RolledBack => {}
                other => return Err(Setback::unexpected(&other).into()),
            }
        }
        Ok(Outcome::Committed { commit })
    }

    fn prewrite(&mut self, written: &Written, primary: &str) -> Result<Result<(), Why>, Setback> {
        let request = Request::Prewrite {
            row: written.row.clone(),
            start: self.start.at,
            value: written.value,
            primary: primary.to_owned(),
            ttl_ms: LOCK_TTL.as_millis() as u64,
        };
        for _ in 0..PREWRITE_ATTEMPTS_MAX {
            match self.call(request.clone())? {
                Reply::Done => return Ok(Ok(())),
                // The second one: somebody else has this start timestamp, too. Never, unless planted.
                Reply::Conflict { .. } | Reply::Committed { .. } => return Ok(Err(Why::Conflict)),
                Reply::RolledBack => return Ok(Err(Why::RolledBack)),
                Reply::Locked(lock) => {
                    if !self.resolve(&written.row, lock)? {
                        break;
                    }
                }
                other => return Err(Setback::unexpected(&other)),
            }
        }
        // Two that wait for each other while they hold locks would wait for ever.
        Ok(Err(Why::Locked))
    }

    /// Removes a lock whose owner is done or dead; false if the owner may be at work. The primary's
    /// store alone decides which: its answer binds the owner, too.
    fn resolve(&mut self, row: &str, lock: Lock) -> Result<bool, Setback> {
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
                    self.course.forward += 1;
                }
            }
            Reply::RolledBack => {
                if !is_primary {
                    self.call(Request::Rollback { row, start })?;
                }
                self.course.back += 1;
            }
            other => return Err(Setback::unexpected(&other)),
        }
        Ok(true)
    }

    /// The commit timestamp; without one, `locked` is given back.
    fn commit_stamp(&mut self, locked: &[Written]) -> Result<Stamp, Stopped> {
        match stamp(self.world, Purpose::Commit, &mut self.course) {
            Ok(stamp) => Ok(stamp),
            Err(Setback::Unavailable(_)) => {
                self.roll_back(locked)?;
                Err(Stopped::Aborted(Why::NoTimestamp))
            }
            Err(setback) => Err(setback.into()),
        }
    }

    fn abort(&mut self, locked: &[Written], why: Why) -> Result<Outcome, Stopped> {
        self.roll_back(locked)?;
        Err(Stopped::Aborted(why))
    }

    fn roll_back(&mut self, locked: &[Written]) -> Result<(), Setback> {
        for written in locked {
            self.call(Request::Rollback { row: written.row.clone(), start: self.start.at })?;
        }
        Ok(())
    }

    fn commit_of(&self, row: &str, commit: Timestamp) -> Request {
        Request::Commit { row: row.to_owned(), start: self.start.at, commit }
    }

    fn call(&mut self, request: Request) -> Result<Reply, Setback> {
        self.world.call(request)
    }
}

/// Asks for a timestamp, between two numbers of the witness.
fn stamp<W: World>(world: &mut W, purpose: Purpose, course: &mut Course) -> Result<Stamp, Setback> {
    let asked = tick(world)?;
    let from = world.now();
    let at = world.timestamp(purpose)?;
    let took = world.now().saturating_sub(from).as_micros() as u64;
    course.oracle_us = course.oracle_us.max(took);
    Ok(Stamp { asked, at, answered: tick(world)? })
}

fn tick<W: World>(world: &mut W) -> Result<u64, Setback> {
    match world.call(Request::Tick)? {
        Reply::Tick { tick } => Ok(tick),
        other => Err(Setback::unexpected(&other)),
    }
}

fn written(writes: BTreeMap<String, i64>) -> Vec<Written> {
    writes.into_iter().map(|(row, value)| Written { row, value }).collect()
}

/// How long others respect a lock: far longer than a transaction takes, and rather longer than the
/// oracle is without a leader, so that few are rolled back for that.
pub const LOCK_TTL: Duration = Duration::from_millis(500);
/// First pause before a locked row is read again; it doubles up to [`PAUSE_DOUBLINGS`] times.
const PAUSE_MIN: Duration = Duration::from_micros(250);
const PAUSE_DOUBLINGS: u32 = 6;
/// After that the transaction is given up: some two seconds, four times [`LOCK_TTL`].
const READ_ATTEMPTS_MAX: u32 = 128;
/// A lock that was removed may be followed by another one.
const PREWRITE_ATTEMPTS_MAX: u32 = 3;
