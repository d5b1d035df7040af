//! Serves a page of metrics at `GET /metrics` over HTTP/1.1, which is enough for a scraper. It
//! serves one connection at a time and closes it after the answer. A slow client is cut off after
//! a second.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use epicepoch_wire::exposition::Exposition;

/// A listener that serves a replaceable text until the process ends.
#[derive(Clone, Debug)]
pub struct Exporter {
    text: Arc<Mutex<String>>,
    addr: SocketAddr,
}

impl Exporter {
    /// Binds the address and serves `text` from now on.
    ///
    /// # Errors
    /// The address cannot be used, or no thread can be started.
    pub fn bind(addr: SocketAddr, text: String) -> io::Result<Self> {
        let listener = TcpListener::bind(addr)?;
        let exporter = Self { text: Arc::new(Mutex::new(text)), addr: listener.local_addr()? };
        let serving = exporter.clone();
        std::thread::Builder::new().name("exporter".to_owned()).spawn(move || {
            for stream in listener.incoming() {
                match stream {
                    // If the client does not read its answer, the answer is lost.
                    Ok(stream) => drop(serving.answer(stream)),
                    // The process may have no file descriptor left. After a pause, other
                    // connections may have freed some.
                    Err(_) => std::thread::sleep(ACCEPT_PAUSE),
                }
            }
        })?;
        Ok(exporter)
    }

    /// The address on which it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Replaces the text.
    pub fn set(&self, text: String) {
        *self.text.lock().expect("nobody panics with it") = text;
    }

    fn answer(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_write_timeout(Some(WAIT_MAX))?;
        let head = read_head(&mut stream)?;
        let (first, headers) = head.split_once("\r\n").unwrap_or((&head, ""));
        let accept = headers.lines().filter_map(|line| line.split_once(':'));
        let accept = accept.filter(|(name, _)| name.eq_ignore_ascii_case("accept"));
        let format = Exposition::preferred(accept.map(|(_, value)| value));
        let mut words = first.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let path = path.split('?').next().unwrap_or_default();
        let (status, kind, body) = match (method, path) {
            ("GET", "/metrics") => {
                let page = self.text.lock().expect("nobody panics with it").clone();
                ("200 OK", format.media_type(), format.of(page))
            }
            ("GET", "/up") => ("200 OK", "text/plain", "ok\n".to_owned()),
            ("GET", _) => ("404 Not Found", "text/plain", "see /metrics\n".to_owned()),
            _ => ("405 Method Not Allowed", "text/plain", "only GET\n".to_owned()),
        };
        let len = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len}\r\n\
             connection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())
    }
}

/// Waits for the whole head of a request and returns it.
fn read_head(stream: &mut TcpStream) -> io::Result<String> {
    let deadline = Instant::now() + WAIT_MAX;
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() > HEAD_LEN_MAX {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let len = stream.read(&mut chunk)?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&chunk[..len]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Longest time for one request.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// The head of a request has at most this many bytes.
const HEAD_LEN_MAX: usize = 16 * 1024;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(addr: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn the_latest_text_is_served_and_nothing_else() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let exporter = Exporter::bind(any, "first 1\n".to_owned()).unwrap();
        exporter.set("second 2\n".to_owned());
        // A silent client is cut off, and the next one is served.
        let _silent = TcpStream::connect(exporter.addr()).unwrap();
        let answer = ask(exporter.addr(), "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nsecond 2\n"), "{answer}");
        assert!(answer.contains("content-type: application/openmetrics-text;"), "{answer}");
        let plain = "GET /metrics HTTP/1.1\r\nhost: x\r\nACCEPT:text/plain\r\n\r\n";
        let answer = ask(exporter.addr(), plain);
        assert!(answer.contains("content-type: text/plain; version=0.0.4;"), "{answer}");
        for (request, status) in [("GET / HTTP/1.1", 404), ("POST /metrics HTTP/1.1", 405)] {
            let answer = ask(exporter.addr(), &format!("{request}\r\n\r\n"));
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        }
    }
}
