//! The client's half of HTTP/2 over TCP by prior knowledge (RFC 9113, 3.3) for one fixed request. A
//! request is 13 bytes, an answer is two frames, parsed in the buffer they were read into, and
//! neither allocates. `docs/decisions/0030-the-load-generators-http2-and-http3.md` says why it is
//! not the `h2` crate.
//!
//! - [`session`]: the connection and its streams: bytes in, answers out. No socket, no clock.
//! - `request`: the header block of the request.
//!
//! It never retries and never sends a body.

mod request;
pub mod session;

pub use request::Request;
pub use session::{Answer, Event, Session, SessionError};
