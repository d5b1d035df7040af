//! Interval mode: timestamps from any node that is certain of the time, and the wait that puts them
//! in order. It uses no wall clock, only the monotonic one.

mod turns;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use epicepoch_wire::Timestamp;
use epicepoch_wire::http::{ErrorCode, PATH_INTERVAL, PATH_MEMBERS};
use epicepoch_wire::http1::Answer;
use epicepoch_wire::interval::{INTERVAL_N_MAX, IntervalStamp};
use thiserror::Error;

use crate::client::Client;
use crate::clock::now;
use crate::error::{AnotherCluster, AskError, BadAnswer, FailedAttempt};
use crate::members::Members;
pub(crate) use turns::Turns;

/// Time between two rounds through the nodes while none is certain.
const PAUSE: Duration = Duration::from_millis(10);

/// Timestamps of interval mode, and how long to wait for them. Write at these timestamps, wait with
/// [`Client::commit_wait`], then let others see the writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interval {
    /// The first timestamp.
    pub timestamp: Timestamp,
    /// How many timestamps there are; their indexes are consecutive.
    pub count: u64,
    /// True time was not below this when the node stamped, Unix nanoseconds.
    pub earliest_ns: u64,
    /// True time was not above this, Unix nanoseconds. Also the epoch of the timestamps.
    pub latest_ns: u64,
    /// When the wait is over, by the clock of this process.
    pub ready_at: Instant,
}

impl Interval {
    /// `arrived` is when the answer had come: the wait does not count from an earlier moment.
    fn new(stamp: &IntervalStamp, count: u64, arrived: Instant) -> Self {
        Self {
            timestamp: stamp.timestamp(),
            count,
            earliest_ns: stamp.earliest_ns(),
            latest_ns: stamp.latest_ns(),
            ready_at: arrived + Duration::from_nanos(stamp.wait_ns()),
        }
    }

    /// Whether every timestamp of this answer was stamped before every one of `other`. If this is
    /// false, nothing is known.
    #[must_use]
    pub const fn is_surely_before(&self, other: &Self) -> bool {
        self.latest_ns < other.earliest_ns
    }
}

/// Why no interval timestamp was given.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum IntervalError {
    /// The count is out of range. Ask for 1 to 2^32 timestamps.
    #[error("{0} timestamps asked for; allowed are 1 to {INTERVAL_N_MAX}")]
    Count(u64),
    /// No node was certain before the deadline. Try again later, or look at the nodes' `/ready`.
    #[error("no interval timestamp before the deadline{}", said(.last.as_ref()))]
    DeadlineExceeded {
        /// The last failed attempt before the deadline, if any.
        last: Option<FailedAttempt>,
    },
    /// Only from [`Client::must_retry`]: the timestamp that was found was not in the past before the
    /// deadline. If it is far ahead, the clock of the node that gave it, or of the node that answered,
    /// is wrong, or it is no timestamp of this cluster. If not, try again later.
    #[error(
        "the timestamp that was found is not in the past before the deadline: \
         it was {} ms ahead when a node last answered{}",
        .ahead.as_millis(),
        said(.last.as_ref())
    )]
    StillAhead {
        /// How far it was ahead of the latest time that is surely past, when a node last answered.
        ahead: Duration,
        /// The last failed attempt after that answer, if any.
        last: Option<FailedAttempt>,
    },
    /// The addresses lead to different clusters. Correct them.
    #[error(transparent)]
    AnotherCluster(#[from] AnotherCluster),
    /// No retry helps. With [`ErrorCode::OtherMode`], the cluster is in quorum mode: use
    /// [`Client::timestamp`]. A node that has not heard of a change of the mode yet says the same,
    /// so every node was asked once, and none was in interval mode. A node that is too old for
    /// interval mode refuses with [`ErrorCode::NotFound`], which counts the same.
    #[error(transparent)]
    BadAnswer(#[from] BadAnswer),
}

/// Why the node at this address has refused a request for `target`. Another node may do better after
/// `INTERNAL`, and after a refusal of a server in front of the node.
fn refusal_of(addr: &str, target: &str, answer: &Answer<'_>) -> AskError {
    let (status, addr) = (answer.status, addr.to_owned());
    match answer.error.and_then(ErrorCode::from_name) {
        Some(code) if code.is_retryable() || code == ErrorCode::Internal => {
            FailedAttempt::Refused { addr, code }.into()
        }
        Some(code) => {
            let message = String::from_utf8_lossy(answer.body).trim().to_owned();
            BadAnswer::Refused { addr, code, message }.into()
        }
        None if matches!(status, 429 | 500..) => FailedAttempt::Status { addr, status }.into(),
        None => BadAnswer::Foreign { addr, what: format!("status {status} at {target}") }.into(),
    }
}

fn said(last: Option<&FailedAttempt>) -> String {
    let mut text = String::new();
    if let Some(last) = last {
        let _infallible = write!(text, "; {last}");
    }
    text
}

/// The number of the interval of length `w` in which a timestamp's epoch lies: the tick of the
/// original's idea. **A smaller tick proves nothing, and an equal one neither:** only waiting gives
/// order. Keys that begin with it are near each other if they were written at about the same time.
///
/// # Panics
/// When `w` is zero.
#[must_use]
pub fn tick(timestamp: Timestamp, w: Duration) -> u64 {
    let w_ns = u64::try_from(w.as_nanos()).unwrap_or(u64::MAX);
    assert!(w_ns > 0, "a tick takes some time");
    timestamp.epoch.0 / w_ns
}

/// What a call has learned of the cluster's mode from the nodes that it has asked.
///
/// A node that lags behind the change of the mode says the same as a cluster in quorum mode. A node
/// that is too old for interval mode does not know the path, so it says `NOT_FOUND`. So either
/// refusal counts only if, of all nodes, none is known to be in interval mode. The way back
/// from that mode is rare, so the client remembers it, and asks until its deadline.
#[derive(Debug)]
struct ModeSeen {
    /// The first refusal of a node that is not in interval mode, or does not know it yet.
    other_mode: Option<BadAnswer>,
    /// Whether a node is in interval mode, though uncertain, or was so in an earlier call.
    is_intervals: bool,
}

impl ModeSeen {
    /// Records why a node gave no timestamp.
    ///
    /// # Errors
    /// The call has to end, whatever the other nodes say.
    fn handle(&mut self, error: AskError) -> Result<FailedAttempt, IntervalError> {
        match error {
            AskError::FailedAttempt(attempt) => {
                self.is_intervals |=
                    matches!(attempt, FailedAttempt::Refused { code: ErrorCode::Uncertain, .. });
                Ok(attempt)
            }
            AskError::BadAnswer(error) => {
                let BadAnswer::Refused {
                    addr,
                    code: code @ (ErrorCode::OtherMode | ErrorCode::NotFound),
                    ..
                } = &error
                else {
                    return Err(error.into());
                };
                let (addr, code) = (addr.clone(), *code);
                self.other_mode.get_or_insert(error);
                Ok(FailedAttempt::Refused { addr, code })
            }
            AskError::AnotherCluster(error) => Err(error.into()),
        }
    }

    /// The error of a call that has asked every node; `None` if it has to ask again.
    fn verdict(&mut self) -> Option<BadAnswer> {
        if self.is_intervals { None } else { self.other_mode.take() }
    }
}

impl Client {
    /// Returns an interval timestamp from a node that is certain of the time: first from the node
    /// that gave the last one, then from the others, in the order of the addresses that were given.
    /// A node that did not answer in time comes last for 5 s. The call fails after
    /// [`Options::timeout`](crate::Options::timeout). It needs a cluster in interval mode
    /// (`MODE=interval`).
    ///
    /// **Timestamps that were not waited out are in no order.** Write, then [`Client::commit_wait`],
    /// then let others see it. Waiting and writing may overlap.
    ///
    /// # Errors
    /// See [`IntervalError`].
    pub async fn interval(&self) -> Result<Interval, IntervalError> {
        self.intervals(1, now() + self.timeout()).await
    }

    /// Returns `count` interval timestamps, from 1 to 2^32, that share one interval. Give a short limit
    /// as the `deadline`: if the future is dropped instead, the client does not know that the node was
    /// silent, and asks it first again.
    ///
    /// # Errors
    /// See [`IntervalError`].
    pub async fn intervals(
        &self,
        count: u64,
        deadline: Instant,
    ) -> Result<Interval, IntervalError> {
        if !(1..=INTERVAL_N_MAX).contains(&count) {
            return Err(IntervalError::Count(count));
        }
        let target = format!("{PATH_INTERVAL}?n={count}");
        let mut last = self.refresh_members(deadline).await?;
        let mut has_silent = last.as_ref().is_some_and(FailedAttempt::is_late);
        let mut failed_at = last.as_ref().map(|failed| failed.addr().to_owned());
        let mut seen = ModeSeen { is_intervals: self.is_in_interval_mode(), other_mode: None };
        loop {
            let mut addresses = self.interval_addresses();
            if let Some(failed_at) = failed_at.take() {
                addresses.sort_by_key(|addr| *addr == failed_at);
            }
            for addr in addresses {
                if now() >= deadline {
                    return Err(IntervalError::DeadlineExceeded { last });
                }
                match self.interval_of(&addr, &target, count, deadline).await {
                    Ok(interval) => {
                        self.met_interval_mode();
                        self.with_turns(|turns| turns.record_certain(addr.clone()));
                        // An answer that arrives exactly at the deadline is too late.
                        if now() >= deadline {
                            let last = Some(FailedAttempt::Silent { addr });
                            return Err(IntervalError::DeadlineExceeded { last });
                        }
                        return Ok(interval);
                    }
                    Err(error) => {
                        // A silent node has used the time of the nodes after it. So if the call has
                        // ended, it says nothing about them.
                        let is_proof = !has_silent || now() < deadline;
                        self.record_failure(&addr, &error, is_proof);
                        let failed = seen.handle(error)?;
                        has_silent |= failed.is_late();
                        last = Some(failed);
                    }
                }
                if seen.is_intervals {
                    self.met_interval_mode();
                }
            }
            if let Some(error) = seen.verdict() {
                return Err(error.into());
            }
            let pause = deadline.saturating_duration_since(now()).min(PAUSE);
            tokio::time::sleep(pause).await;
        }
    }

    /// The addresses to ask for an interval timestamp, each once.
    fn interval_addresses(&self) -> Vec<String> {
        let mut addresses = self.with_directory(|directory| directory.nearest());
        self.with_turns(|turns| turns.sort(&mut addresses, now()));
        addresses
    }

    /// Records why the node at `addr` gave no timestamp. `is_proof` says that it had enough time.
    fn record_failure(&self, addr: &str, error: &AskError, is_proof: bool) {
        self.with_turns(|turns| match error {
            AskError::FailedAttempt(failed) => {
                turns.record_failed_attempt(failed, is_proof, now());
            }
            AskError::AnotherCluster(_) | AskError::BadAnswer(_) => turns.record_refusal(addr),
        });
    }

    /// Reads the members again from one node, if it is time to. If the answer is no list, the call
    /// goes on all the same. Returns the failed attempt if there is no answer: the call asks that node
    /// last.
    async fn refresh_members(
        &self,
        deadline: Instant,
    ) -> Result<Option<FailedAttempt>, AnotherCluster> {
        if !self.take_refresh() {
            return Ok(None);
        }
        let Some(addr) = self.interval_addresses().into_iter().next() else { return Ok(None) };
        match self.meet(&addr, deadline).await {
            Err(AskError::AnotherCluster(error)) => Err(error),
            Err(AskError::FailedAttempt(failed_attempt)) => {
                self.with_turns(|turns| turns.record_failed_attempt(&failed_attempt, true, now()));
                Ok(Some(failed_attempt))
            }
            Err(AskError::BadAnswer(_)) | Ok(()) => Ok(None),
        }
    }

    /// Asks the node at `addr` for the members, and checks that it belongs to this client's cluster.
    async fn meet(&self, addr: &str, deadline: Instant) -> Result<(), AskError> {
        let answered = self.ask_with_refusals(addr, PATH_MEMBERS, deadline).await?;
        let answer = answered.answer();
        if answer.status != 200 {
            return Err(refusal_of(addr, PATH_MEMBERS, &answer));
        }
        let members = Members::from_json(answer.body, answer.cluster.map(str::to_owned));
        let members = members
            .map_err(|what| BadAnswer::foreign(addr, &format!("a member list with {what}")))?;
        self.with_directory(|directory| directory.check_members(addr, &members))?;
        if !members.has_joined() {
            let (addr, code) = (addr.to_owned(), ErrorCode::NotReady);
            return Err(FailedAttempt::Refused { addr, code }.into());
        }
        self.with_directory(|directory| directory.learn_listed(&members, now()));
        Ok(())
    }

    async fn interval_of(
        &self,
        addr: &str,
        target: &str,
        count: u64,
        deadline: Instant,
    ) -> Result<Interval, AskError> {
        // An interval does not say the name of its cluster.
        if self.with_directory(|directory| directory.is_name_unchecked()) {
            self.meet(addr, deadline).await?;
        }
        let answered = self.ask_with_refusals(addr, target, deadline).await?;
        let arrived = now();
        let answer = answered.answer();
        if answer.status != 200 {
            return Err(refusal_of(addr, target, &answer));
        }
        let foreign = |what: String| BadAnswer::Foreign { addr: addr.to_owned(), what };
        if !self.with_directory(|directory| directory.is_own_cluster(answer.cluster)) {
            return Err(foreign("an interval of no cluster".to_owned()).into());
        }
        let bytes = answer.body.try_into();
        let bytes = bytes.map_err(|_| foreign(format!("{} bytes", answer.body.len())))?;
        let stamp = IntervalStamp::from_bytes(bytes);
        let stamp = stamp.map_err(|error| foreign(error.to_string()))?;
        Ok(Interval::new(&stamp, count, arrived))
    }

    /// Waits until the timestamps of `interval` are in the past everywhere: every request that begins
    /// after the wait, at any node, gets a later timestamp. A process that was paused waits longer,
    /// never shorter. Dropping the future does no harm.
    pub async fn commit_wait(&self, interval: &Interval) {
        // The clock of the timer may be coarser than the monotonic clock.
        while now() < interval.ready_at {
            tokio::time::sleep_until(interval.ready_at.into()).await;
        }
    }

    /// The rule of a reader: a read at `read_at` that finds a value at `found` has to be repeated with
    /// a new timestamp if `found` is equal or later, because its writer may still wait. If so, this
    /// waits until `found` is in the past, and returns true. It asks for timestamps of its own.
    ///
    /// # Errors
    /// See [`IntervalError`]. It fails after [`Options::timeout`](crate::Options::timeout), with
    /// [`IntervalError::StillAhead`] if a node has answered, and `found` was not in the past.
    pub async fn must_retry(
        &self,
        read_at: Timestamp,
        found: Timestamp,
    ) -> Result<bool, IntervalError> {
        if found < read_at {
            return Ok(false);
        }
        let deadline = now() + self.timeout();
        let mut still_ahead = None;
        loop {
            let interval = match (self.intervals(1, deadline).await, still_ahead) {
                (Ok(interval), _) => interval,
                (Err(IntervalError::DeadlineExceeded { last }), Some(ahead)) => {
                    return Err(IntervalError::StillAhead { ahead, last });
                }
                (Err(error), _) => return Err(error),
            };
            let left_ns = found.epoch.0.saturating_add(1).saturating_sub(interval.earliest_ns);
            if left_ns == 0 {
                return Ok(true);
            }
            let pause = Duration::from_nanos(left_ns);
            still_ahead = Some(pause);
            let left = deadline.saturating_duration_since(now());
            tokio::time::sleep(pause.min(left)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use epicepoch_wire::{Epoch, EpochIndex, NodeId};

    use super::*;

    fn interval(earliest_ns: u64, latest_ns: u64) -> Interval {
        let stamp = IntervalStamp::new(earliest_ns, latest_ns, NodeId(1), 0).unwrap();
        Interval::new(&stamp, 1, now())
    }

    #[test]
    fn only_intervals_that_do_not_overlap_are_surely_in_order() {
        let (first, second) = (interval(10, 20), interval(21, 30));
        assert!(first.is_surely_before(&second) && !second.is_surely_before(&first));
        assert!(!first.is_surely_before(&interval(20, 30)));
    }

    #[test]
    fn a_tick_is_the_number_of_an_interval() {
        let at = |ns| Timestamp::new(Epoch(ns), EpochIndex(1 << 63));
        let w = Duration::from_millis(10);
        assert_eq!([at(9_999_999), at(10_000_000)].map(|it| tick(it, w)), [0, 1]);
    }

    #[tokio::test]
    async fn a_wait_is_over_no_earlier_than_the_answer_says() {
        let client = Client::new(["localhost:1"], crate::Options::default()).unwrap();
        let began = Instant::now();
        let interval = interval(0, 8_000_000);
        client.commit_wait(&interval).await;
        assert!(began.elapsed() >= Duration::from_millis(9), "8 ms and an eighth");
        let error = client.intervals(0, began).await;
        assert_eq!(error, Err(IntervalError::Count(0)));
        let error = client.intervals(1, began).await;
        assert_eq!(error, Err(IntervalError::DeadlineExceeded { last: None }));
    }
}
