//! HTTP/2 (RFC 9113), the server's half of a connection, for the requests of this node: small ones,
//! with bodies that mean nothing. All of the protocol is spoken here, since one connection has one
//! state of header compression, and the hot request cannot be cut out of it
//! (`docs/decisions/0026-http2-of-our-own.md`). `GET /timestamp` joins the batches of the worker's
//! sequencer as on the hot path of HTTP/1.1, the requests of one read as one run; everything else goes
//! to the service that answers all. It holds no timestamp and no proof, and it never pushes.
//!
//! - [`session`]: the protocol: bytes in, requests out. No socket, no clock.
//! - `head`: what a header block says, and whether it is a request.
//! - `streams`: which requests are open, and what may be sent for them.
//! - `answers`: header blocks of answers, as short as the client's table allows.
//! - `exchange`: a request that is not hot, and a body that its client does not take at once.
//! - `waiting`: hot requests that wait for their runs.
//! - `connection`: one client's connection: reads, answers, limits.

mod answers;
pub(crate) mod connection;
mod exchange;
mod head;
pub mod session;
mod streams;
mod waiting;
