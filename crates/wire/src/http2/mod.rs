//! The formats of HTTP/2 (RFC 9113) for both ends: frames, and header blocks (RFC 7541). This
//! module has no state of connections or streams. It enforces only the limits of the format.
//!
//! - [`frame`]: the frames.
//! - [`hpack`]: header blocks; `huffman`: the strings in them.

pub mod frame;
pub mod hpack;
mod huffman;
