//! What can happen in a world. Everything is one of these, and nothing happens between two.

use std::rc::Rc;
use std::sync::Arc;

use epicepoch_core::publication::Published;
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::confirm::{Confirm, ConfirmReply};
use epicepoch_wire::gossip::{Ping, Pong};
use epicepoch_wire::{BootId, NodeId, StorePosition, TimestampRange};

use crate::faults::End;
use crate::node::{Asker, Plane, Request, Run};
use crate::operators::Order;

/// What a client is told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Told {
    /// Its timestamps.
    Given(TimestampRange),
    /// No; and who may know better.
    Refused(Option<NodeId>),
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    // The consensus plane of a node.
    Tick,
    Written,
    Raft {
        from: NodeId,
        run: Run,
        bytes: Rc<[u8]>,
    },
    Closed {
        peer: NodeId,
    },
    /// A run of `from` introduces itself over a new connection; whoever is asked to answers in kind.
    Introduced {
        from: NodeId,
        boot: BootId,
        member: Rc<Member>,
        is_answered: bool,
    },
    /// Operators ask something of the node, and hear nothing while it stands still.
    Ordered {
        order: Order,
    },
    /// The process is going to stop.
    Depart,
    /// The next of what follows a call of the replica: the Promise is raised, what is published is
    /// published, what may leave leaves.
    Share,
    Ping {
        from: NodeId,
        boot: BootId,
        since: StorePosition,
        ping: Ping,
    },
    /// `since` was known of the answering node's position when `boot` asked.
    Pong {
        from: NodeId,
        run: Run,
        boot: BootId,
        since: StorePosition,
        pong: Pong,
    },
    // The workers of a node.
    Arrive {
        worker: usize,
        asker: Asker,
        count: u64,
    },
    /// Closes the open batch, reads what is published and the own Promise.
    Turn {
        worker: usize,
    },
    /// Sends what a turn has decided to ask.
    Ask {
        confirm: Confirm,
        published: Arc<Published>,
    },
    /// A confirm frame has come; the Promise is not loaded yet.
    Confirm {
        from: NodeId,
        confirm: Confirm,
    },
    /// The Promise is loaded; the answer is not sent yet.
    Load {
        from: NodeId,
        confirm: Confirm,
    },
    Send {
        to: NodeId,
        reply: ConfirmReply,
    },
    Reply {
        from: NodeId,
        run: Run,
        reply: ConfirmReply,
    },
    Allocate {
        worker: usize,
    },
    /// An answer leaves the node.
    Answer {
        request: Request,
        told: Told,
    },
    /// Deadlines, and the probe of an idle leader.
    WorkerTick {
        worker: usize,
    },
    // The world's.
    Client {
        client: usize,
    },
    GiveUp {
        asker: Asker,
    },
    Told {
        asker: Asker,
        told: Told,
        by: NodeId,
    },
    Fault,
    /// Operators change what is replicated.
    Operate,
    /// A fault that something delicate on a node has provoked.
    Strike {
        node: NodeId,
    },
    /// A node is cut off from a set of others.
    Divide {
        node: NodeId,
        from: u16,
        planes: &'static [Plane],
    },
    End {
        end: End,
    },
}

impl Event {
    /// Which threads of a node it needs; `None` for what is not a node's.
    pub(crate) const fn plane(&self) -> Option<Plane> {
        match self.place() {
            Some((plane, _)) => Some(plane),
            None => None,
        }
    }

    /// Which thread of a node it needs, by [`Plane::threads`]; `None` for what is not a node's.
    pub(crate) fn thread(&self) -> Option<usize> {
        self.place().map(|(plane, at)| plane.threads().start + at)
    }

    /// The plane, and which of its threads. A round is answered by the worker with the number of the one
    /// that asks.
    const fn place(&self) -> Option<(Plane, usize)> {
        let worker = match self {
            Self::Tick
            | Self::Written
            | Self::Raft { .. }
            | Self::Closed { .. }
            | Self::Introduced { .. }
            | Self::Ordered { .. }
            | Self::Depart
            | Self::Share
            | Self::Ping { .. }
            | Self::Pong { .. } => return Some((Plane::Raft, 0)),
            Self::Arrive { worker, .. }
            | Self::Turn { worker }
            | Self::Allocate { worker }
            | Self::WorkerTick { worker } => *worker,
            Self::Ask { confirm, .. }
            | Self::Confirm { confirm, .. }
            | Self::Load { confirm, .. } => confirm.worker.0 as usize,
            Self::Send { reply, .. } | Self::Reply { reply, .. } => reply.worker.0 as usize,
            Self::Answer { request, .. } => request.worker,
            Self::Client { .. }
            | Self::GiveUp { .. }
            | Self::Told { .. }
            | Self::Fault
            | Self::Strike { .. }
            | Self::Divide { .. }
            | Self::Operate
            | Self::End { .. } => return None,
        };
        Some((Plane::Workers, worker))
    }

    /// A number for its kind, and one for what is in it: what the hash of a run is made of.
    pub(crate) fn digest(&self) -> (u64, u64) {
        match self {
            Self::Tick => (1, 0),
            Self::Written => (2, 0),
            Self::Raft { from, bytes, .. } => (3, from.0 << 32 ^ hashed(bytes)),
            Self::Closed { peer } => (4, peer.0),
            Self::Introduced { from, boot, .. } => (26, from.0 << 32 ^ boot.0),
            Self::Ordered { order } => (27, *order as u64),
            Self::Depart => (28, 0),
            Self::Ping { from, ping, .. } => (5, from.0 ^ ping.sent_ns),
            Self::Pong { from, pong, .. } => (6, from.0 ^ pong.wall_ns),
            Self::Arrive { asker, count, .. } => (7, asker.attempt << 32 ^ count),
            Self::Turn { worker } => (8, *worker as u64),
            Self::Ask { confirm, .. } => (9, confirm.round.0),
            Self::Confirm { from, confirm } => (10, from.0 << 32 ^ confirm.round.0),
            Self::Load { from, confirm } => (11, from.0 << 32 ^ confirm.round.0),
            Self::Send { to, reply } => (12, to.0 << 32 ^ reply.promise.0),
            Self::Reply { from, reply, .. } => (13, from.0 << 32 ^ reply.promise.0),
            Self::Allocate { worker } => (14, *worker as u64),
            Self::Answer { told, .. } => (15, told.digest()),
            Self::Client { client } => (16, *client as u64),
            Self::GiveUp { asker } => (17, asker.attempt),
            Self::Told { told, .. } => (18, told.digest()),
            Self::Fault => (19, 0),
            Self::Operate => (25, 0),
            Self::Strike { node } => (22, node.0),
            Self::Divide { node, from, .. } => (23, node.0 << 32 | u64::from(*from)),
            Self::WorkerTick { worker } => (21, *worker as u64),
            Self::Share => (24, 0),
            Self::End { end } => (20, end.node().map_or(0, |node| node.0)),
        }
    }
}

/// Every bit of `bytes` counts, eight of them at a time: FNV-1a's steps over words.
fn hashed(bytes: &[u8]) -> u64 {
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    let (words, rest) = bytes.as_chunks::<8>();
    let hash = words.iter().map(|word| u64::from_le_bytes(*word)).fold(bytes.len() as u64, step);
    rest.iter().map(|byte| u64::from(*byte)).fold(hash, step)
}

impl Told {
    fn digest(self) -> u64 {
        match self {
            Self::Given(range) => range.first().epoch.0 ^ range.first().index.0,
            Self::Refused(hint) => hint.map_or(0, |node| node.0),
        }
    }
}
