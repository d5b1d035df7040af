//! A decoder with a planted bug: it uses a length before it checks this length. If the engine does
//! not find the bug within a short run, the engine's setup is broken.

/// Reads a magic number, a length, and as many bytes, and adds up these bytes.
pub(crate) fn planted(data: &[u8]) {
    let Some((magic, rest)) = data.split_first_chunk::<2>() else { return };
    let Some((length, body)) = rest.split_first_chunk::<4>() else { return };
    if u16::from_le_bytes(*magic) != MAGIC {
        return;
    }
    let length = u32::from_le_bytes(*length) as usize;
    if length <= LENGTH_MAX {
        // This is the bug. A length within its limit can still exceed the input.
        let sum: u64 = body[..length].iter().map(|byte| u64::from(*byte)).sum();
        assert!(sum <= length as u64 * u64::from(u8::MAX));
    }
}

const MAGIC: u16 = 0xE5C1;
const LENGTH_MAX: usize = 1 << 20;
