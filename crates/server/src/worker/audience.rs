//! Whom a round is asked of: every voter, or, while rounds follow each other closely, only as many
//! as make a quorum with this node, those who answered the last question to all first. It never
//! decides what a round proves: a voter that is not asked is to the core one whose question was
//! lost.
//!
//! A question costs the leader a write and a wake-up, and the voter the same, so at many rounds a
//! second the questions whose answers nobody waits for are a good part of the work. Rounds that
//! are far apart ask everyone: there the fastest quorum of all is worth more.

use std::sync::Arc;

use epicepoch_core::confirm::Begun;
use epicepoch_core::publication::Published;
use epicepoch_wire::{NodeId, Round};

/// Rounds that begin within this time of the one before are close. Above 6,000 a second the work
/// matters; at 5,000 everyone is asked.
const CLOSE_NS: u64 = 150_000;
/// How often everyone is asked at least, to learn who answers first: far more often than routes
/// and loads change, and seldom beside hundreds of rounds.
const EVERYONE_INTERVAL_NS: u64 = 10_000_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Audience {
    /// Who answered the last question to all first and makes a quorum with this node.
    first: Vec<NodeId>,
    /// The same for the question to all that is open, as far as it is answered.
    next: Vec<NodeId>,
    open: Option<(Round, Arc<Published>)>,
    /// The newest round that everyone was asked for.
    everyone: Round,
    everyone_ns: u64,
    last_ns: u64,
}

impl Audience {
    /// Whether to ask everyone; else the nodes that [`Self::contains`] names. `is_late` says that a
    /// round has waited too long for its answers.
    pub(super) fn is_everyone(
        &mut self,
        me: NodeId,
        begun: &Begun,
        now_ns: u64,
        is_late: bool,
        is_up: impl Fn(NodeId) -> bool,
    ) -> bool {
        let is_close = now_ns.saturating_sub(self.last_ns) < CLOSE_NS;
        self.last_ns = now_ns;
        let is_known = now_ns.saturating_sub(self.everyone_ns) < EVERYONE_INTERVAL_NS;
        let is_enough = || {
            let has = |node| node == me || (self.first.contains(&node) && is_up(node));
            begun.published.voters.is_quorum_by(has)
        };
        if is_close && is_known && !is_late && is_enough() {
            return false;
        }
        self.everyone = begun.confirm.round;
        self.everyone_ns = now_ns;
        self.next.clear();
        self.open = Some((begun.confirm.round, begun.published.clone()));
        true
    }

    /// Whether a round that is not for everyone is for this node.
    pub(super) fn contains(&self, node: NodeId) -> bool {
        self.first.contains(&node)
    }

    /// Whether everyone was asked for this round, or a later one. Nobody is asked twice: where
    /// answers take long, or are no, questions would only add to what is under way.
    pub(super) fn was_everyone(&self, round: Round) -> bool {
        round <= self.everyone
    }

    /// Notes who answers the open question to all.
    pub(super) fn note_reply(&mut self, me: NodeId, from: NodeId, round: Round) {
        let Some((asked, published)) = &self.open else { return };
        if round < *asked || self.next.contains(&from) {
            return;
        }
        self.next.push(from);
        let has = |node| node == me || self.next.contains(&node);
        if published.voters.is_quorum_by(has) {
            std::mem::swap(&mut self.first, &mut self.next);
            self.open = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use epicepoch_core::publication::Identity;
    use epicepoch_core::quorum::Voters;
    use epicepoch_wire::confirm::Confirm;
    use epicepoch_wire::{BootId, StoreId, Term, WorkerId};

    use super::*;

    const ME: NodeId = NodeId(1);

    fn round(number: u64, incoming: &[u64], outgoing: &[u64]) -> Begun {
        let me = Identity { node: ME, store: StoreId(1), boot: BootId(1) };
        let ids = |ids: &[u64]| ids.iter().map(|id| NodeId(*id)).collect::<Vec<_>>();
        let mut published = Published::nothing(me);
        published.voters =
            Voters::new(&ids(incoming), &ids(outgoing), |node| StoreId(u128::from(node.0)));
        let confirm = Confirm {
            store: me.store,
            boot: me.boot,
            worker: WorkerId(0),
            term: Term(1),
            round: Round(number),
        };
        Begun { confirm, published: Arc::new(published) }
    }

    /// Rounds that follow each other closely, after one that asked everyone and was answered by
    /// these in this order.
    fn after(begun: &Begun, answers: &[u64]) -> Audience {
        let mut audience = Audience::default();
        assert!(audience.is_everyone(ME, begun, 1, false, |_| true));
        for from in answers {
            audience.note_reply(ME, NodeId(*from), begun.confirm.round);
        }
        audience
    }

    #[test]
    fn close_rounds_ask_whoever_answered_first_and_no_more_than_a_quorum() {
        let five = round(1, &[1, 2, 3, 4, 5], &[]);
        let mut audience = after(&five, &[4, 2, 3, 5]);
        assert!(!audience.is_everyone(ME, &five, 2, false, |_| true));
        let asked: Vec<_> = (2..=5).filter(|id| audience.contains(NodeId(*id))).collect();
        assert_eq!(asked, [2, 4]);
    }

    #[test]
    fn who_is_far_apart_late_or_cut_off_asks_everyone() {
        let three = round(1, &[1, 2, 3], &[]);
        let few = |audience: &mut Audience, now_ns, is_late, down: u64| {
            !audience.is_everyone(ME, &three, now_ns, is_late, |node| node.0 != down)
        };
        assert!(few(&mut after(&three, &[3]), 2, false, 2));
        assert!(!few(&mut after(&three, &[3]), 2, true, 0), "late");
        assert!(!few(&mut after(&three, &[3]), 2, false, 3), "the link is down");
        assert!(!few(&mut after(&three, &[3]), 1 + CLOSE_NS, false, 0), "far apart");
        assert!(!few(&mut after(&three, &[]), 2, false, 0), "nobody has answered");
        let mut audience = after(&three, &[3]);
        let mut now_ns = 1;
        while now_ns < EVERYONE_INTERVAL_NS {
            now_ns += CLOSE_NS / 2;
            if !few(&mut audience, now_ns, false, 0) {
                break;
            }
        }
        assert!((EVERYONE_INTERVAL_NS..2 * EVERYONE_INTERVAL_NS).contains(&now_ns), "again");
    }

    #[test]
    fn an_answer_to_an_earlier_round_does_not_say_who_is_first() {
        let (early, late) = (round(7, &[1, 2, 3], &[]), round(8, &[1, 2, 3], &[]));
        let mut audience = after(&late, &[]);
        audience.note_reply(ME, NodeId(2), early.confirm.round);
        audience.note_reply(ME, NodeId(3), late.confirm.round);
        assert!(audience.contains(NodeId(3)) && !audience.contains(NodeId(2)));
    }

    #[test]
    fn everyone_is_asked_once_for_a_round() {
        let rounds: Vec<_> = (7..=9).map(|number| round(number, &[1, 2, 3], &[])).collect();
        let mut audience = after(&rounds[0], &[3]);
        assert!(!audience.is_everyone(ME, &rounds[1], 2, false, |_| true));
        let told = |audience: &Audience| {
            rounds
                .iter()
                .map(|one| one.confirm.round)
                .map(|round| audience.was_everyone(round))
                .collect::<Vec<_>>()
        };
        assert_eq!(told(&audience), [true, false, false]);
        assert!(audience.is_everyone(ME, &rounds[1], 3, true, |_| true));
        assert_eq!(told(&audience), [true, true, false]);
    }

    #[test]
    fn both_halves_of_a_joint_configuration_are_asked() {
        let joint = round(1, &[1, 2, 3], &[1, 4, 5]);
        let mut audience = after(&joint, &[2, 3]);
        assert!(audience.is_everyone(ME, &joint, 2, false, |_| true), "4 and 5 are silent");
        let mut audience = after(&joint, &[2, 3, 5]);
        assert!(!audience.is_everyone(ME, &joint, 2, false, |_| true));
        assert!(audience.contains(NodeId(5)));
        // A configuration that needs others than those asks everyone.
        let next = round(2, &[1, 6, 7], &[]);
        assert!(audience.is_everyone(ME, &next, 3, false, |_| true));
    }
}
