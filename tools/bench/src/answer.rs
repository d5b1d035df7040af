//! Parses the body of an answer and checks it.

use epicepoch_wire::{Timestamp, TimestampRange};
use thiserror::Error;

/// Why a body is not the answer to the request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BrokenAnswer {
    /// The length of the body is not that of `n` timestamps.
    #[error("the body has {got} bytes, {expected} were asked for")]
    Length {
        /// Bytes that the request asks for.
        expected: u64,
        /// Bytes that came.
        got: u64,
    },
    /// Two adjacent timestamps of one answer are not consecutive.
    #[error("{right} follows {left} inside one answer")]
    Gap {
        /// The earlier one of the two.
        left: Timestamp,
        /// The one that follows it in the body.
        right: Timestamp,
    },
    /// The range is empty or leaves its epoch.
    #[error("the range is empty or leaves its epoch")]
    NotARange,
    /// The range has another number of timestamps than the request asked for.
    #[error("the range counts {got}, {expected} were asked for")]
    Count {
        /// Timestamps that were asked for.
        expected: u64,
        /// Timestamps that the range claims.
        got: u64,
    },
    /// The answer is not above a timestamp that the client library had returned before the request.
    #[error("{answer} is not above {floor}, which was returned before it was asked for")]
    Backwards {
        /// The highest timestamp returned before.
        floor: Timestamp,
        /// The lowest timestamp of the answer.
        answer: Timestamp,
    },
    /// The answer names a request that is not open.
    #[error("an answer to request {0}, which was answered before or never sent")]
    Unasked(u64),
    /// The client library could not parse the answer.
    #[error("{0}")]
    Foreign(String),
}

/// Reads the body of `GET /timestamp?n=count`: `16 * count` bytes, consecutive, in one epoch.
///
/// # Errors
/// The body is something else. The error says what is wrong.
pub fn read_timestamps(body: &[u8], count: u64) -> Result<TimestampRange, BrokenAnswer> {
    let expected = count.saturating_mul(Timestamp::LEN as u64);
    let got = body.len() as u64;
    let (timestamps, rest) = body.as_chunks::<{ Timestamp::LEN }>();
    let Some(first) = timestamps.first().filter(|_| rest.is_empty() && got == expected) else {
        return Err(BrokenAnswer::Length { expected, got });
    };
    let first = Timestamp::from_bytes(*first);
    let range = TimestampRange::new(first, count).ok_or(BrokenAnswer::NotARange)?;
    let mut left = first;
    for bytes in &timestamps[1..] {
        let right = Timestamp::from_bytes(*bytes);
        if left.epoch != right.epoch || left.index.0.checked_add(1) != Some(right.index.0) {
            return Err(BrokenAnswer::Gap { left, right });
        }
        left = right;
    }
    Ok(range)
}

/// Reads the body of `GET /timestamp?format=range&n=count`: 24 bytes.
///
/// # Errors
/// The body is something else. The error says what is wrong.
pub fn read_range(body: &[u8], count: u64) -> Result<TimestampRange, BrokenAnswer> {
    let expected = TimestampRange::LEN as u64;
    let got = body.len() as u64;
    let bytes = body.try_into().map_err(|_| BrokenAnswer::Length { expected, got })?;
    let range = TimestampRange::from_bytes(bytes).ok_or(BrokenAnswer::NotARange)?;
    if range.count() != count {
        return Err(BrokenAnswer::Count { expected: count, got: range.count() });
    }
    Ok(range)
}

/// Takes any body of another service as `count` timestamps, which nobody checks.
pub(crate) fn read_anything(_: &[u8], count: u64) -> Result<TimestampRange, BrokenAnswer> {
    TimestampRange::new(Timestamp::default(), count).ok_or(BrokenAnswer::NotARange)
}
