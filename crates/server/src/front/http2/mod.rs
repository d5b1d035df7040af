//! The server's half of an HTTP/2 connection (RFC 9113). It serves the requests of this node, which
//! are small and whose bodies mean nothing. This module uses no HTTP/2 library. Header compression
//! has one state per connection, so `GET /timestamp` cannot be split off from the other requests
//! (`docs/decisions/0026-http2-of-our-own.md`). `GET /timestamp` joins the batches of the worker's
//! sequencer like the fast path of HTTP/1.1: the requests of one read are one burst. All other
//! requests go to the service. This module holds no timestamp and no proof, and never pushes.
//!
//! - [`session`]: the protocol: bytes in, requests out. No socket, no clock.
//! - `head`: the content of a header block, and whether it is a request.
//! - `streams`: the open requests, and how much may be sent for them.
//! - `answers`: header blocks of answers, as short as the client's table allows.
//! - `exchange`: requests of the service, and bodies that a client does not accept at once.
//! - `grpc`: calls of gRPC, for clients of PD.
//! - [`meter`]: the frames that a client sends beside requests, and their limit.
//! - `protocol`: this protocol in the request pipeline.

mod answers;
mod exchange;
mod grpc;
mod head;
pub mod meter;
pub(crate) mod protocol;
pub mod session;
mod streams;
