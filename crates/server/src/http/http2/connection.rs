//! One client's connection of HTTP/2: it reads, lets the hot requests of one read join a batch as one
//! run, hands others to the service, and writes what there is in one call. It reads no further while
//! too much waits for the client, or too many of its requests for their runs.
//!
//! The requests of a run have all arrived before its batch closes, and each gets its part of the
//! run's range: to a client it is as if each had joined by itself.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use epicepoch_wire::TimestampRange;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::http2::frame::{self, HEAD_LEN, PAYLOAD_LEN_MAX, PREFACE, flag, kind};
use http::header::HeaderMap;

use super::super::answer::Answer;
use super::super::body::Body;
use super::super::client_state::ClientState;
use super::super::frames::FrameMeter;
use super::super::query::{Ask, Format};
use super::super::service::{self, NodeService};
use super::answers::{self, Heads, Other, Table};
use super::exchange::{Exchanges, Ready};
use super::session::{Event, Fault, Hot, STREAMS_MAX, Session};
use super::waiting::{Queue, Settled};
use crate::metrics::worker::PathLabel;
use crate::outbox::Outbox;
use crate::rights::{Port, bearer};
use crate::tls::socket::Socket;
use crate::worker::sequencer::Sequencer;

/// Bytes of answers to one client that are owed or wait to be written, before the node reads no
/// further. The last one may go beyond it.
const ANSWERS_LEN_MAX: usize = 32 << 10;
/// Bytes of an answer beside its body, about: that many streams may be open at once.
const ANSWER_HEAD_LEN: usize = 64;
/// Hot requests that wait, those included that were taken back, beyond which the node reads no
/// further: four times as many as may be open.
const QUEUE_LEN_MAX: usize = 4 * STREAMS_MAX;
/// How often one connection reads, or takes in what it has read, before others have a turn.
const TURNS_MAX: u32 = 4;
/// Bytes read at once, with what was read before and is no whole frame.
const READ_LEN_MAX: usize = 32 << 10;
/// What a head that is too long gets.
const HEAD_TOO_LONG: u16 = 431;

// What was read and not taken in leaves room to read the rest of a frame.
const _: () = assert!(2 * (HEAD_LEN + PAYLOAD_LEN_MAX) <= READ_LEN_MAX + 2 * HEAD_LEN);
const _: () = assert!(STREAMS_MAX * ANSWER_HEAD_LEN < ANSWERS_LEN_MAX);

/// What the connections of one worker share.
#[derive(Debug)]
pub(crate) struct Common {
    sequencer: Rc<Sequencer>,
    /// Where bytes are read to before they are understood.
    scratch: RefCell<Box<[u8]>>,
    heads: RefCell<Heads>,
}

impl Common {
    /// What is shared before there are connections.
    pub(crate) fn new(sequencer: Rc<Sequencer>) -> Rc<Self> {
        Rc::new(Self {
            heads: RefCell::new(Heads::new(&sequencer)),
            scratch: RefCell::new(vec![0; READ_LEN_MAX + HEAD_LEN].into_boxed_slice()),
            sequencer,
        })
    }

    /// Whether who sends this gets timestamps.
    fn admits(&self, hot: &Hot) -> bool {
        let tokens = self.sequencer.shared.rights.clients.as_ref();
        tokens.is_none_or(|tokens| {
            bearer(&hot.authorization).is_some_and(|token| tokens.admit(token))
        })
    }
}

/// How a connection ends.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum End {
    /// Nothing is left to do but to close it.
    #[default]
    Over,
    /// It is none of HTTP/2: what was read, from its first byte on.
    Foreign(Vec<u8>),
}

/// See the module.
pub(crate) struct Connection {
    common: Rc<Common>,
    state: Rc<ClientState>,
    service: NodeService,
    stage: Stage,
    /// `None` until the preface has come.
    session: Option<Session>,
    meter: FrameMeter,
    table: Table,
    /// Bytes that were read and not taken in.
    held: Vec<u8>,
    /// There may be a whole frame in `held` that there was no room for.
    is_full: bool,
    queue: Queue,
    exchanges: Exchanges,
    /// A body could go on, but for the room in the outbox.
    is_pumping: bool,
    /// Bytes of the answers to the queue, about.
    owed_len: usize,
    outbox: Outbox,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Open,
    /// What was said last is written, then it ends.
    Ending,
    /// It ends, whatever is written.
    Cut,
    /// It speaks something else.
    Foreign,
}

impl Connection {
    /// A connection whose first bytes look like HTTP/2.
    pub(crate) fn new(common: Rc<Common>, state: Rc<ClientState>) -> Self {
        state.keeps_little.set(true);
        let service = NodeService::new(common.sequencer.clone(), state.clone());
        Self {
            meter: FrameMeter::new(PREFACE.len(), state.sweeps()),
            common,
            state,
            service,
            stage: Stage::Open,
            session: None,
            table: Table::default(),
            held: Vec::new(),
            is_full: false,
            queue: Queue::default(),
            exchanges: Exchanges::default(),
            is_pumping: false,
            owed_len: 0,
            outbox: Outbox::default(),
        }
    }

    /// Answers, writes and reads as far as possible without waiting. Ready when the connection is
    /// over.
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
            self.exchange(context);
            let is_over = gives_way || turns == TURNS_MAX;
            if self.is_full && self.has_room() && !is_over {
                turns += 1;
                self.take_held();
                continue;
            }
            let before = self.outbox.len();
            let writing = self.outbox.poll_write(context, stream)?;
            let written = before - self.outbox.len();
            if written > 0 {
                self.meter.note_written(written);
                self.state.handle_write();
            }
            if let Some(end) = self.end(writing.is_ready()) {
                return Poll::Ready(Ok(end));
            }
            if is_over {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if self.is_full && self.has_room() {
                turns += 1;
                continue;
            }
            if self.is_pumping && self.outbox.len() < ANSWERS_LEN_MAX {
                turns += 1;
                continue;
            }
            if self.poll_read(context, stream)?.is_pending() {
                return Poll::Pending;
            }
            turns += 1;
        }
    }

    /// Takes no more in, once the client knows; what it has asked until then is answered.
    pub(crate) fn close(&mut self) {
        match &mut self.session {
            Some(session) => session.close(self.outbox.bytes()),
            None => self.stage = Stage::Ending,
        }
    }

    /// Gives back the memory that bursts have made this connection grow to.
    pub(crate) fn give_back(&mut self) {
        self.held.shrink_to_fit();
        self.queue.give_back();
        self.exchanges.give_back();
        self.outbox.give_back();
        if let Some(session) = &mut self.session {
            session.give_back();
        }
    }

    /// How it ends, if it does now.
    fn end(&mut self, is_written: bool) -> Option<End> {
        match self.stage {
            Stage::Open if is_written && self.session.as_ref().is_some_and(Session::is_over) => {
                Some(End::Over)
            }
            Stage::Open => None,
            Stage::Ending => is_written.then_some(End::Over),
            Stage::Cut => Some(End::Over),
            Stage::Foreign => Some(End::Foreign(std::mem::take(&mut self.held))),
        }
    }

    /// Answers runs that got their outcome, and lets requests enter that there was no place for.
    /// Returns whether others should have a turn first: the places that were given back are theirs
    /// as much as this connection's.
    fn settle(&mut self, context: &mut Context<'_>) -> bool {
        if self.queue.len() == 0 {
            return false;
        }
        let is_held_up = self.queue.has_entered() && self.queue.has_new();
        let before = self.queue.runs();
        loop {
            while let Poll::Ready(Some(settled)) = self.queue.poll(context) {
                self.answer(settled);
            }
            if !self.queue.has_new() {
                return false;
            }
            if is_held_up && self.queue.runs() < before {
                return true;
            }
            if !self.enter() {
                return false;
            }
        }
    }

    /// Lets the requests join the open batch that are in none. Those that there is no place for
    /// wait behind those of this connection that have one, as if they were not read yet; without
    /// such they are refused. Returns whether there is something new to settle.
    fn enter(&mut self) -> bool {
        let wanted = self.queue.wanted();
        if wanted == 0 {
            if self.queue.has_entered() {
                return false;
            }
            let dropped = self.queue.forget_dropped();
            self.answer(dropped);
            return true;
        }
        let sequencer = &self.common.sequencer;
        let allowed = self.state.take(wanted, &sequencer.shared.clock);
        let entered = match allowed {
            0 => Err(ErrorCode::Overloaded),
            allowed => sequencer.enter_run(allowed, |admitted| self.queue.total(admitted)),
        };
        match entered {
            Ok(ticket) => {
                // Whoever waits for room is counted when he has it.
                self.state.give_back(allowed - ticket.requests());
                self.queue.enter(ticket);
                true
            }
            Err(_) if self.queue.has_entered() => {
                self.state.give_back(allowed);
                false
            }
            Err(code) => {
                if allowed == 0 {
                    sequencer.metrics().requests_over_rate.add_alone(u64::from(wanted));
                }
                let requests = self.queue.len();
                self.answer(Settled { requests, outcome: Some(Err(code)) });
                true
            }
        }
    }

    /// Answers the requests that have waited longest.
    fn answer(&mut self, Settled { requests, outcome }: Settled) {
        let common = self.common.clone();
        let mut heads = common.heads.borrow_mut();
        heads.refresh(&common.sequencer);
        let before = self.queue.live();
        match outcome {
            None => self.queue.drain(requests, |_, _, _, _| {}),
            Some(Ok(range)) => {
                self.give(&heads, requests, range);
                let answered = (before - self.queue.live()) as u64;
                let metrics = common.sequencer.metrics();
                metrics.count_answers(PathLabel::Timestamp, OK, answered);
            }
            Some(Err(code)) => self.refuse(&heads, requests, code),
        }
        self.state.set_hot_in_flight(self.queue.live() as u32);
    }

    /// Answers with the parts of a range.
    fn give(&mut self, heads: &Heads, requests: usize, range: TimestampRange) {
        let Self { queue, session, table, outbox, exchanges, owed_len, .. } = self;
        let Some(session) = session else { unreachable!("a request came without a preface") };
        let mut rest = Some(range);
        queue.drain(requests, |waiting, request_id, has_part, is_wanted| {
            if !has_part {
                return;
            }
            let (ask, id) = (waiting.ask, waiting.stream);
            let split = rest.and_then(|range| range.split_first(ask.count));
            let Some((own, behind)) = split else { unreachable!("a range of another run") };
            rest = behind;
            if !is_wanted {
                return;
            }
            *owed_len -= owed_by(ask);
            let body_len = answers::body_len(ask);
            let Some(is_whole) = session.spend_all(id, body_len) else { return };
            let out = outbox.bytes();
            if is_whole && ask.count == 1 && request_id.is_empty() && ask.format == Format::Binary {
                return heads.one(table, id, own.first(), out);
            }
            heads.head(table, id, body_len, request_id, out);
            if is_whole {
                frame::put_head(out, body_len, kind::DATA, flag::END_STREAM, id);
                answers::put_body(ask, &own, out);
                return;
            }
            exchanges.send(
                id,
                match ask.format {
                    Format::Range => Body::range(&own),
                    Format::Binary | Format::Json => Body::list(own),
                },
            );
        });
        assert_eq!(rest, None::<TimestampRange>, "a range was taken for another run");
    }

    fn refuse(&mut self, heads: &Heads, requests: usize, code: ErrorCode) {
        let Self { common, queue, session, table, outbox, exchanges, owed_len, .. } = self;
        let Some(session) = session else { unreachable!("a request came without a preface") };
        let refused = queue.live_of(requests) as u64;
        let (parts, body) = service::refuse(&common.sequencer, code, refused).into_parts();
        let Body::Whole(text) = body else { unreachable!("a refusal is a line of text") };
        let (status, headers) = (parts.status.as_u16(), &parts.headers);
        let body_len = Some(text.len() as u64);
        let other = Other { status, headers, body_len, ends: false };
        queue.drain(requests, |waiting, request_id, _, is_wanted| {
            if !is_wanted {
                return;
            }
            *owed_len -= owed_by(waiting.ask);
            let (id, out) = (waiting.stream, outbox.bytes());
            let Some(is_whole) = session.spend_all(id, text.len()) else { return };
            heads.other(table, id, &other, request_id, out);
            if is_whole {
                frame::put(out, kind::DATA, flag::END_STREAM, id, &text);
            } else {
                exchanges.send(id, Body::Whole(text.clone()));
            }
        });
    }

    /// Sends answers of the service and bodies, as far as there is room.
    fn exchange(&mut self, context: &mut Context<'_>) {
        self.is_pumping = false;
        if self.exchanges.is_empty() {
            return;
        }
        while self.outbox.len() < ANSWERS_LEN_MAX
            && let Poll::Ready(ready) = self.exchanges.poll_answer(context)
        {
            self.put_answer(ready);
        }
        let Some(session) = &mut self.session else { return };
        let waiting = self.outbox.len();
        let out = self.outbox.bytes();
        let len_max = out.len() - waiting + ANSWERS_LEN_MAX;
        self.is_pumping = self.exchanges.pump(session, out, len_max);
    }

    fn put_answer(&mut self, Ready { id, answer, is_head }: Ready) {
        let common = self.common.clone();
        let mut heads = common.heads.borrow_mut();
        heads.refresh(&common.sequencer);
        let (parts, body) = answer.into_parts();
        let body_len = body.len();
        let ends = is_head || body_len == Some(0);
        let other =
            Other { status: parts.status.as_u16(), headers: &parts.headers, body_len, ends };
        heads.other(&mut self.table, id, &other, &[], self.outbox.bytes());
        self.send(id, if is_head { Body::Empty } else { body });
    }

    /// Sends the body behind a head, which has said so if there is none.
    fn send(&mut self, id: u32, body: Body) {
        if body.len() != Some(0) {
            self.exchanges.send(id, body);
        } else if let Some(session) = &mut self.session {
            session.finish(id, self.outbox.bytes());
        }
    }

    /// Whether another frame may be taken in.
    fn has_room(&self) -> bool {
        self.queue.len() < QUEUE_LEN_MAX && self.owed_len + self.outbox.len() < ANSWERS_LEN_MAX
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
        if length == held {
            // A client that sends no more takes no more, either.
            self.state.note_end();
            self.drop_all();
            self.stage = Stage::Cut;
            return Poll::Ready(Ok(()));
        }
        if self.session.is_none() {
            self.take_preface(&scratch[..length]);
            return Poll::Ready(Ok(()));
        }
        self.count_frames(&scratch[held..length]);
        self.take_in(&scratch[..length]);
        Poll::Ready(Ok(()))
    }

    /// Takes what came of the preface, and what is behind it.
    fn take_preface(&mut self, bytes: &[u8]) {
        match Session::preface(bytes) {
            Some(true) => {
                let max_n = self.common.sequencer.shared.max_n();
                // Operators ask for nothing that is hot.
                let takes_hot = self.state.caller().port != Port::Operations;
                self.session = Some(Session::new(max_n, takes_hot, self.outbox.bytes()));
                self.count_frames(&bytes[PREFACE.len()..]);
                self.take_in(&bytes[PREFACE.len()..]);
            }
            Some(false) => self.hold(bytes),
            None => {
                self.hold(bytes);
                self.stage = Stage::Foreign;
            }
        }
    }

    /// Counts the frames that begin in what was read.
    fn count_frames(&mut self, bytes: &[u8]) {
        let has_begun = self.meter.has_begun();
        if let Some(abuse) = self.meter.handle_read(bytes, self.state.sweeps()) {
            self.send_away(Fault { code: frame::code::ENHANCE_YOUR_CALM, abuse });
            self.state.note_end();
            self.stage = Stage::Cut;
        } else if !has_begun && self.meter.has_begun() {
            // From here on the client may be silent.
            self.state.end_hello();
        }
    }

    /// Takes in what is held.
    fn take_held(&mut self) {
        let common = self.common.clone();
        let mut scratch = common.scratch.borrow_mut();
        let held = self.held.len();
        scratch[..held].copy_from_slice(&self.held);
        self.take_in(&scratch[..held]);
    }

    /// Takes every whole frame in that there is room for, and holds what is left.
    fn take_in(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        self.is_full = false;
        if let Some(session) = &mut self.session {
            session.set_max_n(self.common.sequencer.shared.max_n());
        }
        while self.stage == Stage::Open {
            if !self.has_room() {
                self.is_full = !rest.is_empty();
                break;
            }
            let Some(session) = &mut self.session else { break };
            match session.receive(rest, self.outbox.bytes()) {
                Ok(None) => break,
                Ok(Some((length, event))) => {
                    rest = &rest[length..];
                    self.handle(event);
                }
                Err(fault) => self.send_away(fault),
            }
        }
        self.hold(rest);
        self.state.set_hot_in_flight(self.queue.live() as u32);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Hot { id } => self.handle_hot(id),
            Event::Request { id, request, body_len } => {
                self.exchanges.begin(&self.service, id, *request, body_len);
            }
            Event::TooLong { id } => {
                let mut answer = Answer::new(Body::Empty);
                if let Ok(status) = HEAD_TOO_LONG.try_into() {
                    *answer.status_mut() = status;
                }
                self.put_answer(Ready { id, answer, is_head: false });
            }
            Event::Data { id, len, ends } => self.exchanges.handle_data(id, len, ends),
            Event::Reset { id } => match self.queue.take_back(id) {
                Some(ask) => self.owed_len -= owed_by(ask),
                None => self.exchanges.drop_stream(id),
            },
            Event::Table(len) => self.table.resize(len),
            // Bodies are looked at after every read.
            Event::Nothing | Event::Window => {}
        }
    }

    fn handle_hot(&mut self, id: u32) {
        let Some(hot) = self.session.as_ref().and_then(Session::hot) else { return };
        if self.common.admits(hot) {
            self.owed_len += owed_by(hot.ask);
            self.queue.push(id, hot.ask, &hot.request_id);
            return;
        }
        // Who is refused for what he may not do is refused, counted and logged where all are.
        let mut request = http::Request::new(());
        *request.uri_mut() = uri_of(hot.ask);
        *request.version_mut() = http::Version::HTTP_2;
        *request.headers_mut() = headers_of(hot);
        self.exchanges.begin(&self.service, id, request, Some(0));
    }

    /// Says why, and ends the connection when that is written.
    fn send_away(&mut self, fault: Fault) {
        self.common.sequencer.metrics().count_abuse(fault.abuse);
        tracing::debug!(?fault, "a client of HTTP/2 is sent away");
        self.drop_all();
        if let Some(session) = &self.session {
            session.end(fault, self.outbox.bytes());
        }
        self.stage = Stage::Ending;
    }

    fn drop_all(&mut self) {
        self.queue.clear();
        self.exchanges.clear();
        self.owed_len = 0;
        self.state.set_hot_in_flight(0);
    }

    fn hold(&mut self, rest: &[u8]) {
        self.held.clear();
        self.held.extend_from_slice(rest);
    }
}

/// What asks for that.
fn uri_of(Ask { count, format }: Ask) -> http::Uri {
    let format = match format {
        Format::Binary => "binary",
        Format::Range => "range",
        Format::Json => "json",
    };
    let text = format!("{}?n={count}&format={format}", epicepoch_wire::http::PATH_TIMESTAMP);
    text.try_into().unwrap_or_else(|_| unreachable!("a path of letters and digits"))
}

/// The headers of a hot request that mean something.
fn headers_of(hot: &Hot) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        (http::header::AUTHORIZATION, &hot.authorization),
        (http::HeaderName::from_static(epicepoch_wire::http::HEADER_REQUEST_ID), &hot.request_id),
    ] {
        if !value.is_empty()
            && let Ok(value) = http::HeaderValue::from_bytes(value)
        {
            headers.insert(name, value);
        }
    }
    headers
}

/// The status of an answer with timestamps.
const OK: u16 = 200;

/// Bytes of an answer, about.
fn owed_by(ask: Ask) -> usize {
    ANSWER_HEAD_LEN + answers::body_len(ask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_hot_request_asks_for_is_asked_of_the_service() {
        let range = Ask { count: 1 << 32, format: Format::Range };
        for ask in [Ask { count: 1, format: Format::Binary }, range] {
            let uri = uri_of(ask);
            assert_eq!(uri.path(), epicepoch_wire::http::PATH_TIMESTAMP);
            assert_eq!(Ask::parse(uri.query(), 9).ok(), Some(ask));
        }
    }
}
