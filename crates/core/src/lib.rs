//! The core: it makes the decisions and has no side effects. Everything that makes a timestamp
//! right is here. Nothing here touches a clock, a socket, a disk, a thread or a random source. The
//! same inputs give the same outputs.
//!
//! Data plane (called by the workers of a node):
//! - [`publication`]: the one immutable object that tells a worker what it may rely on.
//! - [`promise`]: the highest term that this node has promised.
//! - [`quorum`]: the sets of voters that decide, also while membership is joint.
//! - [`confirm`]: rounds that prove, after a batch has closed, that the term still holds; a
//!   voter's answers; over which links questions and answers go.
//! - [`lease`]: the lease of a leader, and for how long others wait.
//! - [`sequencer`]: which requests share a round, and what each of them is told.
//! - [`allocator`]: the one serial place where timestamps are taken.
//! - [`interval`]: interval mode, in which every node gives timestamps alone.
//! - `sync`: the atomic, the lock and the pointer that the modules above are made of.
//!
//! Consensus plane (called by its one thread):
//! - [`node`]: all its decisions in one state machine, with one call a tick.
//! - [`admin`]: the admin commands of operators, until they are answered.
//! - [`replica`]: the Raft library behind `handle_*` and `poll_*`.
//! - [`state`]: the replicated state: ceiling, owner, members; total and deterministic `apply`.
//! - [`log`]: the log as the library reads it, in memory.
//! - [`durable`]: the data that must be on disk before a message leaves.
//! - [`clock`]: trusted time, the clock firewall.
//! - [`placement`]: the zone of a node, and the zones where leaders should be.
//! - [`restore`]: the lowest epoch of a new history of a cluster, and the proof that it is high
//!   enough.
//!
//! Invariants are numbered in `docs/safety.md`; an `assert!` that guards one cites its number.

pub mod admin;
pub mod allocator;
pub mod clock;
pub mod closing;
pub mod confirm;
pub mod durable;
mod epoch_range;
pub mod interval;
pub mod lease;
pub mod log;
pub mod node;
pub mod placement;
pub mod positions;
pub mod promise;
pub mod publication;
pub mod quorum;
pub mod replica;
pub mod restore;
pub mod sequencer;
pub mod state;
#[cfg(not(feature = "loom"))]
mod sync;
#[cfg(feature = "loom")]
pub mod sync;
mod translate;
