//! The client's half of HTTP/2 over TCP by prior knowledge (RFC 9113, 3.3) for one fixed request. A
//! request is 13 bytes. An answer is two frames, which are parsed in the buffer that received them.
//! Neither allocates memory. `docs/decisions/0030-the-load-generators-http2-and-http3.md` says why
//! this is not done with the `h2` crate.
//!
//! - [`session`]: the connection and its streams: bytes in, answers out. No socket, no clock.
//! - `request`: the header block of the request.
//!
//! This client never retries a request and never sends a body.

mod request;
pub mod session;

pub use request::Request;
pub use session::{Answer, Event, Session, SessionError};
