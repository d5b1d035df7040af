//! A client's socket, plain or TLS. Protocols read and write both in the same way; no other module
//! deals with TLS records.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use epicepoch_certs::config::ALPN_FORWARD;
use epicepoch_certs::rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A client's socket.
#[derive(Debug)]
pub(crate) enum Socket {
    /// The plain TCP socket.
    Plain(TcpStream),
    /// A TLS connection after its handshake.
    Secured(Box<Secured>),
}

/// A TLS connection after its handshake.
#[derive(Debug)]
pub(crate) struct Secured {
    stream: TlsStream<TcpStream>,
    /// Bytes that were peeked at. The next read returns them first.
    ahead: [u8; AHEAD_LEN_MAX],
    ahead_len: usize,
}

/// At most this many bytes can be peeked at.
pub(crate) const AHEAD_LEN_MAX: usize = 64;

impl Socket {
    /// Wraps a TLS connection after its handshake.
    pub(crate) fn secured(stream: TlsStream<TcpStream>) -> Self {
        Self::Secured(Box::new(Secured { stream, ahead: [0; AHEAD_LEN_MAX], ahead_len: 0 }))
    }

    /// The certificate of a node that sends requests on. `None` on the connection of a client, also
    /// of one with a certificate.
    pub(crate) fn certificate_of_forwarder(&self) -> Option<&CertificateDer<'static>> {
        let Self::Secured(secured) = self else { return None };
        let session = secured.stream.get_ref().1;
        let is_forwarder = session.alpn_protocol() == Some(ALPN_FORWARD);
        session.peer_certificates().filter(|_| is_forwarder)?.first()
    }

    /// Copies the first bytes into `bytes` and returns how many. A later read returns these bytes
    /// again. Returns 0 at the end of the connection.
    ///
    /// # Errors
    /// When the connection is lost.
    pub(crate) fn poll_peek(
        &mut self,
        context: &mut Context<'_>,
        bytes: &mut [u8; AHEAD_LEN_MAX],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(stream) => stream.poll_peek(context, &mut ReadBuf::new(bytes)),
            Self::Secured(secured) => {
                if secured.ahead_len == 0 {
                    let mut buffer = ReadBuf::new(&mut secured.ahead);
                    ready!(Pin::new(&mut secured.stream).poll_read(context, &mut buffer))?;
                    secured.ahead_len = buffer.filled().len();
                }
                *bytes = secured.ahead;
                Poll::Ready(Ok(secured.ahead_len))
            }
        }
    }

    /// Reads once and puts the new bytes behind `held`, the bytes of an earlier read. Copies `held`
    /// to the beginning of `scratch`, which is longer, and returns the length of both together. At
    /// the end of the connection that is the length of `held`.
    ///
    /// # Errors
    /// When the connection is lost.
    #[inline]
    pub(crate) fn poll_read_behind(
        &mut self,
        context: &mut Context<'_>,
        held: &[u8],
        scratch: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        scratch[..held.len()].copy_from_slice(held);
        let mut buffer = ReadBuf::new(&mut scratch[held.len()..]);
        ready!(Pin::new(self).poll_read(context, &mut buffer))?;
        Poll::Ready(Ok(held.len() + buffer.filled().len()))
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Secured(secured) if secured.ahead_len > 0 => {
                let length = secured.ahead_len.min(buffer.remaining());
                buffer.put_slice(&secured.ahead[..length]);
                secured.ahead.copy_within(length..secured.ahead_len, 0);
                secured.ahead_len -= length;
                Poll::Ready(Ok(()))
            }
            Self::Secured(secured) => Pin::new(&mut secured.stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Secured(secured) => Pin::new(&mut secured.stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Secured(secured) => {
                Pin::new(&mut secured.stream).poll_write_vectored(context, slices)
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Secured(secured) => secured.stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Secured(secured) => Pin::new(&mut secured.stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Secured(secured) => Pin::new(&mut secured.stream).poll_shutdown(context),
        }
    }
}
