//! Where QUIC's own tasks run: on the worker that made the endpoint, within an allowance of time per
//! turn of its event loop, so that no flood of datagrams keeps peers waiting.

use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::task::spawn_local;

use crate::worker::turns::{Paced, TURN_MAX, Turns};

/// The runtime of one worker's endpoint.
#[derive(Debug)]
pub(super) struct WorkerRuntime {
    turns: Arc<Turns>,
}

impl WorkerRuntime {
    /// For the worker whose turns these are, and on its thread alone.
    pub(super) fn new(turns: Arc<Turns>) -> Self {
        Self { turns }
    }
}

impl Runtime for WorkerRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        // What has begun goes on: a poll of quinn's takes up to 50 us.
        spawn_local(Paced::new(future, self.turns.clone(), TURN_MAX));
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }
}
