//! The client connections of one worker: their limits, their idle time, and how they end. The first
//! bytes of a connection tell HTTP from the native protocol. HTTP/1.1 begins on the fast path,
//! which serves one kind of request. At a request of any other kind, hyper takes over the
//! connection. One sweep per worker looks for connections that are idle or stuck, so that a request
//! needs no timer.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use epicepoch_wire::Mode;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::{self, ErrorFrame};
use http::header::ALT_SVC;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use super::deadlines::{ClientState, SWEEP_INTERVAL, Timeout};
use super::http1::hyper_stream::ClientStream;
use super::http1::protocol::{Http1, put_last};
use super::http2::protocol::Http2;
use super::routes::answer;
use super::routes::service::NodeService;
use super::sniff::{OPENING_LEN, Opening, is_tls};
use crate::front::native::protocol::Native;
use crate::front::pipeline::connection::{Connection, End};
use crate::front::pipeline::protocol::{Common, Protocol};
use crate::front::pipeline::refusal::Leaving;
use crate::security::authz::{Caller, Port, Reason, Right};
use crate::security::limits::ConnectionPermit;
use crate::security::tls::handshake::{Handshakes, Offered, Offers, Shaken};
use crate::security::tls::peers::PeerTls;
use crate::security::tls::socket::Socket;
use crate::shared::NodeShared;
use crate::sync::signal::Signal;
use crate::worker::client_tasks::ClientTasks;
use crate::worker::sequencer::Sequencer;

/// At most this many header lines in a request. This is also hyper's default.
const HEADERS_MAX: usize = 100;
/// At most this many bytes in a request's head, and in answers that hyper holds until they are
/// written. A usual request has a few hundred bytes; proxies add some.
const HEAD_LEN_MAX: usize = 16 << 10;
/// At most this many idle HTTP/3 connections of a worker may hold memory that has grown under load.
/// Beyond this, the newest of these connections are closed.
const GROWN_MAX: usize = 256;
/// After a client's last answer, the node reads and drops further bytes for this long. If it closed
/// at once, a reset could destroy the answer before the client has read why it was refused.
const LINGER_TIME_MAX: Duration = Duration::from_secs(1);
/// While the node stops, it reads and drops further bytes for at most this long. The time is
/// shorter than [`LINGER_TIME_MAX`], because native clients close as soon as they read the goodbye.
/// The node must also write the last TLS record within this time.
const LINGER_TIME_CLOSING: Duration = Duration::from_millis(50);
/// The refusal of a client without TLS at a port that needs it.
const PLAIN_REFUSED: &str = "this port speaks TLS: use https, or --ca-file of a command";
/// After a client's last answer, the node reads and drops at most this many bytes.
const LINGER_LEN_MAX: usize = 4 << 20;
/// At most this many of them at once.
const LINGER_READ_LEN: usize = 16 << 10;

/// The parts of the node's state that open calls depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    is_leading: bool,
    is_serving: bool,
    has_other_leader: bool,
    mode: Mode,
    leaving: Leaving,
}

/// The client connections of one worker.
#[derive(Debug)]
pub(crate) struct Clients {
    sequencer: Rc<Sequencer>,
    tasks: Rc<ClientTasks>,
    /// The settings of hyper for HTTP/1.1.
    protocol: http1::Builder,
    native: Rc<Common<Native>>,
    handshakes: Handshakes,
    http1: Rc<Common<Http1>>,
    http2: Rc<Common<Http2>>,
    connections: RefCell<BTreeMap<u64, Rc<ClientState>>>,
    next: Cell<u64>,
    /// Number of sweeps so far: the clock of the connections.
    sweeps: Rc<Cell<u64>>,
    timeout: Timeout,
    is_closing: Cell<bool>,
    seen: Cell<Seen>,
    gone: Signal,
}

impl Clients {
    /// Starts without connections.
    pub(crate) fn new(sequencer: Rc<Sequencer>, tasks: Rc<ClientTasks>) -> Rc<Self> {
        Rc::new(Self {
            tasks,
            native: Common::new(sequencer.clone()),
            handshakes: Handshakes::default(),
            http1: Common::new(sequencer.clone()),
            http2: Common::new(sequencer.clone()),
            timeout: Timeout::new(&sequencer.shared.config.limits),
            sequencer,
            protocol: protocol(),
            connections: RefCell::default(),
            next: Cell::default(),
            sweeps: Rc::default(),
            is_closing: Cell::default(),
            seen: Cell::default(),
            gone: Signal::default(),
        })
    }

    /// Serves a connection on a new task.
    pub(crate) fn adopt(
        self: &Rc<Self>,
        stream: std::net::TcpStream,
        port: Port,
        permit: ConnectionPermit,
    ) {
        let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%error, "a client's connection was lost at once");
                return;
            }
        };
        let from = stream.peer_addr().ok().map(|addr| addr.ip());
        let caller = Caller { from, port, is_encrypted: false };
        let (id, state) = self.enlist(caller, permit);
        let clients = self.clone();
        self.tasks.spawn(async move {
            let Some(stream) = clients.secure(&state, stream).await else {
                return clients.forget(id);
            };
            let stream = Rc::new(RefCell::new(stream));
            match clients.opening(&state, &stream).await {
                // Nodes send requests on by the native protocol alone.
                Some(Opening::Http | Opening::Http2) if state.forwarder().is_some() => {}
                Some(Opening::Native) => clients.serve(&clients.native, &state, &stream).await,
                // The port of operators has no fast path.
                Some(Opening::Http) if caller.port == Port::Operations => {
                    Box::pin(clients.serve_hyper(&state, stream.clone(), Vec::new())).await;
                }
                Some(Opening::Http2) => {
                    Box::pin(clients.serve(&clients.http2, &state, &stream)).await;
                }
                Some(Opening::Http) => clients.serve(&clients.http1, &state, &stream).await,
                Some(Opening::Foreign) | None => {}
            }
            // A stopping worker ends with its last connection. A client closes its connection when
            // it has read the last answer. Bytes that the client sends before that must not reset
            // the connection, because a reset would lose answers that are still on their way.
            let is_last_word = clients.is_closing.get();
            let limit = if is_last_word { LINGER_TIME_CLOSING } else { LINGER_TIME_MAX };
            if !is_last_word {
                clients.forget(id);
            }
            match Rc::into_inner(stream).map(RefCell::into_inner) {
                Some(stream) if !state.is_cut.get() && !state.has_ended.get() => {
                    linger(stream, limit).await;
                }
                Some(mut stream @ Socket::Secured(_)) => {
                    // TLS must announce the end; otherwise anyone on the network path could fake
                    // it. The wait is short, because a client may not read, or may be gone.
                    let _ = timeout(LINGER_TIME_CLOSING, stream.shutdown()).await;
                }
                Some(Socket::Plain(_)) | None => {}
            }
            if is_last_word {
                clients.forget(id);
            }
        });
    }

    /// Adds a connection to the list that is swept, counted and closed.
    pub(super) fn enlist(
        &self,
        caller: Caller,
        permit: ConnectionPermit,
    ) -> (u64, Rc<ClientState>) {
        let id = self.next.replace(self.next.get() + 1);
        let state = Rc::new(ClientState::new(self.sweeps.clone(), caller, permit));
        self.connections.borrow_mut().insert(id, state.clone());
        self.count();
        (id, state)
    }

    /// The sequencer that the clients' requests go to.
    pub(super) fn sequencer(&self) -> &Rc<Sequencer> {
        &self.sequencer
    }

    /// Whether this worker takes no more requests.
    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.get()
    }

    /// Closes idle connections now and busy ones after their answers.
    pub(crate) fn close(&self) {
        self.is_closing.set(true);
        for state in self.connections.borrow().values() {
            state.wake();
        }
        if self.connections.borrow().is_empty() {
            self.gone.set();
        }
    }

    /// Set when [`Self::close`] was called and no connection is left.
    pub(crate) fn gone(&self) -> &Signal {
        &self.gone
    }

    /// Cuts off connections that are idle or stuck. Never returns.
    pub(crate) async fn sweep(self: Rc<Self>) {
        loop {
            sleep(SWEEP_INTERVAL).await;
            self.sweeps.set(self.sweeps.get() + 1);
            let (mut cut, mut grown) = (0, 0);
            for state in self.connections.borrow().values() {
                if state.is_overdue(self.timeout) {
                    state.is_cut.set(true);
                    state.wake();
                    cut += 1;
                } else {
                    state.record_sweep();
                }
                // The newest connections are closed first: the older ones may be in a client's
                // pool.
                grown += usize::from(state.is_grown());
                if grown > GROWN_MAX && state.is_grown() {
                    state.retire();
                }
            }
            self.sequencer.metrics().connections_idle_closed.add_alone(cut);
        }
    }

    /// Tells native connections when another leader becomes known, and connections with calls when
    /// this node can answer, or can no longer.
    pub(crate) fn follow_publication(&self) {
        let view = self.sequencer.view();
        let seen = Seen {
            is_leading: view.is_leading(),
            is_serving: view.is_serving(),
            has_other_leader: view.other_leader.is_some(),
            mode: view.published.mode,
            leaving: Leaving::of(&self.sequencer),
        };
        if self.seen.replace(seen) != seen {
            let connections = self.connections.borrow();
            connections.values().filter(|state| state.has_calls.get()).for_each(|it| it.wake());
        }
        if self.native.follow_publication() {
            let connections = self.connections.borrow();
            connections.values().filter(|state| state.is_native.get()).for_each(|it| it.wake());
        }
    }

    /// Does the TLS handshake if the client begins one. A plain connection stays plain if this port
    /// allows that. Returns `None` if the connection must not be served.
    async fn secure(&self, state: &ClientState, stream: TcpStream) -> Option<Socket> {
        let stream = Socket::Plain(stream);
        let Caller { from, port, .. } = state.caller();
        let offers = self.offers(port);
        if offers.clients.is_none() && offers.forwarders.is_none() {
            return Some(stream);
        }
        let stream = RefCell::new(stream);
        let first = self.first_bytes(state, &stream, |bytes| bytes.first().copied()).await?;
        let stream = match stream.into_inner() {
            Socket::Plain(stream) if is_tls(&[first]) => stream,
            stream if self.takes_plain() => return Some(stream),
            stream => {
                self.sequencer.metrics().plain_refused.add_alone(1);
                self.refuse_plain(stream, first).await;
                return None;
            }
        };
        let is_over = |context: &mut Context<'_>| {
            state.record_waker(context);
            state.is_cut.get() || self.is_closing.get()
        };
        let metrics = self.sequencer.metrics();
        // This future is boxed, because it is large and plain connections do not need it.
        match Box::pin(self.handshakes.shake(from, offers, stream, is_over)).await {
            Shaken::Secured(stream) => {
                metrics.handshakes_completed.add_alone(1);
                state.end_handshake();
                self.is_known(state, &stream).then_some(stream)
            }
            Shaken::Failed { stream, error, caller } => {
                metrics.handshakes_failed.add_alone(1);
                self.record_failure(state, &error, caller);
                if let Some(stream) = stream {
                    // Gives the caller time to read why the handshake failed.
                    linger(Socket::Plain(stream), LINGER_TIME_MAX).await;
                }
                None
            }
            Shaken::Dropped => {
                metrics.handshakes_failed.add_alone(1);
                None
            }
        }
    }

    /// Logs a handshake that has failed. A node that shows no certificate that this node accepts is
    /// refused a right, as on the peer port. A node that only went away is not.
    fn record_failure(&self, state: &ClientState, error: &io::Error, caller: Offered) {
        let from = state.caller();
        match caller {
            Offered::Forwarder if error.kind() == io::ErrorKind::InvalidData => {
                let (shared, detail) = (&self.sequencer.shared, error.to_string());
                shared.record_denial_of(Right::Peer, Reason::Handshake, &from, &detail);
            }
            Offered::Forwarder | Offered::Client => {
                tracing::debug!(%error, addr = ?from.from, "a client's handshake failed");
            }
        }
    }

    /// The settings of TLS on a port. Nodes send requests on to the client port, if they have
    /// certificates, also if clients speak no TLS.
    fn offers(&self, port: Port) -> Offers<'_> {
        let NodeShared { tls, peer_tls, .. } = &*self.sequencer.shared;
        let is_of_operators = port == Port::Operations;
        let clients =
            tls.as_ref().map(|it| if is_of_operators { &it.operators } else { &it.config });
        let forwarders = peer_tls.as_ref().filter(|_| !is_of_operators).map(PeerTls::forwarders);
        Offers { clients, forwarders }
    }

    /// Whether clients may speak without TLS.
    fn takes_plain(&self) -> bool {
        self.sequencer.shared.tls.as_ref().is_none_or(|tls| tls.takes_plain)
    }

    /// Whether the caller is a client, or a node of this cluster that sends requests on. A
    /// certificate of the right authority may also be that of a client, or of another cluster.
    fn is_known(&self, state: &ClientState, stream: &Socket) -> bool {
        let shared = &self.sequencer.shared;
        let Some(certificate) = stream.certificate_of_forwarder() else { return true };
        let Some(node) = shared.peer_tls.as_ref().and_then(|tls| tls.node_of(certificate)) else {
            shared.record_denial(Right::Peer, Reason::CertificateName, &state.caller());
            return false;
        };
        state.record_forwarder(node);
        true
    }

    /// Tells a client without TLS that this port needs it.
    async fn refuse_plain(&self, mut stream: Socket, first: u8) {
        let (mut bytes, code) = (Vec::new(), ErrorCode::BadRequest);
        if first == native::FIRST_BYTE {
            let code = code as u16;
            ErrorFrame { code, closes: true, id: 0, text: PLAIN_REFUSED }.encode(&mut bytes);
        } else {
            let text = format!("{PLAIN_REFUSED}\n").into();
            let mut answer = answer::refusal_with(&self.sequencer.view(), code, text);
            // This client has to use TLS first, and the operators' port has no HTTP/3.
            answer.headers_mut().remove(ALT_SVC);
            put_last(&self.http1, answer, &mut bytes);
        }
        if stream.write_all(&bytes).await.is_ok() {
            linger(stream, LINGER_TIME_MAX).await;
        }
    }

    /// Gives handshakes their turns. Never returns.
    pub(crate) async fn hand_out_turns(self: Rc<Self>) {
        self.handshakes.hand_out_turns().await;
    }

    /// Waits for the first bytes and returns the protocol that they begin. The bytes stay in the
    /// socket. `None` when the connection ends first.
    async fn opening(&self, state: &ClientState, stream: &RefCell<Socket>) -> Option<Opening> {
        self.first_bytes(state, stream, Opening::of).await
    }

    /// Waits for the first bytes and returns the result of `tell` for these bytes. The bytes stay
    /// in the socket. `None` when the connection ends first.
    async fn first_bytes<T>(
        &self,
        state: &ClientState,
        stream: &RefCell<Socket>,
        tell: impl Fn(&[u8]) -> Option<T>,
    ) -> Option<T> {
        poll_fn(|context| {
            state.record_waker(context);
            if state.is_cut.get() || self.is_closing.get() {
                return Poll::Ready(None);
            }
            let mut bytes = [0; OPENING_LEN];
            let result = ready!(stream.borrow_mut().poll_peek(context, &mut bytes));
            let told = result.ok().and_then(|length| tell(&bytes[..length]));
            state.has_ended.set(told.is_none());
            Poll::Ready(told)
        })
        .await
    }

    /// Serves a connection in the request pipeline; hyper takes over if the pipeline hands the
    /// connection over.
    async fn serve<P: Protocol>(
        &self,
        common: &Rc<Common<P>>,
        state: &Rc<ClientState>,
        stream: &Rc<RefCell<Socket>>,
    ) {
        let connection = Connection::new(common.clone(), state.clone());
        let poll = |connection: &mut Connection<P>, context: &mut Context<'_>| {
            connection.poll(context, &mut stream.borrow_mut())
        };
        match self
            .until_over(state, connection, Connection::close, Connection::give_back, poll)
            .await
        {
            Ok(End::Over) => {}
            Ok(End::HandOver(unread)) => {
                // This future is boxed, because hyper's part of a connection is large and most
                // connections do not need it.
                Box::pin(self.serve_hyper(state, stream.clone(), unread)).await;
            }
            Err(error) => {
                state.has_ended.set(true);
                tracing::debug!(%error, "a client's connection ended with an error");
            }
        }
    }

    /// Serves HTTP/1.1 requests that the fast path does not take. Begins with `unread`: bytes that
    /// were read and not answered.
    async fn serve_hyper(
        &self,
        state: &Rc<ClientState>,
        stream: Rc<RefCell<Socket>>,
        unread: Vec<u8>,
    ) {
        type Served<'a> = Pin<&'a mut http1::Connection<TokioIo<ClientStream>, NodeService>>;
        let io = TokioIo::new(ClientStream::new(stream, unread, state.clone()));
        let service = NodeService::new(self.sequencer.clone(), state.clone());
        let connection = pin!(self.protocol.serve_connection(io, service));
        let close = |connection: &mut Served<'_>| connection.as_mut().graceful_shutdown();
        let poll = |connection: &mut Served<'_>, context: &mut Context<'_>| {
            connection.as_mut().poll(context)
        };
        // The empty closure gives back no memory: hyper keeps all memory that it has grown to.
        let result = self.until_over(state, connection, close, |_| {}, poll).await;
        if let Err(error) = result {
            tracing::debug!(%error, "a client's connection ended with an error");
        }
    }

    /// Drives a connection until it has ended or is cut off. Calls `close` once when this worker
    /// closes.
    async fn until_over<C, T: Default, E>(
        &self,
        state: &ClientState,
        mut connection: C,
        close: impl FnOnce(&mut C),
        give_back: impl Fn(&mut C),
        mut poll: impl FnMut(&mut C, &mut Context<'_>) -> Poll<Result<T, E>>,
    ) -> Result<T, E> {
        let mut close = Some(close);
        poll_fn(|context| {
            state.record_waker(context);
            if state.is_cut.get() {
                return Poll::Ready(Ok(T::default()));
            }
            if (self.is_closing.get() || state.is_retired.get())
                && let Some(close) = close.take()
            {
                close(&mut connection);
            }
            if state.gives_back() {
                give_back(&mut connection);
            }
            poll(&mut connection, context)
        })
        .await
    }

    /// Forgets a connection that has ended.
    pub(super) fn forget(&self, id: u64) {
        self.connections.borrow_mut().remove(&id);
        self.count();
        if self.is_closing.get() && self.connections.borrow().is_empty() {
            self.gone.set();
        }
    }

    fn count(&self) {
        self.sequencer.metrics().connections.set(self.connections.borrow().len() as u64);
    }
}

/// The settings of hyper for HTTP/1.1.
fn protocol() -> http1::Builder {
    let mut protocol = http1::Builder::new();
    // `pipeline_flush` stays off, for two reasons. With it, hyper buffers answers without a limit.
    // It also holds back an answer or a refusal while the start of another request waits behind it.
    protocol
        // A client may announce that it sends no more and still wait for its answers. The node
        // cannot tell that from a client that has gone, until its next write. Until then the client
        // counts as a connection, at most until the request's deadline.
        .half_close(true)
        .writev(false)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_LEN_MAX)
        // The sweep limits the time to read a head, without a timer for each request.
        .header_read_timeout(None);
    protocol
}

/// Reads and drops the bytes that a client sends after its last answer, within limits.
async fn linger(mut stream: Socket, limit: Duration) {
    let reading = async {
        stream.shutdown().await?;
        let (mut bytes, mut left) = (vec![0; LINGER_READ_LEN], LINGER_LEN_MAX);
        loop {
            match stream.read(&mut bytes).await? {
                length if 0 < length && length < left => left -= length,
                _ => return io::Result::Ok(()),
            }
            // Other clients come first.
            yield_now().await;
        }
    };
    // The connection is dropped now, however the reading ended.
    let _ = timeout(limit, reading).await;
}
