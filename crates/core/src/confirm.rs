//! Confirm rounds: they prove, after a batch has closed, that no quorum has promised a term above
//! the grant's. One round serves every waiting request; rounds overlap up to a limit. A round reads
//! no clock and allocates no timestamp. A leader's lease can prove the same without a round
//! ([`prove_by_lease`]).
//!
//! The question is that of Raft's ReadIndex (dissertation, 6.4). One round for all waiting requests
//! is the batching of the same section.

mod answers;
mod asking;
mod routing;

use std::collections::VecDeque;
use std::sync::Arc;

use epicepoch_wire::confirm::{Confirm, ConfirmReply};
use epicepoch_wire::{BootId, NodeId, ProvedBy, Round, StoreId, Term, WorkerId};

pub use answers::{AnswerError, Answers};
pub use routing::{ALONE_NS, LinkState, LinksUp, Receiver, Routing};

use crate::publication::{Identity, Published, Shared};
use crate::quorum::VoterSet;

/// A batch whose leader has proved that it still leads, by a round that a quorum has confirmed or by
/// a lease: the only key to the allocator. It is used once, and only for the timestamps that its own
/// batch asked for, or to read the latest timestamp.
#[derive(Debug, PartialEq, Eq)]
pub struct Confirmed {
    term: Term,
    boot: BootId,
    count: u64,
    proved_by: ProvedBy,
    /// Whether it is a part of another one.
    is_part: bool,
}

impl Confirmed {
    /// The term that was proved.
    #[must_use]
    pub const fn term(&self) -> Term {
        self.term
    }

    /// The boot that has proved it.
    #[must_use]
    pub const fn boot(&self) -> BootId {
        self.boot
    }

    /// How many timestamps the batch asked for when it closed; 0 if its requests ask only for the
    /// latest timestamp.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// What has proved it.
    #[must_use]
    pub const fn proved_by(&self) -> ProvedBy {
        self.proved_by
    }

    /// Takes the key for `count` timestamps out of this one, which then allows as many fewer. So the
    /// keys of all parts together allow as many timestamps as the batch asked for (S2).
    ///
    /// # Panics
    /// When this key allows fewer timestamps.
    #[must_use]
    pub fn take_part(&mut self, count: u64) -> Self {
        assert!(count <= self.count, "S2: the parts of a batch ask for more than the batch");
        self.count -= count;
        Self { count, is_part: true, ..*self }
    }

    /// Whether the key is a part of another one. A part is never divided.
    pub(crate) const fn is_part(&self) -> bool {
        self.is_part
    }

    /// Uses up the key. Returns its term, its boot, and how many timestamps it allows.
    pub(crate) const fn spend(self) -> (Term, BootId, u64) {
        (self.term, self.boot, self.count)
    }

    #[cfg(test)]
    pub(crate) const fn for_test(term: Term, boot: BootId, count: u64) -> Self {
        Self { term, boot, count, proved_by: ProvedBy::Round, is_part: false }
    }
}

/// Proves by the leader's lease that it still leads: closes the batch, *then* reads the
/// publication, *then* the clock (S20). No request joins the batch after that. `close` returns the
/// batch and how many timestamps it asks for. `clock` reads the clock of the leases, nanoseconds;
/// it is not read without a lease.
///
/// The thread may stop for any time before it answers the batch. What counts is that the clock was
/// read after the last request had joined.
///
/// # Errors
/// The batch, when no lease proves it. Prove it by a round.
///
/// # Panics
/// When an invariant is broken (S20).
pub fn prove_by_lease<B>(
    close: impl FnOnce() -> (B, u64),
    shared: &Shared,
    clock: impl FnOnce() -> u64,
) -> Result<(B, Confirmed), B> {
    let (batch, count) = close();
    let published = shared.published();
    let (Some(grant), Some(lease)) = (published.grant, published.lease) else {
        return Err(batch);
    };
    assert!(lease.term == grant.term, "S20: the lease of another term");
    if clock() >= lease.until_ns {
        return Err(batch);
    }
    let (term, boot, proved_by) = (grant.term, grant.boot, ProvedBy::Lease);
    Ok((batch, Confirmed { term, boot, count, proved_by, is_part: false }))
}

/// So many rounds of one worker overlap without a pause. With only one, a request that just missed a
/// round would wait for that whole round trip. Each further round costs frames and makes batches
/// smaller. Four rounds cover a round trip of four event-loop turns.
pub const UNPACED_ROUNDS: usize = 4;

/// Why a round ended without proof. Its batch is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundFailure {
    /// So many voters have promised a higher term that no quorum can confirm: this node is deposed.
    Deposed,
    /// The deadline passed without a quorum.
    TimedOut,
    /// Before the round ended, the grant was lost or replaced by one of a newer term.
    GrantLost,
}

/// A round that has begun. The caller sends it to voters of its configuration; [`Routing`] says to
/// which ones, and when.
#[derive(Clone, Debug)]
pub struct Begun {
    /// The question, the same for every voter.
    pub confirm: Confirm,
    /// The publication under which the round began.
    pub published: Arc<Published>,
}

impl Begun {
    /// Whether the round asks the member `node` with the data directory `store`.
    #[must_use]
    pub fn asks(&self, node: NodeId, store: StoreId) -> bool {
        self.published.voters.position(node, store).is_some()
    }
}

/// The rounds of one worker.
#[derive(Debug)]
pub struct Rounds<B> {
    me: Identity,
    worker: WorkerId,
    last: Round,
    in_flight: VecDeque<InFlight<B>>,
}

#[derive(Debug)]
struct InFlight<B> {
    round: Round,
    term: Term,
    published: Arc<Published>,
    yes: VoterSet,
    no: VoterSet,
    deadline_ns: u64,
    batch: B,
    /// How many timestamps the batch asks for; 0 for a probe, and if the batch asks only for the
    /// latest timestamp.
    count: u64,
}

impl<B> Rounds<B> {
    /// No rounds yet.
    #[must_use]
    pub fn new(me: Identity, worker: WorkerId) -> Self {
        Self { me, worker, last: Round(0), in_flight: VecDeque::new() }
    }

    /// Begins a round: closes the batch, *then* reads the publication, *then* this node's Promise.
    /// A round reads them in this order, and nowhere else (S2). `close` returns the batch and how
    /// many timestamps it asks for.
    ///
    /// # Errors
    /// The batch and the publication, when there is no grant to confirm.
    pub fn begin(
        &mut self,
        close: impl FnOnce() -> (B, u64),
        shared: &Shared,
        deadline_ns: u64,
    ) -> Result<Begun, (B, Arc<Published>)> {
        let (batch, count) = close();
        let published = shared.published();
        let Some(grant) = published.grant else {
            return Err((batch, published));
        };
        let promise = shared.promise.load();
        let term = grant.term;
        self.last = self.next_round();
        let mut in_flight = InFlight {
            round: self.last,
            term,
            published: published.clone(),
            yes: VoterSet::default(),
            no: VoterSet::default(),
            deadline_ns,
            batch,
            count,
        };
        // This node counts its own answer by the same rule as other answers: only if it is a voter.
        in_flight.count(self.me.node, self.me.store, promise);
        self.in_flight.push_back(in_flight);
        let confirm = Confirm {
            store: self.me.store,
            boot: self.me.boot,
            worker: self.worker,
            term,
            round: self.last,
        };
        Ok(Begun { confirm, published })
    }

    /// Counts a voter's answer for the round that it names. The answer also counts for earlier
    /// rounds of the same term, because their batches closed before. An answer for another leader,
    /// boot, worker, term or store, or for a round that was never asked, does not count. Nor does
    /// one that says what its voter has said already. Otherwise each repeated no would make the
    /// worker ask again, and bring more of them. Returns whether the answer counted.
    pub fn handle_reply(&mut self, from: NodeId, reply: &ConfirmReply) -> bool {
        let is_ours = reply.leader == self.me.node
            && reply.boot == self.me.boot
            && reply.worker == self.worker
            && reply.round <= self.last;
        if !is_ours {
            return false;
        }
        let mut counted = false;
        for round in &mut self.in_flight {
            if round.round <= reply.round && round.term == reply.term {
                counted |= round.count(from, reply.store, reply.promise);
            }
        }
        counted
    }

    /// The next batch whose round a quorum has confirmed, with its key to the allocator. The key of
    /// a batch that asks for no timestamps, such as that of a probe, gives none.
    pub fn poll_confirmed(&mut self) -> Option<(B, Confirmed)> {
        let position = self.in_flight.iter().position(InFlight::is_confirmed)?;
        let InFlight { term, batch, count, .. } = self.in_flight.remove(position)?;
        let (boot, proved_by) = (self.me.boot, ProvedBy::Round);
        Some((batch, Confirmed { term, boot, count, proved_by, is_part: false }))
    }

    /// The next round that can no longer be confirmed, with its batch.
    pub fn poll_failed(&mut self, now_ns: u64, shared: &Shared) -> Option<(B, RoundFailure)> {
        let published = shared.published();
        let granted = published.grant.map(|grant| grant.term);
        let failed = |round: &InFlight<B>| {
            if round.published.voters.is_lost(round.no) {
                Some(RoundFailure::Deposed)
            } else if granted != Some(round.term) {
                Some(RoundFailure::GrantLost)
            } else if round.deadline_ns <= now_ns {
                Some(RoundFailure::TimedOut)
            } else {
                None
            }
        };
        let found = self.in_flight.iter().enumerate().find_map(|(at, r)| Some((at, failed(r)?)));
        let (position, failure) = found?;
        let round = self.in_flight.remove(position)?;
        Some((round.batch, failure))
    }

    /// The newest round in flight. Asking it again over a new link also answers the older ones of
    /// its term.
    #[must_use]
    pub fn newest(&self) -> Option<Begun> {
        self.in_flight.back().map(|round| self.begun(round))
    }

    /// The newest round in flight whose voters are others than those of [`Self::newest`].
    #[must_use]
    pub fn newest_of_other_voters(&self) -> Option<Begun> {
        let voters = &self.in_flight.back()?.published.voters;
        let mut rounds = self.in_flight.iter().rev();
        rounds.find(|it| it.published.voters != *voters).map(|it| self.begun(it))
    }

    fn begun(&self, round: &InFlight<B>) -> Begun {
        let confirm = Confirm {
            store: self.me.store,
            boot: self.me.boot,
            worker: self.worker,
            term: round.term,
            round: round.round,
        };
        Begun { confirm, published: round.published.clone() }
    }

    /// The number of the next round that begins.
    #[must_use]
    pub const fn next_round(&self) -> Round {
        Round(self.last.0 + 1)
    }

    /// How many rounds are in flight.
    #[must_use]
    pub fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether no round is in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Deadline of the first round in flight; rounds begin with rising deadlines.
    #[must_use]
    pub fn deadline_ns(&self) -> Option<u64> {
        self.in_flight.front().map(|round| round.deadline_ns)
    }
}

impl<B> InFlight<B> {
    fn count(&mut self, node: NodeId, store: StoreId, promise: Term) -> bool {
        let voters = &self.published.voters;
        let Some(position) = voters.position(node, store) else {
            return false;
        };
        let before = (self.yes, self.no);
        if promise > self.term {
            self.no.insert(position);
        } else if !self.no.contains(position) {
            self.yes.insert(position);
        }
        before != (self.yes, self.no)
    }

    fn is_confirmed(&self) -> bool {
        self.published.voters.is_quorum(self.yes)
    }
}

#[cfg(test)]
mod tests {
    use epicepoch_wire::{ClusterId, Epoch};

    use super::*;
    use crate::lease::Lease;
    use crate::promise::Promise;
    use crate::publication::{EpochRange, Grant};
    use crate::quorum::Voters;

    const ME: Identity = identity(1);
    const FAR: u64 = 1_000;

    const fn identity(node: u64) -> Identity {
        Identity { node: NodeId(node), store: StoreId(node as u128), boot: BootId(70 + node) }
    }

    fn shared(term: u64, incoming: &[u64], outgoing: &[u64]) -> Shared {
        let shared = Shared::new(Term(term), Published::nothing(ME));
        publish(&shared, term, incoming, outgoing);
        shared
    }

    fn publish(shared: &Shared, term: u64, incoming: &[u64], outgoing: &[u64]) {
        let ids = |list: &[u64]| list.iter().map(|id| NodeId(*id)).collect::<Vec<_>>();
        let stores = |id: NodeId| StoreId(u128::from(id.0));
        let range = EpochRange { low: Epoch(0), high: Epoch(9) };
        shared.publish(Arc::new(Published {
            voters: Voters::new(&ids(incoming), &ids(outgoing), stores),
            grant: Some(Grant { term: Term(term), boot: ME.boot, range }),
            ..Published::nothing(ME)
        }));
    }

    fn reply(voter: u64, confirm: &Confirm, promise: u64) -> ConfirmReply {
        let mut answers = Answers::new(ME, ClusterId(9), identity(voter));
        answers.handle_confirm(confirm, &Promise::new(Term(promise))).unwrap()
    }

    fn rounds() -> Rounds<&'static str> {
        Rounds::new(ME, WorkerId(0))
    }

    #[test]
    fn a_quorum_confirms_and_the_leader_counts_itself_once() {
        let (shared, mut rounds) = (shared(3, &[1, 2, 3], &[]), rounds());
        let begun = rounds.begin(|| ("a", 1), &shared, FAR).unwrap();
        assert_eq!(rounds.poll_confirmed(), None);
        assert!(rounds.handle_reply(NodeId(2), &reply(2, &begun.confirm, 3)));
        let (batch, confirmed) = rounds.poll_confirmed().unwrap();
        let key = (confirmed.term(), confirmed.boot(), confirmed.count());
        assert_eq!((batch, key), ("a", (Term(3), ME.boot, 1)));
        assert!(rounds.is_empty());
    }

    #[test]
    fn the_round_of_a_batch_that_asks_for_nothing_proves_leadership_and_gives_no_timestamp() {
        let (shared, mut rounds) = (shared(3, &[1], &[]), rounds());
        rounds.begin(|| ("probe", 0), &shared, FAR).unwrap();
        assert_eq!(
            rounds.poll_confirmed(),
            Some(("probe", Confirmed::for_test(Term(3), ME.boot, 0)))
        );
    }

    #[test]
    fn a_deposed_leader_cannot_confirm_even_with_its_own_vote() {
        let (shared, mut rounds) = (shared(3, &[1, 2, 3], &[]), rounds());
        shared.promise.raise(Term(4));
        let begun = rounds.begin(|| ("a", 1), &shared, FAR).unwrap();
        rounds.handle_reply(NodeId(2), &reply(2, &begun.confirm, 3));
        assert_eq!(rounds.poll_confirmed(), None);
        rounds.handle_reply(NodeId(3), &reply(3, &begun.confirm, 4));
        assert_eq!(rounds.poll_failed(0, &shared), Some(("a", RoundFailure::Deposed)));
    }

    #[test]
    fn a_yes_after_a_no_of_the_same_voter_does_not_count() {
        let (shared, mut rounds) = (shared(3, &[1, 2, 3], &[]), rounds());
        let begun = rounds.begin(|| ("a", 1), &shared, FAR).unwrap();
        rounds.handle_reply(NodeId(2), &reply(2, &begun.confirm, 5));
        rounds.handle_reply(NodeId(2), &reply(2, &begun.confirm, 3));
        assert_eq!(rounds.poll_confirmed(), None);
    }

    #[test]
    fn an_answer_that_says_nothing_new_does_not_count() {
        let (shared, mut rounds) = (shared(3, &[1, 2, 3, 4, 5], &[]), rounds());
        let begun = rounds.begin(|| ("a", 1), &shared, FAR).unwrap();
        let mut counts = |node, promise| {
            rounds.handle_reply(NodeId(node), &reply(node, &begun.confirm, promise))
        };
        assert!(counts(2, 4) && !counts(2, 4), "a no");
        assert!(!counts(2, 3), "a yes after a no");
        assert!(counts(3, 3) && !counts(3, 3), "a yes");
        assert!(counts(3, 4) && !counts(3, 4), "a no after a yes");
        let later = rounds.begin(|| ("b", 1), &shared, FAR).unwrap();
        assert!(rounds.handle_reply(NodeId(2), &reply(2, &later.confirm, 4)), "of another round");
    }

    #[test]
    fn replies_that_do_not_belong_to_the_round_do_not_count() {
        let (shared, mut rounds) = (shared(3, &[1, 2, 3], &[]), rounds());
        let begun = rounds.begin(|| ("a", 1), &shared, FAR).unwrap();
        let good = reply(2, &begun.confirm, 3);
        let wrong = [
            ConfirmReply { leader: NodeId(3), ..good },
            ConfirmReply { boot: BootId(1), ..good },
            ConfirmReply { worker: WorkerId(1), ..good },
            ConfirmReply { term: Term(2), promise: Term(2), ..good },
            ConfirmReply { round: Round(2), ..good },
            ConfirmReply { round: Round(0), ..good },
            ConfirmReply { store: StoreId(99), ..good },
        ];
        for reply in wrong {
            assert!(!rounds.handle_reply(NodeId(2), &reply), "{reply:?}");
        }
        assert!(!rounds.handle_reply(NodeId(4), &ConfirmReply { store: StoreId(4), ..good }));
        assert_eq!(rounds.poll_confirmed(), None);
        assert!(rounds.handle_reply(NodeId(2), &good));
        assert!(rounds.poll_confirmed().is_some());
    }

    #[test]
    fn a_yes_confirms_earlier_rounds_but_never_later_ones() {
        let (shared, mut rounds) = (shared(3, &[1, 2, 3], &[]), rounds());
        rounds.begin(|| ("a", 1), &shared, FAR).unwrap();
        let second = rounds.begin(|| ("b", 1), &shared, FAR).unwrap();
        rounds.begin(|| ("c", 1), &shared, FAR).unwrap();
        rounds.handle_reply(NodeId(3), &reply(3, &second.confirm, 3));
        assert_eq!(rounds.poll_confirmed().unwrap().0, "a");
        assert_eq!(rounds.poll_confirmed().unwrap().0, "b");
        assert_eq!(rounds.poll_confirmed(), None);
        assert_eq!(rounds.newest().unwrap().confirm.round, Round(3));
    }

    #[test]
    fn a_yes_of_a_newer_term_does_not_confirm_an_older_terms_round() {
        let (shared, mut rounds) = (shared(3, &[1, 2, 3], &[]), rounds());
        rounds.begin(|| ("old", 1), &shared, FAR).unwrap();
        publish(&shared, 5, &[1, 2, 3], &[]);
        let new = rounds.begin(|| ("new", 1), &shared, FAR).unwrap();
        rounds.handle_reply(NodeId(2), &reply(2, &new.confirm, 5));
        assert_eq!(rounds.poll_confirmed().unwrap().0, "new");
        assert_eq!(rounds.poll_confirmed(), None);
        assert_eq!(rounds.poll_failed(0, &shared), Some(("old", RoundFailure::GrantLost)));
    }

    #[test]
    fn a_joint_configuration_needs_both_majorities_to_confirm() {
        let (shared, mut rounds) = (shared(3, &[1, 4, 5], &[1, 2, 3]), rounds());
        let begun = rounds.begin(|| ("a", 1), &shared, FAR).unwrap();
        rounds.handle_reply(NodeId(4), &reply(4, &begun.confirm, 3));
        assert_eq!(rounds.poll_confirmed(), None);
        rounds.handle_reply(NodeId(2), &reply(2, &begun.confirm, 3));
        assert!(rounds.poll_confirmed().is_some());
    }

    #[test]
    fn a_leader_outside_the_configuration_does_not_count_itself() {
        let (shared, mut rounds) = (shared(3, &[2, 3], &[]), rounds());
        let begun = rounds.begin(|| ("a", 1), &shared, FAR).unwrap();
        rounds.handle_reply(NodeId(2), &reply(2, &begun.confirm, 3));
        assert_eq!(rounds.poll_confirmed(), None);
        rounds.handle_reply(NodeId(3), &reply(3, &begun.confirm, 3));
        assert!(rounds.poll_confirmed().is_some());
    }

    #[test]
    fn a_round_ends_at_its_deadline() {
        let (shared, mut rounds) = (shared(3, &[1, 2, 3], &[]), rounds());
        rounds.begin(|| ("a", 1), &shared, FAR).unwrap();
        assert_eq!(rounds.poll_failed(FAR - 1, &shared), None);
        assert_eq!(rounds.poll_failed(FAR, &shared), Some(("a", RoundFailure::TimedOut)));
    }

    #[test]
    fn without_a_grant_the_batch_comes_back() {
        let shared = Shared::new(Term(0), Published::nothing(ME));
        let (batch, _) = rounds().begin(|| ("a", 1), &shared, FAR).unwrap_err();
        assert_eq!(batch, "a");
    }

    /// A publication of `term` with a lease until 100.
    fn lease(shared: &Shared, term: u64) {
        publish(shared, term, &[1, 2, 3], &[]);
        let lease = Some(Lease { term: Term(term), until_ns: 100 });
        shared.publish(Arc::new(Published { lease, ..(*shared.published()).clone() }));
    }

    #[test]
    fn a_lease_proves_a_batch_that_closed_before_its_end() {
        let shared = shared(3, &[1, 2, 3], &[]);
        let unread = || unreachable!("there is no lease");
        assert_eq!(prove_by_lease(|| ("a", 2), &shared, unread), Err("a"));
        lease(&shared, 3);
        let (batch, key) = prove_by_lease(|| ("b", 2), &shared, || 99).unwrap();
        let proved = (batch, key.term(), key.boot(), key.count(), key.proved_by());
        assert_eq!(proved, ("b", Term(3), ME.boot, 2, ProvedBy::Lease));
        assert_eq!(prove_by_lease(|| ("c", 1), &shared, || 100), Err("c"), "it is over");
    }

    #[test]
    fn a_lease_is_read_after_the_batch_closes_and_its_clock_after_that() {
        let shared = shared(3, &[1, 2, 3], &[]);
        let close = || {
            lease(&shared, 3);
            ("a", 1)
        };
        // The lease is withdrawn after it was read. The answer is right all the same.
        let clock = || {
            publish(&shared, 3, &[1, 2, 3], &[]);
            99
        };
        assert!(prove_by_lease(close, &shared, clock).is_ok());
        assert!(prove_by_lease(|| ("b", 1), &shared, || 99).is_err());
    }

    #[test]
    #[should_panic(expected = "S20")]
    fn a_lease_of_another_term_proves_nothing() {
        let shared = shared(3, &[1, 2, 3], &[]);
        let lease = Some(Lease { term: Term(2), until_ns: 100 });
        shared.publish(Arc::new(Published { lease, ..(*shared.published()).clone() }));
        let _ = prove_by_lease(|| ("a", 1), &shared, || 0);
    }

    #[test]
    fn rounds_are_counted_and_the_oldest_deadline_is_the_next() {
        let (shared, mut rounds) = (shared(3, &[1, 2, 3], &[]), rounds());
        assert_eq!((rounds.len(), rounds.is_empty(), rounds.deadline_ns()), (0, true, None));
        let first = rounds.begin(|| ("a", 1), &shared, 70).unwrap();
        rounds.begin(|| ("b", 1), &shared, 90).unwrap();
        assert_eq!((rounds.len(), rounds.is_empty(), rounds.deadline_ns()), (2, false, Some(70)));
        rounds.handle_reply(NodeId(2), &reply(2, &first.confirm, 3));
        assert!(rounds.poll_confirmed().is_some());
        assert_eq!((rounds.len(), rounds.is_empty(), rounds.deadline_ns()), (1, false, Some(90)));
    }
}
