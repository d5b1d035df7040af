//! Runs the tasks of the QUIC library on the worker of the endpoint. The tasks have a time
//! allowance per turn of the event loop, so that a flood of datagrams does not delay peers.

use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::task::spawn_local;

use crate::worker::client_tasks::TURN_MAX;
use crate::worker::turns::{Paced, Turns};

/// The runtime of one worker's endpoint.
#[derive(Debug)]
pub(super) struct WorkerRuntime {
    turns: Arc<Turns>,
}

impl WorkerRuntime {
    /// A runtime for the worker of `turns`. It must be used only on that worker's thread.
    pub(super) fn new(turns: Arc<Turns>) -> Self {
        Self { turns }
    }
}

impl Runtime for WorkerRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        // A poll that has begun is not interrupted. One poll of a quinn task takes up to 50 us.
        spawn_local(Paced::new(future, self.turns.clone(), TURN_MAX));
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }
}
