//! What a source answers: an interval, or why there is none.

use thiserror::Error;

/// An interval that held true time when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// True time was not below this, Unix nanoseconds.
    pub earliest_ns: u64,
    /// True time was not above this, Unix nanoseconds.
    pub latest_ns: u64,
    /// ClockBound's disruption marker; 0 from other sources.
    pub disruption: u64,
}

impl Reading {
    pub(crate) fn around(now_ns: u64, bound_ns: u64, disruption: u64) -> Result<Self, Unknown> {
        let earliest_ns = now_ns.saturating_sub(bound_ns);
        let latest_ns = now_ns.checked_add(bound_ns).ok_or(Unknown::Malformed("bound"))?;
        Ok(Self { earliest_ns, latest_ns, disruption })
    }
}

/// Why a source gives no reading.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unknown {
    /// The daemon does not answer, or its file cannot be read.
    #[error("the time daemon cannot be reached ({0}): start it, or correct INTERVAL_SOURCE")]
    Missing(String),
    /// The daemon runs, and has no synchronized clock.
    #[error("the clock is not synchronized: wait, or check the daemon's time servers")]
    Unsynchronized,
    /// The machine was paused, moved or restored, as ClockBound noticed.
    #[error(
        "the clock was disrupted by a pause or a move of the machine: open the source again, and \
             wait until ClockBound is synchronized"
    )]
    Disrupted,
    /// The segment's content is beyond its void-after time.
    #[error(
        "the bound is out of date: check that ClockBound's daemon runs, and open the source again \
             if the daemon has made a new segment"
    )]
    Void,
    /// The segment was written during each of the tries.
    #[error("the segment changed during every try: read again")]
    Torn,
    /// The daemon has not updated its clock for too long.
    #[error("the daemon has not corrected the clock for {0} s: check its time servers")]
    Stale(u64),
    /// The clock was stepped, and chronyd has not compared it with its servers since.
    #[error("the clock was stepped: wait until chronyd has compared it with its servers again")]
    Stepped,
    /// chronyd's answers come too late to be used.
    #[error("chronyd answers too slowly: read again")]
    Slow,
    /// The daemon refused the request. The number is the status of its protocol.
    #[error("chronyd refused the request with status {0}: allow this host in its configuration")]
    Refused(u16),
    /// Other bytes than the protocol allows.
    #[error(
        "the source's {0} is not valid: check that INTERVAL_SOURCE names the right daemon, in \
             a version that is supported"
    )]
    Malformed(&'static str),
    /// The machine's clock is before 1970.
    #[error("the clock is before 1970: set it")]
    BeforeEpoch,
}

/// Why a source cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{path}: {reason}")]
pub struct OpenError {
    /// The file.
    pub path: String,
    /// What is wrong with it.
    pub reason: Unknown,
}
