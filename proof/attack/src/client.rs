//! A well-behaved client. During an attack it asks at a steady rate, and follows the leader. It
//! measures the latency of a request from the time at which the request was due. So a request that
//! could not be sent in time counts, too.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// Timeout of a request.
pub const TIMEOUT: Duration = Duration::from_secs(2);

/// The result of [`ask`].
#[derive(Clone, Debug)]
pub struct Report {
    /// For each request, the nanoseconds from the time at which it was due until its answer.
    pub latency_ns: Histogram<u64>,
    /// Requests that got no timestamp.
    pub failed: u64,
    /// How often the client turned to another address.
    pub moves: u64,
}

impl Report {
    /// Returns the latency at a percentile, in milliseconds.
    #[must_use]
    pub fn ms(&self, percentile: f64) -> f64 {
        self.latency_ns.value_at_percentile(percentile) as f64 / 1e6
    }
}

/// Asks at `rate` requests per second for `duration`. Asks one address, and tries the next one if a
/// request fails or is refused.
///
/// # Panics
/// If `addrs` is empty.
#[must_use]
pub fn ask(addrs: &[SocketAddr], rate: f64, duration: Duration) -> Report {
    assert!(!addrs.is_empty(), "an address to ask");
    let latency_ns = Histogram::new_with_bounds(1_000, 60_000_000_000, 3);
    let mut report =
        Report { latency_ns: latency_ns.expect("the bounds hold"), failed: 0, moves: 0 };
    let mut at = 0;
    let mut connection = None;
    let start = Instant::now();
    for number in 0.. {
        let due = Duration::from_secs_f64(f64::from(number) / rate);
        if due >= duration {
            break;
        }
        std::thread::sleep(due.saturating_sub(start.elapsed()));
        let deadline = start + due + TIMEOUT;
        loop {
            match once(&mut connection, addrs[at]) {
                Ok(200) => {
                    let waited = start.elapsed().saturating_sub(due);
                    report.latency_ns.saturating_record(waited.as_nanos() as u64);
                    break;
                }
                outcome => {
                    if outcome.is_err() {
                        connection = None;
                    }
                    if Instant::now() >= deadline {
                        report.failed += 1;
                        break;
                    }
                    at = (at + 1) % addrs.len();
                    connection = None;
                    report.moves += 1;
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
    }
    report
}

/// Sends one request. Returns the status of its answer.
fn once(connection: &mut Option<TcpStream>, addr: SocketAddr) -> io::Result<u16> {
    let stream = if let Some(stream) = connection {
        stream
    } else {
        let stream = TcpStream::connect_timeout(&addr, TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        connection.insert(stream)
    };
    stream.write_all(b"GET /timestamp HTTP/1.1\r\nhost: t\r\n\r\n")?;
    let (mut answer, mut length) = ([0; 4096], 0);
    loop {
        let read = stream.read(&mut answer[length..])?;
        if read == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        length += read;
        if let Some(status) = whole(&answer[..length]) {
            return Ok(status);
        }
    }
}

/// Returns the status of an answer, or `None` until the answer is complete.
fn whole(answer: &[u8]) -> Option<u16> {
    let text = String::from_utf8_lossy(answer);
    let (head, _) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let named = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length").then(|| value.parse::<usize>().ok())?
    });
    (answer.len() >= head.len() + 4 + named.unwrap_or(0)).then_some(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_with_its_body() {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc";
        assert_eq!(whole(answer), Some(200));
        assert_eq!(whole(&answer[..answer.len() - 1]), None);
        assert_eq!(whole(b"HTTP/1.1 409 Conflict\r\n"), None);
    }
}
