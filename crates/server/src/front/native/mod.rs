//! The native protocol of a worker (`docs/protocol.md`): fixed-size frames, many requests in flight
//! per connection, and no allocation per request once the buffers have grown.
//!
//! - `protocol`: this protocol in the request pipeline.
//! - `welcome`: which clients may connect, and the welcome that they get.

pub(crate) mod protocol;
mod welcome;
