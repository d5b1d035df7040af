//! Decides, never does: everything that makes a timestamp right, and nothing that touches a
//! clock, a socket, a disk, a thread or chance. Inputs go in, outputs come out, and the same
//! inputs give the same outputs.
//!
//! Data plane (called by the workers of a node):
//! - [`publication`]: the one immutable object that tells a worker what it may rely on.
//! - [`promise`]: the highest term this node has promised anybody.
//! - [`quorum`]: which sets of voters decide, also while membership is joint.
//! - [`confirm`]: rounds that prove, after a batch has closed, that the term still holds.
//! - [`allocator`]: the one serial place where timestamps are taken.
//! - `sync`: the atomic, the lock and the pointer that these are made of.
//!
//! Consensus plane (called by its one thread):
//! - [`replica`]: the Raft library behind `handle_*` and `poll_*`.
//! - [`state`]: the replicated state: ceiling, owner, members; total and deterministic `apply`.
//! - [`log`]: the log as the library reads it, in memory.
//! - [`durable`]: what must be on disk before what leaves.
//! - [`clock`]: trusted time, the clock firewall.
//! - [`placement`]: where a node is, and where leaders should be.
//! - [`restore`]: where a new history of a cluster begins, and the proof that it is high enough.
//!
//! Test builds only:
//! - [`planted`]: bugs on purpose, for the checkers to find.
//!
//! Invariants are numbered in `docs/safety.md`; an `assert!` that guards one cites its number.

pub mod allocator;
pub mod clock;
pub mod confirm;
pub mod durable;
pub mod log;
pub mod placement;
pub mod planted;
pub mod positions;
pub mod promise;
pub mod publication;
pub mod quorum;
pub mod replica;
pub mod restore;
pub mod state;
#[cfg(not(feature = "loom"))]
mod sync;
#[cfg(feature = "loom")]
pub mod sync;
mod translate;
