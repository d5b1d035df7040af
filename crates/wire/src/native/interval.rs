//! Requests and answers of interval mode. An answer has 32 bytes as every wide frame, so it names the
//! width of the interval instead of its earliest time.
//!
//! ```text
//!  offset  0      1       2        4          8            16          24         32
//!          ├──────┼───────┼────────┼──────────┼────────────┼───────────┼──────────┤
//!  request │ 0x05 │ 0     │ 0      │ count-1  │ id         │
//!  answer  │ 0x43 │ 0     │ 0      │ width ns │ id         │ latest    │ index    │
//!          └ u8 ──┴ u8 ───┴ u16 ───┴ u32 ─────┴ u64 ───────┴ u64 ──────┴ u64 ─────┘
//! ```

use super::frame::{
    ANSWER_LEN, Frame, HEADER_LEN, Header, KIND_INTERVAL_ANSWER, KIND_INTERVAL_REQUEST,
};
use crate::cursor::DecodeError;
use crate::interval::IntervalStamp;
use crate::timestamp::Timestamp;

/// A request for interval timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntervalRequest {
    /// The client's number of the request. The answer repeats it.
    pub id: u64,
    /// The number of timestamps beyond the first.
    more: u32,
}

impl IntervalRequest {
    /// Creates a request for `count` timestamps; `None` unless `1 <= count <= 2^32`. Send it only if
    /// the welcome has the feature [`FEATURE_INTERVALS`](super::FEATURE_INTERVALS).
    #[must_use]
    pub fn new(id: u64, count: u64) -> Option<Self> {
        let more = u32::try_from(count.checked_sub(1)?).ok()?;
        Some(Self { id, more })
    }

    /// How many timestamps, from 1 to 2^32.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.more as u64 + 1
    }

    /// The bytes of the request's frame.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let Self { id, more } = self;
        Header { kind: KIND_INTERVAL_REQUEST, argument: more, id, ..Header::default() }.to_bytes()
    }

    /// Reads a request; `None` for any other frame, and if a flag or a code is set.
    #[must_use]
    pub fn from_header(header: Header) -> Option<Self> {
        let Header { kind, flags, code, argument, id } = header;
        let is_one = kind == KIND_INTERVAL_REQUEST && flags == 0 && code == 0;
        is_one.then_some(Self { id, more: argument })
    }

    /// The answer to this request; `None` if the interval is wider than an answer can say, some four
    /// seconds.
    #[must_use]
    pub fn answer(self, stamp: &IntervalStamp) -> Option<[u8; ANSWER_LEN]> {
        let argument = u32::try_from(stamp.latest_ns() - stamp.earliest_ns()).ok()?;
        let header =
            Header { kind: KIND_INTERVAL_ANSWER, argument, id: self.id, ..Header::default() };
        let mut bytes = [0; ANSWER_LEN];
        let (head, tail) = bytes.split_at_mut(HEADER_LEN);
        head.copy_from_slice(&header.to_bytes());
        tail.copy_from_slice(&stamp.timestamp().to_bytes());
        Some(bytes)
    }
}

/// Reads an answer: the id of its request, and the interval with its first timestamp. `None` for a
/// frame of another kind.
///
/// # Errors
/// The frame is of this kind, and not an answer. The connection must be closed.
pub fn read_interval_answer(
    frame: &Frame<'_>,
) -> Result<Option<(u64, IntervalStamp)>, DecodeError> {
    let Header { kind, flags, code, argument, id } = frame.header;
    if kind != KIND_INTERVAL_ANSWER {
        return Ok(None);
    }
    if flags != 0 || code != 0 {
        return Err(DecodeError::BadValue { field: "reserved bytes", value: u64::from(kind) });
    }
    let tail = frame.tail.try_into().map_err(|_| DecodeError::Truncated("timestamp"))?;
    let timestamp = Timestamp::from_bytes(tail);
    Ok(Some((id, IntervalStamp::of(u64::from(argument), timestamp)?)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::id::NodeId;
    use crate::native::split;

    #[test]
    fn a_request_has_16_bytes_and_its_answer_32() {
        let request = IntervalRequest::new(0x77, 3).unwrap();
        let mut bytes = [0; HEADER_LEN];
        (bytes[0], bytes[7], bytes[15]) = (0x05, 2, 0x77);
        assert_eq!(request.to_bytes(), bytes);
        let stamp = IntervalStamp::new(0x10, 0x30, NodeId(1), 9).unwrap();
        let answer = request.answer(&stamp).unwrap();
        assert_eq!((answer[0], answer[7], answer[15], answer[23]), (0x43, 0x20, 0x77, 0x30));
        assert_eq!(
            (IntervalRequest::new(1, 0), IntervalRequest::new(1, (1 << 32) + 1)),
            (None, None)
        );
        let wide = IntervalStamp::new(0, 1 << 32, NodeId(1), 9).unwrap();
        assert_eq!(request.answer(&wide), None);
    }

    #[test]
    fn an_answer_with_flags_or_of_quorum_mode_is_refused() {
        let stamp = IntervalStamp::new(0x10, 0x30, NodeId(1), 9).unwrap();
        let good = IntervalRequest::new(1, 1).unwrap().answer(&stamp).unwrap();
        for (at, value) in [(1, 1), (3, 1), (24, 0)] {
            let mut bytes = good;
            bytes[at] = value;
            let frame = split(&bytes, 0).unwrap().unwrap();
            assert!(read_interval_answer(&frame).is_err(), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn requests_and_answers_round_trip(
            id: u64, count in 1_u64..=1 << 32, earliest in 0_u64..1 << 62, width: u32,
            node in 0_u64..1 << 15, number in 0_u64..1 << 48,
        ) {
            let request = IntervalRequest::new(id, count).unwrap();
            prop_assert_eq!(request.count(), count);
            let header = Header::from_bytes(&request.to_bytes());
            prop_assert_eq!(IntervalRequest::from_header(header), Some(request));
            let latest = earliest + u64::from(width);
            let stamp = IntervalStamp::new(earliest, latest, NodeId(node), number).unwrap();
            let bytes = request.answer(&stamp).unwrap();
            let frame = split(&bytes, 0).unwrap().unwrap();
            prop_assert_eq!(read_interval_answer(&frame), Ok(Some((id, stamp))));
        }
    }
}
