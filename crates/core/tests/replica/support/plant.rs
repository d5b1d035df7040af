//! Bugs done on purpose, in the harness and never in the core: each breaks one rule that the
//! safety argument needs, and the checker must find it.

use epicepoch_core::confirm::{Confirmed, Rounds};
use epicepoch_core::publication::{Grant, Identity, Published, Shared};
use epicepoch_core::quorum::Voters;
use epicepoch_wire::WorkerId;

/// A broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plant {
    /// A leader answers as soon as it is asked, without a round.
    Unconfirmed,
    /// A request joins the batch of a round that was sent already.
    LateJoin,
    /// A yes counts for whatever round is newest, of whatever term.
    AnyReplyCounts,
    /// A voter answers from a promise that was read at its last tick but ten.
    LatePromise,
    /// A restarted voter's promise begins at 0, and rises only with a new term.
    RestartPromise,
    /// A range is kept across terms and stamped in again.
    KeptRange,
    /// The workers know the voters of their node's start for ever.
    OldVoters,
    /// A wiped disk votes and confirms again under its node's old store id.
    WipedDisk,
    /// A disk says that a write is durable before it is.
    LyingDisk,
}

impl Plant {
    pub(crate) const ALL: [Self; 9] = [
        Self::Unconfirmed,
        Self::LateJoin,
        Self::AnyReplyCounts,
        Self::LatePromise,
        Self::RestartPromise,
        Self::KeptRange,
        Self::OldVoters,
        Self::WipedDisk,
        Self::LyingDisk,
    ];
}

/// A confirmed round that nobody confirmed: that of a cluster of one with the same grant.
pub(crate) fn forged(me: Identity, grant: Grant) -> Confirmed {
    let published = Published {
        voters: Voters::new(&[me.node], &[], |_| me.store),
        grant: Some(grant),
        ..Published::nothing(me)
    };
    let shared = Shared::new(grant.term, published);
    let mut rounds = Rounds::new(me, WorkerId(u32::MAX));
    rounds.begin(|| (), &shared, u64::MAX).expect("there is a grant");
    rounds.poll_confirmed().expect("one voter is a quorum").1
}
