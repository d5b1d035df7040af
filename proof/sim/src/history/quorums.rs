//! The proof of each round, as an observer outside the core sees it. The proof consists of the
//! voters when the round began and of the voters that have said yes since then. Quorums are counted
//! from plain lists, not with the core's masks.

use std::collections::{BTreeMap, VecDeque};

use epicepoch_core::publication::{Identity, Published};
use epicepoch_wire::confirm::Confirm;
use epicepoch_wire::{BootId, NodeId, Round, StoreId, Term, WorkerId};

use crate::history::{History, Invariant};

/// A voter and its data directory.
type Voter = (NodeId, StoreId);

/// Rounds in flight, by boot and worker, and the promises made.
#[derive(Debug, Default)]
pub(crate) struct Quorums {
    open: BTreeMap<(BootId, WorkerId), VecDeque<Open>>,
    /// The highest term promised by a message that has left each data directory.
    promised: BTreeMap<StoreId, Term>,
}

#[derive(Debug)]
struct Open {
    round: Round,
    term: Term,
    incoming: Vec<Voter>,
    outgoing: Vec<Voter>,
    yes: Vec<Voter>,
}

impl Open {
    fn is_quorum(&self) -> bool {
        let said = |half: &[Voter]| half.iter().filter(|voter| self.yes.contains(voter)).count();
        let is_majority = |half: &[Voter]| said(half) * 2 > half.len();
        is_majority(&self.incoming) && (self.outgoing.is_empty() || is_majority(&self.outgoing))
    }
}

impl Quorums {
    /// A message that promises `term` leaves.
    pub(crate) fn promise(&mut self, me: Identity, term: Term) {
        let promised = self.promised.entry(me.store).or_default();
        *promised = term.max(*promised);
    }

    /// A process has ended, and its rounds have ended with it.
    pub(crate) fn end(&mut self, boot: BootId) {
        self.open.retain(|(of, _), _| *of != boot);
    }

    fn has_promised_more(&self, store: StoreId, term: Term) -> bool {
        self.promised.get(&store).is_some_and(|promised| *promised > term)
    }
}

impl History {
    /// `me` begins a round under the publication that it reads now, while its Promise is `promise`.
    pub(crate) fn round_began(
        &mut self,
        me: Identity,
        confirm: &Confirm,
        now: &Published,
        promise: Term,
    ) {
        let open = Open {
            round: confirm.round,
            term: confirm.term,
            incoming: now.voters.incoming().collect(),
            outgoing: now.voters.outgoing().collect(),
            yes: vec![],
        };
        self.quorums.open.entry((me.boot, confirm.worker)).or_default().push_back(open);
        self.said(me, confirm, promise);
    }

    /// `voter`, whose Promise is `promise` now, answers a round. Its answer is a yes if it has
    /// neither seen nor promised a term above the round's. The answer also counts for earlier
    /// rounds of the same worker and term.
    pub(crate) fn said(&mut self, voter: Identity, confirm: &Confirm, promise: Term) {
        if promise > confirm.term || self.quorums.has_promised_more(voter.store, confirm.term) {
            return;
        }
        let Some(open) = self.quorums.open.get_mut(&(confirm.boot, confirm.worker)) else { return };
        for round in open {
            if round.round <= confirm.round && round.term == confirm.term {
                round.yes.push((voter.node, voter.store));
            }
        }
    }

    /// A round has failed.
    pub(crate) fn round_failed(&mut self, me: Identity, worker: WorkerId, round: Round) {
        if let Some(open) = self.quorums.open.get_mut(&(me.boot, worker)) {
            open.retain(|open| open.round != round);
        }
    }

    /// A sequencer counts a round as confirmed. Checks that a quorum has said yes.
    pub(crate) fn round_confirmed(&mut self, me: Identity, worker: WorkerId, round: Round) {
        self.check_quorum(me, worker, round);
        self.round_failed(me, worker, round);
    }

    /// S2, S7: a majority of the voters has said yes since the round began. In a joint
    /// configuration, so has a majority of each half.
    fn check_quorum(&mut self, me: Identity, worker: WorkerId, round: Round) {
        let mut open = self.quorums.open.get(&(me.boot, worker)).into_iter().flatten();
        let open = open.find(|open| open.round == round);
        if open.is_some_and(Open::is_quorum) {
            return;
        }
        let what = format!("node {} takes a round for confirmed: {open:?}", me.node);
        self.violate(Invariant::Quorum, || what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use epicepoch_core::quorum::Voters;

    const ME: Identity = Identity { node: NodeId(1), store: StoreId(1), boot: BootId(71) };
    const WORKER: WorkerId = WorkerId(0);

    const fn voter(node: u64) -> Identity {
        Identity { node: NodeId(node), store: StoreId(node as u128), boot: BootId(70 + node) }
    }

    fn confirm(round: u64) -> Confirm {
        Confirm {
            store: ME.store,
            boot: ME.boot,
            worker: WORKER,
            term: Term(5),
            round: Round(round),
        }
    }

    /// Makes a history in which node 1 has begun round 1. In the node's publication a joint change
    /// replaces the voters `outgoing` by `incoming`.
    fn begun(incoming: &[u64], outgoing: &[u64]) -> History {
        let ids = |list: &[u64]| list.iter().map(|id| NodeId(*id)).collect::<Vec<_>>();
        let stores = |id: NodeId| StoreId(u128::from(id.0));
        let voters = Voters::new(&ids(incoming), &ids(outgoing), stores);
        let published = Published { voters, ..Published::nothing(ME) };
        let mut history = History::default();
        history.round_began(ME, &confirm(1), &published, Term(5));
        history
    }

    fn is_confirmed(mut history: History) -> bool {
        history.round_confirmed(ME, WORKER, Round(1));
        history.violation.is_none()
    }

    #[test]
    fn one_half_of_a_joint_configuration_confirms_nothing() {
        let mut half = begun(&[1, 2, 3], &[1, 4, 5]);
        half.said(voter(2), &confirm(1), Term(5));
        half.said(voter(3), &confirm(1), Term(5));
        let mut both = begun(&[1, 2, 3], &[1, 4, 5]);
        both.said(voter(2), &confirm(1), Term(5));
        both.said(voter(4), &confirm(1), Term(5));
        assert_eq!((is_confirmed(half), is_confirmed(both)), (false, true));
    }

    #[test]
    fn a_yes_counts_for_its_round_and_earlier_ones_from_a_voter_that_may_say_it() {
        let heard = |say: fn(&mut History)| {
            let mut history = begun(&[1, 2, 3], &[]);
            say(&mut history);
            is_confirmed(history)
        };
        assert!(heard(|history| history.said(voter(2), &confirm(2), Term(5))));
        assert!(
            !heard(|history| history.said(voter(2), &confirm(0), Term(5))),
            "an earlier round's"
        );
        assert!(!heard(|history| history.said(voter(2), &confirm(1), Term(6))), "a no");
        assert!(!heard(|history| history.said(voter(4), &confirm(1), Term(5))), "no voter");
        let wiped = |history: &mut History| {
            let other = Identity { store: StoreId(9), ..voter(2) };
            history.said(other, &confirm(1), Term(5));
        };
        assert!(!heard(wiped), "another data directory");
        assert!(
            !heard(|history| {
                history.quorums.promise(voter(2), Term(6));
                history.said(voter(2), &confirm(1), Term(5));
            }),
            "it has promised another term"
        );
        assert!(!is_confirmed(begun(&[1, 2, 3], &[])), "the leader alone");
    }
}
