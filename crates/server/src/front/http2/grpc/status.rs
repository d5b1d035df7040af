//! How calls end. PD's clients look for words in the text of a status, and not only at its code: at
//! "not leader" and "no leader" they ask for the members at once (`errs.IsLeaderChange` of
//! `github.com/tikv/pd/client`).

use std::borrow::Cow;

use epicepoch_wire::grpc::message::MessageError;
use epicepoch_wire::grpc::protobuf::ProtobufError;
use epicepoch_wire::grpc::status::Code;
use epicepoch_wire::http::ErrorCode;

use crate::front::pipeline::refusal::Refusal;
use crate::security::authz::{Reason, Right};

/// The status of a call that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) code: Code,
    /// One line for people, and for the clients that search it; empty for success.
    pub(super) text: Cow<'static, str>,
    /// The reason under which the metrics still have to count this refusal.
    pub(super) refusal: Option<ErrorCode>,
    /// The leader that the client should ask: its id and its address.
    pub(super) leader: Option<(u64, Box<str>)>,
}

/// The refusal of every method of PD while the cluster gives wide timestamps.
pub(super) const WIDE: Status = Status::fixed(
    Code::FailedPrecondition,
    "this cluster gives timestamps of 16 bytes, and PD's clients need those of 64 bits: set \
     TIMESTAMP_FORMAT=compact first, see the documentation",
    ErrorCode::Unsupported,
);
/// The end of a call whose client has sent all requests.
pub(super) const DONE: Status =
    Status { code: Code::Ok, text: Cow::Borrowed(""), refusal: None, leader: None };
/// The end of open calls while the node stops.
pub(super) const STOPPING: Status = Status::fixed(
    Code::Unavailable,
    "no leader: this node is stopping; ask another member",
    ErrorCode::ShuttingDown,
);
/// The client has begun more requests than this node keeps.
pub(super) const UNFINISHED: Status = Status::fixed(
    Code::ResourceExhausted,
    "unfinished requests of this connection have too many bytes; finish some first",
    ErrorCode::BadRequest,
);
/// A health check is about a service that this node does not have.
pub(super) const NO_SERVICE: Status = Status::fixed(
    Code::NotFound,
    "no such service here; leave the name empty to ask about the node",
    ErrorCode::NotFound,
);

impl Status {
    pub(super) const fn fixed(code: Code, text: &'static str, refusal: ErrorCode) -> Self {
        Self { code, text: Cow::Borrowed(text), refusal: Some(refusal), leader: None }
    }

    pub(super) fn new(code: Code, text: String, refusal: ErrorCode) -> Self {
        Self { code, text: text.into(), refusal: Some(refusal), leader: None }
    }

    /// Why a request for timestamps gets none now.
    pub(super) fn of_refusal(refusal: &Refusal) -> Self {
        let advice = || String::from_utf8_lossy(&refusal.text()).trim_end().to_owned();
        let (code, text) = match refusal.code {
            ErrorCode::NotLeader => {
                (Code::Unavailable, format!("not leader; the leader is at {}", advice()))
            }
            // The leader may have changed, so the client should look for it.
            ErrorCode::NoLeader
            | ErrorCode::NoQuorum
            | ErrorCode::NotReady
            | ErrorCode::ShuttingDown => (Code::Unavailable, format!("no leader: {}", advice())),
            ErrorCode::Overloaded => (Code::ResourceExhausted, advice()),
            ErrorCode::OtherMode | ErrorCode::NotCompact => (Code::FailedPrecondition, advice()),
            ErrorCode::BadCount => (Code::InvalidArgument, advice()),
            _ => (Code::Unavailable, advice()),
        };
        let leader = refusal.leader().zip(refusal.view.published.leader).map(|(leader, node)| {
            (node.0, String::from_utf8_lossy(&leader.body).into_owned().into_boxed_str())
        });
        // The pipeline has counted the refusal.
        Self { code, text: text.into(), refusal: None, leader }
    }

    /// The caller lacks a right.
    pub(super) fn of_reason(right: Right, reason: Reason) -> Self {
        let code = match reason.code() {
            ErrorCode::Unauthorized => Code::Unauthenticated,
            _ => Code::PermissionDenied,
        };
        Self::new(code, reason.advice(right), reason.code())
    }

    /// The method does not exist here, or the setting `switch` would serve it.
    pub(super) fn unimplemented(path: &str, switch: Option<&str>) -> Self {
        let text = match switch {
            Some(switch) => {
                format!("{path} is not served here: set {switch}=on on the nodes, if you want it")
            }
            None => format!(
                "{path} is not served here: this node gives timestamps, and does nothing else"
            ),
        };
        Self::new(Code::Unimplemented, text, ErrorCode::NotFound)
    }

    /// The client speaks to another cluster, in the words of PD.
    pub(super) fn mismatch(own: u64, sent: u64) -> Self {
        let text = format!("mismatch cluster id, need {own} but got {sent}");
        Self::new(Code::FailedPrecondition, text, ErrorCode::WrongCluster)
    }

    /// The client asks for too few or too many timestamps.
    pub(super) fn bad_count(count: u64, most: u64) -> Self {
        let text = format!("count is {count}; give a whole number from 1 to {most}");
        Self::new(Code::InvalidArgument, text, ErrorCode::BadCount)
    }

    fn malformed(text: String) -> Self {
        Self::new(Code::Internal, text, ErrorCode::BadRequest)
    }
}

impl From<MessageError> for Status {
    fn from(error: MessageError) -> Self {
        match error {
            MessageError::TooLong(_) => {
                Self::new(Code::ResourceExhausted, error.to_string(), ErrorCode::BadRequest)
            }
            MessageError::Prefix(_) => Self::malformed(error.to_string()),
        }
    }
}

impl From<ProtobufError> for Status {
    fn from(error: ProtobufError) -> Self {
        Self::malformed(format!("the request cannot be read: {error}"))
    }
}
