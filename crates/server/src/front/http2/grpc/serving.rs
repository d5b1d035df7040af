//! What the methods of calls do: which messages become requests for timestamps, and what the others
//! are answered.

use epicepoch_wire::Mode;
use epicepoch_wire::grpc::health;
use epicepoch_wire::grpc::message::Message;
use epicepoch_wire::grpc::oracle as messages;
use epicepoch_wire::grpc::reflection;
use epicepoch_wire::grpc::status::Code;
use epicepoch_wire::http::{ErrorCode, HEADER_DIRECT};
use http::header::AUTHORIZATION;
use http::{HeaderValue, Request as HttpRequest};

use super::call::{Call, Calls, Given, Head, Rest, Sink, Watch};
use super::health::Watched;
use super::status::{self, Status};
use super::{oracle, pd};
use crate::front::deadlines::ClientState;
use crate::front::http2::protocol::{Http2, Request};
use crate::front::http2::session::Session;
use crate::front::pipeline::connection::{OverRate, Rated};
use crate::front::pipeline::protocol::{ANSWERS_LEN_MAX, Common, Line, Protocol};
use crate::front::pipeline::queue::Queue;
use crate::front::pipeline::refusal::Refusal;
use crate::front::routes::query::{Ask, Format};
use crate::front::routes::table::{Call as Method, CallRow, Switches};
use crate::metrics::worker::PathLabel;
use crate::security::authz::Right;
use crate::worker::sequencer::Sequencer;

/// The status of HTTP that every call has, for metrics.
const OK: u16 = 200;
/// No header with a token is longer, bytes.
const AUTHORIZATION_LEN_MAX: usize = 1024;

impl Http2 {
    /// Begins a call whose head has arrived. `has_ended` means that no message will follow.
    pub(in crate::front::http2) fn begin_call(
        &mut self,
        common: &Common<Self>,
        line: &mut Line<Request>,
        id: u32,
        request: &HttpRequest<()>,
        has_ended: bool,
    ) {
        // Also a call that is refused counts: a client may try tokens.
        let admitted = rate(&common.sequencer, &self.state);
        let method = match admitted.and_then(|()| self.admit_call(common, request)) {
            Ok(method) => method,
            Err(status) => {
                // The method does not matter, because the call ends at once.
                self.calls.begin(Call::new(id, Method::Check));
                return self.end_call(&common.sequencer, line, id, &status);
            }
        };
        let mut call = Call::new(id, method);
        if method.is_for_timestamps() {
            // Timestamps need a token for each message. A longer header has no token.
            let token = request.headers().get(AUTHORIZATION);
            let token = token.filter(|it: &&HeaderValue| it.len() <= AUTHORIZATION_LEN_MAX);
            let authorization = token.map_or(Vec::new(), |it| it.as_bytes().to_vec());
            // Clients of PD follow to the leader.
            let mut direct = request.headers().get_all(HEADER_DIRECT).iter();
            let is_direct = method == Method::Tso || direct.any(|value| value.as_bytes() == b"1");
            call.head = Head { authorization, is_direct };
        }
        self.state.has_calls.set(true);
        self.calls.begin(call);
        if has_ended {
            self.handle_call_data(common, line, id, &[], 0, true);
        }
    }

    /// Handles a part of a call's body. Returns whether there is such a call.
    pub(in crate::front::http2) fn handle_call_data(
        &mut self,
        common: &Common<Self>,
        line: &mut Line<Request>,
        id: u32,
        payload: &[u8],
        counted: usize,
        ends: bool,
    ) -> bool {
        if self.calls.get(id).is_none() {
            return false;
        }
        if ends {
            self.calls.end_input(id);
        }
        self.handle_messages(common, line, id, payload, counted);
        if let Some((calls, mut sink)) = self.calls_and_sink(line.outbox.bytes()) {
            calls.hold(&mut sink);
        }
        true
    }

    /// Handles the messages of a call, those that are held and those in `payload`, until it pauses.
    fn handle_messages(
        &mut self,
        common: &Common<Self>,
        line: &mut Line<Request>,
        id: u32,
        payload: &[u8],
        counted: usize,
    ) {
        let (sequencer, queue) = (&common.sequencer, &mut line.queue);
        let Self { calls, state, .. } = self;
        let received = calls.receive(id, payload, counted, |call, message| {
            receive_message(sequencer, queue, state, call, message)
        });
        let handled = received.and_then(|()| match self.calls.rest(id) {
            Rest::More => Ok(()),
            Rest::Part => {
                const TEXT: &str = "the call ended in the middle of a message";
                Err(Status::fixed(Code::Internal, TEXT, ErrorCode::BadRequest))
            }
            Rest::Nothing => self.answer_single(sequencer, line, id),
        });
        match handled {
            Ok(()) => {
                if let Some((calls, mut sink)) = self.calls_and_sink(line.outbox.bytes()) {
                    calls.flush(id, &mut sink);
                }
            }
            Err(status) => self.end_call(sequencer, line, id, &status),
        }
    }

    /// Answers a request for timestamps.
    pub(in crate::front::http2) fn answer_call(
        &mut self,
        common: &Common<Self>,
        id: u32,
        ask: Ask,
        given: Given,
        out: &mut Vec<u8>,
    ) {
        let Some((calls, mut sink)) = self.calls_and_sink(out) else { return };
        let Some(method) = calls.get(id).map(|call| call.method) else { return };
        let answered = match method {
            Method::Timestamp | Method::Timestamps => {
                let answer = oracle::given(&common.sequencer.shared, ask, given);
                answer.map(|answer| calls.answer(id, &mut sink, |out| answer.encode(out)))
            }
            Method::FirstTimestamp => {
                calls.answer(id, &mut sink, |out| messages::put_first_timestamp(out, given.first));
                Ok(())
            }
            Method::Tso => {
                let answer = pd::given(&common.sequencer, given.first, ask.count);
                answer.map(|answer| calls.answer(id, &mut sink, |out| answer.encode(out)))
            }
            Method::Members
            | Method::PdMembers
            | Method::PdClusterInfo
            | Method::Check
            | Method::Watch
            | Method::Reflection => unreachable!("their requests get no timestamps"),
        };
        if let Err(status) = answered {
            if let Some(code) = status.refusal {
                let metrics = common.sequencer.metrics();
                Self::count(metrics, code.status(), 1, 0);
                metrics.count_refusal(code);
            }
            calls.end(id, &status, &mut sink);
        }
    }

    /// Ends the call of a request that gets no timestamps.
    pub(in crate::front::http2) fn refuse_call(
        &mut self,
        id: u32,
        refusal: &Refusal,
        out: &mut Vec<u8>,
    ) {
        if let Some((calls, mut sink)) = self.calls_and_sink(out) {
            calls.end(id, &Status::of_refusal(refusal), &mut sink);
        }
    }

    /// Ends all calls while the node stops, after the answers to their requests. `Watch` calls are
    /// told first that the node does not serve.
    pub(in crate::front::http2) fn close_calls(&mut self, out: &mut Vec<u8>) {
        let Some((calls, mut sink)) = self.calls_and_sink(out) else { return };
        let is_news = |watch: Watch| {
            watch.of != Watched::Unknown && watch.told != health::Serving::NotServing
        };
        for id in calls.ids(|call| !call.is_ending() && call.watch.is_some_and(is_news)) {
            calls.tell(id, health::Serving::NotServing, &mut sink);
        }
        calls.end_after_answers(&status::STOPPING, &mut sink, |_| true);
        calls.hold(&mut sink);
    }

    /// Sends what waits for the client's windows, and handles messages that are held. Ends the
    /// streams for timestamps of a node that no longer leads, so that their clients look for the
    /// new leader before they ask again, and all calls while the node stops. Tells a changed
    /// health. Returns whether only a full outbox keeps messages from being handled.
    pub(in crate::front::http2) fn advance_calls(
        &mut self,
        common: &Common<Self>,
        line: &mut Line<Request>,
    ) -> bool {
        let sequencer = &common.sequencer;
        self.tell_watchers(sequencer, line.outbox.bytes());
        let Some((calls, mut sink)) = self.calls_and_sink(line.outbox.bytes()) else {
            return false;
        };
        calls.flush_all(&mut sink);
        let view = sequencer.view();
        if !view.is_leading() || view.published.mode == Mode::Interval {
            let status = Status::of_refusal(&Refusal::now(sequencer, view.published.refusal()));
            let forwards = sequencer.forwards() && view.published.mode == Mode::Quorum;
            calls.end_after_answers(&status, &mut sink, |call| {
                let is_stream = call.method.is_for_timestamps() && !call.method.has_one_request();
                is_stream && (call.head.is_direct || !forwards)
            });
        }
        if self.session.as_ref().is_some_and(Session::is_closing) {
            // The client may have begun calls before it knew of the end.
            self.close_calls(line.outbox.bytes());
        }
        while self.read_allowance(line) > 0
            && let Some(id) = self.calls.resumable()
        {
            self.handle_messages(common, line, id, &[], 0);
        }
        if let Some((calls, mut sink)) = self.calls_and_sink(line.outbox.bytes()) {
            calls.hold(&mut sink);
        }
        line.record_in_flight();
        let has_space =
            line.queue.len() < Self::QUEUE_LEN_MAX && line.queue.owed_len() < ANSWERS_LEN_MAX;
        has_space && self.calls.resumable().is_some()
    }

    /// Tells `Watch` calls a changed health. A client that has not read the last one waits for it.
    fn tell_watchers(&mut self, sequencer: &Sequencer, out: &mut Vec<u8>) {
        let Some((calls, mut sink)) = self.calls_and_sink(out) else { return };
        for id in calls.ids(|call| call.watch.is_some() && call.is_flushed()) {
            let Some(watch) = calls.get(id).and_then(|call| call.watch) else { continue };
            let now = watch.of.serving(sequencer);
            if watch.told != now {
                calls.tell(id, now, &mut sink);
            }
        }
    }

    /// Checks that a call may begin, and returns its method.
    fn admit_call(
        &self,
        common: &Common<Self>,
        request: &HttpRequest<()>,
    ) -> Result<Method, Status> {
        let (path, shared) = (request.uri().path(), &common.sequencer.shared);
        let row = CallRow::of(path, Switches::of(&shared.config))
            .map_err(|switch| Status::unimplemented(path, switch))?;
        let caller = self.state.caller();
        if let Err(reason) = shared.authz.check(row.right, &caller, request.headers()) {
            shared.record_denial(row.right, reason, &caller);
            return Err(Status::of_reason(row.right, reason));
        }
        Ok(row.call)
    }

    /// Answers a call that has one request. Does nothing for other calls.
    fn answer_single(
        &mut self,
        sequencer: &Sequencer,
        line: &mut Line<Request>,
        id: u32,
    ) -> Result<(), Status> {
        const NONE: Status =
            Status::fixed(Code::Internal, "the call has no request", ErrorCode::BadRequest);
        let is_single = self.calls.get(id).is_some_and(|call| call.method.has_one_request());
        if !is_single {
            return Ok(());
        }
        let request = self.calls.take_request(id).ok_or(NONE)?;
        let Self { calls, state, .. } = self;
        let Some(call) = calls.get(id) else { return Ok(()) };
        let (view, mut content) = (sequencer.view(), Vec::new());
        let published = &view.published;
        let switches = Switches::of(&sequencer.shared.config);
        match call.method {
            Method::Timestamp | Method::FirstTimestamp => {
                ask_timestamps(sequencer, &mut line.queue, state, call, &request)?;
                // The request counts for the rate when it joins a batch, so the call does not.
                state.give_back(1);
                return Ok(());
            }
            Method::Members => oracle::put_members(published, &mut content)?,
            Method::PdMembers => {
                pd::put_members(published, state.caller().is_encrypted, &mut content)?;
            }
            Method::PdClusterInfo => pd::put_info(published, &mut content)?,
            Method::Check => {
                let watched = Watched::named(health::decode_check(&request)?, switches);
                let serving = watched.serving(sequencer);
                if watched == Watched::Unknown {
                    return Err(status::NO_SERVICE);
                }
                health::put_checked(&mut content, serving);
            }
            Method::Watch => {
                let of = Watched::named(health::decode_check(&request)?, switches);
                let told = of.serving(sequencer);
                call.watch = Some(Watch { of, told });
                // The call stays open.
                call.count_request();
                health::put_checked(&mut content, told);
            }
            Method::Timestamps | Method::Tso | Method::Reflection => {
                unreachable!("their requests are answered one by one")
            }
        }
        call.count_request();
        sequencer.metrics().count_answer(PathLabel::Grpc, OK);
        if let Some((calls, mut sink)) = self.calls_and_sink(line.outbox.bytes()) {
            calls.answer(id, &mut sink, |out| out.extend_from_slice(&content));
        }
        Ok(())
    }

    fn end_call(
        &mut self,
        sequencer: &Sequencer,
        line: &mut Line<Request>,
        id: u32,
        status: &Status,
    ) {
        sequencer.metrics().count_answer(PathLabel::Grpc, OK);
        if let Some(code) = status.refusal {
            sequencer.metrics().count_refusal(code);
        }
        tracing::debug!(error = %status.text, "a call ends");
        if let Some((calls, mut sink)) = self.calls_and_sink(line.outbox.bytes()) {
            calls.end(id, status, &mut sink);
        }
    }

    fn calls_and_sink<'a>(&'a mut self, out: &'a mut Vec<u8>) -> Option<(&'a mut Calls, Sink<'a>)> {
        let Self { session, table, calls, .. } = self;
        Some((calls, Sink { session: session.as_mut()?, table, out }))
    }
}

/// Counts a call, or a message of one, for the rate of its address. The metric of refusals does not
/// count a refusal because of the rate.
fn rate(sequencer: &Sequencer, state: &ClientState) -> Result<(), Status> {
    match Rated::single(sequencer, state) {
        Ok(_) => Ok(()),
        Err(OverRate) => Err(Status::of_refusal(&Refusal::now(sequencer, OverRate::CODE))),
    }
}

/// Handles a whole message of a call.
fn receive_message(
    sequencer: &Sequencer,
    queue: &mut Queue<Request>,
    state: &ClientState,
    call: &mut Call,
    message: Message<'_>,
) -> Result<(), Status> {
    if message.is_compressed {
        const TEXT: &str = "compressed messages are not read here; send them as they are";
        return Err(Status::fixed(Code::Unimplemented, TEXT, ErrorCode::Unsupported));
    }
    if call.method.has_one_request() {
        const TEXT: &str = "the call has more than one request";
        const SECOND: Status = Status::fixed(Code::Internal, TEXT, ErrorCode::BadRequest);
        return if call.keep_request(message.bytes) { Ok(()) } else { Err(SECOND) };
    }
    if call.method.is_for_timestamps() {
        return ask_timestamps(sequencer, queue, state, call, message.bytes);
    }
    rate(sequencer, state)?;
    let mut content = Vec::new();
    reflection::put_answer(&mut content, message.bytes, Switches::described())?;
    sequencer.metrics().count_answer(PathLabel::Grpc, OK);
    call.put(|out| out.extend_from_slice(&content));
    Ok(())
}

/// Puts a request for timestamps into the queue of the connection.
fn ask_timestamps(
    sequencer: &Sequencer,
    queue: &mut Queue<Request>,
    state: &ClientState,
    call: &mut Call,
    message: &[u8],
) -> Result<(), Status> {
    // The tokens may have changed since the call began.
    if let Err(reason) = sequencer.shared.authz.check_fast(&call.head.authorization) {
        sequencer.shared.record_denial(Right::Timestamps, reason, &state.caller());
        return Err(Status::of_reason(Right::Timestamps, reason));
    }
    let ask = match call.method {
        Method::Tso => pd::ask(message, sequencer)?,
        // Its request is empty.
        Method::FirstTimestamp => Ask { format: Format::Range, ..Ask::ONE },
        _ => oracle::ask(message, &sequencer.view())?,
    };
    call.count_request();
    queue.push(Request::of_call(call.id, ask, call.head.is_direct), &[]);
    Ok(())
}
