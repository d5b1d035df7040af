//! The simplest client. Its callers take turns, and each sends its own request. The client keeps
//! the whole contract, without optimizations such as shared requests or several requests in flight.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use epicepoch_conformance::{Fault, Refusal};
use epicepoch_wire::TimestampRange;
use epicepoch_wire::http::RANGE_COUNT_MAX;

use crate::known::Known;
use crate::plant::Plant;

/// The simplest client.
#[derive(Debug)]
pub(crate) struct Client {
    turns: Mutex<Turns>,
    changed: Condvar,
    is_closed: AtomicBool,
    plant: Plant,
}

#[derive(Debug)]
struct Turns {
    /// The state of the client. The caller whose turn it is takes it out, so it is `None` during a
    /// turn.
    known: Option<Known>,
    /// Number of waiting callers that need only one timestamp.
    waiting: usize,
    /// For [`Plant::JoinSent`]: timestamps left over from the last answer.
    spare: Option<TimestampRange>,
}

impl Client {
    /// Makes a client, with a thread that serves the connection between calls.
    pub(crate) fn open(known: Known, refresh: Duration, plant: Plant) -> Arc<Self> {
        let client = Arc::new(Self {
            turns: Mutex::new(Turns { known: Some(known), waiting: 0, spare: None }),
            changed: Condvar::new(),
            is_closed: AtomicBool::new(false),
            plant,
        });
        let watching = client.clone();
        std::thread::spawn(move || watching.watch(refresh));
        client
    }

    /// Fetches `count` timestamps before `deadline`, unless the caller cancels.
    pub(crate) fn timestamps(
        &self,
        count: u64,
        deadline: Instant,
        given_up: &AtomicBool,
    ) -> Result<TimestampRange, Refusal> {
        if !(1..=RANGE_COUNT_MAX).contains(&count) {
            return Err(Refusal::new(Fault::Count, format!("{count} is no count")));
        }
        let late = if self.plant == Plant::Late { LATE } else { Duration::ZERO };
        let is_over = |last: &str| -> Option<Refusal> {
            if self.is_closed.load(Ordering::SeqCst) {
                Some(Refusal::new(Fault::Closed, "the client is closed"))
            } else if given_up.load(Ordering::SeqCst) {
                Some(Refusal::new(Fault::Cancelled, "the caller gave up"))
            } else if Instant::now() >= deadline + late {
                Some(Refusal::new(Fault::Deadline, format!("no timestamp in time: {last}")))
            } else {
                None
            }
        };
        let mut known = match self.turn(count, &is_over)? {
            Turn::Mine(known) => known,
            Turn::Spare(range) => return Ok(range),
        };
        let outcome = known.pursue(count, &is_over);
        let spare = known.take_spare();
        let mut turns = self.turns();
        turns.spare = spare.filter(|_| turns.waiting > 0);
        turns.known = Some(*known);
        drop(turns);
        self.changed.notify_all();
        outcome
    }

    /// Closes the client and ends every call.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.changed.notify_all();
    }

    /// Waits until it is this caller's turn.
    fn turn(&self, count: u64, is_over: &dyn Fn(&str) -> Option<Refusal>) -> Result<Turn, Refusal> {
        let is_small = usize::from(count == 1);
        let mut turns = self.turns();
        if let Some(known) = turns.known.take() {
            return Ok(Turn::Mine(Box::new(known)));
        }
        turns.waiting += is_small;
        loop {
            let outcome = if let Some(refusal) = is_over("other callers wait, too") {
                Some(Err(refusal))
            } else if let Some(spare) = turns.spare.take_if(|_| count == 1) {
                Some(Ok(Turn::Spare(spare)))
            } else {
                turns.known.take().map(|known| Ok(Turn::Mine(Box::new(known))))
            };
            if let Some(outcome) = outcome {
                turns.waiting -= is_small;
                return outcome;
            }
            let waited = self.changed.wait_timeout(turns, LOOK);
            turns = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes a turn from time to time, to serve the connection, until the client is closed.
    fn watch(&self, refresh: Duration) {
        let mut refreshed_at = Instant::now();
        while !self.is_closed.load(Ordering::SeqCst) {
            std::thread::sleep(LOOK);
            let Some(mut known) = self.turns().known.take() else { continue };
            known.listen();
            if refreshed_at.elapsed() >= refresh {
                refreshed_at = Instant::now();
                known.refresh();
            }
            self.turns().known = Some(known);
            self.changed.notify_all();
        }
        // Dropping the taken value ends the connection.
        while self.turns().known.take().is_none() {
            std::thread::sleep(LOOK);
        }
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Turn {
    Mine(Box<Known>),
    Spare(TimestampRange),
}

/// Interval at which deadlines and the idle connection are checked.
const LOOK: Duration = Duration::from_millis(5);
/// How late a call ends with [`Plant::Late`].
const LATE: Duration = Duration::from_millis(400);
