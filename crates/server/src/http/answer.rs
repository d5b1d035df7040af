//! Answers: the headers that every answer carries, and the one-line texts of refusals. Texts may
//! change; statuses, codes and headers are the contract.

use bytes::Bytes;
use epicepoch_wire::http::{ErrorCode, HEADER_CLUSTER, HEADER_ERROR, HEADER_LEADER};
use http::header::{
    ALLOW, ALT_SVC, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName,
    HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::{Response, StatusCode};

use super::body::Body;
use super::query::Format;
use super::route::Methods;
use crate::worker::view::View;

/// An answer of this node.
pub(crate) type Answer = Response<Body>;

/// Seconds after which a refused client may try again: the least that the header can say and
/// mean. An election or a full buffer is over by then.
const RETRY_AFTER_SECONDS: &str = "1";
/// Room for the headers of an answer, so that the map grows only for rare ones.
const HEADERS_EXPECTED: usize = 8;

static CLUSTER: HeaderName = HeaderName::from_static(HEADER_CLUSTER);
static ERROR: HeaderName = HeaderName::from_static(HEADER_ERROR);
static LEADER: HeaderName = HeaderName::from_static(HEADER_LEADER);

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const BINARY: HeaderValue = HeaderValue::from_static("application/octet-stream");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// An answer with the headers that all have.
fn answer(view: &View, status: StatusCode, media_type: HeaderValue, body: Body) -> Answer {
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

/// Timestamps.
pub(crate) fn timestamps(view: &View, format: Format, body: Body) -> Answer {
    let media_type = match format {
        Format::Binary | Format::Range => BINARY,
        Format::Json => JSON,
    };
    answer(view, StatusCode::OK, media_type, body)
}

/// A text of this node's own.
pub(crate) fn text(view: &View, status: StatusCode, text: impl Into<Bytes>) -> Answer {
    answer(view, status, TEXT, Body::Whole(text.into()))
}

/// A JSON document.
pub(crate) fn json(view: &View, document: Bytes) -> Answer {
    answer(view, StatusCode::OK, JSON, Body::Whole(document))
}

/// The metrics.
pub(crate) fn metrics(view: &View, text: String) -> Answer {
    let media_type = HeaderValue::from_static(crate::metrics::CONTENT_TYPE);
    answer(view, StatusCode::OK, media_type, Body::Whole(text.into()))
}

/// A refusal with the usual text of its code. `NOT_LEADER` becomes `NO_LEADER` where the leader
/// is not known any more: a 409 always names somebody to ask.
pub(crate) fn refusal(view: &View, code: ErrorCode) -> Answer {
    match (&view.other_leader, code) {
        (Some(leader), ErrorCode::NotLeader) => {
            let mut answer = refusal_with(view, code, leader.body.clone());
            answer.headers_mut().insert(&LEADER, leader.header.clone());
            answer
        }
        (None, ErrorCode::NotLeader) => {
            let code = ErrorCode::NoLeader;
            refusal_with(view, code, Bytes::from_static(advice(code).as_bytes()))
        }
        (_, code) => refusal_with(view, code, Bytes::from_static(advice(code).as_bytes())),
    }
}

/// A refusal with a text of its own.
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

/// A method that the path does not take.
pub(crate) fn wrong_method(view: &View, methods: Methods) -> Answer {
    let mut answer = refusal(view, ErrorCode::MethodNotAllowed);
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(methods.allowed()));
    answer
}

/// `/ready`: one form for yes and no; only a node that was removed has one word more.
pub(crate) fn ready(view: &View, is_quorum_reached: bool, leaving: Leaving) -> Answer {
    let published = &view.published;
    let leader = published.leader.map_or(0, |node| node.0);
    let node = published.identity.node;
    let mut body = format!("leader={leader} nodeID={node} raftAvailable={is_quorum_reached}");
    let is_ready = view.is_joined() && leader != 0 && is_quorum_reached;
    match leaving {
        Leaving::Removed => {
            body.push_str(" removed=true");
            refusal_with(view, ErrorCode::ShuttingDown, body.into())
        }
        Leaving::ShuttingDown => refusal_with(view, ErrorCode::ShuttingDown, body.into()),
        Leaving::No if is_ready => text(view, StatusCode::OK, body),
        Leaving::No => refusal_with(view, ErrorCode::NotReady, body.into()),
    }
}

/// Whether this node is about to end, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// It is not.
    No,
    /// It was told to stop.
    ShuttingDown,
    /// It was removed from the cluster.
    Removed,
}

impl Leaving {
    /// What clients can do.
    pub(crate) const fn advice(self) -> &'static str {
        match self {
            Self::No | Self::ShuttingDown => advice(ErrorCode::ShuttingDown),
            Self::Removed => "this node was removed from the cluster and stops; ask a member\n",
        }
    }
}

/// `/leader`: a yes only from the node that stamps. A no is always 503, as load balancers expect.
pub(crate) fn leader(view: &View, leaving: Leaving) -> Answer {
    let is_leaving = leaving != Leaving::No;
    if view.is_serving() && !is_leaving {
        return text(view, StatusCode::OK, Bytes::from_static(b"ok"));
    }
    let (code, advice) = match (is_leaving, view.is_leading(), &view.other_leader) {
        (true, _, _) => (ErrorCode::ShuttingDown, leaving.advice()),
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

/// The same answer to a `HEAD` request: its headers tell what a `GET` would have got.
pub(crate) fn without_body(mut answer: Answer) -> Answer {
    if let Some(length) = answer.body().len() {
        answer.headers_mut().insert(CONTENT_LENGTH, length.into());
    }
    *answer.body_mut() = Body::Empty;
    answer
}

/// The same answer, after which the connection ends. HTTP/2 knows no such header.
pub(crate) fn and_close(mut answer: Answer, version: http::Version) -> Answer {
    if version < http::Version::HTTP_2 {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

/// What the client can do, in a line.
const fn advice(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::NotLeader => "not the leader; ask the leader named in epicepoch-leader\n",
        ErrorCode::NoQuorum => "no quorum of the members answered in time; retry\n",
        ErrorCode::NoLeader => "no leader is known, an election is under way; retry\n",
        ErrorCode::Overloaded => {
            "too many requests, in all or from your address; retry later, or ask for several \
             timestamps at once with n\n"
        }
        ErrorCode::BadCount => "bad n; give a whole number from 1 up\n",
        ErrorCode::BadFormat => "format must be binary, range or json\n",
        ErrorCode::BadRequest => "the request was not understood; see the documentation\n",
        ErrorCode::NotFound => {
            "no such path; there are /timestamp /members /leader /ready /up /metrics /admin/members\n"
        }
        ErrorCode::MethodNotAllowed => "wrong method; use one named in Allow\n",
        ErrorCode::ShuttingDown => "this node is stopping; ask another member\n",
        ErrorCode::NotReady => "this node has not joined its cluster yet; retry\n",
        ErrorCode::Internal => "this node cannot answer; its log says why\n",
        ErrorCode::Forbidden => "this is not taken from there, or not over this port\n",
        ErrorCode::Unauthorized => "a token is needed: authorization: Bearer TOKEN\n",
        ErrorCode::Refused => "it cannot be done as things are\n",
        ErrorCode::Busy => "another change is under way; retry\n",
        ErrorCode::NotCaughtUp => "the node is not caught up; retry\n",
        ErrorCode::Unsettled => "whether it was done is not known; look before asking again\n",
        ErrorCode::WrongCluster => "this node is of another cluster; correct the addresses\n",
        ErrorCode::UnsupportedVersion => "no version of the protocol is common; update one end\n",
        ErrorCode::Unsupported => {
            "this node does not know a part of what was asked; ask without it\n"
        }
        // The table may grow; a test holds that no code of today gets here.
        _ => ADVICE_UNKNOWN,
    }
}

const ADVICE_UNKNOWN: &str = "refused; the documentation explains the code in epicepoch-error\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_one_line_of_advice() {
        for code in ErrorCode::ALL {
            assert_ne!(advice(code), ADVICE_UNKNOWN, "{code:?}");
            assert_eq!(advice(code).find('\n'), Some(advice(code).len() - 1), "{code:?}");
        }
    }
}
