//! The Huffman code of HPACK (RFC 7541, section 5.2 and appendix B). The code is canonical, so the
//! lengths are all there is to know: codes of one length follow each other in order of symbols.
//! Only what is new to a connection comes this way, not every header.

use super::hpack::HpackError;

/// Appends what `coded` says to `text`.
pub(super) fn decode(coded: &[u8], text: &mut Vec<u8>) -> Result<(), HpackError> {
    // The low `have` bits of `bits` are what was taken of `rest` and is no symbol yet.
    let (mut bits, mut have, mut rest) = (0_u64, 0_usize, coded);
    loop {
        while have <= 56
            && let Some((byte, behind)) = rest.split_first()
        {
            (bits, have, rest) = (bits << 8 | u64::from(*byte), have + 8, behind);
        }
        // What is missing behind the end are ones: the beginning of no short symbol.
        let next = if have >= 8 { bits >> (have - 8) } else { !(!bits << (8 - have)) };
        let (symbol, len) = SHORT[usize::from(next as u8)];
        if len > 0 && usize::from(len) <= have {
            have -= usize::from(len);
            text.push(symbol);
        } else if let Some((symbol, len)) = long(bits, have) {
            have -= len;
            text.push(symbol);
        } else {
            // What fills the last byte is the beginning of the symbol that ends a string: ones.
            let is_padding = have < 8 && bits == (1 << have) - 1;
            return if is_padding { Ok(()) } else { Err(HpackError::Huffman) };
        }
        bits &= (1 << have) - 1;
    }
}

/// The symbol of more than eight bits at the front, and how many. The one that ends a string is none:
/// it must not be in one.
fn long(bits: u64, have: usize) -> Option<(u8, usize)> {
    for len in SHORT_LEN_MAX + 1..=LEN_MAX.min(have) {
        let code = (bits >> (have - len)) as u32;
        let nth = code.checked_sub(CODES.first[len]).filter(|it| *it < CODES.count[len]);
        let Some(nth) = nth else { continue };
        let symbol = CODES.symbols[(CODES.offset[len] + nth) as usize];
        return u8::try_from(symbol).ok().map(|symbol| (symbol, len));
    }
    None
}

/// Bits that are looked at first, at once: nearly all of what is in headers has no more.
const SHORT_LEN_MAX: usize = 8;

/// The symbol that eight bits begin with, and its bits; 0 where it has more.
static SHORT: [(u8, u8); 1 << SHORT_LEN_MAX] = {
    let mut table = [(0, 0); 1 << SHORT_LEN_MAX];
    let mut len = 1;
    while len <= SHORT_LEN_MAX {
        let mut nth = 0;
        while nth < CODES.count[len] {
            let symbol = CODES.symbols[(CODES.offset[len] + nth) as usize] as u8;
            let spare = SHORT_LEN_MAX - len;
            let start = ((CODES.first[len] + nth) as usize) << spare;
            let mut at = 0;
            while at < 1 << spare {
                table[start + at] = (symbol, len as u8);
                at += 1;
            }
            nth += 1;
        }
        len += 1;
    }
    table
};

/// Codes by length.
struct Codes {
    first: [u32; LEN_MAX + 1],
    count: [u32; LEN_MAX + 1],
    /// Where the symbols of a length begin in `symbols`.
    offset: [u32; LEN_MAX + 1],
    symbols: [u16; SYMBOLS],
}

static CODES: Codes = codes();

const fn codes() -> Codes {
    let mut codes = Codes {
        first: [0; LEN_MAX + 1],
        count: [0; LEN_MAX + 1],
        offset: [0; LEN_MAX + 1],
        symbols: [0; SYMBOLS],
    };
    let (mut len, mut code, mut placed) = (1, 0, 0);
    while len <= LEN_MAX {
        code <<= 1;
        codes.first[len] = code;
        codes.offset[len] = placed;
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as usize == len {
                codes.symbols[placed as usize] = symbol as u16;
                codes.count[len] += 1;
                placed += 1;
                code += 1;
            }
            symbol += 1;
        }
        len += 1;
    }
    codes
}

/// Bytes, and the symbol that ends a string.
const SYMBOLS: usize = 257;
const LEN_MAX: usize = 30;

/// Bits of each symbol's code.
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The code of a symbol, by the same rule from the other side.
    fn encode(text: &[u8]) -> Vec<u8> {
        let (mut bits, mut len, mut out) = (0_u64, 0, Vec::new());
        for byte in text {
            let at = CODES.symbols.iter().position(|it| *it == u16::from(*byte)).unwrap() as u32;
            let width = usize::from(LENGTHS[usize::from(*byte)]);
            bits = bits << width | u64::from(CODES.first[width] + at - CODES.offset[width]);
            len += width;
            while len >= 8 {
                len -= 8;
                out.push((bits >> len) as u8);
            }
        }
        if len > 0 {
            out.push((bits << (8 - len)) as u8 | ((1 << (8 - len)) - 1) as u8);
        }
        out
    }

    #[test]
    fn the_code_is_complete() {
        // Every sequence of bits is the beginning of a symbol: the lengths satisfy Kraft exactly.
        let kraft: u64 = LENGTHS.iter().map(|len| 1 << (LEN_MAX - usize::from(*len))).sum();
        assert_eq!(kraft, 1 << LEN_MAX);
        // RFC 7541, appendix B: '*' is 11111001, '~' is 1111111111101, the end is 30 ones.
        let code = |symbol: u16| {
            let len = usize::from(LENGTHS[usize::from(symbol)]);
            let at = CODES.symbols.iter().position(|it| *it == symbol).unwrap() as u32;
            CODES.first[len] + at - CODES.offset[len]
        };
        assert_eq!([code(42), code(126), code(256)], [0xf9, 0x1ffd, 0x3fff_ffff]);
    }

    #[test]
    fn every_byte_survives() {
        let all: Vec<u8> = (0..=255).collect();
        let mut text = Vec::new();
        decode(&encode(&all), &mut text).unwrap();
        assert_eq!(text, all);
    }

    #[test]
    fn what_no_encoder_writes_is_refused() {
        // A byte of padding too many, padding of zeros, and the symbol of the end.
        for coded in [&[0xff, 0xff][..], &[0b0001_1000], &[0xff, 0xff, 0xff, 0xff]] {
            assert!(decode(coded, &mut Vec::new()).is_err(), "{coded:x?}");
        }
    }
}
