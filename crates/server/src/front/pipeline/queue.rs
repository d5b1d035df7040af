//! The waiting requests of one connection, in order of arrival, and the bursts in which they joined
//! batches. The requests of one read join as one burst. All of them have arrived before the batch
//! closes, and each gets its part of the burst's range. So a client sees the same result as if each
//! request had joined alone.
//!
//! A request for the latest timestamp gets R, the last one of its burst's range (S19). The range is
//! taken after the batch closed, so what was answered before the request is below the range. What
//! is asked for after R was answered is taken later, so it is above R. The same batch may give
//! timestamps above R to others; none of them was answered before this request, because its batch
//! was not yet closed. If all requests of a burst ask for the latest one, it is all that the range
//! has.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use epicepoch_core::sequencer::Outcome;
use epicepoch_wire::{EpochIndex, Guarantee, ProvedBy, Timestamp, TimestampRange};

use crate::worker::sequencer::Ticket;
use waiting::asks_for_latest;
pub(crate) use waiting::{Interest, Waiting};

mod waiting;

/// The waiting requests of one connection.
///
/// Invariants: the first `joined` requests are those of `bursts`. `cancelled` is the number of
/// requests that are not wanted any more. `owed_len` is the total length of the answers to the
/// wanted requests.
#[derive(Debug)]
pub(crate) struct Queue<R> {
    requests: VecDeque<R>,
    joined: usize,
    bursts: VecDeque<Burst>,
    cancelled: usize,
    /// How many requests ask for the latest timestamp.
    latest: usize,
    /// How many requests name a guarantee.
    named: usize,
    /// How many requests must not be sent on.
    direct: usize,
    owed_len: usize,
    /// The request ids, one after the other.
    request_ids: VecDeque<u8>,
}

#[derive(Debug)]
struct Burst {
    /// `None` if all of the burst's requests were cancelled.
    ticket: Option<Ticket>,
    /// How many requests the burst has, cancelled ones included.
    requests: usize,
}

impl<R> Default for Queue<R> {
    fn default() -> Self {
        Self {
            requests: VecDeque::new(),
            joined: 0,
            bursts: VecDeque::new(),
            cancelled: 0,
            latest: 0,
            named: 0,
            direct: 0,
            owed_len: 0,
            request_ids: VecDeque::new(),
        }
    }
}

impl<R: Waiting> Queue<R> {
    /// Adds a request at the end.
    #[inline]
    pub(crate) fn push(&mut self, request: R, request_id: &[u8]) {
        if request.request_id_len() > 0 {
            self.request_ids.extend(request_id);
        }
        self.owed_len += request.answer_len();
        if asks_for_latest(&request) {
            self.latest += 1;
        }
        self.named += usize::from(request.guarantee().is_some());
        self.direct += usize::from(request.is_direct());
        self.requests.push_back(request);
    }

    /// Cancels the request for which `find` returns `Equal`, and frees its capacity at once. The
    /// requests should be sorted in the order of `find`. If not, the request may not be found, and
    /// is answered in vain. Returns whether the request was found and wanted.
    pub(crate) fn cancel(&mut self, find: impl FnMut(&R) -> Ordering) -> bool {
        let Ok(at) = self.requests.binary_search_by(find) else { return false };
        let request = &mut self.requests[at];
        if request.interest() != Interest::Wanted {
            return false;
        }
        let has_joined = at < self.joined;
        request.set_interest(if has_joined { Interest::Burned } else { Interest::Dropped });
        self.owed_len -= request.answer_len();
        self.cancelled += 1;
        if has_joined {
            let mut left = at;
            let burst = self.bursts.iter_mut().find(|burst| {
                let is_here = left < burst.requests;
                left = left.saturating_sub(burst.requests);
                is_here
            });
            if let Some(burst) = burst
                && burst.ticket.as_mut().is_some_and(Ticket::give_one_back)
            {
                burst.ticket = None;
            }
        }
        true
    }

    /// Drops all requests and frees their capacity.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Gives back unused memory.
    pub(super) fn give_back(&mut self) {
        self.requests.shrink_to_fit();
        self.bursts.shrink_to_fit();
        self.request_ids.shrink_to_fit();
    }

    /// How many requests the queue has, cancelled ones included.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// How many requests must be answered.
    #[inline]
    pub(crate) fn live(&self) -> usize {
        self.requests.len() - self.cancelled
    }

    /// How many requests of `range` must be answered.
    pub(super) fn live_of(&self, range: Range<usize>) -> usize {
        if self.cancelled == 0 {
            return range.len();
        }
        self.requests.range(range).filter(|it| it.interest() == Interest::Wanted).count()
    }

    /// How many of the requests of `range` that must be answered ask for the latest timestamp.
    #[inline]
    pub(super) fn latest_of(&self, range: Range<usize>) -> usize {
        if !R::MAY_ASK_FOR_LATEST || self.latest == 0 {
            return 0;
        }
        let is_one = |it: &&R| asks_for_latest(*it) && it.interest() == Interest::Wanted;
        self.requests.range(range).filter(is_one).count()
    }

    /// How many of the oldest `requests` must be answered and are such as `chosen` says.
    pub(crate) fn count_oldest(&self, requests: usize, chosen: impl Fn(&R) -> bool) -> u64 {
        let is_one = |it: &&R| it.interest() == Interest::Wanted && chosen(it);
        self.requests.range(..requests).filter(is_one).count() as u64
    }

    /// Approximate bytes of the answers to all wanted requests.
    #[inline]
    pub(crate) fn owed_len(&self) -> usize {
        self.owed_len
    }

    /// The newest request.
    pub(crate) fn last_mut(&mut self) -> Option<&mut R> {
        self.requests.back_mut()
    }

    /// How many requests are in a batch.
    pub(super) fn joined(&self) -> usize {
        self.joined
    }

    /// Whether some requests are not in a batch yet.
    pub(super) fn has_new(&self) -> bool {
        self.joined < self.requests.len()
    }

    /// How many bursts wait.
    pub(super) fn bursts(&self) -> usize {
        self.bursts.len()
    }

    /// How many wanted requests are not in a batch yet.
    pub(super) fn wanted(&self) -> u32 {
        self.live_of(self.joined..self.requests.len()) as u32
    }

    /// How many wanted requests that are not in a batch yet ask together for at most `total_max`
    /// timestamps, in their order. The first one counts in any case.
    pub(super) fn wanted_within(&self, total_max: u64) -> u32 {
        let new = self.requests.range(self.joined..);
        let wanted = new.filter(|it| it.interest() == Interest::Wanted);
        let mut total: u64 = 0;
        let fitting = wanted.enumerate().take_while(|(at, request)| {
            total = total.saturating_add(request.count());
            *at == 0 || total <= total_max
        });
        fitting.count() as u32
    }

    /// The guarantee with which the requests that are not in a batch yet can join one. A burst has
    /// one range, so it has the strongest guarantee that one of its requests asks for: a lease only
    /// if all of them accept that. A request that names none asks for `default`.
    #[inline]
    pub(crate) fn guarantee(&self, default: Guarantee) -> Guarantee {
        if self.named == 0 {
            return default;
        }
        let mut new = self.requests.range(self.joined..);
        let asked = |it: &R| it.guarantee().unwrap_or(default);
        let wants_quorum =
            |it: &R| it.interest() == Interest::Wanted && asked(it) == Guarantee::Quorum;
        if new.any(wants_quorum) { Guarantee::Quorum } else { Guarantee::Lease }
    }

    /// Whether the requests that are not in a batch yet may be sent on to the leader. They join
    /// together, so one that may not keeps back the others.
    pub(crate) fn may_forward(&self) -> bool {
        if self.direct == 0 && self.latest == 0 && self.named == 0 {
            return true;
        }
        let names_lease = |it: &R| it.guarantee() == Some(Guarantee::Lease);
        let stays = |it: &R| it.is_direct() || asks_for_latest(it) || names_lease(it);
        !self.requests.range(self.joined..).any(stays)
    }

    /// How many timestamps the next `requests` requests ask for. Only wanted requests that are not
    /// in a batch yet count.
    pub(super) fn total(&self, requests: u32) -> u64 {
        let new = self.requests.range(self.joined..);
        if self.cancelled == 0 {
            return new.take(requests as usize).map(R::count).sum();
        }
        let wanted = new.filter(|it| it.interest() == Interest::Wanted);
        wanted.take(requests as usize).map(R::count).sum()
    }

    /// Records that the next requests have joined a batch, as many as `ticket` is for.
    pub(super) fn join(&mut self, ticket: Ticket) {
        let mut left = ticket.requests();
        let requests = if self.cancelled == 0 {
            left as usize
        } else {
            let covers = |it: &&R| {
                let is_covered = left > 0;
                left -= u32::from(is_covered && it.interest() == Interest::Wanted);
                is_covered
            };
            self.requests.range(self.joined..).take_while(covers).count()
        };
        self.joined += requests;
        self.bursts.push_back(Burst { ticket: Some(ticket), requests });
    }

    /// Ready with the oldest burst: how many requests it has, their outcome, which is `None` if
    /// all were cancelled, and whether another node has answered. The requests stay at the front of
    /// the queue.
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<(usize, Option<Outcome>, bool)>> {
        let Some(burst) = self.bursts.front_mut() else { return Poll::Ready(None) };
        let outcome = match &mut burst.ticket {
            None => None,
            Some(ticket) => match Pin::new(ticket).poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(outcome) => Some(outcome),
            },
        };
        let requests = burst.requests;
        let is_forwarded = burst.ticket.as_ref().is_some_and(Ticket::is_forwarded);
        self.bursts.pop_front();
        self.joined -= requests;
        Poll::Ready(Some((requests, outcome, is_forwarded)))
    }

    /// Removes the requests of `range`, and passes each to `each` with its request id. Requests
    /// with ids may only be removed from the front.
    #[inline]
    pub(super) fn drain(&mut self, range: Range<usize>, mut each: impl FnMut(R, &[u8])) {
        for request in self.requests.drain(range) {
            if request.interest() == Interest::Wanted {
                self.owed_len -= request.answer_len();
            } else {
                self.cancelled -= 1;
            }
            if asks_for_latest(&request) {
                self.latest -= 1;
            }
            self.named -= usize::from(request.guarantee().is_some());
            self.direct -= usize::from(request.is_direct());
            let len = request.request_id_len();
            if len == 0 {
                each(request, &[]);
                continue;
            }
            let mut request_id = [0; u8::MAX as usize];
            for (to, from) in request_id.iter_mut().zip(self.request_ids.drain(..len)) {
                *to = from;
            }
            each(request, &request_id[..len]);
        }
    }
}

/// Requests that must be answered from one range.
pub(crate) struct Answers<'a, R> {
    pub(super) queue: &'a mut Queue<R>,
    pub(super) requests: usize,
    pub(super) range: TimestampRange,
    /// What has proved the answers.
    pub(super) proved_by: ProvedBy,
    /// Whether another node has answered.
    pub(super) is_forwarded: bool,
}

impl<R: Waiting> Answers<'_, R> {
    /// What has proved the answers.
    #[inline]
    pub(crate) fn proved_by(&self) -> ProvedBy {
        self.proved_by
    }

    /// Whether another node has answered.
    #[inline]
    pub(crate) fn is_forwarded(&self) -> bool {
        self.is_forwarded
    }

    /// How many requests there are.
    pub(crate) fn len(&self) -> usize {
        self.requests
    }

    /// Passes each wanted request to `each`, with its request id and its first timestamp, or the
    /// latest one.
    ///
    /// # Panics
    /// When the range and the requests have different numbers of timestamps.
    #[inline]
    pub(crate) fn each(self, mut each: impl FnMut(R, &[u8], Timestamp)) {
        let Timestamp { epoch, index: EpochIndex(first) } = self.range.first();
        let (mut taken, last) = (0, self.range.last());
        self.queue.drain(0..self.requests, |request, request_id| {
            if request.interest() == Interest::Dropped {
                return;
            }
            // The index wraps only after the last timestamp of an epoch; the wrapped value is not
            // used.
            let own = if asks_for_latest(&request) {
                last
            } else {
                Timestamp::new(epoch, EpochIndex(first.wrapping_add(taken)))
            };
            taken += request.count();
            if request.interest() == Interest::Wanted {
                each(request, request_id, own);
            }
        });
        // A burst that takes no timestamps has the range of the latest one.
        assert_eq!(taken.max(1), self.range.count(), "a range was taken for another burst");
    }
}

/// Requests that are refused together.
pub(crate) struct Refused<'a, R> {
    pub(super) queue: &'a mut Queue<R>,
    pub(super) range: Range<usize>,
}

impl<R: Waiting> Refused<'_, R> {
    /// Passes each wanted request to `each`, with its request id.
    pub(crate) fn each(self, mut each: impl FnMut(R, &[u8])) {
        self.queue.drain(self.range, |request, request_id| {
            if request.interest() == Interest::Wanted {
                each(request, request_id);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use epicepoch_core::sequencer::LATEST;
    use epicepoch_wire::Epoch;

    use super::*;

    #[derive(Clone, Copy)]
    struct Request {
        id: u64,
        count: u64,
        interest: Interest,
    }

    impl Waiting for Request {
        const MAY_ASK_FOR_LATEST: bool = true;

        fn count(&self) -> u64 {
            self.count
        }

        fn interest(&self) -> Interest {
            self.interest
        }

        fn set_interest(&mut self, interest: Interest) {
            self.interest = interest;
        }
    }

    #[test]
    fn each_request_gets_its_part_of_the_range_up_to_the_last_index() {
        let mut queue = Queue::default();
        let interests = [Interest::Wanted, Interest::Dropped, Interest::Wanted, Interest::Burned];
        for id in 0..3000_u64 {
            let interest = interests[id as usize % interests.len()];
            queue.push(Request { id, count: 1 + id % 5, interest }, &[]);
            queue.cancelled += usize::from(interest != Interest::Wanted);
        }
        let requests = queue.requests.clone();
        // A dropped request never joined a batch, so the range has no part for it. A burned request
        // did join, so the range has a part for it.
        let joined = |it: &&Request| it.interest != Interest::Dropped;
        let total = requests.iter().filter(joined).map(|it| it.count).sum();
        let first = Timestamp::new(Epoch(9), EpochIndex(u64::MAX - total + 1));
        let range = TimestampRange::new(first, total).unwrap();
        let mut given = Vec::new();
        let requests_len = requests.len();
        let proved_by = ProvedBy::Round;
        let answers = Answers {
            queue: &mut queue,
            requests: requests_len,
            range,
            proved_by,
            is_forwarded: false,
        };
        answers.each(|request, _, own| given.push((request.id, own)));
        let mut next = first;
        let mut expected = Vec::new();
        for request in requests.iter().filter(joined) {
            if request.interest == Interest::Wanted {
                expected.push((request.id, next));
            }
            next.index.0 = next.index.0.wrapping_add(request.count);
        }
        assert_eq!(given, expected);
        assert_eq!((queue.len(), queue.live()), (0, 0));
    }

    #[test]
    fn a_burst_has_as_many_requests_as_fit_and_at_least_one() {
        let mut queue = Queue::default();
        let interest = Interest::Wanted;
        for (id, count) in (0..).zip([5, LATEST, 3, 2, 9]) {
            queue.push(Request { id, count, interest }, &[]);
        }
        assert_eq!(
            [0, 4, 5, 7, 8, 10, 18, 19].map(|max| queue.wanted_within(max)),
            [1, 1, 2, 2, 3, 4, 4, 5]
        );
        queue.joined = 3;
        assert_eq!([1, 10, 11].map(|max| queue.wanted_within(max)), [1, 1, 2]);
        queue.joined = 5;
        assert_eq!(queue.wanted_within(9), 0);
    }

    #[test]
    fn a_burst_asks_for_a_lease_only_if_all_its_requests_do() {
        #[derive(Clone, Copy)]
        struct Named(Option<Guarantee>, Interest);

        impl Waiting for Named {
            fn count(&self) -> u64 {
                1
            }

            fn guarantee(&self) -> Option<Guarantee> {
                self.0
            }

            fn interest(&self) -> Interest {
                self.1
            }

            fn set_interest(&mut self, interest: Interest) {
                self.1 = interest;
            }
        }

        use Guarantee::{Lease, Quorum};
        let (quorum, lease) = (Some(Quorum), Some(Lease));
        for (asked, default, joins) in [
            (&[][..], Quorum, Quorum),
            (&[], Lease, Lease),
            (&[None, None], Quorum, Quorum),
            (&[None, None], Lease, Lease),
            (&[quorum], Lease, Quorum),
            (&[lease, lease], Quorum, Lease),
            (&[lease, quorum], Lease, Quorum),
            (&[quorum, lease, lease], Quorum, Quorum),
            (&[lease, None], Quorum, Quorum),
            (&[lease, None], Lease, Lease),
            (&[None, quorum], Lease, Quorum),
        ] {
            let mut queue = Queue::default();
            for it in asked {
                queue.push(Named(*it, Interest::Wanted), &[]);
            }
            assert_eq!(queue.guarantee(default), joins, "{asked:?} {default}");
            // Requests that joined a batch before do not count, and neither do cancelled ones.
            queue.joined = queue.requests.len();
            queue.push(Named(quorum, Interest::Dropped), &[]);
            queue.cancelled += 1;
            queue.push(Named(lease, Interest::Wanted), &[]);
            assert_eq!(queue.guarantee(default), Lease, "{asked:?} {default}");
            queue.drain(0..queue.len(), |_, _| {});
            assert_eq!((queue.named, queue.guarantee(default)), (0, default));
        }
    }

    #[test]
    fn requests_for_the_latest_timestamp_get_the_last_one_of_their_burst_and_are_counted() {
        let interest = Interest::Wanted;
        let told = |counts: &[u64], first: Timestamp| {
            let mut queue = Queue::default();
            for (id, count) in (0..).zip(counts) {
                queue.push(Request { id, count: *count, interest }, &[]);
            }
            let latest = counts.iter().filter(|count| **count == LATEST).count();
            assert_eq!(queue.latest_of(0..counts.len()), latest);
            let taken = queue.total(counts.len() as u32);
            let range = TimestampRange::new(first, taken.max(1)).unwrap();
            let mut given = Vec::new();
            let proved_by = ProvedBy::Round;
            let answers = Answers {
                queue: &mut queue,
                requests: counts.len(),
                range,
                proved_by,
                is_forwarded: false,
            };
            answers.each(|_, _, own| given.push(own.index.0));
            assert_eq!((queue.len(), queue.latest_of(0..0)), (0, 0));
            given
        };
        let first = |index| Timestamp::new(Epoch(9), EpochIndex(index));
        assert_eq!(told(&[LATEST, 2, LATEST, 3, LATEST], first(5)), [9, 5, 9, 7, 9]);
        assert_eq!(told(&[LATEST, LATEST], first(5)), [5, 5]);
        assert_eq!(told(&[LATEST], first(u64::MAX)), [u64::MAX]);
        assert_eq!(told(&[LATEST, 1], first(u64::MAX)), [u64::MAX, u64::MAX]);
    }
}
