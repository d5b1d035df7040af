//! One client's connection: reads as many requests as it may, lets those of one read join a batch
//! as one run, and answers runs in the order in which they came. It reads no further while
//! too many requests wait for their answers, or too many answers for the client.
//!
//! The requests of a run have all arrived before its batch closes, and each gets its part of the
//! run's range: to a client it is as if each had joined by itself.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::message::{goodbye, pong};
use epicepoch_wire::native::{
    ErrorFrame, Frame, HEADER_LEN, HelloError, LeaderNotice, Request, TO_SERVER_TAIL_LEN_MAX,
    ToServer, Token, split,
};

use super::answers;
use super::greeting::{self, Refusal};
use crate::http::client_state::ClientState;
use crate::http::route::NATIVE;
use crate::outbox::Outbox;
use crate::rights::tokens::Tokens;
use crate::tls::socket::Socket;
use crate::worker::batch::Outcome;
use crate::worker::sequencer::{Sequencer, Ticket};

/// Requests of one connection that are read and not answered. More wait in the socket. It holds
/// the pipeline of a busy client, and eight such clients stay below the default of
/// `TIMESTAMP_REQUEST_BUFFER`.
const IN_FLIGHT_MAX: usize = 1024;
/// How often one connection reads before others have a turn: a node that refuses answers at once,
/// and could go on for as long as a client sends.
const TURNS_MAX: u32 = 4;
/// Bytes of answers that may wait for the client before the node reads no further.
const OUTBOX_LEN_MAX: usize = 64 << 10;
/// Bytes read at once: as many requests as may be in flight.
const READ_LEN_MAX: usize = IN_FLIGHT_MAX * HEADER_LEN;

/// What the native connections of one worker share.
#[derive(Debug)]
pub(crate) struct Common {
    sequencer: Rc<Sequencer>,
    /// Where bytes are read to before they are understood.
    scratch: RefCell<Box<[u8]>>,
    /// Goes up when another leader becomes known.
    leader_changes: Cell<u64>,
    leader: RefCell<Option<epicepoch_wire::native::hello::MemberAddr>>,
    connections: Cell<u64>,
}

impl Common {
    /// What is shared before there are connections.
    pub(crate) fn new(sequencer: Rc<Sequencer>) -> Rc<Self> {
        let leader = greeting::leader(&sequencer.view().published);
        Rc::new(Self {
            sequencer,
            scratch: RefCell::new(vec![0; READ_LEN_MAX].into_boxed_slice()),
            leader_changes: Cell::default(),
            leader: RefCell::new(leader),
            connections: Cell::default(),
        })
    }

    /// Looks at what is published. Returns whether connections have to be told of a leader.
    pub(crate) fn follow_publication(&self) -> bool {
        let leader = greeting::leader(&self.sequencer.view().published);
        if leader == *self.leader.borrow() {
            return false;
        }
        *self.leader.borrow_mut() = leader;
        self.leader_changes.set(self.leader_changes.get() + 1);
        self.connections.get() > 0
    }

    /// Goes up when other tokens are in force.
    fn tokens_version(&self) -> u64 {
        self.sequencer.shared.rights.clients.as_ref().map_or(0, Tokens::version)
    }

    fn count_connection(&self, change: impl FnOnce(u64) -> u64) {
        self.connections.set(change(self.connections.get()));
        self.sequencer.metrics().native_connections.set(self.connections.get());
    }
}

/// See the module.
pub(crate) struct Connection {
    common: Rc<Common>,
    state: Rc<ClientState>,
    stage: Stage,
    /// The beginning of a frame whose end has not come.
    begun: Vec<u8>,
    /// Requests that were read and wait, in the order in which they came.
    ///
    /// Invariant: as many as the tickets of `runs` are for, but while bytes are being understood.
    waiting: VecDeque<Request>,
    runs: VecDeque<Ticket>,
    outbox: Outbox,
    /// The frame behind the last answer of a connection that ends.
    farewell: Vec<u8>,
    /// Up to which change of the leader the client has been told.
    leader_changes: u64,
    /// What its hello showed, and with which tokens in force that was last looked at.
    token: Option<Token>,
    tokens_seen: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing was understood yet.
    Hello,
    /// The client was welcomed.
    Open,
    /// Nothing more is read; what waits is answered and written.
    Ending,
}

impl Connection {
    /// A connection whose first byte says that it speaks the native protocol.
    pub(crate) fn new(common: Rc<Common>, state: Rc<ClientState>) -> Self {
        state.begin_hello();
        common.count_connection(|count| count + 1);
        Self {
            state,
            stage: Stage::Hello,
            begun: Vec::new(),
            waiting: VecDeque::new(),
            runs: VecDeque::new(),
            outbox: Outbox::default(),
            farewell: Vec::new(),
            leader_changes: common.leader_changes.get(),
            token: None,
            tokens_seen: common.tokens_version(),
            common,
        }
    }

    /// Answers, writes and reads as far as possible without waiting. Ready when the connection is
    /// through.
    ///
    /// # Errors
    /// When the connection is lost.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        stream: &mut Socket,
    ) -> Poll<io::Result<()>> {
        for _ in 0..TURNS_MAX {
            self.settle(context);
            self.tell_leader();
            let is_through = self.stage == Stage::Ending && self.runs.is_empty();
            if is_through {
                self.outbox.bytes().append(&mut self.farewell);
            }
            let before = self.outbox.len();
            let writing = self.outbox.poll_write(context, stream)?;
            if self.outbox.len() < before {
                self.state.handle_write();
            }
            if is_through {
                return writing.map(Ok);
            }
            if self.poll_read(context, stream)?.is_pending() {
                return Poll::Pending;
            }
        }
        // Others have a turn first.
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads no more; answers what was read, says goodbye and ends.
    pub(crate) fn close(&mut self) {
        if self.stage == Stage::Open {
            self.farewell.extend_from_slice(&goodbye());
        }
        self.stage = Stage::Ending;
    }

    /// Gives back the memory that bursts have made this connection grow to.
    pub(crate) fn give_back(&mut self) {
        self.begun.shrink_to_fit();
        self.waiting.shrink_to_fit();
        self.runs.shrink_to_fit();
        self.outbox.give_back();
    }

    /// Puts the answers of runs that got their outcome into the outbox.
    fn settle(&mut self, context: &mut Context<'_>) {
        while let Some(ticket) = self.runs.front_mut() {
            let Poll::Ready(outcome) = Pin::new(ticket).poll(context) else { break };
            let Some(ticket) = self.runs.pop_front() else { break };
            self.answer(ticket.requests() as usize, outcome);
            self.note_in_flight();
        }
    }

    /// Answers the `requests` that have waited longest.
    fn answer(&mut self, requests: usize, outcome: Outcome) {
        match outcome {
            Ok(range) => {
                answers::encode(self.waiting.drain(..requests), range, self.outbox.bytes());
                self.common.sequencer.metrics().native_answers.add_alone(requests as u64);
            }
            Err(code) => {
                let common = self.common.clone();
                let refused = Refused::of(&common.sequencer, code);
                for request in self.waiting.drain(..requests) {
                    refused.encode(request.id, self.outbox.bytes());
                }
                refused.count(&common.sequencer, requests);
            }
        }
    }

    fn tell_leader(&mut self) {
        let changes = self.common.leader_changes.get();
        if self.stage != Stage::Open || self.leader_changes == changes {
            return;
        }
        self.leader_changes = changes;
        let leader = self.common.leader.borrow();
        let (node, addr) = leader
            .as_ref()
            .map_or((epicepoch_wire::NodeId(0), ""), |leader| (leader.node, leader.addr.as_str()));
        LeaderNotice { node, addr }.encode(self.outbox.bytes());
    }

    /// Reads once, if it may, and understands what came. Pending when there is nothing to read or
    /// it may not.
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        stream: &mut Socket,
    ) -> Poll<io::Result<()>> {
        // So many bytes hold at most as many requests as may be in flight.
        let length_max = (IN_FLIGHT_MAX - self.waiting.len()) * HEADER_LEN;
        let may_read = self.outbox.len() <= OUTBOX_LEN_MAX && self.begun.len() < length_max;
        if !may_read || self.stage == Stage::Ending {
            return Poll::Pending;
        }
        let common = self.common.clone();
        let mut scratch = common.scratch.borrow_mut();
        let room = &mut scratch[..length_max];
        let length = ready!(stream.poll_read_behind(context, &self.begun, room))?;
        if length == self.begun.len() {
            // The client sends no more, and may still read.
            self.state.note_end();
            self.stage = Stage::Ending;
            return Poll::Ready(Ok(()));
        }
        let taken = self.understand(&scratch[..length]);
        self.begun.clear();
        if self.stage != Stage::Ending {
            self.begun.extend_from_slice(&scratch[taken..length]);
        }
        self.note_in_flight();
        Poll::Ready(Ok(()))
    }

    /// Takes every whole frame in; returns how many bytes those were.
    fn understand(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        let before = self.waiting.len();
        if self.tokens_seen != self.common.tokens_version() && self.stage == Stage::Open {
            self.tokens_seen = self.common.tokens_version();
            if let Err(refusal) = self.admit() {
                self.send_away(0, refusal);
            }
        }
        while self.stage != Stage::Ending {
            if self.stage == Stage::Open {
                while let Some((head, behind)) = rest.split_first_chunk()
                    && let Some(request) = Request::from_bytes(head)
                {
                    self.waiting.push_back(request);
                    rest = behind;
                }
            }
            match split(rest, TO_SERVER_TAIL_LEN_MAX) {
                Ok(None) => break,
                Ok(Some(frame)) => {
                    self.handle(&frame);
                    rest = &rest[frame.len()..];
                }
                Err(error) => self.refuse_protocol(0, &error.into()),
            }
        }
        self.enter(self.waiting.len() - before);
        bytes.len() - rest.len()
    }

    /// Lets the last `requests` that were read join the open batch.
    fn enter(&mut self, requests: usize) {
        let mut left = requests;
        let sequencer = &self.common.sequencer;
        let mut code = ErrorCode::Overloaded;
        if requests > 0 {
            let first = self.waiting.len() - requests;
            let run = self.waiting.range(first..);
            let total = |admitted: u32| run.take(admitted as usize).map(Request::count).sum();
            let allowed = self.state.take(requests as u32, &sequencer.shared.clock);
            if allowed < requests as u32 {
                let over = requests as u64 - u64::from(allowed);
                sequencer.metrics().requests_over_rate.add_alone(over);
            }
            let entered = match allowed {
                0 => Err(ErrorCode::Overloaded),
                allowed => sequencer.enter_run(allowed, total),
            };
            match entered {
                Ok(ticket) => {
                    left -= ticket.requests() as usize;
                    self.runs.push_back(ticket);
                }
                Err(refusal) => code = refusal,
            }
        }
        if left > 0 {
            let refused = Refused::of(sequencer, code);
            for request in self.waiting.drain(self.waiting.len() - left..) {
                refused.encode(request.id, self.outbox.bytes());
            }
            refused.count(sequencer, left);
        }
    }

    /// Any frame but a request that is understood.
    fn handle(&mut self, frame: &Frame<'_>) {
        let id = frame.header.id;
        match (self.stage, ToServer::decode(frame)) {
            (Stage::Hello, Ok(ToServer::Hello(hello))) => {
                let sequencer = self.common.sequencer.clone();
                let view = sequencer.view();
                let cluster_name = &sequencer.shared.config.cluster_name;
                let checked = greeting::check(&hello, &view.published, cluster_name);
                self.token = hello.token;
                if let Err((code, text)) = self.admit().and(checked) {
                    return self.send_away(0, (code, text));
                }
                tracing::debug!(agent = hello.agent, "a native client");
                let idle_ms = sequencer.shared.config.limits.idle_timeout.as_millis() as u32;
                greeting::welcome(&view.published, cluster_name, IN_FLIGHT_MAX, idle_ms)
                    .encode(self.outbox.bytes());
                self.stage = Stage::Open;
                self.state.end_hello();
            }
            (Stage::Hello, Err(error)) => self.refuse_protocol(0, &error),
            (Stage::Hello, Ok(_)) => {
                self.send_away(0, (ErrorCode::BadRequest, "a connection begins with a hello"));
            }
            (Stage::Open | Stage::Ending, Ok(ToServer::Hello(_))) => {
                self.send_away(0, (ErrorCode::BadRequest, "a hello is only the first frame"));
            }
            (Stage::Open | Stage::Ending, Ok(ToServer::Request(request))) => {
                self.waiting.push_back(request);
            }
            (Stage::Open | Stage::Ending, Ok(ToServer::Ping(id))) => {
                self.outbox.bytes().extend_from_slice(&pong(id));
            }
            (Stage::Open | Stage::Ending, Ok(ToServer::Pong(_))) => {}
            (Stage::Open | Stage::Ending, Ok(ToServer::Unknown { id })) => {
                let code = ErrorCode::Unsupported;
                let frame = ErrorFrame { code: code as u16, closes: false, id, text: "" };
                frame.encode(self.outbox.bytes());
                self.common.sequencer.metrics().count_refusal(code);
            }
            (Stage::Open | Stage::Ending, Err(error)) => self.refuse_protocol(id, &error),
        }
    }

    /// Whether the client may get timestamps.
    fn admit(&self) -> Result<(), Refusal> {
        let shared = &self.common.sequencer.shared;
        let token = self.token.as_ref().map(|token| token.reveal().as_bytes());
        shared.rights.check_native(&self.state.caller(), token).map_err(|reason| {
            shared.note_denial(NATIVE, reason, &self.state.caller());
            let text = match reason.code() {
                ErrorCode::Unauthorized => {
                    "the token in the hello is missing, or none of this node's"
                }
                _ => reason.advice(),
            };
            (reason.code(), text)
        })
    }

    fn refuse_protocol(&mut self, id: u64, error: &HelloError) {
        tracing::debug!(%error, "a native client broke the protocol");
        let text = match error {
            HelloError::Version { .. } => "this node speaks version 1 alone",
            HelloError::Field(_) => "the hello insists on a field that this node does not know",
            _ => "the frame is not one of the protocol, or not a client's to send",
        };
        self.send_away(id, (greeting::refusal(error), text));
    }

    /// Ends the connection with a reason, behind the answers to what was read before.
    fn send_away(&mut self, id: u64, (code, text): Refusal) {
        ErrorFrame { code: code as u16, closes: true, id, text }.encode(&mut self.farewell);
        self.common.sequencer.metrics().count_refusal(code);
        self.stage = Stage::Ending;
    }

    fn note_in_flight(&self) {
        self.state.set_hot_in_flight(self.waiting.len() as u32);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.common.count_connection(|count| count - 1);
    }
}

/// A refusal as this node words it now: only who knows the leader says `NOT_LEADER`, and a node
/// that stops says so where it has nobody to name.
struct Refused {
    code: ErrorCode,
    view: Rc<crate::worker::view::View>,
}

impl Refused {
    fn of(sequencer: &Sequencer, code: ErrorCode) -> Self {
        let view = sequencer.view();
        let is_stopping = sequencer.shared.health.is_shutting_down.load(Ordering::Relaxed);
        let code = match code {
            ErrorCode::NotLeader if view.other_leader.is_none() => ErrorCode::NoLeader,
            code => code,
        };
        let is_vague = matches!(code, ErrorCode::NoLeader | ErrorCode::NotReady);
        Self { code: if is_vague && is_stopping { ErrorCode::ShuttingDown } else { code }, view }
    }

    fn encode(&self, id: u64, out: &mut Vec<u8>) {
        let leader = self.view.other_leader.as_ref().filter(|_| self.code == ErrorCode::NotLeader);
        let text = leader.and_then(|leader| std::str::from_utf8(&leader.body).ok()).unwrap_or("");
        ErrorFrame { code: self.code as u16, closes: false, id, text }.encode(out);
    }

    fn count(&self, sequencer: &Sequencer, requests: usize) {
        let metrics = sequencer.metrics();
        metrics.native_refusals.add_alone(requests as u64);
        metrics.count_refusals(self.code, requests as u64);
    }
}
