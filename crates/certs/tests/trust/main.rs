//! What certificates and trust are held to, at both ends of a handshake in memory.

mod files;
mod handshakes;
mod memory;
