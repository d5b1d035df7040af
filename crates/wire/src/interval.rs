//! The answer of interval mode: 32 bytes with an interval that holds true time, a timestamp of 16
//! bytes inside it, and the time that a client has to wait. It never reads a clock.
//!
//! ```text
//!  offset 0          8          16         24         32
//!         | earliest | latest   | index    | wait     |      u64 each, big-endian; ns, ns, -, ns
//!                    '-- timestamp, 16 bytes --'
//!  index: 1 | node id, 15 bits | count, 48 bits
//! ```
//!
//! The first bit of the index is 1. An index of quorum mode counts from 0, and would need some
//! nine quintillion timestamps in one epoch to get there.

use crate::cursor::DecodeError;
use crate::id::NodeId;
use crate::timestamp::{Epoch, EpochIndex, Timestamp};

/// The largest node id that fits into the index of an interval timestamp.
pub const INTERVAL_NODE_MAX: u64 = (1 << 15) - 1;
/// Counts of interval timestamps are below this.
pub const INTERVAL_COUNTS: u64 = 1 << COUNT_BITS;
/// Largest `n` of a request for interval timestamps.
pub const INTERVAL_N_MAX: u64 = 1 << 32;

const COUNT_BITS: u32 = 48;
const MARKER: u64 = 1 << 63;
/// A client's clock may be wrong by an eighth of the time that it waits.
const MARGIN_DIVISOR: u64 = 8;

/// An answer of interval mode, for one or more timestamps.
///
/// Invariant: `earliest_ns <= latest_ns`, where `latest_ns` is the epoch of the timestamp, and the
/// first bit of its index is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntervalStamp {
    earliest_ns: u64,
    timestamp: Timestamp,
    wait_ns: u64,
}

impl IntervalStamp {
    /// Bytes of an answer.
    pub const LEN: usize = 32;

    /// The answer for `earliest_ns..=latest_ns`. `None` if the interval is empty, or the node id or
    /// the count does not fit.
    #[must_use]
    pub fn new(earliest_ns: u64, latest_ns: u64, node: NodeId, count: u64) -> Option<Self> {
        let width_ns = latest_ns.checked_sub(earliest_ns)?;
        if node.0 > INTERVAL_NODE_MAX || count >= INTERVAL_COUNTS {
            return None;
        }
        let index = MARKER | node.0 << COUNT_BITS | count;
        let timestamp = Timestamp::new(Epoch(latest_ns), EpochIndex(index));
        Some(Self { earliest_ns, timestamp, wait_ns: wait_for(width_ns) })
    }

    /// The answer with this timestamp and an interval of this width.
    ///
    /// # Errors
    /// When the interval would begin before 1970, or the index is one of quorum mode.
    pub fn of(width_ns: u64, timestamp: Timestamp) -> Result<Self, DecodeError> {
        let bad = |field, value| DecodeError::BadValue { field, value };
        let index = timestamp.index.0;
        if index & MARKER == 0 {
            return Err(bad("interval index", index));
        }
        let earliest_ns = timestamp.epoch.0.checked_sub(width_ns);
        let earliest_ns = earliest_ns.ok_or(bad("width", width_ns))?;
        Ok(Self { earliest_ns, timestamp, wait_ns: wait_for(width_ns) })
    }

    /// The earliest time that it can have been when the node stamped, Unix nanoseconds.
    #[must_use]
    pub const fn earliest_ns(&self) -> u64 {
        self.earliest_ns
    }

    /// The latest time that it can have been, Unix nanoseconds. Also the epoch of the timestamp.
    #[must_use]
    pub const fn latest_ns(&self) -> u64 {
        self.timestamp.epoch.0
    }

    /// The first timestamp of the answer.
    #[must_use]
    pub const fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    /// How long a client waits, from the arrival of the answer, before others may see what it did
    /// at this timestamp; nanoseconds. It includes a margin for a client's clock.
    #[must_use]
    pub const fn wait_ns(&self) -> u64 {
        self.wait_ns
    }

    /// The node that answered.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        NodeId((self.timestamp.index.0 & !MARKER) >> COUNT_BITS)
    }

    /// The count of the first timestamp, in the run of the node that answered.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.timestamp.index.0 & (INTERVAL_COUNTS - 1)
    }

    /// The bytes of the answer.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.earliest_ns.to_be_bytes());
        bytes[8..24].copy_from_slice(&self.timestamp.to_bytes());
        bytes[24..].copy_from_slice(&self.wait_ns.to_be_bytes());
        bytes
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// When the bytes are not an answer: the interval is empty, the index is one of quorum mode, or
    /// the wait is shorter than the interval is wide.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self, DecodeError> {
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_be_bytes(number)
        };
        let (earliest_ns, latest_ns, index, wait_ns) =
            (number(0), number(8), number(16), number(24));
        let bad = |field, value| Err(DecodeError::BadValue { field, value });
        let Some(width_ns) = latest_ns.checked_sub(earliest_ns) else {
            return bad("earliest", earliest_ns);
        };
        if index & MARKER == 0 {
            return bad("interval index", index);
        }
        if wait_ns < width_ns {
            return bad("wait", wait_ns);
        }
        let timestamp = Timestamp::new(Epoch(latest_ns), EpochIndex(index));
        Ok(Self { earliest_ns, timestamp, wait_ns })
    }
}

/// How long to wait for an interval of this width: after this time on a clock that runs fast by an
/// eighth, more than the width has passed.
const fn wait_for(width_ns: u64) -> u64 {
    width_ns.saturating_add(width_ns.div_ceil(MARGIN_DIVISOR)).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_answer_has_32_bytes_in_this_layout() {
        let stamp = IntervalStamp::new(0x10, 0x20, NodeId(3), 5).unwrap();
        let mut bytes = [0; 32];
        (bytes[7], bytes[15]) = (0x10, 0x20);
        (bytes[16], bytes[17], bytes[23]) = (0x80, 3, 5);
        bytes[31] = 0x10 + 2 + 1;
        assert_eq!(stamp.to_bytes(), bytes);
        assert_eq!((stamp.node(), stamp.count()), (NodeId(3), 5));
        assert_eq!((stamp.earliest_ns(), stamp.latest_ns(), stamp.wait_ns()), (0x10, 0x20, 19));
    }

    #[test]
    fn node_ids_and_counts_that_do_not_fit_and_empty_intervals_are_refused() {
        let new = |earliest, latest, node, count| {
            IntervalStamp::new(earliest, latest, NodeId(node), count).is_some()
        };
        assert!(new(1, 1, INTERVAL_NODE_MAX, INTERVAL_COUNTS - 1));
        assert!(!new(2, 1, 1, 0));
        assert!(!new(1, 2, INTERVAL_NODE_MAX + 1, 0));
        assert!(!new(1, 2, 1, INTERVAL_COUNTS));
    }

    #[test]
    fn bytes_that_are_no_answer_are_refused() {
        let good = IntervalStamp::new(100, 200, NodeId(1), 0).unwrap().to_bytes();
        let with = |at: usize, value| {
            let mut bytes = good;
            bytes[at] = value;
            IntervalStamp::from_bytes(&bytes)
        };
        assert!(with(7, 201).is_err(), "an empty interval");
        assert!(with(16, 0).is_err(), "an index of quorum mode");
        assert!(with(31, 99).is_err(), "a wait that is too short");
        assert!(with(31, 100).is_ok());
    }

    proptest! {
        #[test]
        fn answers_round_trip_and_the_wait_outlasts_a_clock_that_is_fast_by_an_eighth(
            earliest in 0_u64..u64::MAX / 2, width in 0_u64..1 << 60,
            node in 0..=INTERVAL_NODE_MAX, count in 0..INTERVAL_COUNTS,
        ) {
            let stamp = IntervalStamp::new(earliest, earliest + width, NodeId(node), count).unwrap();
            prop_assert_eq!(IntervalStamp::from_bytes(&stamp.to_bytes()), Ok(stamp));
            prop_assert_eq!((stamp.node(), stamp.count()), (NodeId(node), count));
            // elapsed true time = wait * 8 / 9 is above the width.
            prop_assert!(u128::from(stamp.wait_ns()) * 8 > u128::from(width) * 9);
        }

        #[test]
        fn garbage_never_panics(bytes: [u8; 32]) {
            let _ = IntervalStamp::from_bytes(&bytes);
        }
    }
}
