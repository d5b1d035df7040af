//! Adapts the QUIC streams of quinn to the traits of the `h3` crate, for a client. It sets no
//! limits of its own. It stores only the stream that is being opened and the frame that is being
//! written.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use h3::error::Code;
use h3::quic::{
    self, BidiStream, ConnectionErrorIncoming, StreamErrorIncoming, StreamId, WriteBuf,
};
use quinn::{ConnectionError, ReadError, VarInt};

type Opening = Pin<Box<dyn Future<Output = Result<Stream, ConnectionError>> + Send>>;

/// One QUIC connection. A clone opens streams of the same connection.
pub struct Connection {
    quic: quinn::Connection,
    opening: Option<Opening>,
    accepting: Option<Opening>,
}

impl Connection {
    /// Wraps an open connection.
    #[must_use]
    pub fn new(quic: quinn::Connection) -> Self {
        Self { quic, opening: None, accepting: None }
    }
}

impl Clone for Connection {
    fn clone(&self) -> Self {
        Self::new(self.quic.clone())
    }
}

/// Polls the future in `place`. If there is none, `begin` makes one. Clears `place` when it is
/// ready.
fn poll_in(
    place: &mut Option<Opening>,
    context: &mut Context<'_>,
    begin: impl FnOnce() -> Opening,
) -> Poll<Result<Stream, ConnectionErrorIncoming>> {
    let result = ready!(place.get_or_insert_with(begin).as_mut().poll(context));
    *place = None;
    Poll::Ready(result.map_err(|error| ConnectionErrorIncoming::Undefined(Arc::new(error))))
}

impl quic::Connection<Bytes> for Connection {
    type RecvStream = Stream;
    type OpenStreams = Self;

    fn poll_accept_recv(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Stream, ConnectionErrorIncoming>> {
        let quic = &self.quic;
        poll_in(&mut self.accepting, context, || {
            let quic = quic.clone();
            Box::pin(
                async move { quic.accept_uni().await.map(|recv| Stream::new(None, Some(recv))) },
            )
        })
    }

    /// A server may not open a request stream, so this never returns one. If a server opens one
    /// anyway, it stays in quinn.
    fn poll_accept_bidi(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<Result<Stream, ConnectionErrorIncoming>> {
        Poll::Pending
    }

    fn opener(&self) -> Self {
        self.clone()
    }
}

impl quic::OpenStreams<Bytes> for Connection {
    type BidiStream = Stream;
    type SendStream = Stream;

    fn poll_open_bidi(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Stream, StreamErrorIncoming>> {
        let quic = &self.quic;
        let opened = poll_in(&mut self.opening, context, || {
            let quic = quic.clone();
            Box::pin(async move {
                quic.open_bi().await.map(|(send, recv)| Stream::new(Some(send), Some(recv)))
            })
        });
        opened.map_err(of_stream)
    }

    fn poll_open_send(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Stream, StreamErrorIncoming>> {
        let quic = &self.quic;
        let opened = poll_in(&mut self.opening, context, || {
            let quic = quic.clone();
            Box::pin(async move { quic.open_uni().await.map(|send| Stream::new(Some(send), None)) })
        });
        opened.map_err(of_stream)
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.quic.close(var_int(code.value()), reason);
    }
}

/// A stream, or one half of it.
pub struct Stream {
    send: Option<quinn::SendStream>,
    recv: Option<quinn::RecvStream>,
    writing: Option<WriteBuf<Bytes>>,
}

impl Stream {
    fn new(send: Option<quinn::SendStream>, recv: Option<quinn::RecvStream>) -> Self {
        Self { send, recv, writing: None }
    }

    fn send(&mut self) -> &mut quinn::SendStream {
        self.send.as_mut().expect("only a stream that can send is used to send")
    }

    fn recv(&mut self) -> &mut quinn::RecvStream {
        self.recv.as_mut().expect("only a stream that can receive is used to receive")
    }
}

impl BidiStream<Bytes> for Stream {
    type SendStream = Self;
    type RecvStream = Self;

    fn split(self) -> (Self, Self) {
        (Self { recv: None, ..self }, Self::new(None, self.recv))
    }
}

impl quic::RecvStream for Stream {
    type Buf = Bytes;

    fn poll_data(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        // The future of `read_chunk` keeps no state between polls, so each poll can make a new one.
        let read = ready!(pin!(self.recv().read_chunk(usize::MAX, true)).poll(context));
        Poll::Ready(match read {
            Ok(chunk) => Ok(chunk.map(|chunk| chunk.bytes)),
            Err(ReadError::Reset(code)) => {
                Err(StreamErrorIncoming::StreamTerminated { error_code: code.into_inner() })
            }
            Err(error) => Err(StreamErrorIncoming::Unknown(Box::new(error))),
        })
    }

    fn stop_sending(&mut self, code: u64) {
        // An error means that the stream has already ended, so it need not be stopped.
        let _ = self.recv().stop(var_int(code));
    }

    fn recv_id(&self) -> StreamId {
        stream_id(self.recv.as_ref().map(quinn::RecvStream::id))
    }
}

impl quic::SendStream<Bytes> for Stream {
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        if let Some(mut data) = self.writing.take() {
            while data.has_remaining() {
                match Pin::new(self.send()).poll_write(context, data.chunk()) {
                    Poll::Ready(written) => data.advance(written.map_err(unknown)?),
                    Poll::Pending => {
                        self.writing = Some(data);
                        return Poll::Pending;
                    }
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        assert!(self.writing.is_none(), "a frame was written over another");
        self.writing = Some(data.into());
        Ok(())
    }

    fn poll_finish(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        Poll::Ready(self.send().finish().map_err(unknown))
    }

    fn reset(&mut self, code: u64) {
        // An error means that the stream is already reset.
        let _ = self.send().reset(var_int(code));
    }

    fn send_id(&self) -> StreamId {
        stream_id(self.send.as_ref().map(quinn::SendStream::id))
    }
}

fn of_stream(connection_error: ConnectionErrorIncoming) -> StreamErrorIncoming {
    StreamErrorIncoming::ConnectionErrorIncoming { connection_error }
}

fn unknown(error: impl std::error::Error + Send + Sync + 'static) -> StreamErrorIncoming {
    StreamErrorIncoming::Unknown(Box::new(error))
}

fn stream_id(id: Option<quinn::StreamId>) -> StreamId {
    let id = id.map(|id| u64::from(VarInt::from(id)));
    id.and_then(|id| StreamId::try_from(id).ok()).expect("ids of QUIC are ids of HTTP/3")
}

fn var_int(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}
