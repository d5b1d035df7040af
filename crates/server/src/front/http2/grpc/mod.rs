//! gRPC calls of one HTTP/2 connection: our own service (`GRPC`), that of PD (`PD_WIRE`), health
//! checks and reflection. A call is a stream: a head, messages in both directions, and trailers
//! with a status. A message that asks for timestamps joins the batches of the worker like the
//! requests of HTTP, and its answer is a message of the same stream, in order.
//!
//! A call never holds a timestamp and never proves anything. It never compresses. A node that does
//! not lead ends the call, with the words that PD's clients know and the leader's address in the
//! details, unless it forwards.
//!
//! - `call`: the open calls, and how much each may hold.
//! - `serving`: what the methods do.
//! - `oracle`, `pd`, `health`: what the services are asked and answer.
//! - `status`: how calls end.
//! - `blocks`: which requests are calls, and header blocks of answers.

mod blocks;
mod call;
mod health;
mod oracle;
mod pd;
mod serving;
mod status;

pub(super) use blocks::is_call;
pub(super) use call::{Calls, Given};
