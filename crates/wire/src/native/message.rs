//! The meaning of frames: requests and answers, pings, errors, notices. Unused fields must be zero,
//! and a receiver checks that, so that a later version can give them a meaning.

use super::client_hello::{ClientHello, ClientHelloError, Welcome};
use super::frame::{
    ANSWER_LEN, Frame, HEADER_LEN, Header, KIND_ANSWER, KIND_ERROR, KIND_GOODBYE, KIND_HELLO,
    KIND_INTERVAL_ANSWER, KIND_LEADER, KIND_PING, KIND_PONG, KIND_REQUEST, KIND_WELCOME,
    REQUEST_LEN, text,
};
use super::interval::IntervalRequest;
use crate::cursor::DecodeError;
use crate::guarantee::ProvedBy;
use crate::http::ErrorCode;
use crate::id::NodeId;
use crate::peer_hello::ADDR_LEN_MAX;
use crate::timestamp::{EpochIndex, Timestamp, TimestampRange};

/// Longest text of an error, in bytes. The address of a leader, which this text can be, always
/// fits.
pub const ERROR_TEXT_LEN_MAX: usize = 512;
/// Flag of an error: the node closes the connection after this frame.
const FLAG_CLOSES: u8 = 1;
/// Flag of a request and of its answer: the request asks for the latest timestamp.
const FLAG_LATEST: u8 = 1;
/// Flag of an answer: the lease of the leader has proved it, and no round.
const FLAG_LEASE: u8 = 2;

/// A request for `1 + more` timestamps, or for the latest timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's number of the request. The answer repeats it; the node does not use it.
    pub id: u64,
    /// The number of timestamps beyond the first; 0 in a request for the latest timestamp.
    more: u32,
    /// Whether the request asks for the latest timestamp, and takes none.
    is_latest: bool,
}

impl Request {
    /// Creates a request for `count` timestamps; `None` unless `1 <= count <= 2^32`.
    #[must_use]
    pub fn new(id: u64, count: u64) -> Option<Self> {
        let more = u32::try_from(count.checked_sub(1)?).ok()?;
        Some(Self { id, more, is_latest: false })
    }

    /// Creates a request for the latest timestamp. Send it only if the welcome has the feature
    /// [`FEATURE_LATEST`](super::FEATURE_LATEST).
    #[must_use]
    pub const fn latest(id: u64) -> Self {
        Self { id, more: 0, is_latest: true }
    }

    /// The same request with another id.
    #[must_use]
    pub const fn with_id(self, id: u64) -> Self {
        Self { id, ..self }
    }

    /// The number of timestamps that the request takes; 0 if it asks for the latest one.
    #[must_use]
    pub const fn count(&self) -> u64 {
        if self.is_latest { 0 } else { self.more as u64 + 1 }
    }

    /// The bytes of the request's frame.
    #[must_use]
    pub fn to_bytes(self) -> [u8; REQUEST_LEN] {
        self.header(KIND_REQUEST).to_bytes()
    }

    /// Reads a request. Returns `None` for any other frame, and for a request with a flag or code
    /// that this version does not know.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; REQUEST_LEN]) -> Option<Self> {
        let [head @ .., a0, a1, a2, a3] = *bytes.first_chunk::<8>()?;
        let id = u64::from_be_bytes(*bytes.last_chunk()?);
        let more = u32::from_be_bytes([a0, a1, a2, a3]);
        let is_latest = match head {
            [KIND_REQUEST, 0, 0, 0] => false,
            [KIND_REQUEST, FLAG_LATEST, 0, 0] if more == 0 => true,
            _ => return None,
        };
        Some(Self { id, more, is_latest })
    }

    /// Returns the answer to this request: as many timestamps as the request asks for, from
    /// `first`. If the request asks for the latest timestamp, `first` is that one. A round has
    /// proved the answer, or the client has not asked what has.
    #[must_use]
    pub fn answer(self, first: Timestamp) -> [u8; ANSWER_LEN] {
        self.answer_proved_by(first, ProvedBy::Round)
    }

    /// Returns the answer to this request, as [`Self::answer`] does. It says what has proved it.
    #[must_use]
    pub fn answer_proved_by(self, first: Timestamp, proved_by: ProvedBy) -> [u8; ANSWER_LEN] {
        let mut bytes = [0; ANSWER_LEN];
        let (head, tail) = bytes.split_at_mut(HEADER_LEN);
        let mut header = self.header(KIND_ANSWER);
        header.flags |= match proved_by {
            ProvedBy::Round => 0,
            ProvedBy::Lease => FLAG_LEASE,
        };
        head.copy_from_slice(&header.to_bytes());
        tail.copy_from_slice(&first.to_bytes());
        bytes
    }

    fn header(self, kind: u8) -> Header {
        let flags = if self.is_latest { FLAG_LATEST } else { 0 };
        Header { flags, ..header(kind, self.more, self.id) }
    }
}

/// A refusal of one request, or of the whole connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorFrame<'a> {
    /// The number of an [`ErrorCode`]. A client treats an unknown number as
    /// [`ErrorCode::Internal`].
    pub code: u16,
    /// Whether the connection ends after this frame.
    pub closes: bool,
    /// The id of the refused request. If the whole connection is refused: the id of the frame that
    /// caused it, or 0.
    pub id: u64,
    /// If the code is `NOT_LEADER`, the leader's client address. Otherwise a text for people, which
    /// may be empty.
    pub text: &'a str,
}

impl ErrorFrame<'_> {
    /// Appends the frame; a text over [`ERROR_TEXT_LEN_MAX`] is cut.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let text = &self.text[..self.text.floor_char_boundary(ERROR_TEXT_LEN_MAX)];
        let header = Header {
            kind: KIND_ERROR,
            flags: if self.closes { FLAG_CLOSES } else { 0 },
            code: self.code,
            argument: text.len() as u32,
            id: self.id,
        };
        out.extend_from_slice(&header.to_bytes());
        out.extend_from_slice(text.as_bytes());
    }

    /// Returns the code of the error, if this version knows its number.
    #[must_use]
    pub fn error_code(&self) -> Option<ErrorCode> {
        ErrorCode::from_number(self.code)
    }
}

/// Tells a client which node leads now. A node sends it without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderNotice<'a> {
    /// The leader; 0 while none is known.
    pub node: NodeId,
    /// The leader's client address; empty while no leader is known.
    pub addr: &'a str,
}

impl LeaderNotice<'_> {
    /// Appends the frame.
    ///
    /// # Panics
    /// The address is longer than [`ADDR_LEN_MAX`]. No member has such an address.
    pub fn encode(&self, out: &mut Vec<u8>) {
        assert!(self.addr.len() <= ADDR_LEN_MAX, "an address of {} bytes", self.addr.len());
        let header = header(KIND_LEADER, self.addr.len() as u32, self.node.0);
        out.extend_from_slice(&header.to_bytes());
        out.extend_from_slice(self.addr.as_bytes());
    }
}

/// The bytes of a ping.
#[must_use]
pub fn ping(id: u64) -> [u8; HEADER_LEN] {
    header(KIND_PING, 0, id).to_bytes()
}

/// Returns the bytes of the answer to a ping.
#[must_use]
pub fn pong(id: u64) -> [u8; HEADER_LEN] {
    header(KIND_PONG, 0, id).to_bytes()
}

/// The bytes of a goodbye.
#[must_use]
pub fn goodbye() -> [u8; HEADER_LEN] {
    header(KIND_GOODBYE, 0, 0).to_bytes()
}

/// A frame from a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToServer {
    /// A hello. The first frame of a connection must be a hello, and no later frame may be one.
    ClientHello(ClientHello),
    /// Asks for timestamps.
    Request(Request),
    /// Asks for interval timestamps.
    Interval(IntervalRequest),
    /// Must be answered with a pong.
    Ping(u64),
    /// Answers a ping of the node.
    Pong(u64),
    /// A frame that this version does not know, or a known frame in a use that it does not know.
    /// The node answers with an error for its id, and the connection goes on.
    Unknown {
        /// The frame's id.
        id: u64,
    },
}

impl ToServer {
    /// Decodes a frame from a client.
    ///
    /// # Errors
    /// No version of the protocol allows this frame, or only nodes send it. The connection must be
    /// closed.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, ClientHelloError> {
        let header = frame.header;
        match header.kind {
            KIND_HELLO => ClientHello::decode(frame).map(Self::ClientHello),
            KIND_REQUEST if is_request(header) => Ok(Self::Request(Request {
                id: header.id,
                more: header.argument,
                is_latest: header.flags == FLAG_LATEST,
            })),
            KIND_PING if is_bare(header) => Ok(Self::Ping(header.id)),
            KIND_PONG if is_bare(header) => Ok(Self::Pong(header.id)),
            KIND_ANSWER | KIND_INTERVAL_ANSWER | KIND_WELCOME | KIND_ERROR | KIND_LEADER
            | KIND_GOODBYE => Err(bad("kind", u64::from(header.kind)).into()),
            _ => Ok(match IntervalRequest::from_header(header) {
                Some(request) => Self::Interval(request),
                None => Self::Unknown { id: header.id },
            }),
        }
    }
}

/// A frame from a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToClient<'a> {
    /// The node accepts the hello. Only the first frame from a node is a welcome; instead, it may
    /// be an error.
    Welcome(Box<Welcome>),
    /// The timestamps of a request.
    Answer {
        /// The request.
        id: u64,
        /// As many timestamps as requested, or the latest one.
        range: TimestampRange,
        /// Whether the range is the latest timestamp, and not timestamps for this client alone.
        is_latest: bool,
        /// What has proved the answer. A lease may have only if the hello has asked for a lease.
        proved_by: ProvedBy,
    },
    /// A refusal.
    Error(ErrorFrame<'a>),
    /// A notice of the current leader.
    Leader(LeaderNotice<'a>),
    /// Must be answered with a pong.
    Ping(u64),
    /// Answers a ping of the client.
    Pong(u64),
    /// The node reads no more requests. It still answers the requests that it has read.
    Goodbye,
    /// A frame that this version does not know: skip it.
    Unknown,
}

impl<'a> ToClient<'a> {
    /// Decodes a frame from a node.
    ///
    /// # Errors
    /// No version of a node sends this frame. The connection must be closed.
    pub fn decode(frame: &Frame<'a>) -> Result<Self, ClientHelloError> {
        let Frame { header, tail } = *frame;
        let is_known = match header.kind {
            KIND_ANSWER => is_request(Header { flags: header.flags & !FLAG_LEASE, ..header }),
            KIND_PING | KIND_PONG | KIND_GOODBYE => is_bare(header),
            _ => true,
        };
        if !is_known {
            return Err(bad("reserved bytes", u64::from(header.kind)).into());
        }
        Ok(match header.kind {
            KIND_ANSWER => {
                let has = |flag| header.flags & flag != 0;
                let proved_by = if has(FLAG_LEASE) { ProvedBy::Lease } else { ProvedBy::Round };
                let (range, is_latest) = (range(header, tail)?, has(FLAG_LATEST));
                Self::Answer { id: header.id, range, is_latest, proved_by }
            }
            KIND_ERROR => Self::Error(error(header, tail)?),
            KIND_LEADER => Self::Leader(leader(header, tail)?),
            KIND_WELCOME => Self::Welcome(Box::new(Welcome::decode(frame)?)),
            KIND_PING => Self::Ping(header.id),
            KIND_PONG => Self::Pong(header.id),
            KIND_GOODBYE if header.id == 0 => Self::Goodbye,
            KIND_REQUEST | KIND_HELLO | KIND_GOODBYE => {
                return Err(bad("kind", u64::from(header.kind)).into());
            }
            _ => Self::Unknown,
        })
    }
}

fn range(header: Header, tail: &[u8]) -> Result<TimestampRange, DecodeError> {
    let first = tail.try_into().map_err(|_| DecodeError::Truncated("timestamp"))?;
    let first = Timestamp::from_bytes(first);
    let count = u64::from(header.argument) + 1;
    TimestampRange::new(first, count).ok_or_else(|| {
        let EpochIndex(value) = first.index;
        bad("index", value)
    })
}

fn error(header: Header, tail: &[u8]) -> Result<ErrorFrame<'_>, DecodeError> {
    if header.flags & !FLAG_CLOSES != 0 {
        return Err(bad("flags", u64::from(header.flags)));
    }
    let text = text("text", tail, ERROR_TEXT_LEN_MAX)?;
    let closes = header.flags & FLAG_CLOSES != 0;
    Ok(ErrorFrame { code: header.code, closes, id: header.id, text })
}

fn leader(header: Header, tail: &[u8]) -> Result<LeaderNotice<'_>, DecodeError> {
    let addr = text("address", tail, ADDR_LEN_MAX)?;
    if header.flags != 0 || header.code != 0 {
        return Err(bad("reserved bytes", u64::from(header.kind)));
    }
    if (header.id == 0) != addr.is_empty() {
        return Err(bad("leader", header.id));
    }
    Ok(LeaderNotice { node: NodeId(header.id), addr })
}

const fn header(kind: u8, argument: u32, id: u64) -> Header {
    Header { kind, flags: 0, code: 0, argument, id }
}

/// Whether the header may be that of a request, or of its answer: it has a count and no flags, or
/// the flag of the latest timestamp and no count.
const fn is_request(header: Header) -> bool {
    header.code == 0 && (header.flags == 0 || (header.flags == FLAG_LATEST && header.argument == 0))
}

/// Whether only the id is set.
const fn is_bare(header: Header) -> bool {
    header.flags == 0 && header.code == 0 && header.argument == 0
}

const fn bad(field: &'static str, value: u64) -> DecodeError {
    DecodeError::BadValue { field, value }
}
