//! One client's connection from its first request to the first one that is not hot. It reads as
//! many requests as it may, lets those of one read join a batch as one run, and answers in the
//! order in which they came. It reads no further while too many requests wait for their answers,
//! or too many answers for the client.
//!
//! The requests of a run have all arrived before its batch closes, and each gets its part of the
//! run's range: to a client it is as if each had joined by itself.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::{Timestamp, TimestampRange};

use super::super::client_state::ClientState;
use super::super::query::{Ask, Format};
use super::super::service;
use super::heads::{Echo, Heads, Refusal};
use super::scan::{HotRequest, LIST_COUNT_MAX, REQUEST_LEN_MAX, Scan, scan};
use crate::metrics::worker::PathLabel;
use crate::outbox::Outbox;
use crate::rights::bearer;
use crate::tls::socket::Socket;
use crate::worker::batch::Outcome;
use crate::worker::sequencer::{Sequencer, Ticket};

/// Requests of one connection that are read and not answered. More wait in the socket.
const IN_FLIGHT_MAX: usize = 120;
/// Bytes of answers to one client that are owed or wait to be written, before the node reads no
/// further: what hyper keeps, a buffer and a chunk of a list. The last one may go beyond it.
const ANSWERS_LEN_MAX: usize = 32 << 10;
/// Bytes of the head of an answer, about.
const HEAD_LEN: usize = 256;
/// How often one connection reads, or takes in what it has read, before others have a turn: a node
/// that refuses answers at once, and could go on for as long as a client sends.
const TURNS_MAX: u32 = 4;
/// Bytes read at once.
const READ_LEN_MAX: usize = 16 << 10;

// What was read and not taken in leaves room to read the rest of a request.
const _: () = assert!(REQUEST_LEN_MAX < READ_LEN_MAX);
const _: () = assert!(LIST_COUNT_MAX as usize * Timestamp::LEN <= ANSWERS_LEN_MAX);
const _: () = assert!(IN_FLIGHT_MAX * (HEAD_LEN + Timestamp::LEN) <= ANSWERS_LEN_MAX);

/// What the hot connections of one worker share.
#[derive(Debug)]
pub(crate) struct Common {
    sequencer: Rc<Sequencer>,
    /// Where bytes are read to before they are understood.
    scratch: RefCell<Box<[u8]>>,
    heads: RefCell<Heads>,
}

impl Common {
    /// Whether who sends this gets timestamps. Who does not is refused elsewhere.
    fn admits(&self, request: &HotRequest<'_>) -> bool {
        let tokens = self.sequencer.shared.rights.clients.as_ref();
        tokens.is_none_or(|tokens| {
            bearer(request.authorization).is_some_and(|token| tokens.admit(token))
        })
    }

    /// What is shared before there are connections.
    pub(crate) fn new(sequencer: Rc<Sequencer>) -> Rc<Self> {
        Rc::new(Self {
            heads: RefCell::new(Heads::new(&sequencer)),
            scratch: RefCell::new(vec![0; READ_LEN_MAX].into_boxed_slice()),
            sequencer,
        })
    }
}

/// How a connection leaves the hot path.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum End {
    /// Nothing is left to do but to close it.
    #[default]
    Over,
    /// Hyper goes on, with what was read and is not answered. What was before it is, wholly.
    HandOver(Vec<u8>),
}

/// See the module.
pub(crate) struct Connection {
    common: Rc<Common>,
    state: Rc<ClientState>,
    stage: Stage,
    /// Bytes that were read and not taken in.
    held: Vec<u8>,
    /// There may be a whole request in `held` that there was no room for.
    is_full: bool,
    /// Requests that were taken in, in the order in which they came.
    ///
    /// Invariant: the first `entered` of them are those that the tickets of `runs` are for. While
    /// bytes are understood, and while places are few, there are more.
    waiting: VecDeque<Waiting>,
    entered: usize,
    runs: VecDeque<Ticket>,
    /// The request ids of `waiting`, one behind the other.
    request_ids: VecDeque<u8>,
    /// Bytes of the answers to `waiting`, about.
    owed_len: usize,
    outbox: Outbox,
}

/// A request that was taken in.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    ask: Ask,
    request_id_len: u8,
    closes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Requests are taken in.
    Open,
    /// Nothing more is taken in; what waits is answered and written, then hyper goes on.
    Leaving,
    /// Nothing more is taken in; what waits is answered and written.
    Ending,
}

impl Connection {
    /// A connection whose first bytes say that it speaks HTTP.
    pub(crate) fn new(common: Rc<Common>, state: Rc<ClientState>) -> Self {
        Self {
            common,
            state,
            stage: Stage::Open,
            held: Vec::new(),
            is_full: false,
            waiting: VecDeque::new(),
            entered: 0,
            runs: VecDeque::new(),
            request_ids: VecDeque::new(),
            owed_len: 0,
            outbox: Outbox::default(),
        }
    }

    /// Answers, writes and reads as far as possible without waiting. Ready when the connection
    /// leaves the hot path.
    ///
    /// # Errors
    /// When the connection is lost.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        stream: &mut Socket,
    ) -> Poll<io::Result<End>> {
        let mut turns = 0;
        loop {
            let gives_way = self.settle(context);
            let is_over = gives_way || turns == TURNS_MAX;
            if self.is_full && self.has_room() && !is_over {
                turns += 1;
                self.take_held();
                continue;
            }
            let before = self.outbox.len();
            let writing = self.outbox.poll_write(context, stream)?;
            if self.outbox.len() < before {
                self.state.handle_write();
            }
            if is_over {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if self.is_full && self.has_room() {
                continue;
            }
            if self.stage != Stage::Open && self.waiting.is_empty() {
                return writing.map(|()| Ok(self.end()));
            }
            if self.poll_read(context, stream)?.is_pending() {
                return Poll::Pending;
            }
            turns += 1;
        }
    }

    /// Takes no more in; answers what was taken in, says so with the last answer, and ends.
    pub(crate) fn close(&mut self) {
        if let Some(last) = self.waiting.back_mut() {
            last.closes = true;
        }
        self.stop();
    }

    /// Gives back the memory that bursts have made this connection grow to.
    pub(crate) fn give_back(&mut self) {
        self.held.shrink_to_fit();
        self.waiting.shrink_to_fit();
        self.runs.shrink_to_fit();
        self.request_ids.shrink_to_fit();
        self.outbox.give_back();
    }

    fn stop(&mut self) {
        self.stage = Stage::Ending;
        self.held = Vec::new();
        self.is_full = false;
    }

    fn end(&mut self) -> End {
        match self.stage {
            Stage::Open | Stage::Ending => End::Over,
            Stage::Leaving => End::HandOver(std::mem::take(&mut self.held)),
        }
    }

    /// Answers runs that got their outcome, and lets requests enter that there was no place for.
    /// Returns whether others should have a turn first: the places that were given back are theirs
    /// as much as this connection's.
    fn settle(&mut self, context: &mut Context<'_>) -> bool {
        let is_held_up = self.entered > 0 && self.entered < self.waiting.len();
        let before = self.runs.len();
        loop {
            while let Some(ticket) = self.runs.front_mut() {
                let Poll::Ready(outcome) = Pin::new(ticket).poll(context) else { break };
                let Some(ticket) = self.runs.pop_front() else { break };
                let requests = ticket.requests() as usize;
                self.entered -= requests;
                self.answer(requests, outcome);
            }
            if self.entered == self.waiting.len() {
                return false;
            }
            if is_held_up && self.runs.len() < before {
                return true;
            }
            if !self.enter() {
                return false;
            }
        }
    }

    /// Answers the `requests` that have waited longest.
    fn answer(&mut self, requests: usize, outcome: Outcome) {
        let common = self.common.clone();
        let mut heads = common.heads.borrow_mut();
        heads.refresh(&common.sequencer);
        match outcome {
            Ok(range) => {
                let metrics = common.sequencer.metrics();
                metrics.count_answers(PathLabel::Timestamp, OK, requests as u64);
                let mut rest = Some(range);
                self.each(requests, |ask, echo, out| {
                    let split = rest.and_then(|range| range.split_first(ask.count));
                    let Some((own, behind)) = split else { unreachable!("a range of another run") };
                    rest = behind;
                    heads.answer(ask, echo, &own, out);
                });
                assert_eq!(rest, None::<TimestampRange>, "a range was taken for another run");
            }
            Err(code) => {
                let refusal = service::refuse(&common.sequencer, code, requests as u64);
                let refusal = Refusal::new(refusal);
                self.each(requests, |_, echo, out| heads.refusal(&refusal, echo, out));
            }
        }
        self.note_in_flight();
    }

    /// Takes the `requests` that have waited longest out, and has each answered.
    fn each(&mut self, requests: usize, mut answer: impl FnMut(Ask, Echo<'_>, &mut Vec<u8>)) {
        for Waiting { ask, request_id_len, closes } in self.waiting.drain(..requests) {
            self.owed_len -= owed_len(ask);
            if request_id_len == 0 {
                answer(ask, Echo { request_id: &[], closes }, self.outbox.bytes());
                continue;
            }
            let len = usize::from(request_id_len);
            let mut request_id = [0; u8::MAX as usize];
            for (to, from) in request_id.iter_mut().zip(self.request_ids.drain(..len)) {
                *to = from;
            }
            let echo = Echo { request_id: &request_id[..len], closes };
            answer(ask, echo, self.outbox.bytes());
        }
    }

    /// Whether another request may be taken in.
    fn has_room(&self) -> bool {
        self.waiting.len() < IN_FLIGHT_MAX && self.owed_len + self.outbox.len() < ANSWERS_LEN_MAX
    }

    /// Reads once, if it may, and understands what came. Pending when there is nothing to read or
    /// it may not.
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        stream: &mut Socket,
    ) -> Poll<io::Result<()>> {
        if self.stage != Stage::Open || !self.has_room() {
            return Poll::Pending;
        }
        let common = self.common.clone();
        let mut scratch = common.scratch.borrow_mut();
        let held = self.held.len();
        let length = ready!(stream.poll_read_behind(context, &self.held, &mut scratch))?;
        if length > held {
            self.take_in(&scratch[..length]);
        } else if held > 0 {
            // Half a request and no more: hyper knows what to say.
            self.stage = Stage::Leaving;
        } else {
            // The client sends no more, and may still read.
            self.state.note_end();
            self.stage = Stage::Ending;
        }
        Poll::Ready(Ok(()))
    }

    /// Takes in what is held.
    fn take_held(&mut self) {
        let common = self.common.clone();
        let mut scratch = common.scratch.borrow_mut();
        let held = self.held.len();
        scratch[..held].copy_from_slice(&self.held);
        self.take_in(&scratch[..held]);
    }

    /// Takes every whole request in that there is room for, and holds what is left.
    fn take_in(&mut self, bytes: &[u8]) {
        let max_n = self.common.sequencer.shared.max_n();
        let before = self.waiting.len();
        let mut rest = bytes;
        self.is_full = false;
        while self.stage == Stage::Open && !rest.is_empty() {
            if !self.has_room() {
                self.is_full = true;
                break;
            }
            match scan(rest, max_n) {
                Scan::Hot(request) if !self.common.admits(&request) => self.stage = Stage::Leaving,
                Scan::Hot(request) => {
                    self.push(&request);
                    rest = &rest[request.len..];
                }
                Scan::Partial => break,
                Scan::Other => self.stage = Stage::Leaving,
            }
        }
        self.held.clear();
        if self.stage != Stage::Ending {
            self.held.extend_from_slice(rest);
        }
        let has_taken = self.waiting.len() > before;
        let is_open = self.stage == Stage::Open;
        let is_in_head = is_open && !self.held.is_empty() && !self.is_full;
        self.state.note_requests(has_taken, is_in_head);
        self.note_in_flight();
    }

    fn push(&mut self, request: &HotRequest<'_>) {
        let HotRequest { ask, request_id, closes, .. } = *request;
        self.request_ids.extend(request_id);
        self.owed_len += owed_len(ask);
        let request_id_len = request_id.len() as u8;
        self.waiting.push_back(Waiting { ask, request_id_len, closes });
        if closes {
            // What a client sends behind its last request is no request.
            self.stage = Stage::Ending;
        }
    }

    /// Lets the requests join the open batch that are in none. Those that there is no place for
    /// wait behind those of this connection that have one, as if they were not read yet; without
    /// such they are refused. Returns whether there is something new to settle.
    fn enter(&mut self) -> bool {
        let requests = self.waiting.len() - self.entered;
        let run = self.waiting.range(self.entered..);
        let total = |admitted: u32| run.take(admitted as usize).map(|it| it.ask.count).sum();
        let sequencer = &self.common.sequencer;
        let allowed = self.state.take(requests as u32, &sequencer.shared.clock);
        let entered = match allowed {
            0 => Err(ErrorCode::Overloaded),
            allowed => sequencer.enter_run(allowed, total),
        };
        match entered {
            Ok(ticket) => {
                // Whoever waits for room is counted when he has it.
                self.state.give_back(allowed - ticket.requests());
                self.entered += ticket.requests() as usize;
                self.runs.push_back(ticket);
                true
            }
            Err(_) if self.entered > 0 => {
                self.state.give_back(allowed);
                false
            }
            Err(code) => {
                if allowed == 0 {
                    sequencer.metrics().requests_over_rate.add_alone(requests as u64);
                }
                self.answer(requests, Err(code));
                true
            }
        }
    }

    fn note_in_flight(&self) {
        self.state.set_hot_in_flight(self.waiting.len() as u32);
    }
}

/// The status of an answer with timestamps.
const OK: u16 = 200;

/// Bytes of an answer, about.
fn owed_len(ask: Ask) -> usize {
    let body_len = match ask.format {
        Format::Range => TimestampRange::LEN,
        Format::Binary | Format::Json => ask.count as usize * Timestamp::LEN,
    };
    HEAD_LEN + body_len
}
