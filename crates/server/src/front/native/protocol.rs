//! The native protocol in the request pipeline: a hello, then requests and pings. Each answer
//! carries the id of its request. So a refusal need not wait for earlier requests.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Context;

use epicepoch_core::sequencer::LATEST;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::client_hello::MemberAddr;
use epicepoch_wire::native::message::{goodbye, pong};
use epicepoch_wire::native::{
    ANSWER_LEN, ClientHello, ClientHelloError, ErrorFrame, FEATURE_CHECKED_CERTIFICATES,
    FEATURE_CHECKED_TOKENS, FEATURE_DIRECT, Frame, HEADER_LEN, IntervalRequest, LeaderNotice,
    Request, TO_SERVER_TAIL_LEN_MAX, ToServer, Token, split,
};
use epicepoch_wire::{Guarantee, NodeId, ProvedBy, TimestampFormat, TimestampRange};

use super::welcome;
use crate::front::deadlines::ClientState;
use crate::front::pipeline::connection::{OverRate, Rated};
use crate::front::pipeline::protocol::{Common, Line, Protocol, Stage};
use crate::front::pipeline::queue::{Answers, Queue, Refused, Waiting};
use crate::front::pipeline::refusal::Refusal;
use crate::metrics::worker::WorkerMetrics;
use crate::security::authz::Right;
use crate::shared::NodeShared;
use crate::worker::sequencer::Sequencer;

/// At most this many requests of one connection are read but not answered yet. Further requests
/// wait in the socket. The limit is enough for the pipeline of a busy client. Eight such clients
/// together stay below the default of `TIMESTAMP_REQUEST_BUFFER`.
const IN_FLIGHT_MAX: usize = 1024;
/// At most this many requests of a node that sends requests on are answered at once, over each of
/// its connections; more are refused. Its clients share them, so no rate limits it. A forwarder sends
/// four.
const FORWARDED_IN_FLIGHT_MAX: usize = 16;
/// The node stops reading from a client at this many bytes of waiting answers.
const OUTBOX_LEN_MAX: usize = 64 << 10;

/// The state that the native connections of one worker share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Grows by one when another leader becomes known.
    leader_changes: Cell<u64>,
    leader: RefCell<Option<MemberAddr>>,
    connections: Cell<u64>,
}

impl Common<Native> {
    /// Reads the latest publication. Returns whether connections must be told of another leader.
    pub(crate) fn follow_publication(&self) -> bool {
        let leader = welcome::leader(&self.sequencer.view().published);
        if leader == *self.shared.leader.borrow() {
            return false;
        }
        *self.shared.leader.borrow_mut() = leader;
        self.shared.leader_changes.set(self.shared.leader_changes.get() + 1);
        self.shared.connections.get() > 0
    }

    /// Grows each time the tokens that give timestamps have changed.
    fn tokens_version(&self) -> u64 {
        self.sequencer.shared.authz.timestamps_version()
    }

    fn count_connection(&self, change: impl FnOnce(u64) -> u64) {
        let connections = change(self.shared.connections.get());
        self.shared.connections.set(connections);
        self.sequencer.metrics().native_connections.set(connections);
    }
}

/// The state of one native connection in the pipeline.
pub(crate) struct Native {
    common: Rc<Common<Self>>,
    state: Rc<ClientState>,
    /// Whether the hello was accepted.
    is_welcome: bool,
    /// The frame that follows the last answer when the connection ends.
    last_frame: Vec<u8>,
    /// The value of [`Shared`]'s `leader_changes` when the client was last told of a leader.
    leader_changes: u64,
    /// The guarantee that the hello has named for all requests of the connection.
    guarantee: Option<Guarantee>,
    /// The node at the other end, if it sends requests on and has shown its certificate.
    forwarder: Option<NodeId>,
    /// The features of the hello.
    features: u64,
    /// Whether the hello has said that all timestamps must be compact.
    needs_compact: bool,
    /// The token of the hello, and the version of the token file against which it was last checked.
    token: Option<Token>,
    tokens_seen: u64,
}

const _: () = assert!(Request::latest(0).count() == LATEST);

impl Waiting for Request {
    const MAY_ASK_FOR_LATEST: bool = true;

    /// 0, which is [`LATEST`], for the latest timestamp.
    #[inline]
    fn count(&self) -> u64 {
        Request::count(self)
    }
}

impl Protocol for Native {
    type Request = Request;
    type Shared = Shared;

    const QUEUE_LEN_MAX: usize = IN_FLIGHT_MAX;
    /// Bytes of as many requests as may be in flight.
    const READ_LEN_MAX: usize = Self::QUEUE_LEN_MAX * HEADER_LEN;
    const WAITS_FOR_ADMISSION: bool = false;

    fn share(sequencer: &Rc<Sequencer>) -> Shared {
        Shared {
            leader_changes: Cell::default(),
            leader: RefCell::new(welcome::leader(&sequencer.view().published)),
            connections: Cell::default(),
        }
    }

    fn begin(common: &Rc<Common<Self>>, state: &Rc<ClientState>) -> Self {
        state.begin_hello();
        common.count_connection(|count| count + 1);
        Self {
            common: common.clone(),
            state: state.clone(),
            is_welcome: false,
            last_frame: Vec::new(),
            leader_changes: common.shared.leader_changes.get(),
            guarantee: None,
            forwarder: state.forwarder(),
            features: 0,
            needs_compact: false,
            token: None,
            tokens_seen: common.tokens_version(),
        }
    }

    /// One read holds at most as many requests as may be in flight, so all of them are accepted.
    #[inline]
    fn read_allowance(&self, line: &Line<Request>) -> usize {
        if line.outbox.len() > OUTBOX_LEN_MAX {
            return 0;
        }
        (Self::QUEUE_LEN_MAX - line.queue.len()) * HEADER_LEN
    }

    #[inline]
    fn receive<'a>(
        &mut self,
        common: &Common<Self>,
        line: &mut Line<Request>,
        bytes: &'a [u8],
        _: usize,
    ) -> &'a [u8] {
        let mut rest = bytes;
        if self.is_welcome && (self.tokens_seen != common.tokens_version() || self.is_removed()) {
            self.tokens_seen = common.tokens_version();
            self.admit(line);
        }
        while line.stage == Stage::Open {
            // Requests that were sent on are looked at one by one ([`Self::take_forwarded`]).
            if self.is_welcome && self.forwarder.is_none() {
                while let Some((head, behind)) = rest.split_first_chunk()
                    && let Some(request) = Request::from_bytes(head)
                {
                    line.queue.push(request, &[]);
                    rest = behind;
                }
            }
            match split(rest, TO_SERVER_TAIL_LEN_MAX) {
                Ok(None) => break,
                Ok(Some(frame)) => {
                    self.handle(line, &frame);
                    rest = &rest[frame.len()..];
                }
                Err(error) => self.refuse_protocol(line, 0, &error.into()),
            }
        }
        rest
    }

    /// The client sends no more, but may still read.
    fn end_input(&mut self, line: &mut Line<Request>) {
        line.state.record_end();
        line.stage = Stage::Ending;
    }

    #[inline]
    fn guarantee(&self, _: &Queue<Request>, default: Guarantee) -> Guarantee {
        self.guarantee.unwrap_or(default)
    }

    #[inline]
    fn may_forward(&self, queue: &Queue<Request>) -> bool {
        !self.is_direct() && !self.needs_compact && queue.may_forward()
    }

    #[inline]
    fn check(
        &self,
        common: &Common<Self>,
        _: &Queue<Request>,
        _: usize,
        range: &TimestampRange,
    ) -> Result<u64, ErrorCode> {
        if self.needs_compact && !common.sequencer.shared.gives_compact(range) {
            return Err(ErrorCode::NotCompact);
        }
        Ok(0)
    }

    #[inline]
    fn answer(&mut self, _: &Common<Self>, answers: Answers<'_, Request>, out: &mut Vec<u8>) {
        out.reserve(answers.len() * ANSWER_LEN);
        if self.guarantee.is_some() && answers.proved_by() == ProvedBy::Lease {
            let by_lease =
                |request: Request, first| request.answer_proved_by(first, ProvedBy::Lease);
            return answers.each(|it, _, first| out.extend_from_slice(&by_lease(it, first)));
        }
        answers.each(|request, _, first| out.extend_from_slice(&request.answer(first)));
    }

    fn refuse(
        &mut self,
        _: &Common<Self>,
        refused: Refused<'_, Request>,
        refusal: &Refusal,
        out: &mut Vec<u8>,
    ) {
        // If no leader is known, the text is empty, because the code is enough.
        let leader = refusal.leader().and_then(|leader| std::str::from_utf8(&leader.body).ok());
        let (code, text) = (refusal.code as u16, leader.unwrap_or(""));
        refused.each(|request, _| {
            ErrorFrame { code, closes: false, id: request.id, text }.encode(out);
        });
    }

    fn count(metrics: &WorkerMetrics, status: u16, requests: u64, _: u64) {
        let counted =
            if status == 200 { &metrics.native_answers } else { &metrics.native_refusals };
        counted.add_alone(requests);
    }

    /// A goodbye follows the last answer.
    fn close(&mut self, line: &mut Line<Request>) {
        if self.is_welcome && line.stage == Stage::Open {
            self.last_frame.extend_from_slice(&goodbye());
        }
        line.stop();
    }

    /// Tells the client of another leader.
    #[inline]
    fn advance(
        &mut self,
        common: &Common<Self>,
        line: &mut Line<Request>,
        _: &mut Context<'_>,
    ) -> bool {
        let changes = common.shared.leader_changes.get();
        if self.leader_changes == changes || !self.is_welcome || line.stage != Stage::Open {
            return false;
        }
        self.leader_changes = changes;
        let leader = common.shared.leader.borrow();
        let leader = leader.as_ref().map(|leader| (leader.node, leader.addr.as_str()));
        let (node, addr) = leader.unwrap_or((NodeId(0), ""));
        LeaderNotice { node, addr }.encode(line.outbox.bytes());
        false
    }

    fn end_output(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.last_frame);
    }
}

impl Native {
    /// Handles every frame except a request that [`Request::from_bytes`] reads.
    fn handle(&mut self, line: &mut Line<Request>, frame: &Frame<'_>) {
        let id = frame.header.id;
        let message = match ToServer::decode(frame) {
            Ok(message) => message,
            Err(error) => {
                let id = if self.is_welcome { id } else { 0 };
                return self.refuse_protocol(line, id, &error);
            }
        };
        match message {
            ToServer::ClientHello(hello) if !self.is_welcome => self.handle_hello(line, hello),
            ToServer::ClientHello(_) => {
                let text = "a hello is only the first frame";
                self.send_away(line, 0, (ErrorCode::BadRequest, text));
            }
            _ if !self.is_welcome => {
                let text = "a connection begins with a hello";
                self.send_away(line, 0, (ErrorCode::BadRequest, text));
            }
            ToServer::Request(request) if self.forwarder.is_some() => {
                self.take_forwarded(line, request);
            }
            ToServer::Interval(request) if self.forwarder.is_some() => {
                self.refuse_request(line, request.id, ErrorCode::Unsupported);
            }
            ToServer::Request(request) => line.queue.push(request, &[]),
            ToServer::Interval(request) => self.give_interval(line, request),
            ToServer::Ping(id) => line.outbox.bytes().extend_from_slice(&pong(id)),
            ToServer::Pong(_) => {}
            ToServer::Unknown { id } => {
                let code = ErrorCode::Unsupported;
                let frame = ErrorFrame { code: code as u16, closes: false, id, text: "" };
                frame.encode(line.outbox.bytes());
                self.common.sequencer.metrics().count_refusal(code);
            }
        }
    }

    /// Accepts a request of a node that sends requests on. The node has the right to timestamps that
    /// a round proves, and to nothing else.
    fn take_forwarded(&self, line: &mut Line<Request>, request: Request) {
        if request.count() == LATEST {
            self.refuse_request(line, request.id, ErrorCode::Unsupported);
        } else if line.queue.len() >= FORWARDED_IN_FLIGHT_MAX {
            self.refuse_request(line, request.id, ErrorCode::Overloaded);
        } else {
            line.queue.push(request, &[]);
        }
    }

    /// Refuses one request at once. The connection goes on.
    fn refuse_request(&self, line: &mut Line<Request>, id: u64, code: ErrorCode) {
        self.common.sequencer.metrics().count_refusal(code);
        self.put_refusal(line, id, code);
    }

    /// Refuses one request, without counting its code.
    fn put_refusal(&self, line: &mut Line<Request>, id: u64, code: ErrorCode) {
        self.common.sequencer.metrics().native_refusals.add_alone(1);
        let frame = ErrorFrame { code: code as u16, closes: false, id, text: "" };
        frame.encode(line.outbox.bytes());
    }

    /// Answers a request for interval timestamps at once. If their mark is not on the disk yet, it is on
    /// its way, and the client sends the request again.
    fn give_interval(&self, line: &mut Line<Request>, request: IntervalRequest) {
        let sequencer = &self.common.sequencer;
        let shared = &sequencer.shared;
        let published = shared.core.published();
        if let Err(OverRate) = Rated::single(sequencer, &self.state) {
            return self.put_refusal(line, request.id, OverRate::CODE);
        }
        let outcome = shared.intervals.stamp_at_once(&published, request.count());
        let outcome = outcome.map_err(|refused| refused.code(&published));
        let answer = |stamp| request.answer(&stamp).ok_or(ErrorCode::Uncertain);
        let code = match outcome.and_then(answer) {
            Ok(answer) => {
                sequencer.metrics().native_answers.add_alone(1);
                return line.outbox.bytes().extend_from_slice(&answer);
            }
            Err(code) => code,
        };
        self.refuse_request(line, request.id, code);
    }

    fn handle_hello(&mut self, line: &mut Line<Request>, hello: ClientHello) {
        let common = self.common.clone();
        let sequencer = &common.sequencer;
        let view = sequencer.view();
        let cluster_name = &sequencer.shared.config.cluster_name;
        let checked = welcome::check(&hello, &view.published, cluster_name);
        self.token = hello.token;
        self.guarantee = hello.guarantee;
        let mut in_flight_max = IN_FLIGHT_MAX;
        self.features = hello.features;
        self.needs_compact = hello.timestamp_format == Some(TimestampFormat::Compact);
        if !self.admit(line) {
            return;
        }
        if let Err(reason) = checked {
            return self.send_away(line, 0, reason);
        }
        if self.forwarder.is_some() {
            if self.guarantee.replace(Guarantee::Quorum) == Some(Guarantee::Lease) {
                let text = "a round proves what is given to a node that sends requests on";
                return self.send_away(line, 0, (ErrorCode::Unsupported, text));
            }
            in_flight_max = FORWARDED_IN_FLIGHT_MAX;
        }
        tracing::debug!(agent = hello.agent, "a native client");
        let idle_ms = sequencer.shared.config.limits.idle_timeout.as_millis() as u32;
        welcome::welcome(hello.features, &view.published, cluster_name, in_flight_max, idle_ms)
            .encode(line.outbox.bytes());
        self.is_welcome = true;
        self.state.end_hello();
    }

    /// Checks that the client may get timestamps. If not, the connection ends.
    fn admit(&mut self, line: &mut Line<Request>) -> bool {
        let (shared, caller) = (&self.common.sequencer.shared, self.state.caller());
        let (right, checked) = if self.forwarder.is_some() {
            let has_checked = self.has_checked(shared);
            let is_member = !self.is_removed();
            (Right::Peer, shared.authz.check_forwarder(&caller, is_member, has_checked))
        } else {
            let token = self.token.as_ref().map(|token| token.reveal().as_bytes());
            (Right::Timestamps, shared.authz.check_native(&caller, token))
        };
        let Err(reason) = checked else { return true };
        shared.record_denial(right, reason, &caller);
        self.send_away(line, 0, (reason.code(), &reason.advice(right)));
        false
    }

    /// Whether a node that sends requests on has checked its clients as this node checks its own.
    fn has_checked(&self, shared: &NodeShared) -> bool {
        let needs_tokens = shared.authz.needs_token(Right::Timestamps);
        let needs_certificates = shared.tls.as_ref().is_some_and(|tls| tls.roots.is_some());
        let has = |feature| self.features & feature != 0;
        (!needs_tokens || has(FEATURE_CHECKED_TOKENS))
            && (!needs_certificates || has(FEATURE_CHECKED_CERTIFICATES))
    }

    /// Whether the other end is a node that is no member any more.
    fn is_removed(&self) -> bool {
        let Some(node) = self.forwarder else { return false };
        !self.common.sequencer.view().published.members.contains_key(&node)
    }

    /// Whether the client can follow, or forwards itself (S22).
    fn is_direct(&self) -> bool {
        self.features & FEATURE_DIRECT != 0 || self.forwarder.is_some()
    }

    fn refuse_protocol(&mut self, line: &mut Line<Request>, id: u64, error: &ClientHelloError) {
        tracing::debug!(%error, "a native client broke the protocol");
        self.send_away(line, id, welcome::protocol_error(error));
    }

    /// Ends the connection with a reason, which follows the answers to earlier requests.
    fn send_away(&mut self, line: &mut Line<Request>, id: u64, (code, text): (ErrorCode, &str)) {
        ErrorFrame { code: code as u16, closes: true, id, text }.encode(&mut self.last_frame);
        self.common.sequencer.metrics().count_refusal(code);
        line.stage = Stage::Ending;
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        self.common.count_connection(|count| count - 1);
    }
}
