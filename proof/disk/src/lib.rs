//! What storage is tested with, in its own tests, in the simulator, in fuzzing and in the server's
//! tests. This crate does not depend on `epicepoch-storage`, so storage's unit tests can use it.
//!
//! - [`simulated_disk`]: a disk in memory that loses power and may lie about its syncs.
//! - [`model`]: the expected content of a data directory in its simplest form, and random writes.

pub mod model;
pub mod simulated_disk;
