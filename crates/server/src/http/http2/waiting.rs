//! Hot requests of one connection that wait, in the order in which they came, and the runs in which
//! they joined their batches. A request that its client takes back gives its place back at once; the
//! timestamps that its run asks for in its name are burned.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::super::query::Ask;
use crate::worker::batch::Outcome;
use crate::worker::sequencer::Ticket;

/// See the module.
///
/// Invariants: the first `entered` requests are those of `runs`; streams grow from front to back;
/// `live` of the requests were not taken back.
#[derive(Debug, Default)]
pub(super) struct Queue {
    requests: VecDeque<Waiting>,
    entered: usize,
    runs: VecDeque<Run>,
    live: usize,
    /// The request ids, one behind the other.
    request_ids: VecDeque<u8>,
}

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) stream: u32,
    pub(super) ask: Ask,
    request_id_len: u8,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Wanted,
    /// Taken back before it joined a batch.
    Dropped,
    /// Taken back afterwards: its part of the range is nobody's.
    Burned,
}

#[derive(Debug)]
struct Run {
    /// `None` once all of it was taken back.
    ticket: Option<Ticket>,
    /// Requests of the queue, those included that were taken back.
    requests: usize,
}

/// What the requests in front of a queue got.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) requests: usize,
    /// `None` where nobody wants to know.
    pub(super) outcome: Option<Outcome>,
}

impl Queue {
    /// Requests, those included that were taken back and not forgotten yet.
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Requests that are to be answered.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// Requests that are to be answered, of the oldest `requests`.
    pub(super) fn live_of(&self, requests: usize) -> usize {
        let oldest = self.requests.range(..requests);
        oldest.filter(|it| it.state == State::Wanted).count()
    }

    /// Whether requests are in a batch.
    pub(super) fn has_entered(&self) -> bool {
        self.entered > 0
    }

    /// Whether requests are in none.
    pub(super) fn has_new(&self) -> bool {
        self.entered < self.requests.len()
    }

    /// Adds the newest.
    pub(super) fn push(&mut self, stream: u32, ask: Ask, request_id: &[u8]) {
        self.request_ids.extend(request_id);
        let request_id_len = request_id.len() as u8;
        self.requests.push_back(Waiting { stream, ask, request_id_len, state: State::Wanted });
        self.live += 1;
    }

    /// Takes the request of a stream back, and says what it had asked for, if it is here.
    pub(super) fn take_back(&mut self, stream: u32) -> Option<Ask> {
        let at = self.requests.binary_search_by_key(&stream, |waiting| waiting.stream).ok()?;
        let waiting = &mut self.requests[at];
        if waiting.state != State::Wanted {
            return None;
        }
        self.live -= 1;
        waiting.state = if at < self.entered { State::Burned } else { State::Dropped };
        let ask = waiting.ask;
        if at < self.entered {
            let mut behind = at;
            let run = self.runs.iter_mut().find(|run| {
                let is_here = behind < run.requests;
                behind = behind.saturating_sub(run.requests);
                is_here
            });
            if let Some(run) = run
                && run.ticket.as_mut().is_some_and(Ticket::give_one_back)
            {
                run.ticket = None;
            }
        }
        Some(ask)
    }

    /// How many requests are to join a batch.
    pub(super) fn wanted(&self) -> u32 {
        self.unplaced().filter(|it| it.state == State::Wanted).count() as u32
    }

    /// Timestamps that the first `requests` of those ask for.
    pub(super) fn total(&self, requests: u32) -> u64 {
        let wanted = self.unplaced().filter(|it| it.state == State::Wanted);
        wanted.take(requests as usize).map(|it| it.ask.count).sum()
    }

    /// Notes that the first of those have joined a batch, as many as the ticket is for.
    pub(super) fn enter(&mut self, ticket: Ticket) {
        let mut left = ticket.requests();
        let covers = |it: &&Waiting| {
            let is_wanted = it.state == State::Wanted;
            let is_covered = left > 0;
            left -= u32::from(is_covered && is_wanted);
            is_covered
        };
        let requests = self.unplaced().take_while(covers).count();
        self.entered += requests;
        self.runs.push_back(Run { ticket: Some(ticket), requests });
    }

    /// Forgets the requests that were taken back and joined no batch, if there are no others.
    pub(super) fn forget_dropped(&mut self) -> Settled {
        Settled { requests: self.requests.len() - self.entered, outcome: None }
    }

    /// What the oldest run got. Its requests are still in front.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Settled>> {
        let Some(run) = self.runs.front_mut() else { return Poll::Ready(None) };
        let outcome = match &mut run.ticket {
            None => None,
            Some(ticket) => match Pin::new(ticket).poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(outcome) => Some(outcome),
            },
        };
        let requests = run.requests;
        self.runs.pop_front();
        self.entered -= requests;
        Poll::Ready(Some(Settled { requests, outcome }))
    }

    /// Runs that wait.
    pub(super) fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Takes the oldest `requests` out, and hands each to `each` with its request id: whether it
    /// has a part of its run's range, and whether somebody wants it.
    pub(super) fn drain(
        &mut self,
        requests: usize,
        mut each: impl FnMut(Waiting, &[u8], bool, bool),
    ) {
        let mut request_id = [0; u8::MAX as usize];
        for waiting in self.requests.drain(..requests) {
            let len = usize::from(waiting.request_id_len);
            if len > 0 {
                for (to, from) in request_id.iter_mut().zip(self.request_ids.drain(..len)) {
                    *to = from;
                }
            }
            let is_wanted = waiting.state == State::Wanted;
            self.live -= usize::from(is_wanted);
            each(waiting, &request_id[..len], waiting.state != State::Dropped, is_wanted);
        }
    }

    /// Drops everything: its places are free.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Gives back memory that nothing needs now.
    pub(super) fn give_back(&mut self) {
        self.requests.shrink_to_fit();
        self.runs.shrink_to_fit();
        self.request_ids.shrink_to_fit();
    }

    fn unplaced(&self) -> impl Iterator<Item = &Waiting> {
        self.requests.range(self.entered..)
    }
}
