//! Links between real processes that can be broken on command: a TCP proxy that stands between
//! peers, and between clients and nodes.
//!
//! [`Links`] listens in front of nodes, at the addresses that others dial, and carries bytes
//! through. What is between two parties is broken *per direction* with a [`Fault`]: delay, jitter,
//! bandwidth, a trickle, and cuts of three kinds. A direction is from a [`Party`] to a party,
//! whoever dialled: a fault from 1 to 2 concerns what 1 asks on the connections that 1 opened and
//! what 1 answers on those that 2 opened.
//!
//! Who dials is read from the header of the peer protocol's first frame. The proxy reads nothing
//! else, and never alters, repeats or reorders a byte: TCP does not, either. What it cannot do is
//! lose a segment that TCP would have sent again ([`Cut::Hold`] is that, seen from above) or keep a
//! connection from being accepted: the kernel accepts at once, and silence begins after that.
//!
//! - `fault`: what can be wrong with a direction.
//! - `table`: who is connected to whom, what is wrong there now, and what went through.
//! - `schedule`: when each piece of a stream is due; pure.
//! - `pump`: one direction of one connection.
//! - `front`: a listener, and who dials.

mod fault;
mod front;
mod pump;
mod schedule;
mod table;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use epicepoch_wire::NodeId;
use thiserror::Error;

pub use fault::{Cut, Fault, Pace};
use front::Front;
pub use table::Passed;
use table::{Break, Shared};

/// Listeners of one proxy: more is a loop that has run away.
pub const FRONTS_MAX: usize = 256;

/// Who is at one end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Party {
    /// A node, as it names itself in its first frame.
    Node(NodeId),
    /// Whoever is no node: a client, or somebody who does not speak the peer protocol.
    Client,
}

impl Party {
    /// The node of this id.
    #[must_use]
    pub const fn node(id: u64) -> Self {
        Self::Node(NodeId(id))
    }
}

/// Who dials a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Diallers {
    /// Nodes, which say who they are; others count as [`Party::Client`]. Nothing is passed on, and
    /// the node is not dialled, before the first 40 bytes have come or can no more become a hello.
    Peers,
    /// Clients only: nothing is read.
    Clients,
}

/// Why a proxy did not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The system gives no thread or no event queue: free some, and try again.
    #[error("the proxy cannot be started")]
    System(#[from] io::Error),
}

/// Why there is no listener.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FrontError {
    /// Another process has the address, or it is none of this machine: take another.
    #[error("cannot listen at {addr}: {error}")]
    Bind {
        /// Where it was to listen.
        addr: SocketAddr,
        /// What the system says.
        error: io::Error,
    },
    /// There are [`FRONTS_MAX`] already: use another proxy.
    #[error("a proxy has at most {FRONTS_MAX} listeners")]
    TooMany,
}

/// A proxy on a thread of its own. Dropping it closes every listener and every connection.
#[derive(Debug)]
pub struct Links {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Links {
    /// Starts a proxy without listeners, where every link is good. `seed` decides all jitter.
    ///
    /// # Errors
    /// When the system is out of what this needs.
    pub fn start(seed: u64) -> Result<Self, StartError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let shared = Arc::new(Shared::new(seed));
        let theirs = shared.clone();
        let run = move || {
            let local = tokio::task::LocalSet::new();
            runtime.block_on(local.run_until(front::serve(theirs)));
        };
        let thread = std::thread::Builder::new().name("links".into()).spawn(run)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Listens at `listen` (port 0 lets the system choose) in front of `party`, which listens at
    /// `target`; gives the address that others should dial.
    ///
    /// # Errors
    /// When the address cannot be had, or there are too many listeners.
    pub fn stand_before(
        &self,
        party: Party,
        diallers: Diallers,
        listen: SocketAddr,
        target: SocketAddr,
    ) -> Result<SocketAddr, FrontError> {
        let bind = |error| FrontError::Bind { addr: listen, error };
        let listener = TcpListener::bind(listen).map_err(bind)?;
        listener.set_nonblocking(true).map_err(bind)?;
        let addr = listener.local_addr().map_err(bind)?;
        let front = Front { party, diallers, listener, target };
        if self.shared.add(front) { Ok(addr) } else { Err(FrontError::TooMany) }
    }

    /// From now on this is wrong with what goes from `from` to `to`, in place of what was.
    pub fn set(&self, from: Party, to: Party, fault: Fault) {
        self.shared.set(from, to, fault);
    }

    /// The same in both directions.
    pub fn set_both(&self, one: Party, other: Party, fault: Fault) {
        self.set(one, other, fault);
        self.set(other, one, fault);
    }

    /// Breaks the connections between two parties now with a reset, as a restarted router does.
    pub fn reset(&self, one: Party, other: Party) {
        self.shared.break_now(one, other, Break::Reset);
    }

    /// Ends the connections between two parties now in an orderly way.
    pub fn close(&self, one: Party, other: Party) {
        self.shared.break_now(one, other, Break::Close);
    }

    /// All links are good from now on. Connections that lost bytes are reset: a stream with a hole
    /// in it is never passed on.
    pub fn heal(&self) {
        self.shared.heal();
    }

    /// What went from `from` to `to` so far. A fault that touched nothing has tested nothing.
    #[must_use]
    pub fn passed(&self, from: Party, to: Party) -> Passed {
        self.shared.passed(from, to)
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            // It has panicked, or it is done: there is nothing to do about either here.
            let _ = thread.join();
        }
    }
}
