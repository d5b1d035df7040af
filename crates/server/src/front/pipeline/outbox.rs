//! Answers that wait to be written. They share one buffer, which is written from the front in as
//! few calls as the socket allows.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

/// When this many bytes of the buffer are written, they are removed, and the rest moves to the
/// front.
const WRITTEN_LEN_MAX: usize = 32 << 10;
/// Memory that an empty outbox keeps: enough for the answers of a full pipeline.
const IDLE_LEN_MAX: usize = 32 << 10;

/// The buffer of answers that wait to be written.
///
/// Invariant: `written <= bytes.len()`, and both are 0 once everything is written.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    written: usize,
}

impl Outbox {
    /// How many bytes wait to be written.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.written
    }

    /// The buffer to which answers are appended.
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Gives back unused memory.
    pub(crate) fn give_back(&mut self) {
        self.bytes.shrink_to_fit();
    }

    /// Writes until nothing waits or the socket accepts no more. Ready when nothing waits.
    ///
    /// # Errors
    /// When the connection is lost.
    pub(crate) fn poll_write<W: AsyncWrite + Unpin>(
        &mut self,
        context: &mut Context<'_>,
        socket: &mut W,
    ) -> Poll<io::Result<()>> {
        while self.written < self.bytes.len() {
            let rest = &self.bytes[self.written..];
            let length = match ready!(Pin::new(&mut *socket).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                length => length,
            };
            self.written += length;
            if self.written >= WRITTEN_LEN_MAX {
                self.bytes.drain(..self.written);
                self.written = 0;
            }
        }
        self.bytes.clear();
        self.written = 0;
        self.bytes.shrink_to(IDLE_LEN_MAX);
        // The socket may still hold TLS records that are not sent.
        Pin::new(socket).poll_flush(context)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// A socket that accepts `room` bytes and then blocks.
    struct Narrow {
        taken: Vec<u8>,
        room: usize,
    }

    impl AsyncWrite for Narrow {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let length = bytes.len().min(self.room);
            self.room -= length;
            self.taken.extend_from_slice(&bytes[..length]);
            if length == 0 { Poll::Pending } else { Poll::Ready(Ok(length)) }
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// A socket that keeps accepted bytes until it is flushed, as TLS keeps records. Its first
    /// flush is pending.
    #[derive(Default)]
    struct Keeping {
        kept: Vec<u8>,
        sent: Vec<u8>,
        flushes: u32,
    }

    impl AsyncWrite for Keeping {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.kept.extend_from_slice(bytes);
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.flushes += 1;
            if self.flushes == 1 {
                return Poll::Pending;
            }
            let kept = std::mem::take(&mut self.kept);
            self.sent.extend(kept);
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn bytes_that_a_socket_keeps_until_a_flush_do_not_count_as_written() {
        let mut outbox = Outbox::default();
        outbox.bytes().extend_from_slice(b"an answer");
        let mut context = Context::from_waker(Waker::noop());
        let mut socket = Keeping::default();
        assert!(outbox.poll_write(&mut context, &mut socket).is_pending());
        // All bytes are accepted, but the flush is still pending.
        assert_eq!((outbox.len(), &socket.sent[..]), (0, &b""[..]));
        assert!(outbox.poll_write(&mut context, &mut socket).is_ready());
        assert_eq!(socket.sent, b"an answer");
    }

    #[test]
    fn a_narrow_socket_gets_every_answer_once_and_in_order() {
        let mut outbox = Outbox::default();
        let mut expected = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        let mut socket = Narrow { taken: Vec::new(), room: 0 };
        for answer in 0..30_000_u32 {
            expected.extend_from_slice(&answer.to_be_bytes());
            outbox.bytes().extend_from_slice(&answer.to_be_bytes());
            if answer % 100 == 0 {
                socket.room = 301;
                let writing: Poll<io::Result<()>> = outbox.poll_write(&mut context, &mut socket);
                assert_eq!(writing.is_ready(), outbox.len() == 0);
            }
        }
        while outbox.len() > 0 {
            socket.room = 40_001;
            let _: Poll<io::Result<()>> = outbox.poll_write(&mut context, &mut socket);
        }
        assert_eq!(socket.taken, expected);
    }
}
