//! The data that a node must still have after it was killed: tables of a database over any disk.
//! The disk is a file in production, and memory in tests and in the simulator. This crate has no
//! threads, files, clocks or random numbers. It never acknowledges a write that is not on disk, and
//! never retries a failed write. It never opens a database that has lost data. The server's
//! `storage` module puts the database into a directory, and runs it on a thread.
//!
//! - [`database`]: the tables and their transactions.
//! - [`identity`]: the node, cluster and store that the data belongs to.
//! - [`intervals`]: what a node remembers of interval mode.
//! - `stored`: the invariants of stored data, checked at every write and every opening.
//!
//! # Commits
//! Every commit is a two-phase commit of `redb`: two syncs. redb's default is a single-sync commit.
//! After such a commit, the next start checks whether the newest commit is whole. If not, it
//! *silently* goes back one commit. It cannot tell why a commit is not whole. A crash may have torn
//! a commit that was never acknowledged, or damage may have hit an acknowledged one. A vote
//! forgotten in this way would break Raft. With two phases the newest commit is known to have been
//! whole, so damage to it is an error. A test flips every bit of the header and many others. A
//! single bit has no checksum: it says which of two commits is the newest. Quick repair writes the
//! allocator's state with every commit. It is off, because the file is so small that a full repair
//! and a check of every page take about a millisecond.

pub mod database;
pub mod identity;
pub mod intervals;
mod stored;

pub use database::{Database, DatabaseError};
pub use identity::{Identity, IdentityError};
pub use intervals::{Intervals, IntervalsWrite};
