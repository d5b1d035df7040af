//! The consensus plane: one thread that runs the replica, the links to its peers and the comparison
//! of their clocks. It never serves a client, never touches the disk (the storage thread does) and
//! never waits for the allocator's lock.
//!
//! - `plane`: the event loop around [`epicepoch_core::node::Node`], which decides.
//! - `orders`: the orders of other threads to the event loop.
//! - `inbox`: the events that links report to the event loop.
//! - `link`: the connection to a peer, which reconnects for ever.
//! - `accept`: connections from peers, passed to the plane or to a worker.
//! - `bootstrap`: how an empty directory gets its first record.
//! - [`restore`]: how a new history of a cluster begins, and the content of a backup.
//! - `old_members`: whether a member of the old history still runs.
//! - `admin_documents`: the answers to admin commands, as documents.
//! - `reports`: log lines and counts.
//! - `round_trips`: the round trips to the peers.
//! - `wall`: the wall clock, with the faults that tests inject.
//! - `closing`: the end of interval mode at this node.
//! - `error`: why the plane ends.

mod accept;
mod admin_documents;
mod bootstrap;
mod closing;
mod error;
#[cfg(test)]
pub(crate) mod fixture;
mod inbox;
mod link;
mod old_members;
mod orders;
mod plane;
mod reports;
pub mod restore;
mod round_trips;
mod wall;

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use epicepoch_wire::NodeId;
use tokio::sync::mpsc;

use crate::abort::AbortOnPanic;
use orders::Order;

pub use epicepoch_core::replica::Fatal;
pub use error::ConsensusError;
pub use plane::Parts;

/// A handle to the running plane.
#[derive(Debug)]
pub struct Consensus {
    orders: mpsc::UnboundedSender<Order>,
    thread: Option<thread::JoinHandle<Result<(), ConsensusError>>>,
}

impl Consensus {
    /// Starts the thread. The thread calls `ended` when the plane has ended for any reason.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn spawn(parts: Parts, ended: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let (orders, received) = mpsc::unbounded_channel();
        let thread = thread::Builder::new().name("consensus".into()).spawn(move || {
            let result = run(parts, received);
            ended();
            result
        })?;
        Ok(Self { orders, thread: Some(thread) })
    }

    /// Tries once to hand leadership to `to`, if this node leads, does not hand over already, and
    /// `to` is a voter.
    pub fn hand_over(&self, to: NodeId) {
        // Sending fails only when the plane has ended.
        let _ended = self.orders.send(Order::HandOver { to });
    }

    /// Prepares the stop of this node. The node hands leadership over as soon as another voter can
    /// take it, and does not become the leader again.
    pub fn prepare_stop(&self) {
        // Sending fails only when the plane has ended.
        let _ended = self.orders.send(Order::PrepareStop);
    }

    /// Whether the plane has ended by itself or is ending.
    pub(crate) fn has_ended(&self) -> bool {
        self.orders.is_closed()
    }

    /// Ends the plane and waits for its end, for [`STOP_TIMEOUT`] at most. A thread that hangs, for
    /// example on a disk that does not answer, must not keep the process alive.
    ///
    /// # Errors
    /// Why the plane had ended by itself before.
    ///
    /// # Panics
    /// When the thread panicked.
    pub fn stop(mut self) -> Result<(), ConsensusError> {
        // Sending fails only when the plane has ended.
        let _ended = self.orders.send(Order::Stop);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let deadline = Instant::now() + STOP_TIMEOUT;
        while !thread.is_finished() && Instant::now() < deadline {
            thread::sleep(STOP_POLL);
        }
        if !thread.is_finished() {
            tracing::warn!("the consensus plane did not end in time: its thread is abandoned");
            return Ok(());
        }
        thread.join().expect("a panic of the consensus thread ends the process")
    }
}

/// The longest time to wait for the end of the plane. The storage thread may use two seconds of
/// this time.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// Time between two checks whether the plane has ended.
const STOP_POLL: Duration = Duration::from_millis(1);

fn run(parts: Parts, orders: mpsc::UnboundedReceiver<Order>) -> Result<(), ConsensusError> {
    let _abort = AbortOnPanic("consensus plane");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    let result = local.block_on(&runtime, plane::run(parts, orders));
    // The tasks of the links belong to `local`, so dropping it ends them.
    drop(local);
    result
}

#[cfg(test)]
mod tests {
    use epicepoch_core::replica::RestoreError;
    use epicepoch_wire::DecodeError;

    use super::*;

    #[test]
    fn orders_reach_the_plane_and_stopping_returns_why_it_ended() {
        let (orders, mut received) = mpsc::unbounded_channel();
        let thread = thread::spawn(move || {
            let next = || received.blocking_recv().expect("an order");
            let orders: Vec<_> = std::iter::repeat_with(next).take(3).collect();
            let expected = [Order::HandOver { to: NodeId(3) }, Order::PrepareStop, Order::Stop];
            assert_eq!(orders, expected);
            let error = DecodeError::BadValue { field: "format", value: 9 };
            Err(RestoreError::from(error).into())
        });
        let consensus = Consensus { orders, thread: Some(thread) };
        assert!(!consensus.has_ended());
        consensus.hand_over(NodeId(3));
        consensus.prepare_stop();
        let start = Instant::now();
        let ended = consensus.stop();
        assert!(matches!(ended, Err(ConsensusError::Restore(_))), "{ended:?}");
        assert!(start.elapsed() < STOP_TIMEOUT, "it waits only while the thread runs");
    }

    #[test]
    fn a_plane_has_ended_when_it_takes_no_more_orders() {
        let (orders, received) = mpsc::unbounded_channel();
        let consensus = Consensus { orders, thread: None };
        assert!(!consensus.has_ended());
        drop(received);
        assert!(consensus.has_ended());
        consensus.stop().expect("no thread");
    }
}
