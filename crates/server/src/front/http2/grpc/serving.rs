//! What the methods of calls do: which messages become requests for timestamps, and what the others
//! are answered.

use epicepoch_wire::grpc::message::Message;
use epicepoch_wire::grpc::pd::{self, TsoRequest, TsoResponse};
use epicepoch_wire::grpc::status::Code;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::timestamp::{COMPACT_INDEX_BITS, COMPACT_INDEXES};
use epicepoch_wire::{Timestamp, TimestampRange};
use http::header::AUTHORIZATION;
use http::{HeaderValue, Request as HttpRequest};

use super::answers;
use super::call::{Call, Calls, Sink};
use super::status::{self, Status};
use crate::front::http2::protocol::{Http2, Request};
use crate::front::pipeline::connection::Rated;
use crate::front::pipeline::protocol::{Common, Line};
use crate::front::pipeline::queue::{Interest, Queue};
use crate::front::pipeline::refusal::{Leaving, Refusal};
use crate::front::routes::query::{Ask, Format};
use crate::front::routes::table::{Call as Method, CallRow};
use crate::metrics::worker::PathLabel;
use crate::security::authz::{Caller, Right};
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
        let admitted = self.rate_call(&common.sequencer);
        let call = match admitted.and_then(|()| self.admit_call(common, request)) {
            Ok(method) => {
                // Only timestamps need a token for each message. A longer header has no token.
                let is_kept =
                    |it: &&HeaderValue| method == Method::Tso && it.len() <= AUTHORIZATION_LEN_MAX;
                let authorization = request.headers().get(AUTHORIZATION).filter(is_kept);
                Call::new(id, method, authorization.map_or(Vec::new(), |it| it.as_bytes().to_vec()))
            }
            Err(status) => {
                // The method does not matter, because the call ends at once.
                self.calls.begin(Call::new(id, Method::Health, Vec::new()));
                return self.end_call(&common.sequencer, line, id, &status);
            }
        };
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
        let (sequencer, queue) = (&common.sequencer, &mut line.queue);
        let caller = self.state.caller();
        let received = self.calls.receive(id, payload, counted, |call, message| {
            receive_message(sequencer, queue, &caller, call, message)
        });
        if let Err(status) = received {
            self.end_call(sequencer, line, id, &status);
            return true;
        }
        if !ends {
            self.flush_call(line, id);
            return true;
        }
        if self.calls.end_input(id) {
            const TEXT: &str = "the call ended in the middle of a message";
            let status = Status::fixed(Code::Internal, TEXT, ErrorCode::BadRequest);
            self.end_call(sequencer, line, id, &status);
        } else if let Err(status) = self.answer_single(sequencer, line, id) {
            self.end_call(sequencer, line, id, &status);
        } else {
            self.flush_call(line, id);
        }
        true
    }

    /// Answers a request of a `Tso` call with `count` timestamps from `first` on.
    pub(in crate::front::http2) fn answer_call(
        &mut self,
        common: &Common<Self>,
        id: u32,
        first: Timestamp,
        count: u64,
        out: &mut Vec<u8>,
    ) {
        let view = common.sequencer.view();
        let last = TimestampRange::new(first, count).map(|range| range.last());
        let cluster_id = answers::cluster_id(&view.published);
        let Some((calls, mut sink)) = self.calls_and_sink(out) else { return };
        match (cluster_id, last.and_then(Timestamp::to_compact)) {
            (Ok(cluster_id), Some(last)) => calls.answer(id, &mut sink, |out| {
                let (physical, logical) = (last >> COMPACT_INDEX_BITS, last % COMPACT_INDEXES);
                TsoResponse { cluster_id, count: count as u32, physical, logical }.encode(out);
            }),
            (Err(status), _) => calls.end(id, &status, &mut sink),
            (Ok(_), None) => calls.end(id, &status::WIDE, &mut sink),
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

    /// Ends all calls while the node stops, after the answers to their requests.
    pub(in crate::front::http2) fn close_calls(&mut self, out: &mut Vec<u8>) {
        if let Some((calls, mut sink)) = self.calls_and_sink(out) {
            calls.end_after_answers(&status::STOPPING, &mut sink, |_| true);
        }
    }

    /// Sends what waits for the client's windows. Ends the `Tso` calls of a node that no longer
    /// leads, so that their clients look for the new leader before they ask again.
    pub(in crate::front::http2) fn advance_calls(
        &mut self,
        common: &Common<Self>,
        out: &mut Vec<u8>,
    ) {
        let Some((calls, mut sink)) = self.calls_and_sink(out) else { return };
        calls.flush_all(&mut sink);
        if !common.sequencer.view().is_leading() {
            let refusal = Refusal::now(&common.sequencer, ErrorCode::NotLeader);
            let status = Status::of_refusal(&refusal);
            calls.end_after_answers(&status, &mut sink, |call| call.method == Method::Tso);
        }
    }

    /// Counts a call for the rate of its address, also one that is refused: a client may try tokens.
    fn rate_call(&self, sequencer: &Sequencer) -> Result<(), Status> {
        let rated = Rated::single(sequencer, &self.state);
        rated.map(|_| ()).map_err(|code| {
            let status = Status::of_refusal(&Refusal::now(sequencer, code));
            Status { refusal: Some(code), ..status }
        })
    }

    /// Checks that a call may begin, and returns its method.
    fn admit_call(
        &self,
        common: &Common<Self>,
        request: &HttpRequest<()>,
    ) -> Result<Method, Status> {
        let path = request.uri().path();
        let row = CallRow::of(path).ok_or_else(|| Status::unimplemented(path))?;
        let shared = &common.sequencer.shared;
        let caller = self.state.caller();
        if let Err(reason) = shared.authz.check(row.right, &caller, request.headers()) {
            shared.record_denial(row.right, reason, &caller);
            return Err(Status::of_reason(row.right, reason));
        }
        Ok(row.call)
    }

    /// Answers a call that has one request and one answer. Does nothing for other calls.
    fn answer_single(
        &mut self,
        sequencer: &Sequencer,
        line: &mut Line<Request>,
        id: u32,
    ) -> Result<(), Status> {
        const NONE: Status =
            Status::fixed(Code::Internal, "the call has no request", ErrorCode::BadRequest);
        let is_encrypted = self.state.caller().is_encrypted;
        let Some(call) = self.calls.get(id).filter(|call| call.method != Method::Tso) else {
            return Ok(());
        };
        let (method, request) = (call.method, call.request.take().ok_or(NONE)?);
        let (view, mut content) = (sequencer.view(), Vec::new());
        let published = &view.published;
        match method {
            Method::Members => {
                let cluster_id = answers::cluster_id(published)?;
                answers::check_format(published)?;
                answers::put_members(published, cluster_id, is_encrypted, &mut content);
            }
            Method::ClusterInfo => {
                let cluster_id = answers::cluster_id(published)?;
                answers::check_format(published)?;
                pd::put_cluster_info(&mut content, cluster_id);
            }
            Method::Health => {
                answers::put_health(&request, Leaving::of(sequencer), &mut content)?;
            }
            Method::Tso => unreachable!("its requests are answered one by one"),
        }
        sequencer.metrics().count_answer(PathLabel::Grpc, OK);
        if let Some((calls, mut sink)) = self.calls_and_sink(line.outbox.bytes()) {
            calls.answer(id, &mut sink, |out| out.extend_from_slice(&content));
        }
        Ok(())
    }

    fn flush_call(&mut self, line: &mut Line<Request>, id: u32) {
        if let Some((calls, mut sink)) = self.calls_and_sink(line.outbox.bytes()) {
            calls.flush(id, &mut sink);
        }
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

/// Handles a whole message of a call.
fn receive_message(
    sequencer: &Sequencer,
    queue: &mut Queue<Request>,
    caller: &Caller,
    call: &mut Call,
    message: Message<'_>,
) -> Result<(), Status> {
    if message.is_compressed {
        const TEXT: &str = "compressed messages are not read here; send them as they are";
        return Err(Status::fixed(Code::Unimplemented, TEXT, ErrorCode::Unsupported));
    }
    if call.method != Method::Tso {
        if call.request.replace(message.bytes.to_vec()).is_some() {
            const TEXT: &str = "the call has more than one request";
            return Err(Status::fixed(Code::Internal, TEXT, ErrorCode::BadRequest));
        }
        return Ok(());
    }
    let count = check_tso(sequencer, caller, call, &TsoRequest::decode(message.bytes)?)?;
    call.count_request()?;
    // The length of such an answer does not depend on the count, like that of a range.
    let ask = Ask { count, format: Format::Range, guarantee: None };
    queue.push(Request::of_call(call.id, ask, Interest::Wanted), &[]);
    Ok(())
}

/// Checks a request for timestamps, and returns how many it asks for.
fn check_tso(
    sequencer: &Sequencer,
    caller: &Caller,
    call: &Call,
    request: &TsoRequest,
) -> Result<u64, Status> {
    let (shared, view) = (&sequencer.shared, sequencer.view());
    // The tokens may have changed since the call began.
    if let Err(reason) = shared.authz.check_fast(&call.authorization) {
        shared.record_denial(Right::Timestamps, reason, caller);
        return Err(Status::of_reason(Right::Timestamps, reason));
    }
    let own = answers::cluster_id(&view.published)?;
    if request.cluster_id != own {
        return Err(Status::mismatch(own, request.cluster_id));
    }
    // Another node may not have heard yet that timestamps are compact. It refuses the request later,
    // because it does not lead.
    if view.is_leading() {
        answers::check_format(&view.published)?;
    }
    if !request.is_global {
        const TEXT: &str = "dc_location must be empty or global: there is one order for all places";
        return Err(Status::fixed(Code::InvalidArgument, TEXT, ErrorCode::BadRequest));
    }
    // A follower learns of a new MAX_N later than the leader, so only the leader enforces it.
    let most = if view.is_leading() { shared.max_n() } else { u64::MAX }.min(COMPACT_INDEXES);
    let count = u64::from(request.count);
    if count == 0 || count > most {
        return Err(Status::bad_count(request.count, most));
    }
    Ok(count)
}
