//! Mistakes that people make with such a protocol, to be made on purpose: a checker that never
//! caught anything proves nothing.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

use epicepoch_client::{Epoch, Timestamp};
use thiserror::Error;

/// One mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// Start timestamps come from a stock that was fetched earlier.
    StaleStart,
    /// Start timestamps come from a local clock, which is ahead.
    ClockAhead,
    /// The commit timestamp is asked for before the rows are locked.
    CommitBeforeLocks,
    /// A store locks a row that somebody has committed to since the start.
    NoConflictCheck,
    /// A store answers reads as if locks were not there.
    ReadPastLocks,
    /// A lock in the way is removed without asking its primary.
    IgnorePrimary,
    /// Now and then the oracle gives a timestamp a second time.
    Duplicate,
    /// Now and then the oracle falls behind what it gave before.
    Backward,
}

/// No such mistake.
#[derive(Debug, Error)]
#[error("there is no plant {0:?}; there are: {list}", list = names())]
pub struct UnknownPlant(String);

/// What a timestamp is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The snapshot of a transaction.
    Start,
    /// The place of its writes.
    Commit,
}

/// Makes the mistakes that concern timestamps. Threads of one process share it.
#[derive(Debug)]
pub struct Falsifier {
    plant: Option<Plant>,
    stock: VecDeque<Timestamp>,
    asked: u64,
}

impl Plant {
    /// All of them.
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
    /// One that makes this mistake, or none.
    pub fn new(plant: Option<Plant>) -> Self {
        Self { plant, stock: VecDeque::new(), asked: 0 }
    }

    /// The timestamp that is used instead of the one that `fetch` gets from the oracle.
    ///
    /// # Errors
    /// Those of `fetch`.
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

/// How many start timestamps a stale client keeps in stock.
const STOCK: usize = 16;
/// How far the wrong clock is off: well above the epoch interval, which hides less.
const AHEAD_NS: i64 = 250_000_000;
/// One of so many timestamps is wrong.
const SELDOM: u64 = 7;
