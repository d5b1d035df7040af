//! The entry of a worker's clients. It serves the connections and sockets that the worker receives,
//! with the protocols of `front`.

use std::io;
use std::net::{TcpStream, UdpSocket};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use epicepoch_certs::rustls;
use quinn_proto::crypto::rustls::NoInitialCipherSuite;
use tokio::task::spawn_local;

use super::clients::Clients;
use super::http3::{endpoint, limits};
use crate::metrics::Metrics;
use crate::security::authz::Port;
use crate::security::limits::ConnectionPermit;
use crate::shared::NodeShared;
use crate::sync::signal::Signal;
use crate::worker::Workers;
use crate::worker::front::{Front, QuicSocket};
use crate::worker::turns::Turns;

/// Starts the workers of a node.
///
/// # Errors
/// When the system cannot create a thread or an event queue.
pub fn spawn_workers(shared: Arc<NodeShared>, metrics: Arc<Metrics>) -> io::Result<Workers> {
    Workers::spawn(shared, metrics, |sequencer, turns, tasks| {
        Box::new(Door { clients: Clients::new(sequencer, tasks), turns })
    })
}

/// Serves HTTP/3 on one UDP port: one socket and one endpoint per worker. Its clients have the same
/// rights as the clients of `port`.
///
/// # Errors
/// When QUIC cannot begin with `tls`.
///
/// # Panics
/// When there are fewer or more sockets than workers.
pub fn serve_http3(
    workers: &Workers,
    sockets: Vec<UdpSocket>,
    tls: Arc<rustls::ServerConfig>,
    port: Port,
    shared: &NodeShared,
) -> Result<(), NoInitialCipherSuite> {
    let server = limits::server(tls, shared.config.limits.idle_timeout)?;
    workers.serve_quic(sockets, &server, port);
    Ok(())
}

/// The client connections and the event loop turns of one worker.
struct Door {
    clients: Rc<Clients>,
    turns: Arc<Turns>,
}

impl Front for Door {
    fn adopt(&self, stream: TcpStream, port: Port, permit: ConnectionPermit) {
        self.clients.adopt(stream, port, permit);
    }

    fn serve_quic(&self, socket: QuicSocket) {
        spawn_local(endpoint::serve(socket, self.clients.clone(), self.turns.clone()));
    }

    fn follow_publication(&self) {
        self.clients.follow_publication();
    }

    fn close(&self) {
        self.clients.close();
    }

    fn gone(&self) -> &Signal {
        self.clients.gone()
    }

    fn chores(&self) -> Vec<Pin<Box<dyn Future<Output = ()>>>> {
        vec![
            Box::pin(self.clients.clone().sweep()),
            Box::pin(self.clients.clone().hand_out_turns()),
        ]
    }
}
