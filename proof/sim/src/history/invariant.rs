//! The invariants that the checkers check, and how a broken one is reported.

use std::fmt;

/// An invariant with a checker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invariant {
    /// Promise 1: no timestamp is given twice.
    Unique,
    /// Promise 2: an answer is above every answer that was complete before its request started
    /// (rests on S2).
    Order,
    /// Promise 3 and S11: the epoch stays close to the clocks.
    Bound,
    /// S1: each timestamp of a process is above the one before.
    AllocatorRises,
    /// S2, S7: a confirmed round has the yes of a quorum of the voters, asked after the batch
    /// closed.
    Quorum,
    /// S3: a timestamp is in a range that apply assigned to this node and boot, in the term that
    /// the round confirmed.
    InsideOwnedRange,
    /// S4: before a message leaves, the sender's Promise has reached the message's term.
    PromiseFirst,
    /// S5: a range has one owner, equal index means equal state, and the ceiling never goes back.
    Ranges,
    /// S6: the promises in a message are durable before the message leaves.
    DurableFirst,
    /// S7: the voters published at an applied index are the same everywhere.
    Voters,
    /// S8, and Raft's own rule: one leader per term.
    OneLeader,
    /// S8: an id that was removed is never a member again.
    Ids,
    /// S12: a node that is promoted, or that gets leadership from an operator or for its zone, is
    /// live and has all committed entries. After a change of members a majority is live, and the
    /// leader is not removed. Because of its disk, a leader hands over in time, and not to a voter
    /// whose disk is known to be as slow. A node follows an offer of leadership only while the offer
    /// is current.
    CaughtUp,
    /// S9: correct peers send no impossible message, and lose no entries.
    Possible,
    /// S15: a node is sent, and holds, only data that it can read.
    Readable,
    /// S13: a restored history begins above every timestamp that the old one can have given.
    Restored,
    /// S14: once an operator's advance is done, requests that arrive are answered above it.
    Advanced,
    /// S17: operators get only true answers, and a denied change never happens.
    Told,
    /// S19: a latest timestamp is not below what was answered before its request arrived, and below
    /// the answer to every request that arrives later.
    Latest,
    /// S20: when a lease proves a batch, no leader of a later term has taken a timestamp.
    Lease,
    /// S21: while compact timestamps are in effect, each has a compact spelling, and both spellings
    /// have one order.
    Compact,
    /// S22: a node does not send on what a forwarder has sent to it.
    Forwarded,
    /// S18: a leader gives nothing of a range that it gives back, and keeps nothing of what it did
    /// not use.
    GivenBack,
    /// S16: a leader uses the settings in effect at the index that it has applied.
    Settings,
    /// S10: a request gets one answer: a refusal, or as many timestamps as it asked for.
    ToldOnce,
    /// No guarantee to users, but what keeps rounds short: a round asks a quorum at once, and each
    /// voter that it reaches once an answer is late.
    Asked,
    /// The contract of clients (`clients/README.md`), for callers of a session of the Rust client.
    /// A call ends by its deadline. It gets its own part of a range that answers one request, and
    /// that request was sent after the call began.
    Caller,
    /// No guarantee to users, but a check of the code: a publication has only a grant of its own
    /// node, in the term that the node leads. This check finds a bug sooner than a wrong answer or
    /// a refused confirm round would.
    Publication,
    /// A step of the run is none that the specification in `proof/spec` allows: the specification,
    /// the action and the rule that does not hold.
    Specification(&'static str),
}

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The invariant that was broken.
    pub invariant: Invariant,
    /// How it was broken.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.invariant, self.what)
    }
}
