//! The `Date` of answers (RFC 9110, 6.6.1), made once a second.

use std::time::{SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use jiff::fmt::rfc2822::DateTimePrinter;

const NANOS_OF_A_SECOND: u64 = 1_000_000_000;

/// The date of this second.
#[derive(Debug, Default)]
pub(in crate::http) struct Date {
    /// The second ends at this time, monotonic nanoseconds.
    until_ns: u64,
    value: Option<HeaderValue>,
}

impl Date {
    /// The date at `now_ns`, monotonic nanoseconds; none where the clock says what no date is made
    /// of.
    pub(in crate::http) fn at(&mut self, now_ns: u64) -> Option<HeaderValue> {
        if now_ns >= self.until_ns {
            let now = SystemTime::now();
            let past = now.duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
            self.until_ns = now_ns + (NANOS_OF_A_SECOND - u64::from(past));
            let text = jiff::Timestamp::try_from(now)
                .and_then(|now| DateTimePrinter::new().timestamp_to_rfc9110_string(&now));
            self.value = text.ok().and_then(|text| HeaderValue::try_from(text).ok());
        }
        self.value.clone()
    }
}
