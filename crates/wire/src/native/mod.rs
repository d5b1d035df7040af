//! The native protocol: what clients and nodes say to each other in frames of 16 and 32 bytes on
//! the client port. `docs/protocol.md` draws it byte by byte; `vectors/native.json` are bytes that
//! every implementation must read and write exactly.
//!
//! It never opens a socket and never waits. Reading and writing the frames of the hot path
//! (requests, answers, pings) takes no memory: frames borrow from the buffer they are read from.
//! All numbers are big-endian, as timestamps are.
//!
//! - [`frame`]: the header and the sizes of frames, known and unknown.
//! - [`hello`]: how a connection begins: who is there, and what both speak.
//! - [`message`]: what a frame means, for either end.
//! - [`token`]: what a client shows to be let in.

pub mod frame;
pub mod hello;
pub mod message;
pub mod token;

pub use frame::{ANSWER_LEN, Frame, HEADER_LEN, REQUEST_LEN, split};
pub use hello::{ClientHello, HelloError, Welcome};
pub use message::{ErrorFrame, LeaderNotice, Request, ToClient, ToServer};
pub use token::{TOKEN_LEN_MAX, Token};

/// The version that this code speaks. A connection's version is chosen by the node, in
/// [`Welcome`].
pub const VERSION: u8 = 1;
/// The first byte of a connection that speaks this protocol. No method of HTTP/1.1 begins with
/// it (it is no character of a token), neither does the preface of HTTP/2 (`P`) nor a TLS
/// handshake (`0x16`).
pub const FIRST_BYTE: u8 = frame::KIND_HELLO;
/// Largest count of a request, timestamps.
pub const COUNT_MAX: u64 = 1 << 32;
/// Most bytes that follow the header of a frame to a node. A hello with every field has fewer.
pub const TO_SERVER_TAIL_LEN_MAX: usize = 4 << 10;
/// Most bytes that follow the header of a frame to a client. A welcome that lists
/// [`MEMBERS_MAX`](hello::MEMBERS_MAX) members has fewer.
pub const TO_CLIENT_TAIL_LEN_MAX: usize = 32 << 10;
