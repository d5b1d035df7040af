//! What can be wrong with the client on purpose.

/// A clause that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plant {
    /// None is.
    None,
    /// Timestamps are fetched ahead and kept for later callers.
    Prefetch,
    /// A caller takes part in a request that was sent before it asked.
    JoinSent,
    /// A call that lost its connection is lost.
    LoseCalls,
    /// A node that does not lead any more is asked again.
    StayPut,
    /// The list of members is read once.
    OldMembers,
    /// Calls end some time after their deadline.
    Late,
    /// The history of a cluster does not matter.
    AnyHistory,
    /// Timestamps may go back.
    NoFloor,
    /// What is not known is not passed over.
    Rigid,
    /// Pings are not answered.
    NoPong,
    /// A field that must be understood, like anything else that is wrong, is a reason to try again.
    RetryAll,
    /// There is no pause between attempts.
    NoPause,
    /// An answer may have another count than the request.
    AnyCount,
    /// The next answer is taken for the answer to the last request.
    ByOrder,
}

impl Plant {
    /// The plant of that name.
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
            _ => return None,
        })
    }
}
