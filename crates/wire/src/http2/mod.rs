//! What both ends of HTTP/2 (RFC 9113) read and write: frames, and header blocks (RFC 7541). It knows
//! no connection, no stream and no limit that is not of the format.
//!
//! - [`frame`]: what a connection consists of.
//! - [`hpack`]: header blocks; `huffman`: the strings in them.

pub mod frame;
pub mod hpack;
mod huffman;
