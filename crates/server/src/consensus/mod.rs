//! The consensus plane: one thread that runs the replica, its peers' links and their clocks. It
//! never serves a client, never touches the disk (the storage thread does) and never takes the
//! allocator's lock.
//!
//! - `plane`: the loop in which events meet the replica.
//! - `link`: the connection to a peer, reconnected for ever.
//! - `accept`: connections from peers, handed to whom they are for.
//! - `introduction`: whether a peer is who it says.
//! - `bootstrap`: how an empty directory gets its first record.
//! - `restore`: how a new history of a cluster begins, and what a backup holds.
//! - `old_members`: whether a member of the history before still runs.
//! - `operators`: what operators ask, and what becomes of it.
//! - `farewell`: when a node that was removed may end.
//! - `round_trips`: how far away the peers are.
//! - `wall`: the wall clock, and what tests do to it.

mod accept;
pub(crate) mod bootstrap;
mod farewell;
pub(crate) mod introduction;
mod link;
mod old_members;
pub mod operators;
mod plane;
pub mod restore;
mod round_trips;
mod wall;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use epicepoch_core::durable::Restored;
use epicepoch_core::replica::{Fatal, RestoreError};
use epicepoch_wire::NodeId;
use epicepoch_wire::hello::Refusal;
use thiserror::Error;
use tokio::sync::mpsc;

use crate::abort::AbortOnPanic;
use crate::faults::Faults;
use crate::metrics::Metrics;
use crate::shared::NodeShared;
use crate::storage::{Storage, SubmitError, WriteError};
use crate::worker::Workers;

/// Everything that the consensus plane needs to run.
#[derive(Debug)]
pub struct Parts {
    /// What it shares with the data plane.
    pub shared: Arc<NodeShared>,
    /// The workers: they are told when something is published, and given confirm links.
    pub workers: Workers,
    /// The open data directory.
    pub storage: Storage,
    /// What it holds; `None` for an empty first member.
    pub restored: Option<Restored>,
    /// The bound peer port.
    pub listener: TcpListener,
    /// What an empty first member is to begin above.
    pub restore: restore::Restore,
    /// The test switch.
    pub faults: Faults,
    /// Seed of the replica's draws.
    pub seed: u64,
    /// Where it counts.
    pub metrics: Arc<Metrics>,
    /// What operators ask.
    pub asks: operators::Asks,
}

/// Why the consensus plane ended by itself. The node must end, too.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConsensusError {
    /// The thread's runtime could not be made.
    #[error("the consensus thread cannot run")]
    Runtime(#[from] io::Error),
    /// A peer refused this node for good.
    #[error("node {by} refuses this node: {refusal}")]
    Refused {
        /// The peer.
        by: NodeId,
        /// Its reason.
        refusal: Refusal,
    },
    /// The peer of an empty directory hands out a state that does not name this directory.
    #[error(
        "what was handed out at {addr} does not name this data directory as a member: correct PEERS \
         or JOIN"
    )]
    NotAdmitted {
        /// Where it was asked.
        addr: String,
    },
    /// A new history cannot begin above everything that the old one can have given.
    #[error("no new history can begin: {0}")]
    NoFloor(epicepoch_core::restore::FloorError),
    /// A node of the history that is to be restored still runs, or it is not clear that none does.
    #[error(
        "a node of the old history still runs at {addr}, or may, and may still give timestamps: stop \
         every node of it for good before a new history begins ({said})"
    )]
    OldHistoryRuns {
        /// Where it was asked.
        addr: String,
        /// What it said, or what it did instead.
        said: String,
    },
    /// This machine has no way to any member of the history that is to be restored.
    #[error(
        "this machine has no way to any member of the old history, such as {addr} ({why}), so it \
         cannot see whether one still runs: mend its network or its resolver, and start again. If \
         the machines are gone for good with their names or networks, say so to this one: names in \
         /etc/hosts with an address where nobody listens, or ip route add unreachable <network>"
    )]
    CutOff {
        /// Where it was asked.
        addr: String,
        /// What the system said.
        why: String,
    },
    /// Most members say that this node was removed. Its data directory is of no use any more.
    #[error(
        "node {node} was removed from the cluster: its id is never used again, and its data \
         directory can be deleted; do not start it again"
    )]
    Removed {
        /// This node.
        node: NodeId,
    },
    /// The data directory cannot be used.
    #[error("the data directory cannot be used")]
    Restore(#[from] RestoreError),
    /// The disk failed. What is on it is known only after a restart.
    #[error("the disk failed")]
    Disk(#[from] WriteError),
    /// The storage thread takes no more writes.
    #[error("the storage thread takes no more writes")]
    Storage(#[from] SubmitError),
    /// The replica must stop.
    #[error(transparent)]
    Fatal(#[from] Fatal),
    /// This disk was set back to an older state.
    #[error(
        "{0}; put the newest directory back, or remove this member and add a new one with an empty \
         directory"
    )]
    LostEntries(epicepoch_core::replica::MessageError),
}

/// What other threads ask of the consensus plane.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ask {
    /// Hand leadership to this voter, if this node leads.
    HandOver { to: NodeId },
    /// Give leadership away and take none: the node is going to stop.
    Depart,
    /// End the plane.
    Stop,
}

/// The running plane, to the rest of the node.
#[derive(Debug)]
pub struct Consensus {
    asks: mpsc::UnboundedSender<Ask>,
    thread: Option<thread::JoinHandle<Result<(), ConsensusError>>>,
}

impl Consensus {
    /// Starts the thread. `ended` is called on it when the plane has ended, for whatever reason.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn spawn(parts: Parts, ended: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let (asks, asked) = mpsc::unbounded_channel();
        let thread = thread::Builder::new().name("consensus".into()).spawn(move || {
            let result = run(parts, asked);
            ended();
            result
        })?;
        Ok(Self { asks, thread: Some(thread) })
    }

    /// Asks this node to hand leadership to `to`, once. Nothing happens unless it leads and `to` is a
    /// voter.
    pub fn hand_over(&self, to: NodeId) {
        // Fails when the plane has ended.
        let _ended = self.asks.send(Ask::HandOver { to });
    }

    /// Tells this node that it is going to stop: it gives leadership away as soon as somebody takes it,
    /// and takes none any more.
    pub fn depart(&self) {
        // Fails when the plane has ended.
        let _ended = self.asks.send(Ask::Depart);
    }

    /// Whether the plane has ended by itself, or ends now.
    pub(crate) fn has_ended(&self) -> bool {
        self.asks.is_closed()
    }

    /// Ends the plane and waits for it, for [`STOP_TIMEOUT`] at most: a thread that hangs (on a disk
    /// that does not answer, for instance) must not keep the process from ending.
    ///
    /// # Errors
    /// Why it had ended by itself before.
    ///
    /// # Panics
    /// When the thread panicked.
    pub fn stop(mut self) -> Result<(), ConsensusError> {
        // Fails when the plane has ended already.
        let _ended = self.asks.send(Ask::Stop);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let deadline = Instant::now() + STOP_TIMEOUT;
        while !thread.is_finished() && Instant::now() < deadline {
            thread::sleep(STOP_POLL);
        }
        if !thread.is_finished() {
            tracing::warn!("the consensus plane did not end in time: it is left behind");
            return Ok(());
        }
        thread.join().expect("a panic of the consensus thread ends the process")
    }
}

/// How long the end of the plane may take; its storage thread takes up to two seconds of it.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// Between two looks at whether it has ended.
const STOP_POLL: Duration = Duration::from_millis(1);

fn run(parts: Parts, asked: mpsc::UnboundedReceiver<Ask>) -> Result<(), ConsensusError> {
    let _abort = AbortOnPanic("consensus plane");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    let result = local.block_on(&runtime, plane::run(parts, asked));
    // Links are tasks of this set: they end here.
    drop(local);
    result
}
