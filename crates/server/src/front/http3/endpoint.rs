//! The QUIC endpoint of one worker: it decides which clients may connect. While many handshakes are
//! under way, a client with an unproven address costs no memory: the node asks it to come again
//! with a token (RFC 9000, 8.1.2). One handshake begins per turn of the event loop, because it
//! costs as much time as many requests.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;

use quinn::{Connecting, Endpoint, Incoming, VarInt};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::time::timeout;

use super::limits;
use super::limits::{
    HANDSHAKE_TIME_MAX, HANDSHAKES_BEFORE_RETRY, HANDSHAKES_MAX, HANDSHAKES_OF_ADDRESS_MAX,
};
use super::runtime::WorkerRuntime;
use crate::front::clients::Clients;
use crate::metrics::ConnectionRefusal;
use crate::security::authz::Port;
use crate::security::limits::{AddressLimits, ConnectionPermit, Key};
use crate::worker::front::QuicSocket;
use crate::worker::turns::Turns;

/// Receive buffer that each worker asks the system for, in bytes. The system gives at most
/// `net.core.rmem_max`.
const RECEIVE_BUFFER_LEN: usize = 2 << 20;
/// At most this many clients per turn are refused or must prove their address. After that many,
/// peers have a turn.
const LOOKED_AT_PER_TURN_MAX: usize = 16;

/// Binds one UDP socket per worker to the same port. The system sends all datagrams of one client
/// address to the same socket. The caller must hold the TCP port of the same number. That port is
/// not shared, so no second node binds the UDP port.
///
/// # Errors
/// When the port is taken, or not allowed, or the address is not of this machine.
pub fn bind(addr: SocketAddr, workers: usize) -> io::Result<Vec<UdpSocket>> {
    let bind_one = |_| {
        let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_reuse_port(true)?;
        if addr.is_ipv6() {
            socket.set_only_v6(!addr.ip().is_unspecified())?;
        }
        // The system may give a smaller buffer; that is enough.
        let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER_LEN);
        socket.set_nonblocking(true)?;
        socket.bind(&addr.into())?;
        Ok(socket.into())
    };
    (0..workers).map(bind_one).collect()
}

/// The decision about a new client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Serve,
    /// The client must prove its address first.
    Retry,
    Refuse,
}

/// Serves a worker's part of the UDP port until the worker ends.
pub(crate) async fn serve(quic: QuicSocket, clients: Rc<Clients>, turns: Arc<Turns>) {
    let QuicSocket { socket, server, port, address_limits } = quic;
    let config = &clients.sequencer().shared.config;
    let limits = ConnectionLimits {
        address_limits,
        connections_max: config.connections_max,
        address_connections_max: config.limits.address_connections_max,
    };
    let runtime = Arc::new(WorkerRuntime::new(turns.clone()));
    let endpoint = match Endpoint::new(limits::endpoint(), Some(server), socket, runtime) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            tracing::error!(%error, "the UDP port cannot be watched; no HTTP/3 is served");
            return;
        }
    };
    let handshakes = Rc::new(Handshakes::default());
    let mut looked_at = 0;
    while let Some(incoming) = endpoint.accept().await {
        let is_proven = incoming.remote_address_validated();
        let permit = admit(&limits, incoming.remote_address().ip(), clients.is_closing());
        let metrics = clients.sequencer().metrics();
        let key = Key::of(incoming.remote_address().ip());
        let under_way = handshakes.under_way(key);
        match (verdict(under_way, is_proven, permit.is_ok()), permit) {
            (Verdict::Serve, Ok(permit)) => {
                let handshake = Handshake::new(&handshakes, key);
                let admitted = Admitted { port, handshake, permit };
                begin(&clients, incoming, admitted, turns.clone());
                turns.next().await;
                looked_at = 0;
            }
            (Verdict::Retry, _) => {
                metrics.quic_retries.add_alone(1);
                if let Err(error) = incoming.retry() {
                    error.into_incoming().refuse();
                }
                looked_at += 1;
            }
            (Verdict::Serve | Verdict::Refuse, permit) => {
                metrics.quic_refusals.add_alone(1);
                if let Err(why) = permit {
                    clients.sequencer().node_metrics().count_connection_refused(why);
                }
                incoming.refuse();
                looked_at += 1;
            }
        }
        if looked_at >= LOOKED_AT_PER_TURN_MAX {
            turns.next().await;
            looked_at = 0;
        }
    }
}

/// The limits of client connections.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionLimits {
    pub(crate) address_limits: Arc<AddressLimits>,
    pub(crate) connections_max: usize,
    pub(crate) address_connections_max: usize,
}

fn admit(
    limits: &ConnectionLimits,
    addr: IpAddr,
    is_closing: bool,
) -> Result<ConnectionPermit, ConnectionRefusal> {
    if is_closing {
        return Err(ConnectionRefusal::Worker);
    }
    if limits.address_limits.connections() >= limits.connections_max {
        return Err(ConnectionRefusal::All);
    }
    limits
        .address_limits
        .admit(addr, limits.address_connections_max)
        .ok_or(ConnectionRefusal::Address)
}

/// Decides about a new client. `all` handshakes are under way, `own` of them from its address. A
/// client whose address is not proved is served or asked to prove it. It is never refused, because
/// a client at a faked address does not receive a refusal.
fn verdict((all, own): (usize, usize), is_proven: bool, has_room: bool) -> Verdict {
    let is_calm = all < HANDSHAKES_BEFORE_RETRY && has_room;
    let has_share = all < HANDSHAKES_MAX && own < HANDSHAKES_OF_ADDRESS_MAX;
    match (is_proven, is_calm) {
        (_, true) => Verdict::Serve,
        (false, false) => Verdict::Retry,
        (true, false) if has_room && has_share => Verdict::Serve,
        (true, false) => Verdict::Refuse,
    }
}

/// The resources of an admitted client.
struct Admitted {
    port: Port,
    handshake: Handshake,
    permit: ConnectionPermit,
}

fn begin(clients: &Rc<Clients>, incoming: Incoming, admitted: Admitted, turns: Arc<Turns>) {
    let Admitted { port, handshake, permit } = admitted;
    let from = incoming.remote_address().ip();
    let connecting = match incoming.accept() {
        Ok(connecting) => connecting,
        Err(error) => {
            clients.sequencer().metrics().quic_handshakes_failed.add_alone(1);
            tracing::debug!(%error, addr = %from, "a client's first datagram was not understood");
            return;
        }
    };
    let clients = clients.clone();
    tokio::task::spawn_local(async move {
        let connection = shake_hands(&clients, connecting).await;
        drop(handshake);
        if let Some(connection) = connection {
            super::serving::serve(clients, connection, port, permit, turns).await;
        }
    });
}

async fn shake_hands(clients: &Clients, connecting: Connecting) -> Option<quinn::Connection> {
    match timeout(HANDSHAKE_TIME_MAX, connecting).await {
        Ok(Ok(connection)) if clients.is_closing() => {
            connection.close(VarInt::from_u32(0), b"this node is stopping");
            None
        }
        Ok(Ok(connection)) => Some(connection),
        Ok(Err(error)) => {
            clients.sequencer().metrics().quic_handshakes_failed.add_alone(1);
            tracing::debug!(%error, "a client's handshake failed");
            None
        }
        Err(_) => {
            clients.sequencer().metrics().quic_handshakes_failed.add_alone(1);
            None
        }
    }
}

/// The handshakes that are under way on one worker.
#[derive(Debug, Default)]
struct Handshakes {
    all: Cell<usize>,
    /// Handshakes per address, without addresses that have none.
    of_address: RefCell<HashMap<Key, usize>>,
}

impl Handshakes {
    /// How many handshakes are under way in all, and how many of them are from one address.
    fn under_way(&self, key: Key) -> (usize, usize) {
        (self.all.get(), self.of_address.borrow().get(&key).copied().unwrap_or(0))
    }
}

/// A handshake that is under way.
#[derive(Debug)]
struct Handshake {
    handshakes: Rc<Handshakes>,
    key: Key,
}

impl Handshake {
    fn new(handshakes: &Rc<Handshakes>, key: Key) -> Self {
        handshakes.all.set(handshakes.all.get() + 1);
        *handshakes.of_address.borrow_mut().entry(key).or_insert(0) += 1;
        Self { handshakes: handshakes.clone(), key }
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.handshakes.all.set(self.handshakes.all.get() - 1);
        if let Entry::Occupied(mut own) = self.handshakes.of_address.borrow_mut().entry(self.key) {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_proves_its_address_once_many_shake_hands_or_there_is_no_room() {
        assert_eq!(verdict((0, 0), false, true), Verdict::Serve);
        for proven in [false, true] {
            assert_eq!(verdict((HANDSHAKES_BEFORE_RETRY - 1, 0), proven, true), Verdict::Serve);
        }
        assert_eq!(verdict((HANDSHAKES_BEFORE_RETRY, 0), false, true), Verdict::Retry);
        assert_eq!(verdict((HANDSHAKES_BEFORE_RETRY, 0), true, true), Verdict::Serve);
        assert_eq!(verdict((HANDSHAKES_MAX, 0), true, true), Verdict::Refuse);
        assert_eq!(verdict((HANDSHAKES_MAX, 0), false, true), Verdict::Retry);
        assert_eq!(
            (verdict((0, 0), true, false), verdict((0, 0), false, false)),
            (Verdict::Refuse, Verdict::Retry)
        );
    }

    #[test]
    fn one_address_has_a_part_of_the_handshakes_and_leaves_the_others_theirs() {
        let handshakes = Rc::new(Handshakes::default());
        let [one, other] = [1, 2].map(|last| Key::of([192, 0, 2, last].into()));
        let mut held = Vec::new();
        while verdict(handshakes.under_way(one), true, true) == Verdict::Serve {
            held.push(Handshake::new(&handshakes, one));
        }
        assert_eq!(held.len(), HANDSHAKES_OF_ADDRESS_MAX);
        assert_eq!(verdict(handshakes.under_way(other), true, true), Verdict::Serve);
        drop(held.pop());
        assert_eq!(verdict(handshakes.under_way(one), true, true), Verdict::Serve);
        drop(held);
        assert_eq!(handshakes.under_way(one), (0, 0));
        assert!(handshakes.of_address.borrow().is_empty());
    }
}
