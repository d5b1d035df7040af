//! Connections to nodes, plain or with TLS. This module never retries. Of the protocol that a
//! connection will carry, it knows only the name for the TLS handshake.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream as BlockingStream};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use epicepoch_certs::rustls::pki_types::ServerName;
use epicepoch_certs::rustls::{self, ClientConfig, ClientConnection, StreamOwned};
use epicepoch_wire::native::Token;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::tls::Tls;
use crate::token::TokenSource;

/// The protocol of a connection, as the TLS handshake names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alpn {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
    /// The native protocol.
    Native,
}

impl Alpn {
    fn name(self) -> &'static [u8] {
        match self {
            Self::Http1 => epicepoch_certs::config::ALPN_HTTP1,
            Self::Http2 => epicepoch_certs::config::ALPN_H2,
            Self::Native => epicepoch_certs::config::ALPN_NATIVE,
        }
    }
}

/// Opens connections for one protocol.
#[derive(Clone)]
pub struct Dialer {
    tls: Option<(Tls, Arc<ClientConfig>)>,
    token: Option<TokenSource>,
}

impl Dialer {
    /// Creates a dialer for the protocol `alpn`. It uses TLS if `tls` is given.
    #[must_use]
    pub fn new(tls: Option<&Tls>, alpn: Alpn) -> Self {
        Self { tls: tls.map(|tls| (tls.clone(), tls.config(alpn.name()))), token: None }
    }

    /// Adds the token that the protocol over the connection will send.
    #[must_use]
    pub fn with_token(self, token: Option<Token>) -> Self {
        self.with_token_source(token.map(TokenSource::from))
    }

    /// Adds a source of tokens, for a token that may change.
    #[must_use]
    pub fn with_token_source(self, token: Option<TokenSource>) -> Self {
        Self { token, ..self }
    }

    /// Returns the current token, if there is one.
    #[must_use]
    pub fn token(&self) -> Option<Token> {
        self.token.as_ref()?.token()
    }

    /// Connects to `addr`, which is `host:port`, with Nagle's algorithm off.
    ///
    /// # Errors
    /// No connection can be made, or the handshake fails.
    pub async fn dial(&self, addr: &str) -> io::Result<Socket> {
        self.secure(TcpStream::connect(addr).await?, addr).await
    }

    /// Connects to `addr`. The node's certificate must be for the host of `name`, which is
    /// `host:port`.
    ///
    /// # Errors
    /// No connection can be made, or the handshake fails.
    pub async fn dial_at(&self, addr: SocketAddr, name: &str) -> io::Result<Socket> {
        self.secure(TcpStream::connect(addr).await?, name).await
    }

    async fn secure(&self, stream: TcpStream, name: &str) -> io::Result<Socket> {
        stream.set_nodelay(true)?;
        let Some((tls, config)) = &self.tls else { return Ok(Socket::Plain(stream)) };
        let files = tls.clone();
        // The certificate files are read again on another thread, because a file system may hang.
        // If the runtime is ending, they are not read again.
        let _ = tokio::task::spawn_blocking(move || files.refresh()).await;
        let connector = TlsConnector::from(config.clone());
        let secured = connector.connect(host(name)?, stream).await.map_err(no_tls)?;
        Ok(Socket::Secured(Box::new(secured)))
    }

    /// Adds TLS to an open blocking connection, if TLS is set. The node's certificate must be for
    /// the host of `name`, which is `host:port`. The handshake takes place at the first read or
    /// write, with the timeouts of `stream`.
    ///
    /// # Errors
    /// `name` cannot be a name in a certificate.
    pub fn secure_blocking(
        &self,
        stream: BlockingStream,
        name: &str,
    ) -> io::Result<BlockingSocket> {
        let Some((tls, config)) = &self.tls else { return Ok(BlockingSocket::Plain(stream)) };
        tls.refresh();
        let session = ClientConnection::new(config.clone(), host(name)?);
        let session = session.map_err(io::Error::other)?;
        Ok(BlockingSocket::Secured(Box::new(StreamOwned::new(session, stream))))
    }
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_tls = self.tls.is_some();
        out.debug_struct("Dialer").field("is_tls", &is_tls).field("token", &self.token).finish()
    }
}

/// Returns the host of `host:port`, as the name that the node's certificate must have.
fn host(addr: &str) -> io::Result<ServerName<'static>> {
    let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host);
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let name = ServerName::try_from(bare.to_owned());
    name.map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "no name of a certificate"))
}

/// Adds advice for the user to the error of a TLS handshake.
fn no_tls(error: io::Error) -> io::Error {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let advice = match tls {
        Some(rustls::Error::InvalidCertificate(_)) => {
            "the node's certificate is not one of the authority given, for this host, and valid now"
        }
        Some(rustls::Error::InvalidMessage(_)) => "the node speaks no TLS there (CLIENT_TLS)",
        Some(rustls::Error::AlertReceived(_)) => {
            "the node refuses; it may ask for a certificate (CLIENT_CA_FILE)"
        }
        _ => return error,
    };
    io::Error::new(error.kind(), format!("{error}: {advice}"))
}

/// A connection.
#[derive(Debug)]
pub enum Socket {
    /// Plain TCP.
    Plain(TcpStream),
    /// TLS.
    Secured(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            // In TLS 1.3 the client's handshake ends before the server checks the client's
            // certificate. So a refusal arrives with the first read.
            Self::Secured(stream) => Pin::new(stream).poll_read(context, buffer).map_err(no_tls),
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
            Self::Secured(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Secured(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Secured(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// A blocking connection.
#[derive(Debug)]
pub enum BlockingSocket {
    /// Plain TCP.
    Plain(BlockingStream),
    /// TLS.
    Secured(Box<StreamOwned<ClientConnection, BlockingStream>>),
}

impl BlockingSocket {
    /// Returns the TCP connection, so that the caller can set its timeouts.
    #[must_use]
    pub fn tcp(&self) -> &BlockingStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Secured(stream) => &stream.sock,
        }
    }
}

impl Read for BlockingSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Secured(stream) => stream.read(buffer).map_err(no_tls),
        }
    }
}

impl Write for BlockingSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Secured(stream) => stream.write(bytes).map_err(no_tls),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Secured(stream) => stream.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_an_address_is_what_a_certificate_names() {
        for (addr, expected) in
            [("n1:80", "n1"), ("127.0.0.1:80", "127.0.0.1"), ("[::1]:80", "::1")]
        {
            assert_eq!(host(addr).unwrap().to_str(), expected);
        }
        assert!(host("a b:80").is_err());
    }
}
