//! The forwarder of one worker of a node that does not lead: which requests share a frame to the
//! leader, and what each of them is told (S22). Requests wait in an open batch. Sending a frame
//! closes the batch, and nothing joins a frame that is on its way. The leader treats a frame as one
//! request of a client. Its range is divided among the requests of the frame, once; the parts of
//! requests whose clients have gone are burnt.
//!
//! A frame that gets no answer, or is refused by a node that does not lead, is given up: its
//! requests wait again, and share a later frame with a new number. An answer to a frame that was
//! given up is never used.
//!
//! A node that leads has no frames. This module has no side effects: a caller passes the time, sends
//! the frames, and says how to wake a waiter.

use std::collections::VecDeque;

use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::{COMPACT_INDEXES, Guarantee, Mode, NodeId, ProvedBy, Round, TimestampRange};

use super::wait_queue::{Batch, BatchSize, Outcome, WaitQueue};
use crate::publication::{Published, Role};

/// At most this many frames of one worker are on their way at once. Further requests wait, and share
/// the next frame.
const FRAMES_IN_FLIGHT_MAX: usize = 4;

/// The requests of one frame ask together for at most this many timestamps. A single request may
/// ask for more. If timestamps are compact, the leader gives no larger range (S21).
const FRAME_COUNT_MAX: u64 = COMPACT_INDEXES;

/// A frame to the leader: send it as one request for `count` timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The number of the frame, which the answer repeats. No two frames of a forwarder have the
    /// same number.
    pub id: u64,
    /// How many timestamps the requests of the frame ask for together.
    pub count: u64,
}

/// An answer that belongs to no frame of this connection. The other end breaks the protocol: close
/// the connection and call [`Forwarder::handle_link_lost`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unasked;

/// Whether a connection can go on after the other node has refused a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The requests of the frame were refused. The connection goes on.
    Told,
    /// The other node does not lead. Close the connection, and call
    /// [`Forwarder::handle_link_lost`].
    NotLeading,
}

/// A frame that is on its way.
#[derive(Debug)]
struct Flight {
    frame: Frame,
    batch: Batch,
    sent_ns: u64,
}

/// The requests of one worker that another node answers. `W` is what the caller needs to wake a
/// waiter.
///
/// Invariants: `flights.len() <= FRAMES_IN_FLIGHT_MAX`; the numbers of `flights` grow and are below
/// `next_id`; without a link there are no flights.
#[derive(Debug)]
pub struct Forwarder<W> {
    queue: WaitQueue<W>,
    flights: VecDeque<Flight>,
    next_id: u64,
    /// Longest time that a request may wait, nanoseconds.
    request_ns: u64,
    leader: Option<NodeId>,
    is_leading: bool,
    is_linked: bool,
}

impl<W> Forwarder<W> {
    /// A forwarder without requests that follows `published`. At most `slots_max` requests, or bursts
    /// of requests, wait, each for `request_ns` nanoseconds.
    #[must_use]
    pub fn new(slots_max: usize, request_ns: u64, published: &Published) -> Self {
        let mut forwarder = Self {
            queue: WaitQueue::new(slots_max),
            flights: VecDeque::new(),
            next_id: 1,
            request_ns,
            leader: None,
            is_leading: false,
            is_linked: false,
        };
        forwarder.follow(published);
        forwarder
    }

    /// Whether this node knows another node that leads, so that requests may join.
    #[must_use]
    pub const fn may_join(&self) -> bool {
        self.leader.is_some()
    }

    /// The leader to connect to; `None` while this node leads or knows no leader.
    #[must_use]
    pub const fn leader(&self) -> Option<NodeId> {
        self.leader
    }

    /// Adds a request, or a burst of `requests` that get one range of `count` timestamps. Returns its
    /// slot.
    ///
    /// # Errors
    /// When too many requests wait.
    ///
    /// # Panics
    /// When no leader is known, or `count` is 0.
    pub fn join(
        &mut self,
        requests: u32,
        count: u64,
        clock: impl FnOnce() -> u64,
    ) -> Result<usize, ErrorCode> {
        assert!(self.may_join(), "S22: a request joined a node that knows no other leader");
        assert!(count > 0, "S22: a request for the latest timestamp was forwarded");
        // A batch may wait for a connection for some time, so its time is not that of the request.
        let now_ns = clock();
        self.queue.record_time(now_ns);
        let slot = self.queue.enter(requests, count, Guarantee::Quorum, || now_ns);
        slot.ok_or(ErrorCode::Overloaded)
    }

    /// The outcome of the request in `slot`. Before the outcome is known, the error is the place where
    /// the caller leaves its waiter.
    ///
    /// # Errors
    /// The place of the waiter.
    ///
    /// # Panics
    /// When the slot is free.
    pub fn outcome(&mut self, slot: usize) -> Result<Outcome, &mut Option<W>> {
        self.queue.outcome(slot)
    }

    /// Frees a slot. If its request is in a frame, its part of the range is burnt.
    pub fn leave(&mut self, slot: usize) {
        self.queue.leave(slot);
    }

    /// Follows a publication. If this node leads now, or the cluster has changed to interval mode, all
    /// requests are refused: their clients ask again. Returns whether the connection must be closed,
    /// because it leads to another node than the leader. Then call [`Self::handle_link_lost`].
    pub fn handle_publication(
        &mut self,
        now_ns: u64,
        published: &Published,
        mut wake: impl FnMut(W),
    ) -> bool {
        let before = self.leader;
        self.follow(published);
        let is_other_mode = published.mode == Mode::Interval;
        if self.is_leading || is_other_mode {
            let code = if is_other_mode { ErrorCode::OtherMode } else { ErrorCode::NoLeader };
            while let Some(flight) = self.flights.pop_front() {
                self.queue.refuse(flight.batch, code, &mut wake);
            }
            let batch = self.queue.close(Guarantee::Quorum, now_ns, Round::default());
            self.queue.refuse(batch, code, &mut wake);
        }
        self.is_linked && before != self.leader
    }

    /// A connection to the leader is open: frames may be sent.
    ///
    /// # Panics
    /// When another connection is open.
    pub fn handle_linked(&mut self) {
        assert!(!self.is_linked && self.flights.is_empty(), "S22: two connections at once");
        self.is_linked = true;
    }

    /// The connection is closed. The requests of its frames wait for the next connection, and get
    /// nothing from those frames. Returns how many requests.
    pub fn handle_link_lost(&mut self) -> u64 {
        self.is_linked = false;
        let mut requests = 0;
        while let Some(flight) = self.flights.pop_back() {
            requests += flight.batch.size().requests;
            self.queue.merge_older(flight.batch);
        }
        requests
    }

    /// The next frame to send, with the requests that wait now. Send it at once.
    pub fn poll_frame(&mut self, now_ns: u64) -> Option<Frame> {
        if !self.is_linked || self.is_leading || self.flights.len() >= FRAMES_IN_FLIGHT_MAX {
            return None;
        }
        let id = self.next_id;
        let batch = self.queue.close_part(FRAME_COUNT_MAX, now_ns, Round(id));
        if batch.is_empty() {
            self.queue.merge(batch);
            return None;
        }
        self.next_id += 1;
        let frame = Frame { id, count: batch.size().total };
        self.flights.push_back(Flight { frame, batch, sent_ns: now_ns });
        Some(frame)
    }

    /// Gives the requests of a frame their parts of the range that the leader has answered. Returns
    /// what the frame asked for, and since when its first request has waited.
    ///
    /// # Errors
    /// When the frame is not on its way over this connection, or asked for another number of
    /// timestamps.
    pub fn handle_answer(
        &mut self,
        id: u64,
        range: TimestampRange,
        wake: impl FnMut(W),
    ) -> Result<BatchSize, Unasked> {
        let at = self.position(id)?;
        if self.flights[at].frame.count != range.count() {
            return Err(Unasked);
        }
        let Some(Flight { frame, batch, .. }) = self.flights.remove(at) else {
            return Err(Unasked);
        };
        let size = batch.size();
        assert_eq!(size.round, Round(id), "S22: an answer was given to another frame's requests");
        assert_eq!(size.total, frame.count, "S22: a request joined a frame that was on its way");
        self.queue.answer(batch, range, ProvedBy::Round, wake);
        Ok(size)
    }

    /// The leader has refused a frame.
    ///
    /// # Errors
    /// When the frame is not on its way over this connection.
    pub fn handle_refusal(
        &mut self,
        id: u64,
        code: ErrorCode,
        wake: impl FnMut(W),
    ) -> Result<Refused, Unasked> {
        let at = self.position(id)?;
        let told = match code {
            ErrorCode::NotLeader
            | ErrorCode::NoLeader
            | ErrorCode::NotReady
            | ErrorCode::ShuttingDown => return Ok(Refused::NotLeading),
            ErrorCode::NoQuorum
            | ErrorCode::Overloaded
            | ErrorCode::BadCount
            | ErrorCode::OtherMode
            | ErrorCode::NotCompact => code,
            // The leader cannot read what this node has sent, or does not let it in.
            _ => ErrorCode::Internal,
        };
        let Some(flight) = self.flights.remove(at) else { return Err(Unasked) };
        self.queue.refuse(flight.batch, told, wake);
        Ok(Refused::Told)
    }

    /// Handles a tick: refuses requests that have waited too long. Returns whether the leader has
    /// been silent so long about a frame that the connection must be closed.
    pub fn handle_tick(&mut self, now_ns: u64, wake: impl FnMut(W)) -> bool {
        self.queue.expire(now_ns, self.request_ns, ErrorCode::NoQuorum, wake);
        // No connection is opened for clients that have gone.
        self.queue.drop_gone();
        let oldest = self.flights.front();
        oldest.is_some_and(|it| now_ns.saturating_sub(it.sent_ns) >= self.request_ns)
    }

    /// Whether requests wait to be sent.
    #[must_use]
    pub const fn has_waiting(&self) -> bool {
        !self.queue.is_open_empty(Guarantee::Quorum)
    }

    /// Whether requests wait or frames are on their way, so that the next tick should come soon.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.queue.taken() > 0 || !self.flights.is_empty()
    }

    fn follow(&mut self, published: &Published) {
        self.is_leading = published.role == Role::Leader;
        // In interval mode no node is asked for the timestamps of a leader.
        let is_known = published.refusal() == ErrorCode::NotLeader;
        self.leader = published.other_leader().filter(|_| is_known).map(|leader| leader.node);
    }

    fn position(&self, id: u64) -> Result<usize, Unasked> {
        self.flights.iter().position(|it| it.frame.id == id).ok_or(Unasked)
    }
}

#[cfg(test)]
mod tests;
