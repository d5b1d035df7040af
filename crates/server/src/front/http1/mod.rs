//! The fast path of HTTP/1.1: `GET /timestamp` without an HTTP library. Every HTTP/1.1 connection
//! begins here. At the first request of any other shape, hyper takes over the connection, with
//! every byte that is not answered yet. Requests join the batches of the worker's sequencer like
//! those of the native protocol: the requests of one read are one burst. Answers are the same bytes
//! that hyper would write. This module holds no timestamp and no proof, and never guesses what a
//! request means: in doubt, hyper decides (`docs/decisions/0015-fast-path-for-http1.md`).
//!
//! - `scan`: whether bytes begin with a request of the fast path.
//! - `protocol`: this protocol in the request pipeline.
//! - `hyper_stream`: a client's stream after hyper took over.
//! - `templates`: answers as bytes, complete except for the parts that differ.

pub(crate) mod hyper_stream;
pub(crate) mod protocol;
pub mod scan;
mod templates;
