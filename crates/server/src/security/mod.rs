//! Which clients and peers may connect, and what they may do.
//!
//! - [`authz`]: the rights of callers.
//! - [`tls`]: TLS on the client port, and certificates that are reloaded.
//! - `limits`: how many connections and requests each address may have.

pub mod authz;
pub(crate) mod limits;
pub mod tls;
