//! A node: opens what it needs, starts its planes in the right order, and ends them in the right
//! order. It decides nothing about timestamps.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use epicepoch_certs::rustls;
use epicepoch_core::allocator::Allocator;
use epicepoch_core::publication::{Identity, Published, Role, Shared};
use epicepoch_wire::{BootId, NodeId, Term};
use http::HeaderValue;
use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

use crate::config::{self, Config, ConfigError};
use crate::consensus::operators::Desk;
use crate::consensus::restore::{Restore, RestoreFileError};
use crate::consensus::{Consensus, ConsensusError, Parts};
use crate::faults::{Faults, FaultsError};
use crate::hiccup::HiccupMeter;
use crate::http::http3;
use crate::listener::{AcceptLimits, Acceptor, ClientListener, raise_descriptor_limit};
use crate::metrics::Metrics;
use crate::peers::{PeerTls, PeerTlsError};
use crate::reload::Reloader;
use crate::rights::tokens::TokenFileError;
use crate::rights::{Port, Rights};
use crate::shared::{Health, NodeClock, NodeShared};
use crate::storage::{OpenError, Opened, Storage};
use crate::tls::upkeep::{Certificates, Upkeep};
use crate::tls::{self, ClientTls, TlsError};
use crate::worker::{ProcessorError, Workers, processor};

/// A running node. Dropping it without [`Node::wait`] leaves its threads running.
#[derive(Debug)]
pub struct Node {
    shared: Arc<NodeShared>,
    workers: Workers,
    http_addr: SocketAddr,
    ops_addr: Option<SocketAddr>,
    acceptors: Vec<Acceptor>,
    consensus: Mutex<Option<Consensus>>,
    fate: Arc<Fate>,
    _hiccups: HiccupMeter,
    _reloader: Reloader,
    /// The sockets of HTTP/3 once more: while one worker ends before another, the system leads no
    /// datagram to a worker that does not expect it.
    _http3: Vec<UdpSocket>,
}

/// Why a node did not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// Correct the configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Correct `WORKER_CPUS`.
    #[error(transparent)]
    Processor(#[from] ProcessorError),
    /// Unset the test switch, or use a test build.
    #[error(transparent)]
    Faults(#[from] FaultsError),
    /// Correct the files of certificates and keys.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Correct `DATA_DIR`, or do what the text says.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Correct the certificates towards other nodes, or the settings that name them.
    #[error(transparent)]
    PeerTls(#[from] PeerTlsError),
    /// Correct the file of tokens, or the setting that names it.
    #[error(transparent)]
    Tokens(#[from] TokenFileError),
    /// The data directory is empty, and nobody said that this is a new cluster.
    #[error(
        "{path} holds no data and BOOTSTRAP is off: set BOOTSTRAP=1 on the first start of a new \
         cluster, on all its first members, or JOIN to join a cluster that exists; a member that \
         lost its disk cannot come back under its old id", path = .path.display()
    )]
    NotBootstrapped {
        /// The data directory.
        path: PathBuf,
    },
    /// Correct `RESTORE`, or get another copy of the backup.
    #[error("RESTORE: {0}")]
    Restore(RestoreFileError),
    /// Free the port, or choose another.
    #[error("{setting}: {addr} cannot be used; {advice}", advice = bind_advice(.source))]
    Bind {
        /// The setting to correct.
        setting: &'static str,
        /// The address.
        addr: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// Free the port, choose another, or set `HTTP3` off.
    #[error(
        "HTTP_PORT: {addr} cannot be used over UDP, for HTTP/3; {advice}, or set HTTP3=off",
        advice = bind_advice(.source)
    )]
    BindUdp {
        /// The address.
        addr: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// Raise the limits of descriptors or threads.
    #[error(
        "{addr} cannot be watched, and a node that nobody can reach must not lead: the system has \
         no descriptor, event queue or thread to give; raise the limits (LimitNOFILE=, TasksMax=)"
    )]
    Watch {
        /// The client port, or that of operators.
        addr: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// The system refuses a thread or randomness.
    #[error("the node cannot run")]
    Io(#[from] io::Error),
}

/// Why a node stopped by itself.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The consensus plane could not go on.
    #[error(transparent)]
    Consensus(#[from] ConsensusError),
}

/// Whether the node should end, and who is told.
#[derive(Debug, Default)]
struct Fate {
    should_end: Mutex<bool>,
    changed: Condvar,
}

impl Fate {
    fn end(&self) {
        *self.should_end.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    fn wait(&self) {
        let ends = self.should_end.lock().unwrap_or_else(PoisonError::into_inner);
        let ends = self.changed.wait_while(ends, |ends| !*ends);
        drop(ends.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Node {
    /// Starts a node: checks the configuration, opens the data directory and both ports, then
    /// starts its threads. Returns as soon as it answers `/up`; it may still wait for its peers.
    ///
    /// # Errors
    /// When the node cannot start; nothing is left running.
    pub fn start(config: Config) -> Result<Self, StartError> {
        Self::start_with_faults(config, None)
    }

    /// [`Node::start`] with the test switch: a file of faults, refused by release builds.
    ///
    /// # Errors
    /// When the node cannot start; nothing is left running.
    pub fn start_with_faults(config: Config, faults: Option<PathBuf>) -> Result<Self, StartError> {
        config.check()?;
        processor::check(&config.worker_cpus)?;
        warn_of_settings(&config);
        let faults = Faults::from_path(faults)?;
        let accept = AcceptLimits::new(&config, raise_descriptor_limit());
        warn_of_descriptors(accept);
        let tls = ClientTls::load(&config)?;
        let mut certificates = Certificates::default();
        if let Some(tls) = &tls {
            tls.keep(&mut certificates);
        }
        let http3 = tls::load_http3(&config, tls.as_ref(), &mut certificates)?;
        let (clients, sockets) = bind_clients(&config, http3.is_some())?;
        let http_addr = clients.local_addr();
        let operations = bind_operations(&config)?;
        let ops_addr = operations.as_ref().map(ClientListener::local_addr);
        let peers = bind_peers(&config)?;
        let rights = Rights::load(&config.rights)?;
        let peer_tls = PeerTls::load(&config)?;
        if let Some(peer_tls) = &peer_tls {
            peer_tls.keep(&mut certificates);
        }
        let opened =
            Storage::open(&config.data_dir, config.node_id, &config.cluster_name, &faults)?;
        let Opened { storage, store, restored } = opened;
        check_beginning(&config, restored.is_some())?;
        let restore = match restored {
            None => Restore::read(&config, &faults).map_err(StartError::Restore)?,
            Some(_) => Restore::none(&config, &faults),
        };
        let boot = BootId(getrandom::u64().map_err(io::Error::from)?);
        let identity = Identity { node: config.node_id, store, boot };
        let durable_term = restored.as_ref().map_or(Term(0), |r| r.hard_state.term);
        let core = Arc::new(Shared::new(durable_term, Published::nothing(identity)));
        // Before the first peer is met: this node holds it to what it has named.
        let positions = restored.as_ref().map(|r| r.positions.clone()).unwrap_or_default();
        let began = positions.own;
        core.set_positions(positions);
        let interval_ns = config.epoch_interval.as_nanos() as u64;
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (desk, asks) = Desk::open();
        let shared = Arc::new(NodeShared {
            desk,
            client_addr: config.advertise_addr_at(http_addr.port()),
            identity,
            began,
            allocator: Allocator::new(core.clone(), interval_ns),
            clock: NodeClock::new(wall.as_nanos() as u64),
            health: Health::default(),
            rights,
            peer_tls,
            tls,
            certificates,
            alt_svc: http3.is_some().then(|| alt_svc(http_addr.port())),
            max_n: config.max_n.into(),
            core,
            config,
        });
        let metrics = Arc::new(Metrics::new(shared.clone()));
        let workers = Workers::spawn(shared.clone(), metrics.clone())?;
        let fate = Arc::new(Fate::default());
        let parts = Parts {
            shared: shared.clone(),
            workers: workers.clone(),
            storage,
            restored,
            listener: peers,
            restore,
            faults: faults.clone(),
            seed: getrandom::u64().map_err(io::Error::from)?,
            metrics: metrics.clone(),
            asks,
        };
        let ending = fate.clone();
        let consensus = Consensus::spawn(parts, move || ending.end())?;
        let hiccups = HiccupMeter::spawn(metrics.clone())?;
        let planes = (&workers, &metrics, &shared);
        let acceptors = open_ports((clients, operations), accept, planes, &faults)?;
        let reloader = read_again(shared.clone())?;
        let http3 = serve_http3(&workers, sockets, http3, &shared)?;
        tracing::info!(
            node = identity.node.0,
            clients = %http_addr,
            operations = ?ops_addr,
            peers = %shared.config.peer_bind(),
            "started"
        );
        let consensus = Mutex::new(Some(consensus));
        Ok(Self {
            shared,
            workers,
            http_addr,
            ops_addr,
            acceptors,
            consensus,
            fate,
            _hiccups: hiccups,
            _reloader: reloader,
            _http3: http3,
        })
    }

    /// Where clients reach this node on this machine.
    pub fn http_addr(&self) -> SocketAddr {
        self.http_addr
    }

    /// Where operators reach this node on this machine, if not on the client port.
    pub fn ops_addr(&self) -> Option<SocketAddr> {
        self.ops_addr
    }

    /// Asks the node to stop; returns at once.
    pub fn request_shutdown(&self) {
        self.fate.end();
    }

    /// Blocks until the node has stopped: because it was asked to, after handing leadership over
    /// and finishing what it had begun, or because it cannot go on.
    ///
    /// # Errors
    /// Why it could not go on.
    pub fn wait(&self) -> Result<(), RunError> {
        self.fate.wait();
        let consensus = self.consensus.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(consensus) = consensus else { return Ok(()) };
        let timeout = self.shared.config.shutdown_timeout;
        let deadline = Instant::now() + timeout;
        consensus.depart();
        // Half of the time is the workers', whatever becomes of the handover.
        self.wait_for_successor(&consensus, Instant::now() + timeout / 2);
        self.shared.health.is_shutting_down.store(true, Ordering::SeqCst);
        self.acceptors.iter().for_each(Acceptor::stop);
        if !self.workers.shutdown(deadline.saturating_duration_since(Instant::now())) {
            tracing::warn!("a worker did not end in time: what it had begun is cut off");
        }
        // A vote that was under way may have been won meanwhile. Nobody is served here any more: whom
        // the others choose when this node is gone comes sooner than a second refusal.
        let patience = Instant::now() + self.shared.config.election_timeout;
        self.wait_for_successor(&consensus, patience.min(deadline));
        consensus.stop()?;
        tracing::info!(node = self.shared.identity.node.0, "stopped");
        Ok(())
    }

    /// Waits until leadership is gone, while there are others to take it. Those that are not heard just
    /// now may be so a moment later.
    fn wait_for_successor(&self, consensus: &Consensus, deadline: Instant) {
        while self.leads_others() && !consensus.has_ended() && Instant::now() < deadline {
            thread::sleep(HAND_OVER_POLL);
        }
    }

    /// Whether this node leads, and is not the only voter.
    fn leads_others(&self) -> bool {
        let published = self.shared.core.published();
        let me = published.identity.node;
        published.role == Role::Leader && published.voters.iter().any(|(node, _)| node != me)
    }

    /// Whether this node leads and may serve.
    pub fn is_leader(&self) -> bool {
        self.shared.core.published().grant.is_some()
    }

    /// Asks this leader to hand leadership to `target`; does nothing on a follower.
    pub fn transfer_leader_to(&self, target: NodeId) {
        let consensus = self.consensus.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(consensus) = consensus.as_ref() {
            consensus.hand_over(target);
        }
    }
}

/// Elections wait for a processor when workers spin on all of them.
fn warn_of_settings(config: &Config) {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    if config.busy_poll && config.workers >= processors {
        let workers = config.workers;
        tracing::warn!(
            workers,
            processors,
            "BUSY_POLL leaves no processor for elections and \
            the kernel: lower WORKERS"
        );
    }
    if config.rights.admin_from_is_idle(config.tls.clients) {
        tracing::warn!(
            "ADMIN_FROM names other machines, and what they ask in plain text is refused: set \
             CLIENT_TLS and OPS_TOKEN_FILE, or name them in OPS_PLAIN_FROM, too"
        );
    }
}

fn warn_of_descriptors(limits: AcceptLimits) {
    let AcceptLimits { connections_max, descriptors_max, .. } = limits;
    if connections_max as u64 > descriptors_max {
        tracing::warn!(
            connections_max,
            descriptors_max,
            "fewer clients than CONNECTIONS_MAX will be accepted, since descriptors are kept for \
            peers and storage: raise the limit (ulimit -n, LimitNOFILE=) or lower CONNECTIONS_MAX"
        );
    }
}

/// The client port over TCP and, for HTTP/3, over UDP. Where the system chooses the number, it has to
/// be free over both.
fn bind_clients(
    config: &Config,
    has_http3: bool,
) -> Result<(ClientListener, Vec<UdpSocket>), StartError> {
    let (ip, port) = (config.http_bind, config.http_port);
    let mut tries_left = if port == 0 { PORTS_TRIED_MAX } else { 1 };
    loop {
        let listener = ClientListener::bind(ip, port).map_err(|source| StartError::Bind {
            setting: match source.kind() {
                io::ErrorKind::AddrNotAvailable => "HTTP_BIND",
                _ => "HTTP_PORT",
            },
            addr: SocketAddr::from((ip, port)),
            source,
        })?;
        if !has_http3 {
            return Ok((listener, Vec::new()));
        }
        let addr = listener.local_addr();
        tries_left -= 1;
        match http3::endpoint::bind(addr, config.workers) {
            Ok(sockets) => return Ok((listener, sockets)),
            Err(source) if tries_left == 0 => return Err(StartError::BindUdp { addr, source }),
            Err(_) => {}
        }
    }
}

/// Begins to serve HTTP/3, if it is on; returns its sockets once more.
fn serve_http3(
    workers: &Workers,
    sockets: Vec<UdpSocket>,
    tls: Option<Arc<rustls::ServerConfig>>,
    shared: &NodeShared,
) -> io::Result<Vec<UdpSocket>> {
    let kept = sockets.iter().map(UdpSocket::try_clone).collect::<io::Result<_>>()?;
    if let Some(tls) = tls {
        let has_ops_port = shared.config.rights.ops_addr.is_some();
        let port = if has_ops_port { Port::Clients } else { Port::Shared };
        workers.serve_http3(sockets, tls, port, &shared.config).map_err(io::Error::other)?;
    }
    Ok(kept)
}

/// What answers over TCP say of HTTP/3 (RFC 7838), so that clients may come over UDP the next time.
fn alt_svc(port: u16) -> HeaderValue {
    let text = format!("h3=\":{port}\"; ma={ALT_SVC_SECONDS}");
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("clear"))
}

/// Whether what is in the data directory and what was asked for go together.
fn check_beginning(config: &Config, has_data: bool) -> Result<(), StartError> {
    let may_begin = config.bootstrap || !config.join.is_empty();
    if !has_data && !may_begin {
        return Err(StartError::NotBootstrapped { path: config.data_dir.clone() });
    }
    if has_data && config.bootstrap {
        let restores = config.restore.is_some() || config.restore_floor.is_some();
        let ignored = if restores { "BOOTSTRAP and RESTORE are" } else { "BOOTSTRAP is" };
        tracing::info!("{ignored} ignored: data exists");
    }
    Ok(())
}

/// Has tokens and certificates read again while the node runs.
fn read_again(shared: Arc<NodeShared>) -> io::Result<Reloader> {
    let mut upkeep = Upkeep::new(&shared.certificates);
    Reloader::spawn(move || {
        shared.rights.reload();
        upkeep.look();
    })
}

/// Lets clients in, and operators, if they have a port of their own.
fn open_ports(
    (clients, operations): (ClientListener, Option<ClientListener>),
    limits: AcceptLimits,
    (workers, metrics, shared): (&Workers, &Arc<Metrics>, &Arc<NodeShared>),
    faults: &Faults,
) -> Result<Vec<Acceptor>, StartError> {
    let port = if operations.is_some() { Port::Clients } else { Port::Shared };
    let open = |listener: ClientListener, port, limits, faults: &Faults| {
        let addr = listener.local_addr();
        let (metrics, shared) = (metrics.clone(), shared.clone());
        let opened = listener.spawn(workers.clone(), port, limits, metrics, shared, faults.clone());
        opened.map_err(|source| StartError::Watch { addr, source })
    };
    let mut acceptors = vec![open(clients, port, limits, faults)?];
    if let Some(operations) = operations {
        let limits = limits.of_operators();
        acceptors.push(open(operations, Port::Operations, limits, &Faults::none())?);
    }
    Ok(acceptors)
}

fn bind_operations(config: &Config) -> Result<Option<ClientListener>, StartError> {
    let bind = |addr: SocketAddr| {
        let bound = ClientListener::bind(addr.ip(), addr.port());
        bound.map_err(|source| StartError::Bind { setting: "OPS_ADDR", addr, source })
    };
    config.rights.ops_addr.map(bind).transpose()
}

/// The peer port, exclusive: a second process on it fails.
fn bind_peers(config: &Config) -> Result<TcpListener, StartError> {
    let addr = config.peer_bind();
    let bind = || -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.bind(&addr.into())?;
        socket.listen(PEER_BACKLOG)?;
        Ok(socket.into())
    };
    let is_default = config.raft_bind == config::default_raft_bind(&config.raft_addr);
    let setting = if is_default { "RAFT_ADDR" } else { "RAFT_BIND" };
    bind().map_err(|source| StartError::Bind { setting, addr, source })
}

fn bind_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "free the port or choose another",
        io::ErrorKind::AddrNotAvailable => "choose an address of this machine",
        io::ErrorKind::PermissionDenied => "allow it to this user or choose a port from 1024 on",
        _ => "choose another",
    }
}

/// Ports that the system may choose until one is free over TCP and UDP.
const PORTS_TRIED_MAX: u32 = 16;
/// For how long clients may remember that there is HTTP/3: a node that is started without it is asked
/// in vain for no longer, and clients ask over TCP then.
const ALT_SVC_SECONDS: u32 = 3600;
/// Connections that may wait to be accepted on the peer port.
const PEER_BACKLOG: i32 = 256;
/// Between two looks at whether leadership is gone.
const HAND_OVER_POLL: Duration = Duration::from_micros(200);
