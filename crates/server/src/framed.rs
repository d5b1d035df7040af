//! Peer frames ([`epicepoch_wire::frame`]) over a byte stream. This module splits the stream into
//! frames and checks header and checksum. It never reads a payload. After an error the connection
//! must be closed.

use std::io;

use epicepoch_wire::DecodeError;
use epicepoch_wire::frame::{HEADER_LEN, Header, PAYLOAD_LEN_MAX, split_frame};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Memory that an idle connection keeps for each direction, bytes. Nearly every frame fits into it.
pub const BUFFER_LEN_KEPT: usize = 8 << 10;
/// One connection uses at most this much memory for reading, bytes: the length of the longest
/// frame.
pub const BUFFER_LEN_MAX: usize = HEADER_LEN + PAYLOAD_LEN_MAX;

/// Why the next frame cannot be read. The connection must be closed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The connection broke.
    #[error("reading a frame failed: {0}")]
    Io(#[from] io::Error),
    /// The connection ended inside a frame.
    #[error("the connection ended inside a frame")]
    Truncated,
    /// The frame is malformed. Either the other end sent it malformed, or it was damaged on the
    /// way.
    #[error("a malformed frame: {0}")]
    Malformed(#[from] DecodeError),
}

/// Reads frames from a byte stream.
///
/// Its buffer grows with the bytes that have arrived, not with the length that a header claims. The
/// buffer is at most twice as long as those bytes, but at least [`BUFFER_LEN_KEPT`] and never more
/// than [`BUFFER_LEN_MAX`].
#[derive(Debug)]
pub struct FrameReader<R> {
    stream: R,
    /// The bytes that were read. The frames before `start` were returned already.
    buffer: Vec<u8>,
    start: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// A reader of `stream`, whose next byte must be the first of a frame.
    pub fn new(stream: R) -> Self {
        Self { stream, buffer: Vec::new(), start: 0 }
    }

    /// Returns the header and the payload of the next frame; the payload is valid until the next
    /// call. Returns `None` when the stream ended after a whole frame.
    ///
    /// Cancel safe: no byte is lost if the future is dropped.
    ///
    /// # Errors
    /// When the stream failed, ended inside a frame, or carries bytes that are not a frame.
    pub async fn next(&mut self) -> Result<Option<(Header, &[u8])>, FrameError> {
        loop {
            if let Some((header, _, length)) = split_frame(&self.buffer[self.start..])? {
                let payload = self.start + HEADER_LEN..self.start + length;
                self.start += length;
                return Ok(Some((header, &self.buffer[payload])));
            }
            self.make_room();
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return if self.buffer.is_empty() { Ok(None) } else { Err(FrameError::Truncated) };
            }
        }
    }

    /// Returns the stream. Bytes that were read beyond the last frame are lost.
    pub fn into_stream(self) -> R {
        self.stream
    }

    /// Drops the frames that were returned, and makes room for at least one more byte.
    fn make_room(&mut self) {
        self.buffer.drain(..self.start);
        self.start = 0;
        let length = self.buffer.len();
        if length < BUFFER_LEN_KEPT {
            self.buffer.shrink_to(BUFFER_LEN_KEPT);
            self.buffer.reserve_exact(BUFFER_LEN_KEPT - length);
        } else if length == self.buffer.capacity() {
            // The buffer holds an incomplete frame, which is shorter than the longest frame.
            debug_assert!(length < BUFFER_LEN_MAX);
            self.buffer.reserve_exact(length.min(BUFFER_LEN_MAX - length));
        }
    }
}

/// Writes encoded frames and removes them from `frames`. It does not flush; a TCP stream needs no
/// flush.
///
/// Cancel safe: if the future is dropped, `frames` holds exactly the bytes that were not written.
/// They may begin inside a frame. More frames may be appended.
///
/// # Errors
/// When the stream failed. It must be closed.
pub async fn write_frames<W: AsyncWrite + Unpin>(
    stream: &mut W,
    frames: &mut Vec<u8>,
) -> io::Result<()> {
    while !frames.is_empty() {
        match stream.write(frames).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => drop(frames.drain(..written)),
        }
    }
    frames.shrink_to(BUFFER_LEN_KEPT);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::{Pin, pin};
    use std::task::Poll;

    use epicepoch_wire::frame::{FrameKind, write_frame};
    use epicepoch_wire::{ClusterId, NodeId};
    use proptest::prelude::*;
    use tokio::io::duplex;

    use super::*;

    fn frames(payloads: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for payload in payloads {
            write_frame(&mut bytes, FrameKind::Raft, ClusterId(7), NodeId(3), |out| {
                out.extend_from_slice(payload);
            });
        }
        bytes
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    /// Polls `future` once and drops it. Returns `None` when it was not ready.
    async fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        poll_fn(|context| match Pin::as_mut(&mut future).poll(context) {
            Poll::Ready(ready) => Poll::Ready(Some(ready)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    async fn read_all<R: AsyncRead + Unpin>(stream: R) -> Result<Vec<Vec<u8>>, FrameError> {
        let mut reader = FrameReader::new(stream);
        let mut payloads = Vec::new();
        while let Some((header, payload)) = reader.next().await? {
            assert_eq!((header.cluster, header.from), (ClusterId(7), NodeId(3)));
            payloads.push(payload.to_vec());
        }
        Ok(payloads)
    }

    #[test]
    fn frames_split_at_every_byte_come_back_whole() {
        let bytes = frames(&[b"", b"one", b"another one"]);
        for cut in 0..=bytes.len() {
            let (mut sender, stream) = duplex(bytes.len());
            let read = block_on(async {
                let send = async {
                    sender.write_all(&bytes[..cut]).await.unwrap();
                    tokio::task::yield_now().await;
                    sender.write_all(&bytes[cut..]).await.unwrap();
                    drop(sender);
                };
                tokio::join!(read_all(stream), send).0
            });
            assert_eq!(read.unwrap(), [&b""[..], b"one", b"another one"], "cut at {cut}");
        }
    }

    #[test]
    fn a_read_dropped_at_every_byte_loses_nothing() {
        let bytes = frames(&[b"one", b"", b"two"]);
        let (mut sender, stream) = duplex(1);
        block_on(async {
            let mut reader = FrameReader::new(stream);
            let mut payloads = Vec::new();
            for byte in &bytes {
                sender.write_all(&[*byte]).await.unwrap();
                if let Some(frame) = poll_once(reader.next()).await {
                    payloads.push(frame.unwrap().unwrap().1.to_vec());
                }
            }
            drop(sender);
            assert!(reader.next().await.unwrap().is_none());
            assert_eq!(payloads, [&b"one"[..], b"", b"two"]);
        });
    }

    #[test]
    fn an_end_inside_a_frame_is_no_clean_end() {
        let bytes = frames(&[b"one", b"two"]);
        let length = frames(&[b"one"]).len();
        for cut in 0..=bytes.len() {
            let read = block_on(read_all(&bytes[..cut]));
            match read {
                Ok(payloads) => assert_eq!(cut, payloads.len() * length),
                Err(FrameError::Truncated) => assert_ne!(cut % length, 0),
                Err(other) => panic!("cut at {cut}: {other}"),
            }
        }
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_before_its_payload_is_stored() {
        let mut bytes = frames(&[b""]);
        bytes[4..8].copy_from_slice(&(PAYLOAD_LEN_MAX as u32 + 1).to_le_bytes());
        let mut reader = FrameReader::new(&bytes[..]);
        let error = block_on(reader.next()).unwrap_err();
        assert!(matches!(error, FrameError::Malformed(DecodeError::TooLong { .. })), "{error}");
    }

    #[test]
    fn an_announced_length_allocates_no_memory() {
        let mut bytes = frames(&[b""]);
        bytes[4..8].copy_from_slice(&(PAYLOAD_LEN_MAX as u32).to_le_bytes());
        let mut reader = FrameReader::new(&bytes[..]);
        assert!(matches!(block_on(reader.next()), Err(FrameError::Truncated)));
        assert!(reader.buffer.capacity() <= BUFFER_LEN_KEPT);
    }

    #[test]
    fn the_longest_frame_fits_and_its_memory_is_given_back() {
        let bytes = frames(&[&vec![5; PAYLOAD_LEN_MAX], b"short", b"short"]);
        let mut reader = FrameReader::new(&bytes[..]);
        block_on(async {
            assert_eq!(reader.next().await.unwrap().unwrap().1.len(), PAYLOAD_LEN_MAX);
            assert_eq!(reader.buffer.capacity(), BUFFER_LEN_MAX);
            assert_eq!(reader.next().await.unwrap().unwrap().1, b"short");
            assert_eq!(reader.next().await.unwrap().unwrap().1, b"short");
            assert!(reader.next().await.unwrap().is_none());
        });
        assert_eq!(reader.buffer.capacity(), BUFFER_LEN_KEPT);
    }

    #[test]
    fn a_write_dropped_half_way_keeps_the_unwritten_bytes() {
        let bytes = frames(&[b"one", b"two"]);
        let mut left = bytes.clone();
        let (mut stream, mut receiver) = duplex(7);
        block_on(async {
            let mut arrived = Vec::new();
            while poll_once(write_frames(&mut stream, &mut left)).await.is_none() {
                let mut chunk = [0; 7];
                let length = receiver.read(&mut chunk).await.unwrap();
                arrived.extend_from_slice(&chunk[..length]);
            }
            drop(stream);
            receiver.read_to_end(&mut arrived).await.unwrap();
            assert_eq!((arrived, left), (bytes, Vec::new()));
        });
    }

    #[test]
    fn writing_to_a_closed_stream_fails() {
        let (mut stream, receiver) = duplex(1);
        drop(receiver);
        block_on(write_frames(&mut stream, &mut frames(&[b"one"]))).unwrap_err();
    }

    proptest! {
        #[test]
        fn garbage_is_never_a_frame(bytes: Vec<u8>) {
            prop_assume!(!bytes.is_empty());
            prop_assert!(block_on(read_all(&bytes[..])).is_err());
        }

        #[test]
        fn a_damaged_frame_is_never_returned(
            payload: Vec<u8>, at: prop::sample::Index, flip in 1_u8..,
        ) {
            let mut bytes = frames(&[b"first", &payload]);
            let first = frames(&[b"first"]).len();
            let at = first + at.index(bytes.len() - first);
            bytes[at] ^= flip;
            let mut reader = FrameReader::new(&bytes[..]);
            block_on(async {
                prop_assert_eq!(reader.next().await.unwrap().unwrap().1, b"first");
                prop_assert!(reader.next().await.is_err());
                Ok(())
            })?;
        }
    }
}
