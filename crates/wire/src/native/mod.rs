//! The native protocol between clients and nodes: frames of 16 and 32 bytes on the client port.
//! `docs/protocol.md` draws it byte by byte; every implementation must read and write the bytes in
//! `vectors/native.json` exactly.
//!
//! Reading and writing requests, answers and pings allocates no memory: frames borrow from the
//! buffer. All numbers are big-endian, like the timestamps.
//!
//! - [`frame`]: the header and the sizes of frames, known and unknown.
//! - [`client_hello`]: the beginning of a connection.
//! - [`interval`]: requests and answers of interval mode.
//! - [`message`]: the meaning of a frame, for either end.
//! - [`token`]: the token of a client.

pub mod client_hello;
pub mod frame;
pub mod interval;
pub mod message;
pub mod token;

pub use client_hello::{ClientHello, ClientHelloError, Welcome};
pub use frame::{ANSWER_LEN, Frame, HEADER_LEN, REQUEST_LEN, split};
pub use interval::{IntervalRequest, read_interval_answer};
pub use message::{ErrorFrame, LeaderNotice, Request, ToClient, ToServer};
pub use token::{TOKEN_LEN_MAX, Token};

/// The version of the protocol that this code speaks. The node chooses a connection's version, in
/// [`Welcome`].
pub const VERSION: u8 = 1;
/// Feature: the node answers requests for the latest timestamp.
pub const FEATURE_LATEST: u64 = 1;
/// Feature: the node answers requests for interval timestamps, in interval mode.
pub const FEATURE_INTERVALS: u64 = 2;
/// Feature: the client can follow to the leader, or is itself a node that forwards. No node forwards
/// its requests (S22).
pub const FEATURE_DIRECT: u64 = 4;
/// Only from a node that forwards: it has checked the token of each request that it sends on.
pub const FEATURE_CHECKED_TOKENS: u64 = 8;
/// Only from a node that forwards: it has checked the certificate of each client whose requests it
/// sends on.
pub const FEATURE_CHECKED_CERTIFICATES: u64 = 16;
/// The agent in the hello of a node that forwards, before its node id. It is for logs, and for links
/// of tests that must know which node they carry. No right depends on it.
pub const FORWARDER_AGENT: &str = "epicepoch-forwarder/";
/// All features of a client of this code.
pub const FEATURES: u64 = FEATURE_LATEST | FEATURE_DIRECT;
/// All features of a node of this code.
pub const FEATURES_OF_NODE: u64 = FEATURE_LATEST | FEATURE_INTERVALS | FEATURE_DIRECT;
/// The first byte of a connection of this protocol. A request of HTTP/1.1 cannot begin with this
/// byte, because a method has only visible characters. The preface of HTTP/2 begins with `P`, and a
/// TLS handshake with `0x16`.
pub const FIRST_BYTE: u8 = frame::KIND_HELLO;
/// Largest count of a request, timestamps.
pub const COUNT_MAX: u64 = 1 << 32;
/// A frame to a node has at most this many bytes after its header. Even a hello with every field is
/// shorter.
pub const TO_SERVER_TAIL_LEN_MAX: usize = 4 << 10;
/// A frame to a client has at most this many bytes after its header. Even a welcome that lists
/// [`MEMBERS_MAX`](client_hello::MEMBERS_MAX) members is shorter.
pub const TO_CLIENT_TAIL_LEN_MAX: usize = 32 << 10;
