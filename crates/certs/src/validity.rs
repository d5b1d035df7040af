//! The period in which a new certificate is valid.

use std::time::SystemTime;

use time::{Duration, OffsetDateTime};

/// How far a clock may be behind that of the machine that made a certificate.
const BACKDATED: Duration = Duration::DAY;

/// The period in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub(crate) from: OffsetDateTime,
    pub(crate) until: OffsetDateTime,
}

impl Validity {
    /// A validity from a day ago, for clocks that are behind, until `days` from now.
    pub fn days(days: u32) -> Self {
        let now = OffsetDateTime::now_utc();
        Self { from: now - BACKDATED, until: now + Duration::days(i64::from(days)) }
    }

    /// A validity from a day ago until `end`, which may be past. For tests of expired certificates.
    pub fn until(end: SystemTime) -> Self {
        Self { from: OffsetDateTime::now_utc() - BACKDATED, until: end.into() }
    }
}
