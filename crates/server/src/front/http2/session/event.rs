//! The meaning of a client's frames for the code that answers them, and the reasons why a
//! connection ends.

use epicepoch_wire::http2::frame::code;
use http::Request;

use crate::front::routes::query::Ask;
use crate::metrics::worker::Abuse;

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The error code that the client gets, one of [`code`].
    pub code: u32,
    /// The reason under which the metrics count this disconnection.
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

/// The meaning of a frame. The stream that an event names is open, except in [`Event::Reset`].
#[derive(Debug)]
pub enum Event {
    /// The caller has nothing to do.
    Nothing,
    /// A whole request of the fast path has arrived:
    /// [`Session::fast_request`](super::Session::fast_request) returns it.
    Fast {
        /// The stream of the request.
        id: u32,
    },
    /// The head of another request has arrived.
    Request {
        /// The stream of the request.
        id: u32,
        /// The request without its body.
        request: Box<Request<()>>,
        /// Announced bytes of the body; `None` if they are not announced, 0 if there is no body.
        body_len: Option<u64>,
    },
    /// A request's head is longer than [`HEAD_LEN_MAX`](super::HEAD_LEN_MAX).
    TooLong {
        /// The stream of the request.
        id: u32,
    },
    /// A part of a body has arrived.
    Data {
        /// The stream of the request.
        id: u32,
        /// Length of the part in bytes.
        len: usize,
        /// Whether it was the last part.
        ends: bool,
    },
    /// A stream has ended before its answer: the client cancelled it or made a fault.
    Reset {
        /// The stream that has ended.
        id: u32,
    },
    /// The node may be allowed to send more.
    Window,
    /// The client allows another table size, in bytes.
    Table(usize),
}

/// The latest request of the fast path. If the next header block is identical, it is not decoded
/// again.
#[derive(Debug)]
pub struct FastRequest {
    /// The count and format that it asks for.
    pub ask: Ask,
    /// The value of `epicepoch-request-id`, which the answer repeats; empty if there is none.
    pub request_id: Vec<u8>,
    /// The value of `authorization`; empty if there is none.
    pub authorization: Vec<u8>,
    /// Whether it must not be sent on to another node (`epicepoch-direct: 1`).
    pub is_direct: bool,
}
