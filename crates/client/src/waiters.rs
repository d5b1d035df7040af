//! The waiting callers and the batches that they share. A caller joins the *open* batch. Taking a
//! batch closes it, and its request is sent only after that. So no caller joins a request whose
//! timestamps may have been allocated already. This module opens no socket and reads no clock.
//!
//! A caller that asks for the latest timestamp takes none. It gets the last timestamp of its batch:
//! all callers of the batch have called before the request was sent, so no timestamp from before is
//! above it, and later timestamps are. A batch in which all ask for the latest one is a request for
//! that one.
//!
//! Slots and lists are reused. Once they have grown large enough, a call allocates no memory.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use epicepoch_wire::TimestampRange;

use crate::error::{FailedAttempt, TimestampsError};

/// The count of a call for the latest timestamp, which takes none.
pub const LATEST: u64 = 0;

/// The outcome of a call.
pub(crate) type Outcome = Result<TimestampRange, TimestampsError>;

/// A caller's entry in a batch. The generation shows whether the caller still waits.
#[derive(Clone, Copy, Debug)]
struct Entry {
    slot: usize,
    generation: u64,
    count: u64,
}

#[derive(Debug)]
struct Slot {
    generation: u64,
    deadline: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    Free,
    Waiting(Option<Waker>),
    Done(Outcome),
}

/// Callers that share one request.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    entries: Vec<Entry>,
    total: u64,
}

impl Batch {
    /// The sum of the callers' counts; 0 if all ask for the latest timestamp.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The number of callers that joined.
    pub(crate) fn callers(&self) -> usize {
        self.entries.len()
    }
}

/// The callers of one client.
///
/// Invariants: `free.len() + taken slots == slots.len() <= CALLERS_MAX`. After each
/// [`Waiters::enter`], `open.len() <= 2 * slots.len()`.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// The callers whose request has not been sent yet, or must be repeated. The oldest is in
    /// front.
    open: VecDeque<Entry>,
    spare: Vec<Vec<Entry>>,
}

impl Waiters {
    /// Adds a caller to the open batch. `count` is how many timestamps it takes, or [`LATEST`].
    /// Returns the caller's slot, and whether the caller is the first of the batch. Returns `None`
    /// if too many callers wait.
    pub(crate) fn enter(&mut self, count: u64, deadline: Instant) -> Option<(usize, bool)> {
        if self.open.len() >= 2 * self.slots.len() {
            self.forget_the_gone();
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < CALLERS_MAX => {
                self.slots.push(Slot { generation: 0, deadline, state: State::Free });
                self.slots.len() - 1
            }
            None => return None,
        };
        let taken = &mut self.slots[slot];
        taken.deadline = deadline;
        taken.state = State::Waiting(None);
        let is_first = self.open.is_empty();
        self.open.push_back(Entry { slot, generation: taken.generation, count });
        Some((slot, is_first))
    }

    /// Returns the outcome of the caller in `slot`, or registers its waker.
    ///
    /// # Panics
    /// The slot is not in use, or its outcome was returned already.
    pub(crate) fn poll(&mut self, slot: usize, context: &mut Context<'_>) -> Poll<Outcome> {
        match &mut self.slots[slot].state {
            State::Waiting(waker) => {
                if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                    *waker = Some(context.waker().clone());
                }
                Poll::Pending
            }
            State::Done(outcome) => {
                Poll::Ready(std::mem::replace(outcome, Err(TimestampsError::Stopped)))
            }
            State::Free => panic!("a call polled a slot that it does not hold"),
        }
    }

    /// Frees a slot. Timestamps that were requested for its caller are skipped.
    pub(crate) fn leave(&mut self, slot: usize) {
        let left = &mut self.slots[slot];
        left.generation += 1;
        left.state = State::Free;
        self.free.push(slot);
    }

    /// Closes the open batch and returns it. It has as many callers as fit into a request of
    /// `count_max` timestamps. A caller with a larger count gets its own batch, which the node
    /// refuses. Returns `None` if no caller waits for a request.
    pub(crate) fn take_batch(&mut self, count_max: u64) -> Option<Batch> {
        let mut batch = Batch { entries: self.spare.pop().unwrap_or_default(), total: 0 };
        while let Some(entry) = self.open.front().copied() {
            if self.is_waiting(entry) {
                let is_full = batch.entries.len() == BATCH_CALLERS_MAX
                    || batch.total.saturating_add(entry.count) > count_max;
                if is_full && !batch.entries.is_empty() {
                    break;
                }
                batch.entries.push(entry);
                batch.total += entry.count;
            }
            self.open.pop_front();
        }
        if batch.entries.is_empty() {
            self.recycle(batch);
            return None;
        }
        Some(batch)
    }

    /// Gives each caller of a batch its part of the range, or an error if its deadline has passed
    /// at `now`. Adds the callers to wake to `wakers`.
    ///
    /// # Panics
    /// The size of the range is not the batch's total, or 1 if that is 0.
    pub(crate) fn answer(
        &mut self,
        batch: Batch,
        range: TimestampRange,
        now: Instant,
        last: Option<&FailedAttempt>,
        wakers: &mut Vec<Waker>,
    ) {
        assert_eq!(range.count(), batch.total.max(1), "a range of another batch");
        let mut rest = Some(range);
        for entry in &batch.entries {
            let split = rest.and_then(|range| range.split_first(entry.count));
            let own = if let Some((head, tail)) = split {
                rest = tail;
                head
            } else {
                // No range has a part of 0 timestamps.
                assert_eq!(entry.count, LATEST, "the counts add up to the total");
                last_of(range)
            };
            let outcome = if self.slots[entry.slot].deadline <= now {
                Err(TimestampsError::DeadlineExceeded { last: last.cloned() })
            } else {
                Ok(own)
            };
            self.finish(*entry, outcome, wakers);
        }
        self.recycle(batch);
    }

    /// Fails every caller of a batch.
    pub(crate) fn fail(&mut self, batch: Batch, error: &TimestampsError, wakers: &mut Vec<Waker>) {
        for entry in &batch.entries {
            self.finish(*entry, Err(error.clone()), wakers);
        }
        self.recycle(batch);
    }

    /// Puts the callers of an unanswered batch back into the open batch, in front of the others.
    pub(crate) fn requeue(&mut self, batch: Batch) {
        for entry in batch.entries.iter().rev() {
            if self.is_waiting(*entry) {
                self.open.push_front(*entry);
            }
        }
        self.recycle(batch);
    }

    /// Fails every caller whose request has not been sent, or must be sent again.
    pub(crate) fn fail_open(&mut self, error: &TimestampsError, wakers: &mut Vec<Waker>) {
        while let Some(entry) = self.open.pop_front() {
            self.finish(entry, Err(error.clone()), wakers);
        }
    }

    /// Fails every caller whose deadline has passed.
    pub(crate) fn expire(
        &mut self,
        now: Instant,
        last: Option<&FailedAttempt>,
        wakers: &mut Vec<Waker>,
    ) {
        for slot in &mut self.slots {
            if slot.deadline <= now
                && let State::Waiting(waker) = &mut slot.state
            {
                wakers.extend(waker.take());
                let last = last.cloned();
                slot.state = State::Done(Err(TimestampsError::DeadlineExceeded { last }));
            }
        }
    }

    /// Fails every caller because the driver has ended.
    pub(crate) fn stop(&mut self, wakers: &mut Vec<Waker>) {
        self.open.clear();
        for slot in &mut self.slots {
            if let State::Waiting(waker) = &mut slot.state {
                wakers.extend(waker.take());
                slot.state = State::Done(Err(TimestampsError::Stopped));
            }
        }
    }

    /// Whether any caller waits for its request to be sent. If none does, the next caller is the
    /// first of its batch.
    pub(crate) fn is_wanted(&mut self) -> bool {
        while let Some(entry) = self.open.front().copied() {
            if self.is_waiting(entry) {
                return true;
            }
            self.open.pop_front();
        }
        false
    }

    /// Removes callers that have left or have their outcome from the open batch. Between two runs,
    /// at least as many callers enter as there are slots. So the cost per call is constant.
    fn forget_the_gone(&mut self) {
        let slots = &self.slots;
        self.open.retain(|entry| is_waiting(slots, *entry));
    }

    fn is_waiting(&self, entry: Entry) -> bool {
        is_waiting(&self.slots, entry)
    }

    fn finish(&mut self, entry: Entry, outcome: Outcome, wakers: &mut Vec<Waker>) {
        let slot = &mut self.slots[entry.slot];
        if slot.generation != entry.generation {
            return;
        }
        if let State::Waiting(waker) = &mut slot.state {
            wakers.extend(waker.take());
            slot.state = State::Done(outcome);
        }
    }

    fn recycle(&mut self, mut batch: Batch) {
        batch.entries.clear();
        if self.spare.len() < SPARE_MAX {
            self.spare.push(batch.entries);
        }
    }
}

/// The range of the last timestamp of a range.
fn last_of(range: TimestampRange) -> TimestampRange {
    let before = range.count() - 1;
    range.split_first(before).and_then(|(_, last)| last).unwrap_or(range)
}

fn is_waiting(slots: &[Slot], entry: Entry) -> bool {
    let slot = &slots[entry.slot];
    slot.generation == entry.generation && matches!(slot.state, State::Waiting(_))
}

/// At most this many callers of one client may wait.
pub(crate) const CALLERS_MAX: usize = 1 << 20;
/// At most this many callers share a request, because waking more of them takes longer than a round
/// trip.
const BATCH_CALLERS_MAX: usize = 1 << 14;
/// At most this many empty lists are kept for later batches. There are never so many requests in
/// flight.
const SPARE_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use epicepoch_wire::native::COUNT_MAX;
    use epicepoch_wire::{Epoch, EpochIndex, Timestamp};

    use super::*;

    fn outcome(waiters: &mut Waiters, slot: usize) -> Option<Outcome> {
        match waiters.poll(slot, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    fn range(index: u64, count: u64) -> TimestampRange {
        TimestampRange::new(Timestamp::new(Epoch(5), EpochIndex(index)), count).unwrap()
    }

    fn answer(waiters: &mut Waiters, batch: Batch, range: TimestampRange) {
        waiters.answer(batch, range, Instant::now(), None, &mut Vec::new());
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_mins(1)
    }

    #[test]
    fn callers_share_a_request_and_each_gets_its_part() {
        let mut waiters = Waiters::default();
        let slots = [2, 1, 3].map(|count| waiters.enter(count, later()).unwrap());
        assert_eq!(slots.map(|(_, is_first)| is_first), [true, false, false]);
        let batch = waiters.take_batch(COUNT_MAX).unwrap();
        assert_eq!((batch.total(), batch.callers()), (6, 3));
        answer(&mut waiters, batch, range(0, 6));
        let got = slots.map(|(slot, _)| outcome(&mut waiters, slot));
        assert_eq!(got, [range(0, 2), range(2, 1), range(3, 3)].map(|range| Some(Ok(range))));
    }

    #[test]
    fn callers_that_ask_for_the_latest_timestamp_get_the_last_one_of_their_batch() {
        for (counts, given, expected) in [
            (&[LATEST, 2, LATEST, 3, LATEST][..], range(7, 5), &[11, 7, 11, 9, 11][..]),
            (&[LATEST, LATEST], range(7, 1), &[7, 7]),
            (&[1, LATEST], range(u64::MAX, 1), &[u64::MAX, u64::MAX]),
        ] {
            let mut waiters = Waiters::default();
            let slots: Vec<_> =
                counts.iter().map(|count| waiters.enter(*count, later()).unwrap().0).collect();
            let batch = waiters.take_batch(COUNT_MAX).unwrap();
            assert_eq!((batch.total(), batch.callers()), (counts.iter().sum(), counts.len()));
            answer(&mut waiters, batch, given);
            for ((slot, count), index) in slots.into_iter().zip(counts).zip(expected) {
                let own = range(*index, (*count).max(1));
                assert_eq!(outcome(&mut waiters, slot), Some(Ok(own)), "{counts:?}");
            }
        }
    }

    #[test]
    fn a_caller_beyond_the_limit_is_refused_until_another_has_left() {
        let mut waiters = Waiters::default();
        for _ in 0..CALLERS_MAX {
            assert!(waiters.enter(1, later()).is_some());
        }
        assert_eq!(waiters.enter(1, later()), None);
        waiters.leave(7);
        assert_eq!(waiters.enter(1, later()), Some((7, false)));
    }

    #[test]
    fn a_caller_never_joins_a_request_that_was_taken() {
        let mut waiters = Waiters::default();
        let (first, _) = waiters.enter(1, later()).unwrap();
        let batch = waiters.take_batch(COUNT_MAX).unwrap();
        let (late, is_first) = waiters.enter(1, later()).unwrap();
        assert!(is_first, "it opens the next batch");
        answer(&mut waiters, batch, range(0, 1));
        assert_eq!(outcome(&mut waiters, first), Some(Ok(range(0, 1))));
        assert_eq!(outcome(&mut waiters, late), None);
        assert_eq!(waiters.take_batch(COUNT_MAX).unwrap().callers(), 1);
    }

    #[test]
    fn a_caller_that_left_is_not_asked_for_again_and_its_slot_is_reused() {
        let mut waiters = Waiters::default();
        let (gone, _) = waiters.enter(1, later()).unwrap();
        let (stays, _) = waiters.enter(4, later()).unwrap();
        let batch = waiters.take_batch(COUNT_MAX).unwrap();
        waiters.leave(gone);
        let (next, _) = waiters.enter(7, later()).unwrap();
        assert_eq!(next, gone);
        waiters.requeue(batch);
        let batch = waiters.take_batch(COUNT_MAX).unwrap();
        assert_eq!((batch.total(), batch.callers()), (11, 2), "4 in front of 7");
        answer(&mut waiters, batch, range(0, 11));
        assert_eq!(outcome(&mut waiters, stays), Some(Ok(range(0, 4))));
        assert_eq!(outcome(&mut waiters, next), Some(Ok(range(4, 7))));
    }

    #[test]
    fn an_answer_for_a_caller_that_left_does_not_go_to_the_next_caller_in_its_slot() {
        let mut waiters = Waiters::default();
        let (gone, _) = waiters.enter(2, later()).unwrap();
        let batch = waiters.take_batch(COUNT_MAX).unwrap();
        waiters.leave(gone);
        let (next, _) = waiters.enter(2, later()).unwrap();
        assert_eq!(next, gone);
        answer(&mut waiters, batch, range(0, 2));
        assert_eq!(outcome(&mut waiters, next), None, "it has called after the request was sent");
    }

    #[test]
    fn a_request_asks_for_no_more_than_a_request_may() {
        let mut waiters = Waiters::default();
        for count in [COUNT_MAX - 1, 1, 1, COUNT_MAX] {
            waiters.enter(count, later()).unwrap();
        }
        let batches: Vec<_> = std::iter::from_fn(|| waiters.take_batch(COUNT_MAX))
            .map(|batch| batch.total())
            .collect();
        assert_eq!(batches, [COUNT_MAX, 1, COUNT_MAX]);
        assert!(!waiters.is_wanted());
    }

    #[test]
    fn a_node_may_allow_less_and_larger_calls_are_sent_alone() {
        let mut waiters = Waiters::default();
        for count in [2, 2, 9, 1, 3] {
            waiters.enter(count, later()).unwrap();
        }
        let batches: Vec<_> =
            std::iter::from_fn(|| waiters.take_batch(4)).map(|batch| batch.total()).collect();
        assert_eq!(batches, [4, 9, 4]);
    }

    #[test]
    fn an_answer_that_comes_at_the_deadline_goes_to_nobody() {
        let mut waiters = Waiters::default();
        let now = Instant::now();
        let (late, _) = waiters.enter(1, now).unwrap();
        let (patient, _) = waiters.enter(2, later()).unwrap();
        let batch = waiters.take_batch(COUNT_MAX).unwrap();
        let last = FailedAttempt::NoLeader { addr: "a:1".to_owned() };
        waiters.answer(batch, range(0, 3), now, Some(&last), &mut Vec::new());
        let exceeded = TimestampsError::DeadlineExceeded { last: Some(last) };
        assert_eq!(outcome(&mut waiters, late), Some(Err(exceeded)));
        assert_eq!(outcome(&mut waiters, patient), Some(Ok(range(1, 2))));
    }

    #[test]
    fn a_deadline_comes_wherever_the_caller_waits() {
        let mut waiters = Waiters::default();
        let now = Instant::now();
        let (sent, _) = waiters.enter(1, now).unwrap();
        let batch = waiters.take_batch(COUNT_MAX).unwrap();
        let (open, _) = waiters.enter(1, now).unwrap();
        let (patient, _) = waiters.enter(1, later()).unwrap();
        waiters.expire(now, None, &mut Vec::new());
        let exceeded = Some(Err(TimestampsError::DeadlineExceeded { last: None }));
        assert_eq!(outcome(&mut waiters, sent), exceeded);
        assert_eq!(outcome(&mut waiters, open), exceeded);
        assert_eq!(outcome(&mut waiters, patient), None);
        answer(&mut waiters, batch, range(0, 1));
        assert_eq!(waiters.take_batch(COUNT_MAX).unwrap().callers(), 1);
    }

    #[test]
    fn callers_that_come_and_go_behind_a_patient_one_take_no_more_memory() {
        let mut waiters = Waiters::default();
        let now = Instant::now();
        waiters.enter(1, later()).unwrap();
        for call in 0..1000 {
            let (slot, _) = waiters.enter(2, now).unwrap();
            if call % 2 == 0 {
                waiters.expire(now, None, &mut Vec::new());
            }
            waiters.leave(slot);
            let (open, slots) = (waiters.open.len(), waiters.slots.len());
            assert!(open <= 2 * slots, "{open} entries for {slots} slots");
        }
        waiters.enter(4, later()).unwrap();
        let batch = waiters.take_batch(COUNT_MAX).unwrap();
        assert_eq!((batch.total(), batch.callers()), (5, 2), "who waits is not forgotten");
    }

    #[test]
    fn a_caller_is_the_first_when_only_the_gone_were_in_front_of_it() {
        let mut waiters = Waiters::default();
        let firsts: Vec<_> = (0..100)
            .map(|_| {
                let (slot, is_first) = waiters.enter(1, later()).unwrap();
                waiters.leave(slot);
                is_first
            })
            .collect();
        // Every caller here leaves at once. Callers that have left are removed when the open batch
        // has reached its limit, or earlier. So at least every second caller is the first of its
        // batch.
        assert!(firsts.chunks(2).all(|pair| pair.contains(&true)), "{firsts:?}");
    }
}
