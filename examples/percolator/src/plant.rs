//! Planted mistakes: a checker that never found anything proves nothing.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

use epicepoch_client::{Epoch, Timestamp};
use thiserror::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// Start timestamps come from a stock fetched earlier.
    StaleStart,
    /// Start timestamps come from a local clock that is ahead.
    ClockAhead,
    /// The commit timestamp is taken before the rows are locked.
    CommitBeforeLocks,
    /// A store locks a row although the row has a commit after the transaction's start.
    NoConflictCheck,
    /// A store ignores locks on reads.
    ReadPastLocks,
    /// A lock is removed without asking its primary.
    IgnorePrimary,
    /// The oracle sometimes repeats a timestamp.
    Duplicate,
    /// The oracle sometimes falls behind its earlier timestamps.
    Backward,
}

#[derive(Debug, Error)]
#[error("there is no plant {0:?}; there are: {list}", list = names())]
pub struct UnknownPlant(String);

/// The purpose of a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The snapshot of a transaction.
    Start,
    /// The commit of its writes.
    Commit,
}

/// Makes the planted mistakes with timestamps. The threads of one process share it.
#[derive(Debug)]
pub struct Falsifier {
    plant: Option<Plant>,
    stock: VecDeque<Timestamp>,
    asked: u64,
}

impl Plant {
    pub const ALL: [Self; 8] = [
        Self::StaleStart,
        Self::ClockAhead,
        Self::CommitBeforeLocks,
        Self::NoConflictCheck,
        Self::ReadPastLocks,
        Self::IgnorePrimary,
        Self::Duplicate,
        Self::Backward,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::StaleStart => "stale-start",
            Self::ClockAhead => "clock-ahead",
            Self::CommitBeforeLocks => "commit-before-locks",
            Self::NoConflictCheck => "no-conflict-check",
            Self::ReadPastLocks => "read-past-locks",
            Self::IgnorePrimary => "ignore-primary",
            Self::Duplicate => "duplicate",
            Self::Backward => "backward",
        }
    }
}

impl Falsifier {
    /// Makes the given mistake, or none.
    pub fn new(plant: Option<Plant>) -> Self {
        Self { plant, stock: VecDeque::new(), asked: 0 }
    }

    /// Returns the timestamp to use. `fetch` gets one from the oracle.
    pub fn timestamp<E>(
        &mut self,
        purpose: Purpose,
        mut fetch: impl FnMut() -> Result<Timestamp, E>,
    ) -> Result<Timestamp, E> {
        self.asked += 1;
        let is_wrong_now = self.asked.is_multiple_of(SELDOM);
        match (self.plant, purpose) {
            (Some(Plant::StaleStart), Purpose::Start) => {
                if let Some(stale) = self.stock.pop_front() {
                    return Ok(stale);
                }
                for _ in 0..STOCK {
                    self.stock.push_back(fetch()?);
                }
                fetch()
            }
            (Some(Plant::ClockAhead), Purpose::Start) => Ok(shifted(fetch()?, AHEAD_NS)),
            (Some(Plant::Duplicate), _) => {
                if let Some(given) = self.stock.pop_front().filter(|_| is_wrong_now) {
                    return Ok(given);
                }
                let honest = fetch()?;
                self.stock.push_back(honest);
                Ok(honest)
            }
            (Some(Plant::Backward), _) if is_wrong_now => Ok(shifted(fetch()?, -AHEAD_NS)),
            (_, Purpose::Start | Purpose::Commit) => fetch(),
        }
    }
}

impl FromStr for Plant {
    type Err = UnknownPlant;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|plant| plant.name() == name);
        known.ok_or_else(|| UnknownPlant(name.to_owned()))
    }
}

impl fmt::Display for Plant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn names() -> String {
    Plant::ALL.map(Plant::name).join(", ")
}

fn shifted(at: Timestamp, ns: i64) -> Timestamp {
    Timestamp::new(Epoch(at.epoch.0.saturating_add_signed(ns)), at.index)
}

/// Number of start timestamps that a client fetches in advance.
const STOCK: usize = 16;
/// How far the wrong clock is off. It is well above the epoch interval, because a smaller offset
/// could go unnoticed.
const AHEAD_NS: i64 = 250_000_000;
/// One timestamp in this many is wrong.
const SELDOM: u64 = 7;
