//! The bodies of answers. One timestamp or one range is stored in the answer itself. A long list is
//! made in chunks while it is sent, so that a slow client uses no memory beyond the connection's
//! buffers.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use epicepoch_wire::interval::IntervalStamp;
use epicepoch_wire::{Epoch, Timestamp, TimestampRange};
use http_body::{Frame, SizeHint};

/// Timestamps in one chunk of a list: 16 KiB, one HTTP/2 frame.
const CHUNK_TIMESTAMPS_MAX: u64 = 1024;
/// Timestamps in one chunk of JSON: about 16 KiB.
const CHUNK_JSON_MAX: u64 = 128;

/// The body of an answer.
#[derive(Debug)]
pub(crate) enum Body {
    /// An empty body, or one that was sent completely.
    Empty,
    /// The whole body, stored in the answer itself.
    Short(Short),
    /// The whole body in memory.
    Whole(Bytes),
    /// Timestamps, 16 bytes each, one after another.
    List(TimestampRange),
    /// Compact timestamps, 8 bytes each, one after another.
    CompactList(TimestampRange),
    /// Timestamps as JSON.
    Json(JsonList),
}

/// A body of at most 24 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Short {
    bytes: [u8; TimestampRange::LEN],
    start: u8,
    end: u8,
}

/// A JSON list of timestamps, made in chunks.
#[derive(Debug)]
pub(crate) struct JsonList {
    rest: Option<TimestampRange>,
    is_begun: bool,
    /// Whether the cluster gives compact timestamps. Then each one comes in both spellings.
    is_compact: bool,
    /// The wall time of the epoch, the same for all timestamps.
    time: String,
}

impl Body {
    /// The timestamps of a range, one after another.
    pub(crate) fn list(range: TimestampRange) -> Self {
        if range.count() == 1 {
            return Self::Short(Short::new(&range.first().to_bytes()));
        }
        Self::List(range)
    }

    /// The first timestamp of a range and its count.
    pub(crate) fn range(range: &TimestampRange) -> Self {
        Self::Short(Short::new(&range.to_bytes()))
    }

    /// The compact timestamps of a range, one after another.
    ///
    /// # Panics
    /// When they have no compact spelling (S21).
    pub(crate) fn compact_list(range: TimestampRange) -> Self {
        if range.count() == 1 {
            return Self::Short(Short::new(&compact_first(&range).to_be_bytes()));
        }
        Self::CompactList(range)
    }

    /// The first compact timestamp of a range and its count.
    ///
    /// # Panics
    /// When they have no compact spelling (S21).
    pub(crate) fn compact_range(range: &TimestampRange) -> Self {
        let words = [compact_first(range), range.count()].map(u64::to_be_bytes);
        Self::Short(Short::new(words.as_flattened()))
    }

    /// The timestamps of a range as JSON, for people. `is_compact` adds their compact spellings.
    pub(crate) fn json(range: TimestampRange, is_compact: bool) -> Self {
        let time = wall_time(range.first().epoch);
        let mut list = JsonList { rest: Some(range), is_begun: false, is_compact, time };
        // A list that fits in one chunk is made at once, so its length is known.
        match list.next_chunk_for(usize::MAX) {
            Some(text) if list.rest.is_none() => Self::Whole(text.into()),
            _ => Self::Json(JsonList { rest: Some(range), is_begun: false, ..list }),
        }
    }

    /// The latest timestamp as JSON, for people. `is_compact` adds its compact spelling.
    pub(crate) fn latest_json(latest: Timestamp, is_compact: bool) -> Self {
        let mut text = "{\"latest\":".to_owned();
        put_json(latest, &wall_time(latest.epoch), is_compact, &mut text);
        text.push_str("}\n");
        Self::Whole(text.into())
    }

    /// Interval timestamps as JSON, for people. `count` timestamps have consecutive indexes.
    pub(crate) fn interval_json(stamp: &IntervalStamp, count: u64) -> Self {
        let timestamp = stamp.timestamp();
        let mut text = format!(
            "{{\"earliest\":\"{}\",\"latest\":\"{}\",\"waitNs\":\"{}\",\"nodeID\":{},\"count\":\"{count}\",\
             \"first\":",
            stamp.earliest_ns(),
            stamp.latest_ns(),
            stamp.wait_ns(),
            stamp.node(),
        );
        put_json(timestamp, &wall_time(timestamp.epoch), false, &mut text);
        text.push_str("}\n");
        Self::Whole(text.into())
    }

    /// How many bytes are left; `None` if that is not known before they are made.
    pub(crate) fn len(&self) -> Option<u64> {
        match self {
            Self::Empty => Some(0),
            Self::Short(short) => Some(short.remaining() as u64),
            Self::Whole(bytes) => Some(bytes.len() as u64),
            Self::List(range) => Some(range.count() * Timestamp::LEN as u64),
            Self::CompactList(range) => Some(range.count() * COMPACT_LEN as u64),
            Self::Json(_) => None,
        }
    }

    /// Whether no bytes are left.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Json(list) => list.rest.is_none(),
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Short(_) | Self::List(_) | Self::CompactList(_) => false,
        }
    }

    /// The next chunk of the body.
    pub(crate) fn next_chunk(&mut self) -> Option<Chunk> {
        self.next_chunk_for(usize::MAX)
    }

    /// The next chunk for a client that accepts `room` bytes now. A chunk of a list has as many
    /// timestamps as fit, and at least one.
    pub(crate) fn next_chunk_for(&mut self, room: usize) -> Option<Chunk> {
        match std::mem::replace(self, Self::Empty) {
            Self::Empty => None,
            Self::Short(short) => Some(Chunk::Short(short)),
            Self::Whole(bytes) if bytes.is_empty() => None,
            Self::Whole(bytes) => Some(Chunk::Bytes(bytes)),
            Self::List(range) => {
                let fitting = (room / Timestamp::LEN) as u64;
                let (head, rest) = split(range, fitting.clamp(1, CHUNK_TIMESTAMPS_MAX));
                *self = rest.map_or(Self::Empty, Self::List);
                let mut bytes = Vec::with_capacity(head.count() as usize * Timestamp::LEN);
                head.iter().for_each(|timestamp| bytes.extend_from_slice(&timestamp.to_bytes()));
                Some(Chunk::Bytes(bytes.into()))
            }
            Self::CompactList(range) => {
                let fitting = (room / COMPACT_LEN) as u64;
                let (head, rest) = split(range, fitting.clamp(1, CHUNK_TIMESTAMPS_MAX));
                *self = rest.map_or(Self::Empty, Self::CompactList);
                let first = compact_first(&head);
                let compact = (first..first + head.count()).flat_map(u64::to_be_bytes);
                Some(Chunk::Bytes(compact.collect()))
            }
            Self::Json(mut list) => {
                let text = list.next_chunk_for(room)?;
                *self = Self::Json(list);
                Some(Chunk::Bytes(text.into()))
            }
        }
    }
}

impl JsonList {
    fn next_chunk_for(&mut self, room: usize) -> Option<String> {
        let fitting = (room / JSON_ITEM_LEN) as u64;
        let (head, rest) = split(self.rest?, fitting.clamp(1, CHUNK_JSON_MAX));
        let mut text = String::with_capacity(head.count() as usize * JSON_ITEM_LEN);
        let mut separator = if self.is_begun { ",\n" } else { "{\"timestamps\":[\n" };
        for timestamp in head.iter() {
            text.push_str(separator);
            put_json(timestamp, &self.time, self.is_compact, &mut text);
            separator = ",\n";
        }
        if rest.is_none() {
            text.push_str("\n]}\n");
        }
        (self.is_begun, self.rest) = (true, rest);
        Some(text)
    }
}

/// The wall time of an epoch, for people.
fn wall_time(epoch: Epoch) -> String {
    let time = jiff::Timestamp::from_nanosecond(i128::from(epoch.0));
    time.map(|time| time.to_string()).unwrap_or_default()
}

/// Appends the JSON object of a timestamp, whose epoch has the wall time `time`. All numbers are
/// strings, because JavaScript has no exact numbers above 2^53.
fn put_json(timestamp: Timestamp, time: &str, is_compact: bool, text: &mut String) {
    let Timestamp { epoch, index } = timestamp;
    // A write to a string cannot fail.
    let _ = write!(
        text,
        "{{\"hex\":\"{timestamp}\",\"epoch\":\"{epoch}\",\"index\":\"{index}\",\"time\":\"{time}\""
    );
    if let Some(compact) = timestamp.to_compact().filter(|_| is_compact) {
        let _ = write!(text, ",\"u64\":\"{compact}\"");
    }
    text.push('}');
}

/// The first compact timestamp of a range.
fn compact_first(range: &TimestampRange) -> u64 {
    range.compact_first().expect("S21: a timestamp without a compact spelling")
}

fn split(range: TimestampRange, count: u64) -> (TimestampRange, Option<TimestampRange>) {
    range.split_first(count.min(range.count())).unwrap_or((range, None))
}

/// Bytes of a compact timestamp.
const COMPACT_LEN: usize = size_of::<u64>();
/// Approximate bytes of a timestamp in JSON.
const JSON_ITEM_LEN: usize = 170;

impl Short {
    fn new(from: &[u8]) -> Self {
        let mut bytes = [0; TimestampRange::LEN];
        bytes[..from.len()].copy_from_slice(from);
        Self { bytes, start: 0, end: from.len() as u8 }
    }
}

impl Buf for Short {
    fn remaining(&self) -> usize {
        usize::from(self.end - self.start)
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes[usize::from(self.start)..usize::from(self.end)]
    }

    fn advance(&mut self, count: usize) {
        assert!(count <= self.remaining(), "advanced past the end of a body");
        self.start += count as u8;
    }
}

/// A part of a body.
#[derive(Debug)]
pub(crate) enum Chunk {
    Short(Short),
    Bytes(Bytes),
}

impl Buf for Chunk {
    fn remaining(&self) -> usize {
        match self {
            Self::Short(short) => short.remaining(),
            Self::Bytes(bytes) => bytes.remaining(),
        }
    }

    fn chunk(&self) -> &[u8] {
        match self {
            Self::Short(short) => short.chunk(),
            Self::Bytes(bytes) => bytes.chunk(),
        }
    }

    fn advance(&mut self, count: usize) {
        match self {
            Self::Short(short) => short.advance(count),
            Self::Bytes(bytes) => bytes.advance(count),
        }
    }
}

impl http_body::Body for Body {
    type Data = Chunk;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk>, Infallible>>> {
        Poll::Ready(self.next_chunk().map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        self.len().map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests {
    use epicepoch_wire::EpochIndex;

    use super::*;

    fn range(count: u64) -> TimestampRange {
        let first = Timestamp::new(Epoch(1_700_000_000_123_456_789), EpochIndex(7));
        TimestampRange::new(first, count).unwrap()
    }

    fn all(mut body: Body) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(mut chunk) = body.next_chunk() {
            assert!(chunk.remaining() <= 32 << 10);
            bytes.extend_from_slice(&chunk.copy_to_bytes(chunk.remaining()));
        }
        assert!(http_body::Body::is_end_stream(&body));
        bytes
    }

    #[test]
    fn a_list_has_every_timestamp_once_and_in_order() {
        for count in [1, 2, 1023, 1024, 1025, 65_536] {
            let body = Body::list(range(count));
            assert_eq!(body.len(), Some(count * 16));
            let expected: Vec<u8> = range(count).iter().flat_map(Timestamp::to_bytes).collect();
            assert_eq!(all(body), expected);
        }
    }

    #[test]
    fn a_chunk_of_a_list_holds_what_fits_and_at_least_one_timestamp() {
        for (room, len) in
            [(0, 16), (1, 16), (16, 16), (47, 32), (16_383, 16_368), (1 << 20, 16_384)]
        {
            let mut body = Body::list(range(65_536));
            assert_eq!(body.next_chunk_for(room).map(|chunk| chunk.remaining()), Some(len));
            assert_eq!(body.len(), Some(65_536 * 16 - len as u64));
        }
        for room in [0, 1, 1_000, 1 << 14] {
            let chunk = Body::json(range(1_000), true).next_chunk_for(room).unwrap();
            assert!(chunk.remaining() <= room.max(200), "{room}: {}", chunk.remaining());
        }
    }

    fn compact_range(count: u64) -> TimestampRange {
        let first = Timestamp::from_compact(1_700_000_000_123 << 18 | 7).unwrap();
        TimestampRange::new(first, count).unwrap()
    }

    #[test]
    fn compact_bodies_have_the_spellings_of_the_same_timestamps() {
        for count in [1, 2, 1024, 1025, 65_536] {
            let range = compact_range(count);
            let body = Body::compact_list(range);
            assert_eq!(body.len(), Some(count * 8));
            let compact = |timestamp: Timestamp| timestamp.to_compact().unwrap().to_be_bytes();
            assert_eq!(all(body), range.iter().flat_map(compact).collect::<Vec<_>>());
            let first = range.compact_first().unwrap();
            let expected = [first.to_be_bytes(), count.to_be_bytes()].concat();
            assert_eq!(all(Body::compact_range(&range)), expected);
        }
        for (range, is_compact, has_one) in [
            (compact_range(2), true, true),
            (compact_range(2), false, false),
            (range(2), true, false),
        ] {
            let value: serde_json::Value =
                serde_json::from_slice(&all(Body::json(range, is_compact))).expect("JSON");
            let compact = &value["timestamps"][1]["u64"];
            let expected = (range.compact_first().unwrap_or_default() + 1).to_string();
            assert_eq!(compact, &if has_one { expected.into() } else { serde_json::Value::Null });
            let latest = all(Body::latest_json(range.first(), is_compact));
            assert_eq!(String::from_utf8(latest).unwrap().contains("u64"), has_one);
        }
    }

    #[test]
    fn a_range_is_first_and_count() {
        assert_eq!(all(Body::range(&range(1 << 32))), range(1 << 32).to_bytes());
    }

    #[test]
    fn the_latest_timestamp_is_one_json_object() {
        let value: serde_json::Value =
            serde_json::from_slice(&all(Body::latest_json(range(1).first(), false))).expect("JSON");
        assert_eq!(value["latest"]["hex"], range(1).first().to_string());
        assert_eq!(value["latest"]["index"], "7");
        assert_eq!(value["latest"]["time"], "2023-11-14T22:13:20.123456789Z");
    }

    #[test]
    fn json_is_json() {
        for count in [1, 128, 129, 1000] {
            let value: serde_json::Value =
                serde_json::from_slice(&all(Body::json(range(count), false)))
                    .expect("a JSON document");
            let list = value["timestamps"].as_array().unwrap();
            assert_eq!(list.len() as u64, count);
            assert_eq!(list[0]["hex"], range(1).first().to_string());
            assert_eq!(list[0]["epoch"], "1700000000123456789");
            assert_eq!(list[0]["time"], "2023-11-14T22:13:20.123456789Z");
            assert_eq!(list[count as usize - 1]["index"], (7 + count - 1).to_string());
        }
    }
}
