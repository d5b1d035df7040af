//! Connections to nodes, plain or with TLS. This module never retries. Of the protocol that a
//! connection will carry, it knows only the name for the TLS handshake.

use std::error::Error as StdError;
use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream as BlockingStream};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use epicepoch_certs::rustls::pki_types::ServerName;
use epicepoch_certs::rustls::{
    self, AlertDescription as Alert, CertificateError, ClientConfig, ClientConnection, StreamOwned,
};
use epicepoch_wire::native::Token;
use socket2::SockRef;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::clock::{DURATION_MAX, now};
use crate::race::{connect, next_after};
use crate::resolver::{Resolver, SlowLookup};
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
    resolver: Arc<Resolver>,
}

impl Dialer {
    /// Creates a dialer for the protocol `alpn`. It uses TLS if `tls` is given.
    #[must_use]
    pub fn new(tls: Option<&Tls>, alpn: Alpn) -> Self {
        Self {
            tls: tls.map(|tls| (tls.clone(), tls.config(alpn.name()))),
            token: None,
            resolver: Arc::default(),
        }
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

    /// Shares lookups of names with other dialers that have this resolver.
    pub(crate) fn with_resolver(self, resolver: Arc<Resolver>) -> Self {
        Self { resolver, ..self }
    }

    /// Whether connections have TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns the current token, if there is one.
    #[must_use]
    pub fn token(&self) -> Option<Token> {
        self.token.as_ref()?.token()
    }

    /// Connects to `addr`, which is `host:port`, with Nagle's algorithm off. If the host has
    /// several addresses and one does not answer soon, the next one is tried beside it. If the
    /// future is dropped during the lookup of the host, the lookup goes on, and the next attempt
    /// uses its result.
    ///
    /// # Errors
    /// No connection can be made, or the handshake fails.
    pub async fn dial(&self, addr: &str) -> io::Result<Socket> {
        self.dial_before(addr, now() + DURATION_MAX).await
    }

    /// Connects as [`Self::dial`] does, for a caller that drops the future at `until`. So the last
    /// address of the host is tried some time before `until`. A lookup that takes too long fails
    /// before `until`, so that the caller learns of it.
    ///
    /// # Errors
    /// No connection can be made, or the handshake fails. If the lookup takes too long, the error
    /// contains [`SlowLookup`].
    pub(crate) async fn dial_before(&self, addr: &str, until: Instant) -> io::Result<Socket> {
        let began = now();
        let time = until.saturating_duration_since(began);
        let lookup_until = began + time / TIME_PARTS * (TIME_PARTS - 1);
        let lookup = self.resolver.resolve(addr);
        let addrs = tokio::time::timeout_at(lookup_until.into(), lookup).await;
        let addrs = addrs.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, SlowLookup))??;
        let found = now();
        let rest = until.saturating_duration_since(found);
        // If the lookup took most of the time, the next attempt needs its answer: another lookup
        // would take most of the time again.
        let is_armed = rest > found.saturating_duration_since(began);
        let mut forgets = Forgets { resolver: &self.resolver, addr, is_armed };
        let next_after = next_after(addrs.len(), rest);
        let opened = async {
            let stream = connect(addrs, next_after, TcpStream::connect).await?;
            self.secure(stream, addr).await
        };
        let opened = opened.await;
        forgets.is_armed = opened.is_err();
        opened
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
        let secured = connector.connect(host(name)?, stream).await.map_err(explain)?;
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

/// Forgets the addresses of a name when it is dropped while armed: no connection could be made, or
/// the caller gave up. The node may have moved.
struct Forgets<'a> {
    resolver: &'a Resolver,
    addr: &'a str,
    is_armed: bool,
}

impl Drop for Forgets<'_> {
    fn drop(&mut self) {
        if self.is_armed {
            self.resolver.forget(self.addr);
        }
    }
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_tls = self.tls.is_some();
        let mut out = out.debug_struct("Dialer");
        out.field("is_tls", &is_tls).field("token", &self.token).finish_non_exhaustive()
    }
}

/// Returns the host of `host:port`, as the name that the node's certificate must have.
fn host(addr: &str) -> io::Result<ServerName<'static>> {
    let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host);
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let name = ServerName::try_from(bare.to_owned());
    name.map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "no name of a certificate"))
}

/// TLS with a node failed, and will fail again until a file, a name or a setting is corrected. The
/// text says what is wrong and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct TlsFailure(String);

impl TlsFailure {
    /// Returns the TLS failure that caused an error, if there is one.
    #[must_use]
    pub fn of<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref() {
                return Some(found);
            }
            // The source of an `io::Error` is not the error that it contains, but the source of
            // that one.
            next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
                Some(inner) => Some(inner),
                None => error.source(),
            };
        }
        None
    }
}

/// Returns the error of a TLS connection. If another attempt would fail in the same way, this is a
/// [`TlsFailure`] with advice for the user.
fn explain(error: io::Error) -> io::Error {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let text = match tls {
        None => return error,
        Some(rustls::Error::InvalidCertificate(why)) => untrusted(why),
        Some(rustls::Error::InvalidMessage(_)) => {
            "this port does not speak TLS: leave tls out of the options (--ca-file of a command), or \
             set CLIENT_TLS on the node"
                .into()
        }
        Some(rustls::Error::AlertReceived(alert)) => match alert {
            // The node is stopping, or is in trouble for a moment.
            Alert::CloseNotify | Alert::UserCanceled | Alert::InternalError => return error,
            Alert::CertificateExpired => {
                format!(
                    "{error}: this client's certificate has ended; renew it (epicepoch certs renew)"
                )
            }
            Alert::NoCertificate
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateUnknown
            | Alert::CertificateRequired
            | Alert::UnknownCA
            // The signature in the certificate is not of the node's authority of the same name.
            | Alert::DecryptError
            | Alert::AccessDenied => format!(
                "{error}: the node refuses this client's certificate, or asks for one \
                 (CLIENT_CA_FILE): give --cert-file and --key-file"
            ),
            // The alert itself says what the node does not accept, for example the protocol.
            _ => error.to_string(),
        },
        Some(_) => error.to_string(),
    };
    io::Error::new(error.kind(), TlsFailure(text))
}

/// Says why the certificate of a node is not accepted, and what to do.
fn untrusted(why: &CertificateError) -> String {
    match why {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "the node's certificate is not one of the authority given: give the ca.pem of this \
             cluster (--ca-file)"
                .to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => format!(
            "the node's certificate has expired ({why}): renew it (epicepoch certs renew), or \
             correct this machine's clock"
        ),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => format!(
            "the node's certificate is not valid yet ({why}): correct the clock of this machine or of \
             the one that made it"
        ),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!(
                "the node's certificate has another name ({why}): use one of its names, or make one \
                 with this name (epicepoch certs node)"
            )
        }
        why => format!("the node's certificate cannot be used: {why}"),
    }
}

/// A connection.
#[derive(Debug)]
pub enum Socket {
    /// Plain TCP.
    Plain(TcpStream),
    /// TLS.
    Secured(Box<TlsStream<TcpStream>>),
}

impl Socket {
    /// Whether nothing has arrived that was not read: no byte, no end and no error.
    ///
    /// The kernel is asked, because the runtime may not have looked for a while. With TLS the kernel
    /// may have records without data, such as session tickets. Then the connection counts as not
    /// quiet, too: it is rare, and a new connection is always right.
    pub(crate) async fn is_quiet(&mut self) -> bool {
        match self {
            Self::Plain(stream) => has_nothing(stream),
            Self::Secured(stream) => {
                let mut byte = [0];
                let mut buffer = ReadBuf::new(&mut byte);
                // A task that has used its budget would find every stream quiet.
                let read = tokio::task::unconstrained(poll_fn(|context| {
                    Poll::Ready(Pin::new(&mut *stream).poll_read(context, &mut buffer))
                }));
                read.await.is_pending() && has_nothing(stream.get_ref().0)
            }
        }
    }
}

/// Whether the kernel has nothing for a connection: no byte, no end and no error.
fn has_nothing(stream: &TcpStream) -> bool {
    let peeked = SockRef::from(stream).peek(&mut [MaybeUninit::uninit()]);
    peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
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
            Self::Secured(stream) => Pin::new(stream).poll_read(context, buffer).map_err(explain),
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
            Self::Secured(stream) => stream.read(buffer).map_err(explain),
        }
    }
}

impl Write for BlockingSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Secured(stream) => stream.write(bytes).map_err(explain),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Secured(stream) => stream.flush(),
        }
    }
}

/// A lookup fails when only the last of this many parts of the time is left, so that the caller
/// learns of it before it gives up. A connection would hardly be open in the time that is left.
const TIME_PARTS: u32 = 16;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::error::FailedAttempt;

    #[tokio::test]
    async fn addresses_that_refuse_are_looked_up_again_and_others_are_kept() {
        let (alive, gone) = (listening(), listening());
        let (well, moved) = (alive.local_addr().unwrap(), gone.local_addr().unwrap());
        drop(gone);
        let begun = Arc::new(AtomicUsize::new(0));
        let count = begun.clone();
        let resolver = Resolver::with(move |_| {
            Ok(vec![if count.fetch_add(1, Ordering::SeqCst) == 0 { moved } else { well }])
        });
        let dialer = Dialer::new(None, Alpn::Native).with_resolver(Arc::new(resolver));
        dialer.dial("n2:1").await.expect_err("nothing listens there any more");
        dialer.dial("n2:1").await.unwrap();
        dialer.dial("n2:1").await.unwrap();
        assert_eq!(begun.load(Ordering::SeqCst), 2);
    }

    fn listening() -> std::net::TcpListener {
        std::net::TcpListener::bind("127.0.0.1:0").unwrap()
    }

    #[test]
    fn the_host_of_an_address_is_what_a_certificate_names() {
        for (addr, expected) in
            [("n1:80", "n1"), ("127.0.0.1:80", "127.0.0.1"), ("[::1]:80", "::1")]
        {
            assert_eq!(host(addr).unwrap().to_str(), expected);
        }
        assert!(host("a b:80").is_err());
    }

    #[test]
    fn a_failure_that_only_an_operator_can_end_is_told_from_one_that_passes() {
        let explained = |error: rustls::Error| {
            let error = explain(io::Error::new(io::ErrorKind::InvalidData, error));
            TlsFailure::of(&error).map(ToString::to_string)
        };
        let certificate = |why| explained(rustls::Error::InvalidCertificate(why));
        let said = |text: Option<String>, part: &str| {
            assert!(text.as_ref().is_some_and(|text| text.contains(part)), "{part}: {text:?}");
        };
        said(certificate(CertificateError::UnknownIssuer), "--ca-file");
        said(certificate(CertificateError::Expired), "certs renew");
        said(certificate(CertificateError::NotValidYet), "clock");
        said(certificate(CertificateError::NotValidForName), "certs node");
        said(certificate(CertificateError::Revoked), "cannot be used");
        said(
            explained(rustls::InvalidMessage::InvalidContentType.into()),
            "this port does not speak TLS",
        );
        let alert = |alert| explained(rustls::Error::AlertReceived(alert));
        let [none, foreign] = [Alert::CertificateRequired, Alert::DecryptError];
        for certificate in [none, foreign, Alert::UnknownCA, Alert::AccessDenied] {
            said(alert(certificate), "CLIENT_CA_FILE");
        }
        said(alert(Alert::CertificateExpired), "certs renew");
        for other in [Alert::NoApplicationProtocol, Alert::ProtocolVersion] {
            let text = alert(other).expect("it does not pass");
            assert!(!text.contains("certificate"), "{text}");
            assert!(text.contains(&format!("{other:?}")), "{text}");
        }
        for passing in [Alert::CloseNotify, Alert::InternalError, Alert::UserCanceled] {
            assert_eq!(alert(passing), None);
        }
        assert_eq!(TlsFailure::of(&io::Error::from(io::ErrorKind::ConnectionReset)), None);
        // It is found inside errors of other libraries, too.
        let inner = io::Error::other(TlsFailure("x".into()));
        let outer = io::Error::other(inner);
        assert_eq!(TlsFailure::of(&outer), Some(&TlsFailure("x".into())));
        let failed = FailedAttempt::Tls { addr: "a:1".to_owned(), reason: "x".to_owned() };
        assert_eq!(FailedAttempt::unreachable("a:1", &outer), failed);
        assert_eq!(FailedAttempt::broken("a:1", &outer), failed);
    }

    #[tokio::test]
    async fn a_connection_is_quiet_until_a_byte_or_its_end_arrives() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        for byte in [&b""[..], b"x"] {
            let mut socket = Dialer::new(None, Alpn::Http1).dial(&addr).await.unwrap();
            let (mut node, _) = listener.accept().unwrap();
            assert!(socket.is_quiet().await);
            // The runtime has no turn from here on, so only the kernel knows what has arrived.
            node.write_all(byte).unwrap();
            drop(node);
            let began = Instant::now();
            while socket.is_quiet().await {
                assert!(began.elapsed() < Duration::from_secs(20), "{byte:?}");
            }
        }
    }

    #[test]
    fn a_blocking_connection_carries_bytes_both_ways() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let stream = BlockingStream::connect(&addr).unwrap();
        let (mut node, _) = listener.accept().unwrap();
        for tcp in [&stream, &node] {
            tcp.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        }
        let mut socket = Dialer::new(None, Alpn::Native).secure_blocking(stream, &addr).unwrap();
        let mut got = [0; 2];
        socket.write_all(b"to").unwrap();
        node.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"to");
        node.write_all(b"fr").unwrap();
        socket.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"fr");
    }
}
