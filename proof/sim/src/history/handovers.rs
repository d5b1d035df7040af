//! Promise 3 after a planned handover. The next leader begins close to the clocks, because the old
//! one has given back what it did not use (S18).

use std::collections::BTreeMap;

use epicepoch_core::publication::Identity;
use epicepoch_core::replica::Outgoing;
use epicepoch_core::state::Owner;
use epicepoch_wire::raft_message::MessageKind;
use epicepoch_wire::{Epoch, LogIndex, NodeId, Term};

use super::{History, Invariant};
use crate::parameters::MS;

/// A leader in a planned handover has told another node to campaign.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) owner: Owner,
    pub(crate) to: NodeId,
    /// The last entry of the leader's log.
    pub(crate) last: LogIndex,
}

/// The planned handovers of a run.
#[derive(Debug, Default)]
pub(super) struct Handovers {
    /// The last offer of each term.
    offers: BTreeMap<Term, Offer>,
    /// The offer that its receiver follows when it campaigns in a term. Another node may be elected
    /// in that term.
    followed: BTreeMap<Term, Offer>,
}

impl History {
    /// A leader in a planned handover tells another node to campaign. The leader has not answered
    /// again since the handover began.
    pub(crate) fn offers(&mut self, offer: Offer) {
        self.handovers.offers.insert(offer.owner.term, offer);
    }

    /// A leader reserves, or has a grant. If it has offered leadership, it has not given back what
    /// it owns now.
    pub(crate) fn owns_again(&mut self, who: Identity) {
        self.handovers.offers.retain(|_, offer| offer.owner.boot != who.boot);
    }

    /// A node campaigns, perhaps because of an offer: then the library marks its request for votes.
    /// The offer counts if the node has the whole log of the leader that made it.
    pub(super) fn record_campaign(&mut self, me: Identity, out: &Outgoing) {
        let message = &out.message;
        if message.kind != MessageKind::RequestVote || message.context.is_empty() {
            return;
        }
        let offer = self.handovers.offers.get(&message.log_term).copied();
        let followed = offer.filter(|offer| {
            offer.to == me.node
                && message.term.0 == offer.owner.term.0 + 1
                && message.index >= offer.last
        });
        if let Some(offer) = followed {
            self.handovers.followed.insert(message.term, offer);
        }
    }

    /// A leader stamps. Its first epoch after a planned handover is at most [`LEAD_NS_MAX`] ahead
    /// of the clocks, unless the leader before it was ahead, too.
    pub(super) fn check_lead(&mut self, me: Owner, epoch: Epoch, clocks_ns: u64) {
        let followed = self.handovers.followed.remove(&me.term);
        let Some(offer) = followed.filter(|offer| offer.to == me.node) else { return };
        let before = offer.owner;
        let Some(low) = self.ranges.low_of(before) else { return };
        let stamped = self.stamped_max.get(&before.boot).map_or(Epoch(0), |last| last.epoch);
        let ahead_ns = epoch.0.saturating_sub(clocks_ns.max(low.0).max(stamped.0));
        if ahead_ns > LEAD_NS_MAX {
            self.violate(Invariant::Bound, || {
                format!("{me:?} begins {ahead_ns} ns ahead, after a planned handover by {before:?}")
            });
        }
    }
}

/// How far ahead of the clocks a leader may begin after a planned handover, nanoseconds.
const LEAD_NS_MAX: u64 = 150 * MS;
