//! QUIC's streams for the HTTP/3 library, with limits. The library buffers whole frames, however
//! long they are. So this module limits the bytes of each stream, and disconnects a client that
//! exceeds a limit.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use h3::error::Code;
use h3::quic::{
    self, BidiStream, ConnectionErrorIncoming, StreamErrorIncoming, StreamId, WriteBuf,
};
use quinn::{ConnectionError, ReadError, VarInt, WriteError};

use super::control::Frames;
use super::limits::{BESIDE_LEN_MAX, REQUEST_LEN_MAX, TAKEN_BACK_MAX, TAKEN_BACK_PER_SECOND};
use crate::front::routes::body::Chunk;

/// Bytes charged for a stream that is not a request, in addition to its content.
const STREAM_COST: usize = 256;

/// Measures abuse: what a client may still do before it is disconnected.
#[derive(Debug)]
pub(super) struct AbuseMeter {
    connection: quinn::Connection,
    beside_left: Cell<usize>,
    taken_back: Cell<TakenBack>,
    /// Why the client was disconnected for abuse; `None` if it was not.
    sent_away: Cell<Option<&'static str>>,
}

/// How many requests the client may still cancel. Each answer raises the number, and passing time
/// raises it, too.
#[derive(Clone, Copy, Debug)]
struct TakenBack {
    left: u32,
    credited_at: Instant,
}

impl TakenBack {
    fn new(now: Instant) -> Self {
        Self { left: TAKEN_BACK_MAX, credited_at: now }
    }

    fn with_answer(self) -> Self {
        Self { left: (self.left + 1).min(TAKEN_BACK_MAX), ..self }
    }

    /// The state after one more cancelled request; `None` if the client has exceeded its limit.
    fn with_one_more(self, now: Instant) -> Option<Self> {
        const ONE: Duration = Duration::from_nanos(1_000_000_000 / TAKEN_BACK_PER_SECOND as u64);
        let passed = now.saturating_duration_since(self.credited_at);
        let earned = passed.as_nanos() / ONE.as_nanos();
        let (left, credited_at) = if earned + u128::from(self.left) >= u128::from(TAKEN_BACK_MAX) {
            (TAKEN_BACK_MAX, now)
        } else {
            // `earned` is less than `TAKEN_BACK_MAX`, so it fits.
            let earned = earned as u32;
            (self.left + earned, self.credited_at + ONE * earned)
        };
        Some(Self { left: left.checked_sub(1)?, credited_at })
    }
}

impl AbuseMeter {
    pub(super) fn new(connection: quinn::Connection) -> Rc<Self> {
        Rc::new(Self {
            connection,
            beside_left: Cell::new(BESIDE_LEN_MAX),
            taken_back: Cell::new(TakenBack::new(Instant::now())),
            sent_away: Cell::default(),
        })
    }

    /// Why the client was disconnected for abuse; `None` if it was not.
    pub(super) fn sent_away(&self) -> Option<&'static str> {
        self.sent_away.get()
    }

    /// Records that a request has arrived.
    fn record_request(&self) {
        self.beside_left.set(BESIDE_LEN_MAX);
    }

    /// Records that a request was answered.
    pub(super) fn record_answer(&self) {
        self.taken_back.set(self.taken_back.get().with_answer());
    }

    /// Records that a request was cancelled or failed.
    pub(super) fn record_taken_back(&self) {
        match self.taken_back.get().with_one_more(Instant::now()) {
            Some(taken_back) => self.taken_back.set(taken_back),
            None => self.send_away("too many requests were taken back"),
        }
    }

    fn record_beside(&self, bytes: usize) {
        match self.beside_left.get().checked_sub(bytes) {
            Some(left) => self.beside_left.set(left),
            None => self.send_away("too much came beside requests"),
        }
    }

    /// Closes the connection because of abuse.
    pub(super) fn send_away(&self, reason: &'static str) {
        if self.sent_away.get().is_none() {
            self.sent_away.set(Some(reason));
            self.connection.close(var_int(Code::H3_EXCESSIVE_LOAD.value()), reason.as_bytes());
        }
    }
}

type Opening<T> = Pin<Box<dyn Future<Output = Result<T, ConnectionError>>>>;
type Bidi = (quinn::SendStream, quinn::RecvStream);

/// One QUIC connection.
pub(super) struct Connection {
    quic: quinn::Connection,
    abuse: Rc<AbuseMeter>,
    accepting_bidi: Option<Opening<Bidi>>,
    accepting_uni: Option<Opening<quinn::RecvStream>>,
    opener: Opener,
}

/// Opens the node's own streams, which carry no requests.
pub(super) struct Opener {
    quic: quinn::Connection,
    opening: Option<Opening<quinn::SendStream>>,
}

impl Connection {
    pub(super) fn new(quic: quinn::Connection, abuse: Rc<AbuseMeter>) -> Self {
        Self {
            opener: Opener::new(quic.clone()),
            quic,
            abuse,
            accepting_bidi: None,
            accepting_uni: None,
        }
    }
}

impl Opener {
    fn new(quic: quinn::Connection) -> Self {
        Self { quic, opening: None }
    }
}

impl quic::Connection<Chunk> for Connection {
    type RecvStream = RecvStream;
    type OpenStreams = Opener;

    fn poll_accept_recv(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<RecvStream, ConnectionErrorIncoming>> {
        let quic = &self.quic;
        let accepting = self.accepting_uni.get_or_insert_with(|| {
            let quic = quic.clone();
            Box::pin(async move { quic.accept_uni().await })
        });
        let accepted = ready!(accepting.as_mut().poll(context));
        self.accepting_uni = None;
        let stream = accepted.map_err(of_connection)?;
        self.abuse.record_beside(STREAM_COST);
        let allowed = Allowed::Beside(self.abuse.clone(), Frames::new());
        Poll::Ready(Ok(RecvStream { stream, allowed }))
    }

    fn poll_accept_bidi(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Stream, ConnectionErrorIncoming>> {
        let quic = &self.quic;
        let accepting = self.accepting_bidi.get_or_insert_with(|| {
            let quic = quic.clone();
            Box::pin(async move { quic.accept_bi().await })
        });
        let accepted = ready!(accepting.as_mut().poll(context));
        self.accepting_bidi = None;
        let (send, recv) = accepted.map_err(of_connection)?;
        self.abuse.record_request();
        Poll::Ready(Ok(Stream {
            send: SendStream::new(send),
            recv: RecvStream { stream: recv, allowed: Allowed::Bytes(REQUEST_LEN_MAX) },
        }))
    }

    fn opener(&self) -> Opener {
        Opener::new(self.quic.clone())
    }
}

impl quic::OpenStreams<Chunk> for Connection {
    type BidiStream = Stream;
    type SendStream = SendStream;

    fn poll_open_bidi(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Stream, StreamErrorIncoming>> {
        self.opener.poll_open_bidi(context)
    }

    fn poll_open_send(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<SendStream, StreamErrorIncoming>> {
        self.opener.poll_open_send(context)
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.opener.close(code, reason);
    }
}

impl quic::OpenStreams<Chunk> for Opener {
    type BidiStream = Stream;
    type SendStream = SendStream;

    fn poll_open_bidi(&mut self, _: &mut Context<'_>) -> Poll<Result<Stream, StreamErrorIncoming>> {
        unreachable!("a server of HTTP/3 opens no request")
    }

    fn poll_open_send(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<SendStream, StreamErrorIncoming>> {
        let quic = &self.quic;
        let opening = self.opening.get_or_insert_with(|| {
            let quic = quic.clone();
            Box::pin(async move { quic.open_uni().await })
        });
        let opened = ready!(opening.as_mut().poll(context));
        self.opening = None;
        let stream = opened.map_err(|error| of_stream(of_connection(error)))?;
        Poll::Ready(Ok(SendStream::new(stream)))
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.quic.close(var_int(code.value()), reason);
    }
}

/// A request's stream.
pub(super) struct Stream {
    send: SendStream,
    recv: RecvStream,
}

impl BidiStream<Chunk> for Stream {
    type SendStream = SendStream;
    type RecvStream = RecvStream;

    fn split(self) -> (SendStream, RecvStream) {
        (self.send, self.recv)
    }
}

impl quic::RecvStream for Stream {
    type Buf = Bytes;

    fn poll_data(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        self.recv.poll_data(context)
    }

    fn stop_sending(&mut self, error_code: u64) {
        self.recv.stop_sending(error_code);
    }

    fn recv_id(&self) -> StreamId {
        self.recv.recv_id()
    }
}

impl quic::SendStream<Chunk> for Stream {
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_ready(context)
    }

    fn send_data<T: Into<WriteBuf<Chunk>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        self.send.send_data(data)
    }

    fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_finish(context)
    }

    fn reset(&mut self, reset_code: u64) {
        self.send.reset(reset_code);
    }

    fn send_id(&self) -> StreamId {
        self.send.send_id()
    }
}

/// How many bytes a stream may still carry.
enum Allowed {
    /// This many more bytes.
    Bytes(usize),
    /// This stream shares a number of bytes with all streams that carry no requests. Its frames
    /// have a limited length.
    Beside(Rc<AbuseMeter>, Frames),
}

/// The receiving half of a stream.
pub(super) struct RecvStream {
    stream: quinn::RecvStream,
    allowed: Allowed,
}

impl quic::RecvStream for RecvStream {
    type Buf = Bytes;

    fn poll_data(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        // The future of a read keeps no state between polls, so a new one is made for each poll.
        let read = ready!(pin!(self.stream.read_chunk(usize::MAX, true)).poll(context));
        let Some(chunk) = read.map_err(of_read)?.map(|chunk| chunk.bytes) else {
            return Poll::Ready(Ok(None));
        };
        match &mut self.allowed {
            Allowed::Bytes(left) => {
                let Some(rest) = left.checked_sub(chunk.len()) else {
                    let error_code = Code::H3_EXCESSIVE_LOAD.value();
                    self.stop_sending(error_code);
                    return Poll::Ready(Err(StreamErrorIncoming::StreamTerminated { error_code }));
                };
                *left = rest;
            }
            Allowed::Beside(abuse, frames) => {
                abuse.record_beside(chunk.len());
                if frames.pass(&chunk).is_err() {
                    abuse.send_away("a control frame is too long");
                }
            }
        }
        Poll::Ready(Ok(Some(chunk)))
    }

    fn stop_sending(&mut self, error_code: u64) {
        // An error means that the stream has ended already.
        let _ = self.stream.stop(var_int(error_code));
    }

    fn recv_id(&self) -> StreamId {
        stream_id(self.stream.id())
    }
}

/// The sending half of a stream. If it is dropped before its end, the stream is reset, so that half
/// an answer never looks like a whole one. There is one exception: a stream on which a single frame
/// was written whole ends normally. That frame is the HTTP/3 library's answer to a head that is too
/// long.
pub(super) struct SendStream {
    stream: quinn::SendStream,
    writing: Option<WriteBuf<Chunk>>,
    frames: u32,
    is_over: bool,
}

impl SendStream {
    fn new(stream: quinn::SendStream) -> Self {
        Self { stream, writing: None, frames: 0, is_over: false }
    }
}

impl quic::SendStream<Chunk> for SendStream {
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        if let Some(data) = &mut self.writing {
            while data.has_remaining() {
                let writing = Pin::new(&mut self.stream).poll_write(context, data.chunk());
                let written = ready!(writing).map_err(of_write)?;
                data.advance(written);
            }
        }
        self.writing = None;
        Poll::Ready(Ok(()))
    }

    fn send_data<T: Into<WriteBuf<Chunk>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        assert!(self.writing.is_none(), "a frame was written over another");
        self.writing = Some(data.into());
        self.frames += 1;
        Ok(())
    }

    fn poll_finish(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.is_over = true;
        let finished = self.stream.finish();
        Poll::Ready(finished.map_err(|error| StreamErrorIncoming::Unknown(Box::new(error))))
    }

    fn reset(&mut self, reset_code: u64) {
        self.is_over = true;
        // An error means that the stream is reset already.
        let _ = self.stream.reset(var_int(reset_code));
    }

    fn send_id(&self) -> StreamId {
        stream_id(self.stream.id())
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        if self.frames == 1 && self.writing.is_none() {
            // An error means that the client has stopped the stream; then it needs no end.
            let _ = self.stream.finish();
        } else {
            // An error means that the client has stopped the stream; then it is reset already.
            let _ = self.stream.reset(var_int(Code::H3_REQUEST_CANCELLED.value()));
        }
    }
}

fn of_connection(error: ConnectionError) -> ConnectionErrorIncoming {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            ConnectionErrorIncoming::ApplicationClose { error_code: close.error_code.into() }
        }
        ConnectionError::TimedOut => ConnectionErrorIncoming::Timeout,
        error => ConnectionErrorIncoming::Undefined(Arc::new(error)),
    }
}

fn of_stream(connection_error: ConnectionErrorIncoming) -> StreamErrorIncoming {
    StreamErrorIncoming::ConnectionErrorIncoming { connection_error }
}

fn of_read(error: ReadError) -> StreamErrorIncoming {
    match error {
        ReadError::Reset(code) => {
            StreamErrorIncoming::StreamTerminated { error_code: code.into_inner() }
        }
        ReadError::ConnectionLost(error) => of_stream(of_connection(error)),
        error => StreamErrorIncoming::Unknown(Box::new(error)),
    }
}

fn of_write(error: WriteError) -> StreamErrorIncoming {
    match error {
        WriteError::Stopped(code) => {
            StreamErrorIncoming::StreamTerminated { error_code: code.into_inner() }
        }
        WriteError::ConnectionLost(error) => of_stream(of_connection(error)),
        error => StreamErrorIncoming::Unknown(Box::new(error)),
    }
}

fn stream_id(id: quinn::StreamId) -> StreamId {
    let id = StreamId::try_from(u64::from(VarInt::from(id)));
    id.unwrap_or_else(|_| unreachable!("ids of QUIC are ids of HTTP/3"))
}

fn var_int(value: u64) -> VarInt {
    VarInt::from_u64(value).unwrap_or(VarInt::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_taken_back_at_a_rate_and_at_once_only_so_many() {
        let start = Instant::now();
        let take = |from: TakenBack, count: u32, now: Instant| {
            (0..count).try_fold(from, |it, _| it.with_one_more(now))
        };
        let none = take(TakenBack::new(start), TAKEN_BACK_MAX, start).unwrap();
        assert!(none.with_one_more(start).is_none());
        assert!(none.with_answer().with_one_more(start).is_some());
        let later = start + Duration::from_millis(10);
        let earned = TAKEN_BACK_PER_SECOND / 100;
        assert!(take(none, earned, later).is_some());
        assert!(take(none, earned + 1, later).is_none());
        // After a minute the client may cancel `TAKEN_BACK_MAX` requests again, but not more.
        let much_later = start + Duration::from_mins(1);
        let none = take(none, TAKEN_BACK_MAX, much_later).unwrap();
        assert!(none.with_one_more(much_later).is_none());
        let (mut left, mut now) = (none, much_later);
        for _ in 0..1_000 {
            now += Duration::from_micros(200);
            left = left.with_one_more(now).expect("as fast as it is earned");
        }
        assert!(left.with_one_more(now).is_none());
    }
}
