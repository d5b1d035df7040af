//! The request pipeline: read, admit, join a batch, settle, answer or refuse, write. It serves the
//! TCP protocols that this node speaks without a library. A [`protocol::Protocol`] only parses
//! bytes and formats answers. The pipeline holds no timestamp and no proof: requests join the
//! batches of the worker's sequencer.
//!
//! - `connection`: the loop that drives one client's connection, and the decisions about requests.
//! - `protocol`: the parts that each protocol provides.
//! - `queue`: requests that wait, and the bursts in which they joined batches.
//! - `refusal`: why a request gets no timestamps now.
//! - `outbox`: answers that wait to be written.

pub(crate) mod connection;
mod outbox;
pub(crate) mod protocol;
pub(crate) mod queue;
pub(crate) mod refusal;
