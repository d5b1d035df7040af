//! For the unit tests of a worker: the sequencer of a worker of node 1.

use std::rc::Rc;
use std::sync::Arc;

use epicepoch_core::publication::{EpochRange, Grant, Identity, Published, Role};
use epicepoch_core::quorum::Voters;
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::{BootId, ClusterId, Epoch, NodeId, StoreId, Term, WorkerId};

use super::admission::AdmissionLimit;
use super::links::Links;
use super::mailbox::Mailbox;
use super::sequencer::Sequencer;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::shared::NodeShared;

const ME: Identity = Identity { node: NodeId(1), store: StoreId(1), boot: BootId(7) };
const TERM: Term = Term(3);

/// What node 1 of a cluster of `voters` publishes in this role. A leader has a grant.
pub(super) fn published(role: Role, voters: u64) -> Published {
    let store = |node: NodeId| StoreId(node.0.into());
    let member = |node: NodeId| {
        let (raft_addr, client_addr) = (format!("n{node}:1"), format!("n{node}:2"));
        (node, Member { node, store: store(node), raft_addr, client_addr })
    };
    let ids: Vec<_> = (1..=voters).map(NodeId).collect();
    let range = EpochRange { low: Epoch(100), high: Epoch(1 << 40) };
    let grant = Grant { term: TERM, boot: ME.boot, range };
    Published {
        cluster: ClusterId(9),
        term: TERM,
        role,
        voters: Voters::new(&ids, &[], store),
        grant: (role == Role::Leader).then_some(grant),
        members: Arc::new(ids.iter().copied().map(member).collect()),
        ..Published::nothing(ME)
    }
}

/// A sequencer of this worker, which knows no cluster yet.
pub(crate) fn sequencer(worker: WorkerId) -> Rc<Sequencer> {
    let config = Config::new(ME.node, "n1:1".to_owned());
    let timeout = config.election_timeout;
    let shared = NodeShared::for_test(ME, 200, config);
    let metrics = Arc::new(Metrics::new(2));
    let boxes: Arc<[Mailbox]> = (0..2).map(|_| Mailbox::new().0).collect();
    let links = Links::new(ME, worker, boxes, metrics.clone(), timeout, u64::MAX);
    let admission = Arc::new(AdmissionLimit::new(100));
    Rc::new(Sequencer::new(worker, shared, metrics, links, admission))
}

/// Publishes, as the consensus plane does, and lets the sequencer read it.
pub(super) fn publish(sequencer: &Sequencer, published: Published) {
    sequencer.shared.core.promise.raise(published.term);
    sequencer.shared.core.publish(Arc::new(published));
    let _view = sequencer.handle_publication();
}
