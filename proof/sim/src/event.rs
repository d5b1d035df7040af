//! The events of a run. The state of a run changes only in an event.

use std::rc::Rc;
use std::sync::Arc;

use epicepoch_client::OpenError;
use epicepoch_client::session::LinkId;
use epicepoch_core::positions::PeerBoot;
use epicepoch_core::publication::Published;
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::confirm::{Confirm, ConfirmReply};
use epicepoch_wire::gossip::{Ping, Pong};
use epicepoch_wire::native::Welcome;
use epicepoch_wire::{BootId, Epoch, Guarantee, NodeId, StorePosition, Timestamp, TimestampRange};

use crate::node_set::NodeSet;
use crate::plane::Plane;

/// The answer to a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// Answered with these timestamps.
    Given(TimestampRange),
    /// Refused. The answer names a node that may be the leader, if the refusing node knows one.
    Refused(Option<NodeId>),
}

/// A client, and the number of its attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Asker {
    pub(crate) client: usize,
    pub(crate) attempt: u64,
}

/// A request that waits on a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) asker: Asker,
    /// The worker at which the request arrived.
    pub(crate) worker: usize,
    /// How many timestamps it takes; [`LATEST`](epicepoch_core::sequencer::LATEST) if it asks for
    /// the latest one.
    pub(crate) count: u64,
    /// The guarantee that it asks for.
    pub(crate) guarantee: Guarantee,
    /// The highest timestamp in any answer before the request arrived.
    pub(crate) floor: Option<Timestamp>,
    /// The highest latest timestamp that was answered before the request arrived.
    pub(crate) shown: Option<Timestamp>,
    /// The epoch to which operators had moved the cluster before the request arrived.
    pub(crate) above: Epoch,
    /// True time at which the request arrived on the worker, nanoseconds.
    pub(crate) arrived_ns: u64,
}

/// The peer hello that a process sends on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerHello {
    pub(crate) boot: BootId,
    /// The position of the data directory when the process started.
    pub(crate) began: StorePosition,
    /// The newest format that the sender reads.
    pub(crate) reads: u32,
    /// The format that the receiver must read.
    pub(crate) needs: u32,
}

impl PeerHello {
    /// The boot that this hello of `node` names.
    pub(crate) const fn boot_of(self, node: NodeId) -> PeerBoot {
        PeerBoot { node, boot: self.boot, began: self.began }
    }
}

/// The end of a fault.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Start(NodeId),
    /// A process that was told to stop ends, and stays down for so many nanoseconds.
    Stop(NodeId, u64),
    Links,
    Slow,
    /// The pause of one thread ends; the thread is given by its number.
    Pause(NodeId, usize),
    Disk(NodeId),
    RolledBack(NodeId),
    Clock(NodeId),
    Update(NodeId),
    /// Confirm links of one worker can connect again: those to the nodes of a set.
    ConfirmLinks(NodeId, usize, NodeSet),
    BackUp,
}

impl End {
    pub(crate) const fn node(self) -> Option<NodeId> {
        match self {
            Self::Start(node)
            | Self::Stop(node, _)
            | Self::Pause(node, _)
            | Self::Disk(node)
            | Self::RolledBack(node)
            | Self::Update(node)
            | Self::ConfirmLinks(node, ..)
            | Self::Clock(node) => Some(node),
            Self::Links | Self::Slow | Self::BackUp => None,
        }
    }
}

/// What a client with a session hears from a node.
#[derive(Clone, Debug)]
pub(crate) enum Heard {
    /// A welcome, or why there is no connection.
    Opened(LinkId, Result<Welcome, OpenError>),
    Bytes(LinkId, Vec<u8>),
    /// The connection has ended.
    Closed(LinkId),
    /// The client gets the list of members that this node knows.
    Refreshed(NodeId),
}

/// A command of an operator to one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminCommand {
    Advance,
    HandOver,
    /// A handover to this node.
    HandOverTo(NodeId),
    Members,
    Mistake,
    Settings,
    Repeat,
}

impl AdminCommand {
    /// A number for the trace hash.
    const fn number(self) -> u64 {
        match self {
            Self::Advance => 0,
            Self::HandOver => 1,
            Self::Members => 2,
            Self::Mistake => 3,
            Self::Settings => 4,
            Self::Repeat => 5,
            Self::HandOverTo(node) => node.0 << 8 | 6,
        }
    }
}

/// An event.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    // Events of a node's consensus plane.
    Tick,
    Written,
    Raft {
        from: NodeId,
        hello: PeerHello,
        bytes: Rc<[u8]>,
    },
    Closed {
        peer: NodeId,
    },
    /// The link to a peer cannot be dialled, or is silent.
    Unreachable {
        peer: NodeId,
    },
    /// A process of `from` says hello over a new connection. If `is_answered`, the receiver sends
    /// its own hello back.
    Connected {
        from: NodeId,
        boot: BootId,
        member: Rc<Member>,
        is_answered: bool,
    },
    /// An operator's command. While the node is paused, the command gets no answer.
    Admin {
        command: AdminCommand,
    },
    /// The consensus plane has handled the events of its turn, and does their actions.
    TurnEnds,
    /// The process is going to stop.
    Shutdown,
    /// The workers of a process that is going to stop have ended. Its consensus plane goes on.
    WorkersEnded,
    /// The consensus plane takes the next step after a call of the replica: it raises the Promise,
    /// publishes, or sends messages.
    Share,
    Ping {
        from: NodeId,
        boot: BootId,
        since: StorePosition,
        ping: Ping,
    },
    /// An answer to the ping of the process `boot`. `since` is the position of the answering node
    /// as `boot` knew it when it sent the ping.
    Pong {
        from: NodeId,
        hello: PeerHello,
        boot: BootId,
        since: StorePosition,
        pong: Pong,
    },
    /// The node `by` refuses the run `boot` of this node, because this node was removed from the
    /// cluster.
    Refused {
        by: NodeId,
        boot: BootId,
    },
    // Events of a node's workers.
    Arrive {
        worker: usize,
        asker: Asker,
        count: u64,
    },
    /// The hello of a client with a session arrives.
    ClientHello {
        worker: usize,
        session: usize,
        link: LinkId,
    },
    /// A worker names the leader on a connection if the leader is not the one that it named last.
    Notice {
        worker: usize,
        session: usize,
        link: LinkId,
    },
    /// The client of a request has disconnected, and wants no answer.
    Leave {
        worker: usize,
        asker: Asker,
    },
    /// The worker reads the new publication after the consensus plane has told it that there is
    /// one.
    Follow {
        worker: usize,
    },
    /// The worker closes the open batch, then reads the publication and its node's Promise.
    Turn {
        worker: usize,
    },
    /// The worker sends the confirm frame of the round that began in its turn.
    Ask {
        confirm: Confirm,
        published: Arc<Published>,
    },
    /// A worker sends the confirm of a sibling worker over its own link to `to`.
    Forward {
        worker: usize,
        to: NodeId,
        confirm: Confirm,
    },
    /// A confirm frame has arrived over a link of the asking node's worker `link`. The voter has
    /// not read it yet.
    Confirm {
        from: NodeId,
        link: usize,
        confirm: Confirm,
    },
    /// A voter reads the next confirm frame on the link of a worker of `from` that runs as `boot`.
    /// Then it loads its own Promise for the answer.
    Load {
        worker: usize,
        from: NodeId,
        boot: BootId,
    },
    /// The voter writes its answers to a caller.
    Send {
        worker: usize,
        to: NodeId,
        boot: BootId,
    },
    /// A voter's answer arrives over the worker's link.
    Reply {
        from: NodeId,
        hello: PeerHello,
        link: usize,
        reply: ConfirmReply,
    },
    /// A worker gets an answer that has arrived over a sibling's link.
    HandedBack {
        worker: usize,
        from: NodeId,
        reply: ConfirmReply,
    },
    /// The worker's confirm links to some nodes have ended.
    LinksEnded {
        worker: usize,
        nodes: NodeSet,
    },
    /// The worker's confirm links to some nodes have connected.
    LinksConnected {
        worker: usize,
        nodes: NodeSet,
    },
    Allocate {
        worker: usize,
    },
    /// The task of a request has been woken, and reads the request's outcome.
    Woken {
        worker: usize,
        slot: usize,
        asker: Asker,
    },
    /// The forwarder of a worker sends the requests that wait.
    ForwardTurn {
        worker: usize,
    },
    /// The task of a request that was sent on reads the request's outcome.
    ForwardWoken {
        worker: usize,
        slot: usize,
        asker: Asker,
    },
    /// The answer to a frame has arrived over a connection of a forwarder; `None` if that connection
    /// has ended.
    FrameAnswered {
        worker: usize,
        link: u64,
        frame: u64,
        answer: Option<Answer>,
    },
    /// An answer leaves the node.
    Answer {
        request: Request,
        answer: Answer,
    },
    /// The worker looks for late answers of voters.
    LookForLate {
        worker: usize,
    },
    /// The worker checks deadlines. On an idle leader it also probes.
    WorkerTick {
        worker: usize,
    },
    // Events of the world.
    Client {
        client: usize,
    },
    GiveUp {
        asker: Asker,
    },
    Answered {
        asker: Asker,
        answer: Answer,
        by: NodeId,
    },
    /// A caller of a session asks for timestamps.
    Call {
        session: usize,
        caller: usize,
    },
    /// A caller abandons its call, or the deadline of its call is over.
    CallEnds {
        session: usize,
        caller: usize,
        number: u64,
        is_left: bool,
    },
    SessionTimer {
        session: usize,
        at_ns: u64,
    },
    Heard {
        session: usize,
        heard: Box<Heard>,
    },
    Fault,
    /// Operators act.
    Operate,
    /// A fault strikes a node because an election or a change of members has begun there.
    Strike {
        node: NodeId,
    },
    /// The consensus plane of a leader stops while its connections close, so that another leads.
    Usurp {
        node: NodeId,
    },
    /// The consensus plane of a node is paused, because the node was asked to lead.
    PauseConsensus {
        node: NodeId,
        lasts_ns: u64,
    },
    /// A node is cut off from some others.
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
    /// The plane that handles the event; `None` if the event is for no node.
    pub(crate) const fn plane(&self) -> Option<Plane> {
        match self.place() {
            Some((plane, _)) => Some(plane),
            None => None,
        }
    }

    /// The number of the thread that handles the event, by [`Plane::threads`]; `None` if the event
    /// is for no node.
    pub(crate) fn thread(&self) -> Option<usize> {
        self.place().map(|(plane, at)| plane.threads().start + at)
    }

    /// The plane that handles the event, and the thread within it. A question over a link of worker
    /// N is answered by worker N of the other node.
    const fn place(&self) -> Option<(Plane, usize)> {
        let worker = match self {
            Self::Tick
            | Self::Written
            | Self::Raft { .. }
            | Self::Closed { .. }
            | Self::Unreachable { .. }
            | Self::Connected { .. }
            | Self::Admin { .. }
            | Self::TurnEnds
            | Self::Shutdown
            | Self::WorkersEnded
            | Self::Share
            | Self::Ping { .. }
            | Self::Pong { .. }
            | Self::Refused { .. } => return Some((Plane::Raft, 0)),
            Self::Arrive { worker, .. }
            | Self::ClientHello { worker, .. }
            | Self::Notice { worker, .. }
            | Self::Leave { worker, .. }
            | Self::Follow { worker }
            | Self::Turn { worker }
            | Self::Load { worker, .. }
            | Self::Send { worker, .. }
            | Self::Forward { worker, .. }
            | Self::HandedBack { worker, .. }
            | Self::LinksEnded { worker, .. }
            | Self::LinksConnected { worker, .. }
            | Self::Allocate { worker }
            | Self::Woken { worker, .. }
            | Self::ForwardTurn { worker }
            | Self::ForwardWoken { worker, .. }
            | Self::FrameAnswered { worker, .. }
            | Self::LookForLate { worker }
            | Self::WorkerTick { worker } => *worker,
            Self::Ask { confirm, .. } => confirm.worker.0 as usize,
            Self::Confirm { link, .. } | Self::Reply { link, .. } => *link,
            Self::Answer { request, .. } => request.worker,
            Self::Client { .. }
            | Self::GiveUp { .. }
            | Self::Answered { .. }
            | Self::Call { .. }
            | Self::CallEnds { .. }
            | Self::SessionTimer { .. }
            | Self::Heard { .. }
            | Self::Fault
            | Self::Strike { .. }
            | Self::Usurp { .. }
            | Self::Divide { .. }
            | Self::PauseConsensus { .. }
            | Self::Operate
            | Self::End { .. } => return None,
        };
        Some((Plane::Workers, worker))
    }

    /// Two numbers that identify the event: one for its kind and one for its content. The hash of a
    /// run is computed from these numbers of all its events.
    pub(crate) fn digest(&self) -> (u64, u64) {
        match self {
            Self::Tick => (1, 0),
            Self::Written => (2, 0),
            Self::Raft { from, bytes, .. } => (3, from.0 << 32 ^ hashed(bytes)),
            Self::Closed { peer } => (4, peer.0),
            Self::Connected { from, boot, .. } => (26, from.0 << 32 ^ boot.0),
            Self::Admin { command } => (27, command.number()),
            Self::Shutdown => (28, 0),
            Self::WorkersEnded => (48, 0),
            Self::TurnEnds => (50, 0),
            Self::Unreachable { peer } => (49, peer.0),
            Self::Ping { from, ping, .. } => (5, from.0 ^ ping.sent_ns),
            Self::Pong { from, pong, .. } => (6, from.0 ^ pong.wall_ns),
            Self::Refused { by, .. } => (29, by.0),
            Self::Arrive { asker, count, .. } => (7, asker.attempt << 32 ^ count),
            Self::Leave { asker, .. } => (35, asker.attempt),
            Self::Follow { worker } => (36, *worker as u64),
            Self::Woken { slot, asker, .. } => (37, asker.attempt << 32 ^ *slot as u64),
            Self::Turn { worker } => (8, *worker as u64),
            Self::Ask { confirm, .. } => (9, confirm.round.0),
            Self::Forward { to, confirm, .. } => (38, to.0 << 32 ^ confirm.round.0),
            Self::Confirm { from, confirm, .. } => (10, from.0 << 32 ^ confirm.round.0),
            Self::Load { from, boot, .. } => (11, from.0 << 32 ^ boot.0),
            Self::Send { to, boot, .. } => (12, to.0 << 32 ^ boot.0),
            Self::Reply { from, reply, .. } => (13, from.0 << 32 ^ reply.promise.0),
            Self::HandedBack { from, reply, .. } => (39, from.0 << 32 ^ reply.round.0),
            Self::LinksEnded { worker, nodes } => (40, (*worker as u64) << 32 ^ nodes.digest()),
            Self::LinksConnected { worker, nodes } => (41, (*worker as u64) << 32 ^ nodes.digest()),
            Self::Allocate { worker } => (14, *worker as u64),
            Self::Answer { answer, .. } => (15, answer.digest()),
            Self::Client { client } => (16, *client as u64),
            Self::GiveUp { asker } => (17, asker.attempt),
            Self::Answered { answer, .. } => (18, answer.digest()),
            Self::ClientHello { session, link, .. } => {
                (29, (*session as u64) << 32 ^ link.number())
            }
            Self::Notice { session, link, .. } => (30, (*session as u64) << 32 ^ link.number()),
            Self::Call { session, caller } => (31, (*session as u64) << 32 ^ *caller as u64),
            Self::CallEnds { session, number, .. } => (32, (*session as u64) << 32 ^ number),
            Self::SessionTimer { session, .. } => (33, *session as u64),
            Self::Heard { session, heard } => (34, (*session as u64) << 56 ^ heard.digest()),
            Self::Fault => (19, 0),
            Self::Operate => (25, 0),
            Self::Strike { node } => (22, node.0),
            Self::Usurp { node } => (44, node.0),
            Self::Divide { node, from, .. } => (23, node.0 << 32 | u64::from(*from)),
            Self::PauseConsensus { node, .. } => (42, node.0),
            Self::WorkerTick { worker } => (21, *worker as u64),
            Self::LookForLate { worker } => (43, *worker as u64),
            Self::Share => (24, 0),
            Self::ForwardTurn { worker } => (45, *worker as u64),
            Self::ForwardWoken { slot, asker, .. } => (46, asker.attempt << 32 ^ *slot as u64),
            Self::FrameAnswered { frame, answer, .. } => {
                (47, frame << 32 ^ answer.map_or(0, Answer::digest))
            }
            Self::End { end } => (20, end.node().map_or(0, |node| node.0)),
        }
    }
}

/// Hashes `bytes`. The steps are like those of FNV-1a, but take words of eight bytes.
fn hashed(bytes: &[u8]) -> u64 {
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    let (words, rest) = bytes.as_chunks::<8>();
    let hash = words.iter().map(|word| u64::from_le_bytes(*word)).fold(bytes.len() as u64, step);
    rest.iter().map(|byte| u64::from(*byte)).fold(hash, step)
}

impl Heard {
    fn digest(&self) -> u64 {
        match self {
            Self::Opened(link, opened) => link.number() << 1 | u64::from(opened.is_ok()),
            Self::Bytes(link, bytes) => link.number() << 32 ^ hashed(bytes),
            Self::Closed(link) => link.number(),
            Self::Refreshed(node) => node.0,
        }
    }
}

impl Answer {
    fn digest(self) -> u64 {
        match self {
            Self::Given(range) => range.first().epoch.0 ^ range.first().index.0,
            Self::Refused(hint) => hint.map_or(0, |node| node.0),
        }
    }
}
