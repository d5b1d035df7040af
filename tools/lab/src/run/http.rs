//! One question to a node over HTTP/1.1, with a limit.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use epicepoch_bench::http1::parse_response;
use epicepoch_wire::http::HEADER_ADMIN;
use serde_json::Value;

/// At most this many bytes of an answer.
const ANSWER_LEN_MAX: usize = 1 << 20;

/// Sends a request on a new connection. Returns the status, and the body if it is JSON.
pub(super) fn ask(
    addr: SocketAddr,
    method: &str,
    target: &str,
    limit: Duration,
) -> io::Result<(u16, Value)> {
    let end = Instant::now() + limit;
    let mut stream = TcpStream::connect_timeout(&addr, limit)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(limit))?;
    let request =
        format!("{method} {target} HTTP/1.1\r\nhost: {addr}\r\n{HEADER_ADMIN}: lab\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut buffer = Vec::new();
    loop {
        let parsed = parse_response(&buffer).map_err(io::Error::other)?;
        if let Some((response, _)) = parsed {
            let body = serde_json::from_slice(response.body).unwrap_or_default();
            return Ok((response.status, body));
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || buffer.len() > ANSWER_LEN_MAX {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut chunk = [0; 8192];
        match stream.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => buffer.extend_from_slice(&chunk[..len]),
        }
    }
}
