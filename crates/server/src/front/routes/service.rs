//! One request: find its route, wait for timestamps if it asks for some, answer. This module does
//! not allocate for `/timestamp`, except in rare cases.

use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use epicepoch_core::sequencer::{self, Outcome};
use epicepoch_wire::Guarantee;
use epicepoch_wire::http::{
    ErrorCode, HEADER_CLUSTER, HEADER_DIRECT, HEADER_PROOF, HEADER_REQUEST_ID, REQUEST_ID_LEN_MAX,
};
use epicepoch_wire::interval::IntervalStamp;
use epicepoch_wire::settings::MAX_N;
use http::header::{ALT_SVC, HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Request, StatusCode, Version};
use http_body::Body as HttpBody;
use hyper::body::Incoming;
use hyper::service::Service;
use tokio::time::timeout;

use super::admin;
use super::admin::Admin;
use super::answer::{self, Answer};
use super::body::Body;
use super::members;
use super::metrics_page;
use super::page;
use super::query::{Ask, BadQuery, Format, IntervalAsk, Limits};
use super::status;
use super::table::{self, Route, Row};
use crate::admin_queue::Denied;
use crate::front::deadlines::{ClientState, InFlight};
use crate::front::pipeline::connection::{OverRate, Rated, settle};
use crate::front::pipeline::refusal::{Leaving, Refusal};
use crate::intervals::Refused;
use crate::metrics::worker::{PathLabel, WorkerMetrics};
use crate::security::authz::{Port, Reason, Right};
use crate::worker::sequencer::{Sequencer, Ticket};
use crate::worker::view::View;

/// At most this many bytes of a request's body are read and ignored; a longer body is refused.
const BODY_LEN_MAX: u64 = 4096;
/// Longest time in which a body must arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

static CLUSTER: HeaderName = HeaderName::from_static(HEADER_CLUSTER);
static PROOF: HeaderName = HeaderName::from_static(HEADER_PROOF);
static REQUEST_ID: HeaderName = HeaderName::from_static(HEADER_REQUEST_ID);

/// Answers the requests of one connection.
#[derive(Clone, Debug)]
pub(crate) struct NodeService {
    sequencer: Rc<Sequencer>,
    client: Rc<ClientState>,
}

impl NodeService {
    /// The service of one client's connection.
    pub(crate) fn new(sequencer: Rc<Sequencer>, client: Rc<ClientState>) -> Self {
        Self { sequencer, client }
    }

    /// Begins to answer a request of any protocol.
    pub(crate) fn answer<B>(&self, request: Request<B>) -> Answering
    where
        B: HttpBody + Unpin + 'static,
    {
        let in_flight = ClientState::begin(&self.client);
        let id = request.headers().get(&REQUEST_ID);
        let request_id = id.filter(|id| id.len() <= REQUEST_ID_LEN_MAX).cloned();
        let step = self.begin(request);
        Answering { step, service: self.clone(), request_id, _in_flight: in_flight }
    }

    fn begin<B>(&self, request: Request<B>) -> Step
    where
        B: HttpBody + Unpin + 'static,
    {
        let checked = self.check(&request);
        if request.body().is_end_stream() {
            return match checked {
                Ok(allowed) => self.route(allowed, &request),
                Err(refusal) => Step::Done(refusal),
            };
        }
        let service = self.clone();
        let version = request.version();
        let (parts, body) = request.into_parts();
        // While the body of a refused request arrives, the node keeps only the refusal.
        let checked = checked.map(|allowed| (allowed, Request::from_parts(parts, ())));
        Step::Reading(Box::pin(async move {
            match (checked, read_and_ignore(body).await) {
                (Ok((allowed, request)), Ok(())) => service.route(allowed, &request),
                (Ok((Allowed { row, .. }, _)), Err(text)) => {
                    let view = service.sequencer.view();
                    let refused = answer::refusal_with(&view, ErrorCode::BadRequest, text.into());
                    service.count(row.label(), &refused, Some(ErrorCode::BadRequest));
                    Step::Done(answer::and_close(refused, version))
                }
                (Err(refused), Ok(())) => Step::Done(refused),
                (Err(refused), Err(_)) => Step::Done(answer::and_close(refused, version)),
            }
        }))
    }

    /// Checks everything about a request that does not need its body: first the rate of its address,
    /// so that bad requests count, too.
    ///
    /// # Errors
    /// The refusal, which is counted.
    #[expect(clippy::result_large_err, reason = "it is passed on at once")]
    fn check<B>(&self, request: &Request<B>) -> Result<Allowed, Answer> {
        let row = Row::of(request.uri().path());
        let label = row.map_or(PathLabel::Other, Row::label);
        let rated = Rated::single(&self.sequencer, &self.client)
            .map_err(|OverRate| self.refuse_over_rate(label))?;
        let request_id = request.headers().get(&REQUEST_ID);
        let view = self.sequencer.view();
        let refuse = |answer, code| {
            self.count(label, &answer, Some(code));
            Err(answer)
        };
        let complaint = if request_id.is_some_and(|id| id.len() > REQUEST_ID_LEN_MAX) {
            Some(format!("epicepoch-request-id is over {REQUEST_ID_LEN_MAX} bytes\n"))
        } else if !names_its_host(request) {
            Some("a request of HTTP/1.1 needs exactly one host header\n".to_owned())
        } else {
            None
        };
        if let Some(text) = complaint {
            let code = ErrorCode::BadRequest;
            return refuse(answer::refusal_with(&view, code, text.into()), code);
        }
        let Some(row) = row else {
            let code = ErrorCode::NotFound;
            return refuse(answer::refusal_with(&view, code, table::advice().into()), code);
        };
        if !row.methods.take(request.method()) {
            let code = ErrorCode::MethodNotAllowed;
            return refuse(answer::wrong_method(&view, row.methods), code);
        }
        let shared = &self.sequencer.shared;
        let caller = &self.client.caller();
        let sent = (request.uri(), request.headers());
        let is_own_name = |name: &str| shared.is_own_name(name, &view.published);
        let authz = &shared.authz;
        let checked = authz
            .check(row.right, caller, request.headers())
            .and_then(|()| authz.check_origin(row.right, caller, sent, is_own_name));
        match checked {
            Ok(()) => Ok(Allowed { rated, row }),
            Err(reason) => Err(self.refuse_right(row.right, label, reason)),
        }
    }

    /// Begins the work of an allowed request whose body has ended.
    fn route<B>(&self, Allowed { rated, row }: Allowed, request: &Request<B>) -> Step {
        let (view, label) = (self.sequencer.view(), row.label());
        match row.route {
            Route::Timestamp => {
                return self.wait_for_timestamps(rated, &view, request);
            }
            Route::Latest => return self.wait_for_latest(rated, &view, request.uri().query()),
            Route::Interval => return self.give_interval(request.uri().query()),
            Route::Admin(admin) => return self.operate(&view, admin, request),
            // Programs that ask for `/` get the list of paths, as from any path that is not there.
            Route::Root if !page::is_wanted(request.headers()) => {
                let code = ErrorCode::NotFound;
                let answer = answer::refusal_with(&view, code, table::advice().into());
                self.count(label, &answer, Some(code));
                return Step::Done(answer);
            }
            Route::Up
            | Route::Ready
            | Route::Leader
            | Route::Members
            | Route::Metrics
            | Route::Status
            | Route::Root
            | Route::Page(_) => {}
        }
        let answer = self.inform(&view, row.route, request.headers());
        self.count(label, &answer, None);
        Step::Done(answer)
    }

    /// Refuses a request for timestamps that a fast path has parsed, but may not answer.
    pub(crate) fn refuse_caller(&self, reason: Reason, request_id: &[u8]) -> Answer {
        let label = PathLabel::Timestamp;
        let mut answer = match Rated::single(&self.sequencer, &self.client) {
            Ok(_) => self.refuse_right(Right::Timestamps, label, reason),
            Err(OverRate) => self.refuse_over_rate(label),
        };
        if let Ok(id) = HeaderValue::from_bytes(request_id)
            && !id.is_empty()
        {
            answer.headers_mut().insert(&REQUEST_ID, id);
        }
        answer
    }

    fn refuse(&self, label: PathLabel, code: ErrorCode) -> Answer {
        self.settled(label, Err(code), Ask::ONE)
    }

    /// Refuses a request because of the rate of its address. The metric of refusals does not count
    /// it.
    fn refuse_over_rate(&self, label: PathLabel) -> Answer {
        let answer = answer::refused(&Refusal::now(&self.sequencer, OverRate::CODE));
        self.count(label, &answer, None);
        answer
    }

    fn refuse_right(&self, right: Right, label: PathLabel, reason: Reason) -> Answer {
        self.sequencer.shared.record_denial(right, reason, &self.client.caller());
        let text = format!("{}\n", reason.advice(right));
        let answer = answer::refusal_with(&self.sequencer.view(), reason.code(), text.into());
        self.count(label, &answer, Some(reason.code()));
        answer
    }

    /// Runs an operator's command: it is parsed at once, and answered when it is done.
    fn operate<B>(&self, view: &View, admin: Admin, request: &Request<B>) -> Step {
        let shared = self.sequencer.shared.clone();
        let order = admin::order(admin, request.uri().query()).and_then(|order| {
            if !view.published.is_joined() {
                let text = "this node has not joined its cluster yet; ask a member";
                return Err(Denied::new(ErrorCode::NotReady, text));
            }
            let named = request.headers().get(&CLUSTER).map(HeaderValue::as_bytes);
            admin::check_cluster(named, &view.published, &shared.config.cluster_name)?;
            Ok(order)
        });
        match order {
            Ok(order) => {
                let service = self.clone();
                Step::Reading(Box::pin(async move {
                    Step::Done(service.operated(admin::carry_out(shared, order).await))
                }))
            }
            Err(denied) => Step::Done(self.operated(Err(denied))),
        }
    }

    fn operated(&self, outcome: Result<serde_json::Value, Denied>) -> Answer {
        let view = self.sequencer.view();
        let (answer, code) = match outcome {
            Ok(document) => (answer::json(&view, format!("{document}\n").into()), None),
            Err(Denied { code: code @ ErrorCode::NotLeader, .. }) => {
                return self.refuse(PathLabel::Admin, code);
            }
            Err(Denied { code, text }) => {
                (answer::refusal_with(&view, code, format!("{text}\n").into()), Some(code))
            }
        };
        self.count(PathLabel::Admin, &answer, code);
        answer
    }

    fn wait_for_timestamps<B>(&self, rated: Rated, view: &View, request: &Request<B>) -> Step {
        let direct = request.headers().get_all(HEADER_DIRECT);
        let may_forward =
            self.sequencer.forwards() && !direct.iter().any(|value| value.as_bytes() == b"1");
        // A follower learns of a new MAX_N a heartbeat after the leader has applied it. So only the
        // leader enforces MAX_N. A follower names the leader, and refuses only counts beyond the
        // highest possible MAX_N.
        // The same holds for the format of timestamps. A node that sends requests on answers in
        // place of the leader, by what it knows.
        let limits = if view.is_leading() || may_forward {
            Limits::of(&self.sequencer.shared)
        } else {
            (*MAX_N.end()).into()
        };
        let ask = match Ask::parse(request.uri().query(), limits) {
            Ok(ask) => ask,
            Err(bad) => return self.refuse_query(PathLabel::Timestamp, view, bad),
        };
        // A node that is behind could not spell a compact timestamp.
        let may_forward = may_forward
            && !ask.format.is_compact()
            && ask.guarantee.unwrap_or(Guarantee::Quorum) == Guarantee::Quorum;
        self.wait(rated, PathLabel::Timestamp, ask, may_forward)
    }

    fn wait_for_latest(&self, rated: Rated, view: &View, query: Option<&str>) -> Step {
        match Ask::parse_latest(query) {
            Ok(ask) => self.wait(rated, PathLabel::Latest, ask, false),
            Err(bad) => self.refuse_query(PathLabel::Latest, view, bad),
        }
    }

    /// Gives interval timestamps. The clock is read after the request has arrived, here or later.
    fn give_interval(&self, query: Option<&str>) -> Step {
        let IntervalAsk { count, is_json } = match IntervalAsk::parse(query) {
            Ok(ask) => ask,
            Err(bad) => {
                return self.refuse_query(PathLabel::Interval, &self.sequencer.view(), bad);
            }
        };
        let service = self.clone();
        Step::Reading(Box::pin(async move {
            let shared = &service.sequencer.shared;
            let outcome = shared.intervals.stamp(&shared.core.published(), count).await;
            Step::Done(service.settled_interval(&outcome, count, is_json))
        }))
    }

    fn settled_interval(
        &self,
        outcome: &Result<IntervalStamp, Refused>,
        count: u64,
        is_json: bool,
    ) -> Answer {
        let view = self.sequencer.view();
        let label = PathLabel::Interval;
        match outcome {
            Ok(stamp) => {
                let body = if is_json {
                    Body::interval_json(stamp, count)
                } else {
                    Body::Whole(Bytes::copy_from_slice(&stamp.to_bytes()))
                };
                let answer = answer::interval(&view, is_json, body);
                self.count(label, &answer, None);
                answer
            }
            Err(refused) => {
                let code = refused.code(&view.published);
                let answer = answer::refusal_with(&view, code, format!("{refused}\n").into());
                self.count(label, &answer, Some(code));
                answer
            }
        }
    }

    fn refuse_query(&self, label: PathLabel, view: &View, bad: BadQuery) -> Step {
        let BadQuery { code, mut text } = bad;
        text.push('\n');
        let answer = answer::refusal_with(view, code, text.into());
        self.count(label, &answer, Some(code));
        Step::Done(answer)
    }

    /// Joins the open batch.
    fn wait(&self, rated: Rated, label: PathLabel, ask: Ask, may_forward: bool) -> Step {
        let default = self.sequencer.shared.guarantee_default();
        let guarantee = ask.guarantee.unwrap_or(default);
        match rated.join(&self.sequencer, guarantee, may_forward, |_| ask.count) {
            Ok(ticket) => Step::Waiting { ticket, label, ask },
            Err(code) => Step::Done(self.refuse(label, code)),
        }
    }

    /// The answer with timestamps in the format that `ask` names, or the refusal.
    fn settled(&self, label: PathLabel, outcome: Outcome, ask: Ask) -> Answer {
        let format = ask.format;
        let count = |it: &WorkerMetrics, status, n| it.count_answers(label, status, n);
        let outcome = outcome.and_then(|answer| self.check_compact(format, answer));
        let is_compact = self.sequencer.shared.is_compact();
        match settle(&self.sequencer, outcome, 1, 0, count) {
            Ok(sequencer::Answer { range, proved_by }) => {
                let body = match format {
                    Format::Binary => Body::list(range),
                    Format::Range => Body::range(&range),
                    Format::Json if label == PathLabel::Latest => {
                        Body::latest_json(range.first(), is_compact)
                    }
                    Format::Json => {
                        Body::json(range, is_compact && range.compact_first().is_some())
                    }
                    Format::U64 => Body::compact_list(range),
                    Format::U64Range => Body::compact_range(&range),
                };
                let mut answer = answer::timestamps(&self.sequencer.view(), format, body);
                if let Some(proof) = ask.shown(proved_by) {
                    let proof = HeaderValue::from_static(proof.name());
                    answer.headers_mut().insert(&PROOF, proof);
                }
                answer
            }
            Err(refusal) => answer::refused(&refusal),
        }
    }

    /// Refuses to give compact timestamps unless they were compact by the setting, and not by chance.
    /// The check comes after a quorum has confirmed that this node leads. So a node that is behind
    /// never says that the cluster gives none.
    fn check_compact(&self, format: Format, answer: sequencer::Answer) -> Outcome {
        let is_right = !format.is_compact() || self.sequencer.shared.gives_compact(&answer.range);
        if is_right { Ok(answer) } else { Err(ErrorCode::NotCompact) }
    }

    /// The answers of the other paths.
    fn inform(&self, view: &View, route: Route, headers: &HeaderMap) -> Answer {
        let shared = &self.sequencer.shared;
        match route {
            Route::Up => answer::text(view, StatusCode::OK, &b"ok"[..]),
            Route::Ready => {
                let (forwards, intervals) = (self.sequencer.forwards(), shared.interval_state());
                let is_available = shared.is_raft_available();
                answer::ready(view, is_available, forwards, self.leaving(), intervals.as_ref())
            }
            Route::Leader => answer::leader(view, self.leaving()),
            Route::Members => {
                let document =
                    members::document(&view.published, &shared.config.cluster_name, shared.build);
                answer::json(view, document)
            }
            Route::Metrics => {
                let metrics = self.sequencer.node_metrics().clone();
                answer::metrics(view, headers, metrics_page::render(metrics, shared.clone()))
            }
            Route::Status => {
                let metrics = self.sequencer.node_metrics();
                answer::json(view, status::document(metrics, shared, self.leaving()))
            }
            Route::Root => page::redirect(view),
            Route::Page(part) => {
                page::answer(view, part, shared.authz.needs_token(Right::Operations))
            }
            Route::Timestamp | Route::Latest | Route::Interval | Route::Admin(_) => {
                unreachable!("they are waited for")
            }
        }
    }

    fn leaving(&self) -> Leaving {
        Leaving::of(&self.sequencer)
    }

    fn count(&self, label: PathLabel, answer: &Answer, refusal: Option<ErrorCode>) {
        let metrics = self.sequencer.metrics();
        metrics.count_answer(label, answer.status().as_u16());
        if let Some(code) = refusal {
            metrics.count_refusal(code);
        }
    }
}

impl Service<Request<Incoming>> for NodeService {
    type Response = Answer;
    type Error = Infallible;
    type Future = Answering;

    fn call(&self, request: Request<Incoming>) -> Answering {
        self.answer(request)
    }
}

/// A request that may have an answer, if its body is acceptable.
struct Allowed {
    rated: Rated,
    row: &'static Row,
}

/// A request that is being answered.
pub(crate) struct Answering {
    step: Step,
    service: NodeService,
    /// Every answer repeats the request id.
    request_id: Option<HeaderValue>,
    _in_flight: InFlight,
}

enum Step {
    Done(Answer),
    Waiting { ticket: Ticket, label: PathLabel, ask: Ask },
    Reading(Pin<Box<dyn Future<Output = Step>>>),
    Taken,
}

impl Future for Answering {
    type Output = Result<Answer, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut answer = loop {
            match &mut self.step {
                Step::Reading(reading) => self.step = ready!(reading.as_mut().poll(context)),
                Step::Waiting { ticket, label, ask } => {
                    let is_forwarded = ticket.is_forwarded();
                    let outcome = ready!(Pin::new(ticket).poll(context));
                    let (label, ask) = (*label, *ask);
                    self.step = Step::Taken;
                    let mut answer = self.service.settled(label, outcome, ask);
                    if is_forwarded && outcome.is_ok() {
                        let headers = answer.headers_mut();
                        for (name, value) in self.service.sequencer.view().forwarded_headers() {
                            headers.insert(name, value);
                        }
                    }
                    break answer;
                }
                Step::Done(_) => {
                    let Step::Done(answer) = std::mem::replace(&mut self.step, Step::Taken) else {
                        unreachable!("it was done a line above")
                    };
                    break answer;
                }
                Step::Taken => unreachable!("an answer is given once"),
            }
        };
        if self.service.client.caller().port == Port::Operations {
            // The port of operators has no HTTP/3 to advertise.
            answer.headers_mut().remove(ALT_SVC);
        }
        if let Some(id) = self.request_id.take() {
            answer.headers_mut().insert(&REQUEST_ID, id);
        }
        Poll::Ready(Ok(answer))
    }
}

/// Whether a request of HTTP/1.1 has exactly one `Host` (RFC 9112, 3.2). Its value does not matter
/// here. Other versions need none.
fn names_its_host<B>(request: &Request<B>) -> bool {
    if request.version() != Version::HTTP_11 {
        return true;
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    hosts.next().is_some() && hosts.next().is_none()
}

/// Reads a body to its end, within limits.
async fn read_and_ignore<B>(mut body: B) -> Result<(), &'static str>
where
    B: HttpBody + Unpin,
{
    const TOO_LONG: &str = "the body is too long; requests here need none\n";
    if body.size_hint().lower() > BODY_LEN_MAX {
        return Err(TOO_LONG);
    }
    let mut length = 0;
    let reading = async {
        while let Some(frame) =
            std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
        {
            let Ok(frame) = frame else { return Err("the body ended early\n") };
            length += frame.data_ref().map_or(0, |data| data.remaining() as u64);
            if length > BODY_LEN_MAX {
                return Err(TOO_LONG);
            }
        }
        Ok(())
    };
    timeout(BODY_TIMEOUT, reading).await.unwrap_or(Err("the body took too long\n"))
}
