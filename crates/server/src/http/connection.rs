//! Clients' connections: limits, idle time, and how they end. HTTP/1.1, h2c and the native
//! protocol are told apart by the first bytes. One sweep per worker looks for connections that are
//! idle or stuck, so that a request costs no timer.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use http::Version;
use hyper::rt::Executor;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use super::opening::{OPENING_LEN, Opening};
use super::service::NodeService;
use crate::native::connection::{Common, Connection};
use crate::worker::ConnectionPermit;
use crate::worker::sequencer::Sequencer;
use crate::worker::signal::Signal;

/// Header lines of a request at most; hyper's own default, here by name.
const HEADERS_MAX: usize = 100;
/// Bytes of a request's head at most, and of answers that wait to be written. A request here is
/// a few hundred bytes; proxies add some.
const HEAD_LEN_MAX: usize = 16 << 10;
/// Requests of one HTTP/2 connection that may be open at once.
const STREAMS_MAX: u32 = 256;
/// Bytes of answers that one HTTP/2 stream may buffer for a client that does not read.
const STREAM_BUFFER_LEN_MAX: usize = 32 << 10;
/// Streams that a client may reset before they were looked at, after which it is sent away
/// (CVE-2023-44487).
const RESETS_PENDING_MAX: usize = 64;
/// Streams that this node may reset for a client's errors, after which it is sent away
/// (CVE-2025-8671).
const RESETS_LOCAL_MAX: usize = 64;
/// Silence after which a connection without requests is closed: longer than the 90 seconds after
/// which common clients close theirs, so that they seldom meet a closed one.
pub(crate) const IDLE_TIME_MAX: Duration = Duration::from_mins(2);
/// Time from the first byte of a request to the end of its head, and of a native hello to its end.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);
/// Time between two looks at all connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which what a refused client still sends is read and dropped, so that it can read why
/// it was refused instead of a reset.
const LINGER_TIME_MAX: Duration = Duration::from_secs(1);
/// The same for a native client of a node that stops: it closes as soon as it reads the goodbye.
const LINGER_TIME_CLOSING: Duration = Duration::from_millis(50);
/// Bytes read and dropped meanwhile at most.
const LINGER_LEN_MAX: u64 = 4 << 20;

/// The client connections of one worker.
#[derive(Debug)]
pub(crate) struct Clients {
    sequencer: Rc<Sequencer>,
    protocol: auto::Builder<LocalExecutor>,
    native: Rc<Common>,
    connections: RefCell<BTreeMap<u64, Rc<ClientState>>>,
    next: Cell<u64>,
    /// Sweeps so far: time, as connections count it.
    sweeps: Rc<Cell<u64>>,
    is_closing: Cell<bool>,
    gone: Signal,
}

impl Clients {
    /// No connections yet.
    pub(crate) fn new(sequencer: Rc<Sequencer>) -> Rc<Self> {
        let mut protocol = auto::Builder::new(LocalExecutor);
        // Not `pipeline_flush`: with it hyper buffers answers without a limit, and keeps an answer,
        // or the reason of a refusal, back while the start of another request waits behind it.
        protocol
            .http1()
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
            .http2()
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(HEAD_LEN_MAX as u32)
            .max_send_buf_size(STREAM_BUFFER_LEN_MAX)
            .max_pending_accept_reset_streams(RESETS_PENDING_MAX)
            .max_local_error_reset_streams(RESETS_LOCAL_MAX);
        Rc::new(Self {
            native: Common::new(sequencer.clone()),
            sequencer,
            protocol,
            connections: RefCell::default(),
            next: Cell::default(),
            sweeps: Rc::default(),
            is_closing: Cell::default(),
            gone: Signal::default(),
        })
    }

    /// Serves a connection on a task of its own.
    pub(crate) fn adopt(self: &Rc<Self>, stream: std::net::TcpStream, permit: ConnectionPermit) {
        let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%error, "a client's connection was lost at once");
                return;
            }
        };
        let id = self.next.replace(self.next.get() + 1);
        let state = Rc::new(ClientState::new(self.sweeps.clone()));
        self.connections.borrow_mut().insert(id, state.clone());
        self.count();
        let clients = self.clone();
        spawn_local(async move {
            let stream = Rc::new(RefCell::new(stream));
            match clients.opening(&state, &stream).await {
                Some(Opening::Native) => clients.serve_native(&state, &stream).await,
                Some(Opening::Http) => clients.serve(&state, stream.clone()).await,
                Some(Opening::Foreign) | None => {}
            }
            // A worker that stops ends with its last connection. A native client goes when it has
            // read the goodbye; until then what it still sends must not reset the connection.
            let is_last_word = clients.is_closing.get() && state.is_native.get();
            let limit = if is_last_word { LINGER_TIME_CLOSING } else { LINGER_TIME_MAX };
            if !is_last_word {
                clients.forget(id);
            }
            let stream = Rc::into_inner(stream).map(RefCell::into_inner);
            if let Some(stream) = stream
                && !state.is_cut.get()
                && !state.has_ended.get()
            {
                linger(stream, limit).await;
            }
            if is_last_word {
                clients.forget(id);
            }
            drop(permit);
        });
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
            let mut cut = 0;
            for state in self.connections.borrow().values() {
                if state.is_overdue() {
                    state.is_cut.set(true);
                    state.wake();
                    cut += 1;
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

    /// Waits for the first bytes, and leaves them where they are; `None` when the connection ends
    /// first.
    async fn opening(&self, state: &ClientState, stream: &RefCell<TcpStream>) -> Option<Opening> {
        poll_fn(|context| {
            state.note_waker(context);
            if state.is_cut.get() || self.is_closing.get() {
                return Poll::Ready(None);
            }
            let mut bytes = [0; OPENING_LEN];
            let mut buffer = ReadBuf::new(&mut bytes);
            let result = ready!(stream.borrow().poll_peek(context, &mut buffer));
            let opening = result.ok().and_then(|_| Opening::of(buffer.filled()));
            state.has_ended.set(opening.is_none());
            Poll::Ready(opening)
        })
        .await
    }

    async fn serve_native(&self, state: &Rc<ClientState>, stream: &RefCell<TcpStream>) {
        let connection = Connection::new(self.native.clone(), state.clone());
        let poll = |connection: &mut Connection, context: &mut Context<'_>| {
            connection.poll(context, &mut stream.borrow_mut())
        };
        let result = self.until_over(state, connection, Connection::close, poll).await;
        if let Err(error) = result {
            state.has_ended.set(true);
            tracing::debug!(%error, "a native client's connection ended with an error");
        }
    }

    async fn serve(&self, state: &Rc<ClientState>, stream: Rc<RefCell<TcpStream>>) {
        let io = TokioIo::new(ClientStream { stream, state: state.clone() });
        let service = NodeService::new(self.sequencer.clone(), state.clone());
        let connection = pin!(self.protocol.serve_connection(io, service));
        let close = |connection: &mut Pin<&mut auto::Connection<'_, _, _, _>>| {
            connection.as_mut().graceful_shutdown();
        };
        let poll = |connection: &mut Pin<&mut auto::Connection<'_, _, _, _>>,
                    context: &mut Context<'_>| connection.as_mut().poll(context);
        let result = self.until_over(state, connection, close, poll).await;
        if let Err(error) = result {
            tracing::debug!(%error, "a client's connection ended with an error");
        }
    }

    /// Drives a connection until it has ended or is cut off. When this worker closes, it is told so
    /// once.
    async fn until_over<C, E>(
        &self,
        state: &ClientState,
        mut connection: C,
        close: impl FnOnce(&mut C),
        mut poll: impl FnMut(&mut C, &mut Context<'_>) -> Poll<Result<(), E>>,
    ) -> Result<(), E> {
        let mut close = Some(close);
        poll_fn(|context| {
            state.note_waker(context);
            if state.is_cut.get() {
                return Poll::Ready(Ok(()));
            }
            if self.is_closing.get()
                && let Some(close) = close.take()
            {
                close(&mut connection);
            }
            poll(&mut connection, context)
        })
        .await
    }

    fn forget(&self, id: u64) {
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

/// Reads and drops what a client still sends after its last answer, within limits.
async fn linger(mut stream: TcpStream, limit: Duration) {
    let reading = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(LINGER_LEN_MAX), &mut tokio::io::sink()).await
    };
    // However it ends, the connection is dropped now.
    let _ = timeout(limit, reading).await;
}

/// What the sweep must know of a connection. Times are counted in sweeps.
#[derive(Debug)]
pub(crate) struct ClientState {
    sweeps: Rc<Cell<u64>>,
    /// Requests that are being answered.
    in_flight: Cell<u32>,
    is_http2: Cell<bool>,
    is_native: Cell<bool>,
    has_begun: Cell<bool>,
    /// When a request last came or was answered, or the socket last took bytes.
    active_at: Cell<u64>,
    /// When the first byte of a request came whose head is not complete.
    head_at: Cell<Option<u64>>,
    /// The client has closed its side, or the connection broke.
    has_ended: Cell<bool>,
    /// The sweep found it overdue.
    is_cut: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl ClientState {
    fn new(sweeps: Rc<Cell<u64>>) -> Self {
        Self {
            in_flight: Cell::default(),
            is_http2: Cell::default(),
            is_native: Cell::default(),
            has_begun: Cell::default(),
            active_at: Cell::new(sweeps.get()),
            head_at: Cell::default(),
            has_ended: Cell::default(),
            is_cut: Cell::default(),
            waker: RefCell::default(),
            sweeps,
        }
    }

    /// Notes that a request has come whole.
    pub(crate) fn begin(self: &Rc<Self>, version: Version) -> InFlight {
        self.in_flight.set(self.in_flight.get() + 1);
        self.head_at.set(None);
        self.active_at.set(self.sweeps.get());
        if version == Version::HTTP_2 {
            self.is_http2.set(true);
        }
        InFlight(self.clone())
    }

    /// Notes that a native client has begun its hello.
    pub(crate) fn begin_hello(&self) {
        self.is_native.set(true);
        self.head_at.set(Some(self.sweeps.get()));
    }

    /// Notes that the hello of a native client has come whole.
    pub(crate) fn end_hello(&self) {
        self.head_at.set(None);
        self.active_at.set(self.sweeps.get());
    }

    /// Notes how many requests of a native client are being answered.
    pub(crate) fn set_in_flight(&self, requests: u32) {
        if self.in_flight.replace(requests) != requests {
            self.active_at.set(self.sweeps.get());
        }
    }

    /// Notes that the client sends no more.
    pub(crate) fn note_end(&self) {
        self.has_ended.set(true);
    }

    fn handle_read(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            self.has_ended.set(true);
            return;
        }
        if !self.has_begun.replace(true) {
            self.is_http2.set(bytes.starts_with(H2_PREFACE_START));
        }
        // Reading alone is no activity: a client that sends frames and takes nothing off its socket
        // would never be idle. A ping counts by the answer to it, once the socket took that.
        let is_in_head = !self.is_http2.get() && self.in_flight.get() == 0;
        if is_in_head && self.head_at.get().is_none() {
            self.head_at.set(Some(self.sweeps.get()));
        }
    }

    /// Notes that the socket took bytes: the client reads, or its window still has room.
    pub(crate) fn handle_write(&self) {
        self.active_at.set(self.sweeps.get());
    }

    /// Whether the client has been silent, or in the middle of a request's head, for too long. A
    /// request that is being answered has a deadline of its own.
    fn is_overdue(&self) -> bool {
        let is_past = |since: u64, limit: Duration| {
            let sweeps = limit.as_millis() / SWEEP_INTERVAL.as_millis();
            u128::from(self.sweeps.get() - since) > sweeps
        };
        let is_slow = self.head_at.get().is_some_and(|since| is_past(since, HEAD_TIME_MAX));
        self.in_flight.get() == 0 && (is_slow || is_past(self.active_at.get(), IDLE_TIME_MAX))
    }

    fn note_waker(&self, context: &Context<'_>) {
        let mut noted = self.waker.borrow_mut();
        if !noted.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *noted = Some(context.waker().clone());
        }
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }
}

/// How an HTTP/2 connection begins (RFC 9113, 3.4); no HTTP/1.1 method does.
const H2_PREFACE_START: &[u8] = b"PRI";

/// Held while a request is being answered.
#[derive(Debug)]
pub(crate) struct InFlight(Rc<ClientState>);

impl Drop for InFlight {
    fn drop(&mut self) {
        let state = &self.0;
        state.in_flight.set(state.in_flight.get() - 1);
        state.active_at.set(state.sweeps.get());
    }
}

/// A client's stream that tells its state what happens. Shared with the task of the connection,
/// which ends it when the protocol is through with it.
struct ClientStream {
    stream: Rc<RefCell<TcpStream>>,
    state: Rc<ClientState>,
}

impl AsyncRead for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = ready!(Pin::new(&mut *self.stream.borrow_mut()).poll_read(context, buffer));
        match &result {
            Ok(()) => self.state.handle_read(&buffer.filled()[before..]),
            Err(_) => self.state.has_ended.set(true),
        }
        Poll::Ready(result)
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.stream.borrow_mut()).poll_write(context, bytes);
        if let Poll::Ready(Ok(_)) = written {
            self.state.handle_write();
        }
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.stream.borrow_mut()).poll_write_vectored(context, slices);
        if let Poll::Ready(Ok(_)) = written {
            self.state.handle_write();
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.borrow().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.borrow_mut()).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.borrow_mut()).poll_shutdown(context)
    }
}

/// Runs the streams of an HTTP/2 connection on the worker that accepted it.
#[derive(Clone, Copy, Debug)]
struct LocalExecutor;

impl<F: Future<Output: 'static> + 'static> Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        spawn_local(future);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixture {
        sweeps: Rc<Cell<u64>>,
        state: Rc<ClientState>,
    }

    impl Fixture {
        fn new() -> Self {
            let sweeps = Rc::new(Cell::new(0));
            Self { state: Rc::new(ClientState::new(sweeps.clone())), sweeps }
        }

        /// Whether the connection is overdue after so many more seconds.
        fn is_overdue_after(&self, seconds: u64) -> bool {
            self.sweeps.set(self.sweeps.get() + seconds);
            self.state.is_overdue()
        }
    }

    #[test]
    fn a_silent_client_is_overdue_after_two_minutes() {
        let silent = Fixture::new();
        assert!(!silent.is_overdue_after(120));
        assert!(silent.is_overdue_after(1));
    }

    #[test]
    fn half_a_request_is_overdue_after_ten_seconds_however_it_trickles() {
        let slow = Fixture::new();
        slow.state.handle_read(b"GET /times");
        assert!(!slow.is_overdue_after(10));
        slow.state.handle_read(b"t");
        assert!(slow.is_overdue_after(1));
    }

    #[test]
    fn a_request_that_is_being_answered_is_never_overdue() {
        let busy = Fixture::new();
        busy.state.handle_read(b"GET /timestamp HTTP/1.1\r\n\r\n");
        let in_flight = ClientState::begin(&busy.state, Version::HTTP_11);
        assert!(!busy.is_overdue_after(1000));
        drop(in_flight);
        assert!(!busy.is_overdue_after(120));
        assert!(busy.is_overdue_after(1));
    }

    #[test]
    fn an_http2_client_that_only_pings_is_kept() {
        let pinging = Fixture::new();
        pinging.state.handle_read(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        for _ in 0..10 {
            assert!(!pinging.is_overdue_after(100));
            pinging.state.handle_read(b"a ping");
            pinging.state.handle_write();
        }
        assert!(pinging.is_overdue_after(121));
    }

    #[test]
    fn an_http2_client_that_sends_frames_but_reads_none_is_overdue() {
        let deaf = Fixture::new();
        deaf.state.handle_read(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        drop(ClientState::begin(&deaf.state, Version::HTTP_2));
        assert!(!deaf.is_overdue_after(100));
        deaf.state.handle_read(b"a frame");
        assert!(deaf.is_overdue_after(21));
    }

    #[test]
    fn a_client_that_takes_no_answer_is_overdue() {
        let stuck = Fixture::new();
        drop(ClientState::begin(&stuck.state, Version::HTTP_11));
        stuck.sweeps.set(100);
        stuck.state.handle_write();
        assert!(!stuck.is_overdue_after(120));
        assert!(stuck.is_overdue_after(1));
    }
}
