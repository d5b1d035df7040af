//! Bytes and their meaning: everything that EpicEpoch puts on a wire or a disk page that another
//! program may read. It never opens a socket, never reads a clock and never decides anything.
//!
//! - [`timestamp`]: the 16-byte hybrid timestamp, ranges of it, and its relation to wall time.
//! - [`id`]: newtypes for every number that has a meaning.
//! - [`http`]: paths, header names and error codes of the HTTP interface.
//! - [`http2`]: frames and header blocks of HTTP/2.
//! - [`frame`]: the frame that peers speak: header, limits, checksum.
//! - [`hello`]: who is at the other end of a peer connection, and why it may be refused.
//! - [`native`]: the protocol of clients that want more than HTTP gives.
//! - [`confirm`]: the two small frames of a confirm round.
//! - [`raft_message`]: the only Raft messages a peer may send, in a codec of our own.
//! - [`standing`]: what a voter tells its leader of itself, so that leadership goes to good places.
//! - [`settings`]: settings that are part of the replicated state.
//! - [`gossip`]: clock samples between peers.
//! - [`bootstrap`]: how first members find each other empty, and the genesis that binds them.
//! - [`backup`]: what a restore needs to know of an earlier history, as a file.

pub mod backup;
pub mod bootstrap;
pub mod confirm;
pub mod cursor;
pub mod frame;
pub mod gossip;
pub mod hello;
pub mod http;
pub mod http2;
pub mod id;
pub mod native;
pub mod raft_message;
pub mod settings;
pub mod standing;
pub mod timestamp;

pub use cursor::DecodeError;
pub use id::{
    BootId, ClusterId, HistoryId, LogIndex, NodeId, Round, StoreId, StorePosition, Term, WorkerId,
};
pub use timestamp::{Epoch, EpochIndex, Timestamp, TimestampRange};
