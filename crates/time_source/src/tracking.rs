//! chronyd's command protocol, version 6: the request for its tracking, and the reply. All numbers
//! are big-endian. This module opens no socket and reads no clock. The layout is that of chrony's
//! `candm.h`.

use crate::Unknown;

/// The bytes of a request, and of a reply. A request is as long as its reply, so that chronyd
/// amplifies nothing.
pub const LENGTH: usize = 104;

/// What chronyd says about the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracking {
    /// |system time| + root dispersion + root delay / 2, when chronyd answered, nanoseconds.
    pub bound_ns: u64,
    /// When chronyd last updated its clock, Unix seconds.
    pub updated_s: u64,
}

/// The request for the tracking.
pub fn request(sequence: u32) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    bytes[0] = VERSION;
    bytes[1] = REQUEST;
    bytes[4..6].copy_from_slice(&REQ_TRACKING.to_be_bytes());
    bytes[8..12].copy_from_slice(&sequence.to_be_bytes());
    bytes
}

/// The sequence number of a reply, if it is long enough to have one.
pub fn sequence(bytes: &[u8]) -> Option<u32> {
    bytes.get(16..20)?.try_into().ok().map(u32::from_be_bytes)
}

/// Decodes the reply to [`request`].
///
/// # Errors
/// When it is no reply to this request, chronyd refused, or its clock is not synchronized.
pub fn decode(bytes: &[u8], expected: u32) -> Result<Tracking, Unknown> {
    if bytes.len() < HEADER || sequence(bytes) != Some(expected) {
        return Err(Unknown::Malformed("reply"));
    }
    let u16_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    if bytes[0] != VERSION || bytes[1] != REPLY || u16_at(4) != REQ_TRACKING {
        return Err(Unknown::Malformed("protocol version or type"));
    }
    if u16_at(8) != 0 {
        return Err(Unknown::Refused(u16_at(8)));
    }
    let bytes: &[u8; LENGTH] =
        bytes.try_into().map_err(|_| Unknown::Malformed("length of the reply"))?;
    if u16_at(6) != RPY_TRACKING {
        return Err(Unknown::Malformed("kind of reply"));
    }
    if u16_at(54) > LEAP_DELETE {
        return Err(Unknown::Unsynchronized);
    }
    let u32_at = |at: usize| u32::from_be_bytes(std::array::from_fn(|index| bytes[at + index]));
    let (offset, delay, dispersion) = (float(u32_at(68)), float(u32_at(92)), float(u32_at(96)));
    // chronyd starts at stratum 0 and without a reference: nothing is bounded then. With the directive
    // `local` it takes its own clock for a reference, and states a bound of 0.
    if u16_at(52) == 0 || u32_at(28) == REFERENCE_LOCAL || delay < 0.0 || dispersion < 0.0 {
        return Err(Unknown::Unsynchronized);
    }
    let bound = offset.abs() + dispersion + delay / 2.0;
    if bound > BOUND_S_MAX {
        return Err(Unknown::Malformed("bound"));
    }
    let high = match u32_at(56) {
        NO_HIGH_SECONDS => 0,
        high => u64::from(high) << 32,
    };
    Ok(Tracking {
        bound_ns: (bound * 1e9).ceil() as u64 + 1,
        updated_s: high | u64::from(u32_at(60)),
    })
}

/// chrony's own numbers: 7 bits of exponent and 25 bits of coefficient, both signed. The value is
/// coefficient × 2^(exponent − 25).
fn float(bits: u32) -> f64 {
    let exponent = bits.cast_signed() >> 25;
    let coefficient = (bits << 7).cast_signed() >> 7;
    f64::from(coefficient) * 2_f64.powi(exponent - 25)
}

const VERSION: u8 = 6;
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const REQ_TRACKING: u16 = 33;
const RPY_TRACKING: u16 = 5;
/// The bytes of a reply before its data.
const HEADER: usize = 28;
/// The last leap status of a synchronized clock. 3 is "not synchronised".
const LEAP_DELETE: u16 = 2;
/// The reference of a chronyd that follows no other clock: 127.127.1.1.
const REFERENCE_LOCAL: u32 = 0x7f7f_0101;
/// The upper half of a time that has only 32 bits.
const NO_HIGH_SECONDS: u32 = 0x7fff_ffff;
/// A bound above this is no bound: a day, in seconds.
const BOUND_S_MAX: f64 = 86_400.0;

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 1 ms of system time (slow), 2 ms of delay, 0.5 ms of dispersion.
    pub(crate) fn reply(sequence: u32, updated_s: u64) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..10].copy_from_slice(&[6, 2, 0, 0, 0, 33, 0, 5, 0, 0]);
        bytes[16..20].copy_from_slice(&sequence.to_be_bytes());
        bytes[52..56].copy_from_slice(&[0, 3, 0, 0]);
        bytes[56..64].copy_from_slice(&updated_s.to_be_bytes());
        bytes[68..72].copy_from_slice(&encode(-0.001).to_be_bytes());
        bytes[92..96].copy_from_slice(&encode(0.002).to_be_bytes());
        bytes[96..100].copy_from_slice(&encode(0.0005).to_be_bytes());
        bytes
    }

    /// The nearest number of chrony's for a small value.
    fn encode(value: f64) -> u32 {
        let coefficient = (value * 2_f64.powi(32)).round() as i32;
        ((-7_i32 << 25) | (coefficient & 0x01ff_ffff)).cast_unsigned()
    }

    #[test]
    fn golden_bytes() {
        let request = request(0x0102_0304);
        assert_eq!(request[..12], [6, 1, 0, 0, 0, 33, 0, 0, 1, 2, 3, 4]);
        assert!(request[12..].iter().all(|byte| *byte == 0));
        // 1 is 2^23 × 2^(2 − 25), as chrony writes it.
        assert!((float(0x0480_0000) - 1.0).abs() < f64::EPSILON);
        assert!((float(0x0580_0000) + 1.0).abs() < f64::EPSILON);
        assert!((float(encode(-0.001)) + 0.001).abs() < 1e-9);
        let tracking = decode(&reply(9, 1_700_000_000), 9).unwrap();
        assert_eq!(tracking.updated_s, 1_700_000_000);
        assert!(tracking.bound_ns.abs_diff(2_500_000) < 10, "{tracking:?}");
    }

    #[test]
    fn replies_that_state_no_bound_are_refused() {
        let with = |at: usize, value: u8| {
            let mut bytes = reply(9, 1);
            bytes[at] = value;
            decode(&bytes, 9)
        };
        assert!(matches!(decode(&reply(9, 1), 10), Err(Unknown::Malformed("reply"))));
        assert!(matches!(with(0, 5), Err(Unknown::Malformed(_))));
        assert!(matches!(with(1, 1), Err(Unknown::Malformed(_))));
        assert!(matches!(with(5, 34), Err(Unknown::Malformed(_))));
        assert!(matches!(with(7, 4), Err(Unknown::Malformed(_))));
        assert_eq!(with(9, 2), Err(Unknown::Refused(2)));
        assert_eq!(with(55, 3), Err(Unknown::Unsynchronized));
        assert_eq!(with(53, 0), Err(Unknown::Unsynchronized));
        let mut local = reply(9, 1);
        local[28..32].copy_from_slice(&[127, 127, 1, 1]);
        assert_eq!(decode(&local, 9), Err(Unknown::Unsynchronized));
        for length in 0..LENGTH {
            assert!(decode(&reply(9, 1)[..length], 9).is_err(), "{length}");
        }
    }

    proptest! {
        #[test]
        fn any_reply_decodes_or_is_refused(data in any::<[u8; 48]>()) {
            let mut bytes = reply(9, 1);
            bytes[56..].copy_from_slice(&data);
            if let Ok(tracking) = decode(&bytes, 9) {
                prop_assert!(tracking.bound_ns <= 86_400_000_000_001);
            }
        }
    }
}
