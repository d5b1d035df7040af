//! Answers that wait to be written: one buffer, written from the front in as few calls as the
//! socket allows.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use epicepoch_wire::native::{ANSWER_LEN, Request};
use epicepoch_wire::{EpochIndex, Timestamp, TimestampRange};
use tokio::io::AsyncWrite;

/// Written bytes in front of the buffer that are kept before the rest is moved up.
const WRITTEN_LEN_MAX: usize = 32 << 10;
/// Memory that an empty outbox keeps: the answers of a full pipeline.
const IDLE_LEN_MAX: usize = 32 << 10;

/// See the module.
///
/// Invariant: `written <= bytes.len()`, and both are 0 once everything is written.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    written: usize,
}

impl Outbox {
    /// How many bytes wait.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.written
    }

    /// Where frames are appended.
    pub(super) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends the answers to requests that share a range, in their order.
    ///
    /// # Panics
    /// When the range is not of as many timestamps as they ask for.
    pub(super) fn answer(
        &mut self,
        requests: impl ExactSizeIterator<Item = Request>,
        range: TimestampRange,
    ) {
        self.bytes.reserve(requests.len() * ANSWER_LEN);
        let Timestamp { epoch, index: EpochIndex(first) } = range.first();
        let mut taken = 0;
        for request in requests {
            // Wraps only behind the last timestamp of an epoch, which is then not used.
            let index = EpochIndex(first.wrapping_add(taken));
            self.bytes.extend_from_slice(&request.answer(Timestamp::new(epoch, index)));
            taken += request.count();
        }
        assert_eq!(taken, range.count(), "a range was taken for another run");
    }

    /// Writes until nothing waits, or the socket takes no more. Returns whether it took any.
    ///
    /// # Errors
    /// When the connection is lost.
    pub(super) fn poll_write<W: AsyncWrite + Unpin>(
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
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use epicepoch_wire::Epoch;
    use epicepoch_wire::native::{Frame, ToClient, split};

    use super::*;

    /// Takes some bytes at a time, then blocks.
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

    #[test]
    fn what_a_narrow_socket_takes_is_every_answer_once_and_in_order() {
        let counts = (1..3000_u64).map(|id| Request::new(id, 1 + id % 5).unwrap());
        let total = counts.clone().map(|request| request.count()).sum();
        let first = Timestamp::new(Epoch(9), EpochIndex(u64::MAX - total + 1));
        let mut outbox = Outbox::default();
        let requests: Vec<_> = counts.collect();
        outbox.answer(requests.iter().copied(), TimestampRange::new(first, total).unwrap());
        let mut context = Context::from_waker(Waker::noop());
        let mut socket = Narrow { taken: Vec::new(), room: 0 };
        while outbox.len() > 0 {
            socket.room = 1001;
            let _: Poll<io::Result<()>> = outbox.poll_write(&mut context, &mut socket);
        }
        let mut rest = &socket.taken[..];
        let mut next = first;
        for request in requests {
            let frame: Frame<'_> = split(rest, 0).unwrap().unwrap();
            let range = TimestampRange::new(next, request.count()).unwrap();
            let answer = ToClient::Answer { id: request.id, range };
            assert_eq!(ToClient::decode(&frame), Ok(answer));
            rest = &rest[frame.len()..];
            next.index.0 = next.index.0.wrapping_add(request.count());
        }
        assert!(rest.is_empty());
    }
}
