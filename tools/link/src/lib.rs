//! A TCP proxy between real processes (peers, or clients and nodes) that breaks links on command.
//!
//! [`Links`] listens in front of nodes, at the addresses that others dial, and carries bytes. A
//! [`Fault`] breaks *one direction* of a link. There are delay, jitter, bandwidth, trickle, and
//! three kinds of cuts. A direction goes from one [`Party`] to another, whichever of them opened
//! the connection. For example, a fault from 1 to 2 affects two kinds of bytes: requests of 1 on
//! connections that 1 opened, and answers of 1 on connections that 2 opened.
//!
//! The proxy reads only the dialling node's id, from its peer hello. Like TCP, it never alters,
//! repeats or reorders a byte. It cannot lose a single segment, which TCP would send again;
//! [`Cut::Hold`] has the same effect. It cannot keep the kernel from accepting a connection, so a
//! silent link is silent only after the connection is accepted.
//!
//! - `party`: the ends of a link.
//! - `fault`: faults of a direction.
//! - `table`: the state of all links, and counts.
//! - `schedule`: when each piece of a stream is due; pure.
//! - `pump`: one direction of one connection.
//! - `front`: a listener, and how it identifies its clients.
//! - `alarm`: waits for a time more precisely than tokio's timer.
//! - `port`: unused ports for listeners.

mod alarm;
mod fault;
mod front;
mod party;
mod port;
mod pump;
mod schedule;
mod table;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use thiserror::Error;

pub use fault::{Cut, Fault, Pace};
pub use party::{Diallers, FRONTS_MAX, Party};
pub use port::unused_port;
pub use table::Passed;
use table::{Break, Front, Shared};

/// Why a proxy did not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The system has no thread or event queue left. Free some, and try again.
    #[error("the proxy cannot be started")]
    System(#[from] io::Error),
}

/// Why a listener cannot be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FrontError {
    /// The address is taken, or does not belong to this machine. Use another one.
    #[error("cannot listen at {addr}: {error}")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// The proxy has [`FRONTS_MAX`] listeners already. Use another proxy.
    #[error("a proxy has at most {FRONTS_MAX} listeners")]
    TooMany,
}

/// A proxy on its own thread. Dropping it closes every listener and connection.
#[derive(Debug)]
pub struct Links {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Links {
    /// Starts a proxy without listeners and without faults. `seed` decides all jitter.
    ///
    /// # Errors
    /// The system has no thread or event queue left.
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

    /// Listens at `listen` (port 0 lets the system choose) in front of `party`, which itself
    /// listens at `target`. Returns the address to dial.
    ///
    /// # Errors
    /// The address cannot be used, or there are too many listeners.
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

    /// Sets the fault of the direction from `from` to `to`. It replaces the fault that was set
    /// before.
    pub fn set(&self, from: Party, to: Party, fault: Fault) {
        self.shared.set(from, to, fault);
    }

    /// Sets the same fault for both directions between two parties.
    pub fn set_both(&self, one: Party, other: Party, fault: Fault) {
        self.set(one, other, fault);
        self.set(other, one, fault);
    }

    /// Resets the connections between two parties now, as a restarted router does.
    pub fn reset(&self, one: Party, other: Party) {
        self.shared.break_now(one, other, Break::Reset);
    }

    /// Closes the connections between two parties now in an orderly way.
    pub fn close(&self, one: Party, other: Party) {
        self.shared.break_now(one, other, Break::Close);
    }

    /// Removes all faults. Connections that lost bytes are reset.
    pub fn heal(&self) {
        self.shared.heal();
    }

    /// Returns the counts of the direction from `from` to `to` so far. A test uses them to check
    /// that its fault affected something.
    #[must_use]
    pub fn passed(&self, from: Party, to: Party) -> Passed {
        self.shared.passed(from, to)
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            // An error is ignored. If the thread has panicked, nothing is left to do.
            let _ = thread.join();
        }
    }
}
