//! A connection's bytes: what is to be sent and what came, in buffers that are used again, and
//! counted: headers and all that a transport adds, nothing below TCP. It never looks at them.

use std::io;

use epicepoch_client::dial::{Alpn, Dialer, Socket};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::lane::Lane;

/// A TCP connection.
#[derive(Debug)]
pub(super) struct Channel {
    stream: Socket,
    /// What is to be sent; [`Channel::flush`] sends all of it at once.
    pub(super) out: Vec<u8>,
    /// What came, up to `filled`.
    input: Vec<u8>,
    filled: usize,
    input_max: usize,
    pub(super) sent: u64,
    pub(super) received: u64,
}

impl Channel {
    /// Connects, without Nagle's delay. No message is longer than `message_max` bytes.
    /// Over TLS it is to speak `alpn`.
    pub(super) async fn open(lane: &Lane, alpn: Alpn, message_max: usize) -> io::Result<Self> {
        let (dialer, target) = (Dialer::new(lane.config.tls.as_ref(), alpn), lane.target());
        let stream = dialer.dial_at(target.addr, &target.name).await?;
        let input_max = message_max.max(INPUT_LEN);
        let input = vec![0; INPUT_LEN];
        Ok(Self { stream, out: Vec::new(), input, filled: 0, input_max, sent: 0, received: 0 })
    }

    /// Sends what is ready. To be dropped midway only with the connection.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        let mut at = 0;
        while at < self.out.len() {
            let len = self.stream.write(&self.out[at..]).await?;
            if len == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            at += len;
            self.sent += len as u64;
        }
        self.out.clear();
        // TLS records may still wait for the socket.
        self.stream.flush().await
    }

    /// Waits for more bytes. Dropping the future loses nothing.
    pub(super) async fn read(&mut self) -> io::Result<()> {
        if self.filled == self.input.len() {
            if self.filled >= self.input_max {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.input.resize((self.filled * 2).min(self.input_max), 0);
        }
        match self.stream.read(&mut self.input[self.filled..]).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            len => {
                self.filled += len;
                self.received += len as u64;
                Ok(())
            }
        }
    }

    /// What came and is not used, and where to append what it asks for.
    pub(super) fn parts(&mut self) -> (&[u8], &mut Vec<u8>) {
        (&self.input[..self.filled], &mut self.out)
    }

    /// Drops what was used.
    pub(super) fn consume(&mut self, len: usize) {
        if len == self.filled {
            self.filled = 0;
        } else if len > 0 {
            self.input.copy_within(len..self.filled, 0);
            self.filled -= len;
        }
    }
}

/// Bytes that are read at once: the answers of a full pipeline.
const INPUT_LEN: usize = 128 << 10;
