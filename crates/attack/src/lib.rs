//! Clients that mean harm, at the socket: what a node must survive is sent by its tests and by
//! `scripts/attack`. It speaks to addresses that it is given and to no others, and is no part of
//! anything that ships.
//!
//! - [`http2`]: a client of HTTP/2 that sends any frame it likes, and the floods made of them.
//! - [`crowd`]: many connections that say little or nothing.
//! - [`peers`]: connections to the port of nodes that never say who they are.
//! - [`requests`]: more requests, or connections, than a node can serve.
//! - [`quic`]: first packets of QUIC that nobody means: garbage, and handshakes that never go on.
//! - [`good`]: a client that asks at a steady rate meanwhile, and how long it waits.
//! - [`echo`]: a server that does nothing but answer, to see what a machine can do under the same.

pub mod crowd;
pub mod echo;
pub mod good;
pub mod http2;
pub mod peers;
pub mod quic;
pub mod requests;
