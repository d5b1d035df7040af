//! Planted bugs of the client.

/// A bug that breaks a clause of the contract, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plant {
    /// No clause is broken.
    None,
    /// The client fetches timestamps in advance and keeps them for later callers.
    Prefetch,
    /// A caller joins a request that was sent before it asked.
    JoinSent,
    /// A call fails when its connection is lost.
    LoseCalls,
    /// The client asks a node again that no longer leads.
    StayPut,
    /// The client learns the members only once.
    OldMembers,
    /// Calls end late.
    Late,
    /// The client does not check the history of a cluster.
    AnyHistory,
    /// The client accepts timestamps below earlier ones.
    NoFloor,
    /// The client does not skip unknown frames and fields.
    Rigid,
    /// Pings are not answered.
    NoPong,
    /// A malformed answer leads to a retry.
    RetryAll,
    /// The client makes no pause between attempts.
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
