//! The 16-byte hybrid timestamp: Unix time in nanoseconds, then an index. Both are big-endian, so
//! that byte order is time order. This module reads no clock: wall time comes in as nanoseconds.
//!
//! Some timestamps also have a compact spelling in 64 bits, `milliseconds << 18 | index`: those whose
//! epoch is a whole millisecond and whose index is below 2^18. Both spellings have the same order. In
//! a cluster with `TIMESTAMP_FORMAT=compact` every timestamp has one. TiKV's Placement Driver and
//! its clients use the same layout.
//!
//! Hybrid logical clocks (Kulkarni et al., 2014) also pair physical time with a counter. There,
//! every machine has its own clock. Here one oracle gives both numbers, so all timestamps have one
//! order.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Unix time in nanoseconds, the high half of a timestamp. Covers 1970 to 2554.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// Position inside an epoch, from 0: the low half of a timestamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpochIndex(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for EpochIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The low bits of a compact timestamp that hold the index.
pub const COMPACT_INDEX_BITS: u32 = 18;
/// How many timestamps of one epoch have a compact spelling: the indexes below this one.
pub const COMPACT_INDEXES: u64 = 1 << COMPACT_INDEX_BITS;
/// Every epoch with a compact spelling is a multiple of this many nanoseconds: a millisecond.
pub const COMPACT_EPOCH_NS: u64 = 1_000_000;
/// The largest compact timestamp: the last index of the last whole millisecond (in the year 2554).
/// It is below 2^63, so compact timestamps also fit into signed integers, in the same order.
pub const COMPACT_MAX: u64 =
    (u64::MAX / COMPACT_EPOCH_NS) << COMPACT_INDEX_BITS | (COMPACT_INDEXES - 1);

/// A unique point in the cluster's order. Timestamps are ordered by epoch, then index, like their
/// bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Unix time in nanoseconds.
    pub epoch: Epoch,
    /// Position inside the epoch.
    pub index: EpochIndex,
}

impl Timestamp {
    /// Bytes of an encoded timestamp.
    pub const LEN: usize = 16;

    /// The timestamp at `index` of `epoch`.
    #[must_use]
    pub const fn new(epoch: Epoch, index: EpochIndex) -> Self {
        Self { epoch, index }
    }

    /// Returns the lowest timestamp of the wall time `unix_ns`. Use it as the inclusive start of a
    /// range query over keys.
    #[must_use]
    pub const fn lowest_at(unix_ns: u64) -> Self {
        Self::new(Epoch(unix_ns), EpochIndex(0))
    }

    /// Returns the highest timestamp of the wall time `unix_ns`. Use it as the inclusive end of a
    /// range query over keys.
    #[must_use]
    pub const fn highest_at(unix_ns: u64) -> Self {
        Self::new(Epoch(unix_ns), EpochIndex(u64::MAX))
    }

    /// Returns the compact spelling, `milliseconds << 18 | index`. Returns `None` if there is none: the
    /// epoch is not a whole millisecond, or the index is 2^18 or higher. Timestamps with a compact
    /// spelling have the same order as their spellings.
    #[must_use]
    pub const fn to_compact(self) -> Option<u64> {
        let is_whole = self.epoch.0.is_multiple_of(COMPACT_EPOCH_NS);
        if is_whole && self.index.0 < COMPACT_INDEXES {
            Some((self.epoch.0 / COMPACT_EPOCH_NS) << COMPACT_INDEX_BITS | self.index.0)
        } else {
            None
        }
    }

    /// Reads what [`Timestamp::to_compact`] returned. Returns `None` above [`COMPACT_MAX`].
    #[must_use]
    pub const fn from_compact(compact: u64) -> Option<Self> {
        if compact > COMPACT_MAX {
            return None;
        }
        let epoch = Epoch((compact >> COMPACT_INDEX_BITS) * COMPACT_EPOCH_NS);
        Some(Self::new(epoch, EpochIndex(compact % COMPACT_INDEXES)))
    }

    /// Returns the lowest compact timestamp that is not before the wall time `unix_ns`. Use it as the
    /// inclusive start of a range query over keys of 64 bits. Returns `None` in the last millisecond
    /// of all, of which only a part exists.
    #[must_use]
    pub const fn compact_lowest_at(unix_ns: u64) -> Option<u64> {
        let lowest = unix_ns.div_ceil(COMPACT_EPOCH_NS) << COMPACT_INDEX_BITS;
        if lowest > COMPACT_MAX { None } else { Some(lowest) }
    }

    /// Returns the highest compact timestamp that is not after the wall time `unix_ns`. Use it as the
    /// inclusive end of a range query over keys of 64 bits.
    #[must_use]
    pub const fn compact_highest_at(unix_ns: u64) -> u64 {
        (unix_ns / COMPACT_EPOCH_NS) << COMPACT_INDEX_BITS | (COMPACT_INDEXES - 1)
    }

    /// Returns the 16 bytes, big-endian. So the order of the bytes is the order of the timestamps.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        u128::from(self).to_be_bytes()
    }

    /// Reads the 16 bytes that [`Timestamp::to_bytes`] wrote. Every value is a timestamp.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self::from(u128::from_be_bytes(bytes))
    }
}

impl From<Timestamp> for u128 {
    fn from(timestamp: Timestamp) -> Self {
        (u128::from(timestamp.epoch.0) << 64) | u128::from(timestamp.index.0)
    }
}

impl From<u128> for Timestamp {
    fn from(value: u128) -> Self {
        let high = (value >> 64) as u64;
        let low = value as u64;
        Self::new(Epoch(high), EpochIndex(low))
    }
}

/// Writes 32 lower-case hexadecimal digits. Their order as text is the order of the timestamps.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from(*self))
    }
}

impl FromStr for Timestamp {
    type Err = ParseTimestampError;

    /// Reads exactly 32 hexadecimal digits, upper or lower case, without a prefix.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let length = text.chars().count();
        if length != 2 * Self::LEN {
            return Err(ParseTimestampError::Length(length));
        }
        match text.chars().find(|digit| !digit.is_ascii_hexdigit()) {
            Some(digit) => Err(ParseTimestampError::Digit(digit)),
            None => u128::from_str_radix(text, 16)
                .map(Self::from)
                .map_err(|_| ParseTimestampError::Length(length)),
        }
    }
}

/// Why a text is not a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParseTimestampError {
    /// Give all 32 digits.
    #[error("a timestamp is 32 hexadecimal digits, this has {0} characters")]
    Length(usize),
    /// Remove the character; a prefix such as `0x` is not part of a timestamp.
    #[error("a timestamp is 32 hexadecimal digits, this has the character {0:?}")]
    Digit(char),
}

/// Consecutive timestamps of one epoch: `count` of them, from `first`.
///
/// Invariant: `count >= 1` and `first.index + (count - 1) <= u64::MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimestampRange {
    first: Timestamp,
    count: u64,
}

impl TimestampRange {
    /// Bytes of an encoded range: the first timestamp, then the count.
    pub const LEN: usize = Timestamp::LEN + 8;

    /// Returns the range of `count` timestamps from `first`. Returns `None` if `count` is 0, or if
    /// the last index would be above `u64::MAX`.
    #[must_use]
    pub fn new(first: Timestamp, count: u64) -> Option<Self> {
        let steps = count.checked_sub(1)?;
        first.index.0.checked_add(steps)?;
        Some(Self { first, count })
    }

    /// The lowest timestamp of the range.
    #[must_use]
    pub const fn first(&self) -> Timestamp {
        self.first
    }

    /// The highest timestamp of the range.
    #[must_use]
    pub const fn last(&self) -> Timestamp {
        Timestamp::new(self.first.epoch, EpochIndex(self.first.index.0 + (self.count - 1)))
    }

    /// Returns how many timestamps the range holds, at least 1.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the compact spelling of the first timestamp, if every timestamp of the range has one.
    /// Then the spellings are consecutive numbers.
    #[must_use]
    pub fn compact_first(&self) -> Option<u64> {
        self.last().to_compact()?;
        self.first.to_compact()
    }

    /// The timestamps from the lowest up.
    pub fn iter(&self) -> impl Iterator<Item = Timestamp> + use<> {
        let Timestamp { epoch, index } = self.first;
        (0..self.count).map(move |step| Timestamp::new(epoch, EpochIndex(index.0 + step)))
    }

    /// Splits off the first `count` timestamps. Returns them and the rest, if any. Returns `None`
    /// if the range has fewer, or if `count` is 0.
    #[must_use]
    pub fn split_first(&self, count: u64) -> Option<(Self, Option<Self>)> {
        if count == 0 || count > self.count {
            return None;
        }
        let head = Self { first: self.first, count };
        let rest = (count < self.count).then(|| Self {
            first: Timestamp::new(self.first.epoch, EpochIndex(self.first.index.0 + count)),
            count: self.count - count,
        });
        Some((head, rest))
    }

    /// Returns the 24 bytes of an answer with `format=range`: the first timestamp, then the count,
    /// big-endian.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..Timestamp::LEN].copy_from_slice(&self.first.to_bytes());
        bytes[Timestamp::LEN..].copy_from_slice(&self.count.to_be_bytes());
        bytes
    }

    /// Reads what [`TimestampRange::to_bytes`] wrote; `None` if it is not a range.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let (first, count) = bytes.split_first_chunk::<{ Timestamp::LEN }>()?;
        let count = u64::from_be_bytes(count.try_into().ok()?);
        Self::new(Timestamp::from_bytes(*first), count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn byte_order_is_time_order(a: u128, b: u128) {
            let (a, b) = (Timestamp::from(a), Timestamp::from(b));
            prop_assert_eq!(a.cmp(&b), a.to_bytes().cmp(&b.to_bytes()));
            prop_assert_eq!(a.cmp(&b), a.to_string().cmp(&b.to_string()));
        }

        #[test]
        fn bytes_and_text_round_trip(value: u128) {
            let timestamp = Timestamp::from(value);
            prop_assert_eq!(Timestamp::from_bytes(timestamp.to_bytes()), timestamp);
            prop_assert_eq!(timestamp.to_string().parse(), Ok(timestamp));
        }

        #[test]
        fn both_spellings_have_the_same_order(a in 0..=COMPACT_MAX, b in 0..=COMPACT_MAX, step in 0_u64..5) {
            for b in [b, a.saturating_add(step).min(COMPACT_MAX)] {
                let of = |compact| Timestamp::from_compact(compact).unwrap();
                prop_assert_eq!(a.cmp(&b), of(a).cmp(&of(b)));
                prop_assert_eq!(of(b).to_compact(), Some(b));
            }
        }

        #[test]
        fn a_timestamp_with_a_compact_spelling_comes_back_from_it(ms in 0..=u64::MAX / COMPACT_EPOCH_NS, index in 0..2 * COMPACT_INDEXES, off in 0..3_u64) {
            let epoch = (ms * COMPACT_EPOCH_NS).saturating_add(off);
            let timestamp = Timestamp::new(Epoch(epoch), EpochIndex(index));
            let has_one = epoch % COMPACT_EPOCH_NS == 0 && index < COMPACT_INDEXES;
            let compact = timestamp.to_compact();
            prop_assert_eq!(compact.is_some(), has_one);
            prop_assert_eq!(compact.map(Timestamp::from_compact), has_one.then_some(Some(timestamp)));
        }

        #[test]
        fn every_timestamp_of_a_wall_time_lies_between_its_bounds(at: u64, index: u64) {
            let inside = Timestamp::new(Epoch(at), EpochIndex(index));
            prop_assert!(Timestamp::lowest_at(at) <= inside);
            prop_assert!(inside <= Timestamp::highest_at(at));
        }

        #[test]
        fn a_split_range_has_no_gap_and_no_overlap(first: u64, count in 1_u64.., at: u64) {
            let start = Timestamp::new(Epoch(7), EpochIndex(first));
            let Some(range) = TimestampRange::new(start, count) else { return Ok(()) };
            prop_assert_eq!(TimestampRange::from_bytes(&range.to_bytes()), Some(range));
            match range.split_first(at) {
                None => prop_assert!(at == 0 || at > count),
                Some((head, None)) => prop_assert_eq!(head, range),
                Some((head, Some(rest))) => {
                    prop_assert_eq!(head.first(), range.first());
                    prop_assert_eq!(u128::from(head.last()) + 1, u128::from(rest.first()));
                    prop_assert_eq!(rest.last(), range.last());
                }
            }
        }
    }

    #[test]
    fn compact_bounds_of_a_wall_time_are_those_of_its_timestamps() {
        const MS: u64 = 1_700_000_000_123;
        for (unix_ns, lowest_ms, highest_ms) in [
            (MS * COMPACT_EPOCH_NS, MS, MS),
            (MS * COMPACT_EPOCH_NS + 1, MS + 1, MS),
            (MS * COMPACT_EPOCH_NS - 1, MS, MS - 1),
        ] {
            assert_eq!(Timestamp::compact_lowest_at(unix_ns), Some(lowest_ms << 18));
            let highest = Timestamp::compact_highest_at(unix_ns);
            assert_eq!(highest, ((highest_ms + 1) << 18) - 1);
            assert!(Timestamp::from_compact(highest).unwrap() <= Timestamp::highest_at(unix_ns));
        }
        assert_eq!(Timestamp::compact_highest_at(u64::MAX), COMPACT_MAX);
        assert_eq!(Timestamp::compact_lowest_at(u64::MAX), None);
    }

    #[test]
    fn compact_timestamps_have_bounds() {
        assert_eq!(Timestamp::from_compact(COMPACT_MAX).unwrap().to_compact(), Some(COMPACT_MAX));
        assert_eq!(Timestamp::from_compact(COMPACT_MAX + 1), None);
        assert_eq!(Timestamp::from_compact(u64::MAX), None);
        assert!(i64::try_from(COMPACT_MAX).is_ok());
        let at = |index| Timestamp::new(Epoch(1_700_000_000_123_000_000), EpochIndex(index));
        assert_eq!(at(7).to_compact(), Some(1_700_000_000_123 << 18 | 7));
        assert_eq!(at(COMPACT_INDEXES).to_compact(), None);
        let range = |index, count| TimestampRange::new(at(index), count).unwrap();
        assert_eq!(range(0, COMPACT_INDEXES).compact_first(), at(0).to_compact());
        assert_eq!(range(1, COMPACT_INDEXES).compact_first(), None);
    }

    #[test]
    fn a_range_is_never_empty_and_never_leaves_its_epoch() {
        let end = Timestamp::new(Epoch(1), EpochIndex(u64::MAX));
        assert_eq!(TimestampRange::new(end, 0), None);
        assert_eq!(TimestampRange::new(end, 2), None);
        assert!(TimestampRange::new(end, 1).is_some());
        assert_eq!(TimestampRange::from_bytes(&[0xff; TimestampRange::LEN]), None);
    }

    #[test]
    fn a_malformed_text_gets_a_precise_error() {
        assert_eq!("12".parse::<Timestamp>(), Err(ParseTimestampError::Length(2)));
        let text = "0x000000000000000000000000000000";
        assert_eq!(text.parse::<Timestamp>(), Err(ParseTimestampError::Digit('x')));
        let plus = "+0000000000000000000000000000000";
        assert_eq!(plus.parse::<Timestamp>(), Err(ParseTimestampError::Digit('+')));
    }
}
