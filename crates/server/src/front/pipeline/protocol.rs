//! The interface between a protocol and the pipeline, and the parts of a connection that both use.
//! The loop of [`super::connection`] calls every method, and is compiled once per protocol.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::task::Context;

use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::{Guarantee, TimestampRange};

use super::outbox::Outbox;
use super::queue::{Answers, Queue, Refused, Waiting};
use super::refusal::Refusal;
use crate::front::deadlines::ClientState;
use crate::metrics::worker::{PathLabel, WorkerMetrics};
use crate::worker::sequencer::Sequencer;

/// The node stops reading from a client of HTTP at this many bytes of answers that are due or wait
/// to be written. The last answer may exceed it. The number is the size of hyper's buffers: one
/// buffer, and one chunk of a list.
pub(crate) const ANSWERS_LEN_MAX: usize = 32 << 10;

/// A client protocol on one connection.
pub(crate) trait Protocol: Sized {
    /// The part of a request that is kept until it is answered.
    type Request: Waiting;
    /// The state that the connections of one worker share.
    type Shared;

    /// At most this many requests of one connection wait, including cancelled ones. Further requests
    /// wait in the socket.
    const QUEUE_LEN_MAX: usize;
    /// At most this many bytes are parsed after one read, including bytes held from earlier reads.
    const READ_LEN_MAX: usize;
    /// Whether requests beyond the admission limit may wait. If they may, they wait behind earlier
    /// requests of this connection, as if the node had not read them yet. Otherwise they are
    /// refused at once.
    const WAITS_FOR_ADMISSION: bool;

    /// Creates the shared state, before the first connection.
    fn share(sequencer: &Rc<Sequencer>) -> Self::Shared;

    /// Creates the state of a new connection.
    fn begin(common: &Rc<Common<Self>>, state: &Rc<ClientState>) -> Self;

    /// How many bytes may be read now, including held ones. 0 while too many requests wait for
    /// answers, or too many answers wait for the client.
    #[inline]
    fn read_allowance(&self, line: &Line<Self::Request>) -> usize {
        let is_full = line.queue.len() >= Self::QUEUE_LEN_MAX
            || line.queue.owed_len() + line.outbox.len() >= ANSWERS_LEN_MAX;
        if is_full { 0 } else { Self::READ_LEN_MAX }
    }

    /// Accepts as many whole requests as fit, and returns the remaining bytes. The first `seen`
    /// bytes were passed before.
    fn receive<'a>(
        &mut self,
        common: &Common<Self>,
        line: &mut Line<Self::Request>,
        bytes: &'a [u8],
        seen: usize,
    ) -> &'a [u8];

    /// Handles the end of the client's bytes. The held bytes, if any, are an incomplete request.
    fn end_input(&mut self, line: &mut Line<Self::Request>);

    /// The guarantee with which the new requests of the connection join a batch. Requests that name
    /// none ask for `default`.
    #[inline]
    fn guarantee(&self, queue: &Queue<Self::Request>, default: Guarantee) -> Guarantee {
        queue.guarantee(default)
    }

    /// Whether the new requests of the connection may be sent on to the leader.
    #[inline]
    fn may_forward(&self, queue: &Queue<Self::Request>) -> bool {
        queue.may_forward()
    }

    /// Checks the timestamps that the oldest `requests` of the queue have got. Returns how many of
    /// them [`Self::answer`] refuses all the same, and counts itself.
    ///
    /// # Errors
    /// When none of the requests may get them.
    #[inline]
    fn check(
        &self,
        _common: &Common<Self>,
        _queue: &Queue<Self::Request>,
        _requests: usize,
        _range: &TimestampRange,
    ) -> Result<u64, ErrorCode> {
        Ok(0)
    }

    /// Appends the answers to requests that got timestamps.
    fn answer(
        &mut self,
        common: &Common<Self>,
        answers: Answers<'_, Self::Request>,
        out: &mut Vec<u8>,
    );

    /// Appends the refusals of requests.
    fn refuse(
        &mut self,
        common: &Common<Self>,
        refused: Refused<'_, Self::Request>,
        refusal: &Refusal,
        out: &mut Vec<u8>,
    );

    /// Counts answers and refusals of `requests`, of which `latest` ask for the latest timestamp.
    #[inline]
    fn count(metrics: &WorkerMetrics, status: u16, requests: u64, latest: u64) {
        if latest > 0 {
            metrics.count_answers(PathLabel::Latest, status, latest);
        }
        metrics.count_answers(PathLabel::Timestamp, status, requests - latest);
    }

    /// Stops accepting requests, and tells the client. Accepted requests are still answered.
    fn close(&mut self, line: &mut Line<Self::Request>);

    /// Does the protocol's work for requests that are not in the queue; it may add some to the
    /// queue. Returns whether only a full outbox stops this work.
    #[inline]
    fn advance(
        &mut self,
        _common: &Common<Self>,
        _line: &mut Line<Self::Request>,
        _context: &mut Context<'_>,
    ) -> bool {
        false
    }

    /// Records that the socket accepted this many bytes of answers.
    #[inline]
    fn record_written(&mut self, _bytes: usize) {}

    /// Appends the bytes that follow the last answer.
    fn end_output(&mut self, _out: &mut Vec<u8>) {}

    /// Whether an open connection has nothing left to do, and so may end.
    #[inline]
    fn is_over(&self) -> bool {
        false
    }

    /// Gives back memory that bursts have made grow.
    fn give_back(&mut self) {}
}

/// The state that one worker's connections of one protocol share.
pub(crate) struct Common<P: Protocol> {
    pub(crate) sequencer: Rc<Sequencer>,
    pub(crate) shared: P::Shared,
    /// The buffer into which every connection of the worker reads.
    pub(super) scratch: RefCell<Box<[u8]>>,
}

impl<P: Protocol> Common<P> {
    /// Creates the shared state, before the first connection.
    pub(crate) fn new(sequencer: Rc<Sequencer>) -> Rc<Self> {
        Rc::new(Self {
            shared: P::share(&sequencer),
            scratch: RefCell::new(vec![0; P::READ_LEN_MAX].into_boxed_slice()),
            sequencer,
        })
    }
}

impl<P: Protocol> fmt::Debug for Common<P> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Common").finish_non_exhaustive()
    }
}

/// The stages of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The connection accepts requests.
    Open,
    /// No more requests are accepted. When all answers are written, another protocol takes over.
    Leaving,
    /// No more requests are accepted. When all answers are written, the connection ends.
    Ending,
    /// The connection ends now, even if answers are not written.
    Cut,
}

/// The parts of a connection that the pipeline and its protocol share.
#[derive(Debug)]
pub(crate) struct Line<R> {
    pub(crate) state: Rc<ClientState>,
    pub(crate) stage: Stage,
    /// Bytes that were read and belong to no accepted request yet.
    pub(crate) held: Vec<u8>,
    /// Whether `held` may contain a whole request that did not fit.
    pub(crate) is_full: bool,
    pub(crate) queue: Queue<R>,
    pub(crate) outbox: Outbox,
}

impl<R: Waiting> Line<R> {
    pub(in crate::front) fn new(state: Rc<ClientState>) -> Self {
        Self {
            state,
            stage: Stage::Open,
            held: Vec::new(),
            is_full: false,
            queue: Queue::default(),
            outbox: Outbox::default(),
        }
    }

    /// Stops accepting requests.
    pub(crate) fn stop(&mut self) {
        self.stage = Stage::Ending;
        self.held = Vec::new();
        self.is_full = false;
    }

    /// Tells the sweep how many requests are being answered.
    #[inline]
    pub(crate) fn record_in_flight(&self) {
        self.state.set_fast_in_flight(self.queue.live() as u32);
    }
}
