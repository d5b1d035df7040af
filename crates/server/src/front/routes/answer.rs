//! Answers: the headers that every answer carries, and the one-line texts of refusals. Texts may
//! change; clients may rely on statuses, codes and headers.

use std::fmt::Write as _;

use bytes::Bytes;
use epicepoch_core::publication::Published;
use epicepoch_wire::Mode;
use epicepoch_wire::exposition::Exposition;
use epicepoch_wire::http::{ErrorCode, HEADER_CLUSTER, HEADER_ERROR, HEADER_LEADER};
use http::header::{
    ACCEPT, ALLOW, ALT_SVC, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap,
    HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::{Response, StatusCode};

use super::body::Body;
use super::query::Format;
use super::table::Methods;
use crate::front::pipeline::refusal::{Leaving, Refusal, advice};
use crate::intervals::IntervalState;
use crate::worker::view::View;

/// An answer of this node.
pub(crate) type Answer = Response<Body>;

/// Seconds after which a refused client may try again: the lowest useful value of the header. An
/// election or a full buffer is over by then.
const RETRY_AFTER_SECONDS: &str = "1";
/// Expected number of headers in an answer. Only rare answers have more, and make the map grow.
const HEADERS_EXPECTED: usize = 8;

static CLUSTER: HeaderName = HeaderName::from_static(HEADER_CLUSTER);
static ERROR: HeaderName = HeaderName::from_static(HEADER_ERROR);
static LEADER: HeaderName = HeaderName::from_static(HEADER_LEADER);

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const BINARY: HeaderValue = HeaderValue::from_static("application/octet-stream");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// An answer with the headers that all answers have.
pub(super) fn answer(
    view: &View,
    status: StatusCode,
    media_type: HeaderValue,
    body: Body,
) -> Answer {
    let mut headers = HeaderMap::with_capacity(HEADERS_EXPECTED);
    headers.insert(CONTENT_TYPE, media_type);
    headers.insert(CACHE_CONTROL, NO_STORE);
    headers.insert(&CLUSTER, view.cluster.clone());
    if let Some(alt_svc) = &view.alt_svc {
        headers.insert(ALT_SVC, alt_svc.clone());
    }
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    *answer.headers_mut() = headers;
    answer
}

/// An answer with timestamps.
pub(crate) fn timestamps(view: &View, format: Format, body: Body) -> Answer {
    let media_type = match format {
        Format::Binary | Format::Range | Format::U64 | Format::U64Range => BINARY,
        Format::Json => JSON,
    };
    answer(view, StatusCode::OK, media_type, body)
}

/// An answer with a plain text.
pub(crate) fn text(view: &View, status: StatusCode, text: impl Into<Bytes>) -> Answer {
    answer(view, status, TEXT, Body::Whole(text.into()))
}

/// An answer with a JSON document.
pub(crate) fn json(view: &View, document: Bytes) -> Answer {
    answer(view, StatusCode::OK, JSON, Body::Whole(document))
}

/// The answer with a page of metrics, in the format that `headers` ask for.
pub(crate) fn metrics(view: &View, headers: &HeaderMap, page: String) -> Answer {
    let accept = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = Exposition::preferred(accept);
    let media_type = HeaderValue::from_static(format.media_type());
    answer(view, StatusCode::OK, media_type, Body::Whole(format.of(page).into()))
}

/// An answer with interval timestamps.
pub(crate) fn interval(view: &View, is_json: bool, body: Body) -> Answer {
    answer(view, StatusCode::OK, if is_json { JSON } else { BINARY }, body)
}

/// A refusal of a request for timestamps, with the same text in every protocol.
pub(crate) fn refused(refusal: &Refusal) -> Answer {
    let mut answer = refusal_with(&refusal.view, refusal.code, refusal.text());
    if let Some(leader) = refusal.leader() {
        answer.headers_mut().insert(&LEADER, leader.header.clone());
    }
    answer
}

/// A refusal with the usual text of its code.
pub(crate) fn refusal(view: &View, code: ErrorCode) -> Answer {
    refusal_with(view, code, Bytes::from_static(advice(code).as_bytes()))
}

/// A refusal with the given text.
pub(crate) fn refusal_with(view: &View, code: ErrorCode, text: Bytes) -> Answer {
    let status = StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut answer = answer(view, status, TEXT, Body::Whole(text));
    let headers = answer.headers_mut();
    headers.insert(&ERROR, HeaderValue::from_static(code.name()));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
    }
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    answer
}

/// The refusal of a method that the path does not allow.
pub(crate) fn wrong_method(view: &View, methods: Methods) -> Answer {
    let mut answer = refusal(view, ErrorCode::MethodNotAllowed);
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(methods.allowed()));
    answer
}

/// Whether a node that is not about to end is ready. In interval mode it needs no leader, and has to
/// be certain of the time.
pub(super) fn is_ready(
    published: &Published,
    is_quorum_reached: bool,
    intervals: Option<&IntervalState>,
) -> bool {
    let may_answer = match intervals {
        None => published.leader.is_some() && is_quorum_reached,
        Some(state) => state.refusal.is_none(),
    };
    published.is_joined() && may_answer
}

/// The answer of `/ready`. Its text has the same form for yes and no. A node that sends requests on
/// to the leader adds `forwards=true`, and a removed one `removed=true`. In interval mode, a node is
/// ready if it is certain of the time. It needs no leader for that, and says with which bound, or why
/// it refuses.
pub(crate) fn ready(
    view: &View,
    is_quorum_reached: bool,
    forwards: bool,
    leaving: Leaving,
    intervals: Option<&IntervalState>,
) -> Answer {
    let published = &view.published;
    let leader = published.leader.map_or(0, |node| node.0);
    let node = published.identity.node;
    let mut body = format!("leader={leader} nodeID={node} raftAvailable={is_quorum_reached}");
    if let Some(state) = intervals {
        let _infallible = match (&state.refusal, state.bound_ns) {
            (None, bound_ns) => {
                write!(body, " interval=certain boundNs={}", bound_ns.unwrap_or_default())
            }
            (Some(refusal), _) => write!(body, " interval=uncertain ({refusal})"),
        };
    } else if forwards {
        body.push_str(" forwards=true");
    }
    match leaving {
        Leaving::Removed => {
            body.push_str(" removed=true");
            refusal_with(view, ErrorCode::ShuttingDown, body.into())
        }
        Leaving::ShuttingDown => refusal_with(view, ErrorCode::ShuttingDown, body.into()),
        Leaving::No if is_ready(published, is_quorum_reached, intervals) => {
            text(view, StatusCode::OK, body)
        }
        Leaving::No => refusal_with(view, ErrorCode::NotReady, body.into()),
    }
}

/// The answer of `/leader`: 200 only from a leader with a grant. Every other answer is a 503, as
/// load balancers expect.
pub(crate) fn leader(view: &View, leaving: Leaving) -> Answer {
    let is_leaving = leaving != Leaving::No;
    if view.is_serving() && !is_leaving {
        return text(view, StatusCode::OK, Bytes::from_static(b"ok"));
    }
    let (code, advice) = match (is_leaving, view.is_leading(), &view.other_leader) {
        (true, _, _) => (ErrorCode::ShuttingDown, leaving.advice()),
        (false, ..) if view.published.mode == Mode::Interval => {
            (ErrorCode::OtherMode, advice(ErrorCode::OtherMode))
        }
        (false, true, _) => (ErrorCode::NotReady, "elected, but not serving yet; retry\n"),
        (false, false, Some(_)) => {
            (ErrorCode::NotLeader, "not the leader; see the epicepoch-leader header\n")
        }
        (false, false, None) => (ErrorCode::NoLeader, advice(ErrorCode::NoLeader)),
    };
    let mut answer = refusal_with(view, code, Bytes::from_static(advice.as_bytes()));
    *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    let headers = answer.headers_mut();
    headers.insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
    if let Some(leader) = &view.other_leader {
        headers.insert(&LEADER, leader.header.clone());
    }
    answer
}

/// The same answer for a `HEAD` request: the headers of the `GET`, without the body.
pub(crate) fn without_body(mut answer: Answer) -> Answer {
    if let Some(length) = answer.body().len() {
        answer.headers_mut().insert(CONTENT_LENGTH, length.into());
    }
    *answer.body_mut() = Body::Empty;
    answer
}

/// The same answer, with a header that ends the connection. HTTP/2 has no such header.
pub(crate) fn and_close(mut answer: Answer, version: http::Version) -> Answer {
    if version < http::Version::HTTP_2 {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}
