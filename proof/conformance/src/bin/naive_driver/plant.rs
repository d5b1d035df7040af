//! Planted bugs of the client.

/// A broken clause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plant {
    /// No clause is broken.
    None,
    /// Timestamps are fetched in advance and kept for later callers.
    Prefetch,
    /// A caller joins a request that was sent before it asked.
    JoinSent,
    /// A call fails when its connection is lost.
    LoseCalls,
    /// A node that no longer leads is asked again.
    StayPut,
    /// Members are learned only once.
    OldMembers,
    /// Calls end late.
    Late,
    /// The history of a cluster is not checked.
    AnyHistory,
    /// Timestamps may decrease.
    NoFloor,
    /// Unknown fields are not skipped.
    Rigid,
    /// Pings are not answered.
    NoPong,
    /// A malformed answer leads to a retry.
    RetryAll,
    /// No pause between attempts.
    NoPause,
    /// The count of an answer is not checked.
    AnyCount,
    /// The id of an answer is not checked.
    ByOrder,
    /// The second answer to a hedged request goes to the next caller.
    KeepBurnt,
}

impl Plant {
    /// The plant with that name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "none" => Self::None,
            "prefetch" => Self::Prefetch,
            "join-sent" => Self::JoinSent,
            "lose-calls" => Self::LoseCalls,
            "stay-put" => Self::StayPut,
            "old-members" => Self::OldMembers,
            "late" => Self::Late,
            "any-history" => Self::AnyHistory,
            "no-floor" => Self::NoFloor,
            "rigid" => Self::Rigid,
            "no-pong" => Self::NoPong,
            "retry-all" => Self::RetryAll,
            "no-pause" => Self::NoPause,
            "any-count" => Self::AnyCount,
            "by-order" => Self::ByOrder,
            "keep-burnt" => Self::KeepBurnt,
            _ => return None,
        })
    }
}
