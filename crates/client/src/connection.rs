//! One HTTP/1.1 connection (RFC 9112) that carries one request at a time. The future of the caller
//! writes the request and reads the answer itself, without a task between. This module never sends
//! a request again, and decides nothing about an answer.
//!
//! An answer counts only for the request before it. So a connection is used again only if its last
//! request was sent completely, its last answer was read to its end, and nothing has arrived since.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use epicepoch_wire::http::HEADER_DIRECT;
use epicepoch_wire::http1::{ANSWER_LEN_MAX, Answer, AnswerError, AnswerReader};
use epicepoch_wire::native::Token;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection over the stream `S`.
pub(crate) struct Connection<S> {
    stream: S,
    /// The request. The first `written` bytes are sent.
    request: Vec<u8>,
    written: usize,
    is_flushed: bool,
    /// The receive buffer. The first `filled` bytes are received bytes.
    input: Vec<u8>,
    filled: usize,
    reader: AnswerReader,
    /// Whether the connection may carry another request.
    is_reusable: bool,
}

/// Why a request has no answer. The connection must be closed.
#[derive(Debug, Error)]
pub(crate) enum ExchangeError {
    /// The connection broke.
    #[error(transparent)]
    Broken(#[from] io::Error),
    /// The bytes that arrived are not an answer.
    #[error("not an answer over HTTP/1.1: {0}")]
    NoAnswer(#[from] AnswerError),
    /// An answer that is no refusal came before the whole request was sent. So it is not the answer
    /// to this request.
    #[error("an answer came before the request was sent")]
    Unasked,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Creates a connection over an open stream.
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            request: Vec::new(),
            written: 0,
            is_flushed: false,
            input: vec![0; INPUT_LEN],
            filled: 0,
            reader: AnswerReader::default(),
            is_reusable: true,
        }
    }

    /// Sends `GET path` and reads the answer. `host` and `path` need [`is_plain`].
    pub(crate) async fn ask(
        &mut self,
        host: &str,
        path: &str,
        token: Option<&Token>,
    ) -> Result<(), ExchangeError> {
        assert!(self.is_reusable, "a connection carries one request at a time");
        assert!(is_plain(host) && is_plain(path), "a request has only the lines that it should");
        // Until the answer is complete, the connection must not be used again.
        self.is_reusable = false;
        self.request.clear();
        // This client follows to the leader, so no node has to send its requests on.
        for part in ["GET ", path, " HTTP/1.1\r\nhost: ", host, "\r\n", HEADER_DIRECT, ": 1\r\n"] {
            self.request.extend_from_slice(part.as_bytes());
        }
        if let Some(token) = token {
            for part in ["authorization: Bearer ", token.reveal(), "\r\n"] {
                self.request.extend_from_slice(part.as_bytes());
            }
        }
        self.request.extend_from_slice(b"\r\n");
        (self.written, self.is_flushed, self.filled) = (0, false, 0);
        self.reader.reset();
        poll_fn(|context| self.poll_exchange(context)).await
    }

    /// The answer to the last request, whose [`Self::ask`] has succeeded.
    pub(crate) fn answer(&self) -> Answer<'_> {
        self.reader.answer(&self.input[..self.filled])
    }

    /// The status of that answer.
    pub(crate) fn status(&self) -> u16 {
        self.reader.status()
    }

    /// Whether a part of an answer has arrived since the last request.
    pub(crate) fn has_received(&self) -> bool {
        self.filled > 0
    }

    /// The stream, to look whether it is still quiet.
    pub(crate) fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Whether the connection may carry another request.
    pub(crate) fn is_reusable(&self) -> bool {
        self.is_reusable
    }

    /// Drops the answer if it was long, to give its memory back.
    pub(crate) fn shrink(&mut self) {
        if self.input.len() > INPUT_LEN {
            self.input.truncate(INPUT_LEN);
            self.input.shrink_to_fit();
            self.filled = 0;
            self.reader.reset();
        }
    }

    /// Writes and reads until the answer is complete.
    fn poll_exchange(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ExchangeError>> {
        let is_sent = self.poll_send(context)?.is_ready();
        // An answer may come before the request is sent, for example from a proxy that refuses all
        // requests.
        loop {
            if self.filled == self.input.len() {
                let longer = (2 * self.input.len()).min(ANSWER_LEN_MAX);
                assert!(longer > self.filled, "a longer answer is refused");
                self.input.resize(longer, 0);
            }
            let mut buffer = ReadBuf::new(&mut self.input[self.filled..]);
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
            let length = buffer.filled().len();
            self.filled += length;
            let received = &self.input[..self.filled];
            if length == 0 {
                self.reader.end(received)?;
            } else if !self.reader.read(received)? {
                continue;
            }
            let is_last = length == 0 || !self.reader.keeps_open();
            // Bytes behind the answer are not of this request, and must not become the answer to
            // the next one.
            let has_more = self.reader.taken() < self.filled;
            self.is_reusable = is_sent && !is_last && !has_more;
            let is_of_request = is_sent || self.status() >= 300;
            return Poll::Ready(is_of_request.then_some(()).ok_or(ExchangeError::Unasked));
        }
    }

    /// Writes the rest of the request. Is ready when all of it is sent.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.request.len() {
            let rest = &self.request[self.written..];
            match ready!(Pin::new(&mut self.stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                length => self.written += length,
            }
        }
        if !self.is_flushed {
            ready!(Pin::new(&mut self.stream).poll_flush(context))?;
            self.is_flushed = true;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S> std::fmt::Debug for Connection<S> {
    /// The output does not contain the request, because that has the token.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Connection").finish_non_exhaustive()
    }
}

/// Whether a text may be the path or the host of a request: it is not empty, and has no blanks,
/// line ends or other bytes that would end it early.
pub(crate) fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Bytes of the receive buffer of an idle connection: enough for timestamps, also behind a proxy
/// that adds headers.
const INPUT_LEN: usize = 2048;

#[cfg(test)]
mod tests;
