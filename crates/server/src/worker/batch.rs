//! The wait queue of one worker: the slots of its requests, and the open batch. A request joins the
//! open batch. A round closes that batch, and answers its requests in order of arrival. This module
//! never decides whether a batch may be answered.
//!
//! Slots and entries are used again, so that a request allocates no memory after start.

use std::task::{Context, Poll, Waker};

use epicepoch_wire::TimestampRange;
use epicepoch_wire::http::ErrorCode;

/// Most rounds of one worker that are in flight at once. With only one, a request that just missed
/// a round would wait for that whole round trip. Each further round costs frames and makes batches
/// smaller. Four rounds cover a round trip of four event-loop turns; on longer round trips, batches
/// grow instead.
pub(crate) const ROUNDS_IN_FLIGHT_MAX: usize = 4;

/// The answer to a request: its timestamps, or the code of a refusal.
pub(crate) type Outcome = Result<TimestampRange, ErrorCode>;

/// A batch: requests that share one round.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    entries: Vec<Entry>,
    /// How many requests joined, including those whose clients have gone since.
    pub(crate) requests: u64,
    /// Timestamps that all entries ask for together.
    pub(crate) total: u64,
    /// When the first request arrived, monotonic nanoseconds.
    pub(crate) opened_ns: u64,
    /// When the batch was closed, monotonic nanoseconds.
    pub(crate) closed_ns: u64,
}

impl Batch {
    /// Whether no request joined. A probe has such a batch.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// A request, or a burst of requests, in a batch. If `generation` differs from that of the slot,
/// the client no longer waits.
#[derive(Clone, Copy, Debug)]
struct Entry {
    slot: usize,
    generation: u64,
    requests: u32,
    count: u64,
}

#[derive(Debug)]
struct Slot {
    generation: u64,
    arrived_ns: u64,
    state: SlotState,
}

#[derive(Debug)]
enum SlotState {
    Free,
    Waiting(Option<Waker>),
    Done(Outcome),
}

/// The slots of one worker, and its open batch.
///
/// Invariant: `free.len() + taken slots == slots.len() <= slots_max`, and the open batch has at
/// most `2 * slots_max` entries.
#[derive(Debug)]
pub(crate) struct Room {
    slots: Vec<Slot>,
    free: Vec<usize>,
    open: Batch,
    spare: Vec<Vec<Entry>>,
    slots_max: usize,
    /// The last clock reading that a caller has passed in, monotonic nanoseconds.
    now_ns: u64,
}

impl Room {
    /// An empty queue with at most `slots_max` slots.
    pub(crate) fn new(slots_max: usize) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            open: Batch::default(),
            spare: Vec::new(),
            slots_max,
            now_ns: 0,
        }
    }

    /// Takes a slot in the open batch, for one request or for a burst that gets one range. Returns
    /// `None` when all slots are taken. Reads the clock only for the first request of a batch.
    pub(crate) fn enter(
        &mut self,
        requests: u32,
        count: u64,
        clock: impl FnOnce() -> u64,
    ) -> Option<usize> {
        if self.open.entries.len() >= 2 * self.slots_max {
            self.forget_the_gone();
        }
        if self.open.is_empty() {
            self.now_ns = clock();
            self.open.opened_ns = self.now_ns;
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < self.slots_max => {
                let state = SlotState::Free;
                self.slots.push(Slot { generation: 0, arrived_ns: 0, state });
                self.slots.len() - 1
            }
            None => return None,
        };
        let taken = &mut self.slots[slot];
        taken.arrived_ns = self.now_ns;
        taken.state = SlotState::Waiting(None);
        self.open.entries.push(Entry { slot, generation: taken.generation, requests, count });
        self.open.requests += u64::from(requests);
        self.open.total += count;
        Some(slot)
    }

    /// Returns the outcome of the request in `slot`. If it has none yet, the task of `context` is
    /// woken when it gets one.
    pub(crate) fn poll(&mut self, slot: usize, context: &mut Context<'_>) -> Poll<Outcome> {
        match &mut self.slots[slot].state {
            SlotState::Done(outcome) => Poll::Ready(*outcome),
            SlotState::Waiting(waker) => {
                if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                    *waker = Some(context.waker().clone());
                }
                Poll::Pending
            }
            SlotState::Free => panic!("a request polled a slot that it does not hold"),
        }
    }

    /// Frees a slot. If its request is in a batch, the timestamps that it asked for are left
    /// unused.
    pub(crate) fn leave(&mut self, slot: usize) {
        let left = &mut self.slots[slot];
        left.generation += 1;
        left.state = SlotState::Free;
        self.free.push(slot);
    }

    /// Closes the open batch and opens the next one.
    pub(crate) fn close(&mut self, now_ns: u64) -> Batch {
        self.now_ns = now_ns;
        let entries = self.spare.pop().unwrap_or_default();
        let mut closed = std::mem::replace(&mut self.open, Batch { entries, ..Batch::default() });
        closed.closed_ns = now_ns;
        closed
    }

    /// Opens a batch again, because no round could begin for it.
    ///
    /// # Panics
    /// When requests have joined the batch that was opened after it.
    pub(crate) fn reopen(&mut self, batch: Batch) {
        assert!(self.open.is_empty(), "a batch was reopened behind a later one");
        let empty = std::mem::replace(&mut self.open, batch);
        self.spare(empty.entries);
    }

    /// Answers a batch in order of arrival, from the range that was allocated for it.
    ///
    /// # Panics
    /// When the size of the range is not the batch's total.
    pub(crate) fn answer(&mut self, batch: Batch, range: TimestampRange) {
        assert_eq!(range.count(), batch.total, "a range was taken for another batch");
        let mut rest = Some(range);
        for entry in &batch.entries {
            let split = rest.and_then(|range| range.split_first(entry.count));
            let Some((head, tail)) = split else { unreachable!("the counts add up to the total") };
            rest = tail;
            self.finish(*entry, Ok(head));
        }
        self.spare(batch.entries);
    }

    /// Refuses every request of a batch.
    pub(crate) fn refuse(&mut self, batch: Batch, code: ErrorCode) {
        for entry in &batch.entries {
            self.finish(*entry, Err(code));
        }
        self.spare(batch.entries);
    }

    /// Refuses every request that has waited for `timeout_ns`, in any batch.
    pub(crate) fn expire(&mut self, now_ns: u64, timeout_ns: u64, code: ErrorCode) {
        self.now_ns = now_ns;
        for slot in &mut self.slots {
            let is_old = now_ns.saturating_sub(slot.arrived_ns) >= timeout_ns;
            if is_old && let SlotState::Waiting(waker) = &mut slot.state {
                let waker = waker.take();
                slot.state = SlotState::Done(Err(code));
                waker.into_iter().for_each(Waker::wake);
            }
        }
    }

    /// The last clock reading that a caller has passed in, monotonic nanoseconds.
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Whether no request has joined the open batch.
    pub(crate) fn is_open_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// How many slots are taken.
    pub(crate) fn taken(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn finish(&mut self, entry: Entry, outcome: Outcome) {
        let slot = &mut self.slots[entry.slot];
        if slot.generation != entry.generation {
            return;
        }
        if let SlotState::Waiting(waker) = &mut slot.state {
            let waker = waker.take();
            slot.state = SlotState::Done(outcome);
            waker.into_iter().for_each(Waker::wake);
        }
    }

    /// Drops the entries of the open batch whose clients have gone. At least half of the entries
    /// go, because each client that still waits has a slot.
    fn forget_the_gone(&mut self) {
        let slots = &self.slots;
        self.open.entries.retain(|entry| slots[entry.slot].generation == entry.generation);
        self.open.requests = self.open.entries.iter().map(|entry| u64::from(entry.requests)).sum();
        self.open.total = self.open.entries.iter().map(|entry| entry.count).sum();
    }

    fn spare(&mut self, mut entries: Vec<Entry>) {
        if self.spare.len() < SPARE_MAX {
            entries.clear();
            entries.shrink_to(SPARE_ENTRIES_MAX);
            self.spare.push(entries);
        }
    }
}

/// Most entry lists that are kept for later batches: one for each round in flight, and one for the
/// open batch.
const SPARE_MAX: usize = ROUNDS_IN_FLIGHT_MAX + 1;
/// Most entries that a spare list keeps memory for.
const SPARE_ENTRIES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use epicepoch_wire::{Epoch, EpochIndex, Timestamp};

    use super::*;

    fn outcome(room: &mut Room, slot: usize) -> Option<Outcome> {
        match room.poll(slot, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    fn range(count: u64) -> TimestampRange {
        TimestampRange::new(Timestamp::new(Epoch(5), EpochIndex(0)), count).unwrap()
    }

    #[test]
    fn a_batch_is_answered_in_order_of_arrival() {
        let mut room = Room::new(8);
        let slots: Vec<_> = [2, 1, 3].map(|count| room.enter(1, count, || 7).unwrap()).into();
        let batch = room.close(9);
        assert_eq!((batch.requests, batch.total, batch.opened_ns, batch.closed_ns), (3, 6, 7, 9));
        let late = room.enter(1, 1, || 10).unwrap();
        room.answer(batch, range(6));
        let firsts = slots.iter().map(|slot| outcome(&mut room, *slot).unwrap().unwrap());
        let firsts: Vec<_> = firsts.map(|range| (range.first().index.0, range.count())).collect();
        assert_eq!(firsts, [(0, 2), (2, 1), (3, 3)]);
        assert_eq!(outcome(&mut room, late), None);
    }

    #[test]
    fn what_a_gone_request_asked_for_is_burned_and_its_slot_is_used_again() {
        let mut room = Room::new(2);
        let gone = room.enter(1, 5, || 0).unwrap();
        let stays = room.enter(1, 1, || 0).unwrap();
        assert_eq!(room.enter(1, 1, || 0), None);
        room.leave(gone);
        let batch = room.close(0);
        let next = room.enter(1, 1, || 0).unwrap();
        assert_eq!(next, gone);
        room.answer(batch, range(6));
        assert_eq!(outcome(&mut room, stays).unwrap().unwrap().first().index.0, 5);
        assert_eq!(outcome(&mut room, next), None);
        assert_eq!(room.taken(), 2);
    }

    #[test]
    fn clients_that_come_and_go_take_no_memory() {
        let mut room = Room::new(4);
        let stays = room.enter(1, 1, || 0).unwrap();
        for _ in 0..1000 {
            let slot = room.enter(1, 1, || 0).unwrap();
            room.leave(slot);
        }
        assert!(room.open.requests <= 8);
        assert!(room.open.total <= 8);
        let batch = room.close(0);
        let total = batch.total;
        room.answer(batch, range(total));
        assert!(outcome(&mut room, stays).unwrap().is_ok());
    }

    #[test]
    fn old_requests_are_refused_in_whatever_batch_they_are() {
        let mut room = Room::new(8);
        let first = room.enter(1, 1, || 10).unwrap();
        let batch = room.close(15);
        let second = room.enter(1, 1, || 20).unwrap();
        room.expire(30, 20, ErrorCode::NoQuorum);
        assert_eq!(outcome(&mut room, first), Some(Err(ErrorCode::NoQuorum)));
        assert_eq!(outcome(&mut room, second), None);
        // The timeout of a request begins when it joins, although its batch was opened long before.
        let third = room.enter(1, 1, || unreachable!("the batch is open")).unwrap();
        room.expire(45, 20, ErrorCode::NoQuorum);
        assert_eq!(outcome(&mut room, second), Some(Err(ErrorCode::NoQuorum)));
        assert_eq!(outcome(&mut room, third), None);
        room.answer(batch, range(1));
        assert_eq!(outcome(&mut room, first), Some(Err(ErrorCode::NoQuorum)));
    }

    #[test]
    fn a_reopened_batch_takes_more_requests() {
        let mut room = Room::new(8);
        let first = room.enter(1, 1, || 10).unwrap();
        let batch = room.close(15);
        room.reopen(batch);
        room.enter(1, 2, || unreachable!("the batch is open")).unwrap();
        let batch = room.close(20);
        assert_eq!((batch.total, batch.opened_ns), (3, 10));
        room.refuse(batch, ErrorCode::NoLeader);
        assert_eq!(outcome(&mut room, first), Some(Err(ErrorCode::NoLeader)));
    }
}
