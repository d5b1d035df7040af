//! One connection of HTTP/3: each request on a task of its own, as with HTTP/2, answered by the
//! service that answers all. It ends when the client goes, is silent for too long, does not behave,
//! or when the node stops: then the client is told so, and what it has asked is answered first.

use std::cell::RefCell;
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
use http::Response;
use http::header::{ALT_SVC, CONTENT_LENGTH, DATE};
use http_body::{Body as HttpBody, Frame};
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::limits::{HEAD_LEN_MAX, STREAMS_MAX};
use super::streams::{self, Conduct};
use crate::http::answer::Answer;
use crate::http::body::Chunk;
use crate::http::client_state::ClientState;
use crate::http::connection::Clients;
use crate::http::date::Date;
use crate::http::service::NodeService;
use crate::origins::ConnectionPermit;
use crate::rights::{Caller, Port};
use crate::worker::turns::Turns;

/// Time that a client has to read its last answers, and that this node stops, beside three round
/// trips.
const LINGER_TIME: Duration = Duration::from_millis(50);
/// The same with the round trips of whoever is far away.
const LINGER_TIME_MAX: Duration = Duration::from_secs(1);
/// Turns after which a connection's last datagram has left.
const TURNS_TO_SAY_CLOSED: usize = 3;

type Connection = h3::server::Connection<streams::Connection, Chunk>;
type Resolver = RequestResolver<streams::Connection, Chunk>;
type Sending = RequestStream<streams::SendStream, Chunk>;
type Receiving = RequestStream<streams::RecvStream, Chunk>;

/// What the requests of one connection share.
struct Common {
    clients: Rc<Clients>,
    state: Rc<ClientState>,
    service: NodeService,
    conduct: Rc<Conduct>,
    date: RefCell<Date>,
}

/// Serves a connection to its end.
pub(super) async fn serve(
    clients: Rc<Clients>,
    quic: quinn::Connection,
    port: Port,
    permit: ConnectionPermit,
    turns: Arc<Turns>,
) {
    let from = Some(quic.remote_address().ip());
    let (id, state) = clients.enlist(Caller { from, port, is_encrypted: true }, permit);
    let conduct = Conduct::new(quic.clone());
    let service = NodeService::new(clients.sequencer().clone(), state.clone());
    let open = &clients.sequencer().metrics().http3_connections;
    open.set(open.load() + 1);
    let date = RefCell::default();
    let common = Rc::new(Common { clients: clients.clone(), state, service, conduct, date });
    if let Err(error) = common.serve(&quic).await {
        tracing::debug!(%error, "a client's connection of HTTP/3 ended with an error");
    }
    if common.conduct.is_sent_away() {
        clients.sequencer().metrics().http3_abusers_closed.add_alone(1);
    }
    quic.close(quinn::VarInt::from_u32(Code::H3_NO_ERROR.value() as u32), b"");
    // A worker that stops ends with its last connection, and nothing is sent from then on.
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
        let streams = streams::Connection::new(quic.clone(), self.conduct.clone());
        let mut builder = h3::server::builder();
        builder.max_field_section_size(HEAD_LEN_MAX).send_grease(false);
        // It waits for the client to take the first words: a client that lets the server open no
        // stream would hold its place for ever.
        let Some(built) = self.while_open(builder.build(streams)).await else { return Ok(()) };
        let mut connection = built?;
        let is_closing = self.serve_while_open(&mut connection).await?;
        if is_closing {
            // One more than the last that came: clients may ask others for those from there on.
            // A client that does not take this either is answered without.
            if let Ok(told) = timeout(LINGER_TIME_MAX, connection.shutdown(1)).await {
                told?;
            }
            self.finish(&mut connection).await?;
            let round_trips = quic.rtt() * 3;
            let linger = (LINGER_TIME + round_trips).min(LINGER_TIME_MAX);
            // However it ends, the connection is closed now.
            let _ = timeout(linger, quic.closed()).await;
        }
        Ok(())
    }

    /// Drives what waits for the client, before it has asked anything; `None` once it is cut off, or
    /// the worker closes.
    async fn while_open<T>(&self, waiting: impl Future<Output = T>) -> Option<T> {
        let mut waiting = pin!(waiting);
        poll_fn(|context| {
            self.state.note_waker(context);
            if self.state.is_cut.get() || self.state.is_retired.get() || self.clients.is_closing() {
                return Poll::Ready(None);
            }
            waiting.as_mut().poll(context).map(Some)
        })
        .await
    }

    /// Takes requests until the client goes or is cut off, or the worker closes, or it
    /// holds much for nothing: then it is true.
    async fn serve_while_open(
        self: &Rc<Self>,
        connection: &mut Connection,
    ) -> Result<bool, h3::error::ConnectionError> {
        loop {
            let mut accepting = pin!(connection.accept());
            let next = poll_fn(|context| {
                self.state.note_waker(context);
                if self.state.is_cut.get() {
                    return Poll::Ready(Ok(Next::Cut));
                }
                if self.clients.is_closing() || self.state.is_retired.get() {
                    return Poll::Ready(Ok(Next::Closing));
                }
                accepting
                    .as_mut()
                    .poll(context)
                    .map_ok(|request| request.map_or(Next::Cut, Next::Request))
            });
            match next.await? {
                Next::Request(resolver) => self.take(resolver),
                Next::Closing => return Ok(true),
                Next::Cut => return Ok(false),
            }
        }
    }

    /// Answers what has come, after the client was told that no more is taken.
    async fn finish(
        self: &Rc<Self>,
        connection: &mut Connection,
    ) -> Result<(), h3::error::ConnectionError> {
        while self.state.in_flight() > 0 {
            let mut accepting = pin!(connection.accept());
            let next = poll_fn(|context| {
                self.state.note_waker(context);
                if self.state.is_cut.get() {
                    return Poll::Ready(Ok(None));
                }
                match accepting.as_mut().poll(context) {
                    Poll::Pending if self.state.in_flight() == 0 => Poll::Ready(Ok(None)),
                    other => other,
                }
            });
            match next.await? {
                Some(resolver) => self.take(resolver),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    fn take(self: &Rc<Self>, resolver: Resolver) {
        if self.state.in_flight() >= STREAMS_MAX {
            // QUIC lets a client open the next stream as soon as it has taken one back.
            self.conduct.send_away("too many requests are under way");
            return;
        }
        let common = self.clone();
        spawn_local(async move {
            match common.answer(resolver).await {
                Ok(true) => common.conduct.note_answer(),
                Ok(false) => common.conduct.note_taken_back(),
                Err(error) => {
                    common.conduct.note_taken_back();
                    tracing::debug!(%error, "a request of HTTP/3 got no answer");
                }
            }
        });
    }

    /// Returns whether the client had its answer; it may have been too slow.
    async fn answer(&self, mut resolver: Resolver) -> Result<bool, StreamError> {
        let head = poll_fn(|context| resolver.frame_stream.poll_next(context));
        let limits = &self.clients.sequencer().shared.config.limits;
        let Ok(head) = timeout(limits.head_timeout, head).await else {
            resolver.frame_stream.reset(Code::H3_REQUEST_INCOMPLETE.value());
            return Ok(false);
        };
        let (request, stream) = resolver.accept_with_frame(head)?.resolve().await?;
        let (mut sending, receiving) = stream.split();
        let mut body = RequestBody { receiving, begun: Poll::Pending };
        poll_fn(|context| {
            body.look_for_end(context);
            Poll::Ready(())
        })
        .await;
        let request = request.map(|()| body);
        // It counts as being answered until the last byte is written.
        let mut answering = pin!(self.service.answer(request));
        let Ok(answer) = answering.as_mut().await;
        // A client that takes nothing off its connection.
        let writing = self.write(answer, &mut sending);
        match timeout(limits.idle_timeout, writing).await {
            Ok(written) => written.map(|()| true),
            Err(_) => Ok(false),
        }
    }

    async fn write(&self, answer: Answer, sending: &mut Sending) -> Result<(), StreamError> {
        let (mut parts, mut body) = answer.into_parts();
        // It is here already.
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
    Closing,
    Cut,
}

/// The body of a request.
struct RequestBody {
    receiving: Receiving,
    /// What was read of it before anybody asked: its end, for most requests.
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
