//! A connection to a peer, plain or TLS. A plain connection is tokio's socket without another
//! layer. Before a connection is split, it can move to another thread.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use epicepoch_certs::rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio_rustls::TlsStream;

/// A connection to a peer.
#[derive(Debug)]
pub(crate) enum PeerStream {
    /// Plain TCP. It proves nothing about the other end.
    Plain(TcpStream),
    /// TLS: the other end has shown a certificate.
    Secured(Box<Secured>),
}

/// A detached stream: a connection that moves to another thread. No event loop watches it.
#[derive(Debug)]
pub(crate) enum DetachedStream {
    /// See [`PeerStream::Plain`].
    Plain(std::net::TcpStream),
    /// See [`PeerStream::Secured`].
    Secured(Box<Secured>),
}

/// A TLS session and its socket.
#[derive(Debug)]
pub(crate) struct Secured {
    stream: TlsStream<Movable>,
    /// For the next write: how many of its bytes the TLS session has accepted, but the kernel has
    /// not.
    accepted: usize,
}

impl PeerStream {
    /// A TLS connection whose handshake is over.
    pub(super) fn secured(stream: impl Into<TlsStream<Movable>>) -> Self {
        Self::Secured(Box::new(Secured { stream: stream.into(), accepted: 0 }))
    }

    /// The certificate of the other end; `None` on a plain connection.
    pub(crate) fn certificate(&self) -> Option<&CertificateDer<'static>> {
        match self {
            Self::Plain(_) => None,
            Self::Secured(secured) => secured.stream.get_ref().1.peer_certificates()?.first(),
        }
    }

    /// The TCP socket.
    pub(crate) fn socket(&self) -> io::Result<&TcpStream> {
        match self {
            Self::Plain(stream) => Ok(stream),
            Self::Secured(secured) => secured.stream.get_ref().0.socket(),
        }
    }

    /// Removes the connection from this thread's event loop.
    pub(crate) fn detach(self) -> io::Result<DetachedStream> {
        Ok(match self {
            Self::Plain(stream) => DetachedStream::Plain(stream.into_std()?),
            Self::Secured(mut secured) => {
                secured.stream.get_mut().0.detach()?;
                DetachedStream::Secured(secured)
            }
        })
    }

    /// Splits the connection. One task must use both halves, because they share one waker.
    pub(crate) fn into_split(self) -> (PeerReader, PeerWriter) {
        match self {
            Self::Plain(stream) => {
                let (reader, writer) = stream.into_split();
                (PeerReader::Plain(reader), PeerWriter::Plain(writer))
            }
            Self::Secured(secured) => {
                let secured = Rc::new(RefCell::new(secured));
                (PeerReader::Secured(secured.clone()), PeerWriter::Secured(secured))
            }
        }
    }
}

impl DetachedStream {
    /// Adds the connection to this thread's event loop.
    pub(crate) fn attach(self) -> io::Result<PeerStream> {
        Ok(match self {
            Self::Plain(stream) => {
                stream.set_nonblocking(true)?;
                PeerStream::Plain(TcpStream::from_std(stream)?)
            }
            Self::Secured(mut secured) => {
                secured.stream.get_mut().0.attach()?;
                PeerStream::Secured(secured)
            }
        })
    }
}

impl From<std::net::TcpStream> for DetachedStream {
    fn from(stream: std::net::TcpStream) -> Self {
        Self::Plain(stream)
    }
}

/// The half that reads from a peer.
#[derive(Debug)]
pub(crate) enum PeerReader {
    Plain(OwnedReadHalf),
    Secured(Rc<RefCell<Box<Secured>>>),
}

/// The half that writes to a peer.
#[derive(Debug)]
pub(crate) enum PeerWriter {
    Plain(OwnedWriteHalf),
    Secured(Rc<RefCell<Box<Secured>>>),
}

impl PeerWriter {
    /// Writes the bytes that the kernel accepts at once, and returns how many; `WouldBlock` if it
    /// accepts none. The next write must begin with the remaining bytes, unchanged.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(writer) => writer.try_write(bytes),
            Self::Secured(secured) => {
                let mut context = Context::from_waker(Waker::noop());
                match secured.borrow_mut().poll_write(&mut context, bytes) {
                    Poll::Ready(written) => written,
                    Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
                }
            }
        }
    }

    /// Waits until the next write may succeed. With TLS this returns at once, because only a write
    /// can tell.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Plain(writer) => writer.writable().await,
            Self::Secured(_) => Ok(()),
        }
    }

    /// Writes after [`Self::writable`]. Returns `None` if the socket still accepted no bytes.
    pub(crate) fn poll_send(
        &self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<Option<usize>>> {
        match self {
            Self::Plain(writer) => Poll::Ready(match writer.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                written => written.map(Some),
            }),
            Self::Secured(secured) => secured.borrow_mut().poll_write(context, bytes).map_ok(Some),
        }
    }
}

impl Secured {
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, out)
    }

    /// Ready when the kernel has accepted the bytes. The session then holds no bytes, so no flush
    /// is needed. If this is not ready, the next call must pass the same bytes again; more bytes
    /// may follow them.
    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut stream = Pin::new(&mut self.stream);
        if self.accepted == 0 {
            self.accepted = ready!(stream.as_mut().poll_write(context, bytes))?;
        }
        ready!(stream.poll_flush(context))?;
        Poll::Ready(Ok(std::mem::take(&mut self.accepted)))
    }
}

impl AsyncRead for PeerReader {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(reader) => Pin::new(reader).poll_read(context, out),
            Self::Secured(secured) => secured.borrow_mut().poll_read(context, out),
        }
    }
}

impl AsyncWrite for PeerWriter {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(writer) => Pin::new(writer).poll_write(context, bytes),
            Self::Secured(secured) => secured.borrow_mut().poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(writer) => Pin::new(writer).poll_shutdown(context),
            Self::Secured(secured) => {
                Pin::new(&mut secured.borrow_mut().stream).poll_shutdown(context)
            }
        }
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, out),
            Self::Secured(secured) => secured.poll_read(context, out),
        }
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Secured(secured) => secured.poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Secured(secured) => Pin::new(&mut secured.stream).poll_shutdown(context),
        }
    }
}

/// A socket below a TLS session. It can move to another event loop.
#[derive(Debug)]
pub(crate) enum Movable {
    /// The event loop of this thread watches the socket.
    Attached(TcpStream),
    /// No event loop watches the socket.
    Detached(std::net::TcpStream),
    /// The socket was lost when a move failed.
    Lost,
}

impl Movable {
    fn socket(&self) -> io::Result<&TcpStream> {
        match self {
            Self::Attached(stream) => Ok(stream),
            Self::Detached(_) | Self::Lost => Err(not_here()),
        }
    }

    fn socket_mut(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        match self {
            Self::Attached(stream) => Ok(Pin::new(stream)),
            Self::Detached(_) | Self::Lost => Err(not_here()),
        }
    }

    fn detach(&mut self) -> io::Result<()> {
        let Self::Attached(stream) = std::mem::replace(self, Self::Lost) else {
            return Err(not_here());
        };
        *self = Self::Detached(stream.into_std()?);
        Ok(())
    }

    fn attach(&mut self) -> io::Result<()> {
        let Self::Detached(stream) = std::mem::replace(self, Self::Lost) else {
            return Err(not_here());
        };
        *self = Self::Attached(TcpStream::from_std(stream)?);
        Ok(())
    }
}

fn not_here() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the connection is moving to another thread")
}

impl AsyncRead for Movable {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.get_mut().socket_mut()?.poll_read(context, out)
    }
}

impl AsyncWrite for Movable {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().socket_mut()?.poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().socket_mut()?.poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().socket_mut()?.poll_shutdown(context)
    }
}
