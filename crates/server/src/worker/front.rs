//! The interface between a worker and the code that serves its clients. A worker knows none of the
//! clients' protocols.

use std::net::TcpStream;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use super::client_tasks::ClientTasks;
pub(crate) use super::quic::QuicSocket;
use super::sequencer::Sequencer;
use super::turns::Turns;
use crate::security::authz::Port;
use crate::security::limits::ConnectionPermit;
use crate::sync::signal::Signal;

/// Serves the clients of one worker, on its thread.
pub(crate) trait Front {
    /// Serves a connection that came in at `port`.
    fn adopt(&self, stream: TcpStream, port: Port, permit: ConnectionPermit);

    /// Serves the clients of a UDP socket.
    fn serve_quic(&self, socket: QuicSocket);

    /// Called when there is a new publication: the front reads it.
    fn follow_publication(&self);

    /// Closes idle connections now, and busy ones after their answers.
    fn close(&self);

    /// The signal that is set when, after [`Front::close`], no connection is left.
    fn gone(&self) -> &Signal;

    /// The front's background tasks, which run as long as the worker. The futures never end.
    fn chores(&self) -> Vec<Pin<Box<dyn Future<Output = ()>>>>;
}

/// Opens the front of a worker, on the worker's thread.
pub(crate) type OpenFront = fn(Rc<Sequencer>, Arc<Turns>, Rc<ClientTasks>) -> Box<dyn Front>;
