//! A blocking socket with hand-written HTTP/1.1, so that a test can send wrong requests. Each step
//! has a timeout. Nothing is retried.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use epicepoch_bench::http1::parse_response;
use rustix::net::sockopt::set_socket_recv_buffer_size;

/// An answer, copied out of the socket.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value.as_str())
    }

    /// Returns the stable error code of a refusal, from its header.
    pub(crate) fn error(&self) -> Option<&str> {
        self.header("epicepoch-error")
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

pub(crate) struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Wire {
    /// Connects to `addr`. Connecting, each read and each write may take at most `limit`.
    pub(crate) fn open(addr: SocketAddr, limit: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, limit)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    /// Fixes the size of the receive buffer. Otherwise the kernel makes the buffer of a client that
    /// does not read larger from time to time.
    pub(crate) fn fix_receive_buffer(&self, len: usize) -> io::Result<()> {
        Ok(set_socket_recv_buffer_size(&self.stream, len)?)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    pub(crate) fn receive(&mut self) -> io::Result<Answer> {
        loop {
            if let Some((response, used)) = parse_response(&self.buffer).map_err(invalid)? {
                let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
                let answer = Answer {
                    status: response.status,
                    headers: response.headers().map(owned).collect(),
                    body: response.body.to_vec(),
                };
                self.buffer.drain(..used);
                return Ok(answer);
            }
            let mut chunk = [0; 8192];
            match self.stream.read(&mut chunk)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => self.buffer.extend_from_slice(&chunk[..len]),
            }
        }
    }

    pub(crate) fn get(&mut self, target: &str) -> io::Result<Answer> {
        self.send(&request("GET", target, &[], b""))?;
        self.receive()
    }
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// The bytes of one request.
pub(crate) fn request(
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Vec<u8> {
    let mut text = format!("{method} {target} HTTP/1.1\r\nhost: localhost\r\n");
    for (name, value) in headers {
        text.extend([name, ": ", value, "\r\n"]);
    }
    if !body.is_empty() {
        text.extend(["content-length: ", &body.len().to_string(), "\r\n"]);
    }
    [text.as_bytes(), b"\r\n", body].concat()
}
