//! A worker's confirm links to the other members: asks every voter of a round, over its own links
//! or, where those do not make a quorum, over a sibling worker's. It never waits for a link.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use epicepoch_core::confirm::Begun;
use epicepoch_core::positions::Positions;
use epicepoch_core::publication::Published;
use epicepoch_wire::confirm::{Confirm, ConfirmReply};
use epicepoch_wire::frame::{FrameKind, HEADER_LEN, write_frame};
use epicepoch_wire::{ClusterId, NodeId, WorkerId};

use super::confirm_link::Link;
use super::mail::{Letter, Letterbox};
use super::sequencer::nanos;
use crate::metrics::Metrics;

/// See the module.
#[derive(Debug)]
pub(crate) struct Links {
    me: NodeId,
    worker: WorkerId,
    boxes: Arc<[Letterbox]>,
    metrics: Arc<Metrics>,
    own: RefCell<Vec<Rc<Link>>>,
    frame: RefCell<Vec<u8>>,
    silence_ns_max: u64,
}

impl Links {
    /// No links yet. A link that leaves a confirm unanswered for two election timeouts is closed:
    /// by then its voter, or the way to it, is gone.
    pub(crate) fn new(
        me: NodeId,
        worker: WorkerId,
        boxes: Arc<[Letterbox]>,
        metrics: Arc<Metrics>,
        election_timeout: Duration,
    ) -> Self {
        Self {
            me,
            worker,
            boxes,
            metrics,
            own: RefCell::default(),
            frame: RefCell::new(Vec::with_capacity(HEADER_LEN + Confirm::LEN)),
            silence_ns_max: 2 * nanos(election_timeout),
        }
    }

    /// Follows the membership: ends the links to those that left, and returns new ones to those
    /// that came, to be run.
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

    /// Asks every voter of a round.
    pub(crate) fn ask(&self, begun: &Begun, now_ns: u64) {
        let voters = &begun.published.voters;
        if voters.len() <= 1 {
            return;
        }
        let mut frame = self.frame.borrow_mut();
        frame.clear();
        self.encode(begun, &mut frame);
        let links = self.own.borrow();
        for link in links.iter() {
            if voters.position(link.member.node, link.member.store).is_some() {
                link.send(&frame, now_ns);
            }
        }
        let is_up = |node| {
            node == self.me || links.iter().any(|link| link.member.node == node && link.is_up())
        };
        if !voters.is_quorum_by(is_up) {
            for (node, _) in voters.iter().filter(|(node, _)| !is_up(*node)) {
                self.borrow(node, &frame);
            }
        }
    }

    /// Asks one voter of a round, over a link that was connected after the round had begun.
    pub(crate) fn ask_one(&self, node: NodeId, begun: &Begun, now_ns: u64) {
        let mut frame = Vec::with_capacity(HEADER_LEN + Confirm::LEN);
        self.encode(begun, &mut frame);
        for link in self.own.borrow().iter().filter(|link| link.member.node == node) {
            if begun.published.voters.position(node, link.member.store).is_some() {
                link.send(&frame, now_ns);
            }
        }
    }

    /// Sends a sibling's confirm.
    pub(crate) fn forward(&self, to: NodeId, frame: &[u8], now_ns: u64) {
        for link in self.own.borrow().iter().filter(|link| link.member.node == to) {
            link.send(frame, now_ns);
        }
    }

    /// Hands the answer to a forwarded confirm to the sibling that asked.
    pub(crate) fn hand_over(&self, from: NodeId, reply: ConfirmReply) {
        if let Some(letterbox) = self.boxes.get(reply.worker.0 as usize) {
            // A full box loses an answer, as a network may.
            let _ = letterbox.put(Letter::Reply { from, reply });
        }
    }

    /// Connects to a member again at once: it has just shown that it is there.
    pub(crate) fn nudge(&self, node: NodeId) {
        for link in self.own.borrow().iter().filter(|link| link.member.node == node) {
            link.nudge();
        }
    }

    /// Connects to every member that is not connected: this node leads from now on, and needs them.
    pub(crate) fn nudge_down(&self) {
        for link in self.own.borrow().iter().filter(|link| !link.is_up()) {
            link.nudge();
        }
    }

    /// Closes links that have left a confirm unanswered for too long.
    pub(crate) fn close_silent(&self, now_ns: u64) {
        for link in self.own.borrow().iter() {
            link.close_if_silent(now_ns, self.silence_ns_max);
        }
    }

    /// Closes links to runs whose data directory was found set back.
    pub(crate) fn close_set_back(&self, positions: &Positions) {
        for link in self.own.borrow().iter() {
            link.close_if_set_back(positions);
        }
    }

    /// Tells siblings and metrics which links are up.
    pub(crate) fn count(&self) {
        let links = self.own.borrow();
        let up = || links.iter().filter(|link| link.is_up()).map(|link| link.member.node);
        let worker = self.worker.0 as usize;
        self.boxes[worker].set_links_up(up());
        self.metrics.worker(worker).links.set(up().count() as u64);
    }

    fn encode(&self, begun: &Begun, frame: &mut Vec<u8>) {
        let cluster = begun.published.cluster;
        write_frame(frame, FrameKind::Confirm, cluster, self.me, |out| begun.confirm.encode(out));
    }

    fn borrow(&self, node: NodeId, frame: &[u8]) {
        let own = self.worker.0 as usize;
        let siblings = self.boxes.iter().enumerate().filter(|(sibling, _)| *sibling != own);
        for (_, letterbox) in siblings {
            if letterbox.may_reach(node) {
                let letter = Letter::Forward { to: node, frame: frame.to_vec() };
                if letterbox.put(letter).is_ok() {
                    self.metrics.worker(own).confirms_borrowed.add_alone(1);
                    return;
                }
            }
        }
    }
}
