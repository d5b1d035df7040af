//! The protocol between the suite and a driver. Commands come on the driver's standard input, and
//! replies go to its standard output, one JSON object per line. `clients/README.md` describes it. A
//! driver in another language needs nothing from this crate.

use serde::{Deserialize, Serialize};

/// A command. Each command gets one reply with its `id`; replies may come in any order. A driver
/// reads the next command at once. It does not wait until the command before has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Command {
    /// Make the client. If the client connects when it is made, reply once it has connected.
    Open {
        /// Repeated in the reply.
        id: u64,
        /// `host:port` of the initial members.
        addrs: Vec<String>,
        /// Timeout of opening, and of a call without its own timeout, milliseconds. If it is
        /// absent, the client has its default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
        /// How long the client waits for one node before it asks another, milliseconds.
        attempt_ms: u64,
        /// How often the client reads the list of members again, milliseconds.
        refresh_ms: u64,
        /// The cluster name that the client expects. If it is absent, the client accepts any name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<String>,
        /// After how many milliseconds without an answer the client sends a request a second time.
        /// If it is absent, the client never does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hedge_ms: Option<u64>,
        /// The guarantee that the client asks for, `quorum` or `lease`. If it is absent, the client
        /// names none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        guarantee: Option<String>,
        /// Whether the client needs compact timestamps. Then it names their format to each node, and
        /// every reply to a call has the spelling in 64 bits that the client returned.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        compact: bool,
        /// Whether the client asks only for timestamps of interval mode, and looks for no leader.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        intervals: bool,
    },
    /// Ask the client for timestamps.
    Timestamps {
        /// Repeated in the reply.
        id: u64,
        /// Number of timestamps.
        count: u64,
        /// Timeout of the call, milliseconds. If it is absent, the call has the client's timeout.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
    },
    /// Ask the client for the latest timestamp. The reply has it as `first`, and `count` is 1.
    Latest {
        /// Repeated in the reply.
        id: u64,
        /// Timeout of the call, milliseconds. If it is absent, the call has the client's timeout.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
    },
    /// Ask the client for one timestamp of interval mode, then wait until it is in the past. The
    /// reply has it as `first`, and `count` is 1.
    Interval {
        /// Repeated in the reply.
        id: u64,
        /// Timeout of the call, without the wait, milliseconds.
        timeout_ms: u64,
    },
    /// Cancel the call with id `call`.
    Cancel {
        /// Repeated in the reply, which comes at once.
        id: u64,
        /// Id of the call. The call gets a separate reply.
        call: u64,
    },
    /// Do nothing but reply. The suite uses this to calibrate the driver's clock.
    Clock {
        /// Repeated in the reply.
        id: u64,
    },
    /// Close the client. Reply when it is closed.
    Close {
        /// Repeated in the reply.
        id: u64,
    },
}

/// A driver's reply to a command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// Id of the command.
    pub id: u64,
    /// The driver's monotonic clock, in nanoseconds, read before the client was called.
    pub start: u64,
    /// The same clock, read after the client had returned.
    pub end: u64,
    /// The lowest timestamp of the answer, as 32 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<String>,
    /// The lowest timestamp of the answer as a compact one, in decimal. It is a text, because some
    /// languages read numbers of JSON as 64-bit floating-point ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub u64: Option<String>,
    /// Number of timestamps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Why there are no timestamps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
    /// The error message of the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// Why a call failed, independent of the language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The client got no timestamp before the deadline.
    Deadline,
    /// The caller cancelled the call.
    Cancelled,
    /// The client is closed.
    Closed,
    /// The count is invalid.
    Count,
    /// An answer or a refusal shows another cluster or history.
    WrongCluster,
    /// An answer is not above an earlier one.
    Backwards,
    /// An answer is invalid.
    Protocol,
    /// A node refused, and a retry would not help.
    Refused,
    /// The cluster gives wide timestamps, and the client needs compact ones.
    NotCompact,
    /// The client cannot do what the command asks for, such as hedging.
    Unsupported,
    /// Any other error. No scenario accepts it.
    Other,
}
