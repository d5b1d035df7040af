//! The numbers of QUIC (RFC 9000, section 16): one, two, four or eight bytes, by the first two bits.

/// The largest number.
pub const MAX: u64 = (1 << 62) - 1;

/// Appends a number in its shortest form.
///
/// # Panics
/// When it is beyond [`MAX`].
pub fn put(out: &mut Vec<u8>, value: u64) {
    match value {
        0..0x40 => out.push(value as u8),
        0x40..0x4000 => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        0x4000..0x4000_0000 => out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes()),
        0x4000_0000..=MAX => out.extend_from_slice(&(value | 3 << 62).to_be_bytes()),
        _ => panic!("{value} is no number of QUIC"),
    }
}

/// Takes a number off the front; `None` as long as bytes are missing.
pub fn take(bytes: &mut &[u8]) -> Option<u64> {
    let first = *bytes.first()?;
    let (number, rest) = bytes.split_at_checked(1 << (first >> 6))?;
    *bytes = rest;
    let start = u64::from(first & 0x3f);
    Some(number[1..].iter().fold(start, |value, byte| value << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_put_is_taken(bits in 0..62_u32, value: u64) {
            let value = value & (u64::MAX >> (63 - bits)) & MAX;
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            for len in 0..bytes.len() {
                prop_assert_eq!(take(&mut &bytes[..len]), None);
            }
            bytes.push(7);
            let mut rest = &bytes[..];
            prop_assert_eq!((take(&mut rest), rest), (Some(value), &[7][..]));
        }
    }

    #[test]
    fn the_examples_of_the_rfc() {
        for (bytes, value) in [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ] {
            assert_eq!(take(&mut &*bytes), Some(value));
        }
    }
}
