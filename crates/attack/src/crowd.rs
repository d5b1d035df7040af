//! Many connections that say little or nothing, and take up places.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

/// What each connection of a crowd does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Says nothing.
    Mute,
    /// Asks once, reads the answer, and falls silent.
    Idle,
    /// Sends a request's head byte by byte, one in each round.
    SlowHead,
    /// Asks for long lists and reads nothing.
    Deaf,
    /// Sends the beginning of a TLS handshake, and no more.
    HalfTls,
}

impl Manner {
    /// Every manner.
    pub const ALL: [Self; 5] = [Self::Mute, Self::Idle, Self::SlowHead, Self::Deaf, Self::HalfTls];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mute => "mute",
            Self::Idle => "idle",
            Self::SlowHead => "slow-head",
            Self::Deaf => "deaf",
            Self::HalfTls => "half-tls",
        }
    }

    /// The manner of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|manner| manner.name() == name)
    }

    fn first_words(self) -> &'static [u8] {
        match self {
            Self::Mute => b"",
            Self::Idle => b"GET /timestamp HTTP/1.1\r\nhost: t\r\n\r\n",
            Self::SlowHead => b"GET /timestamp HTTP/1.1\r\nx: ",
            Self::Deaf => b"GET /timestamp?n=65536 HTTP/1.1\r\nhost: t\r\n\r\n",
            // A record of a handshake of 512 bytes, of which five come.
            Self::HalfTls => b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03",
        }
    }
}

/// Connections that are held.
#[derive(Debug)]
pub struct Crowd {
    manner: Manner,
    held: Vec<TcpStream>,
}

/// Time between two looks at a crowd.
const ROUND: Duration = Duration::from_millis(500);
/// Longest wait for one connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

impl Crowd {
    /// Opens `count` connections, as far as they are accepted.
    #[must_use]
    pub fn open(addr: SocketAddr, count: usize, manner: Manner) -> Self {
        let open = || connect(addr, manner);
        Self { manner, held: (0..count).filter_map(|_| open().ok()).collect() }
    }

    /// How many are still held, once those that the server has ended are let go.
    pub fn look(&mut self) -> usize {
        self.held.retain(is_open);
        self.held.len()
    }

    /// Holds them for `limit`, or until the server has ended all. Returns how many are left.
    pub fn hold(&mut self, limit: Duration) -> usize {
        let start = Instant::now();
        while self.look() > 0 && start.elapsed() < limit {
            if self.manner == Manner::SlowHead {
                self.held.retain_mut(|stream| stream.write(b"x").is_ok());
            }
            std::thread::sleep(ROUND.min(limit.saturating_sub(start.elapsed())));
        }
        self.held.len()
    }
}

fn connect(addr: SocketAddr, manner: Manner) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    if manner == Manner::Deaf {
        socket.set_recv_buffer_size(4096)?;
    }
    socket.connect_timeout(&addr.into(), CONNECT_TIMEOUT)?;
    let mut stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.write_all(manner.first_words())?;
    if manner == Manner::Idle {
        stream.set_read_timeout(Some(CONNECT_TIMEOUT))?;
        let mut answer = [0; 1024];
        if stream.read(&mut answer)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Whether the server has not ended it. What it has sent stays where it is.
fn is_open(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(length) => length > 0,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}
