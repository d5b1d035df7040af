//! The client port and the port of operators. Each has an exclusive listener and a thread that
//! accepts connections and hands them to the workers in turn. That thread never reads from a
//! connection and never waits for a worker.

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
use crate::security::authz::Port;
use crate::security::limits::ConnectionPermit;
use crate::shared::{Accepts, Health, NodeShared};
use crate::worker::Workers;

/// Connections that the kernel completes and keeps until they are accepted. The kernel uses the
/// lower one of this and `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// At most this many open connections to `OPS_ADDR`.
const OPERATORS_MAX: usize = 128;
/// At most this many bytes of answers wait in the kernel beyond the client's receive window.
/// Without a limit the kernel keeps 4 MB for a client that does not read. The window itself is the
/// client's memory.
#[cfg(target_os = "linux")]
const UNSENT_LEN_MAX: u32 = 64 << 10;
/// Pause after the system had no descriptor or memory left. In the pause other connections may end.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(50);

/// A bound client port that accepts nothing yet.
#[derive(Debug)]
pub struct ClientListener {
    listener: TcpListener,
    local_addr: SocketAddr,
}

impl ClientListener {
    /// Binds `ip:port` for this process alone; fails if another process listens there. Port 0 lets
    /// the system choose. The IPv6 wildcard address accepts IPv4 clients, too.
    ///
    /// # Errors
    /// When the port is taken, or not allowed, or the address is not of this machine.
    pub fn bind(ip: IpAddr, port: u16) -> io::Result<Self> {
        let addr = SocketAddr::new(ip, port);
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
        // SO_REUSEADDR allows binding a port whose last connections are still closing. SO_REUSEPORT
        // stays off: with it two processes could share the port, and each would get a part of the
        // clients.
        socket.set_reuse_address(true)?;
        if addr.is_ipv6() {
            socket.set_only_v6(!ip.is_unspecified())?;
        }
        // Accepted connections inherit this option from the listener.
        #[cfg(target_os = "linux")]
        socket.set_tcp_notsent_lowat(UNSENT_LEN_MAX)?;
        socket.bind(&addr.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let listener = TcpListener::from(socket);
        let local_addr = listener.local_addr()?;
        Ok(Self { listener, local_addr })
    }

    /// The bound address, with the port that the system chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Starts a thread that accepts connections and hands them to the workers in turn. `port`
    /// decides the rights of the clients. Connections beyond the `limits` are closed at once and
    /// counted; each port counts its own connections. If a lack of descriptors or memory prevents
    /// all accepts, the [`Health`] of the node shows this. The port of operators is an exception.
    ///
    /// # Errors
    /// When the system cannot create a thread or an event queue, or cannot watch the port.
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

/// Registers a port with a new event loop. If this fails, the node must not begin to lead.
fn watched(listener: TcpListener) -> io::Result<(Runtime, tokio::net::TcpListener)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let context = runtime.enter();
    let listener = tokio::net::TcpListener::from_std(listener)?;
    drop(context);
    Ok((runtime, listener))
}

/// The accepting thread. It stops when this is dropped.
#[derive(Debug)]
pub struct Acceptor {
    stop: Arc<Notify>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Acceptor {
    /// Closes the port and ends the thread. Accepted connections go on.
    pub fn stop(&self) {
        self.stop.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // If that thread has panicked, the port is closed as well.
            let _ = thread.join();
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Limits of accepted connections.
#[derive(Clone, Copy, Debug)]
pub struct AcceptLimits {
    /// At most this many open client connections.
    pub connections_max: usize,
    /// At most this many open client connections of one address.
    pub address_connections_max: usize,
    /// Clients are refused while this process uses this many descriptors:
    /// [`DescriptorLimit::clients`].
    pub descriptors_max: u64,
    /// Operators are refused while this process uses this many descriptors:
    /// [`DescriptorLimit::operators`].
    pub operators_descriptors_max: u64,
}

impl AcceptLimits {
    /// The limits that the configuration and the system allow.
    #[must_use]
    pub fn new(config: &Config, descriptors: DescriptorLimit) -> Self {
        let descriptors_max = descriptors.clients(config.workers);
        let share = config.limits.address_connections_max as u128;
        let all = config.connections_max;
        // If descriptors allow fewer connections, the share of one address shrinks in proportion.
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
    /// The limits for operators: a few people and the collectors of metrics. All of them may have
    /// the same address.
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
                    self.record_accept(true);
                    self.deal(stream, addr);
                }
                Err(error) if Accepts::is_of_one_connection(&error) => self.record_accept(true),
                Err(error) => {
                    self.record_accept(false);
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

    /// Accepts the next client. Fails while the test switch says that accepts fail.
    async fn accept(
        &self,
        listener: &tokio::net::TcpListener,
    ) -> io::Result<(tokio::net::TcpStream, SocketAddr)> {
        self.faults.before_accept()?;
        let accepted = listener.accept().await?;
        // The test switch may have been set during the wait.
        self.faults.before_accept()?;
        Ok(accepted)
    }

    /// Records whether a client could be accepted. Connections of operators do not count.
    fn record_accept(&self, is_able: bool) {
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
        // Answers are small and written once, so a delay gains nothing.
        if let Ok(stream) = stream.set_nodelay(true).and_then(|()| stream.into_std()) {
            self.metrics.connections_accepted.add(1);
            self.workers.adopt_client(stream, self.port, addr, permit);
        }
    }

    /// Counts a connection if it is within every limit.
    fn admit(
        &self,
        stream: &tokio::net::TcpStream,
        addr: SocketAddr,
    ) -> Result<ConnectionPermit, ConnectionRefusal> {
        // A new descriptor is the lowest free number (POSIX), so at least that many are in use.
        let used = u64::try_from(stream.as_raw_fd()).unwrap_or(u64::MAX);
        if used >= self.limits.descriptors_max {
            return Err(ConnectionRefusal::Descriptors);
        }
        if self.workers.connections(self.port) >= self.limits.connections_max {
            return Err(ConnectionRefusal::All);
        }
        let address_limits = self.workers.address_limits(self.port);
        let permit = address_limits.admit(addr.ip(), self.limits.address_connections_max);
        permit.ok_or(ConnectionRefusal::Address)
    }
}

/// How many descriptors this process may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorLimit {
    /// The limit before it was raised; `None` is unlimited.
    pub before: Option<u64>,
    /// The limit now; `None` is unlimited.
    pub now: Option<u64>,
}

/// Descriptors beside those of clients and peers: event queues, listeners, files, standard streams.
const DESCRIPTORS_OWN: u64 = 64;

impl DescriptorLimit {
    /// Clients are refused while this many descriptors are in use. The rest is reserved for the
    /// data directory, for operators, and for the links to and from every peer. Links count twice,
    /// because old ones may still be open while they are replaced. If there are few descriptors,
    /// clients get at least half.
    #[must_use]
    pub fn clients(&self, workers: usize) -> u64 {
        let links = 2 * (workers as u64 + 1);
        let kept = DESCRIPTORS_OWN + 2 * links * PEERS_MAX as u64 + OPERATORS_MAX as u64;
        self.now.map_or(u64::MAX, |limit| limit - kept.min(limit / 2))
    }

    /// Operators are refused while this many descriptors are in use. Clients cannot take the
    /// descriptors of operators. If few are reserved, at least half of them are for peers and the
    /// data directory.
    #[must_use]
    pub fn operators(&self, workers: usize) -> u64 {
        let clients = self.clients(workers);
        let kept = self.now.unwrap_or(u64::MAX) - clients;
        clients + kept.div_ceil(2).min(OPERATORS_MAX as u64)
    }
}

/// Raises the limit on open descriptors as far as the system allows, and returns it. Each client
/// needs one descriptor; some are reserved, see [`DescriptorLimit::clients`].
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

    /// The listener is a plain file here, because the kernel cannot watch a plain file for events.
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
