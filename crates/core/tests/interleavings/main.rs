//! What the threads of a node share, under every order of their steps that matters: the real
//! Promise, publication, rounds and allocator on loom's atomics and locks. Each claim has planted
//! variants beside it that must fail, so that no claim holds by being empty.
//!
//! `cargo test -p epicepoch-core --features loom --test interleavings`

mod allocator;
mod promise;
mod publication;
mod rounds;
mod shared_round;
mod stage;
