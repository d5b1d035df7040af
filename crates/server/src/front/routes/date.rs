//! The `Date` header of answers (RFC 9110, 6.6.1), made once a second.

use std::time::{SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use jiff::fmt::rfc2822::DateTimePrinter;

const NANOS_OF_A_SECOND: u64 = 1_000_000_000;

/// The date of one second.
#[derive(Debug, Default)]
pub(crate) struct Date {
    /// When the second ends, monotonic nanoseconds.
    until_ns: u64,
    value: Option<HeaderValue>,
}

impl Date {
    /// The present date. `now_ns` is the present monotonic time, nanoseconds.
    pub(crate) fn new(now_ns: u64) -> Self {
        let now = SystemTime::now();
        let past = now.duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
        let text = jiff::Timestamp::try_from(now)
            .and_then(|now| DateTimePrinter::new().timestamp_to_rfc9110_string(&now));
        Self {
            until_ns: now_ns + (NANOS_OF_A_SECOND - u64::from(past)),
            value: text.ok().and_then(|text| HeaderValue::try_from(text).ok()),
        }
    }

    /// Whether another second has begun.
    #[inline]
    pub(crate) fn is_past(&self, now_ns: u64) -> bool {
        now_ns >= self.until_ns
    }

    /// The value of the header; `None` if the clock gives no valid date.
    pub(crate) fn value(&self) -> Option<&HeaderValue> {
        self.value.as_ref()
    }

    /// The date of now, made again if another second has begun. `now_ns` is the present monotonic
    /// time, nanoseconds.
    pub(crate) fn at(&mut self, now_ns: u64) -> Option<HeaderValue> {
        if self.is_past(now_ns) {
            *self = Self::new(now_ns);
        }
        self.value.clone()
    }
}
