//! A header block of which a part has arrived, and the priority in front of it.

use epicepoch_wire::http2::frame::ID_MAX;

/// A header block whose end has not arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unfinished {
    pub(super) id: u32,
    pub(super) ends: bool,
    pub(super) depends_on_itself: bool,
    pub(super) parts: usize,
}

/// The stream that a priority depends on. RFC 9113 dropped the other parts of priorities.
pub(super) fn depends_on([a, b, c, d, _]: [u8; 5]) -> u32 {
    u32::from_be_bytes([a, b, c, d]) & ID_MAX
}
