//! A node's data plane without a consensus plane, and a client that speaks HTTP/1.1 byte by byte.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use epicepoch_core::allocator::Allocator;
use epicepoch_core::publication::{EpochRange, Grant, Identity, Published, Role, Shared};
use epicepoch_core::quorum::Voters;
use epicepoch_server::Config;
use epicepoch_server::addresses::Addresses;
use epicepoch_server::admin_queue::AdminQueue;
use epicepoch_server::build::Build;
use epicepoch_server::faults::Faults;
use epicepoch_server::front;
use epicepoch_server::front::listener::{AcceptLimits, Acceptor, ClientListener, DescriptorLimit};
use epicepoch_server::intervals::Intervals;
use epicepoch_server::lease_clock::LeaseClock;
use epicepoch_server::metrics::Metrics;
use epicepoch_server::security::authz::{Authorization, Port};
use epicepoch_server::security::excess::ExcessLog;
use epicepoch_server::security::tls::ClientTls;
use epicepoch_server::security::tls::peers::PeerTls;
use epicepoch_server::security::tls::reloader::Certificates;
use epicepoch_server::shared::{Health, NodeClock, NodeShared};
use epicepoch_server::worker::Workers;
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::frame::{FrameKind, Header, split_frame, write_frame};
use epicepoch_wire::peer_hello::{LinkKind, PeerHello};
use epicepoch_wire::{
    BootId, ClusterId, Epoch, HistoryId, NodeId, StoreId, Term, Timestamp, WorkerId,
};

/// The cluster id in all tests.
pub(crate) const CLUSTER: ClusterId = ClusterId(0xC1);
/// Longest wait for a step of a test, also on a busy machine.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(20);
/// Trusted time at which every node here begins, Unix nanoseconds.
pub(crate) const START_NS: u64 = 1_700_000_000_000_000_000;

/// The data plane of one node.
pub(crate) struct TestNode {
    pub(crate) shared: Arc<NodeShared>,
    pub(crate) workers: Workers,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) addr: SocketAddr,
    pub(crate) ops_addr: Option<SocketAddr>,
    acceptors: Vec<Acceptor>,
    _peer_port: PeerPort,
}

/// The members of a test's cluster, before their nodes run.
pub(crate) struct Cluster {
    members: Arc<BTreeMap<NodeId, Member>>,
    ports: BTreeMap<NodeId, TcpListener>,
}

impl Cluster {
    /// A cluster of nodes 1 to `count`, whose peer ports are bound.
    pub(crate) fn new(count: u64) -> Self {
        let bind = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let ports: BTreeMap<_, _> = (1..=count).map(|id| (NodeId(id), bind(id))).collect();
        let member = |(node, port): (&NodeId, &TcpListener)| Member {
            node: *node,
            store: store(*node),
            raft_addr: port.local_addr().unwrap().to_string(),
            client_addr: format!("client-{node}.test:80"),
        };
        let members = ports.iter().map(|port| (*port.0, member(port))).collect();
        Self { members: Arc::new(members), ports }
    }

    /// The publication of a node of this cluster that knows no leader.
    pub(crate) fn nothing(&self, node: u64) -> Published {
        let ids: Vec<_> = self.members.keys().copied().collect();
        Published {
            cluster: CLUSTER,
            history: HistoryId(9),
            voters: Voters::new(&ids, &[], store),
            members: self.members.clone(),
            ..Published::nothing(identity(NodeId(node)))
        }
    }

    /// The publication of the leader of `term`, with or without a grant.
    pub(crate) fn leading(&self, node: u64, term: u64, has_grant: bool) -> Published {
        let range = EpochRange { low: Epoch(START_NS), high: Epoch(START_NS + (1 << 60)) };
        let boot = identity(NodeId(node)).boot;
        Published {
            term: Term(term),
            role: Role::Leader,
            leader: Some(NodeId(node)),
            grant: has_grant.then_some(Grant { term: Term(term), boot, range }),
            ..self.nothing(node)
        }
    }

    /// Starts a node with one worker, a long election timeout, and otherwise the defaults.
    pub(crate) fn start(&mut self, node: u64) -> TestNode {
        self.start_with(node, |config| config.election_timeout = WAIT_MAX / 4)
    }

    /// Starts a node with a changed configuration.
    pub(crate) fn start_with(&mut self, node: u64, change: impl FnOnce(&mut Config)) -> TestNode {
        self.start_within(node, u64::MAX, change)
    }

    /// Starts a node that accepts a client only if its descriptor is below `descriptors_max`.
    pub(crate) fn start_within(
        &mut self,
        node: u64,
        descriptors_max: u64,
        change: impl FnOnce(&mut Config),
    ) -> TestNode {
        let id = NodeId(node);
        let mut config = Config::new(id, self.members[&id].raft_addr.clone());
        config.request_timeout = WAIT_MAX;
        change(&mut config);
        let published = self.nothing(node);
        let core = Arc::new(Shared::new(Term(0), published));
        let interval_ns = config.epoch_interval.as_nanos() as u64;
        let shared = Arc::new(NodeShared {
            build: Build::default(),
            identity: identity(id),
            began: epicepoch_wire::StorePosition(0),
            client_addr: self.members[&id].client_addr.clone(),
            allocator: Allocator::new(core.clone(), interval_ns),
            clock: NodeClock::new(START_NS),
            lease_clock: LeaseClock::new(config.leases.clock),
            intervals: Intervals::of(
                &config,
                epicepoch_storage::Intervals::default(),
                Faults::none(),
            ),
            health: Health::default(),
            admin_queue: AdminQueue::open().0,
            tls: ClientTls::load(&config).unwrap(),
            certificates: Certificates::default(),
            authz: Authorization::load(&config.authz).unwrap(),
            excess: ExcessLog::default(),
            alt_svc: None,
            peer_tls: PeerTls::load(&config).unwrap(),
            addresses: Addresses::default(),
            max_n: config.max_n.into(),
            is_lease_default: AtomicBool::new(false),
            is_compact: false.into(),
            config,
            core,
        });
        // In interval mode, the node is not compared with others.
        shared.intervals.set_voters([id].into_iter());
        let metrics = Arc::new(Metrics::new(shared.config.workers));
        let workers = front::spawn_workers(shared.clone(), metrics.clone()).unwrap();
        // The real limit is not used, because other tests of this process have descriptors too.
        let descriptors = DescriptorLimit { before: None, now: None };
        let limits =
            AcceptLimits { descriptors_max, ..AcceptLimits::new(&shared.config, descriptors) };
        let has_ops_port = shared.config.authz.ops_addr.is_some();
        let open = |port| {
            let listener = ClientListener::bind(IpAddr::V4(Ipv4Addr::LOCALHOST), 0).unwrap();
            let addr = listener.local_addr();
            let (metrics, shared, faults) = (metrics.clone(), shared.clone(), Faults::none());
            (addr, listener.spawn(workers.clone(), port, limits, metrics, shared, faults).unwrap())
        };
        let (addr, clients) = open(if has_ops_port { Port::Clients } else { Port::Shared });
        let (ops_addr, operations) = has_ops_port.then(|| open(Port::Operations)).unzip();
        let acceptors = [clients].into_iter().chain(operations).collect();
        let port = self.ports.remove(&id).expect("a node starts once");
        let peer_port = PeerPort::open(port, shared.clone(), workers.clone());
        TestNode { shared, workers, metrics, addr, ops_addr, acceptors, _peer_port: peer_port }
    }

    /// Returns the peer port of a node that the test itself plays.
    pub(crate) fn take_port(&mut self, node: u64) -> TcpListener {
        self.ports.remove(&NodeId(node)).expect("a port is taken once")
    }
}

impl TestNode {
    /// Publishes like the consensus plane.
    pub(crate) fn publish(&self, published: Published) {
        self.shared.core.promise.raise(published.term);
        self.shared.core.publish(Arc::new(published));
        self.workers.notify_published();
    }

    /// Opens a connection to the client port.
    pub(crate) fn connect(&self) -> Client {
        Client::new(TcpStream::connect(self.addr).unwrap())
    }

    /// Opens a connection to the port for operators.
    pub(crate) fn connect_ops(&self) -> Client {
        Client::new(TcpStream::connect(self.ops_addr.expect("a port of operators")).unwrap())
    }

    /// Sends one request on a new connection.
    pub(crate) fn request(&self, request: &str) -> Reply {
        self.connect().request(request)
    }

    /// Reads a metric's value over HTTP. Any worker may get the connection.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        metric(self.addr, name)
    }

    /// Waits until a metric has a value.
    pub(crate) fn await_metric(&self, name: &str, value: u64) {
        await_metric(self.addr, name, value);
    }

    /// Closes the client port.
    pub(crate) fn stop_accepting(&self) {
        self.acceptors.iter().for_each(Acceptor::stop);
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.stop_accepting();
        self.workers.shutdown(Duration::ZERO);
    }
}

fn metric(addr: SocketAddr, name: &str) -> u64 {
    let mut client = Client::new(TcpStream::connect(addr).unwrap());
    let text = String::from_utf8(client.request("GET /metrics").body).unwrap();
    let line = text
        .lines()
        .find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
    let value = line.and_then(|line| line.rsplit(' ').next());
    value.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse::<f64>().unwrap() as u64
}

/// Waits until a metric has a value.
pub(crate) fn await_metric(addr: SocketAddr, name: &str, value: u64) {
    let start = std::time::Instant::now();
    while metric(addr, name) != value {
        assert!(start.elapsed() < WAIT_MAX, "{name} is {}", metric(addr, name));
        std::thread::yield_now();
    }
}

/// The store id of a node, the same in every test.
pub(crate) fn store(node: NodeId) -> StoreId {
    StoreId(u128::from(node.0) << 64)
}

fn identity(node: NodeId) -> Identity {
    Identity { node, store: store(node), boot: BootId(node.0 + 700) }
}

/// Accepts confirm links in place of the consensus plane.
struct PeerPort {
    addr: SocketAddr,
    is_closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The workers whose confirm links every node refuses, as a bit mask. For tests in which a worker
/// uses the links of another worker.
pub(crate) static REFUSED_WORKERS: AtomicU64 = AtomicU64::new(0);

impl PeerPort {
    fn open(port: TcpListener, shared: Arc<NodeShared>, workers: Workers) -> Self {
        let addr = port.local_addr().unwrap();
        let is_closed = Arc::new(AtomicBool::new(false));
        let closed = is_closed.clone();
        let thread = std::thread::spawn(move || {
            for stream in port.incoming() {
                if closed.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(mut stream) = stream else { continue };
                // This port has no TLS. A frame begins with another byte.
                let mut first = [0];
                if stream.peek(&mut first).is_err() || first == [0x16] {
                    continue;
                }
                let Some((header, payload)) = read_frame(&mut stream) else { continue };
                let hello = PeerHello::decode(&payload).unwrap();
                assert_eq!((header.kind, header.cluster), (FrameKind::PeerHello, CLUSTER));
                let LinkKind::Confirm(WorkerId(worker)) = hello.link else { continue };
                if shared.config.node_id == NodeId(2)
                    && REFUSED_WORKERS.load(Ordering::SeqCst) >> worker & 1 == 1
                    && shared.config.cluster_name == "refuses"
                {
                    continue;
                }
                let welcome = shared.hello(hello.link, header.from);
                send_frame(&mut stream, FrameKind::Welcome, shared.identity.node, |out| {
                    welcome.encode(out);
                });
                workers.adopt_confirm_link(header.from, hello, stream);
            }
        });
        Self { addr, is_closed, thread: Some(thread) }
    }
}

impl Drop for PeerPort {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.addr);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Reads one frame, or returns `None` if the stream ends first.
///
/// # Panics
/// When neither comes in time.
pub(crate) fn read_frame(stream: &mut TcpStream) -> Option<(Header, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if let Some((header, payload, _)) = split_frame(&bytes).unwrap() {
            return Some((header, payload.to_vec()));
        }
        let mut byte = [0];
        match stream.read_exact(&mut byte) {
            Ok(()) => bytes.push(byte[0]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("neither a frame nor the end: {error}")
            }
            Err(_) => return None,
        }
    }
}

/// Writes one frame.
pub(crate) fn send_frame(
    stream: &mut TcpStream,
    kind: FrameKind,
    from: NodeId,
    payload: impl FnOnce(&mut Vec<u8>),
) {
    let mut out = Vec::new();
    write_frame(&mut out, kind, CLUSTER, from, payload);
    let _ = stream.write_all(&out);
}

/// A client's connection.
pub(crate) struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Client {
    /// Wraps an open connection.
    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, buffer: Vec::new() }
    }

    /// Sends a request line without a version, and reads the answer.
    pub(crate) fn request(&mut self, request: &str) -> Reply {
        self.send(request);
        self.reply().expect("an answer")
    }

    /// The client's own address.
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.stream.local_addr().unwrap()
    }

    /// Like [`Self::request`], but returns `None` if the connection ends instead.
    pub(crate) fn try_request(&mut self, request: &str) -> Option<Reply> {
        self.send(request);
        self.reply()
    }

    /// Sends a request line without a version.
    pub(crate) fn send(&mut self, request: &str) {
        self.send_raw(format!("{request} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes());
    }

    /// Sends bytes. An error is ignored, because the peer may have closed.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Reads an answer, or returns `None` if the connection ends instead. A body without a length
    /// is read to its last chunk.
    pub(crate) fn reply(&mut self) -> Option<Reply> {
        let head_len = self.read_until(|bytes| find(bytes, b"\r\n\r\n").map(|at| at + 4))?;
        let head = String::from_utf8(self.buffer.drain(..head_len).collect()).unwrap();
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().unwrap();
        let pairs = lines.filter_map(|line| line.split_once(": "));
        let headers: BTreeMap<_, _> =
            pairs.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
        let body = if headers.get("transfer-encoding").is_some_and(|te| te == "chunked") {
            let end = self.read_until(|bytes| find(bytes, b"0\r\n\r\n").map(|at| at + 5))?;
            self.buffer.drain(..end).collect()
        } else {
            let length = headers.get("content-length").map_or(0, |text| text.parse().unwrap());
            self.read_until(|bytes| (bytes.len() >= length).then_some(length))?;
            self.buffer.drain(..length).collect()
        };
        Some(Reply { status, headers, body })
    }

    /// Whether the connection ends without another byte.
    pub(crate) fn is_closed(&mut self) -> bool {
        self.buffer.is_empty() && self.read_until(|_| None).is_none() && self.buffer.is_empty()
    }

    /// Waits for some bytes and returns them.
    pub(crate) fn read_some(&mut self) -> String {
        String::from_utf8(self.read_some_bytes()).unwrap()
    }

    /// Like [`Self::read_some`], for bytes that are no text.
    pub(crate) fn read_some_bytes(&mut self) -> Vec<u8> {
        self.read_until(|bytes| (!bytes.is_empty()).then_some(bytes.len())).expect("more bytes");
        std::mem::take(&mut self.buffer)
    }

    /// Reads until the connection ends.
    pub(crate) fn read_to_end(&mut self) {
        assert!(self.read_until(|_| None).is_none());
    }

    /// Closes the sending direction; answers can still be read.
    pub(crate) fn finish_sending(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Like [`Self::finish_sending`], but the peer may have closed already.
    pub(crate) fn try_finish_sending(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Closes the connection in both directions.
    pub(crate) fn leave(self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn read_until(&mut self, is_whole: impl Fn(&[u8]) -> Option<usize>) -> Option<usize> {
        loop {
            if let Some(length) = is_whole(&self.buffer) {
                return Some(length);
            }
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(length) => self.buffer.extend_from_slice(&chunk[..length]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no answer: {error}"),
            }
        }
    }
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

impl Reply {
    /// A header's value; empty if there is none.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// The status and the error code of a refusal.
    pub(crate) fn error(&self) -> (u16, &str) {
        (self.status, self.header("epicepoch-error"))
    }

    /// The body as text.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The timestamps of a binary body.
    pub(crate) fn timestamps(&self) -> Vec<Timestamp> {
        assert_eq!(self.status, 200, "{self:?}");
        let (chunks, rest) = self.body.as_chunks::<{ Timestamp::LEN }>();
        assert!(rest.is_empty());
        chunks.iter().map(|bytes| Timestamp::from_bytes(*bytes)).collect()
    }
}
