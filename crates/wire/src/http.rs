//! Names of the HTTP interface: paths, headers, error codes. It never parses HTTP.
//!
//! Servers, clients and tests share this one table, so that a code cannot mean two things.

use std::fmt;

use crate::id::{ClusterId, HistoryId};

/// Answers `ok` once the server runs.
pub const PATH_UP: &str = "/up";
/// Answers 200 when the node has joined and knows a leader.
pub const PATH_READY: &str = "/ready";
/// Answers 200 only on a leader that holds a grant.
pub const PATH_LEADER: &str = "/leader";
/// Hands out timestamps.
pub const PATH_TIMESTAMP: &str = "/timestamp";
/// Says which timestamp is the latest, and takes none.
pub const PATH_LATEST: &str = "/latest";
/// Hands out timestamps with an interval that holds true time, in interval mode.
pub const PATH_INTERVAL: &str = "/interval";
/// Lists the members and the leader.
pub const PATH_MEMBERS: &str = "/members";
/// Alias of [`PATH_MEMBERS`].
pub const PATH_MEMBERSHIP: &str = "/membership";
/// Prometheus text.
pub const PATH_METRICS: &str = "/metrics";
/// What a node knows of itself and of the other members, for operators.
pub const PATH_STATUS: &str = "/status";
/// Leads browsers to [`PATH_PAGE`].
pub const PATH_ROOT: &str = "/";
/// The page for operators.
pub const PATH_PAGE: &str = "/ui";
/// The program of the page.
pub const PATH_PAGE_PROGRAM: &str = "/ui/page.js";
/// The style of the page.
pub const PATH_PAGE_STYLE: &str = "/ui/page.css";
/// The icon of the page.
pub const PATH_PAGE_ICON: &str = "/ui/icon.svg";
/// Lists the members as the leader knows them, for operators.
pub const PATH_ADMIN_MEMBERS: &str = "/admin/members";
/// Admits a node as a learner.
pub const PATH_ADMIN_ADD: &str = "/admin/members/add";
/// Makes a learner a voter.
pub const PATH_ADMIN_PROMOTE: &str = "/admin/members/promote";
/// Removes a member for ever.
pub const PATH_ADMIN_REMOVE: &str = "/admin/members/remove";
/// Shows the clock of the node, for operators.
pub const PATH_ADMIN_CLOCK: &str = "/admin/clock";
/// Shows what an advance of the epoch would do. It changes nothing.
pub const PATH_ADMIN_ADVANCE_PLAN: &str = "/admin/clock/plan";
/// Advances the epoch: every later answer is above the requested epoch.
pub const PATH_ADMIN_ADVANCE: &str = "/admin/clock/advance";
/// Returns a backup of the state that the node has applied.
pub const PATH_ADMIN_BACKUP: &str = "/admin/backup";
/// Shows the settings of the cluster, for operators.
pub const PATH_ADMIN_SETTINGS: &str = "/admin/settings";
/// Changes settings of the cluster.
pub const PATH_ADMIN_SET: &str = "/admin/settings/set";
/// Hands leadership to another voter.
pub const PATH_ADMIN_TRANSFER: &str = "/admin/leader/transfer";

/// Every answer has this header, with the cluster id and the history id; see [`cluster_header`].
pub const HEADER_CLUSTER: &str = "epicepoch-cluster";
/// Every answer that is an error has this header, with the stable code of the error; see
/// [`ErrorCode::name`].
pub const HEADER_ERROR: &str = "epicepoch-error";
/// An answer with the error `NOT_LEADER`, and one that was forwarded, has this header, with the
/// client address of the leader.
pub const HEADER_LEADER: &str = "epicepoch-leader";
/// A client that can follow to the leader sends this header with the value `1`. Its requests are
/// never forwarded.
pub const HEADER_DIRECT: &str = "epicepoch-direct";
/// An answer that the leader has given through another node has this header, with the id of that
/// node.
pub const HEADER_FORWARDED: &str = "epicepoch-forwarded";
/// Required, with any value, on every request that changes something at an `/admin` path. A web
/// page cannot send this header to another site.
pub const HEADER_ADMIN: &str = "epicepoch-admin";
/// A client may send this header with any value. The answer repeats the value.
pub const HEADER_REQUEST_ID: &str = "epicepoch-request-id";

/// An answer to a request that names a guarantee has this header, with what has proved the answer:
/// see [`ProvedBy::name`](crate::ProvedBy::name).
pub const HEADER_PROOF: &str = "epicepoch-proof";

/// Largest `n` of `format=range`, timestamps.
pub const RANGE_COUNT_MAX: u64 = 1 << 32;
/// Longest `epicepoch-request-id`, bytes; longer ones are refused with `BAD_REQUEST`.
pub const REQUEST_ID_LEN_MAX: usize = 128;

/// Returns the value of [`HEADER_CLUSTER`]: cluster id, a dot, history id. Both ids are
/// hexadecimal.
#[must_use]
pub fn cluster_header(cluster: ClusterId, history: HistoryId) -> String {
    format!("{cluster}.{:016x}", history.0)
}

/// Why a request was refused. The number and the name are stable for ever; texts may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u16)]
pub enum ErrorCode {
    /// Ask the leader named in `epicepoch-leader`.
    NotLeader = 1,
    /// A quorum did not answer in time. Retry at the same node after `Retry-After`.
    NoQuorum = 2,
    /// An election is under way. Retry after `Retry-After`, at the same node or at another member.
    NoLeader = 3,
    /// The wait queue is full. Retry after `Retry-After`, with fewer requests at the same time.
    Overloaded = 4,
    /// Correct the parameter `n`: it is not a number, is out of range, or is given twice.
    BadCount = 5,
    /// Correct `format`: `binary`, `range`, `json`, `u64` or `u64range`.
    BadFormat = 6,
    /// Correct the request; the body says what is wrong.
    BadRequest = 7,
    /// Use one of the documented paths.
    NotFound = 8,
    /// Use the method named in `Allow`.
    MethodNotAllowed = 9,
    /// Connect to another member: this node is about to exit.
    ShuttingDown = 10,
    /// Retry later: the node has not joined its cluster yet.
    NotReady = 11,
    /// Do not retry: the node stopped serving, its log says why.
    Internal = 12,
    /// Send the request from an allowed address over an allowed port. A change also needs the
    /// header `epicepoch-admin`. The body says what is missing.
    Forbidden = 13,
    /// The request is impossible at present. Do what the body says, then repeat the request.
    Refused = 14,
    /// Retry after `Retry-After`: another change is under way.
    Busy = 15,
    /// Retry when the node that the request names has caught up with the leader. The body says how
    /// much the node lacks.
    NotCaughtUp = 16,
    /// The request may have been carried out, or not. Check which, before you repeat it.
    Unsettled = 17,
    /// Send a valid token: over HTTP in the header `authorization: Bearer TOKEN`, over the native
    /// protocol in the token field of the hello.
    Unauthorized = 18,
    /// The cluster gives wide timestamps, which have no compact spelling. Ask for another format, or
    /// have an operator set `TIMESTAMP_FORMAT=compact`.
    NotCompact = 19,
    /// The node does not know the time well enough for an interval timestamp; the body says why. Ask
    /// another node, or this one after `Retry-After`.
    Uncertain = 21,
    /// Ask for the timestamps that the cluster gives in its mode (`MODE`): `/timestamp` or
    /// `/interval`.
    OtherMode = 22,
    /// Correct the addresses: the node belongs to another cluster, or another history of it.
    WrongCluster = 64,
    /// Update the older end: no version of the native protocol is common to both.
    UnsupportedVersion = 65,
    /// The node does not know a frame, a flag or a field that the client sent. Leave it out.
    Unsupported = 66,
}

impl ErrorCode {
    /// Every code, for tables and tests.
    pub const ALL: [Self; 24] = [
        Self::NotLeader,
        Self::NoQuorum,
        Self::NoLeader,
        Self::Overloaded,
        Self::BadCount,
        Self::BadFormat,
        Self::BadRequest,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::ShuttingDown,
        Self::NotReady,
        Self::Internal,
        Self::Forbidden,
        Self::Refused,
        Self::Busy,
        Self::NotCaughtUp,
        Self::Unsettled,
        Self::Unauthorized,
        Self::NotCompact,
        Self::Uncertain,
        Self::OtherMode,
        Self::WrongCluster,
        Self::UnsupportedVersion,
        Self::Unsupported,
    ];

    /// Returns the stable name of the code, which is the value of the header `epicepoch-error`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotLeader => "NOT_LEADER",
            Self::NoQuorum => "NO_QUORUM",
            Self::NoLeader => "NO_LEADER",
            Self::Overloaded => "OVERLOADED",
            Self::BadCount => "BAD_COUNT",
            Self::BadFormat => "BAD_FORMAT",
            Self::BadRequest => "BAD_REQUEST",
            Self::NotFound => "NOT_FOUND",
            Self::MethodNotAllowed => "METHOD_NOT_ALLOWED",
            Self::ShuttingDown => "SHUTTING_DOWN",
            Self::NotReady => "NOT_READY",
            Self::Internal => "INTERNAL",
            Self::Forbidden => "FORBIDDEN",
            Self::Refused => "REFUSED",
            Self::Busy => "BUSY",
            Self::NotCaughtUp => "NOT_CAUGHT_UP",
            Self::Unsettled => "UNSETTLED",
            Self::Unauthorized => "UNAUTHORIZED",
            Self::NotCompact => "NOT_COMPACT",
            Self::Uncertain => "UNCERTAIN",
            Self::OtherMode => "OTHER_MODE",
            Self::WrongCluster => "WRONG_CLUSTER",
            Self::UnsupportedVersion => "UNSUPPORTED_VERSION",
            Self::Unsupported => "UNSUPPORTED",
        }
    }

    /// Returns the code with this name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.name() == name)
    }

    /// Returns the code with this number in the native protocol, if there is one.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|code| *code as u16 == number)
    }

    /// Returns the HTTP status of the code. Codes that only the native protocol uses have a status,
    /// too, because tables list one for every code.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::BadCount
            | Self::BadFormat
            | Self::BadRequest
            | Self::WrongCluster
            | Self::UnsupportedVersion
            | Self::Unsupported => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::NotLeader => 409,
            Self::Refused | Self::NotCompact | Self::OtherMode => 422,
            Self::Internal => 500,
            Self::NoQuorum
            | Self::NoLeader
            | Self::Overloaded
            | Self::ShuttingDown
            | Self::NotReady
            | Self::Busy
            | Self::NotCaughtUp
            | Self::Uncertain => 503,
            Self::Unsettled => 504,
        }
    }

    /// Whether the same request may succeed later.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        matches!(self.status(), 409 | 503)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_of_errors_are_unique_and_found_again() {
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_name(code.name()), Some(code));
            assert_eq!(ErrorCode::from_number(code as u16), Some(code));
            let same = ErrorCode::ALL.iter().filter(|other| **other as u16 == code as u16);
            assert_eq!(same.count(), 1, "{code}");
        }
        assert_eq!(ErrorCode::from_name("NOT_A_CODE"), None);
    }

    #[test]
    fn the_cluster_header_has_a_fixed_width() {
        let header = cluster_header(ClusterId(0xabc), HistoryId(1));
        assert_eq!(header, "00000000000000000000000000000abc.0000000000000001");
    }
}
