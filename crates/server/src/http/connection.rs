//! Clients' connections: limits, idle time, and how they end. HTTP and the native protocol are told
//! apart by the first bytes. HTTP/1.1 begins on the hot path, and hyper goes on with what that does
//! not know, which is everything but one request. One sweep per worker looks for
//! connections that are idle or stuck, so that a request costs no timer.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::{self, ErrorFrame};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use super::client_state::{ClientState, Patience, SWEEP_INTERVAL};
use super::client_stream::ClientStream;
use super::hot;
use super::http2;
use super::opening::{OPENING_LEN, Opening, is_tls};
use super::service::NodeService;
use crate::native::connection::{Common, Connection};
use crate::origins::ConnectionPermit;
use crate::rights::{Caller, Port};
use crate::tls::handshake::{Handshakes, Shaken};
use crate::tls::socket::Socket;
use crate::worker::sequencer::Sequencer;
use crate::worker::signal::Signal;
use crate::worker::turns::Turns;

/// Header lines of a request at most; hyper's own default, here by name.
const HEADERS_MAX: usize = 100;
/// Bytes of a request's head at most, and of answers that wait to be written. A request here is
/// a few hundred bytes; proxies add some.
const HEAD_LEN_MAX: usize = 16 << 10;
/// Silent connections of HTTP/3 of one worker that have grown and are kept.
const GROWN_MAX: usize = 256;
/// Time for which what a refused client still sends is read and dropped, so that it can read why
/// it was refused instead of a reset.
const LINGER_TIME_MAX: Duration = Duration::from_secs(1);
/// The same for a native client of a node that stops: it closes as soon as it reads the goodbye; and
/// the time in which the system takes the last record of TLS.
const LINGER_TIME_CLOSING: Duration = Duration::from_millis(50);
/// Bytes read and dropped meanwhile at most.
const LINGER_LEN_MAX: u64 = 4 << 20;

/// The client connections of one worker.
#[derive(Debug)]
pub(crate) struct Clients {
    sequencer: Rc<Sequencer>,
    turns: Arc<Turns>,
    /// HTTP/1.1 as hyper is to speak it.
    protocol: http1::Builder,
    native: Rc<Common>,
    handshakes: Handshakes,
    hot: Rc<hot::connection::Common>,
    http2: Rc<http2::connection::Common>,
    connections: RefCell<BTreeMap<u64, Rc<ClientState>>>,
    next: Cell<u64>,
    /// Sweeps so far: time, as connections count it.
    sweeps: Rc<Cell<u64>>,
    patience: Patience,
    is_closing: Cell<bool>,
    gone: Signal,
}

impl Clients {
    /// No connections yet.
    pub(crate) fn new(sequencer: Rc<Sequencer>, turns: Arc<Turns>) -> Rc<Self> {
        Rc::new(Self {
            turns,
            native: Common::new(sequencer.clone()),
            handshakes: Handshakes::default(),
            hot: hot::connection::Common::new(sequencer.clone()),
            http2: http2::connection::Common::new(sequencer.clone()),
            patience: Patience::new(&sequencer.shared.config.limits),
            sequencer,
            protocol: protocol(),
            connections: RefCell::default(),
            next: Cell::default(),
            sweeps: Rc::default(),
            is_closing: Cell::default(),
            gone: Signal::default(),
        })
    }

    /// Serves a connection on a task of its own.
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
        spawn_local(async move {
            let Some(stream) = clients.secure(&state, stream).await else {
                return clients.forget(id);
            };
            let stream = Rc::new(RefCell::new(stream));
            match clients.opening(&state, &stream).await {
                Some(Opening::Native) => clients.serve_native(&state, &stream).await,
                // Operators ask for nothing that is hot.
                Some(Opening::Http) if caller.port == Port::Operations => {
                    Box::pin(clients.serve(&state, stream.clone(), Vec::new())).await;
                }
                Some(Opening::Http2) => {
                    Box::pin(clients.serve_http2(&state, stream.clone())).await;
                }
                Some(Opening::Http) => clients.serve_hot(&state, stream.clone()).await,
                Some(Opening::Foreign) | None => {}
            }
            // A worker that stops ends with its last connection. A client goes when it has read that
            // it is the end; until then what it still sends must not reset the connection, and with
            // it answers that are on their way.
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
                    // Without a word of TLS for it, an end is what anybody on the way can make.
                    // Who does not read, or is gone, is not waited for.
                    let _ = timeout(LINGER_TIME_CLOSING, stream.shutdown()).await;
                }
                Some(Socket::Plain(_)) | None => {}
            }
            if is_last_word {
                clients.forget(id);
            }
        });
    }

    /// Takes a connection into what is swept, counted and closed.
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

    /// Where its clients' requests go.
    pub(super) fn sequencer(&self) -> &Rc<Sequencer> {
        &self.sequencer
    }

    /// Whether it takes no more requests.
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

    /// Waits until no connection is left, once they were told to close.
    pub(crate) async fn gone(&self) {
        self.gone.wait().await;
    }

    /// Cuts off connections that are idle or stuck, for ever.
    pub(crate) async fn sweep(self: Rc<Self>) {
        loop {
            sleep(SWEEP_INTERVAL).await;
            self.sweeps.set(self.sweeps.get() + 1);
            let (mut cut, mut grown) = (0, 0);
            for state in self.connections.borrow().values() {
                if state.is_overdue(self.patience) {
                    state.is_cut.set(true);
                    state.wake();
                    cut += 1;
                } else {
                    state.note_sweep();
                }
                // The newest are the first that are kept no longer: others may be in somebody's pool.
                grown += usize::from(state.is_grown());
                if grown > GROWN_MAX && state.is_grown() {
                    state.retire();
                }
            }
            self.sequencer.metrics().connections_idle_closed.add_alone(cut);
        }
    }

    /// Tells native connections when another leader becomes known.
    pub(crate) fn follow_publication(&self) {
        if self.native.follow_publication() {
            let connections = self.connections.borrow();
            connections.values().filter(|state| state.is_native.get()).for_each(|it| it.wake());
        }
    }

    /// A connection as this port takes it: plain, or behind a handshake. `None` when it is not to
    /// be served.
    async fn secure(&self, state: &ClientState, stream: TcpStream) -> Option<Socket> {
        let stream = Socket::Plain(stream);
        let Some(tls) = &self.sequencer.shared.tls else { return Some(stream) };
        let stream = RefCell::new(stream);
        let first = self.first_bytes(state, &stream, |bytes| bytes.first().copied()).await?;
        let stream = match stream.into_inner() {
            Socket::Plain(stream) if is_tls(&[first]) => stream,
            stream if tls.takes_plain => return Some(stream),
            stream => {
                self.sequencer.metrics().plain_refused.add_alone(1);
                refuse_plain(stream, first).await;
                return None;
            }
        };
        let is_over = |context: &mut Context<'_>| {
            state.note_waker(context);
            state.is_cut.get() || self.is_closing.get()
        };
        let metrics = self.sequencer.metrics();
        let Caller { from, port, .. } = state.caller();
        let config = if port == Port::Operations { &tls.operators } else { &tls.config };
        // Apart, since it is large, and a plain connection has none.
        match Box::pin(self.handshakes.shake(from, config, stream, is_over)).await {
            Shaken::Secured(stream) => {
                metrics.handshakes_completed.add_alone(1);
                state.end_handshake();
                Some(stream)
            }
            Shaken::Failed(stream, error) => {
                metrics.handshakes_failed.add_alone(1);
                tracing::debug!(%error, from = ?state.caller().from, "a client's handshake failed");
                // It is still to read why.
                linger(Socket::Plain(stream), LINGER_TIME_MAX).await;
                None
            }
            Shaken::Dropped => {
                metrics.handshakes_failed.add_alone(1);
                None
            }
        }
    }

    /// Lets handshakes take their turns, for ever.
    pub(crate) async fn hand_out_turns(self: Rc<Self>) {
        self.handshakes.hand_out_turns().await;
    }

    /// Waits for the first bytes, and leaves them where they are; `None` when the connection ends
    /// first.
    async fn opening(&self, state: &ClientState, stream: &RefCell<Socket>) -> Option<Opening> {
        self.first_bytes(state, stream, Opening::of).await
    }

    /// Waits for the first bytes, leaves them where they are, and says what `tell` makes of them;
    /// `None` when the connection ends first.
    async fn first_bytes<T>(
        &self,
        state: &ClientState,
        stream: &RefCell<Socket>,
        tell: impl Fn(&[u8]) -> Option<T>,
    ) -> Option<T> {
        poll_fn(|context| {
            state.note_waker(context);
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

    async fn serve_native(&self, state: &Rc<ClientState>, stream: &RefCell<Socket>) {
        let connection = Connection::new(self.native.clone(), state.clone());
        let poll = |connection: &mut Connection, context: &mut Context<'_>| {
            connection.poll(context, &mut stream.borrow_mut())
        };
        let result = self
            .until_over(state, connection, Connection::close, Connection::give_back, poll)
            .await;
        if let Err(error) = result {
            state.has_ended.set(true);
            tracing::debug!(%error, "a native client's connection ended with an error");
        }
    }

    async fn serve_hot(&self, state: &Rc<ClientState>, stream: Rc<RefCell<Socket>>) {
        use hot::connection::{Connection, End};
        let connection = Connection::new(self.hot.clone(), state.clone());
        let poll = |connection: &mut Connection, context: &mut Context<'_>| {
            connection.poll(context, &mut stream.borrow_mut())
        };
        match self
            .until_over(state, connection, Connection::close, Connection::give_back, poll)
            .await
        {
            Ok(End::Over) => {}
            Ok(End::HandOver(unread)) => {
                // Apart, since hyper's part of a connection is large and most need none.
                Box::pin(self.serve(state, stream, unread)).await;
            }
            Err(error) => {
                state.has_ended.set(true);
                tracing::debug!(%error, "a client's connection ended with an error");
            }
        }
    }

    async fn serve_http2(&self, state: &Rc<ClientState>, stream: Rc<RefCell<Socket>>) {
        use http2::connection::{Connection, End};
        let connection = Connection::new(self.http2.clone(), state.clone());
        let poll = |connection: &mut Connection, context: &mut Context<'_>| {
            connection.poll(context, &mut stream.borrow_mut())
        };
        match self
            .until_over(state, connection, Connection::close, Connection::give_back, poll)
            .await
        {
            Ok(End::Over) => {}
            // It began like HTTP/2, as `POST` does.
            Ok(End::Foreign(unread)) => Box::pin(self.serve(state, stream, unread)).await,
            Err(error) => {
                state.has_ended.set(true);
                tracing::debug!(%error, "a client's connection ended with an error");
            }
        }
    }

    /// Serves what is not hot of HTTP/1.1, from the bytes on that were read and not answered.
    async fn serve(&self, state: &Rc<ClientState>, stream: Rc<RefCell<Socket>>, unread: Vec<u8>) {
        type Served<'a> = Pin<&'a mut http1::Connection<TokioIo<ClientStream>, NodeService>>;
        let io = TokioIo::new(ClientStream::new(stream, unread, state.clone()));
        let service = NodeService::new(self.sequencer.clone(), state.clone());
        let connection = pin!(self.protocol.serve_connection(io, service));
        let close = |connection: &mut Served<'_>| connection.as_mut().graceful_shutdown();
        let poll = |connection: &mut Served<'_>, context: &mut Context<'_>| {
            connection.as_mut().poll(context)
        };
        // What hyper has grown to it keeps.
        let result = self.until_over(state, connection, close, |_| {}, poll).await;
        if let Err(error) = result {
            tracing::debug!(%error, "a client's connection ended with an error");
        }
    }

    /// Drives a connection until it has ended or is cut off. When this worker closes, it is told so
    /// once.
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
            state.note_waker(context);
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
            if self.turns.is_over(context) {
                return Poll::Pending;
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

/// HTTP/1.1 as hyper is to speak it.
fn protocol() -> http1::Builder {
    let mut protocol = http1::Builder::new();
    // Not `pipeline_flush`: with it hyper buffers answers without a limit, and keeps an answer,
    // or the reason of a refusal, back while the start of another request waits behind it.
    protocol
        // A client may say that it sends no more and still wait for its answers. So one that
        // vanishes is noticed at the next write only: until then, at most until the request's
        // deadline, it keeps its place.
        .half_close(true)
        .writev(false)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_LEN_MAX)
        // The sweep does it, without a timer for every request.
        .header_read_timeout(None);
    protocol
}

/// Says to a client that speaks no TLS what this port wants.
async fn refuse_plain(mut stream: Socket, first: u8) {
    let mut answer = Vec::new();
    if first == native::FIRST_BYTE {
        let code = ErrorCode::BadRequest as u16;
        ErrorFrame { code, closes: true, id: 0, text: PLAIN_REFUSED }.encode(&mut answer);
    } else {
        let length = PLAIN_REFUSED.len() + 1;
        let code = ErrorCode::BadRequest.name();
        answer.extend_from_slice(
            format!(
                "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\
                 epicepoch-error: {code}\r\nconnection: close\r\n\r\n{PLAIN_REFUSED}\n"
            )
            .as_bytes(),
        );
    }
    if stream.write_all(&answer).await.is_ok() {
        linger(stream, LINGER_TIME_MAX).await;
    }
}

/// What a client is told that speaks no TLS where it has to.
const PLAIN_REFUSED: &str = "this port speaks TLS alone: use https, or give the client --ca-file";

/// Reads and drops what a client still sends after its last answer, within limits.
async fn linger(mut stream: Socket, limit: Duration) {
    let reading = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(LINGER_LEN_MAX), &mut tokio::io::sink()).await
    };
    // However it ends, the connection is dropped now.
    let _ = timeout(limit, reading).await;
}
