//! What a client's frames mean to whoever answers it, and why a connection ends.

use epicepoch_wire::http2::frame::code;
use http::Request;

use crate::http::frames::Abuse;
use crate::http::query::Ask;

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What the client is told, of [`code`].
    pub code: u32,
    /// How it is counted.
    pub abuse: Abuse,
}

impl Fault {
    pub(super) const PROTOCOL: Self = Self::new(code::PROTOCOL_ERROR);
    pub(super) const CLOSED: Self = Self::new(code::STREAM_CLOSED);
    pub(super) const SIZE: Self = Self::new(code::FRAME_SIZE_ERROR);
    pub(super) const WINDOW: Self = Self::new(code::FLOW_CONTROL_ERROR);
    pub(super) const CALM: Self = Self { code: code::ENHANCE_YOUR_CALM, abuse: Abuse::Calm };

    pub(super) const fn new(code: u32) -> Self {
        Self { code, abuse: Abuse::Protocol }
    }
}

/// What a frame meant. A stream that is named is open, but for the one of a reset.
#[derive(Debug)]
pub enum Event {
    /// Nothing to the caller.
    Nothing,
    /// A hot request has come whole: [`Session::hot`](super::Session::hot) says what it asks for.
    Hot {
        /// Its stream.
        id: u32,
    },
    /// The head of another request.
    Request {
        /// Its stream.
        id: u32,
        /// What it says.
        request: Box<Request<()>>,
        /// Bytes of the body that comes, if it says so; nothing comes where it is 0.
        body_len: Option<u64>,
    },
    /// The head of a request that is longer than [`HEAD_LEN_MAX`](super::HEAD_LEN_MAX).
    TooLong {
        /// Its stream.
        id: u32,
    },
    /// A part of a body.
    Data {
        /// Its stream.
        id: u32,
        /// Bytes.
        len: usize,
        /// Whether it was the last part.
        ends: bool,
    },
    /// A stream has ended before its answer: by the client's wish, or by its fault.
    Reset {
        /// The stream.
        id: u32,
    },
    /// More may be sent.
    Window,
    /// The client may keep a table of another size, bytes.
    Table(usize),
}

/// The hot request that came last. One that is like it, byte for byte, is not decoded.
#[derive(Debug)]
pub struct Hot {
    /// What it asks for.
    pub ask: Ask,
    /// What comes back in `epicepoch-request-id`; empty where none was given.
    pub request_id: Vec<u8>,
    /// What stands in `authorization`; empty where that is not given.
    pub authorization: Vec<u8>,
}
