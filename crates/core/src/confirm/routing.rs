//! How questions and answers travel between one worker and the voters. A round asks voters over the
//! worker's own links: a quorum or all of them, and the others if an answer is late or is a no. If
//! the connected links do not reach a quorum, the round asks over all of them and also borrows links of
//! sibling workers; an answer over a borrowed link is handed back. This module sends nothing and
//! never decides whether an answer counts; [`super::Rounds`] does.

use std::sync::atomic::{AtomicU64, Ordering};

use epicepoch_wire::confirm::ConfirmReply;
use epicepoch_wire::{NodeId, StoreId, WorkerId};

use super::Begun;
use super::asking::Asking;
use crate::positions::{PeerBoot, RolledBack};
use crate::publication::{Identity, Shared};
use crate::quorum::{VoterSet, Voters};

/// A round of a busy worker begins less than this after the one before, nanoseconds: 1 ms.
pub const ALONE_NS: u64 = 1_000_000;

/// A link of a worker, as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// The member at the other end.
    pub node: NodeId,
    /// The data directory of that member.
    pub store: StoreId,
    /// Whether the link is connected.
    pub is_up: bool,
}

/// Where an answer goes that has arrived over a link of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// It answers a question of this worker.
    Own,
    /// It answers a question of this sibling worker, which has borrowed the link.
    Sibling(WorkerId),
}

/// The members that a worker has links to, for its siblings: bit `node id modulo 64` is set. Two
/// members may share a bit, and a link may end at any time, so this is only a hint: any value is
/// right at any time, and nothing else in memory depends on it. So it is not one of the atomics of
/// `crate::sync`, in whose models there would be nothing to find.
#[derive(Debug, Default)]
pub struct LinksUp(AtomicU64);

impl LinksUp {
    /// Records the members that the worker has links to.
    pub fn set(&self, nodes: impl Iterator<Item = NodeId>) {
        let bits = nodes.fold(0, |bits, node| bits | bit(node));
        self.0.store(bits, Ordering::Relaxed);
    }

    /// Whether the worker probably has a link to `node`.
    #[must_use]
    pub fn may_reach(&self, node: NodeId) -> bool {
        self.0.load(Ordering::Relaxed) & bit(node) != 0
    }
}

/// The voters that connected links lead to.
fn connected<L>(voters: &Voters, links: impl Iterator<Item = (LinkState, L)>) -> VoterSet {
    let mut up = VoterSet::default();
    for (LinkState { node, store, is_up }, _) in links {
        if is_up && let Some(position) = voters.position(node, store) {
            up.insert(position);
        }
    }
    up
}

/// Calls `send` for the links that lead to these voters.
fn send_to<L>(
    asked: VoterSet,
    voters: &Voters,
    links: impl Iterator<Item = (LinkState, L)>,
    mut send: impl FnMut(L),
) {
    for (LinkState { node, store, .. }, link) in links {
        if voters.position(node, store).is_some_and(|position| asked.contains(position)) {
            send(link);
        }
    }
}

const fn bit(node: NodeId) -> u64 {
    1 << (node.0 % 64)
}

/// The routes of one worker's questions and answers.
#[derive(Clone, Debug)]
pub struct Routing {
    me: Identity,
    worker: WorkerId,
    asking: Asking,
}

impl Routing {
    /// The routes of `worker` of the node `me`. A round that begins `alone_ns` nanoseconds after
    /// the one before, or later, asks all voters; [`ALONE_NS`] is for production.
    #[must_use]
    pub const fn new(me: Identity, worker: WorkerId, alone_ns: u64) -> Self {
        Self { me, worker, asking: Asking::new(alone_ns) }
    }

    /// Asks the voters of a round that begins. Calls `send` for the worker's own `links` to a
    /// quorum of the voters, or to all of them. If the connected links and this node's own answer
    /// are no quorum, it calls `send` for each of them, and then `borrow` for each other voter:
    /// pass the question to one of its [`Self::lenders`].
    ///
    /// Returns whether the links lead to voters that were not asked. Ask them later with
    /// [`Self::ask_rest`]: when [`Self::is_late`], when a voter says no, and when a link ends.
    #[inline]
    pub fn ask<L>(
        &mut self,
        begun: &Begun,
        now_ns: u64,
        links: impl Iterator<Item = (LinkState, L)> + Clone,
        send: impl FnMut(L),
        mut borrow: impl FnMut(NodeId),
    ) -> bool {
        let voters = &begun.published.voters;
        let mut own = VoterSet::default();
        if let Some(position) = voters.position(self.me.node, self.me.store) {
            own.insert(position);
        }
        let up = connected(voters, links.clone());
        let asked = self.asking.choose(voters, begun.confirm.round, (own, up), now_ns);
        send_to(asked, voters, links, send);
        let reached = up.with(own);
        if !voters.is_quorum(reached) {
            for (position, (node, _)) in voters.iter().enumerate() {
                if !reached.contains(position) {
                    borrow(node);
                }
            }
        }
        self.is_part()
    }

    /// Asks the voters that the newest round in flight has not asked by [`Self::ask`], over the
    /// worker's own `links`. Their answers also count for older rounds of the same term and the same
    /// voters. Returns whether there were any.
    pub fn ask_rest<L>(
        &mut self,
        newest: &Begun,
        now_ns: u64,
        links: impl Iterator<Item = (LinkState, L)> + Clone,
        send: impl FnMut(L),
    ) -> bool {
        let voters = &newest.published.voters;
        let up = connected(voters, links.clone());
        let rest = self.asking.rest(voters, newest.confirm.round, up, now_ns);
        send_to(rest, voters, links, send);
        rest != VoterSet::default()
    }

    /// Whether an answer is late, if the oldest round in flight began at `begun_ns`.
    #[must_use]
    pub const fn is_late(&self, begun_ns: u64, now_ns: u64) -> bool {
        self.asking.is_late(begun_ns, now_ns)
    }

    /// Whether voters are left that the newest round can ask with [`Self::ask_rest`].
    #[must_use]
    pub const fn is_part(&self) -> bool {
        self.asking.is_part()
    }

    /// Takes the time of an answer of `voter` that came over a link of this worker and is its own.
    pub fn handle_reply(&mut self, voter: NodeId, reply: &ConfirmReply, now_ns: u64) {
        if reply.is_yes() {
            self.asking.handle_yes(voter, reply.round, now_ns);
        }
    }

    /// Asks all voters of a round whose voters are others than those of newer rounds. Only they can
    /// answer it, and links to some of them may end soon.
    pub fn ask_all<L>(
        begun: &Begun,
        links: impl Iterator<Item = (LinkState, L)> + Clone,
        send: impl FnMut(L),
    ) {
        let voters = &begun.published.voters;
        send_to(connected(voters, links.clone()), voters, links, send);
    }

    /// The sibling workers of the worker `own` that probably have a link to `node`. Give the
    /// question to the first one that takes it. `links` has what each worker of the node has
    /// recorded, in their order.
    pub fn lenders<'a>(
        own: WorkerId,
        node: NodeId,
        links: impl Iterator<Item = &'a LinksUp>,
    ) -> impl Iterator<Item = WorkerId> {
        let workers = (0..).map(WorkerId).zip(links);
        let may_lend =
            move |(worker, links): &(WorkerId, &LinksUp)| *worker != own && links.may_reach(node);
        workers.filter(may_lend).map(|(worker, _)| worker)
    }

    /// Where an answer of `voter` goes that has arrived over a link of this worker. No worker may
    /// have the number of the sibling: then nobody gets the answer.
    ///
    /// # Errors
    /// When the voter's data directory is known to be rolled back (S8): the answer counts for
    /// nobody. End the link.
    pub fn receiver(
        &self,
        core: &Shared,
        voter: PeerBoot,
        reply: &ConfirmReply,
    ) -> Result<Receiver, RolledBack> {
        core.check_peer(voter)?;
        let is_own = reply.worker == self.worker;
        Ok(if is_own { Receiver::Own } else { Receiver::Sibling(reply.worker) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use epicepoch_wire::confirm::Confirm;
    use epicepoch_wire::{BootId, Round, StorePosition, Term};

    use super::*;
    use crate::positions::Positions;
    use crate::publication::Published;

    const ME: Identity = Identity { node: NodeId(1), store: StoreId(1), boot: BootId(71) };
    const WORKER: WorkerId = WorkerId(1);
    const VOTER: PeerBoot = PeerBoot { node: NodeId(2), boot: BootId(72), began: StorePosition(5) };

    fn begun(incoming: &[u64], outgoing: &[u64]) -> Begun {
        let ids = |list: &[u64]| list.iter().map(|id| NodeId(*id)).collect::<Vec<_>>();
        let stores = |id: NodeId| StoreId(u128::from(id.0));
        let voters = Voters::new(&ids(incoming), &ids(outgoing), stores);
        let (store, boot, term) = (ME.store, ME.boot, Term(3));
        Begun {
            confirm: Confirm { store, boot, worker: WORKER, term, round: Round(8) },
            published: Arc::new(Published { voters, ..Published::nothing(ME) }),
        }
    }

    /// Asks for the first time, over links to these nodes, of which the second list is connected. Returns the nodes
    /// that were asked over own links, and those whose links are to be borrowed.
    fn asked(begun: &Begun, linked: &[u64], up: &[u64]) -> (Vec<u64>, Vec<u64>) {
        let links = linked.iter().map(|id| {
            let (node, store) = (NodeId(*id), StoreId(u128::from(*id)));
            (LinkState { node, store, is_up: up.contains(id) }, *id)
        });
        let (mut own, mut borrowed) = (vec![], vec![]);
        let mut routing = Routing::new(ME, WORKER, u64::MAX);
        routing.ask(begun, 0, links, |id| own.push(id), |node| borrowed.push(node.0));
        (own, borrowed)
    }

    #[test]
    fn only_connected_links_to_voters_are_asked() {
        let five = begun(&[1, 2, 3, 4, 5], &[]);
        assert_eq!(asked(&five, &[2, 3, 4, 5, 9], &[2, 3, 5, 9]), (vec![2, 3, 5], vec![]));
    }

    #[test]
    fn a_round_asks_a_quorum_and_the_rest_when_an_answer_is_late() {
        const MS: u64 = 1_000_000;
        let mut routing = Routing::new(ME, WORKER, u64::MAX);
        let links = [2, 3, 9].into_iter().map(|id: u64| {
            let (node, store) = (NodeId(id), StoreId(u128::from(id)));
            (LinkState { node, store, is_up: true }, id)
        });
        let mut round = begun(&[1, 2, 3], &[]);
        let mut sent = vec![];
        routing.ask(&round, 0, links.clone(), |id| sent.push(id), |_| unreachable!());
        assert_eq!(sent, [2, 3]);
        let yes = yes(0);
        routing.handle_reply(NodeId(3), &yes, MS / 10);
        let no = ConfirmReply { promise: Term(4), ..yes };
        routing.handle_reply(NodeId(2), &no, MS / 9);
        routing.handle_reply(NodeId(2), &yes, MS / 5);
        round.confirm.round = Round(9);
        sent.clear();
        routing.ask(&round, MS, links.clone(), |id| sent.push(id), |_| unreachable!());
        assert_eq!(sent, [3]);
        assert!(!routing.is_late(MS, 2 * MS - 1) && routing.is_late(MS, 2 * MS));
        assert!(routing.ask_rest(&round, 2 * MS, links.clone(), |id| sent.push(id)));
        assert_eq!(sent, [3, 2]);
        assert!(!routing.ask_rest(&round, 3 * MS, links, |_| unreachable!()));
    }

    #[test]
    fn links_are_borrowed_only_without_a_quorum_and_only_to_voters_that_were_not_asked() {
        let five = begun(&[1, 2, 3, 4, 5], &[]);
        assert_eq!(asked(&five, &[2, 3, 4, 5], &[3, 4]), (vec![3, 4], vec![]));
        assert_eq!(asked(&five, &[2, 3, 4, 5], &[4]), (vec![4], vec![2, 3, 5]));
        assert_eq!(asked(&five, &[], &[]), (vec![], vec![2, 3, 4, 5]));
        assert_eq!(asked(&begun(&[1], &[]), &[], &[]), (vec![], vec![]), "it is a quorum alone");
    }

    #[test]
    fn both_halves_of_a_joint_configuration_must_be_reached_over_own_links() {
        let joint = begun(&[1, 4, 5], &[1, 2, 3]);
        let linked = [2, 3, 4, 5];
        assert_eq!(asked(&joint, &linked, &[2, 4]), (vec![2, 4], vec![]));
        assert_eq!(asked(&joint, &linked, &[4, 5]), (vec![4, 5], vec![2, 3]));
    }

    #[test]
    fn a_leader_that_is_no_voter_is_not_counted_as_reached() {
        assert_eq!(asked(&begun(&[2, 3, 4], &[]), &[2, 3, 4], &[2]), (vec![2], vec![3, 4]));
        assert_eq!(asked(&begun(&[2, 3, 4], &[]), &[2, 3, 4], &[2, 3]), (vec![2, 3], vec![]));
    }

    #[test]
    fn a_link_to_another_data_directory_of_the_same_node_is_not_asked() {
        let two = begun(&[1, 2], &[]);
        let other = LinkState { node: NodeId(2), store: StoreId(99), is_up: true };
        let mut borrowed = vec![];
        let mut routing = Routing::new(ME, WORKER, u64::MAX);
        let links = [(other, ())].into_iter();
        routing.ask(&two, 0, links, |()| unreachable!(), |node| borrowed.push(node));
        assert_eq!(borrowed, [NodeId(2)]);
    }

    #[test]
    fn siblings_that_may_reach_the_voter_lend_their_links_and_the_worker_itself_does_not() {
        let all: [LinksUp; 4] = Default::default();
        let lenders = |node| {
            let lenders = Routing::lenders(WORKER, NodeId(node), all.iter());
            lenders.map(|worker| worker.0).collect::<Vec<_>>()
        };
        assert_eq!(lenders(2), [] as [u32; 0]);
        for links in &all {
            links.set([NodeId(2), NodeId(66)].into_iter());
        }
        assert_eq!(lenders(2), [0, 2, 3]);
        all[0].set([NodeId(3)].into_iter());
        assert_eq!((lenders(2), lenders(3)), (vec![2, 3], vec![0]));
    }

    fn yes(worker: u32) -> ConfirmReply {
        ConfirmReply {
            leader: ME.node,
            store: StoreId(2),
            boot: ME.boot,
            worker: WorkerId(worker),
            term: Term(3),
            round: Round(8),
            promise: Term(3),
        }
    }

    fn receiver(core: &Shared, worker: u32) -> Result<Receiver, RolledBack> {
        let reply = yes(worker);
        Routing::new(ME, WORKER, u64::MAX).receiver(core, VOTER, &reply)
    }

    #[test]
    fn an_answer_goes_to_the_worker_that_asked() {
        let core = Shared::new(Term(3), Published::nothing(ME));
        assert_eq!(receiver(&core, 1), Ok(Receiver::Own));
        assert_eq!(receiver(&core, 0), Ok(Receiver::Sibling(WorkerId(0))));
    }

    #[test]
    fn an_answer_of_a_voter_that_is_known_to_be_rolled_back_counts_for_nobody() {
        let core = Shared::new(Term(3), Published::nothing(ME));
        let PeerBoot { node, boot, began } = VOTER;
        let mut positions = Positions::default();
        positions.handle_hello(node, boot, began).unwrap();
        positions.hear(node, boot, StorePosition(9), began).unwrap();
        core.set_positions(positions.clone());
        assert_eq!(receiver(&core, 1), Ok(Receiver::Own));
        // The voter names position 6 after it has named 9: its data directory was rolled back.
        let rolled_back = positions.hear(node, boot, StorePosition(6), StorePosition(9));
        let rolled_back = rolled_back.unwrap_err();
        core.set_positions(positions);
        assert_eq!(receiver(&core, 1), Err(rolled_back));
        assert_eq!(receiver(&core, 0), Err(rolled_back), "a sibling does not get it");
    }
}
