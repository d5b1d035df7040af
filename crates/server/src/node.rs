//! A node: opens its files and ports, starts its planes in the right order, and ends them in the
//! right order. It decides nothing about timestamps.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use epicepoch_certs::rustls;
use epicepoch_core::allocator::Allocator;
use epicepoch_core::publication::{Identity, Published, Role, Shared};
use epicepoch_wire::{BootId, Guarantee, NodeId, Term};
use http::HeaderValue;
use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

use crate::addresses::Addresses;
use crate::admin_queue::AdminQueue;
use crate::build::Build;
use crate::config::{self, Config, ConfigError};
use crate::consensus::restore::{Restore, RestoreFileError};
use crate::consensus::{Consensus, ConsensusError, Parts};
use crate::faults::{Faults, FaultsError};
use crate::front::listener::{AcceptLimits, Acceptor, ClientListener, raise_descriptor_limit};
use crate::front::{self, http3};
use crate::intervals::Intervals;
use crate::intervals::sampler::Sampler;
use crate::lease_clock::LeaseClock;
use crate::metrics::Metrics;
use crate::metrics::hiccup::HiccupMeter;
use crate::reload::Reloader;
use crate::security::authz::tokens::TokenFileError;
use crate::security::authz::{Authorization, Port};
use crate::security::excess::ExcessLog;
use crate::security::tls::peers::{PeerTls, PeerTlsError};
use crate::security::tls::reloader::{CertificateReloader, Certificates};
use crate::security::tls::{self, ClientTls, TlsError};
use crate::shared::{Health, NodeClock, NodeShared, nanos};
use crate::storage::{OpenError, Opened, Storage};
use crate::worker::{ProcessorError, Workers, processor};

mod preflight;

pub use preflight::{Preflight, preflight};

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
    _clocks: (HiccupMeter, Sampler),
    _reloader: Reloader,
    /// Second handles of the HTTP/3 sockets, which keep all of them open until the node ends. The
    /// system divides datagrams among the open sockets. So if a worker that ends first closed its
    /// socket, datagrams would reach the wrong worker.
    _http3: Vec<UdpSocket>,
}

/// Why a node did not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration is invalid. Correct it.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// `WORKER_CPUS` cannot be used. Correct it.
    #[error(transparent)]
    Processor(#[from] ProcessorError),
    /// This build refuses the test switch. Unset it, or use a test build.
    #[error(transparent)]
    Faults(#[from] FaultsError),
    /// A file with a certificate or a key is bad. Correct it.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The data directory cannot be opened. Correct `DATA_DIR`, or follow the advice in the text.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A certificate for connections between nodes is bad. Correct it, or the setting that names
    /// it.
    #[error(transparent)]
    PeerTls(#[from] PeerTlsError),
    /// The token file is bad. Correct it, or the setting that names it.
    #[error(transparent)]
    Tokens(#[from] TokenFileError),
    /// The data directory is empty, but no setting says that this node starts a new cluster or
    /// joins one.
    #[error(
        "{path} holds no data and BOOTSTRAP is off: if its disk is not mounted, mount it and start \
         the node again; set BOOTSTRAP=1 on the first start of a new cluster, on all its first \
         members, or JOIN to join a cluster that exists; a member that lost its disk cannot come \
         back under its old id", path = .path.display()
    )]
    NotBootstrapped {
        /// The data directory.
        path: PathBuf,
    },
    /// The backup in `RESTORE` cannot be used. Correct `RESTORE`, or get another copy of the
    /// backup.
    #[error("RESTORE: {0}")]
    Restore(RestoreFileError),
    /// A port cannot be bound. Free it, or choose another one.
    #[error("{setting}: {addr} cannot be used; {advice}", advice = bind_advice(.source))]
    Bind {
        /// The setting to correct.
        setting: &'static str,
        /// The address.
        addr: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The client port cannot be bound over UDP, which HTTP/3 needs. Free the port, choose another
    /// one, or set `HTTP3=off`.
    #[error(
        "HTTP_PORT: {addr} cannot be used over UDP, for HTTP/3; {advice}, or set HTTP3=off",
        advice = bind_advice(.source)
    )]
    BindUdp {
        /// The address.
        addr: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The system cannot watch a port for clients. Raise the limits of descriptors or threads.
    #[error(
        "{addr} cannot be watched, and a node that nobody can reach must not lead: the system has \
         no descriptor, event queue or thread to give; raise the limits (LimitNOFILE=, TasksMax=)"
    )]
    Watch {
        /// The client port, or the operators' port.
        addr: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The system refuses a thread or random numbers.
    #[error("the node cannot run")]
    Io(#[from] io::Error),
}

/// Why a node stopped by itself.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The consensus plane cannot go on.
    #[error(transparent)]
    Consensus(#[from] ConsensusError),
}

/// Tells threads that the node should end. A thread can wait for this.
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
    /// Starts a node: checks the configuration, opens the data directory and the ports, then starts
    /// its threads. Returns as soon as the node answers `/up`; it may still wait for its peers.
    ///
    /// # Errors
    /// When the node cannot start. Nothing is left running then.
    pub fn start(config: Config) -> Result<Self, StartError> {
        Self::start_with_faults(config, Build::default(), None)
    }

    /// [`Node::start`] with the build that the node reports, and with the test switch: a file of
    /// faults, which release builds refuse.
    ///
    /// # Errors
    /// When the node cannot start. Nothing is left running then.
    pub fn start_with_faults(
        config: Config,
        build: Build,
        faults: Option<PathBuf>,
    ) -> Result<Self, StartError> {
        config.check()?;
        processor::check(&config.worker_cpus)?;
        warn_of_settings(&config);
        let faults = Faults::from_path(faults)?;
        let accept = AcceptLimits::new(&config, raise_descriptor_limit());
        log_missing_descriptors(&config, accept);
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
        let authz = Authorization::load(&config.authz)?;
        let peer_tls = PeerTls::load(&config)?;
        if let Some(peer_tls) = &peer_tls {
            peer_tls.keep(&mut certificates);
        }
        let Opened { storage, store, restored } =
            Storage::open(&config.data_dir, config.node_id, &config.cluster_name, &faults)?;
        check_beginning(&config, restored.is_some())?;
        let restore = match &restored {
            None => Restore::read(&config, &faults).map_err(StartError::Restore)?,
            Some(restored) => Restore::continued(&config, &faults, restored),
        };
        let boot = BootId(getrandom::u64().map_err(io::Error::from)?);
        let identity = Identity { node: config.node_id, store, boot };
        let durable_term = restored.as_ref().map_or(Term(0), |r| r.hard_state.term);
        let core = Arc::new(Shared::new(durable_term, Published::nothing(identity)));
        // The positions from the data directory are set before the first peer connects. This node
        // compares the position in each peer's hello with the last one that it knows of that peer.
        core.set_positions(restored.as_ref().map(|r| r.positions.clone()).unwrap_or_default());
        let (admin_queue, admin_requests) = AdminQueue::open();
        let shared = Arc::new(NodeShared {
            build,
            admin_queue,
            client_addr: config.advertise_addr_at(http_addr.port()),
            identity,
            began: core.positions().own,
            allocator: Allocator::new(core.clone(), nanos(config.epoch_interval)),
            clock: NodeClock::new(wall_ns()),
            lease_clock: LeaseClock::new(config.leases.clock).with_faults(faults.clone()),
            intervals: Intervals::of(&config, storage.intervals(), faults.clone()),
            health: Health::default(),
            authz,
            excess: ExcessLog::default(),
            peer_tls,
            addresses: Addresses::load(&config.data_dir),
            tls,
            certificates,
            alt_svc: http3.is_some().then(|| alt_svc(http_addr.port())),
            max_n: config.max_n.into(),
            is_lease_default: AtomicBool::new(config.leases.guarantee_default == Guarantee::Lease),
            is_compact: false.into(),
            core,
            config,
        });
        let metrics = Arc::new(Metrics::new(shared.config.workers));
        let workers = front::spawn_workers(shared.clone(), metrics.clone())?;
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
            admin_requests,
        };
        let ending = fate.clone();
        let consensus = Consensus::spawn(parts, move || ending.end())?;
        let clocks = watch_clocks(&shared, &metrics)?;
        let planes = (&workers, &metrics, &shared);
        let acceptors = open_ports((clients, operations), accept, planes, &faults)?;
        let reloader = read_again(shared.clone())?;
        let http3 = serve_http3(&workers, sockets, http3, &shared)?;
        tracing::info!(
            node = identity.node.0,
            clients = %http_addr,
            operations = ops_addr.map(tracing::field::display),
            peers = %shared.config.peer_bind(),
            "started"
        );
        Ok(Self {
            shared,
            workers,
            http_addr,
            ops_addr,
            acceptors,
            consensus: Mutex::new(Some(consensus)),
            fate,
            _clocks: clocks,
            _reloader: reloader,
            _http3: http3,
        })
    }

    /// The address on this machine at which clients reach this node.
    pub fn http_addr(&self) -> SocketAddr {
        self.http_addr
    }

    /// The address on this machine at which operators reach this node; `None` when they use the
    /// client port.
    pub fn ops_addr(&self) -> Option<SocketAddr> {
        self.ops_addr
    }

    /// Asks the node to stop. Returns at once.
    pub fn request_shutdown(&self) {
        self.fate.end();
    }

    /// Blocks until the node has stopped. When it was asked to stop, it first hands leadership over
    /// and finishes the requests that it has begun. It also stops when it cannot go on.
    ///
    /// # Errors
    /// Why it could not go on.
    pub fn wait(&self) -> Result<(), RunError> {
        self.fate.wait();
        let consensus = self.consensus.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(consensus) = consensus else { return Ok(()) };
        let timeout = self.shared.config.shutdown_timeout;
        let deadline = Instant::now() + timeout;
        consensus.prepare_stop();
        // The handover gets at most half of the shutdown timeout, so that at least half is left for
        // the workers.
        self.wait_for_successor(&consensus, Instant::now() + timeout / 2);
        self.shared.health.is_shutting_down.store(true, Ordering::SeqCst);
        self.acceptors.iter().for_each(Acceptor::stop);
        if !self.workers.shutdown(deadline.saturating_duration_since(Instant::now())) {
            tracing::warn!("a worker did not end in time: its thread is abandoned");
        }
        // While the workers stopped, this node may have won an election. Then it waits for another
        // handover, but at most for one election timeout. A longer wait has no use: this node
        // serves no clients any more, and the other voters elect a leader after it has ended.
        let timeout = Instant::now() + self.shared.config.election_timeout;
        self.wait_for_successor(&consensus, timeout.min(deadline));
        consensus.stop()?;
        tracing::info!(node = self.shared.identity.node.0, "stopped");
        Ok(())
    }

    /// Waits until this node no longer leads. Returns at once if no other voter exists. A voter
    /// that is not connected now may connect a moment later, so it counts.
    fn wait_for_successor(&self, consensus: &Consensus, deadline: Instant) {
        while self.leads_others() && !consensus.has_ended() && Instant::now() < deadline {
            thread::sleep(HAND_OVER_POLL);
        }
    }

    /// Whether this node leads and the cluster has other voters.
    fn leads_others(&self) -> bool {
        let published = self.shared.core.published();
        let me = published.identity.node;
        published.role == Role::Leader && published.voters.iter().any(|(node, _)| node != me)
    }

    /// What this node does now, for people: a few words.
    pub fn activity(&self) -> String {
        let shared = &self.shared;
        if shared.health.is_shutting_down.load(Ordering::Relaxed) {
            return "stopping".to_owned();
        }
        let published = shared.core.published();
        if !published.is_joined() {
            let is_first = shared.config.join.is_empty();
            let others = "waits for the other first members";
            return if is_first { others } else { "waits to be added to the cluster" }.to_owned();
        }
        let term = published.term;
        match (published.role, published.leader) {
            (Role::Leader, _) if published.grant.is_some() => format!("leads in term {term}"),
            (Role::Leader, _) => format!("leads in term {term}, does not serve yet"),
            (Role::Candidate, _) => format!("campaigns in term {term}"),
            (Role::Follower, Some(leader)) => format!("follows node {leader} in term {term}"),
            (Role::Follower, None) => format!("knows no leader in term {term}"),
        }
    }

    /// The time since the consensus thread last showed that it runs, which it does many times a
    /// second.
    pub fn silence(&self) -> Duration {
        let now_ns = self.shared.clock.monotonic_ns();
        let ticked_ns = self.shared.health.ticked_ns.load(Ordering::Relaxed);
        Duration::from_nanos(now_ns.saturating_sub(ticked_ns))
    }

    /// Whether this node leads and has a grant, so that it may serve.
    pub fn is_leader(&self) -> bool {
        self.shared.core.published().grant.is_some()
    }

    /// Asks this node to hand leadership to `target`. Does nothing if this node is not the leader, or hands over
    /// already.
    pub fn transfer_leader_to(&self, target: NodeId) {
        let consensus = self.consensus.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(consensus) = consensus.as_ref() {
            consensus.hand_over(target);
        }
    }
}

/// The wall clock, Unix nanoseconds; 0 if it is before 1970.
fn wall_ns() -> u64 {
    nanos(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Warns of settings that do not fit this machine or each other. For example, elections are delayed
/// when spinning workers use all processors.
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
    if config.authz.admin_from_is_idle(config.tls.clients) {
        tracing::warn!(
            "ADMIN_FROM names other machines, but their requests in plain text are refused: set \
             CLIENT_TLS and OPS_TOKEN_FILE, or also name them in OPS_PLAIN_FROM"
        );
    }
}

/// Logs that the descriptors are too few for `CONNECTIONS_MAX`. This is a warning only if somebody
/// has set it.
fn log_missing_descriptors(config: &Config, limits: AcceptLimits) {
    let AcceptLimits { connections_max, descriptors_max, .. } = limits;
    if connections_max as u64 <= descriptors_max {
        return;
    }
    if connections_max == Config::new(config.node_id, String::new()).connections_max {
        tracing::info!(
            connections_max,
            descriptors_max,
            "the limit of descriptors is below the default of CONNECTIONS_MAX"
        );
    } else {
        tracing::warn!(
            connections_max,
            descriptors_max,
            "fewer clients than CONNECTIONS_MAX will be accepted, because descriptors are kept for \
            peers and storage: raise the limit (ulimit -n, LimitNOFILE=) or lower CONNECTIONS_MAX"
        );
    }
}

/// Binds the client port over TCP and, for HTTP/3, over UDP. If the system chooses the port number,
/// that number must be free for TCP and for UDP.
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

/// Starts to serve HTTP/3, if it is on. Returns second handles of its sockets.
fn serve_http3(
    workers: &Workers,
    sockets: Vec<UdpSocket>,
    tls: Option<Arc<rustls::ServerConfig>>,
    shared: &NodeShared,
) -> io::Result<Vec<UdpSocket>> {
    let kept = sockets.iter().map(UdpSocket::try_clone).collect::<io::Result<_>>()?;
    if let Some(tls) = tls {
        let has_ops_port = shared.config.authz.ops_addr.is_some();
        let port = if has_ops_port { Port::Clients } else { Port::Shared };
        front::serve_http3(workers, sockets, tls, port, shared).map_err(io::Error::other)?;
    }
    Ok(kept)
}

/// The `Alt-Svc` header (RFC 7838). It tells clients over TCP that they may use HTTP/3 next time.
fn alt_svc(port: u16) -> HeaderValue {
    let text = format!("h3=\":{port}\"; ma={ALT_SVC_SECONDS}");
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("clear"))
}

/// Checks that the settings fit the data directory: an empty one needs `BOOTSTRAP` or `JOIN`.
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

/// Starts the threads that measure how long the machine stalls, and that sample the clock source.
fn watch_clocks(shared: &Arc<NodeShared>, metrics: &Metrics) -> io::Result<(HiccupMeter, Sampler)> {
    let shared = shared.clone();
    let sample = move || shared.intervals.sample(&shared.core.published());
    Ok((HiccupMeter::spawn(metrics.hiccups.clone())?, Sampler::spawn(sample)?))
}

/// Starts a thread that reloads tokens and certificates when their files change.
fn read_again(shared: Arc<NodeShared>) -> io::Result<Reloader> {
    let mut reloader = CertificateReloader::new(&shared.certificates);
    Reloader::spawn(move || {
        shared.authz.reload();
        reloader.look();
    })
}

/// Starts to accept clients, and operators if they have their own port.
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
    config.authz.ops_addr.map(bind).transpose()
}

/// Binds the peer port exclusively: a second process on this port fails to start.
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

/// How many port numbers to try until one is free over both TCP and UDP. The system chooses each.
const PORTS_TRIED_MAX: u32 = 16;
/// How long clients may remember that HTTP/3 is available, seconds. After a restart without HTTP/3,
/// clients try it without success for at most this time. Then they use TCP.
const ALT_SVC_SECONDS: u32 = 3600;
/// At most this many connections on the peer port wait to be accepted.
const PEER_BACKLOG: i32 = 256;
/// While a node stops: time between two checks whether another node has taken over leadership.
const HAND_OVER_POLL: Duration = Duration::from_micros(200);
