//! The HTTP interface of a worker: HTTP/1.1 and HTTP/2 on one port, the table of paths, and what
//! each answers. It holds no timestamp and no proof: `/timestamp` asks the worker's sequencer.
//!
//! - `connection`: a client's connection: limits, idle time, how it ends.
//! - `client_state`: since when a connection is silent.
//! - `client_stream`: a client's stream as hyper has it.
//! - [`frames`]: what an HTTP/2 client sends beside requests, and how much of it is too much.
//! - `date`: the `Date` of answers.
//! - `opening`: what a connection begins with.
//! - `hot`: `GET /timestamp` over HTTP/1.1, as far as it can be answered without hyper.
//! - [`http2`]: HTTP/2, with the same service for what is not that request.
//! - `http3`: HTTP/3 over QUIC, with the same service.
//! - `service`: one request, whatever it came over: route, wait, answer.
//! - [`route`]: the table: paths, methods, rights.
//! - `admin`: what operators ask.
//! - `query`: what a request for timestamps asks for.
//! - `answer`: headers and bodies common to all answers, and the texts of refusals.
//! - `body`: answers that need no memory, or only a little at a time.
//! - `members`: who is in the cluster, as JSON.

mod admin;
mod answer;
mod body;
pub(crate) mod client_state;
mod client_stream;
pub(crate) mod connection;
mod date;
pub mod frames;
pub mod hot;
pub mod http2;
pub mod http3;
mod members;
mod opening;
pub mod query;
pub mod route;
mod service;
