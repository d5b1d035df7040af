//! A peer's connection, plain or secured, as links read and write it. Plain, it is tokio's own socket
//! and its halves, and nothing is between. It can be carried to another thread before it is split.

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

/// See the module.
#[derive(Debug)]
pub(crate) enum PeerStream {
    /// Nothing is proved by it.
    Plain(TcpStream),
    /// The other end has shown a certificate.
    Secured(Box<Secured>),
}

/// A connection between two threads: no event loop watches it.
#[derive(Debug)]
pub(crate) enum Parcel {
    /// See [`PeerStream::Plain`].
    Plain(std::net::TcpStream),
    /// See [`PeerStream::Secured`].
    Secured(Box<Secured>),
}

/// A session and its socket.
#[derive(Debug)]
pub(crate) struct Secured {
    stream: TlsStream<Movable>,
    /// Bytes of the next write that the session has taken and the kernel has not.
    accepted: usize,
}

impl PeerStream {
    /// A connection whose handshake is over.
    pub(super) fn secured(stream: impl Into<TlsStream<Movable>>) -> Self {
        Self::Secured(Box::new(Secured { stream: stream.into(), accepted: 0 }))
    }

    /// What the other end has shown; `None` on a plain connection.
    pub(crate) fn certificate(&self) -> Option<&CertificateDer<'static>> {
        match self {
            Self::Plain(_) => None,
            Self::Secured(secured) => secured.stream.get_ref().1.peer_certificates()?.first(),
        }
    }

    /// The socket.
    pub(crate) fn socket(&self) -> io::Result<&TcpStream> {
        match self {
            Self::Plain(stream) => Ok(stream),
            Self::Secured(secured) => secured.stream.get_ref().0.socket(),
        }
    }

    /// Takes it from this thread's event loop.
    pub(crate) fn pack(self) -> io::Result<Parcel> {
        Ok(match self {
            Self::Plain(stream) => Parcel::Plain(stream.into_std()?),
            Self::Secured(mut secured) => {
                secured.stream.get_mut().0.pack()?;
                Parcel::Secured(secured)
            }
        })
    }

    /// The two directions, for one task: they wake the same one.
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

impl Parcel {
    /// Gives it to this thread's event loop.
    pub(crate) fn unpack(self) -> io::Result<PeerStream> {
        Ok(match self {
            Self::Plain(stream) => {
                stream.set_nonblocking(true)?;
                PeerStream::Plain(TcpStream::from_std(stream)?)
            }
            Self::Secured(mut secured) => {
                secured.stream.get_mut().0.unpack()?;
                PeerStream::Secured(secured)
            }
        })
    }
}

impl From<std::net::TcpStream> for Parcel {
    fn from(stream: std::net::TcpStream) -> Self {
        Self::Plain(stream)
    }
}

/// What comes from a peer.
#[derive(Debug)]
pub(crate) enum PeerReader {
    Plain(OwnedReadHalf),
    Secured(Rc<RefCell<Box<Secured>>>),
}

/// What goes to a peer.
#[derive(Debug)]
pub(crate) enum PeerWriter {
    Plain(OwnedWriteHalf),
    Secured(Rc<RefCell<Box<Secured>>>),
}

impl PeerWriter {
    /// Writes what the kernel takes at once; `WouldBlock` if that is nothing. What was not taken has
    /// to be written next, as it was.
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

    /// Ready when it makes sense to write again: at once where only a write can tell.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Plain(writer) => writer.writable().await,
            Self::Secured(_) => Ok(()),
        }
    }

    /// [`Self::try_write`] behind [`Self::writable`]; `None` when that was not so.
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

    /// Ready when the kernel has what it says was written: a session keeps nothing back, so that
    /// whoever has written need not come again to flush. Until then the same bytes have to be
    /// given again, and more may follow them.
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

/// A socket that can change its event loop under a session.
#[derive(Debug)]
pub(crate) enum Movable {
    /// The event loop of this thread watches it.
    Watched(TcpStream),
    /// Nobody does.
    Packed(std::net::TcpStream),
    /// It was lost on the way.
    Lost,
}

impl Movable {
    fn socket(&self) -> io::Result<&TcpStream> {
        match self {
            Self::Watched(stream) => Ok(stream),
            Self::Packed(_) | Self::Lost => Err(not_here()),
        }
    }

    fn socket_mut(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        match self {
            Self::Watched(stream) => Ok(Pin::new(stream)),
            Self::Packed(_) | Self::Lost => Err(not_here()),
        }
    }

    fn pack(&mut self) -> io::Result<()> {
        let Self::Watched(stream) = std::mem::replace(self, Self::Lost) else {
            return Err(not_here());
        };
        *self = Self::Packed(stream.into_std()?);
        Ok(())
    }

    fn unpack(&mut self) -> io::Result<()> {
        let Self::Packed(stream) = std::mem::replace(self, Self::Lost) else {
            return Err(not_here());
        };
        *self = Self::Watched(TcpStream::from_std(stream)?);
        Ok(())
    }
}

fn not_here() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the connection is on its way to another thread")
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
