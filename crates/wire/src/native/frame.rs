//! The header and the length of a frame. The kind determines the length. This is so even for
//! unknown kinds, so that frames of later versions can be skipped.
//!
//! ```text
//!  offset  0      1       2        4          8            16
//!          ├──────┼───────┼────────┼──────────┼────────────┼──────────
//!          │ kind │ flags │ code   │ argument │ id         │ tail…
//!          └ u8 ──┴ u8 ───┴ u16 ───┴ u32 ─────┴ u64 ───────┴──────────
//! ```

use crate::cursor::DecodeError;

/// Length of a header in bytes. A frame of a small kind consists only of its header.
pub const HEADER_LEN: usize = 16;
/// Bytes of a request.
pub const REQUEST_LEN: usize = HEADER_LEN;
/// Length in bytes of a frame of a wide kind, such as an answer: a header and a timestamp.
pub const ANSWER_LEN: usize = 32;

/// A client asks for timestamps.
pub const KIND_REQUEST: u8 = 0x01;
/// Sent by either end, to check that the other end is alive.
pub const KIND_PING: u8 = 0x02;
/// The answer to a ping.
pub const KIND_PONG: u8 = 0x03;
/// A node says that it reads no more requests on this connection.
pub const KIND_GOODBYE: u8 = 0x04;
/// A client asks for interval timestamps.
pub const KIND_INTERVAL_REQUEST: u8 = 0x05;
/// A node gives interval timestamps.
pub const KIND_INTERVAL_ANSWER: u8 = 0x43;
/// A node gives timestamps.
pub const KIND_ANSWER: u8 = 0x41;
/// A client begins a connection.
pub const KIND_HELLO: u8 = 0x80;
/// A node accepts a connection.
pub const KIND_WELCOME: u8 = 0x81;
/// A node refuses a request, or the connection.
pub const KIND_ERROR: u8 = 0x82;
/// A node names the leader.
pub const KIND_LEADER: u8 = 0x83;

/// The length of a frame, which the two highest bits of its kind determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// [`HEADER_LEN`] bytes: kinds `0x00` to `0x3f`.
    Small,
    /// [`ANSWER_LEN`] bytes: kinds `0x40` to `0x7f`.
    Wide,
    /// The header and a tail. The header's argument is the length of the tail in bytes. Kinds
    /// `0x80` to `0xbf`.
    Variable,
}

impl Size {
    /// Returns the size of frames of `kind`; `None` for the kinds `0xc0` to `0xff`, which do not
    /// exist.
    #[must_use]
    pub const fn of(kind: u8) -> Option<Self> {
        match kind >> 6 {
            0 => Some(Self::Small),
            1 => Some(Self::Wide),
            2 => Some(Self::Variable),
            _ => None,
        }
    }
}

/// The first 16 bytes of every frame. The kind determines the meaning of the other fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The kind of the frame.
    pub kind: u8,
    /// Bits that modify the meaning of the kind.
    pub flags: u8,
    /// The number of an error, or 0.
    pub code: u16,
    /// For a request or an answer: the number of timestamps minus one. For a frame with a variable
    /// tail: the length of the tail.
    pub argument: u32,
    /// The number that the client gave to the request. An answer or an error repeats it.
    pub id: u64,
}

impl Header {
    /// The header's bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let high = u128::from(self.kind) << 56
            | u128::from(self.flags) << 48
            | u128::from(self.code) << 32
            | u128::from(self.argument);
        (high << 64 | u128::from(self.id)).to_be_bytes()
    }

    /// Reads a header. Any bytes are a valid header.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; HEADER_LEN]) -> Self {
        let [kind, flags, c0, c1, a0, a1, a2, a3, id @ ..] = *bytes;
        Self {
            kind,
            flags,
            code: u16::from_be_bytes([c0, c1]),
            argument: u32::from_be_bytes([a0, a1, a2, a3]),
            id: u64::from_be_bytes(id),
        }
    }
}

/// A frame in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its first 16 bytes.
    pub header: Header,
    /// The bytes after the header.
    pub tail: &'a [u8],
}

impl Frame<'_> {
    /// Bytes of the whole frame.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a frame is never empty")]
    pub const fn len(&self) -> usize {
        HEADER_LEN + self.tail.len()
    }
}

/// Splits the first frame off `bytes`. Returns `None` while bytes of the frame are missing. The
/// length of a variable tail is checked before the tail has arrived.
///
/// # Errors
/// [`DecodeError::TooLong`] for a variable tail above `tail_len_max`. [`DecodeError::BadValue`] for
/// a kind of unknown length; then the following bytes cannot be read, either.
pub fn split(bytes: &[u8], tail_len_max: usize) -> Result<Option<Frame<'_>>, DecodeError> {
    let Some(kind) = bytes.first().copied() else { return Ok(None) };
    let Some(size) = Size::of(kind) else {
        return Err(DecodeError::BadValue { field: "kind", value: u64::from(kind) });
    };
    let Some((head, rest)) = bytes.split_first_chunk::<HEADER_LEN>() else { return Ok(None) };
    let header = Header::from_bytes(head);
    let length = match size {
        Size::Small => 0,
        Size::Wide => ANSWER_LEN - HEADER_LEN,
        Size::Variable => header.argument as usize,
    };
    if size == Size::Variable && length > tail_len_max {
        return Err(DecodeError::TooLong { field: "tail", length, limit: tail_len_max });
    }
    Ok(rest.get(..length).map(|tail| Frame { header, tail }))
}

/// Reads a text of at most `limit` bytes.
pub(super) fn text<'a>(
    field: &'static str,
    bytes: &'a [u8],
    limit: usize,
) -> Result<&'a str, DecodeError> {
    if bytes.len() > limit {
        return Err(DecodeError::TooLong { field, length: bytes.len(), limit });
    }
    std::str::from_utf8(bytes).map_err(|_| DecodeError::BadText(field))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_header_round_trips(kind: u8, flags: u8, code: u16, argument: u32, id: u64) {
            let header = Header { kind, flags, code, argument, id };
            prop_assert_eq!(Header::from_bytes(&header.to_bytes()), header);
        }

        #[test]
        fn every_prefix_of_a_frame_waits_and_the_whole_is_split_off(
            kind in 0_u8..0xc0, length in 0_usize..300, more: Vec<u8>,
        ) {
            let header = Header { kind, argument: length as u32, ..Header::default() };
            let tail = match Size::of(kind).unwrap() {
                Size::Small => 0,
                Size::Wide => 16,
                Size::Variable => length,
            };
            let mut bytes = header.to_bytes().to_vec();
            bytes.resize(HEADER_LEN + tail, 7);
            for end in 0..bytes.len() {
                prop_assert_eq!(split(&bytes[..end], 300), Ok(None));
            }
            let whole = bytes.len();
            bytes.extend_from_slice(&more);
            let frame = split(&bytes, 300).unwrap().unwrap();
            prop_assert_eq!((frame.header, frame.len()), (header, whole));
        }

        #[test]
        fn garbage_never_panics_and_never_goes_beyond_the_limit(
            bytes: Vec<u8>, limit in 0_usize..64,
        ) {
            if let Ok(Some(frame)) = split(&bytes, limit) {
                prop_assert!(frame.tail.len() <= limit.max(16));
            }
        }
    }

    #[test]
    fn a_tail_over_the_limit_is_refused_before_it_arrives() {
        let header = Header { kind: KIND_HELLO, argument: 4097, ..Header::default() };
        let bytes = header.to_bytes();
        let refused = split(&bytes, 4096);
        let error = DecodeError::TooLong { field: "tail", length: 4097, limit: 4096 };
        assert_eq!(refused, Err(error));
    }

    #[test]
    fn a_kind_without_a_size_is_refused_at_its_first_byte() {
        assert_eq!(split(&[0xc0], 9), Err(DecodeError::BadValue { field: "kind", value: 0xc0 }));
    }
}
