//! Certificates, and the trust in them: what TLS on every port of a node, and of its clients, is
//! made of. It reads and writes PEM files and checks what is in them. It opens no socket, starts
//! no thread and logs nothing: who holds a [`LivePair`] or [`LiveRoots`] calls `reload` when it
//! wants to, and says what came of it.
//!
//! - [`mod@file`]: a PEM file, and the setting that names it.
//! - [`pair`]: a certificate with its key; one is made where both are missing.
//! - [`live`]: a pair that is replaced while connections go on.
//! - [`roots`]: whom to trust, replaced in the same way.
//! - [`name`]: the name in a node's certificate, which says its cluster and its id.
//! - [`expiry`]: until when a certificate holds.
//! - [`authority`]: a small certificate authority for a cluster and its clients.
//! - [`config`]: rustls with the versions, suites and limits that this project uses.
//!
//! Keys that are made here are ECDSA on P-256: a handshake with one costs a server a tenth of what
//! RSA costs, and everything that speaks TLS 1.2 knows them.

pub mod authority;
pub mod config;
pub mod expiry;
pub mod file;
pub mod live;
pub mod name;
pub mod pair;
pub mod roots;

pub use config::{client_config, peer_client_config, peer_server_config, server_config};
pub use file::{FileError, PemFile};
pub use live::LivePair;
pub use name::{is_named, node_name, node_of};
pub use pair::{Pair, PairError};
pub use roots::{LiveRoots, RootsError};
pub use rustls;
