//! The client port, and that of operators: an exclusive listener each, and a thread that accepts
//! connections and deals them to the workers. It never reads from a connection and never waits for a worker.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::abort::AbortOnPanic;
use crate::config::{Config, PEERS_MAX};
use crate::faults::Faults;
use crate::metrics::{ConnectionRefusal, Metrics};
use crate::origins::ConnectionPermit;
use crate::rights::Port;
use crate::shared::{Health, NodeShared};
use crate::worker::Workers;

/// Connections that the kernel completes and keeps until they are accepted; it takes the lesser
/// of this and `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// Connections to `OPS_ADDR` held at once.
const OPERATORS_MAX: usize = 128;
/// Bytes of answers that the kernel takes for a client beyond what its window lets it send: without
/// a bound it takes 4 MB for one that does not read. A window is the client's own memory.
#[cfg(target_os = "linux")]
const UNSENT_LEN_MAX: u32 = 64 << 10;
/// Pause after the system had no descriptor or memory left: others must end first.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(50);

/// A bound client port that accepts nothing yet.
#[derive(Debug)]
pub struct ClientListener {
    listener: TcpListener,
    local_addr: SocketAddr,
}

impl ClientListener {
    /// Binds `ip:port` for this process alone: where somebody listens already it fails. Port 0
    /// lets the system choose. The wildcard address of IPv6 takes IPv4 clients, too.
    ///
    /// # Errors
    /// When the port is taken, or not allowed, or the address is not of this machine.
    pub fn bind(ip: IpAddr, port: u16) -> io::Result<Self> {
        let addr = SocketAddr::new(ip, port);
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
        // A port whose last connections are still closing can be bound again. Never SO_REUSEPORT:
        // two processes would share the port and each would get a part of the clients.
        socket.set_reuse_address(true)?;
        if addr.is_ipv6() {
            socket.set_only_v6(!ip.is_unspecified())?;
        }
        // Connections have it from their listener.
        #[cfg(target_os = "linux")]
        socket.set_tcp_notsent_lowat(UNSENT_LEN_MAX)?;
        socket.bind(&addr.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let listener = TcpListener::from(socket);
        let local_addr = listener.local_addr()?;
        Ok(Self { listener, local_addr })
    }

    /// The address that was bound, with the port that the system chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Starts to accept, on a thread of its own, and deals connections to the workers in turn; what
    /// they may ask for depends on `port`. Beyond the `limits`, new ones are closed at once and
    /// counted; each port has its own connections. While none can be accepted for want of descriptors or
    /// memory it says so in the [`Health`] of the node, unless it is the port of
    /// operators.
    ///
    /// # Errors
    /// When the system has no thread or no event queue to give, or cannot watch the port.
    pub fn spawn(
        self,
        workers: Workers,
        port: Port,
        limits: AcceptLimits,
        metrics: Arc<Metrics>,
        shared: Arc<NodeShared>,
        faults: Faults,
    ) -> io::Result<Acceptor> {
        let (runtime, listener) = watched(self.listener)?;
        let stop = Arc::new(Notify::new());
        let accepting =
            Accepting { workers, port, limits, metrics, shared, faults, stop: stop.clone() };
        let thread = std::thread::Builder::new().name("acceptor".to_owned()).spawn(move || {
            let _abort = AbortOnPanic("client listener");
            runtime.block_on(accepting.run(listener));
        })?;
        Ok(Acceptor { stop, thread: Mutex::new(Some(thread)) })
    }
}

/// A port with what tells of its clients. Whoever cannot have that must not begin to lead.
fn watched(listener: TcpListener) -> io::Result<(Runtime, tokio::net::TcpListener)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let context = runtime.enter();
    let listener = tokio::net::TcpListener::from_std(listener)?;
    drop(context);
    Ok((runtime, listener))
}

/// The accepting thread. Dropped, it stops.
#[derive(Debug)]
pub struct Acceptor {
    stop: Arc<Notify>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Acceptor {
    /// Closes the port and ends the thread. Connections that were accepted go on.
    pub fn stop(&self) {
        self.stop.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic of that thread has closed the port as well.
            let _ = thread.join();
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop();
    }
}

/// How many clients are accepted.
#[derive(Clone, Copy, Debug)]
pub struct AcceptLimits {
    /// Client connections at once.
    pub connections_max: usize,
    /// Client connections of one address at once.
    pub address_connections_max: usize,
    /// Descriptors of this process beyond which none is a client's: [`DescriptorLimit::clients`].
    pub descriptors_max: u64,
    /// The same for an operator's: [`DescriptorLimit::operators`].
    pub operators_descriptors_max: u64,
}

impl AcceptLimits {
    /// What the configuration and the system allow.
    #[must_use]
    pub fn new(config: &Config, descriptors: DescriptorLimit) -> Self {
        let descriptors_max = descriptors.clients(config.workers);
        let share = config.limits.address_connections_max as u128;
        let all = config.connections_max;
        // Where descriptors allow fewer connections, an address has the same part of those.
        let room = u128::from(descriptors_max).min(all as u128);
        Self {
            connections_max: all,
            address_connections_max: (share * room).div_ceil(all.max(1) as u128) as usize,
            descriptors_max,
            operators_descriptors_max: descriptors.operators(config.workers),
        }
    }
}

impl AcceptLimits {
    /// The same for operators: a few people and what scrapes metrics, all of whom may be one address.
    #[must_use]
    pub fn of_operators(self) -> Self {
        let connections_max = OPERATORS_MAX;
        let descriptors_max = self.operators_descriptors_max;
        Self { connections_max, address_connections_max: connections_max, descriptors_max, ..self }
    }
}

struct Accepting {
    workers: Workers,
    port: Port,
    limits: AcceptLimits,
    metrics: Arc<Metrics>,
    shared: Arc<NodeShared>,
    faults: Faults,
    stop: Arc<Notify>,
}

impl Accepting {
    async fn run(self, listener: tokio::net::TcpListener) {
        let mut is_exhausted = false;
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.stop.notified() => return,
                accepted = self.accept(&listener) => accepted,
            };
            match accepted {
                Ok((stream, addr)) => {
                    is_exhausted = false;
                    self.note_accept(true);
                    self.deal(stream, addr);
                }
                Err(error) if is_of_one_connection(&error) => self.note_accept(true),
                Err(error) => {
                    self.note_accept(false);
                    self.metrics.accept_failures.add(1);
                    if !std::mem::replace(&mut is_exhausted, true) {
                        tracing::warn!(%error, "cannot accept clients; raise the descriptor limit \
                            (ulimit -n) or lower CONNECTIONS_MAX");
                    }
                    sleep(EXHAUSTED_PAUSE).await;
                }
            }
        }
    }

    /// The next client, unless the test switch says that there can be none.
    async fn accept(
        &self,
        listener: &tokio::net::TcpListener,
    ) -> io::Result<(tokio::net::TcpStream, SocketAddr)> {
        self.faults.before_accept()?;
        let accepted = listener.accept().await?;
        // It may say so only since this began to wait.
        self.faults.before_accept()?;
        Ok(accepted)
    }

    /// A client could be accepted, or could not. Operators are none.
    fn note_accept(&self, is_able: bool) {
        match self.port {
            Port::Operations | Port::Peers => {}
            Port::Clients | Port::Shared => {
                let Health { accepts, .. } = &self.shared.health;
                if is_able {
                    accepts.succeeded();
                } else {
                    accepts.failed(self.shared.clock.monotonic_ns());
                }
            }
        }
    }

    fn deal(&self, stream: tokio::net::TcpStream, addr: SocketAddr) {
        let permit = match self.admit(&stream, addr) {
            Ok(permit) => permit,
            Err(refusal) => {
                self.metrics.count_connection_refused(refusal);
                return;
            }
        };
        // Answers are small and final: nothing is gained by holding them back.
        if let Ok(stream) = stream.set_nodelay(true).and_then(|()| stream.into_std()) {
            self.metrics.connections_accepted.add(1);
            self.workers.adopt_client(stream, self.port, addr, permit);
        }
    }

    /// Counts a connection, if it is within every limit.
    fn admit(
        &self,
        stream: &tokio::net::TcpStream,
        addr: SocketAddr,
    ) -> Result<ConnectionPermit, ConnectionRefusal> {
        // A new descriptor is the lowest that is free (POSIX), so at least as many are in use.
        let used = u64::try_from(stream.as_raw_fd()).unwrap_or(u64::MAX);
        if used >= self.limits.descriptors_max {
            return Err(ConnectionRefusal::Descriptors);
        }
        if self.workers.connections(self.port) >= self.limits.connections_max {
            return Err(ConnectionRefusal::All);
        }
        let origins = self.workers.origins(self.port);
        let permit = origins.admit(addr.ip(), self.limits.address_connections_max);
        permit.ok_or(ConnectionRefusal::Address)
    }
}

/// Whether only the connection that would have been accepted is lost, not the ability to accept.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
            | io::ErrorKind::WouldBlock
    )
}

/// How many descriptors this process may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorLimit {
    /// The limit before; `None` is unlimited.
    pub before: Option<u64>,
    /// The limit now; `None` is unlimited.
    pub now: Option<u64>,
}

/// Descriptors besides those of clients and peers: event queues, listeners, files, standard streams.
const DESCRIPTORS_OWN: u64 = 64;

impl DescriptorLimit {
    /// How many of the descriptors clients may fill. The rest is kept for what must never want for
    /// one: the links to and from every peer, twice, for while old ones are being replaced, the data
    /// directory, and operators. Of few descriptors at least half are for clients.
    #[must_use]
    pub fn clients(&self, workers: usize) -> u64 {
        let links = 2 * (workers as u64 + 1);
        let kept = DESCRIPTORS_OWN + 2 * links * PEERS_MAX as u64 + OPERATORS_MAX as u64;
        self.now.map_or(u64::MAX, |limit| limit - kept.min(limit / 2))
    }

    /// How many of the descriptors clients and operators may fill: clients cannot take the places of
    /// operators. Of few that are kept, at least half are for peers and the data directory.
    #[must_use]
    pub fn operators(&self, workers: usize) -> u64 {
        let clients = self.clients(workers);
        let kept = self.now.unwrap_or(u64::MAX) - clients;
        clients + kept.div_ceil(2).min(OPERATORS_MAX as u64)
    }
}

/// Raises the limit on open descriptors as far as this process may, and says how far that is.
/// Each client takes one; others are kept: see [`DescriptorLimit::clients`].
#[must_use]
pub fn raise_descriptor_limit() -> DescriptorLimit {
    let Rlimit { current: before, maximum } = getrlimit(Resource::Nofile);
    if before != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(%error, "the descriptor limit cannot be raised");
    }
    let limit = DescriptorLimit { before, now: getrlimit(Resource::Nofile).current };
    tracing::debug!(?limit, "descriptors");
    limit
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn a_port_is_bound_once() {
        let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let first = ClientListener::bind(any, 0).unwrap();
        let port = first.local_addr().port();
        for ip in [any, IpAddr::V4(Ipv4Addr::LOCALHOST)] {
            let error = ClientListener::bind(ip, port).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        }
        drop(first);
        ClientListener::bind(any, port).unwrap();
    }

    /// The kernel tells of no events of a plain file.
    #[test]
    fn a_port_that_cannot_be_watched_is_an_error_before_anything_begins() {
        let file = tempfile::tempfile().unwrap();
        let deaf = TcpListener::from(std::os::fd::OwnedFd::from(file));
        deaf.set_nonblocking(true).unwrap();
        assert_eq!(watched(deaf).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        watched(ClientListener::bind(any, 0).unwrap().listener).unwrap();
    }

    #[test]
    fn the_ipv6_wildcard_takes_ipv4_clients() {
        let Ok(listener) = ClientListener::bind(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0) else {
            return; // A machine without IPv6.
        };
        std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, listener.local_addr().port())).unwrap();
    }

    #[test]
    fn peers_and_storage_keep_their_descriptors() {
        let of = |now, workers| DescriptorLimit { before: None, now }.clients(workers);
        assert_eq!(of(Some(1024), 1), 1024 - 64 - 72 - 128);
        assert_eq!(of(Some(20_000), 64), 20_000 - 64 - 36 * 65 - 128);
        assert_eq!(of(Some(100), 1), 50);
        assert_eq!(of(None, 1), u64::MAX);
        let of = |now, workers| DescriptorLimit { before: None, now }.operators(workers);
        assert_eq!(of(Some(1024), 1), 1024 - 64 - 72);
        assert_eq!(of(Some(100), 1), 75);
        assert_eq!(of(None, 1), u64::MAX);
    }

    #[test]
    fn an_address_has_its_part_of_what_descriptors_allow() {
        let mut config = Config::new(epicepoch_wire::NodeId(1), "127.0.0.1:60001");
        let of = |config: &Config, now| {
            let limits = AcceptLimits::new(config, DescriptorLimit { before: None, now });
            (limits.address_connections_max, limits.of_operators().address_connections_max)
        };
        (config.connections_max, config.limits.address_connections_max) = (20_000, 10_000);
        config.workers = 1;
        assert_eq!(of(&config, None), (10_000, OPERATORS_MAX));
        assert_eq!(of(&config, Some(4_264)), (2_000, OPERATORS_MAX));
        config.limits.address_connections_max = 20_000;
        assert_eq!(of(&config, Some(4_264)), (4_000, OPERATORS_MAX), "as somebody wants it");
    }

    #[test]
    fn the_descriptor_limit_reaches_the_hard_limit() {
        let limit = raise_descriptor_limit();
        assert_eq!(limit.now, getrlimit(Resource::Nofile).maximum);
    }
}
