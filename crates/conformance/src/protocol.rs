//! What the suite and a driver say to each other: a JSON object a line, commands to the driver's
//! standard input, replies from its standard output. `clients/README.md` draws it; a driver in
//! another language needs nothing of this crate.

use serde::{Deserialize, Serialize};

/// What a driver is told to do. Every command gets exactly one reply with its `id`, in any order;
/// a driver never waits for one command before it reads the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Command {
    /// Make the client. A client that connects here replies when it is through with that.
    Open {
        /// Comes back.
        id: u64,
        /// `host:port` of each member that the client begins with.
        addrs: Vec<String>,
        /// How long opening may take, and a call whose own time is not given.
        timeout_ms: u64,
        /// How long one node may take to answer before another is asked.
        attempt_ms: u64,
        /// How often the members are learned anew.
        refresh_ms: u64,
        /// The name of the cluster that the client expects; absent for any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<String>,
    },
    /// Call the client for timestamps.
    Timestamps {
        /// Comes back.
        id: u64,
        /// How many.
        count: u64,
        /// How long the call may take.
        timeout_ms: u64,
    },
    /// The caller of the call `call` gives up.
    Cancel {
        /// Comes back, at once.
        id: u64,
        /// The call, which replies for itself.
        call: u64,
    },
    /// Nothing but the reply, for its clock.
    Clock {
        /// Comes back.
        id: u64,
    },
    /// Close the client. Reply when it is closed.
    Close {
        /// Comes back.
        id: u64,
    },
}

/// What came of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// That of the command.
    pub id: u64,
    /// The driver's monotonic clock before the client was called, nanoseconds since any moment.
    pub start: u64,
    /// The same clock after the client returned.
    pub end: u64,
    /// The lowest timestamp, 32 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<String>,
    /// How many there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Why there is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
    /// The client's words for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// Why a call brought nothing, in the words of no language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// No timestamp before the deadline.
    Deadline,
    /// The caller gave up.
    Cancelled,
    /// The client is closed.
    Closed,
    /// A count that no request may have.
    Count,
    /// An answer of another cluster or history, or a node's refusal for that reason.
    WrongCluster,
    /// An answer that is not above what was returned before.
    Backwards,
    /// An answer that no oracle gives.
    Protocol,
    /// A refusal that no retry heals.
    Refused,
    /// Anything else; never right.
    Other,
}
