//! Attacks with many idle or slow connections, which use up the server's admission limit.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

/// The behaviour of each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// The connection sends nothing.
    Mute,
    /// The connection sends a request, reads the answer, and then stays silent.
    Idle,
    /// The connection sends the head of a request, one byte per round.
    SlowHead,
    /// The connection asks for long lists and reads no answer.
    Deaf,
    /// The connection sends the beginning of a TLS handshake.
    HalfTls,
}

impl Behaviour {
    /// All behaviours.
    pub const ALL: [Self; 5] = [Self::Mute, Self::Idle, Self::SlowHead, Self::Deaf, Self::HalfTls];

    /// Returns the behaviour's name on the command line.
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

    /// The behaviour with that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|behaviour| behaviour.name() == name)
    }

    fn first_words(self) -> &'static [u8] {
        match self {
            Self::Mute => b"",
            Self::Idle => b"GET /timestamp HTTP/1.1\r\nhost: t\r\n\r\n",
            Self::SlowHead => b"GET /timestamp HTTP/1.1\r\nx: ",
            Self::Deaf => b"GET /timestamp?n=65536 HTTP/1.1\r\nhost: t\r\n\r\n",
            // The beginning of a handshake record of 512 bytes: its header and five bytes.
            Self::HalfTls => b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03",
        }
    }
}

/// Open connections.
#[derive(Debug)]
pub struct Connections {
    behaviour: Behaviour,
    held: Vec<TcpStream>,
}

/// Time between two checks of the connections.
const ROUND: Duration = Duration::from_millis(500);
/// How long to wait until the server accepts a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

impl Connections {
    /// Opens `count` connections, or fewer if the server accepts no more.
    #[must_use]
    pub fn open(addr: SocketAddr, count: usize, behaviour: Behaviour) -> Self {
        let open = || connect(addr, behaviour);
        Self { behaviour, held: (0..count).filter_map(|_| open().ok()).collect() }
    }

    /// Drops connections that the server has ended. Returns how many are left.
    pub fn look(&mut self) -> usize {
        self.held.retain(is_open);
        self.held.len()
    }

    /// Keeps the connections open for `limit`, or until the server has ended all. Returns how many
    /// are left.
    pub fn hold(&mut self, limit: Duration) -> usize {
        let start = Instant::now();
        while self.look() > 0 && start.elapsed() < limit {
            if self.behaviour == Behaviour::SlowHead {
                self.held.retain_mut(|stream| stream.write(b"x").is_ok());
            }
            std::thread::sleep(ROUND.min(limit.saturating_sub(start.elapsed())));
        }
        self.held.len()
    }
}

fn connect(addr: SocketAddr, behaviour: Behaviour) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    if behaviour == Behaviour::Deaf {
        socket.set_recv_buffer_size(4096)?;
    }
    socket.connect_timeout(&addr.into(), CONNECT_TIMEOUT)?;
    let mut stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.write_all(behaviour.first_words())?;
    if behaviour == Behaviour::Idle {
        stream.set_read_timeout(Some(CONNECT_TIMEOUT))?;
        let mut answer = [0; 1024];
        if stream.read(&mut answer)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Returns whether the server has kept the connection open. This does not take received data from
/// the socket.
fn is_open(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(length) => length > 0,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}
