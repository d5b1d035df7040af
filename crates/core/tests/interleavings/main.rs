//! Tests the state that the threads of a node share, under every order of their steps that matters.
//! The tests run the real Promise, publication, rounds and allocator on loom's atomics and locks.
//! Each claim has variants with a planted bug, which must fail. They show that the claim can catch
//! a bug.
//!
//! `cargo test -p epicepoch-core --features loom --test interleavings`

mod allocator;
mod leases;
mod promise;
mod publication;
mod rounds;
mod stage;
