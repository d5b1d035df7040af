//! Targets for what states the bound of a clock: ClockBound's segment and chronyd's reply. Either
//! states a bound, or is refused. A bound that is stated is never below what the bytes say.

use epicepoch_time_source::segment::{self, Segment, Status};
use epicepoch_time_source::{Unknown, tracking};

/// A segment. The first bytes say how long after its as-of time it is read, in nanoseconds.
pub(crate) fn clock_segment(data: &[u8]) {
    let Some((age, bytes)) = data.split_first_chunk::<8>() else { return };
    let Some((bytes, _)) = bytes.split_first_chunk::<{ segment::LENGTH }>() else { return };
    let generation = u16::from_ne_bytes([bytes[14], bytes[15]]);
    let is_odd = !generation.is_multiple_of(2);
    let segment = match Segment::decode(bytes) {
        Ok(segment) => segment,
        Err(why) => {
            assert!(why != Unknown::Torn || is_odd, "torn, and nobody writes it");
            return;
        }
    };
    assert!(generation > 0 && !is_odd, "the daemon writes it");
    let age_ns = u64::from_le_bytes(*age);
    let now_ns = segment.as_of_ns.saturating_add(age_ns);
    let Ok(bound_ns) = segment.bound_at(now_ns) else { return };
    assert!(matches!(segment.status, Status::Synchronized | Status::FreeRunning), "the status");
    assert!(now_ns < segment.void_after_ns, "it is void");
    let age_ns = u128::from(now_ns - segment.as_of_ns);
    let drift_ns = age_ns * u128::from(segment.drift_ppb) / 1_000_000_000;
    assert!(u128::from(bound_ns) >= u128::from(segment.bound_ns) + drift_ns, "the drift counts");
    // A later reading has no smaller bound, and a disruption ends it.
    if let Ok(later_ns) = segment.bound_at(now_ns.saturating_add(LATER_NS)) {
        assert!(later_ns >= bound_ns, "the bound shrinks");
    }
    for status in [Status::Unknown, Status::Disrupted] {
        assert!(Segment { status, ..segment }.bound_at(now_ns).is_err(), "{status:?}");
    }
}

/// A reply of chronyd. The first bytes are the sequence number of the request.
pub(crate) fn clock_tracking(data: &[u8]) {
    let Some((sequence, reply)) = data.split_first_chunk::<4>() else { return };
    let sequence = u32::from_be_bytes(*sequence);
    let request = tracking::request(sequence);
    assert!(tracking::decode(&request, sequence).is_err(), "a request is no reply");
    let answer = tracking::decode(reply, sequence);
    assert_eq!(answer, tracking::decode(reply, sequence), "the same bytes say the same");
    let Ok(tracking) = answer else { return };
    assert_eq!(tracking::sequence(reply), Some(sequence), "a reply to another request");
    assert!(tracking::decode(reply, sequence.wrapping_add(1)).is_err());
    assert_eq!(reply.len(), tracking::LENGTH, "a reply of another length");
    assert!((1..=BOUND_NS_MAX).contains(&tracking.bound_ns), "{} ns", tracking.bound_ns);
    // No leap status above 2 and no stratum of 0 is that of a synchronized clock.
    let u16_at = |at: usize| u16::from_be_bytes([reply[at], reply[at + 1]]);
    assert!(u16_at(54) <= 2 && u16_at(52) > 0, "not synchronized");
}

/// A second.
const LATER_NS: u64 = 1_000_000_000;
/// A day, rounded up.
const BOUND_NS_MAX: u64 = 86_400_000_000_001;
