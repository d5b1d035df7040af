//! One connection of the native protocol. It sends bytes and reads frames, and decides nothing.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::{
    ClientHello, ClientHelloError, FEATURES, Frame, HEADER_LEN, TO_CLIENT_TAIL_LEN_MAX, ToClient,
    Welcome, split,
};
use epicepoch_wire::{Guarantee, TimestampFormat};
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};

use crate::dial::{Dialer, Socket};
use crate::error::{BadAnswer, FailedAttempt, OpenError, TOO_OLD};

/// A connection after the welcome.
#[derive(Debug)]
pub(crate) struct Link {
    stream: Socket,
    /// Bytes to send. The first `written` of them are sent.
    pub(crate) out: Vec<u8>,
    written: usize,
    /// The receive buffer. The first `filled` bytes are received bytes.
    input: Box<[u8]>,
    filled: usize,
    /// Whether bytes behind the welcome arrived together with it, and were not reported yet.
    has_unreported: bool,
}

impl Link {
    /// Connects to `addr` and sends a client hello, for a caller that waits until `until`. If
    /// `cluster_name` is given, the node must belong to a cluster with this name. If a guarantee is
    /// given, all requests of the connection ask for it. If a format is given, all timestamps of
    /// the connection have it.
    pub(crate) async fn open(
        dialer: &Dialer,
        (addr, until): (&str, Instant),
        cluster_name: Option<&str>,
        (guarantee, timestamp_format): (Option<Guarantee>, Option<TimestampFormat>),
    ) -> Result<(Self, Welcome), OpenError> {
        let stream = dialer.dial_before(addr, until).await;
        let stream = stream.map_err(|error| FailedAttempt::unreachable(addr, &error))?;
        let mut link = Self::new(stream, Vec::new());
        let agent = concat!("epicepoch-rust/", env!("CARGO_PKG_VERSION")).to_owned();
        let cluster_name = cluster_name.unwrap_or_default().to_owned();
        let token = dialer.token();
        let has_token = token.is_some();
        let hello = ClientHello {
            features: FEATURES,
            agent,
            cluster_name,
            token,
            guarantee,
            timestamp_format,
            ..Default::default()
        };
        hello.encode(&mut link.out);
        loop {
            let exchanged = link.exchange().await;
            exchanged.map_err(|error| FailedAttempt::broken(addr, &error))?;
            let foreign = |error: ClientHelloError| {
                OpenError::BadAnswer(BadAnswer::foreign(addr, &format!("no welcome: {error}")))
            };
            if !dialer.is_tls() && link.input[..link.filled].first() == Some(&TLS_ALERT) {
                let what = format!("this port speaks TLS; {PLAIN}");
                return Err(OpenError::BadAnswer(BadAnswer::foreign(addr, &what)));
            }
            let Some(frame) = link.frame().map_err(|error| foreign(error.into()))? else {
                continue;
            };
            let welcome = match ToClient::decode(&frame).map_err(foreign)? {
                ToClient::Welcome(welcome) => *welcome,
                ToClient::Error(error) => {
                    let code = error.error_code().unwrap_or(ErrorCode::Internal);
                    let text = match code {
                        ErrorCode::Unauthorized if !has_token => {
                            format!("{NO_TOKEN}; the node says: {}", error.text)
                        }
                        ErrorCode::Unsupported if guarantee.is_some() => {
                            format!("{TOO_OLD}; the node says: {}", error.text)
                        }
                        // A node that accepts only TLS answers this. Its text says so.
                        ErrorCode::BadRequest if !dialer.is_tls() => {
                            format!("{}; {PLAIN}", error.text)
                        }
                        _ => error.text.to_owned(),
                    };
                    return Err(refused(addr, code, text));
                }
                _ => return Err(OpenError::BadAnswer(BadAnswer::foreign(addr, "no welcome"))),
            };
            let length = frame.len();
            link.consume(length);
            link.has_unreported = link.filled > 0;
            return Ok((link, welcome));
        }
    }

    fn new(stream: Socket, out: Vec<u8>) -> Self {
        let input = vec![0; INPUT_LEN].into_boxed_slice();
        Self { stream, out, written: 0, input, filled: 0, has_unreported: false }
    }

    async fn exchange(&mut self) -> io::Result<()> {
        poll_fn(|context| self.poll_exchange(context)).await
    }

    /// Returns the frame at the front of the received bytes; `None` if it is not complete.
    pub(crate) fn frame(&self) -> Result<Option<Frame<'_>>, epicepoch_wire::DecodeError> {
        split(&self.input[..self.filled], TO_CLIENT_TAIL_LEN_MAX)
    }

    /// Returns the received bytes that are not consumed yet, and the buffer of bytes to send.
    pub(crate) fn buffers(&mut self) -> (&[u8], &mut Vec<u8>) {
        (&self.input[..self.filled], &mut self.out)
    }

    /// Drops `length` bytes from the front of the received bytes.
    pub(crate) fn consume(&mut self, length: usize) {
        self.input.copy_within(length..self.filled, 0);
        self.filled -= length;
    }

    /// Sends the waiting bytes. Is ready when bytes have arrived. No byte is lost if the caller
    /// stops polling.
    pub(crate) fn poll_exchange(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.has_unreported) {
            // Perhaps nothing more arrives than the end of the connection. So these bytes are
            // reported before anything is sent or read.
            return Poll::Ready(Ok(()));
        }
        while self.written < self.out.len() {
            let rest = &self.out[self.written..];
            match Pin::new(&mut self.stream).poll_write(context, rest)? {
                Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(length) => self.written += length,
                Poll::Pending => break,
            }
        }
        if self.written == self.out.len() {
            self.out.clear();
            self.written = 0;
            // The flush may be pending because TLS records wait for the socket. The socket then
            // wakes this task, so the result is ignored.
            let _: Poll<()> = Pin::new(&mut self.stream).poll_flush(context)?;
        }
        let mut buffer = ReadBuf::new(&mut self.input[self.filled..]);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
        match buffer.filled().len() {
            0 => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            length => {
                self.filled += length;
                Poll::Ready(Ok(()))
            }
        }
    }
}

/// Returns the error for a connection that the node has refused. A [`FailedAttempt`] means that a
/// retry may succeed.
fn refused(addr: &str, code: ErrorCode, message: String) -> OpenError {
    let addr = addr.to_owned();
    if code.is_retryable() || code == ErrorCode::Internal {
        return OpenError::FailedAttempt(FailedAttempt::Refused { addr, code });
    }
    match code {
        ErrorCode::WrongCluster => OpenError::AnotherCluster(message),
        code => OpenError::BadAnswer(BadAnswer::Refused { addr, code, message }),
    }
}

/// The first byte of a TLS server's answer to anything but TLS (RFC 8446, section 5.1).
const TLS_ALERT: u8 = 0x15;
const PLAIN: &str =
    "this client speaks plain text: set tls of the options (--ca-file of a command)";
const NO_TOKEN: &str =
    "missing token: set token or token_source of the options (--token-file of a command)";

/// Bytes of the receive buffer: enough for the longest frame.
const INPUT_LEN: usize = HEADER_LEN + TO_CLIENT_TAIL_LEN_MAX;

#[cfg(test)]
mod tests {
    use epicepoch_wire::native::{ErrorFrame, Token};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::clock::{DURATION_MAX, now};
    use crate::dial::Alpn;

    #[test]
    fn a_refused_connection_is_tried_again_only_if_that_may_help() {
        for (code, is_retried) in [
            (ErrorCode::Overloaded, true),
            (ErrorCode::NoQuorum, true),
            (ErrorCode::Internal, true),
            (ErrorCode::Unauthorized, false),
            (ErrorCode::WrongCluster, false),
        ] {
            let refused = refused("a:1", code, "why".to_owned());
            assert_eq!(matches!(refused, OpenError::FailedAttempt(_)), is_retried, "{code}");
            let is_another = matches!(refused, OpenError::AnotherCluster(_));
            assert_eq!(is_another, code == ErrorCode::WrongCluster, "{code}");
        }
    }

    #[tokio::test]
    async fn only_a_client_without_a_token_is_told_that_it_is_missing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        for token in [None, Token::new("t")] {
            let dialer = Dialer::new(None, Alpn::Native).with_token(token.clone());
            let refuse = async {
                let (mut node, _) = listener.accept().await.unwrap();
                let code = ErrorCode::Unauthorized as u16;
                let mut frame = Vec::new();
                ErrorFrame { code, closes: true, id: 0, text: "why" }.encode(&mut frame);
                node.write_all(&frame).await.unwrap();
                node
            };
            let to = (addr.as_str(), now() + DURATION_MAX);
            let (opened, _node) = tokio::join!(Link::open(&dialer, to, None, (None, None)), refuse);
            let text = opened.expect_err("refused").to_string();
            assert!(text.contains("why"), "{text}");
            assert_eq!(text.contains(NO_TOKEN), token.is_none(), "{text}");
        }
    }

    #[tokio::test]
    async fn a_client_that_names_a_guarantee_is_told_that_the_node_is_too_old() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let dialer = Dialer::new(None, Alpn::Native);
        for guarantee in [None, Some(Guarantee::Quorum), Some(Guarantee::Lease)] {
            let refuse = async {
                let (mut node, _) = listener.accept().await.unwrap();
                let code = ErrorCode::Unsupported as u16;
                let mut frame = Vec::new();
                ErrorFrame { code, closes: true, id: 0, text: "tag 8002" }.encode(&mut frame);
                node.write_all(&frame).await.unwrap();
                node
            };
            let (to, asked) = ((addr.as_str(), now() + DURATION_MAX), (guarantee, None));
            let (opened, _node) = tokio::join!(Link::open(&dialer, to, None, asked), refuse);
            let error = opened.expect_err("refused");
            assert!(matches!(error, OpenError::BadAnswer(BadAnswer::Refused { .. })), "{error:?}");
            let text = error.to_string();
            assert!(text.contains("tag 8002"), "{text}");
            assert_eq!(text.contains(TOO_OLD), guarantee.is_some(), "{text}");
        }
    }

    #[tokio::test]
    async fn the_buffer_is_empty_once_all_bytes_are_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let stream = Dialer::new(None, Alpn::Native).dial(&addr).await.unwrap();
        let (mut node, _) = listener.accept().await.unwrap();
        let mut link = Link::new(stream, vec![1; 3]);
        let mut got = [0; 3];
        tokio::select! {
            end = link.exchange() => panic!("nothing has arrived: {end:?}"),
            read = node.read_exact(&mut got) => assert_eq!(read.unwrap(), 3),
        }
        assert_eq!((got, link.out.len(), link.written), ([1; 3], 0, 0));
    }
}
