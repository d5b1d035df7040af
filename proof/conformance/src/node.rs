//! A scripted node. It speaks the native protocol with the codec of `epicepoch-wire`, and handles
//! hellos and requests as a scenario says. By default it is a correct leader.

use std::fmt;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::interval::IntervalStamp;
use epicepoch_wire::native::client_hello::MemberAddr;
use epicepoch_wire::native::message::{goodbye, pong};
use epicepoch_wire::native::{
    COUNT_MAX, ClientHello, ErrorFrame, FEATURE_INTERVALS, FEATURE_LATEST, FEATURES,
    IntervalRequest, Request, TO_SERVER_TAIL_LEN_MAX, ToServer, Welcome, split,
};
use epicepoch_wire::{
    COMPACT_INDEXES, ClusterId, HistoryId, NodeId, TimestampFormat, TimestampRange,
};

use crate::lock;
use crate::oracle::Oracle;

/// The state that the nodes of a scenario share.
#[derive(Debug, Default)]
pub struct ScriptedCluster {
    /// The source of the nodes' timestamps.
    pub oracle: Oracle,
    leader: Mutex<Option<MemberAddr>>,
    members: Mutex<Vec<MemberAddr>>,
}

/// A scripted node. It is cheap to clone. It ends with [`Node::stop`] or with the scenario.
#[derive(Clone, Debug)]
pub struct Node {
    inner: Arc<Inner>,
}

struct Inner {
    me: MemberAddr,
    scripted: Arc<ScriptedCluster>,
    hello_handler: Mutex<HelloHandler>,
    ask: Mutex<Answering>,
    interval: Mutex<IntervalHandler>,
    seen: Mutex<Seen>,
    peers: Mutex<Vec<Peer>>,
    is_over: AtomicBool,
    write: Mutex<Writing>,
}

type HelloHandler = Box<dyn FnMut(&Node, &Peer, &ClientHello) + Send>;
type Answering = Box<dyn FnMut(&Node, Ask) + Send>;
type IntervalHandler = Box<dyn FnMut(Stamping) + Send>;

/// Everything that a node has received.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Number of accepted connections.
    pub connections: u64,
    /// Number of client hellos.
    pub hellos: u64,
    /// Number of requests.
    pub requests: u64,
    /// Number of requests of interval mode.
    pub stamps: u64,
    /// The times at which hellos and requests arrived. Only the first [`ARRIVALS_MAX`] are kept.
    pub arrivals: Vec<Instant>,
    /// Ids of the pongs that the client sent.
    pub pongs: Vec<u64>,
    /// Number of connections that the client closed.
    pub closed: u64,
    /// Descriptions of frames that a client must not send.
    pub offences: Vec<String>,
}

/// How a node sends its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writing {
    /// Writes one frame at a time.
    Whole,
    /// A byte at a time.
    Bytes,
}

/// A connection of the node to a client.
#[derive(Clone)]
pub struct Peer {
    stream: Arc<Mutex<TcpStream>>,
    /// The features of the last welcome.
    features: Arc<AtomicU64>,
    /// Whether the hello has named the format of compact timestamps.
    needs_compact: Arc<AtomicBool>,
    node: Node,
}

/// A request that arrived.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The connection on which the request arrived.
    pub peer: Peer,
    /// The parsed frame.
    pub request: Request,
    /// Number of the request at this node, from 1.
    pub number: u64,
    /// When the request arrived.
    pub at: Instant,
}

/// A request of interval mode that arrived.
#[derive(Clone, Debug)]
pub struct Stamping {
    /// The connection on which the request arrived.
    pub peer: Peer,
    /// The parsed frame.
    pub request: IntervalRequest,
    /// Number of the request of interval mode at this node, from 1.
    pub number: u64,
}

impl ScriptedCluster {
    /// Makes all nodes name this node as the leader.
    pub fn is_led_by(&self, node: &Node) {
        *lock(&self.leader) = Some(node.inner.me.clone());
    }

    /// Makes all nodes say that they know no leader.
    pub fn is_led_by_nobody(&self) {
        *lock(&self.leader) = None;
    }

    /// Adds a node to the list of members.
    pub fn lists(&self, node: &Node) {
        lock(&self.members).push(node.inner.me.clone());
    }
}

impl Seen {
    fn arrives(&mut self) -> Instant {
        let now = Instant::now();
        if self.arrivals.len() < ARRIVALS_MAX {
            self.arrivals.push(now);
        }
        now
    }
}

impl Node {
    /// Starts a node on an unused port. It is not a member yet.
    ///
    /// # Panics
    /// If no port is free.
    #[must_use]
    pub fn start(scripted: &Arc<ScriptedCluster>, id: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = listener.local_addr().expect("a bound port");
        let inner = Inner {
            me: MemberAddr { node: NodeId(id), addr: addr.to_string() },
            scripted: scripted.clone(),
            hello_handler: Mutex::new(Box::new(|node, peer, hello| {
                let features = hello.features & FEATURES;
                peer.welcome(&Welcome { features, ..node.own_welcome() });
            })),
            ask: Mutex::new(Box::new(|_, ask| ask.answer())),
            interval: Mutex::new(Box::new(|asked| asked.refuse(ErrorCode::OtherMode))),
            seen: Mutex::default(),
            peers: Mutex::default(),
            is_over: AtomicBool::new(false),
            write: Mutex::new(Writing::Whole),
        };
        let node = Self { inner: Arc::new(inner) };
        let accepting = node.clone();
        std::thread::spawn(move || accepting.accept(&listener));
        node
    }

    /// The node's address, as `host:port`.
    #[must_use]
    pub fn addr(&self) -> String {
        self.inner.me.addr.clone()
    }

    /// Sets the handler of requests.
    pub fn on_request(&self, answering: impl FnMut(&Self, Ask) + Send + 'static) {
        *lock(&self.inner.ask) = Box::new(answering);
    }

    /// Sets the handler of requests of interval mode.
    pub fn on_interval(&self, stamping: impl FnMut(Stamping) + Send + 'static) {
        *lock(&self.inner.interval) = Box::new(stamping);
    }

    /// Sets the handler of hellos.
    pub fn on_hello(&self, hello_handler: impl FnMut(&Self, &Peer, &ClientHello) + Send + 'static) {
        *lock(&self.inner.hello_handler) = Box::new(hello_handler);
    }

    /// Sets how bytes are sent.
    pub fn writes(&self, writing: Writing) {
        *lock(&self.inner.write) = writing;
    }

    /// The default answer of the node to a hello.
    #[must_use]
    pub fn own_welcome(&self) -> Welcome {
        let scripted = &self.inner.scripted;
        Welcome {
            version: 1,
            cluster: Some((CLUSTER, HISTORY)),
            node: self.inner.me.node,
            leader: lock(&scripted.leader).clone(),
            in_flight_max: 1024,
            idle_ms: 60_000,
            count_max: if scripted.oracle.is_compact() { COMPACT_INDEXES } else { COUNT_MAX },
            members: lock(&scripted.members).clone(),
            ..Welcome::default()
        }
    }

    /// Takes timestamps for another client, which asks now.
    #[must_use]
    pub fn take_for_another(&self, count: u64) -> TimestampRange {
        self.inner.scripted.oracle.take(count, Instant::now())
    }

    /// Everything that the node has received so far.
    #[must_use]
    pub fn seen(&self) -> Seen {
        lock(&self.inner.seen).clone()
    }

    /// Closes every connection of the node.
    pub fn hang_up(&self) {
        for peer in lock(&self.inner.peers).drain(..) {
            peer.hang_up();
        }
    }

    /// Sends a frame on every connection.
    pub fn say_to_all(&self, bytes: &[u8]) {
        let peers = lock(&self.inner.peers).clone();
        for peer in peers {
            peer.say(bytes);
        }
    }

    /// Closes every connection and accepts no more.
    pub fn stop(&self) {
        if !self.inner.is_over.swap(true, Ordering::SeqCst) {
            // This connection wakes the thread that accepts. An error is ignored, because the
            // thread may have ended already.
            let _ = TcpStream::connect(&self.inner.me.addr);
        }
        self.hang_up();
    }

    fn accept(&self, listener: &TcpListener) {
        while let Ok((stream, _)) = listener.accept() {
            if self.inner.is_over.load(Ordering::SeqCst) {
                return;
            }
            let node = self.clone();
            std::thread::spawn(move || {
                let whole = node.converse(stream);
                let mut seen = lock(&node.inner.seen);
                seen.closed += 1;
                seen.offences.extend(whole.err());
            });
        }
    }

    /// Serves one connection until it ends.
    fn converse(&self, mut stream: TcpStream) -> Result<(), String> {
        lock(&self.inner.seen).connections += 1;
        // An error is ignored: it only makes answers slower.
        let _ = stream.set_nodelay(true);
        let Ok(writing) = stream.try_clone() else { return Ok(()) };
        let stream_of_peer = Arc::new(Mutex::new(writing));
        let (features, needs_compact) = Default::default();
        let peer = Peer { stream: stream_of_peer, features, needs_compact, node: self.clone() };
        lock(&self.inner.peers).push(peer.clone());
        let (mut input, mut chunk) = (Vec::new(), [0; 4096]);
        let mut has_hello = false;
        loop {
            match stream.read(&mut chunk) {
                Ok(0) | Err(_) => return Ok(()),
                Ok(length) => input.extend_from_slice(&chunk[..length]),
            }
            let mut taken = 0;
            while let Some(frame) =
                split(&input[taken..], TO_SERVER_TAIL_LEN_MAX).map_err(|error| error.to_string())?
            {
                let message = ToServer::decode(&frame).map_err(|error| error.to_string())?;
                taken += frame.len();
                if has_hello == matches!(message, ToServer::ClientHello(_)) {
                    return Err(format!("{message:?}, but hello comes first and once"));
                }
                has_hello = true;
                self.handle(&peer, message)?;
            }
            input.drain(..taken);
        }
    }

    fn handle(&self, peer: &Peer, message: ToServer) -> Result<(), String> {
        match message {
            ToServer::ClientHello(hello) => {
                let mut seen = lock(&self.inner.seen);
                seen.hellos += 1;
                seen.arrives();
                drop(seen);
                let needs_compact = hello.timestamp_format == Some(TimestampFormat::Compact);
                peer.needs_compact.store(needs_compact, Ordering::SeqCst);
                lock(&self.inner.hello_handler)(self, peer, &hello);
            }
            ToServer::Request(request) => {
                let features = peer.features.load(Ordering::SeqCst);
                if request.count() == 0 && features & FEATURE_LATEST == 0 {
                    return Err("a request for the latest timestamp without the feature".into());
                }
                let (number, at) = {
                    let mut seen = lock(&self.inner.seen);
                    seen.requests += 1;
                    (seen.requests, seen.arrives())
                };
                let ask = Ask { peer: peer.clone(), request, number, at };
                lock(&self.inner.ask)(self, ask);
            }
            ToServer::Interval(request) => {
                if peer.features.load(Ordering::SeqCst) & FEATURE_INTERVALS == 0 {
                    return Err("a request for interval timestamps without the feature".into());
                }
                let number = {
                    let mut seen = lock(&self.inner.seen);
                    seen.stamps += 1;
                    seen.arrives();
                    seen.stamps
                };
                let asked = Stamping { peer: peer.clone(), request, number };
                lock(&self.inner.interval)(asked);
            }
            ToServer::Ping(id) => peer.say(&pong(id)),
            ToServer::Pong(id) => lock(&self.inner.seen).pongs.push(id),
            ToServer::Unknown { id } => {
                return Err(format!("a frame with id {id} that version 1 has not"));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("me", &self.me).finish_non_exhaustive()
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Peer {
    /// Sends bytes. It is no error if the client has closed the connection.
    pub fn say(&self, bytes: &[u8]) {
        let writing = *lock(&self.node.inner.write);
        let mut stream: MutexGuard<'_, TcpStream> = lock(&self.stream);
        match writing {
            Writing::Whole => drop(stream.write_all(bytes)),
            Writing::Bytes => {
                for byte in bytes {
                    let _ = stream.write_all(&[*byte]);
                    std::thread::sleep(BETWEEN_BYTES);
                }
            }
        }
    }

    /// Sends a welcome.
    pub fn welcome(&self, welcome: &Welcome) {
        self.features.store(welcome.features, Ordering::SeqCst);
        let mut bytes = Vec::new();
        welcome.encode(&mut bytes);
        self.say(&bytes);
    }

    /// Sends an error frame.
    pub fn refuse(&self, code: u16, closes: bool, id: u64, text: &str) {
        let mut bytes = Vec::new();
        ErrorFrame { code, closes, id, text }.encode(&mut bytes);
        self.say(&bytes);
    }

    /// Sends a goodbye, then closes the connection.
    pub fn leave(&self) {
        self.say(&goodbye());
        self.hang_up();
    }

    /// Closes the connection.
    pub fn hang_up(&self) {
        // An error is ignored, because the connection may be closed already.
        let _ = lock(&self.stream).shutdown(Shutdown::Both);
    }
}

impl Ask {
    /// Takes timestamps for this request and sends them. Refuses a count that is too large for a
    /// compact cluster, and a client that needs compact timestamps of a wide one.
    pub fn answer(&self) {
        let is_compact = self.peer.node.inner.scripted.oracle.is_compact();
        if is_compact && self.request.count() > COMPACT_INDEXES {
            return self.refuse(ErrorCode::BadCount, "a millisecond has 262144 timestamps");
        }
        if !is_compact && self.peer.needs_compact.load(Ordering::SeqCst) {
            return self.refuse(ErrorCode::NotCompact, "this cluster gives wide timestamps");
        }
        let range = self.take();
        self.send(range);
    }

    /// Takes timestamps for this request, to be sent later. If it asks for the latest one, takes
    /// none and returns that.
    #[must_use]
    pub fn take(&self) -> TimestampRange {
        let oracle = &self.peer.node.inner.scripted.oracle;
        match self.request.count() {
            0 => oracle.latest(self.at),
            count => oracle.take(count, self.at),
        }
    }

    /// Sends these timestamps as the answer.
    pub fn send(&self, range: TimestampRange) {
        self.peer.say(&self.request.answer(range.first()));
    }

    /// Answers with an error.
    pub fn refuse(&self, code: ErrorCode, text: &str) {
        self.peer.refuse(code as u16, false, self.request.id, text);
    }
}

impl Stamping {
    /// The bytes of an answer.
    ///
    /// # Panics
    /// If the interval is wider than an answer can say.
    #[must_use]
    pub fn bytes(&self, stamp: &IntervalStamp) -> Vec<u8> {
        self.request.answer(stamp).expect("an interval of less than four seconds").to_vec()
    }

    /// Answers.
    ///
    /// # Panics
    /// If the interval is wider than an answer can say.
    pub fn answer(&self, stamp: &IntervalStamp) {
        self.peer.say(&self.bytes(stamp));
    }

    /// Answers with an error.
    pub fn refuse(&self, code: ErrorCode) {
        self.peer.refuse(code as u16, false, self.request.id, "");
    }
}

/// An address that refuses connections while this value exists. Its port is taken, but nothing
/// listens there.
#[derive(Debug)]
pub struct DeadAddress {
    _socket: socket2::Socket,
    addr: SocketAddr,
}

impl DeadAddress {
    /// Binds an unused port.
    ///
    /// # Panics
    /// If no port is free.
    #[must_use]
    pub fn hold() -> Self {
        use socket2::{Domain, Socket, Type};
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        socket.bind(&any.into()).expect("a free port");
        let addr = socket.local_addr().ok().and_then(|addr| addr.as_socket());
        Self { _socket: socket, addr: addr.expect("a bound port") }
    }

    /// The address, as `host:port`.
    #[must_use]
    pub fn addr(&self) -> String {
        self.addr.to_string()
    }
}

/// Cluster id of the scripted nodes.
pub const CLUSTER: ClusterId = ClusterId(0xabc);
/// History id of the scripted nodes.
pub const HISTORY: HistoryId = HistoryId(1);
/// At most this many arrivals are kept. Scenarios need several times fewer.
pub const ARRIVALS_MAX: usize = 4096;
/// Pause between single bytes, so that the client reads each by itself.
const BETWEEN_BYTES: Duration = Duration::from_micros(200);
