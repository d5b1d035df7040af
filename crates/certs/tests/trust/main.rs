//! Tests of certificates and trust, with both ends of a handshake in memory.

mod files;
mod handshakes;
mod memory;
