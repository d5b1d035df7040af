//! A decoder with a bug on purpose: a length that is believed before it is checked. The engine
//! must find it within the short run, or its setup has rotted. Nothing else uses it.

/// Reads `magic`, a length, and that many bytes, which are added up.
pub(crate) fn planted(data: &[u8]) {
    let Some((magic, rest)) = data.split_first_chunk::<2>() else { return };
    let Some((length, body)) = rest.split_first_chunk::<4>() else { return };
    if u16::from_le_bytes(*magic) != MAGIC {
        return;
    }
    let length = u32::from_le_bytes(*length) as usize;
    if length <= LENGTH_MAX {
        // The bug: a length within its limit may still be more than there is.
        let sum: u64 = body[..length].iter().map(|byte| u64::from(*byte)).sum();
        assert!(sum <= length as u64 * u64::from(u8::MAX));
    }
}

const MAGIC: u16 = 0xE5C1;
const LENGTH_MAX: usize = 1 << 20;
