//! A few replicas that talk to each other, in steps of a tick. Disks and links take no time. A link
//! is either good or cut. Each tick checks that equal applied indexes have equal states, and each
//! answer checks that timestamps rise.

use std::collections::{BTreeMap, BTreeSet};

use epicepoch_core::allocator::{Allocator, Now};
use epicepoch_core::confirm::{Answers, Confirmed, Rounds};
use epicepoch_core::publication::{Published, Role};
use epicepoch_core::replica::{MessageError, Replica, Report};
use epicepoch_core::state::FORMATS;
use epicepoch_wire::bootstrap::Genesis;
use epicepoch_wire::{BootId, Epoch, NodeId, Timestamp, TimestampRange, WorkerId};

use super::bench::{Bench, ELECTION_TICKS, EPOCH_INTERVAL_NS, START_NS, TICK_NS, genesis, store};
use super::disk::Disk;

/// Ticks within which healthy nodes elect a leader that has a grant.
pub(crate) const ELECTED_TICKS: u64 = 6 * ELECTION_TICKS as u64;
/// At most this many times in a tick, delivered messages cause further messages.
const HOPS_MAX: usize = 100;

struct Node {
    bench: Bench,
    allocator: Allocator,
    boots: u64,
    is_down: bool,
    /// Whether the consensus thread is paused: it gets no ticks and no messages. The workers go on.
    is_paused: bool,
}

/// Nodes by id, the time, and the answers to clients.
pub(crate) struct Cluster {
    nodes: BTreeMap<NodeId, Node>,
    genesis: Genesis,
    seed: u64,
    pub(crate) now_ns: u64,
    /// Trusted time minus the cluster's time, the same on every node, nanoseconds.
    pub(crate) ahead_ns: i64,
    cuts: BTreeSet<(NodeId, NodeId)>,
    /// The highest timestamp that was answered.
    newest: Option<Timestamp>,
}

impl Cluster {
    /// A running cluster of the voters 1 to `voters`.
    pub(crate) fn started(seed: u64, voters: u64) -> Self {
        let mut cluster = Self::new(seed, voters);
        (1..=voters).for_each(|id| cluster.add(id, |_| ()));
        cluster
    }

    /// A cluster of the voters 1 to `voters`, none of which has started yet.
    pub(crate) fn new(seed: u64, voters: u64) -> Self {
        Self {
            nodes: BTreeMap::new(),
            genesis: genesis(&(1..=voters).collect::<Vec<_>>()),
            seed,
            now_ns: 0,
            ahead_ns: 0,
            cuts: BTreeSet::new(),
            newest: None,
        }
    }

    /// Starts a first member. `prepare` may change its disk before the start.
    pub(crate) fn add(&mut self, id: u64, prepare: impl FnOnce(&mut Disk)) {
        let mut disk = Disk::genesis(&self.genesis);
        prepare(&mut disk);
        self.boot(NodeId(id), disk, 1);
    }

    /// Starts a node that knows the cluster but is not a member.
    pub(crate) fn add_joining(&mut self, id: u64) {
        self.boot(NodeId(id), Disk::joining(&self.genesis), 1);
    }

    fn boot(&mut self, id: NodeId, disk: Disk, boots: u64) {
        let mut bench = Bench::made(disk, |config| {
            config.seed = self.seed * 100 + id.0 * 10 + boots;
            config.identity.node = id;
            config.identity.store = store(id.0);
            config.identity.boot = BootId(id.0 * 100 + boots);
            config.format_max = FORMATS.newest;
        });
        bench.now_ns = self.now_ns;
        let allocator = Allocator::new(bench.shared.clone(), EPOCH_INTERVAL_NS);
        let node = Node { bench, allocator, boots, is_down: false, is_paused: false };
        self.nodes.insert(id, node);
    }

    /// Ends a process. If `is_seen`, its peers see its connections close.
    pub(crate) fn crash(&mut self, id: NodeId, is_seen: bool) {
        self.node(id).is_down = true;
        for other in self.ids() {
            if is_seen && other != id {
                self.with(other, |replica, now_ns| replica.handle_closed(now_ns, id));
            }
        }
    }

    /// Starts a process from its durable content. A process that still runs ends first.
    pub(crate) fn restart(&mut self, id: NodeId) {
        let mut node = self.nodes.remove(&id).expect("a node of this cluster");
        node.bench.disk.crash();
        self.boot(id, node.bench.disk, node.boots + 1);
    }

    pub(crate) fn pause(&mut self, id: NodeId) {
        self.node(id).is_paused = true;
    }

    /// Cuts a node off from all others.
    pub(crate) fn isolate(&mut self, id: NodeId) {
        for other in self.ids() {
            self.cuts.extend([(id, other), (other, id)]);
        }
    }

    /// Cuts the link from one node to another, in this direction.
    pub(crate) fn cut(&mut self, from: NodeId, to: NodeId) {
        self.cuts.insert((from, to));
    }

    pub(crate) fn heal(&mut self) {
        self.cuts.clear();
    }

    /// Ticks every node, then delivers messages until none is left.
    pub(crate) fn tick(&mut self) {
        self.now_ns += TICK_NS;
        let (now_ns, trusted_ns) = (self.now_ns, self.trusted_ns());
        for id in self.running() {
            let has_confirmed = self.confirm(id, 1).is_some();
            let bench = &mut self.node(id).bench;
            bench.now_ns = now_ns;
            if has_confirmed {
                bench.replica.handle_rounds(now_ns);
            }
            bench.replica.handle_tick(now_ns, trusted_ns).expect("no reason to stop");
            bench.drain();
        }
        self.deliver();
        let mut states = BTreeMap::new();
        for id in self.running() {
            let replica = &self.nodes[&id].bench.replica;
            let state = replica.state().encode();
            let other = states.entry(replica.applied()).or_insert_with(|| state.clone());
            assert_eq!(*other, state, "node {id} at {}", replica.applied());
        }
    }

    fn deliver(&mut self) {
        for _ in 0..HOPS_MAX {
            let mut sent = vec![];
            for id in self.running() {
                let Node { bench, allocator, .. } = self.node(id);
                if bench.replica.take_stop() {
                    bench.replica.handle_allocator_stopped(bench.now_ns, allocator.stop());
                    bench.drain();
                }
                bench.persist();
                sent.extend(bench.sent().into_iter().map(|out| (id, out)));
            }
            if sent.is_empty() {
                return;
            }
            for (from, out) in sent {
                if self.cuts.contains(&(from, out.to)) || !self.running().contains(&out.to) {
                    continue;
                }
                // A node may refuse a message of a stranger or of a removed member. Correct peers
                // cause no other refusal.
                let taken = self.node(out.to).bench.take(from.0, &out.message);
                let is_worse = matches!(
                    taken,
                    Err(MessageError::LostEntries { .. }
                        | MessageError::ContradictsCommit
                        | MessageError::Impossible)
                );
                assert!(!is_worse, "{out:?} of {from}: {taken:?}");
            }
        }
        panic!("messages without end");
    }

    pub(crate) fn ticks(&mut self, count: u64) {
        (0..count).for_each(|_| self.tick());
    }

    /// Ticks until `holds`, at most `ticks` times.
    pub(crate) fn until(&mut self, ticks: u64, what: &str, holds: impl Fn(&Self) -> bool) {
        for _ in 0..ticks {
            if holds(self) {
                return;
            }
            self.tick();
        }
        let nodes = self.nodes.iter().map(|(id, node)| (*id, node.bench.status()));
        assert!(holds(self), "not within {ticks} ticks: {what}: {:#?}", nodes.collect::<Vec<_>>());
    }

    /// Ticks until there is a leader with a grant.
    pub(crate) fn elect(&mut self) -> NodeId {
        self.until(2 * ELECTED_TICKS, "a leader with a grant", |it| it.leader().is_some());
        self.leader().expect("there is one")
    }

    /// Ticks until another node than `old` is the leader with a grant.
    pub(crate) fn elect_another(&mut self, old: NodeId) -> NodeId {
        let another = |it: &Self| it.leader().is_some_and(|id| id != old);
        self.until(2 * ELECTED_TICKS, "another leader", another);
        self.leader().expect("there is one")
    }

    /// Sends one request in each of `ticks` ticks. Each must be answered.
    pub(crate) fn load(&mut self, id: NodeId, ticks: u64) {
        for tick in 0..ticks {
            assert!(self.ask(id, 1 + tick % 3).is_some(), "{id} refuses");
            self.tick();
        }
    }

    /// Asks a node for `count` timestamps. Returns `None` if the round fails or the allocator
    /// refuses.
    pub(crate) fn ask(&mut self, id: NodeId, count: u64) -> Option<TimestampRange> {
        let now = Now { monotonic_ns: self.now_ns, trusted_ns: self.trusted_ns() };
        let key = self.confirm(id, count)?;
        let range = self.nodes[&id].allocator.allocate(key, now).ok()?;
        assert!(self.newest < Some(range.first()), "{range:?} after {:?}", self.newest);
        self.newest = Some(range.last());
        Some(range)
    }

    /// Runs a round of one of this node's workers for a batch of `count`. The workers of all
    /// running voters answer it.
    fn confirm(&self, id: NodeId, count: u64) -> Option<Confirmed> {
        let shared = &self.nodes[&id].bench.shared;
        let identity = shared.published().identity;
        let mut rounds = Rounds::new(identity, WorkerId(0));
        let begun = rounds.begin(|| ((), count), shared, u64::MAX).ok()?;
        for (voter, _) in begun.published.voters.iter() {
            let is_cut = self.cuts.contains(&(id, voter));
            let asked = self.nodes.get(&voter).filter(|it| !is_cut && !it.is_down && voter != id);
            if let Some(Node { bench, .. }) = asked {
                let published = bench.shared.published();
                let mut answers = Answers::new(identity, published.cluster, published.identity);
                let reply = answers.handle_confirm(&begun.confirm, &bench.shared.promise);
                rounds.handle_reply(voter, &reply.expect("it is this caller's"));
            }
        }
        rounds.poll_confirmed().map(|((), key)| key)
    }

    /// Calls the replica of a node. Its messages are delivered in the next tick.
    pub(crate) fn with<R>(&mut self, id: NodeId, call: impl FnOnce(&mut Replica, u64) -> R) -> R {
        let now_ns = self.now_ns;
        let bench = &mut self.node(id).bench;
        let result = call(&mut bench.replica, now_ns);
        bench.drain();
        result
    }

    /// The node with a grant of the highest term.
    pub(crate) fn leader(&self) -> Option<NodeId> {
        let leads = |id: &NodeId| {
            let published = self.published(*id);
            published.role == Role::Leader && published.grant.is_some()
        };
        let leaders = self.ids().into_iter().filter(|id| !self.nodes[id].is_down && leads(id));
        leaders.max_by_key(|id| self.published(*id).term)
    }

    pub(crate) fn ids(&self) -> Vec<NodeId> {
        self.nodes.keys().copied().collect()
    }

    /// Nodes whose consensus thread runs.
    fn running(&self) -> Vec<NodeId> {
        let running = self.nodes.iter().filter(|(_, node)| !node.is_down && !node.is_paused);
        running.map(|(id, _)| *id).collect()
    }

    fn node(&mut self, id: NodeId) -> &mut Node {
        self.nodes.get_mut(&id).expect("a node of this cluster")
    }

    pub(crate) fn bench(&self, id: NodeId) -> &Bench {
        &self.nodes[&id].bench
    }

    pub(crate) fn published(&self, id: NodeId) -> std::sync::Arc<Published> {
        self.bench(id).shared.published()
    }

    pub(crate) fn epoch(&self, id: NodeId) -> Epoch {
        self.nodes[&id].allocator.epoch()
    }

    pub(crate) fn has_reported(&self, id: NodeId, holds: impl Fn(&Report) -> bool) -> bool {
        self.bench(id).reports.iter().any(holds)
    }

    /// The time that every node trusts, Unix nanoseconds.
    pub(crate) fn trusted_ns(&self) -> u64 {
        (START_NS + self.now_ns).saturating_add_signed(self.ahead_ns)
    }
}
