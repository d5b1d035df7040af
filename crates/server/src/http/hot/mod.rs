//! The hot request of HTTP/1.1, `GET /timestamp`, without the library that speaks the rest. A
//! connection begins here; what is not exactly the hot shape goes to hyper, with every byte that
//! is not answered yet, and the connection stays there. Requests join the batches of the worker's
//! sequencer as those of the native protocol do, the requests of one read as one run, and their
//! answers are the bytes that hyper would have written. It holds no timestamp and no proof, and
//! never guesses what a request means: in doubt it is hyper's
//! (`docs/decisions/0015-hot-path-for-http1.md`).
//!
//! - `scan`: whether bytes begin with a hot request.
//! - `connection`: one client's connection: reads, answers, limits, when it is handed over.
//! - `heads`: answers as bytes, ready but for what differs.

pub(crate) mod connection;
mod heads;
pub mod scan;
