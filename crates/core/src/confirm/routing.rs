//! How questions and answers travel between one worker and the voters. A round asks every voter
//! over the worker's own links. If the connected ones do not reach a quorum, the round also borrows
//! links of sibling workers, and an answer over a borrowed link is handed back. This module sends
//! nothing and never decides whether an answer counts; [`super::Rounds`] does.

use std::sync::atomic::{AtomicU64, Ordering};

use epicepoch_wire::confirm::ConfirmReply;
use epicepoch_wire::{NodeId, StoreId, WorkerId};

use super::Begun;
use crate::positions::{PeerBoot, RolledBack};
use crate::publication::{Identity, Shared};
use crate::quorum::VoterSet;

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

const fn bit(node: NodeId) -> u64 {
    1 << (node.0 % 64)
}

/// The routes of one worker's questions and answers.
#[derive(Clone, Copy, Debug)]
pub struct Routing {
    me: Identity,
    worker: WorkerId,
}

impl Routing {
    /// The routes of `worker` of the node `me`.
    #[must_use]
    pub const fn new(me: Identity, worker: WorkerId) -> Self {
        Self { me, worker }
    }

    /// Asks the voters of a round. Calls `send` for each of the worker's own `links` that is
    /// connected to a voter. If these links and this node's own answer are no quorum, it then calls
    /// `borrow` for each voter that was not asked: pass the question to one of its
    /// [`Self::lenders`].
    #[inline]
    pub fn ask<L>(
        &self,
        begun: &Begun,
        links: impl Iterator<Item = (LinkState, L)>,
        mut send: impl FnMut(L),
        mut borrow: impl FnMut(NodeId),
    ) {
        let voters = &begun.published.voters;
        let mut asked = VoterSet::default();
        if let Some(position) = voters.position(self.me.node, self.me.store) {
            asked.insert(position);
        }
        for (LinkState { node, store, is_up }, link) in links {
            if is_up && let Some(position) = voters.position(node, store) {
                asked.insert(position);
                send(link);
            }
        }
        if !voters.is_quorum(asked) {
            for (position, (node, _)) in voters.iter().enumerate() {
                if !asked.contains(position) {
                    borrow(node);
                }
            }
        }
    }

    /// The sibling workers that probably have a link to `node`. Give the question to the first one
    /// that takes it. `links` has what each worker of the node has recorded, in their order.
    pub fn lenders<'a>(
        &self,
        node: NodeId,
        links: impl Iterator<Item = &'a LinksUp>,
    ) -> impl Iterator<Item = WorkerId> {
        let own = self.worker;
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
    use crate::quorum::Voters;

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

    /// Asks over links to these nodes, of which the second list is connected. Returns the nodes
    /// that were asked over own links, and those whose links are to be borrowed.
    fn asked(begun: &Begun, linked: &[u64], up: &[u64]) -> (Vec<u64>, Vec<u64>) {
        let links = linked.iter().map(|id| {
            let (node, store) = (NodeId(*id), StoreId(u128::from(*id)));
            (LinkState { node, store, is_up: up.contains(id) }, *id)
        });
        let (mut own, mut borrowed) = (vec![], vec![]);
        let routing = Routing::new(ME, WORKER);
        routing.ask(begun, links, |id| own.push(id), |node| borrowed.push(node.0));
        (own, borrowed)
    }

    #[test]
    fn only_connected_links_to_voters_are_asked() {
        let five = begun(&[1, 2, 3, 4, 5], &[]);
        assert_eq!(asked(&five, &[2, 3, 4, 5, 9], &[2, 3, 5, 9]), (vec![2, 3, 5], vec![]));
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
        let routing = Routing::new(ME, WORKER);
        let links = [(other, ())].into_iter();
        routing.ask(&two, links, |()| unreachable!(), |node| borrowed.push(node));
        assert_eq!(borrowed, [NodeId(2)]);
    }

    #[test]
    fn siblings_that_may_reach_the_voter_lend_their_links_and_the_worker_itself_does_not() {
        let all: [LinksUp; 4] = Default::default();
        let lenders = |node| {
            let routing = Routing::new(ME, WORKER);
            routing.lenders(NodeId(node), all.iter()).map(|worker| worker.0).collect::<Vec<_>>()
        };
        assert_eq!(lenders(2), [] as [u32; 0]);
        for links in &all {
            links.set([NodeId(2), NodeId(66)].into_iter());
        }
        assert_eq!(lenders(2), [0, 2, 3]);
        all[0].set([NodeId(3)].into_iter());
        assert_eq!((lenders(2), lenders(3)), (vec![2, 3], vec![0]));
    }

    fn receiver(core: &Shared, worker: u32) -> Result<Receiver, RolledBack> {
        let reply = ConfirmReply {
            leader: ME.node,
            store: StoreId(2),
            boot: ME.boot,
            worker: WorkerId(worker),
            term: Term(3),
            round: Round(8),
            promise: Term(3),
        };
        Routing::new(ME, WORKER).receiver(core, VOTER, &reply)
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
