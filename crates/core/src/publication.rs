//! The publication: one immutable object from the consensus plane that every worker reads. It says
//! who leads, who votes, and which range this node may stamp in. A worker reads it once per round,
//! after the round's batch has closed; earlier reads do not count.
//!
//! Publishing swaps one pointer, so that term, voters and grant always belong together.

use std::collections::BTreeMap;
use std::sync::Arc;

use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::{
    BootId, ClusterId, Epoch, HistoryId, Mode, NodeId, StoreId, Term, TimestampFormat,
};

pub use crate::epoch_range::EpochRange;
use crate::interval::Opening;
use crate::lease::Lease;
use crate::positions::{PeerBoot, Positions, RolledBack};
use crate::promise::Promise;
use crate::quorum::Voters;
use crate::state::FORMATS;
use crate::sync::{AtomicU64, Mutex, Ordering, PoisonError, SwapPointer};

/// This node, its data directory and its boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The node.
    pub node: NodeId,
    /// Its data directory.
    pub store: StoreId,
    /// The boot of its process.
    pub boot: BootId,
}

/// The right to stamp: a range assigned to this node and boot in a term that it leads.
///
/// Invariant: `range.low < range.high`; published only from applying an entry (S3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The term that the range was assigned in. Rounds confirm this term.
    pub term: Term,
    /// The boot that it was assigned to.
    pub boot: BootId,
    /// The epochs.
    pub range: EpochRange,
}

/// The role of this node in its current term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Follows a leader, or waits for one.
    #[default]
    Follower,
    /// Asks for votes or pre-votes.
    Candidate,
    /// Leads. Only a grant lets it stamp.
    Leader,
}

/// The consensus plane's message to the workers.
#[derive(Clone, Debug)]
pub struct Published {
    /// This node's identity.
    pub identity: Identity,
    /// The cluster; part of every confirm.
    pub cluster: ClusterId,
    /// The history; part of every answer.
    pub history: HistoryId,
    /// The library's current term, for people. No decision reads it.
    pub term: Term,
    /// The role in that term. No safety decision reads it.
    pub role: Role,
    /// The leader, if known. Clients are sent there.
    pub leader: Option<NodeId>,
    /// The voters of the applied configuration.
    pub voters: Voters,
    /// The right to stamp, if there is one.
    pub grant: Option<Grant>,
    /// The lease of the grant's term, if there is one (S20).
    pub lease: Option<Lease>,
    /// The members, voters or not.
    pub members: Arc<BTreeMap<NodeId, Member>>,
    /// The format that a node must read to receive log entries or the state (S15).
    pub format: u32,
    /// The settings of the cluster as applied here; `None` before they are seeded.
    pub settings: Option<Arc<ClusterSettings>>,
    /// The epoch interval in the settings of the cluster, nanoseconds.
    pub epoch_interval_ns: Option<u64>,
    /// Which timestamps the cluster gives, as applied here. It never goes back to wide (S21). It is
    /// published together with the grant, and a grant comes from applying an entry. So no grant of an
    /// entry behind the setting is used for wide timestamps.
    pub timestamp_format: TimestampFormat,
    /// How the cluster gives timestamps, as applied here. A publication with interval mode has no
    /// grant (S24).
    pub mode: Mode,
    /// Interval mode, once this node may give interval timestamps: the mode is applied here and does
    /// not close, the node is a member, and no lease of an earlier leader can run any more (S20, S24,
    /// S26).
    pub opening: Option<Opening>,
    /// The number of the change by which interval mode closes; `None` if it does not (S26).
    pub closing: Option<u64>,
}

impl Published {
    /// The publication of a node before its replica runs.
    #[must_use]
    pub fn nothing(identity: Identity) -> Self {
        Self {
            identity,
            cluster: ClusterId::default(),
            history: HistoryId::default(),
            term: Term::default(),
            role: Role::Follower,
            leader: None,
            voters: Voters::default(),
            grant: None,
            lease: None,
            members: Arc::new(BTreeMap::new()),
            format: FORMATS.oldest,
            settings: None,
            epoch_interval_ns: None,
            timestamp_format: TimestampFormat::Wide,
            mode: Mode::Quorum,
            opening: None,
            closing: None,
        }
    }

    /// The leader's member record, for clients. `None` if no leader is known, or this node is the
    /// leader.
    #[must_use]
    pub fn other_leader(&self) -> Option<&Member> {
        let leader = self.leader.filter(|leader| *leader != self.identity.node)?;
        self.members.get(&leader)
    }

    /// Whether the cluster gives compact timestamps, as applied here.
    #[must_use]
    pub fn is_compact(&self) -> bool {
        self.timestamp_format == TimestampFormat::Compact
    }

    /// Whether this node has joined its cluster.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        self.members.contains_key(&self.identity.node)
    }

    /// The code with which a node that does not lead refuses requests.
    #[must_use]
    pub fn refusal(&self) -> ErrorCode {
        if self.mode == Mode::Interval {
            ErrorCode::OtherMode
        } else if self.other_leader().is_some_and(|leader| !leader.client_addr.is_empty()) {
            ErrorCode::NotLeader
        } else if self.is_joined() {
            ErrorCode::NoLeader
        } else {
            ErrorCode::NotReady
        }
    }
}

/// The state that both planes of a node share: one Promise and one published pointer.
#[derive(Debug)]
pub struct Shared {
    /// The highest term promised.
    pub promise: Promise,
    published: SwapPointer<Published>,
    positions: SwapPointer<Positions>,
    /// The epoch of the last timestamp of this node.
    stamped: AtomicU64,
    /// The steps of the consensus plane; recorded only in the simulator.
    recorder: Option<Box<Mutex<Vec<Step>>>>,
}

/// A step of the consensus plane that workers may see.
#[derive(Clone, Debug)]
pub enum Step {
    /// The Promise was raised to this term.
    Raised(Term),
    /// A new publication.
    Published(Arc<Published>),
}

impl Shared {
    /// Shares `published`, and a Promise that begins at the durable term.
    #[must_use]
    pub fn new(durable_term: Term, published: Published) -> Self {
        Self {
            promise: Promise::new(durable_term),
            published: SwapPointer::new(published),
            positions: SwapPointer::new(Positions::default()),
            stamped: AtomicU64::new(0),
            recorder: None,
        }
    }

    /// Like [`Shared::new`], and keeps every step of the consensus plane until
    /// [`Shared::take_steps`], which the simulator calls after every call of the replica.
    #[must_use]
    pub fn recorded(durable_term: Term, published: Published) -> Self {
        Self { recorder: Some(Box::new(Mutex::new(vec![]))), ..Self::new(durable_term, published) }
    }

    /// The steps since the last call, in order; none if they are not recorded.
    #[must_use]
    pub fn take_steps(&self) -> Vec<Step> {
        let Some(recorder) = &self.recorder else { return vec![] };
        std::mem::take(&mut recorder.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Raises the Promise to `term`, if the Promise is below. Only the consensus plane calls this.
    pub fn raise(&self, term: Term) {
        let is_raised = self.recorder.is_some() && term > self.promise.load();
        self.promise.raise(term);
        if is_raised {
            self.record(Step::Raised(term));
        }
    }

    /// The positions of this node's data directory and of its peers. The node names its own in a
    /// hello, and checks each peer against the position known of it.
    #[must_use]
    pub fn positions(&self) -> Arc<Positions> {
        self.positions.load()
    }

    /// Checks that a peer has forgotten nothing: [`Positions::check`], without waiting.
    ///
    /// # Errors
    /// When the peer's data directory is known to be rolled back.
    pub fn check_peer(&self, peer: PeerBoot) -> Result<(), RolledBack> {
        self.positions.read(|positions| positions.check(peer))
    }

    /// Replaces the positions. Called by the consensus plane, and once at the start before any peer
    /// connects.
    pub fn set_positions(&self, positions: Positions) {
        self.positions.store(Arc::new(positions));
    }

    /// Swaps the published pointer. Only the consensus plane calls this; it never waits.
    pub fn publish(&self, published: Arc<Published>) {
        if self.recorder.is_some() {
            self.record(Step::Published(published.clone()));
        }
        self.published.store(published);
    }

    /// The epoch of the last timestamp of this node; 0 before the first. It may be behind, never ahead.
    /// An advance to a lower epoch is done already (S14).
    #[must_use]
    pub fn stamped(&self) -> Epoch {
        Epoch(self.stamped.load(Ordering::Relaxed))
    }

    /// Records the epoch of the last timestamp. Only the allocator calls this, and the simulator,
    /// whose workers and replica have a [`Shared`] each.
    pub fn record_stamped(&self, epoch: Epoch) {
        self.stamped.store(epoch.0, Ordering::Relaxed);
    }

    fn record(&self, step: Step) {
        if let Some(recorder) = &self.recorder {
            recorder.lock().unwrap_or_else(PoisonError::into_inner).push(step);
        }
    }

    /// The current publication.
    #[must_use]
    pub fn published(&self) -> Arc<Published> {
        self.published.load()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_kept_in_their_order_where_they_are_asked_for_and_nowhere_else() {
        let me = Identity { node: NodeId(1), store: StoreId(1), boot: BootId(1) };
        let of = |term| Arc::new(Published { term: Term(term), ..Published::nothing(me) });
        let steps = |shared: &Shared| {
            for (raised, published) in [(4, 3), (4, 5), (5, 5)] {
                shared.raise(Term(raised));
                shared.publish(of(published));
            }
            let said = shared.take_steps().into_iter().map(|step| match step {
                Step::Raised(term) => ("raised", term.0),
                Step::Published(published) => ("published", published.term.0),
            });
            said.collect::<Vec<_>>()
        };
        let recorded = Shared::recorded(Term(2), Published::nothing(me));
        let said = [("raised", 4), ("published", 3), ("published", 5), ("raised", 5)];
        assert_eq!(steps(&recorded), [&said[..], &[("published", 5)]].concat());
        assert!(recorded.take_steps().is_empty(), "each is told once");
        assert_eq!(steps(&Shared::new(Term(2), Published::nothing(me))), []);
    }

    #[test]
    fn clients_are_sent_to_another_member_and_never_to_this_node_or_a_stranger() {
        let me = Identity { node: NodeId(1), store: StoreId(1), boot: BootId(1) };
        let member = |node| Member {
            node: NodeId(node),
            store: StoreId(u128::from(node)),
            raft_addr: "r:1".into(),
            client_addr: format!("c:{node}"),
        };
        let members = [1, 2].map(|node| (NodeId(node), member(node)));
        let published = Published { members: Arc::new(members.into()), ..Published::nothing(me) };
        let sent = |leader: Option<u64>| {
            let published = Published { leader: leader.map(NodeId), ..published.clone() };
            published.other_leader().cloned()
        };
        assert_eq!(sent(Some(2)), Some(member(2)));
        assert_eq!([None, Some(1), Some(3)].map(sent), [None, None, None]);
        let code = |leader| Published { leader, ..published.clone() }.refusal();
        assert_eq!(code(Some(NodeId(2))), ErrorCode::NotLeader);
        assert_eq!([code(None), code(Some(NodeId(1)))], [ErrorCode::NoLeader; 2]);
        assert_eq!(Published::nothing(me).refusal(), ErrorCode::NotReady);
    }
}
