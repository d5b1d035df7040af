//! Certificates and trust, as TLS uses them on every port of a node, and in its clients. This crate
//! reads, checks and writes PEM files. It opens no socket, starts no thread and logs nothing: the
//! holder of a [`LivePair`] or [`LiveRoots`] calls `reload` and reports the result.
//!
//! - [`mod@file`]: a PEM file, and the setting that names it.
//! - [`pair`]: a certificate with its key.
//! - [`live`]: a pair that is replaced while connections go on.
//! - [`roots`]: the trusted authorities, replaced in the same way.
//! - [`name`]: the name in a node's certificate, with its cluster and its id.
//! - [`expiry`]: the expiry of a certificate.
//! - [`description`]: the fields of a certificate that people need.
//! - [`config`]: rustls with the versions, suites and limits that this project uses.
//!
//! With the feature `issue`, which is on by default and which clients leave off:
//! - `authority`: a small certificate authority for a cluster and its clients.
//! - `self_signed`: a pair that a node makes for itself.
//! - `validity`, `alternative_names`: two fields of a new certificate.
//!
//! Keys that are made here are ECDSA on P-256. For a server, a handshake costs a tenth of one with
//! RSA. Every program with TLS 1.2 supports these keys.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "issue")]
mod alternative_names;
#[cfg(feature = "issue")]
pub mod authority;
pub mod config;
pub mod description;
pub mod expiry;
pub mod file;
pub mod live;
pub mod name;
pub mod pair;
pub mod roots;
#[cfg(feature = "issue")]
pub mod self_signed;
#[cfg(feature = "issue")]
mod validity;

pub use config::{
    client_config, forward_client_config, forward_server_config, peer_client_config,
    peer_server_config, server_config,
};
pub use description::{Description, Purpose};
pub use file::{FileError, PemFile};
pub use live::LivePair;
pub use name::{is_named, node_name, node_of};
pub use pair::{Pair, PairError};
pub use roots::{LiveRoots, RootsError};
pub use rustls;

/// Compiles the example of the crate's own page as a test.
#[cfg(all(doctest, feature = "issue"))]
#[doc = include_str!("../README.md")]
struct Page;
