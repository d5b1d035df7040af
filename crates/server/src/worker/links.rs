//! A worker's confirm links to the other members. A round asks voters over the worker's own links.
//! If those links do not reach a quorum, the round also uses links of sibling workers. The core's
//! [`Routing`] decides which; this module sends. No function here waits for a link.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use epicepoch_core::confirm::{Begun, LinkState, Receiver, Routing};
use epicepoch_core::positions::{PeerBoot, RolledBack};
use epicepoch_core::publication::{Identity, Published, Shared};
use epicepoch_wire::confirm::{Confirm, ConfirmReply};
use epicepoch_wire::frame::{FrameKind, HEADER_LEN, write_frame};
use epicepoch_wire::{ClusterId, NodeId, WorkerId};

use super::link::Link;
use super::mailbox::{Mailbox, WorkerMessage};
use crate::addresses::book::AddressBook;
use crate::metrics::Metrics;
use crate::shared::nanos;

/// The confirm links of one worker.
#[derive(Debug)]
pub(crate) struct Links {
    me: NodeId,
    worker: WorkerId,
    routing: RefCell<Routing>,
    boxes: Arc<[Mailbox]>,
    metrics: Arc<Metrics>,
    own: RefCell<Vec<Rc<Link>>>,
    frame: RefCell<Vec<u8>>,
    silence_ns_max: u64,
}

impl Links {
    /// A worker without links. A link that leaves a confirm unanswered for two election timeouts
    /// will be closed: by then the voter, or the network to it, is gone. [`Routing::new`] says what
    /// `alone_ns` is.
    pub(crate) fn new(
        me: Identity,
        worker: WorkerId,
        boxes: Arc<[Mailbox]>,
        metrics: Arc<Metrics>,
        election_timeout: Duration,
        alone_ns: u64,
    ) -> Self {
        Self {
            me: me.node,
            worker,
            routing: RefCell::new(Routing::new(me, worker, alone_ns)),
            boxes,
            metrics,
            own: RefCell::default(),
            frame: RefCell::new(Vec::with_capacity(HEADER_LEN + Confirm::LEN)),
            silence_ns_max: 2 * nanos(election_timeout),
        }
    }

    /// Follows the membership: ends the links to members that have left, and returns new links for
    /// members that were added. The caller must run the new links.
    pub(crate) fn reconcile(&self, published: &Published) -> Vec<Rc<Link>> {
        let mut links = self.own.borrow_mut();
        links.retain(|link| {
            let is_member = published.members.get(&link.member.node).is_some_and(|member| {
                (member.store, &member.raft_addr) == (link.member.store, &link.member.raft_addr)
            });
            if !is_member {
                link.remove();
            }
            is_member
        });
        let mut new = Vec::new();
        for member in published.members.values() {
            let is_linked = links.iter().any(|link| link.member.node == member.node);
            if member.node != self.me && !is_linked && published.cluster != ClusterId::default() {
                let link = Rc::new(Link::new(member.clone()));
                links.push(link.clone());
                new.push(link);
            }
        }
        drop(links);
        self.count();
        new
    }

    /// Asks the voters of a round that begins. Returns whether some were not asked.
    pub(crate) fn ask(&self, begun: &Begun, now_ns: u64) -> bool {
        let mut frame = self.frame.borrow_mut();
        frame.clear();
        self.encode(begun, &mut frame);
        let links = self.own.borrow();
        let links = links.iter().map(|link| (state(link), link));
        let send = |link: &Rc<Link>| link.send(&frame, now_ns);
        let borrow = |node| self.borrow(node, &frame);
        self.routing.borrow_mut().ask(begun, now_ns, links, send, borrow)
    }

    /// Asks the voters that the newest round in flight has not asked.
    pub(crate) fn ask_rest(&self, newest: &Begun, now_ns: u64) {
        let mut frame = self.frame.borrow_mut();
        frame.clear();
        self.encode(newest, &mut frame);
        let links = self.own.borrow();
        let links = links.iter().map(|link| (state(link), link));
        let send = |link: &Rc<Link>| link.send(&frame, now_ns);
        if self.routing.borrow_mut().ask_rest(newest, now_ns, links, send) {
            self.metrics.worker(self.worker.0 as usize).rounds_widened.add_alone(1);
        }
    }

    /// Asks all voters of a round whose voters are others than those of newer rounds.
    pub(crate) fn ask_all(&self, begun: &Begun, now_ns: u64) {
        let mut frame = self.frame.borrow_mut();
        frame.clear();
        self.encode(begun, &mut frame);
        let links = self.own.borrow();
        let links = links.iter().map(|link| (state(link), link));
        Routing::ask_all(begun, links, |link: &Rc<Link>| link.send(&frame, now_ns));
    }

    /// Whether voters are left that the newest round can ask.
    pub(crate) fn is_part(&self) -> bool {
        self.routing.borrow().is_part()
    }

    /// Whether an answer is late, if the oldest round in flight began at `begun_ns`.
    pub(crate) fn is_late(&self, begun_ns: u64, now_ns: u64) -> bool {
        self.routing.borrow().is_late(begun_ns, now_ns)
    }

    /// Asks one voter of a round, because its link connected after the round began.
    pub(crate) fn ask_one(&self, node: NodeId, begun: &Begun, now_ns: u64) {
        let mut frame = Vec::with_capacity(HEADER_LEN + Confirm::LEN);
        self.encode(begun, &mut frame);
        for link in self.own.borrow().iter().filter(|link| link.member.node == node) {
            if begun.asks(node, link.member.store) {
                link.send(&frame, now_ns);
            }
        }
    }

    /// Sends a sibling worker's confirm to `to`, because the sibling has no link to that member.
    pub(crate) fn forward(&self, to: NodeId, frame: &[u8], now_ns: u64) {
        for link in self.own.borrow().iter().filter(|link| link.member.node == to) {
            link.send(frame, now_ns);
        }
    }

    /// Whether an answer of `voter`, which has arrived over a link of this worker at `now_ns`, is
    /// for this worker. If it answers a forwarded confirm, passes it to the sibling worker that
    /// asked.
    ///
    /// # Errors
    /// When the voter's data directory is known to be rolled back. End the link.
    pub(crate) fn is_own(
        &self,
        core: &Shared,
        voter: PeerBoot,
        reply: ConfirmReply,
        now_ns: u64,
    ) -> Result<bool, RolledBack> {
        let mut routing = self.routing.borrow_mut();
        Ok(match routing.receiver(core, voter, &reply)? {
            Receiver::Own => {
                routing.handle_reply(voter.node, &reply, now_ns);
                true
            }
            Receiver::Sibling(worker) => {
                if let Some(mailbox) = self.boxes.get(worker.0 as usize) {
                    // When the mailbox is full, the answer is lost. That is safe, because a network
                    // may lose an answer, too.
                    let _ = mailbox.put(WorkerMessage::Reply { from: voter.node, reply });
                }
                false
            }
        })
    }

    /// Shortens the wait before the next attempt to connect to a member, because the member is
    /// known to run.
    pub(crate) fn nudge(&self, node: NodeId) {
        for link in self.own.borrow().iter().filter(|link| link.member.node == node) {
            link.nudge();
        }
    }

    /// Shortens the wait of every link that is not connected, because this node leads from now on
    /// and needs them.
    pub(crate) fn nudge_down(&self) {
        for link in self.own.borrow().iter().filter(|link| !link.is_up()) {
            link.nudge();
        }
    }

    /// Closes links on which a confirm has waited too long for its answer, and links to processes
    /// that are known to be replaced. Their machine may be gone, and then nothing closes them.
    pub(crate) fn close_dead(&self, book: &AddressBook, now_ns: u64) {
        for link in self.own.borrow().iter() {
            link.close_if_silent(now_ns, self.silence_ns_max);
            let (process, _) = link.boot.get();
            let is_replaced = book.is_replaced(link.member.node, process, link.welcomed.get());
            if link.is_up() && is_replaced {
                link.hang_up.set();
            }
        }
    }

    /// Tells sibling workers and the metrics which links are connected.
    pub(crate) fn count(&self) {
        let links = self.own.borrow();
        let up = || links.iter().filter(|link| link.is_up()).map(|link| link.member.node);
        let worker = self.worker.0 as usize;
        self.boxes[worker].links_up.set(up());
        self.metrics.worker(worker).links.set(up().count() as u64);
    }

    fn encode(&self, begun: &Begun, frame: &mut Vec<u8>) {
        let cluster = begun.published.cluster;
        write_frame(frame, FrameKind::Confirm, cluster, self.me, |out| begun.confirm.encode(out));
    }

    fn borrow(&self, node: NodeId, frame: &[u8]) {
        let links = self.boxes.iter().map(|mailbox| &mailbox.links_up);
        for sibling in Routing::lenders(self.worker, node, links) {
            let message = WorkerMessage::Forward { to: node, frame: frame.to_vec() };
            if self.boxes[sibling.0 as usize].put(message).is_ok() {
                self.metrics.worker(self.worker.0 as usize).confirms_borrowed.add_alone(1);
                return;
            }
        }
    }
}

fn state(link: &Link) -> LinkState {
    LinkState { node: link.member.node, store: link.member.store, is_up: link.is_up() }
}

#[cfg(test)]
mod tests {
    use epicepoch_core::publication::Role;
    use tokio::net::{TcpListener, TcpStream};

    use super::super::fixture::{publish, published, sequencer};
    use super::super::link::Pipe;
    use super::*;
    use crate::security::tls::peer_stream::PeerStream;

    #[tokio::test(flavor = "current_thread")]
    async fn links_connect_sooner_when_their_member_calls_or_this_node_begins_to_lead() {
        let sequencer = sequencer(WorkerId(0));
        let links = sequencer.links.reconcile(&published(Role::Follower, 4));
        // The link to node 3 is connected.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (_reader, writer) = PeerStream::Plain(stream).into_split();
        links[1].pipe.replace(Some(Pipe { stream: Rc::new(writer), out: Vec::new() }));
        let nudged = || {
            let nudged = links.iter().filter(|link| link.retry.is_set());
            let nodes: Vec<_> = nudged.map(|link| link.member.node.0).collect();
            for link in &links {
                link.retry.clear();
            }
            nodes
        };
        sequencer.links.nudge(NodeId(2));
        assert_eq!(nudged(), [2]);
        let publish = |role| {
            publish(&sequencer, published(role, 4));
            nudged()
        };
        assert!(publish(Role::Follower).is_empty());
        assert_eq!(publish(Role::Leader), [2, 4]);
        assert!(publish(Role::Leader).is_empty(), "it led before");
        assert!(publish(Role::Follower).is_empty());
    }
}
