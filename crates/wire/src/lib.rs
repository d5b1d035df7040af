//! Bytes and their meaning: every format of EpicEpoch that another program may read, on the network or
//! on disk. This crate never opens a socket, reads a clock or decides anything.
//!
//! - [`timestamp`]: the 16-byte hybrid timestamp, ranges, and their relation to wall time.
//! - [`id`]: newtypes for every number that has a meaning.
//! - [`exposition`]: the formats of a page of metrics.
//! - [`guarantee`]: the guarantee that a request asks for, and what has proved an answer.
//! - [`http`]: paths, header names and error codes of the HTTP interface.
//! - [`http1`]: answers over HTTP/1.1, as a client reads them.
//! - [`http2`]: frames and header blocks of HTTP/2.
//! - [`grpc`]: messages of gRPC, and of PD, whose clients this node can serve.
//! - [`interval`]: the answer of interval mode.
//! - [`mode`]: how a cluster gives timestamps.
//! - [`frame`]: the frame of the peer protocol: header, limits, checksum.
//! - [`peer_hello`]: the hello of a peer connection, and its refusal.
//! - [`native`]: the native protocol of clients.
//! - [`confirm`]: the two small frames of a confirm round.
//! - [`raft_message`]: the Raft messages that a peer may send, in a codec of our own.
//! - [`voter_status`]: the zone and health of a voter, for its leader.
//! - [`settings`]: settings that are part of the replicated state.
//! - [`gossip`]: clock samples between peers.
//! - [`bootstrap`]: the messages and the genesis of a first bootstrap.
//! - [`backup`]: the backup file that a restore needs.

pub mod backup;
pub mod bootstrap;
pub mod confirm;
pub mod cursor;
pub mod exposition;
pub mod frame;
pub mod gossip;
pub mod grpc;
pub mod guarantee;
pub mod http;
pub mod http1;
pub mod http2;
pub mod id;
pub mod interval;
pub mod mode;
pub mod native;
pub mod peer_hello;
pub mod raft_message;
pub mod settings;
pub mod timestamp;
pub mod timestamp_format;
pub mod voter_status;

pub use cursor::DecodeError;
pub use guarantee::{Guarantee, ProvedBy};
pub use id::{
    BootId, ClusterId, HistoryId, LogIndex, NodeId, Round, StoreId, StorePosition, Term, WorkerId,
};
pub use mode::{Mode, UnknownMode};
pub use timestamp::{
    COMPACT_EPOCH_NS, COMPACT_INDEX_BITS, COMPACT_INDEXES, COMPACT_MAX, Epoch, EpochIndex,
    Timestamp, TimestampRange,
};
pub use timestamp_format::{TimestampFormat, UnknownTimestampFormat};

/// Compiles the example of the crate's own page as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Page;
