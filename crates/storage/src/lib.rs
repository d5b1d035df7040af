//! What a node must still know after it was killed, as tables of a database over any disk: a file
//! in production, bytes in memory under test and in the simulator. It has no thread, opens no file,
//! reads no clock and draws no chance; it never acknowledges what is not on disk, never retries a
//! failed write, and never opens what lost something. The server's `storage` puts it into a
//! directory and behind a thread.
//!
//! - [`database`]: the tables and their transactions.
//! - [`identity`]: which node, cluster and store the data belongs to.
//! - `stored`: the invariants of what is stored, checked at every write and every opening.
//!
//! To break it: [`simulated_disk`], a disk in memory that loses power, and one that lies about its
//! syncs; [`model`], what must be stored in plain words, and random writes.
//!
//! # Commits
//! Every commit is a two-phase commit of `redb`: two syncs. The single-sync commit that is its
//! default finds out at the next start whether the newest commit is whole and *silently* goes back
//! one commit when it is not; it cannot tell a commit torn by a crash, which nobody was told of,
//! from an acknowledged one that has rotted since. A vote forgotten so would break Raft. With two
//! phases the newest commit is known to have been whole, and damage to it is an error: a test flips
//! every bit of the header and many others, and one single bit is left that no checksum covers, the
//! one that says which of two commits is the newest. Quick repair, which writes the allocator's
//! state with every commit, is off: the file is so small that a full repair and a check of every
//! page take about a millisecond.

pub mod database;
pub mod identity;
pub mod model;
pub mod simulated_disk;
mod stored;

pub use database::{Database, DatabaseError};
pub use identity::{Identity, IdentityError};
