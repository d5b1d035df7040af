//! HTTP/2 in the pipeline: `GET /timestamp` and gRPC messages that ask for timestamps join batches.
//! Other calls are answered at once, and all other requests go to the service. The session decides
//! what the client's frames mean.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::http2::frame::{self, Frame, HEAD_LEN, PAYLOAD_LEN_MAX, PREFACE, flag, kind};
use epicepoch_wire::{Guarantee, TimestampRange};
use http::header::EXPECT;
use tokio::time::{Sleep, sleep};

use super::answers::{Echo, Other, ResponseTemplates, Table};
use super::exchange::{Exchanges, Ready};
use super::grpc::{Calls, Given, is_call};
use super::meter::FrameMeter;
use super::session::{Event, Fault, STREAMS_MAX, Session};
use crate::front::deadlines::ClientState;
use crate::front::pipeline::protocol::{ANSWERS_LEN_MAX, Common, Line, Protocol, Stage};
use crate::front::pipeline::queue::{Answers, Interest, Queue, Refused, Waiting};
use crate::front::pipeline::refusal::Refusal;
use crate::front::routes::answer::{self, Answer};
use crate::front::routes::body::Body;
use crate::front::routes::date::Dated;
use crate::front::routes::query::{Ask, Format, Limits};
use crate::front::routes::service::NodeService;
use crate::front::routes::table::Switches;
use crate::security::authz::Port;
use crate::security::excess::Excess;
use crate::worker::sequencer::Sequencer;

/// Approximate bytes of an answer without its body, if the client keeps the table of headers: two
/// heads of frames, ten bytes for headers, and 23 for what has proved the answer. Each open stream
/// may need that many.
const ANSWER_HEAD_LEN: usize = 64;
/// A client has this time to say that it knows of the end of its connection. A client that is gone
/// never does.
const CLOSING_TIME_MAX: Duration = Duration::from_secs(1);
/// The status of a request whose head is too long.
const HEAD_TOO_LONG: u16 = 431;

// After a partial frame, the read limit still has room for the rest of that frame.
const _: () = assert!(2 * (HEAD_LEN + PAYLOAD_LEN_MAX) <= Http2::READ_LEN_MAX + HEAD_LEN);
const _: () = assert!(STREAMS_MAX * ANSWER_HEAD_LEN < ANSWERS_LEN_MAX);

/// The state of one HTTP/2 connection in the pipeline.
pub(crate) struct Http2 {
    pub(super) state: Rc<ClientState>,
    service: NodeService,
    /// `None` until the preface has come.
    pub(super) session: Option<Session>,
    meter: FrameMeter,
    pub(super) table: Table,
    exchanges: Exchanges,
    /// Whether this node serves gRPC calls (`GRPC`, `PD_WIRE`).
    takes_calls: bool,
    pub(super) calls: Calls,
    /// After the announcement of the end: the time for which the node waits for the client.
    closing: Option<Pin<Box<Sleep>>>,
}

/// A request that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    stream: u32,
    ask: Ask,
    request_id_len: u8,
    is_direct: bool,
    interest: Interest,
    /// Whether the request is a message of a call, which other requests of the stream may follow.
    is_of_call: bool,
}

impl Request {
    /// A request of the call on this stream. `is_direct` means that it is never forwarded.
    pub(super) const fn of_call(stream: u32, ask: Ask, is_direct: bool) -> Self {
        let interest = Interest::Wanted;
        Self { stream, ask, request_id_len: 0, is_direct, interest, is_of_call: true }
    }
}

impl Waiting for Request {
    #[inline]
    fn count(&self) -> u64 {
        self.ask.count
    }

    #[inline]
    fn answer_len(&self) -> usize {
        ANSWER_HEAD_LEN + self.ask.body_len()
    }

    #[inline]
    fn guarantee(&self) -> Option<Guarantee> {
        self.ask.guarantee
    }

    /// A node that is behind could not spell a compact timestamp. Clients of PD follow to the
    /// leader.
    #[inline]
    fn is_direct(&self) -> bool {
        self.is_direct || self.ask.format.is_compact()
    }

    #[inline]
    fn request_id_len(&self) -> usize {
        self.request_id_len.into()
    }

    #[inline]
    fn interest(&self) -> Interest {
        self.interest
    }

    fn set_interest(&mut self, interest: Interest) {
        self.interest = interest;
    }
}

impl Protocol for Http2 {
    type Request = Request;
    type Shared = RefCell<Dated<ResponseTemplates>>;

    /// More than may be open, because cancelled requests count, too.
    const QUEUE_LEN_MAX: usize = 4 * STREAMS_MAX;
    const READ_LEN_MAX: usize = (32 << 10) + HEAD_LEN;
    const WAITS_FOR_ADMISSION: bool = true;

    fn share(_: &Rc<Sequencer>) -> Self::Shared {
        RefCell::default()
    }

    fn begin(common: &Rc<Common<Self>>, state: &Rc<ClientState>) -> Self {
        state.keeps_little.set(true);
        Self {
            state: state.clone(),
            service: NodeService::new(common.sequencer.clone(), state.clone()),
            session: None,
            meter: FrameMeter::new(PREFACE.len(), state.sweeps()),
            table: Table::default(),
            exchanges: Exchanges::default(),
            takes_calls: Switches::of(&common.sequencer.shared.config).any(),
            calls: Calls::default(),
            closing: None,
        }
    }

    fn receive<'a>(
        &mut self,
        common: &Common<Self>,
        line: &mut Line<Request>,
        bytes: &'a [u8],
        seen: usize,
    ) -> &'a [u8] {
        let limits = Limits::of(&common.sequencer.shared);
        let mut rest = bytes;
        if self.session.is_some() {
            self.count_frames(common, line, &bytes[seen..]);
        } else {
            match Session::preface(bytes) {
                Some(true) => {
                    rest = &bytes[PREFACE.len()..];
                    // The port of operators has no fast path.
                    let takes_fast = self.state.caller().port != Port::Operations;
                    self.session = Some(Session::new(limits, takes_fast, line.outbox.bytes()));
                    self.count_frames(common, line, rest);
                }
                Some(false) => {}
                // The bytes only began like HTTP/2, as `POST` does.
                None => line.stage = Stage::Leaving,
            }
        }
        if let Some(session) = &mut self.session {
            session.set_limits(limits);
        }
        let mut has_whole = false;
        while line.stage == Stage::Open {
            if self.read_allowance(line) == 0 {
                line.is_full = !rest.is_empty();
                break;
            }
            let Some(session) = &mut self.session else { break };
            match session.receive(rest, line.outbox.bytes()) {
                Ok(None) => break,
                Ok(Some((length, event))) => {
                    let (frame, behind) = rest.split_at(length);
                    rest = behind;
                    has_whole |= !session.is_in_block();
                    self.handle(common, line, event, frame);
                }
                Err(fault) => self.send_away(common, line, fault),
            }
        }
        if let Some(session) = &self.session {
            // Frames that wait because the outbox is full are whole.
            let has_part = !rest.is_empty() && !line.is_full;
            line.state.record_frames(has_whole, has_part || session.is_in_block());
        }
        rest
    }

    /// The node assumes that a client of HTTP/2 that sends no more also reads no more.
    fn end_input(&mut self, line: &mut Line<Request>) {
        line.state.record_end();
        self.drop_all(line);
        line.stage = Stage::Cut;
    }

    /// Calls may ask for compact timestamps before this node knows whether the cluster gives some.
    #[inline]
    fn check(
        &self,
        common: &Common<Self>,
        queue: &Queue<Request>,
        requests: usize,
        range: &TimestampRange,
    ) -> Result<u64, ErrorCode> {
        if self.calls.is_empty() || common.sequencer.shared.gives_compact(range) {
            return Ok(0);
        }
        let is_unfit = |it: &Request| it.is_of_call && it.ask.format.is_compact();
        Ok(queue.count_oldest(requests, is_unfit))
    }

    fn answer(&mut self, common: &Common<Self>, answers: Answers<'_, Request>, out: &mut Vec<u8>) {
        let templates = common.templates();
        let proved_by = answers.proved_by();
        let view = answers.is_forwarded().then(|| common.sequencer.view());
        let forwarded = view.as_deref();
        let forwarded_by = forwarded.map(|view| view.published.identity.node.0);
        answers.each(|Request { stream: id, ask, is_of_call, .. }, request_id, first| {
            if is_of_call {
                let given = Given { first, proved_by, forwarded_by };
                return self.answer_call(common, id, ask, given, out);
            }
            let Self { session, table, exchanges, .. } = &mut *self;
            let Some(session) = session else { unreachable!("a request came without a preface") };
            let body_len = ask.body_len();
            let proof = ask.shown(proved_by);
            let Some(is_whole) = session.spend_all(id, body_len) else { return };
            let is_usual = request_id.is_empty() && proof.is_none() && forwarded.is_none();
            if is_whole && ask.count == 1 && is_usual && ask.format == Format::Binary {
                return templates.one(table, id, first, out);
            }
            templates.head(table, id, body_len, Echo { request_id, proof, forwarded }, out);
            if is_whole {
                frame::put_head(out, body_len, kind::DATA, flag::END_STREAM, id);
                ask.put_body(first, out);
                return;
            }
            let Some(range) = TimestampRange::new(first, ask.count) else {
                unreachable!("a range within an epoch was taken")
            };
            exchanges.send(
                id,
                match ask.format {
                    Format::Range => Body::range(&range),
                    Format::U64 => Body::compact_list(range),
                    Format::U64Range => Body::compact_range(&range),
                    Format::Binary | Format::Json => Body::list(range),
                },
            );
        });
    }

    fn refuse(
        &mut self,
        common: &Common<Self>,
        refused: Refused<'_, Request>,
        refusal: &Refusal,
        out: &mut Vec<u8>,
    ) {
        let templates = common.templates();
        let (parts, body) = answer::refused(refusal).into_parts();
        let Body::Whole(text) = body else { unreachable!("a refusal is a line of text") };
        let (status, headers) = (parts.status.as_u16(), &parts.headers);
        let body_len = Some(text.len() as u64);
        let other = Other { status, headers, body_len, ends: false };
        refused.each(|Request { stream: id, is_of_call, .. }, request_id| {
            if is_of_call {
                return self.refuse_call(id, refusal, out);
            }
            let Self { session, table, exchanges, .. } = &mut *self;
            let Some(session) = session else { unreachable!("a request came without a preface") };
            let Some(is_whole) = session.spend_all(id, text.len()) else { return };
            templates.other(table, id, &other, request_id, out);
            if is_whole {
                frame::put(out, kind::DATA, flag::END_STREAM, id, &text);
            } else {
                exchanges.send(id, Body::Whole(text.clone()));
            }
        });
    }

    /// Announces the end of the connection. Requests that arrive before the client knows of the end
    /// are answered; later requests are not.
    fn close(&mut self, line: &mut Line<Request>) {
        match &mut self.session {
            Some(session) => {
                session.close(line.outbox.bytes());
                self.closing = Some(Box::pin(sleep(CLOSING_TIME_MAX)));
            }
            None => line.stop(),
        }
        self.close_calls(line.outbox.bytes());
    }

    /// Sends answers of the service, and bodies, while the outbox has space. Also does the work of
    /// open calls.
    #[inline]
    fn advance(
        &mut self,
        common: &Common<Self>,
        line: &mut Line<Request>,
        context: &mut Context<'_>,
    ) -> bool {
        if let (Some(closing), Some(session)) = (&mut self.closing, &mut self.session)
            && closing.as_mut().poll(context).is_ready()
        {
            session.stop_waiting(line.outbox.bytes());
            self.closing = None;
        }
        let is_held = || self.session.as_ref().is_some_and(Session::is_held);
        let goes_on = (!self.calls.is_empty() || is_held()) && self.advance_calls(common, line);
        if self.exchanges.is_empty() {
            return goes_on;
        }
        while line.outbox.len() < ANSWERS_LEN_MAX
            && let Poll::Ready(ready) = self.exchanges.poll_answer(context)
        {
            self.put_answer(common, ready, line.outbox.bytes());
        }
        let Some(session) = &mut self.session else { return false };
        let waiting = line.outbox.len();
        let out = line.outbox.bytes();
        let len_max = out.len() - waiting + ANSWERS_LEN_MAX;
        self.exchanges.pump(session, out, len_max) || goes_on
    }

    #[inline]
    fn record_written(&mut self, bytes: usize) {
        self.meter.record_written(bytes);
    }

    #[inline]
    fn is_over(&self) -> bool {
        self.session.as_ref().is_some_and(Session::is_over)
    }

    fn give_back(&mut self) {
        self.exchanges.give_back();
        self.calls.give_back();
        if let Some(session) = &mut self.session {
            session.give_back();
        }
    }
}

impl Http2 {
    /// Counts the frames that begin in `bytes`.
    fn count_frames(&mut self, common: &Common<Self>, line: &mut Line<Request>, bytes: &[u8]) {
        let has_begun = self.meter.has_begun();
        if let Some(abuse) = self.meter.handle_read(bytes, line.state.sweeps()) {
            self.send_away(common, line, Fault { code: frame::code::ENHANCE_YOUR_CALM, abuse });
            line.state.record_end();
            line.stage = Stage::Cut;
        } else if !has_begun && self.meter.has_begun() {
            // From now on the client may be silent.
            line.state.end_hello();
        }
    }

    /// Handles an event and the frame that caused it. Rare events have functions of their own, which
    /// are not inlined, so that the compiler inlines the rest into the loop over the frames.
    #[inline]
    fn handle(
        &mut self,
        common: &Common<Self>,
        line: &mut Line<Request>,
        event: Event,
        frame: &[u8],
    ) {
        match event {
            Event::Fast { id } => self.handle_fast(common, line, id),
            Event::Request { id, request, body_len } => {
                self.handle_request(common, line, id, request, body_len);
            }
            Event::TooLong { id } => self.refuse_head(common, line, id),
            Event::Data { id, len, ends } => self.handle_data(common, line, id, len, ends, frame),
            Event::Reset { id } => self.handle_reset(line, id),
            Event::Table(len) => self.table.resize(len),
            // Bodies are sent after every read, so a larger window needs no action here.
            Event::Nothing | Event::Window => {}
        }
    }

    fn handle_fast(&mut self, common: &Common<Self>, line: &mut Line<Request>, id: u32) {
        let Some(request) = self.session.as_ref().and_then(Session::fast_request) else { return };
        if let Err(reason) = common.sequencer.shared.authz.check_fast(&request.authorization) {
            let answer = self.service.refuse_caller(reason, &request.request_id);
            let ready = Ready { id, answer, is_head: false };
            return self.put_answer(common, ready, line.outbox.bytes());
        }
        let (ask, request_id_len) = (request.ask, request.request_id.len() as u8);
        let (is_direct, interest, is_of_call) = (request.is_direct, Interest::Wanted, false);
        let waiting = Request { stream: id, ask, request_id_len, is_direct, interest, is_of_call };
        line.queue.push(waiting, &request.request_id);
    }

    /// Begins a request that is not of the fast path.
    #[inline(never)]
    fn handle_request(
        &mut self,
        common: &Common<Self>,
        line: &mut Line<Request>,
        id: u32,
        request: Box<http::Request<()>>,
        body_len: Option<u64>,
    ) {
        if self.takes_calls && is_call(&request) {
            return self.begin_call(common, line, id, &request, body_len == Some(0));
        }
        // A client that expects an interim answer waits with its body. Requests here need none, so
        // it gets its answer at once (RFC 9110, 10.1.1).
        let body_len = if request.headers().contains_key(EXPECT) { Some(0) } else { body_len };
        let is_begun = self.exchanges.begin(&self.service, id, *request, body_len);
        if let Some(session) = self.session.as_mut().filter(|_| !is_begun) {
            session.refuse(id, line.outbox.bytes());
        }
    }

    /// Handles a part of a body, and the frame that had it.
    #[inline(never)]
    fn handle_data(
        &mut self,
        common: &Common<Self>,
        line: &mut Line<Request>,
        id: u32,
        len: usize,
        ends: bool,
        frame: &[u8],
    ) {
        let (payload, counted) = content(frame);
        let is_of_call = !self.calls.is_empty()
            && self.handle_call_data(common, line, id, payload, counted, ends);
        if !is_of_call {
            self.exchanges.handle_data(id, len, ends);
        }
    }

    /// Handles the end of a stream that the client has cancelled. Requests of a cancelled call stay
    /// in the queue, and are answered in vain. While they wait, the queue is not sorted. Then
    /// another cancelled request may not be found, and is answered in vain, too.
    #[inline(never)]
    fn handle_reset(&mut self, line: &mut Line<Request>, id: u32) {
        if !self.calls.drop_stream(id) && !line.queue.cancel(|request| request.stream.cmp(&id)) {
            self.exchanges.drop_stream(id);
        }
    }

    /// Answers a request whose head is too long.
    #[inline(never)]
    fn refuse_head(&mut self, common: &Common<Self>, line: &mut Line<Request>, id: u32) {
        let mut answer = Answer::new(Body::Empty);
        if let Ok(status) = HEAD_TOO_LONG.try_into() {
            *answer.status_mut() = status;
        }
        let ready = Ready { id, answer, is_head: false };
        self.put_answer(common, ready, line.outbox.bytes());
    }

    fn put_answer(
        &mut self,
        common: &Common<Self>,
        Ready { id, answer, is_head }: Ready,
        out: &mut Vec<u8>,
    ) {
        let (parts, body) = answer.into_parts();
        let body_len = body.len();
        let ends = is_head || body_len == Some(0);
        let other =
            Other { status: parts.status.as_u16(), headers: &parts.headers, body_len, ends };
        common.templates().other(&mut self.table, id, &other, &[], out);
        let body = if is_head { Body::Empty } else { body };
        if body.len() != Some(0) {
            self.exchanges.send(id, body);
        } else if let Some(session) = &mut self.session {
            session.finish(id, out);
        }
    }

    /// Tells the client the reason, and ends the connection when the reason is written.
    fn send_away(&mut self, common: &Common<Self>, line: &mut Line<Request>, fault: Fault) {
        common.sequencer.metrics().count_abuse(fault.abuse);
        let (caller, detail) = (line.state.caller(), fault.abuse.name());
        common.sequencer.shared.record_excess(Excess::Http2Abuse, &caller, detail);
        tracing::debug!(?fault, "a client of HTTP/2 is sent away");
        self.drop_all(line);
        if let Some(session) = &self.session {
            session.end(fault, line.outbox.bytes());
        }
        line.stage = Stage::Ending;
    }

    fn drop_all(&mut self, line: &mut Line<Request>) {
        line.queue.clear();
        self.exchanges.clear();
        self.calls.clear();
        line.record_in_flight();
    }
}

/// The content of a DATA frame, and its length with the padding, as windows count it. Other frames
/// have none: trailers end a body, too.
fn content(frame: &[u8]) -> (&[u8], usize) {
    match Frame::split(frame) {
        Ok(Some(frame)) if frame.kind == kind::DATA => {
            (frame.unpadded().unwrap_or_default(), frame.payload.len())
        }
        Ok(_) | Err(_) => (&[], 0),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use epicepoch_wire::WorkerId;

    use super::*;
    use crate::consensus::fixture::logged;
    use crate::security::authz::Caller;
    use crate::security::limits::AddressLimits;
    use crate::worker::fixture::sequencer;

    #[test]
    fn the_log_names_the_address_of_a_client_that_is_sent_away() {
        let from = IpAddr::from([192, 0, 2, 7]);
        let permit = AddressLimits::new(None).admit(from, 1).unwrap();
        let caller = Caller { from: Some(from), port: Port::Shared, is_encrypted: false };
        let state = Rc::new(ClientState::new(Rc::default(), caller, permit));
        let common = Common::<Http2>::new(sequencer(WorkerId(0)));
        let mut bytes = PREFACE.to_vec();
        // No data may belong to stream 0 (RFC 9113, 6.1).
        frame::put(&mut bytes, kind::DATA, 0, 0, b"x");
        let lines = logged(|| {
            for _ in 0..2 {
                let mut line = Line::new(state.clone());
                Http2::begin(&common, &state).receive(&common, &mut line, &bytes, 0);
                assert_eq!(line.stage, Stage::Ending);
            }
        });
        let line = "WARN a client sends too much addr=192.0.2.7 kind=http2_abuse";
        assert_eq!(lines, [format!("{line} detail=protocol others=0")], "one line a second");
    }
}
