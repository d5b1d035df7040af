//! The sequencer of one worker: which requests share a confirm round, and what each of them is
//! told. Requests join the open batch of the guarantee that they ask for. A turn closes the batch
//! and begins a round for it; nothing joins a closed batch. When a quorum has confirmed the round,
//! the batch gets timestamps, and its requests are answered in order of arrival. All other requests
//! are refused.
//!
//! A request for the latest timestamp waits in the same batches. It gets the last timestamp of its
//! batch; if the batch takes none, it gets that of the allocator (S19).
//!
//! If timestamps are compact (S21) and a batch does not fit into one millisecond, each request gets its
//! timestamps alone, under the same proof.
//!
//! The server and the simulator run loops around a [`Sequencer`]. This module reads no clock, sends
//! nothing and wakes nobody: a caller passes the time, sends the rounds that begin, and says how to
//! wake a waiter.

mod forwarder;
mod wait_queue;

use epicepoch_wire::confirm::ConfirmReply;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::{
    COMPACT_INDEXES, Guarantee, Mode, NodeId, ProvedBy, Round, Term, TimestampRange, WorkerId,
};

pub use forwarder::{Forwarder, Frame, Refused, Unasked};
pub use wait_queue::{Answer, BatchSize, LATEST, Outcome};

use crate::allocator::AllocateError;
use crate::confirm::{Begun, Confirmed, RoundFailure, Rounds, UNPACED_ROUNDS, prove_by_lease};
use crate::publication::{Identity, Published, Role, Shared};
use wait_queue::{Batch, WaitQueue};

/// The limits of a worker.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// At most this many requests, or bursts of requests, wait.
    pub slots_max: usize,
    /// Longest time that a round may take, nanoseconds.
    pub round_ns: u64,
    /// Longest time that a request may wait, nanoseconds.
    pub request_ns: u64,
    /// Time between two rounds of an idle leader, nanoseconds. `None` for a worker that does not
    /// probe.
    pub probe_ns: Option<u64>,
}

/// A batch that is proved: a quorum has confirmed its round, or a lease holds.
/// [`Sequencer::complete`] answers it.
#[derive(Debug)]
pub struct ConfirmedBatch {
    batch: Batch,
    /// The key to the batch's timestamps.
    key: Confirmed,
}

impl ConfirmedBatch {
    /// What the batch asks for.
    #[must_use]
    pub const fn size(&self) -> BatchSize {
        self.batch.size()
    }

    /// The term that was proved.
    #[must_use]
    pub const fn term(&self) -> Term {
        self.key.term()
    }

    /// What has proved it.
    #[must_use]
    pub const fn proved_by(&self) -> ProvedBy {
        self.key.proved_by()
    }
}

/// The shortest time between a further round and the round before it, nanoseconds. So further rounds
/// begin only on networks whose round trips take milliseconds.
const PACE_NS_MIN: u64 = 1_000_000;

/// At most so many further rounds begin in the time that the oldest round in flight has taken. So the
/// pause is 3 % of a round trip. The next request, answer or tick ends it.
const PACED_ROUNDS: u64 = 32;

/// At most this many rounds of one worker are in flight at once. If no round ends, each one begins
/// later than the one before, so there are hardly more.
const ROUNDS_IN_FLIGHT_MAX: usize = 128;

/// The batches and rounds of one worker. `W` is what the caller needs to wake a waiter.
#[derive(Debug)]
pub struct Sequencer<W> {
    limits: Limits,
    rounds: Rounds<Batch>,
    queue: WaitQueue<W>,
    /// The error for new requests, from the latest publication; `None` while this node leads.
    refusal: Option<ErrorCode>,
    /// Whether this node leads and has a grant, by the latest publication.
    is_serving: bool,
    last_round_ns: u64,
    /// A batch that a lease has proved.
    proved: Option<ConfirmedBatch>,
    lease_asked_ns: u64,
}

impl<W> Sequencer<W> {
    /// A worker without requests that follows `published`.
    #[must_use]
    pub fn new(me: Identity, worker: WorkerId, limits: Limits, published: &Published) -> Self {
        let mut sequencer = Self {
            limits,
            rounds: Rounds::new(me, worker),
            queue: WaitQueue::new(limits.slots_max),
            refusal: None,
            is_serving: false,
            last_round_ns: 0,
            proved: None,
            lease_asked_ns: 0,
        };
        sequencer.follow(published);
        sequencer
    }

    /// Adds a request, or a burst of `requests` that get one range, to the open batch of the
    /// guarantee that it asks for. Returns its slot. `count` is how many timestamps it takes, or
    /// [`LATEST`]. The clock is read only for the first request of a batch.
    ///
    /// # Errors
    /// The code of the refusal, when the request cannot wait.
    #[inline]
    pub fn join(
        &mut self,
        requests: u32,
        count: u64,
        guarantee: Guarantee,
        clock: impl FnOnce() -> u64,
    ) -> Result<usize, ErrorCode> {
        if let Some(code) = self.refusal {
            return Err(code);
        }
        self.queue.enter(requests, count, guarantee, clock).ok_or(ErrorCode::Overloaded)
    }

    /// The code with which this node refuses every request now; `None` while it leads.
    #[inline]
    #[must_use]
    pub const fn refusal(&self) -> Option<ErrorCode> {
        self.refusal
    }

    /// The outcome of the request in `slot`. While there is none, the error is the place for the
    /// waiter, who is woken when there is an outcome.
    ///
    /// # Errors
    /// The place of the waiter.
    ///
    /// # Panics
    /// When the slot is free.
    #[inline]
    pub fn outcome(&mut self, slot: usize) -> Result<Outcome, &mut Option<W>> {
        self.queue.outcome(slot)
    }

    /// Frees a slot: its client has read the outcome, or has gone. If the request still is in a
    /// batch, no request gets the timestamps that it asked for.
    #[inline]
    pub fn leave(&mut self, slot: usize) {
        self.queue.leave(slot);
    }

    /// Whether requests wait and a round can begin for them: take a turn soon. Ask this after each
    /// publication and when a round has ended. A round that only has to wait for its time begins at
    /// a later turn or tick.
    #[must_use]
    pub fn is_turn_due(&self) -> bool {
        let is_waiting = |guarantee| !self.queue.is_open_empty(guarantee);
        is_waiting(Guarantee::Quorum) && self.may_begin(self.queue.now_ns())
            || is_waiting(Guarantee::Lease) && self.is_serving
    }

    /// Takes the requests that wait. If a lease holds, it proves those that ask for one, and
    /// [`Self::has_proved`] becomes true. A round begins for all others; it does not begin without a
    /// grant or while too many rounds are in flight, and [`Self::is_turn_due`] says when that is
    /// over. Send the round to its voters, then call [`Self::poll_confirmed`]. `lease_clock` reads
    /// the clock of the leases, nanoseconds; it is read only for requests that ask for a lease.
    #[inline]
    pub fn handle_turn(
        &mut self,
        now_ns: u64,
        shared: &Shared,
        lease_clock: impl FnOnce() -> u64,
        wake: impl FnMut(W),
    ) -> Option<Begun> {
        if !self.queue.is_open_empty(Guarantee::Lease) {
            self.take_lease_requests(now_ns, shared, lease_clock);
        }
        let is_empty = self.queue.is_open_empty(Guarantee::Quorum);
        if is_empty { None } else { self.begin(now_ns, shared, wake) }
    }

    /// Counts a voter's answer. If it returns `true`, rounds may have been confirmed or have
    /// failed.
    pub fn handle_reply(&mut self, from: NodeId, reply: &ConfirmReply) -> bool {
        self.rounds.handle_reply(from, reply)
    }

    /// Follows a publication. Without leadership, requests of the open batch are refused. Call
    /// [`Self::poll_failed`] after it.
    pub fn handle_publication(
        &mut self,
        now_ns: u64,
        published: &Published,
        mut wake: impl FnMut(W),
    ) {
        self.follow(published);
        let Some(code) = self.refusal else { return };
        for guarantee in [Guarantee::Quorum, Guarantee::Lease] {
            let batch = self.queue.close(guarantee, now_ns, Round::default());
            self.queue.refuse(batch, code, &mut wake);
        }
    }

    /// Handles a tick, after [`Self::poll_failed`]: refuses requests that have waited too long, and
    /// begins a round if requests wait and may have one. Begins an empty round if this node has led
    /// for some time without any. So a leader whose rounds cannot complete is noticed before a client
    /// asks it.
    pub fn handle_tick(
        &mut self,
        now_ns: u64,
        shared: &Shared,
        mut wake: impl FnMut(W),
    ) -> Option<Begun> {
        self.queue.expire(now_ns, self.limits.request_ns, ErrorCode::NoQuorum, &mut wake);
        if !self.queue.is_open_empty(Guarantee::Quorum) {
            // With fewer rounds in flight, a turn is due for these requests.
            let is_paced = self.rounds.len() >= UNPACED_ROUNDS;
            return if is_paced { self.begin(now_ns, shared, wake) } else { None };
        }
        let probe_ns = self.limits.probe_ns?;
        // Without this tolerance, a tick that comes a little early would delay the probe by a whole
        // interval.
        let is_due = now_ns.saturating_sub(self.last_round_ns) >= probe_ns * 7 / 8;
        // A leader that answers by its lease probes, too: rounds show that a quorum can be reached.
        if is_due && self.rounds.is_empty() { self.begin(now_ns, shared, wake) } else { None }
    }

    /// Whether a lease has proved a batch that [`Self::poll_confirmed`] has not returned yet.
    #[must_use]
    pub const fn has_proved(&self) -> bool {
        self.proved.is_some()
    }

    /// When a turn last took requests that ask for a lease, monotonic nanoseconds; 0 before the
    /// first.
    #[must_use]
    pub const fn lease_asked_ns(&self) -> u64 {
        self.lease_asked_ns
    }

    /// The next batch that a lease has proved, or whose round a quorum has confirmed.
    pub fn poll_confirmed(&mut self) -> Option<ConfirmedBatch> {
        if let Some(proved) = self.proved.take() {
            return Some(proved);
        }
        let (batch, key) = self.rounds.poll_confirmed()?;
        Some(ConfirmedBatch { batch, key })
    }

    /// Answers a confirmed batch with what `allocate` returns for it, or refuses it. That is a
    /// range of the timestamps that the batch asks for. If it asks only for the latest timestamp,
    /// it is the range of that one. If the batch must be divided, `allocate` is called again for each
    /// request, and may refuse some of them. The batch of a probe gets nothing. Returns how many
    /// timestamps were taken.
    ///
    /// # Errors
    /// Why nothing was allocated.
    ///
    /// # Panics
    /// When another number of timestamps was allocated than the batch asks for.
    pub fn complete(
        &mut self,
        confirmed: ConfirmedBatch,
        mut allocate: impl FnMut(Confirmed) -> Result<TimestampRange, AllocateError>,
        shared: &Shared,
        wake: impl FnMut(W),
    ) -> Result<u64, AllocateError> {
        let ConfirmedBatch { batch, key } = confirmed;
        if batch.is_empty() {
            // This is a probe: it has no requests, and only its entry list is kept for later.
            self.queue.refuse(batch, ErrorCode::Internal, wake);
            return Ok(0);
        }
        let proved_by = key.proved_by();
        match allocate(key) {
            Ok(range) => {
                let taken = batch.size().total;
                self.queue.answer(batch, range, proved_by, wake);
                Ok(taken)
            }
            Err(AllocateError::Divide(mut key)) => {
                let (mut taken, mut failed) = (0, None);
                let answer = |requests, count| {
                    if count > COMPACT_INDEXES {
                        return Err(too_many(requests));
                    }
                    match allocate(key.take_part(count)) {
                        Ok(range) => {
                            taken += count;
                            Ok(range)
                        }
                        Err(error) => {
                            let code = refusal(&error, shared);
                            failed = Some(error);
                            Err(code)
                        }
                    }
                };
                self.queue.answer_each(batch, proved_by, answer, wake);
                failed.filter(|_| taken == 0).map_or(Ok(taken), Err)
            }
            Err(error) => {
                self.queue.refuse(batch, refusal(&error, shared), wake);
                Err(error)
            }
        }
    }

    /// Refuses the next batch whose round can no longer be confirmed. Returns the round and why it
    /// failed. Call it at every tick, after each publication, and after a voter's no, until it
    /// returns `None`.
    pub fn poll_failed(
        &mut self,
        now_ns: u64,
        shared: &Shared,
        wake: impl FnMut(W),
    ) -> Option<(Round, RoundFailure)> {
        if self.rounds.is_empty() {
            return None;
        }
        let (batch, failure) = self.rounds.poll_failed(now_ns, shared)?;
        let round = batch.size().round;
        let code = match failure {
            RoundFailure::TimedOut => ErrorCode::NoQuorum,
            // This node believed that it leads. By now it may know the next leader.
            RoundFailure::Deposed | RoundFailure::GrantLost => shared.published().refusal(),
        };
        self.queue.refuse(batch, code, wake);
        Some((round, failure))
    }

    /// The newest round in flight. Send it again over a link that connects after the round began.
    #[must_use]
    pub fn newest(&self) -> Option<Begun> {
        self.rounds.newest()
    }

    /// The newest round in flight whose voters are others than those of [`Self::newest`].
    #[must_use]
    pub fn newest_of_other_voters(&self) -> Option<Begun> {
        self.rounds.newest_of_other_voters()
    }

    /// When the oldest round in flight began, monotonic nanoseconds.
    #[must_use]
    pub fn oldest_ns(&self) -> Option<u64> {
        self.rounds.deadline_ns().map(|deadline_ns| deadline_ns - self.limits.round_ns)
    }

    /// Whether requests wait or rounds are in flight, so that the next tick should come soon.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.queue.taken() > 0 || !self.rounds.is_empty()
    }

    /// A recent time, monotonic nanoseconds: when a batch was last opened or closed, or the last
    /// tick. It needs no clock reading. Use it only where an old time does no harm.
    #[must_use]
    pub const fn recent_ns(&self) -> u64 {
        self.queue.now_ns()
    }

    fn follow(&mut self, published: &Published) {
        // In interval mode the leader gives no timestamps either, and requests do not wait for any.
        let is_leading = published.role == Role::Leader && published.mode == Mode::Quorum;
        self.refusal = if is_leading { None } else { Some(published.refusal()) };
        self.is_serving = is_leading && published.grant.is_some();
    }

    /// Closes the batch of the requests that ask for a lease. If none holds, they wait for a round
    /// like all others.
    fn take_lease_requests(
        &mut self,
        now_ns: u64,
        shared: &Shared,
        lease_clock: impl FnOnce() -> u64,
    ) {
        assert!(self.proved.is_none(), "a batch that a lease has proved was not taken");
        self.lease_asked_ns = now_ns;
        let queue = &mut self.queue;
        let close = || {
            let batch = queue.close(Guarantee::Lease, now_ns, Round::default());
            let count = batch.size().total;
            (batch, count)
        };
        match prove_by_lease(close, shared, lease_clock) {
            Ok((batch, key)) => self.proved = Some(ConfirmedBatch { batch, key }),
            Err(batch) => self.queue.merge(batch),
        }
    }

    /// Whether a round may begin. A few rounds overlap freely. A further round begins only some time
    /// after the one before: on long round trips, a request must not wait until a round ends.
    fn may_begin(&self, now_ns: u64) -> bool {
        self.is_serving && (self.rounds.len() < UNPACED_ROUNDS || self.may_add(now_ns))
    }

    /// Whether a round may begin beside [`UNPACED_ROUNDS`] or more.
    fn may_add(&self, now_ns: u64) -> bool {
        let oldest_ns = self.oldest_ns().unwrap_or(now_ns);
        let pace_ns = PACE_NS_MIN.max(now_ns.saturating_sub(oldest_ns) / PACED_ROUNDS);
        let is_time = now_ns.saturating_sub(self.last_round_ns) >= pace_ns;
        is_time && self.rounds.len() < ROUNDS_IN_FLIGHT_MAX
    }

    /// Closes the open batch and begins a round for it.
    fn begin(&mut self, now_ns: u64, shared: &Shared, wake: impl FnMut(W)) -> Option<Begun> {
        if !self.may_begin(now_ns) {
            return None;
        }
        let deadline_ns = now_ns + self.limits.round_ns;
        let (queue, round) = (&mut self.queue, self.rounds.next_round());
        let close = || {
            let batch = queue.close(Guarantee::Quorum, now_ns, round);
            let count = batch.size().total;
            (batch, count)
        };
        match self.rounds.begin(close, shared, deadline_ns) {
            Ok(begun) => {
                self.last_round_ns = now_ns;
                Some(begun)
            }
            // A newer publication exists, and this worker follows it soon. If this node still
            // leads, the batch waits for that; otherwise it is refused now.
            Err((batch, published))
                if published.role == Role::Leader && published.mode == Mode::Quorum =>
            {
                self.queue.reopen(batch);
                None
            }
            Err((batch, published)) => {
                self.queue.refuse(batch, published.refusal(), wake);
                None
            }
        }
    }
}

/// The code with which requests are refused that got no timestamps.
fn refusal(error: &AllocateError, shared: &Shared) -> ErrorCode {
    match error {
        AllocateError::NoGrant | AllocateError::OtherTerm => shared.published().refusal(),
        // The node must not use its grant, or the range has no room left. A second attempt would
        // fail in the same way. A part of a batch is not divided.
        AllocateError::BehindLast | AllocateError::Exhausted | AllocateError::Divide(_) => {
            ErrorCode::Internal
        }
        AllocateError::TooMany => ErrorCode::BadCount,
        AllocateError::Ahead => ErrorCode::Overloaded,
    }
}

/// The code for requests that ask for more timestamps together than a millisecond has. A single
/// request can never get them. A burst of several was read before the setting was applied; each of
/// its requests may be right.
const fn too_many(requests: u32) -> ErrorCode {
    if requests > 1 { ErrorCode::Overloaded } else { ErrorCode::BadCount }
}

#[cfg(test)]
mod tests;
