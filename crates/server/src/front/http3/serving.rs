//! Serves one HTTP/3 connection. Each request has its own task and is answered by the service. The
//! connection ends when the client goes, is silent for too long or abuses it, or when the node
//! stops. A node that stops tells the client, and first answers the requests it has received.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use h3::error::{Code, StreamError};
use h3::quic::SendStream as _;
use h3::server::{RequestResolver, RequestStream};
use http::header::{ALT_SVC, CONTENT_LENGTH, DATE, EXPECT};
use http::{Method, Response};
use http_body::{Body as HttpBody, Frame};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use super::limits::{HEAD_LEN_MAX, HEADLESS_MAX, STREAMS_MAX};
use super::streams::{self, AbuseMeter};
use crate::front::clients::Clients;
use crate::front::deadlines::ClientState;
use crate::front::routes::answer::{self, Answer};
use crate::front::routes::body::Chunk;
use crate::front::routes::date::Date;
use crate::front::routes::service::NodeService;
use crate::security::authz::{Caller, Port};
use crate::security::excess::Excess;
use crate::security::limits::ConnectionPermit;
use crate::worker::turns::Turns;

/// A client has this time, plus three round trips, to read its last answers and the end of the
/// connection.
const LINGER_TIME: Duration = Duration::from_millis(50);
/// The longest time for reading the last answers and the end, including the round trips of a
/// distant client.
const LINGER_TIME_MAX: Duration = Duration::from_secs(1);
/// The number of turns of the event loop after which a connection's last datagram has left.
const TURNS_TO_SAY_CLOSED: usize = 3;

type Connection = h3::server::Connection<streams::Connection, Chunk>;
type Resolver = RequestResolver<streams::Connection, Chunk>;
type Sending = RequestStream<streams::SendStream, Chunk>;
type Receiving = RequestStream<streams::RecvStream, Chunk>;

/// The state that the requests of one connection share.
struct Common {
    clients: Rc<Clients>,
    state: Rc<ClientState>,
    service: NodeService,
    abuse: Rc<AbuseMeter>,
    date: RefCell<Date>,
    /// Requests that were taken and are not over, also those whose head has not arrived.
    taken: Cell<u32>,
    /// Requests whose heads did not come.
    headless: Cell<u32>,
}

/// Serves a connection until it ends.
pub(super) async fn serve(
    clients: Rc<Clients>,
    quic: quinn::Connection,
    port: Port,
    permit: ConnectionPermit,
    turns: Arc<Turns>,
) {
    let from = Some(quic.remote_address().ip());
    let caller = Caller { from, port, is_encrypted: true };
    let (id, state) = clients.enlist(caller, permit);
    let abuse = AbuseMeter::new(quic.clone());
    let service = NodeService::new(clients.sequencer().clone(), state.clone());
    let open = &clients.sequencer().metrics().http3_connections;
    open.set(open.load() + 1);
    let common = Rc::new(Common {
        clients: clients.clone(),
        state,
        service,
        abuse,
        date: RefCell::default(),
        taken: Cell::default(),
        headless: Cell::default(),
    });
    if let Err(error) = common.serve(&quic).await {
        tracing::debug!(%error, "a client's connection of HTTP/3 ended with an error");
    }
    if let Some(reason) = common.abuse.sent_away() {
        clients.sequencer().metrics().http3_abusers_closed.add_alone(1);
        clients.sequencer().shared.record_excess(Excess::Http3Abuse, &caller, reason);
    }
    quic.close(quinn::VarInt::from_u32(Code::H3_NO_ERROR.value() as u32), b"");
    // A stopping worker ends with its last connection, and then sends nothing more. So it must
    // first send that this connection is closed.
    for _ in 0..TURNS_TO_SAY_CLOSED {
        turns.next().await;
    }
    open.set(open.load() - 1);
    clients.forget(id);
}

impl Common {
    async fn serve(
        self: &Rc<Self>,
        quic: &quinn::Connection,
    ) -> Result<(), h3::error::ConnectionError> {
        let streams = streams::Connection::new(quic.clone(), self.abuse.clone());
        let mut builder = h3::server::builder();
        builder.max_field_section_size(HEAD_LEN_MAX).send_grease(false);
        // The setup waits until the client allows the server's streams. A client that never allows
        // one must not keep its connection for ever.
        let Some(built) = self.while_open(builder.build(streams)).await else { return Ok(()) };
        let mut connection = built?;
        let is_closing = self.serve_while_open(quic, &mut connection).await?;
        if is_closing {
            // The GOAWAY names the first request that is not carried out, which comes after the last
            // one that was taken: the client may send it to another node. If the client does not
            // accept the GOAWAY in time, the node goes on.
            if let Ok(told) = timeout(LINGER_TIME_MAX, connection.shutdown(1)).await {
                told?;
            }
            self.finish(&mut connection).await?;
            let round_trips = quic.rtt() * 3;
            let linger = (LINGER_TIME + round_trips).min(LINGER_TIME_MAX);
            // The connection is closed in any case, even if the client has not closed it in time.
            let _ = timeout(linger, quic.closed()).await;
        }
        Ok(())
    }

    /// Runs a future that waits for the client, before its first request or after its last. `None`
    /// if the connection is cut off, or must end because it is idle or the worker closes.
    async fn while_open<T>(&self, waiting: impl Future<Output = T>) -> Option<T> {
        let mut waiting = pin!(waiting);
        poll_fn(|context| {
            self.state.record_waker(context);
            if self.state.is_cut.get() || self.state.is_retired.get() || self.clients.is_closing() {
                return Poll::Ready(None);
            }
            waiting.as_mut().poll(context).map(Some)
        })
        .await
    }

    /// Takes requests while the connection is open. Returns `true` if it must end in an orderly
    /// way: the worker closes, or the connection is idle and holds much memory. Returns `false` if
    /// the client has gone or was cut off.
    async fn serve_while_open(
        self: &Rc<Self>,
        quic: &quinn::Connection,
        connection: &mut Connection,
    ) -> Result<bool, h3::error::ConnectionError> {
        loop {
            let mut accepting = pin!(connection.accept());
            let next = poll_fn(|context| {
                self.state.record_waker(context);
                if self.state.is_cut.get() {
                    return Poll::Ready(Ok(Next::Cut));
                }
                if self.clients.is_closing() || self.state.is_retired.get() {
                    return Poll::Ready(Ok(Next::Closing));
                }
                accepting
                    .as_mut()
                    .poll(context)
                    .map_ok(|request| request.map_or(Next::Leaving, Next::Request))
            });
            match next.await? {
                Next::Request(resolver) => self.take(resolver),
                Next::Closing => return Ok(true),
                Next::Cut => return Ok(false),
                Next::Leaving => {
                    // The client sends no more requests, and closes when it has read its answers.
                    // A close by this node would discard what is not sent yet.
                    let has_gone = self.while_open(quic.closed()).await.is_some();
                    return Ok(!has_gone && !self.state.is_cut.get());
                }
            }
        }
    }

    /// Answers the requests that were taken, after the client was told of the end, and rejects
    /// others. Waits only for a short time for heads: their clients may be gone.
    async fn finish(
        self: &Rc<Self>,
        connection: &mut Connection,
    ) -> Result<(), h3::error::ConnectionError> {
        let mut heads = pin!(sleep(LINGER_TIME_MAX));
        loop {
            let mut accepting = pin!(connection.accept());
            let next = poll_fn(|context| {
                self.state.record_waker(context);
                if self.state.is_cut.get() {
                    return Poll::Ready(Ok(None));
                }
                let is_late = heads.is_elapsed() || heads.as_mut().poll(context).is_ready();
                let left = if is_late { self.state.in_flight() } else { self.taken.get() };
                match accepting.as_mut().poll(context) {
                    Poll::Pending if left == 0 => Poll::Ready(Ok(None)),
                    other => other,
                }
            });
            match next.await? {
                // Streams come in their order, so this one is not below that of the GOAWAY. The library
                // rejects all but the first of these.
                Some(mut resolver) => {
                    resolver.frame_stream.reset(Code::H3_REQUEST_REJECTED.value());
                }
                None => return Ok(()),
            }
        }
    }

    fn take(self: &Rc<Self>, resolver: Resolver) {
        if self.state.in_flight() >= STREAMS_MAX {
            // QUIC lets a client open a new stream as soon as it has cancelled one.
            self.abuse.send_away("too many requests are under way");
            return;
        }
        let common = self.clone();
        common.taken.set(common.taken.get() + 1);
        spawn_local(async move {
            let answered = common.answer(resolver).await;
            common.taken.set(common.taken.get() - 1);
            if common.clients.is_closing() || common.state.is_retired.get() {
                common.state.wake();
            }
            match answered {
                Ok(true) => common.abuse.record_answer(),
                Ok(false) => common.abuse.record_taken_back(),
                Err(error) => {
                    common.abuse.record_taken_back();
                    tracing::debug!(%error, "a request of HTTP/3 got no answer");
                }
            }
        });
    }

    /// Answers a request. Returns `false` if the client was too slow.
    async fn answer(&self, mut resolver: Resolver) -> Result<bool, StreamError> {
        let head = poll_fn(|context| resolver.frame_stream.poll_next(context));
        let limits = &self.clients.sequencer().shared.config.limits;
        let Ok(head) = timeout(limits.head_timeout, head).await else {
            resolver.frame_stream.reset(Code::H3_REQUEST_INCOMPLETE.value());
            self.record_headless();
            return Ok(false);
        };
        let accepted = resolver.accept_with_frame(head);
        let accepted = accepted.inspect_err(|_| self.record_headless())?;
        let (request, stream) = accepted.resolve().await?;
        let (mut sending, receiving) = stream.split();
        let mut body = RequestBody { receiving, begun: Poll::Pending };
        if request.headers().contains_key(EXPECT) {
            // The client waits for an answer before it sends its body. Requests here need none.
            body.begun = Poll::Ready(None);
        } else {
            poll_fn(|context| {
                body.look_for_end(context);
                Poll::Ready(())
            })
            .await;
        }
        let is_head = *request.method() == Method::HEAD;
        let request = request.map(|()| body);
        // The request counts as in flight until the last byte is written.
        let mut answering = pin!(self.service.answer(request));
        let Ok(answer) = answering.as_mut().await;
        let answer = if is_head { answer::without_body(answer) } else { answer };
        // The timeout limits the wait for a client that does not read.
        let writing = self.write(answer, &mut sending);
        match timeout(limits.idle_timeout, writing).await {
            Ok(written) => written.map(|()| true),
            Err(_) => Ok(false),
        }
    }

    /// Records a request whose head did not come.
    fn record_headless(&self) {
        self.headless.set(self.headless.get() + 1);
        if self.headless.get() == HEADLESS_MAX {
            self.state.retire();
        }
    }

    async fn write(&self, answer: Answer, sending: &mut Sending) -> Result<(), StreamError> {
        let (mut parts, mut body) = answer.into_parts();
        // The client uses HTTP/3 already, so the answer need not advertise it.
        parts.headers.remove(ALT_SVC);
        if let Some(length) = body.len()
            && !parts.headers.contains_key(CONTENT_LENGTH)
        {
            parts.headers.insert(CONTENT_LENGTH, length.into());
        }
        let now_ns = self.clients.sequencer().recent_ns();
        if let Some(date) = self.date.borrow_mut().at(now_ns) {
            parts.headers.insert(DATE, date);
        }
        sending.send_response(Response::from_parts(parts, ())).await?;
        while let Some(chunk) = body.next_chunk() {
            sending.send_data(chunk).await?;
            self.state.handle_write();
        }
        sending.finish().await
    }
}

#[expect(clippy::large_enum_variant, reason = "it is passed on at once, and never kept")]
enum Next {
    Request(Resolver),
    /// The client sends no more requests, and all are answered.
    Leaving,
    Closing,
    Cut,
}

/// The body of a request.
struct RequestBody {
    receiving: Receiving,
    /// The result of an early read, before the service is called. For most requests it is the end
    /// of the body.
    begun: Poll<Option<Result<Bytes, StreamError>>>,
}

impl RequestBody {
    fn look_for_end(&mut self, context: &mut Context<'_>) {
        self.begun = self.read(context);
    }

    fn read(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, StreamError>>> {
        let data = ready!(self.receiving.poll_recv_data(context)).transpose();
        Poll::Ready(data.map(|data| data.map(|mut data| data.copy_to_bytes(data.remaining()))))
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = StreamError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamError>>> {
        let data = match std::mem::replace(&mut self.begun, Poll::Pending) {
            Poll::Ready(data) => data,
            Poll::Pending => ready!(self.read(context)),
        };
        Poll::Ready(data.map(|data| data.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.begun, Poll::Ready(None))
    }
}
