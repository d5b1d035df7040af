//! Which clients and peers may connect, and what they may do.
//!
//! - [`authz`]: the rights of callers.
//! - [`tls`]: TLS on the client port, and certificates that are reloaded.
//! - `limits`: how many connections and requests each address may have.
//! - [`excess`]: the log of clients that send too much.
//! - `line_limit`: how often the log says the same thing.

pub mod authz;
pub mod excess;
pub(crate) mod limits;
mod line_limit;
pub mod tls;
