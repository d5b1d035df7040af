//! The bytes of a connection, in reused buffers for sending and receiving. The channel counts sent
//! and received bytes, with headers and framing, but nothing below TCP. It never parses the bytes.

use std::io;

use epicepoch_client::dial::{Alpn, Dialer, Socket};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::load_connection::LoadConnection;

/// Whether an error says that nothing answers at this address, so that another may.
fn may_be_elsewhere(error: &io::Error) -> bool {
    use io::ErrorKind::{
        AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut,
    };
    matches!(
        error.kind(),
        AddrNotAvailable | ConnectionRefused | HostUnreachable | NetworkUnreachable | TimedOut
    )
}

/// A TCP connection.
#[derive(Debug)]
pub(super) struct Channel {
    stream: Socket,
    /// Bytes to send; [`Channel::flush`] sends all of them at once.
    pub(super) out: Vec<u8>,
    /// Received bytes, up to `filled`.
    input: Vec<u8>,
    filled: usize,
    input_max: usize,
    pub(super) sent: u64,
    pub(super) received: u64,
}

impl Channel {
    /// Connects, with Nagle's algorithm off. Over TLS it offers `alpn`. No message may be longer
    /// than `message_max` bytes.
    pub(super) async fn open(
        load: &LoadConnection,
        alpn: Alpn,
        message_max: usize,
    ) -> io::Result<Self> {
        let (dialer, target) = (Dialer::new(load.config.tls.as_ref(), alpn), load.target());
        let stream = match dialer.dial_at(target.addr, &target.name).await {
            // The name may have another address that answers: an IPv4 one, or a new one.
            Err(error) if may_be_elsewhere(&error) && target.name != target.addr.to_string() => {
                dialer.dial(&target.name).await?
            }
            stream => stream?,
        };
        let input_max = message_max.max(INPUT_LEN);
        let input = vec![0; INPUT_LEN];
        Ok(Self { stream, out: Vec::new(), input, filled: 0, input_max, sent: 0, received: 0 })
    }

    /// Sends all of `out`. If the future is dropped before it is done, drop the connection too.
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
        // TLS may still hold records that are not sent.
        self.stream.flush().await
    }

    /// Waits for more bytes. Cancel safe: no bytes are lost if the future is dropped.
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

    /// Returns the received bytes that are not consumed, and the buffer for replies.
    pub(super) fn parts(&mut self) -> (&[u8], &mut Vec<u8>) {
        (&self.input[..self.filled], &mut self.out)
    }

    /// Removes `len` bytes from the front of the received ones.
    pub(super) fn consume(&mut self, len: usize) {
        if len == self.filled {
            self.filled = 0;
        } else if len > 0 {
            self.input.copy_within(len..self.filled, 0);
            self.filled -= len;
        }
    }
}

/// Initial length of the receive buffer, in bytes: the answers to a full pipeline of requests fit.
const INPUT_LEN: usize = 128 << 10;
