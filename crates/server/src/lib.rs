//! Does, never decides: the threads, sockets and files around [`epicepoch_core`]. What may be
//! answered, promised or forgotten is decided there; nothing here holds a rule of the protocol.
//!
//! - [`faults`]: the documented test switch; a release build has none.
//! - [`framed`]: peer frames over a byte stream.
//! - [`storage`]: the data directory: who it belongs to, and what must survive.

pub mod faults;
pub mod framed;
pub mod storage;
