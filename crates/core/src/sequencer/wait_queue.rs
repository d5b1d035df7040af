//! The wait queue of one worker: the slots of its requests, and the open batches, one for each
//! guarantee. A request joins the open batch of its guarantee. A turn closes the batch, and its
//! requests are answered in order of arrival. This module never decides whether a batch may be
//! answered.
//!
//! Slots and entries are used again, so that a request allocates no memory after start.

use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::{Guarantee, ProvedBy, Round, TimestampRange};

use crate::confirm::UNPACED_ROUNDS;

/// What a request is told: its answer, or the code of a refusal.
pub type Outcome = Result<Answer, ErrorCode>;

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its timestamps. A request for the latest timestamp gets the range of that one.
    pub range: TimestampRange,
    /// What has proved that this node still leads.
    pub proved_by: ProvedBy,
}

/// The count of a request that asks for the latest timestamp, and takes none.
pub const LATEST: u64 = 0;

/// A batch: requests that share one proof.
#[derive(Debug, Default)]
pub(super) struct Batch {
    entries: Vec<Entry>,
    size: BatchSize,
}

/// What a batch asks for, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchSize {
    /// How many requests joined, including those whose clients have gone since.
    pub requests: u64,
    /// Timestamps that all entries ask for together; 0 if all ask for the latest one.
    pub total: u64,
    /// When the first request arrived, monotonic nanoseconds.
    pub opened_ns: u64,
    /// When the batch was closed, monotonic nanoseconds.
    pub closed_ns: u64,
    /// The round that the batch was closed for; 0 if a lease has proved it.
    pub round: Round,
}

impl Batch {
    /// What the batch asks for.
    #[must_use]
    pub(super) const fn size(&self) -> BatchSize {
        self.size
    }

    /// Whether no request joined. A probe has such a batch.
    pub(super) const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Drops the entries of an open batch whose clients have gone. At least half of the entries
    /// go, because each client that still waits has a slot.
    fn forget_the_gone<W>(&mut self, slots: &[Slot<W>]) {
        self.entries.retain(|entry| slots[entry.slot].generation == entry.generation);
        self.count();
    }

    /// Counts what the entries ask for.
    fn count(&mut self) {
        self.size.requests = self.entries.iter().map(|entry| u64::from(entry.requests)).sum();
        self.size.total = self.entries.iter().map(|entry| entry.count).sum();
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
struct Slot<W> {
    generation: u64,
    arrived_ns: u64,
    state: SlotState<W>,
}

#[derive(Debug)]
enum SlotState<W> {
    Free,
    Waiting(Option<W>),
    Done(Outcome),
}

/// The slots of one worker, and its open batches. `W` is what the caller needs to wake a waiter.
///
/// Invariant: `free.len() + taken slots == slots.len() <= slots_max`, and each open batch has at
/// most `2 * slots_max` entries.
#[derive(Debug)]
pub(super) struct WaitQueue<W> {
    slots: Vec<Slot<W>>,
    free: Vec<usize>,
    /// The open batch of the requests that ask for a quorum, and then that of the others.
    open: [Batch; 2],
    spare: Vec<Vec<Entry>>,
    slots_max: usize,
    /// The last clock reading that a caller has passed in, monotonic nanoseconds.
    now_ns: u64,
}

impl<W> WaitQueue<W> {
    /// An empty queue with at most `slots_max` slots.
    pub(super) fn new(slots_max: usize) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            open: [Batch::default(), Batch::default()],
            spare: Vec::new(),
            slots_max,
            now_ns: 0,
        }
    }

    /// Takes a slot in the open batch of `guarantee`, for one request or for a burst that gets one
    /// range. `count` is how many timestamps it takes, or [`LATEST`]. Returns `None` when all slots
    /// are taken. Reads the clock only for the first request of a batch.
    #[inline]
    pub(super) fn enter(
        &mut self,
        requests: u32,
        count: u64,
        guarantee: Guarantee,
        clock: impl FnOnce() -> u64,
    ) -> Option<usize> {
        let open = &mut self.open[guarantee as usize];
        if open.entries.len() >= 2 * self.slots_max {
            open.forget_the_gone(&self.slots);
        }
        if open.is_empty() {
            self.now_ns = clock();
            open.size.opened_ns = self.now_ns;
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
        open.entries.push(Entry { slot, generation: taken.generation, requests, count });
        open.size.requests += u64::from(requests);
        open.size.total += count;
        Some(slot)
    }

    /// The outcome of the request in `slot`. While there is none, the place for its waiter.
    #[inline]
    pub(super) fn outcome(&mut self, slot: usize) -> Result<Outcome, &mut Option<W>> {
        match &mut self.slots[slot].state {
            SlotState::Done(outcome) => Ok(*outcome),
            SlotState::Waiting(waiter) => Err(waiter),
            SlotState::Free => panic!("a request polled a slot that it does not hold"),
        }
    }

    /// Frees a slot. If its request is in a batch, the timestamps that it asked for are left
    /// unused.
    #[inline]
    pub(super) fn leave(&mut self, slot: usize) {
        let left = &mut self.slots[slot];
        left.generation += 1;
        left.state = SlotState::Free;
        self.free.push(slot);
    }

    /// Closes the open batch of `guarantee` for `round`, and opens the next one.
    pub(super) fn close(&mut self, guarantee: Guarantee, now_ns: u64, round: Round) -> Batch {
        self.now_ns = now_ns;
        let entries = self.spare.pop().unwrap_or_default();
        let next = Batch { entries, size: BatchSize::default() };
        let mut closed = std::mem::replace(&mut self.open[guarantee as usize], next);
        closed.size.closed_ns = now_ns;
        closed.size.round = round;
        closed
    }

    /// Records the time. Without it, the time is that of the last batch or tick.
    pub(super) const fn record_time(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// Removes the entries of clients that have gone from the open batch of the requests that ask for
    /// a quorum.
    pub(super) fn drop_gone(&mut self) {
        self.open[Guarantee::Quorum as usize].forget_the_gone(&self.slots);
    }

    /// Closes a part of the open batch of the requests that ask for a quorum: the oldest entries
    /// whose clients still wait, as many as ask together for at most `count_max` timestamps. The
    /// first one counts in any case. The other entries stay in the open batch.
    pub(super) fn close_part(&mut self, count_max: u64, now_ns: u64, round: Round) -> Batch {
        let open = &mut self.open[Guarantee::Quorum as usize];
        open.forget_the_gone(&self.slots);
        if open.size.total <= count_max || open.entries.len() <= 1 {
            return self.close(Guarantee::Quorum, now_ns, round);
        }
        let mut total: u64 = 0;
        let fitting = open.entries.iter().enumerate().take_while(|(at, entry)| {
            total = total.saturating_add(entry.count);
            *at == 0 || total <= count_max
        });
        let parted = fitting.count();
        let rest = open.entries.split_off(parted);
        let opened_ns = open.size.opened_ns;
        let mut closed = self.close(Guarantee::Quorum, now_ns, round);
        let open = &mut self.open[Guarantee::Quorum as usize];
        self.spare
            .extend((self.spare.len() < SPARE_MAX).then_some(std::mem::take(&mut open.entries)));
        *open = Batch { entries: rest, size: BatchSize { opened_ns, ..BatchSize::default() } };
        open.count();
        closed.count();
        closed
    }

    /// Opens a batch again, because no round could begin for it.
    ///
    /// # Panics
    /// When requests have joined the batch that was opened after it.
    pub(super) fn reopen(&mut self, batch: Batch) {
        let open = &mut self.open[Guarantee::Quorum as usize];
        assert!(open.is_empty(), "a batch was reopened behind a later one");
        let empty = std::mem::replace(open, batch);
        self.spare(empty.entries);
    }

    /// Puts the requests of a batch before those of the open batch of requests that ask for a quorum:
    /// they are older.
    pub(super) fn merge_older(&mut self, batch: Batch) {
        let open = &mut self.open[Guarantee::Quorum as usize];
        let newer = std::mem::replace(open, batch);
        self.merge(newer);
    }

    /// Moves the requests of a batch to the open batch of those that ask for a quorum, because no
    /// lease has proved it. They wait for the same round, and keep their times of arrival.
    pub(super) fn merge(&mut self, mut batch: Batch) {
        if !batch.is_empty() {
            let open = &mut self.open[Guarantee::Quorum as usize];
            let (more, size) = (batch.size, &mut open.size);
            size.opened_ns = if open.entries.is_empty() {
                more.opened_ns
            } else {
                size.opened_ns.min(more.opened_ns)
            };
            size.requests += more.requests;
            size.total += more.total;
            open.entries.append(&mut batch.entries);
            if open.entries.len() >= 2 * self.slots_max {
                open.forget_the_gone(&self.slots);
            }
        }
        self.spare(batch.entries);
    }

    /// Answers a batch in order of arrival, from the range that was allocated for it after
    /// `proved_by` had proved it. The requests that ask for the latest timestamp get the last one of
    /// the range (S19). The range is taken after the batch closed, so what was answered before one of
    /// its requests is below the range. What is asked for after one of its answers is taken later, so
    /// it is above the range.
    ///
    /// # Panics
    /// When the size of the range is not the batch's total, or 1 if that is 0.
    pub(super) fn answer(
        &mut self,
        batch: Batch,
        range: TimestampRange,
        proved_by: ProvedBy,
        mut wake: impl FnMut(W),
    ) {
        assert_eq!(range.count(), batch.size.total.max(1), "a range was taken for another batch");
        let mut rest = Some(range);
        for entry in &batch.entries {
            let split = rest.and_then(|range| range.split_first(entry.count));
            // No range has a part of 0 timestamps.
            let Some((head, tail)) = split else {
                assert_eq!(entry.count, LATEST, "the counts add up to the total");
                let answer = Answer { range: last_of(range), proved_by };
                self.finish(*entry, Ok(answer), &mut wake);
                continue;
            };
            rest = tail;
            self.finish(*entry, Ok(Answer { range: head, proved_by }), &mut wake);
        }
        self.spare(batch.entries);
    }

    /// Answers a batch in order of arrival, each entry with what `answer` returns for its number of
    /// requests and its count of timestamps. It is not called for clients that have gone. Requests
    /// for the latest timestamp come last, so that they get the last one of the batch (S19).
    pub(super) fn answer_each(
        &mut self,
        batch: Batch,
        proved_by: ProvedBy,
        mut answer: impl FnMut(u32, u64) -> Result<TimestampRange, ErrorCode>,
        mut wake: impl FnMut(W),
    ) {
        let takers = batch.entries.iter().filter(|entry| entry.count != LATEST);
        let readers = batch.entries.iter().filter(|entry| entry.count == LATEST);
        for entry in takers.chain(readers) {
            if self.slots[entry.slot].generation == entry.generation {
                let outcome = answer(entry.requests, entry.count);
                let outcome = outcome.map(|range| Answer { range, proved_by });
                self.finish(*entry, outcome, &mut wake);
            }
        }
        self.spare(batch.entries);
    }

    /// Refuses every request of a batch.
    pub(super) fn refuse(&mut self, batch: Batch, code: ErrorCode, mut wake: impl FnMut(W)) {
        for entry in &batch.entries {
            self.finish(*entry, Err(code), &mut wake);
        }
        self.spare(batch.entries);
    }

    /// Refuses every request that has waited for `timeout_ns`, in any batch.
    pub(super) fn expire(
        &mut self,
        now_ns: u64,
        timeout_ns: u64,
        code: ErrorCode,
        mut wake: impl FnMut(W),
    ) {
        self.now_ns = now_ns;
        for slot in &mut self.slots {
            let is_old = now_ns.saturating_sub(slot.arrived_ns) >= timeout_ns;
            if is_old && let SlotState::Waiting(waiter) = &mut slot.state {
                let waiter = waiter.take();
                slot.state = SlotState::Done(Err(code));
                waiter.into_iter().for_each(&mut wake);
            }
        }
    }

    /// The last clock reading that a caller has passed in, monotonic nanoseconds.
    pub(super) const fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Whether no request has joined the open batch of `guarantee`.
    pub(super) const fn is_open_empty(&self, guarantee: Guarantee) -> bool {
        self.open[guarantee as usize].is_empty()
    }

    /// How many slots are taken.
    pub(super) const fn taken(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn finish(&mut self, entry: Entry, outcome: Outcome, wake: &mut impl FnMut(W)) {
        let slot = &mut self.slots[entry.slot];
        if slot.generation != entry.generation {
            return;
        }
        if let SlotState::Waiting(waiter) = &mut slot.state {
            let waiter = waiter.take();
            slot.state = SlotState::Done(outcome);
            waiter.into_iter().for_each(wake);
        }
    }

    fn spare(&mut self, mut entries: Vec<Entry>) {
        if self.spare.len() < SPARE_MAX {
            entries.clear();
            entries.shrink_to(SPARE_ENTRIES_MAX);
            self.spare.push(entries);
        }
    }
}

/// The range of the last timestamp of a range.
fn last_of(range: TimestampRange) -> TimestampRange {
    let before = range.count() - 1;
    range.split_first(before).and_then(|(_, last)| last).unwrap_or(range)
}

/// At most this many entry lists are kept for later batches: one for each round that is in flight on
/// a short round trip, and one for each open batch.
const SPARE_MAX: usize = UNPACED_ROUNDS + 2;
/// A spare list keeps memory for at most this many entries.
const SPARE_ENTRIES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use epicepoch_wire::{Epoch, EpochIndex, Timestamp};

    use super::*;

    const ROUND: Round = Round(1);

    fn outcome(queue: &mut WaitQueue<()>, slot: usize) -> Option<Outcome> {
        queue.outcome(slot).ok()
    }

    fn wake((): ()) {}

    fn range(count: u64) -> TimestampRange {
        TimestampRange::new(Timestamp::new(Epoch(5), EpochIndex(0)), count).unwrap()
    }

    #[test]
    fn a_batch_is_answered_in_order_of_arrival() {
        let mut queue = WaitQueue::new(8);
        let slots: Vec<_> =
            [2, 1, 3].map(|count| queue.enter(1, count, Guarantee::Quorum, || 7).unwrap()).into();
        let batch = queue.close(Guarantee::Quorum, 9, ROUND);
        let size = batch.size();
        assert_eq!((size.requests, size.total, size.opened_ns, size.closed_ns), (3, 6, 7, 9));
        let late = queue.enter(1, 1, Guarantee::Quorum, || 10).unwrap();
        queue.answer(batch, range(6), ProvedBy::Round, wake);
        let firsts = slots.iter().map(|slot| outcome(&mut queue, *slot).unwrap().unwrap().range);
        let firsts: Vec<_> = firsts.map(|range| (range.first().index.0, range.count())).collect();
        assert_eq!(firsts, [(0, 2), (2, 1), (3, 3)]);
        assert_eq!(outcome(&mut queue, late), None);
    }

    #[test]
    fn requests_for_the_latest_timestamp_get_the_last_one_of_their_batch_and_take_none() {
        let mut queue = WaitQueue::new(8);
        let slots = [LATEST, 2, LATEST, 3, LATEST]
            .map(|count| queue.enter(1, count, Guarantee::Quorum, || 7).unwrap());
        let batch = queue.close(Guarantee::Quorum, 9, ROUND);
        assert_eq!((batch.size().requests, batch.size().total), (5, 5));
        queue.answer(batch, range(5), ProvedBy::Round, wake);
        let told = slots.map(|slot| outcome(&mut queue, slot).unwrap().unwrap().range);
        let told = told.map(|range| (range.first().index.0, range.count()));
        assert_eq!(told, [(4, 1), (0, 2), (4, 1), (2, 3), (4, 1)]);
        let alone = [(); 2].map(|()| queue.enter(1, LATEST, Guarantee::Quorum, || 7).unwrap());
        let batch = queue.close(Guarantee::Quorum, 9, ROUND);
        let latest = TimestampRange::new(Timestamp::highest_at(4), 1).unwrap();
        queue.answer(batch, latest, ProvedBy::Round, wake);
        assert_eq!(
            alone.map(|slot| outcome(&mut queue, slot)),
            [Some(Ok(Answer { range: latest, proved_by: ProvedBy::Round })); 2]
        );
    }

    #[test]
    fn timestamps_of_a_gone_request_are_burnt_and_its_slot_is_reused() {
        let mut queue = WaitQueue::new(2);
        let gone = queue.enter(1, 5, Guarantee::Quorum, || 0).unwrap();
        let stays = queue.enter(1, 1, Guarantee::Quorum, || 0).unwrap();
        assert_eq!(queue.enter(1, 1, Guarantee::Quorum, || 0), None);
        queue.leave(gone);
        let batch = queue.close(Guarantee::Quorum, 0, ROUND);
        let next = queue.enter(1, 1, Guarantee::Quorum, || 0).unwrap();
        assert_eq!(next, gone);
        queue.answer(batch, range(6), ProvedBy::Round, wake);
        assert_eq!(outcome(&mut queue, stays).unwrap().unwrap().range.first().index.0, 5);
        assert_eq!(outcome(&mut queue, next), None);
        assert_eq!(queue.taken(), 2);
    }

    #[test]
    fn clients_that_come_and_go_take_no_memory() {
        let mut queue = WaitQueue::new(4);
        let stays = queue.enter(1, 1, Guarantee::Quorum, || 0).unwrap();
        for _ in 0..1000 {
            let slot = queue.enter(1, 1, Guarantee::Quorum, || 0).unwrap();
            queue.leave(slot);
        }
        assert!(queue.open[0].size.requests <= 8);
        assert!(queue.open[0].size.total <= 8);
        let batch = queue.close(Guarantee::Quorum, 0, ROUND);
        let total = batch.size().total;
        queue.answer(batch, range(total), ProvedBy::Round, wake);
        assert!(outcome(&mut queue, stays).unwrap().is_ok());
    }

    #[test]
    fn old_requests_are_refused_in_whatever_batch_they_are() {
        let mut queue = WaitQueue::new(8);
        let first = queue.enter(1, 1, Guarantee::Quorum, || 10).unwrap();
        let batch = queue.close(Guarantee::Quorum, 15, ROUND);
        let second = queue.enter(1, 1, Guarantee::Quorum, || 20).unwrap();
        queue.expire(30, 20, ErrorCode::NoQuorum, wake);
        assert_eq!(outcome(&mut queue, first), Some(Err(ErrorCode::NoQuorum)));
        assert_eq!(outcome(&mut queue, second), None);
        // The timeout of a request begins when it joins, although its batch was opened long before.
        let third =
            queue.enter(1, 1, Guarantee::Quorum, || unreachable!("the batch is open")).unwrap();
        queue.expire(45, 20, ErrorCode::NoQuorum, wake);
        assert_eq!(outcome(&mut queue, second), Some(Err(ErrorCode::NoQuorum)));
        assert_eq!(outcome(&mut queue, third), None);
        queue.answer(batch, range(1), ProvedBy::Round, wake);
        assert_eq!(outcome(&mut queue, first), Some(Err(ErrorCode::NoQuorum)));
    }

    #[test]
    fn a_merged_batch_waits_with_the_requests_that_ask_for_a_quorum() {
        let mut queue = WaitQueue::new(8);
        let first = queue.enter(1, 2, Guarantee::Lease, || 10).unwrap();
        let batch = queue.close(Guarantee::Lease, 15, ROUND);
        queue.merge(batch);
        let sizes = |queue: &mut WaitQueue<()>| {
            let size = queue.open[0].size;
            (size.opened_ns, size.requests, size.total)
        };
        assert_eq!(sizes(&mut queue), (10, 1, 2));
        queue.enter(1, 1, Guarantee::Quorum, || unreachable!("the batch is open")).unwrap();
        let empty = queue.close(Guarantee::Lease, 16, ROUND);
        queue.merge(empty);
        queue.enter(2, 4, Guarantee::Lease, || 20).unwrap();
        let batch = queue.close(Guarantee::Lease, 25, ROUND);
        queue.merge(batch);
        assert_eq!(sizes(&mut queue), (10, 4, 7));
        assert!(queue.is_open_empty(Guarantee::Lease));
        let batch = queue.close(Guarantee::Quorum, 30, ROUND);
        queue.answer(batch, range(7), ProvedBy::Round, wake);
        assert_eq!(outcome(&mut queue, first).unwrap().unwrap().range.count(), 2);
    }

    #[test]
    fn clients_that_ask_for_a_lease_and_go_take_no_memory_while_no_round_can_begin() {
        let mut queue = WaitQueue::<()>::new(4);
        let stays = queue.enter(1, 7, Guarantee::Lease, || 0).unwrap();
        for _ in 0..1000 {
            let gone = queue.enter(1, 1, Guarantee::Lease, || 0).unwrap();
            queue.leave(gone);
            let batch = queue.close(Guarantee::Lease, 0, Round(0));
            queue.merge(batch);
            assert!(queue.open[Guarantee::Quorum as usize].entries.len() <= 2 * 4);
        }
        let batch = queue.close(Guarantee::Quorum, 0, Round(1));
        assert!(batch.entries.iter().any(|entry| entry.slot == stays && entry.count == 7));
        assert_eq!(batch.size.total, batch.entries.iter().map(|entry| entry.count).sum::<u64>());
    }

    #[test]
    fn a_reopened_batch_takes_more_requests() {
        let mut queue = WaitQueue::new(8);
        let first = queue.enter(1, 1, Guarantee::Quorum, || 10).unwrap();
        let batch = queue.close(Guarantee::Quorum, 15, ROUND);
        queue.reopen(batch);
        queue.enter(1, 2, Guarantee::Quorum, || unreachable!("the batch is open")).unwrap();
        let batch = queue.close(Guarantee::Quorum, 20, ROUND);
        assert_eq!((batch.size().total, batch.size().opened_ns), (3, 10));
        queue.refuse(batch, ErrorCode::NoLeader, wake);
        assert_eq!(outcome(&mut queue, first), Some(Err(ErrorCode::NoLeader)));
    }
}
