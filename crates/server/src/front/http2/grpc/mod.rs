//! gRPC calls of one HTTP/2 connection, for clients of PD and for health checks (`PD_WIRE`). A call
//! is a stream: a head, messages in both directions, and trailers with a status. Each message of a
//! `Tso` call is a request for timestamps. It joins the batches of the worker like the requests of
//! HTTP, and its answer is a message of the same stream, in order.
//!
//! A call never holds a timestamp and never proves anything. It never compresses, and it never
//! forwards: a node that does not lead ends the call, with the words that PD's clients know.
//!
//! - `call`: the open calls, and how much each may hold.
//! - `serving`: what the methods do.
//! - `status`: how calls end.
//! - `blocks`: which requests are calls, and header blocks of answers.
//! - `answers`: the content of answers that are not timestamps.

mod answers;
mod blocks;
mod call;
mod serving;
mod status;

pub(super) use blocks::is_call;
pub(super) use call::Calls;
