//! gRPC over HTTP/2, as far as this project serves it: messages with their length in front, the
//! fields of Protocol Buffers, status codes, and the messages of four services. Numbers of fields
//! and codes are facts of the published definitions. All formats here are written by hand, because
//! they are few and small (`docs/decisions/0053-pds-wire-by-hand.md`).
//!
//! - [`message`]: a message in the body of a request or an answer.
//! - [`protobuf`]: the fields of a message.
//! - [`status`]: how a call ends.
//! - [`pd`]: the messages of PD, the timestamp service of TiKV.
//! - [`oracle`]: the messages of our own service.
//! - [`health`]: the messages of gRPC's health checks.
//! - [`reflection`]: the answers about what a node serves.

pub mod health;
pub mod message;
pub mod oracle;
pub mod pd;
pub mod protobuf;
pub mod reflection;
pub mod status;
