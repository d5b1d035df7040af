//! Seeds for the targets of what states the bound of a clock.

use std::io;

use crate::put;

/// Writes segments of ClockBound, each after the age at which it is read, and replies of chronyd, each
/// after the number of its request.
pub(crate) fn sources() -> io::Result<()> {
    let segment = |name, generation: u16, drift_ppb: u32, status: u32, age_ns: u64| {
        let mut bytes = [0x414D_5A4E, 0x4342_0200, 80_u32].map(u32::to_ne_bytes).concat();
        bytes.extend([2, generation].map(u16::to_ne_bytes).concat());
        // As-of and void-after, each in seconds and nanoseconds; bound; disruption marker.
        bytes.extend([5_u64, 7, 1005, 9, 40_000, 7].map(u64::to_ne_bytes).concat());
        bytes.extend([drift_ppb, status, 0, 0].map(u32::to_ne_bytes).concat());
        put("clock_segment", name, &[&age_ns.to_le_bytes()[..], &bytes].concat())
    };
    segment("synchronized", 4, 50_000, 1, 1_000_000_000)?;
    segment("free-running", 6, 1, 2, 900_000_000_000)?;
    segment("void", 8, 50_000, 1, 1_000_000_000_000)?;
    segment("drifts", 4, u32::MAX, 1, 999_000_000_000)?;
    segment("written", 5, 50_000, 1, 0)?;
    segment("unknown", 2, 50_000, 0, 0)?;
    segment("disrupted", 2, 50_000, 3, 0)?;
    let reply = |name, status: u8, stratum: u8, leap: u8, numbers: [u32; 3]| {
        let mut bytes = [0; 104];
        bytes[..10].copy_from_slice(&[6, 2, 0, 0, 0, 33, 0, 5, 0, status]);
        bytes[16..20].copy_from_slice(&7_u32.to_be_bytes());
        (bytes[53], bytes[55]) = (stratum, leap);
        bytes[60..64].copy_from_slice(&1_700_000_000_u32.to_be_bytes());
        // The offset, the delay and the dispersion, in chrony's own numbers.
        for (at, number) in [68, 92, 96].into_iter().zip(numbers) {
            bytes[at..at + 4].copy_from_slice(&number.to_be_bytes());
        }
        put("clock_tracking", name, &[&7_u32.to_be_bytes()[..], &bytes].concat())
    };
    // 1 ms, 2 ms and 0.5 ms: an exponent and a coefficient each.
    let small = [0xF083_126E, 0xF283_126E, 0xEE83_126E];
    reply("synchronized", 0, 2, 0, small)?;
    reply("leap-second", 0, 3, 1, small)?;
    reply("not-synchronized", 0, 2, 3, small)?;
    reply("no-reference", 0, 0, 0, small)?;
    reply("refused", 2, 2, 0, small)?;
    reply("endless", 0, 2, 0, [0x7EFF_FFFF; 3])
}
