//! The client's half of HTTP/2 over TCP by prior knowledge (RFC 9113, section 3.3) for one fixed
//! request, thin enough to measure with: a request is 13 bytes, an answer is two frames that are
//! looked at in the buffer they were read into, and nothing is allocated for either.
//!
//! - [`session`]: the connection and its streams: bytes in, answers out. No socket, no clock.
//! - `request`: the header block of the request.
//!
//! It never retries and never sends a body.

mod request;
pub mod session;

pub use request::Request;
pub use session::{Answer, Event, Session, SessionError};
