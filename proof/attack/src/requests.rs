//! Attacks with more requests or connections than a node can serve.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Number of requests written at once.
const PIPELINE: usize = 64;
/// How long to wait until the server accepts a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a round in which nothing could be written, or after a connection that was not
/// accepted.
const PAUSE: Duration = Duration::from_millis(1);

/// Writes pipelined requests to `connections` connections as fast as they accept them, and drops
/// the answers, for `limit`. Returns the number of bytes received.
#[must_use]
pub fn saturate(addr: SocketAddr, connections: usize, limit: Duration) -> u64 {
    let pipeline = b"GET /timestamp HTTP/1.1\r\nhost: t\r\n\r\n".repeat(PIPELINE);
    let mut held: Vec<(Option<TcpStream>, usize)> = (0..connections).map(|_| (None, 0)).collect();
    let mut chunk = vec![0; 64 << 10];
    let (start, mut answered) = (Instant::now(), 0);
    while start.elapsed() < limit {
        let mut has_moved = false;
        for (held, at) in &mut held {
            let Some(stream) = held else {
                *held = TcpStream::connect_timeout(&addr, CONNECT_TIMEOUT).ok();
                if let Some(stream) = held {
                    let _ = stream.set_nonblocking(true);
                }
                *at = 0;
                continue;
            };
            let written = stream.write(&pipeline[*at..]);
            let read = stream.read(&mut chunk);
            let blocks = |error: &std::io::Error| error.kind() == ErrorKind::WouldBlock;
            match (&written, &read) {
                (Err(error), _) | (_, Err(error)) if !blocks(error) => *held = None,
                (_, Ok(0)) => *held = None,
                _ => {
                    has_moved |= written.is_ok() || read.is_ok();
                    *at = (*at + written.unwrap_or(0)) % pipeline.len();
                    answered += read.unwrap_or(0) as u64;
                }
            }
        }
        if !has_moved {
            std::thread::sleep(PAUSE);
        }
    }
    answered
}

/// Connects and disconnects as fast as possible, for `limit`. Returns the number of connections.
#[must_use]
pub fn come_and_go(addr: SocketAddr, limit: Duration) -> u64 {
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < limit {
        match TcpStream::connect_timeout(&addr, CONNECT_TIMEOUT) {
            Ok(_) => count += 1,
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
    count
}
