//! One connection. It sends one request at a time and parses frames.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use epicepoch_wire::native::message::pong;
use epicepoch_wire::native::{
    ClientHello, Request, TO_CLIENT_TAIL_LEN_MAX, ToClient, Welcome, split,
};
use epicepoch_wire::{TimestampRange, http::ErrorCode};

use crate::plant::Plant;

/// A connection to a node.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    plant: Plant,
}

/// A frame that the node sent.
#[derive(Debug)]
pub(crate) enum Event {
    Welcome(Box<Welcome>),
    Answer(u64, TimestampRange),
    Refused {
        id: u64,
        code: ErrorCode,
        text: String,
        closes: bool,
    },
    Goodbye,
    /// Any other frame. This client has nothing to do for it.
    Other,
}

/// Why a connection is unusable.
#[derive(Debug)]
pub(crate) enum End {
    /// The connection broke, or could not be made.
    Lost(String),
    /// The other end is not an oracle.
    Foreign(String),
}

impl Connection {
    /// Connects and sends the client hello. The welcome is the first event.
    pub(crate) fn open(
        addr: &str,
        cluster_name: &str,
        limit: Duration,
        plant: Plant,
    ) -> Result<Self, End> {
        let lost = |error: std::io::Error| End::Lost(format!("{addr}: {error}"));
        let parsed: SocketAddr =
            addr.parse().map_err(|_| End::Foreign(format!("{addr} is no address")))?;
        let mut stream = TcpStream::connect_timeout(&parsed, limit).map_err(lost)?;
        stream.set_nodelay(true).map_err(lost)?;
        stream.set_read_timeout(Some(READ_PAUSE)).map_err(lost)?;
        let mut hello = Vec::new();
        let (agent, cluster_name) = ("naive".to_owned(), cluster_name.to_owned());
        ClientHello { agent, cluster_name, ..ClientHello::default() }.encode(&mut hello);
        stream.write_all(&hello).map_err(lost)?;
        Ok(Self { stream, input: Vec::new(), plant })
    }

    pub(crate) fn send(&mut self, request: Request) -> Result<(), End> {
        self.stream.write_all(&request.to_bytes()).map_err(|error| End::Lost(error.to_string()))
    }

    /// Returns the next event before `until`. Reads at least once.
    pub(crate) fn next(&mut self, until: Instant) -> Result<Option<Event>, End> {
        loop {
            if let Some(event) = self.take()? {
                return Ok(Some(event));
            }
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(End::Lost("the node closed the connection".to_owned())),
                Ok(length) => self.input.extend_from_slice(&chunk[..length]),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    if Instant::now() >= until {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(End::Lost(error.to_string())),
            }
        }
    }

    /// Takes the first event from the buffer.
    fn take(&mut self) -> Result<Option<Event>, End> {
        let foreign = |error: &dyn ToString| End::Foreign(error.to_string());
        let split = split(&self.input, TO_CLIENT_TAIL_LEN_MAX).map_err(|error| foreign(&error))?;
        let Some(frame) = split else { return Ok(None) };
        let length = frame.len();
        let event = match ToClient::decode(&frame).map_err(|error| foreign(&error))? {
            ToClient::Welcome(welcome) => Event::Welcome(welcome),
            ToClient::Answer { id, range } => Event::Answer(id, range),
            ToClient::Error(error) => Event::Refused {
                id: error.id,
                code: error.error_code().unwrap_or(ErrorCode::Internal),
                text: error.text.to_owned(),
                closes: error.closes,
            },
            ToClient::Goodbye => Event::Goodbye,
            ToClient::Ping(id) => {
                if self.plant != Plant::NoPong {
                    // If this write fails, the next read fails, too.
                    let _ = self.stream.write_all(&pong(id));
                }
                Event::Other
            }
            ToClient::Unknown if self.plant == Plant::Rigid => {
                return Err(End::Foreign("an unknown frame".to_owned()));
            }
            ToClient::Leader(_) | ToClient::Pong(_) | ToClient::Unknown => Event::Other,
        };
        self.input.drain(..length);
        Ok(Some(event))
    }
}

/// The longest time of one read. So deadlines are checked at least this often.
const READ_PAUSE: Duration = Duration::from_millis(2);
