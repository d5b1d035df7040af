//! One question to a node over HTTP/1.1 on a new connection, with a limit.

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
    exchange(connect(addr, limit)?, addr, method, target, end)
}

/// Sends a request on a new connection. Returns the status, and how long the answer took once the
/// connection was open. Over the kernel's delays, opening it takes a round trip of its own.
pub(super) fn time(addr: SocketAddr, target: &str, limit: Duration) -> io::Result<(u16, Duration)> {
    let stream = connect(addr, limit)?;
    let from = Instant::now();
    let (status, _) = exchange(stream, addr, "GET", target, from + limit)?;
    Ok((status, from.elapsed()))
}

fn connect(addr: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&addr, limit)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(limit))?;
    Ok(stream)
}

fn exchange(
    mut stream: TcpStream,
    addr: SocketAddr,
    method: &str,
    target: &str,
    end: Instant,
) -> io::Result<(u16, Value)> {
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::thread;

    use socket2::{Domain, Socket, Type};

    use super::super::nodes::question_ms;
    use super::*;

    /// A listener that answers each request at once, but whose queue of new connections is full at
    /// first: so the kernel drops the first packet of a handshake, which comes again after a second.
    #[test]
    fn a_slow_handshake_is_not_counted() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let any: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
        socket.bind(&any.into()).expect("a port");
        socket.listen(0).expect("a listener");
        let listener = std::net::TcpListener::from(socket);
        let addr = listener.local_addr().expect("its address");
        let limit = Duration::from_millis(100);
        let fills = |_: &usize| TcpStream::connect_timeout(&addr, limit).ok();
        let full: Vec<TcpStream> = (0..8).collect::<Vec<usize>>().iter().map_while(fills).collect();
        assert!(full.len() < 8, "the queue has an end");
        let asked = thread::spawn(move || {
            let from = Instant::now();
            (question_ms(addr, 1, || true), from.elapsed())
        });
        // Until the handshake was tried once.
        let end = Instant::now() + Duration::from_secs(10);
        while !is_connecting(addr) {
            assert!(Instant::now() < end, "no handshake was tried");
            thread::sleep(Duration::from_millis(1));
        }
        let left = full.len();
        drop(full);
        for _ in 0..left {
            listener.accept().expect("a connection that filled the queue");
        }
        let (mut stream, _) = listener.accept().expect("the question");
        let mut request = [0; 4096];
        assert_ne!(stream.read(&mut request).expect("a request"), 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").expect("an answer");
        let (ms, all) = asked.join().expect("no panic");
        assert!(all > Duration::from_millis(900), "the handshake was slow: {all:?}");
        assert!(ms.is_some_and(|ms| ms < 500.0), "{ms:?} of {all:?}");
    }

    /// Whether the kernel has a connection to this address whose handshake is not answered yet.
    fn is_connecting(addr: SocketAddr) -> bool {
        let all = std::fs::read_to_string("/proc/net/tcp").expect("the connections");
        // The third and fourth field are the other end and the state; 02 is SYN_SENT.
        let wanted = format!(":{:04X} 02 ", addr.port());
        all.lines().any(|line| line.contains(&wanted))
    }
}
