//! The Huffman code of HPACK (RFC 7541, section 5.2 and appendix B). The code is canonical: the
//! lengths determine it, because codes of one length follow each other in the order of symbols. It
//! is rarely used: only headers that are new to a connection are sent in it.

/// Decodes `coded` and appends the result to `text`. Returns `None` if `coded` is not valid Huffman
/// code.
pub(super) fn decode(coded: &[u8], text: &mut Vec<u8>) -> Option<()> {
    // The low `have` bits of `bits` are the bits of the input that were read and are not decoded
    // yet.
    let (mut bits, mut have, mut rest) = (0_u64, 0_usize, coded);
    loop {
        while have <= 56
            && let Some((byte, behind)) = rest.split_first()
        {
            (bits, have, rest) = (bits << 8 | u64::from(*byte), have + 8, behind);
        }
        // If fewer than eight bits are left, pad with 1-bits as the encoder does (RFC 7541, 5.2).
        // No code of up to eight bits consists only of 1-bits.
        let next = if have >= 8 { bits >> (have - 8) } else { !(!bits << (8 - have)) };
        let (symbol, len) = SHORT[usize::from(next as u8)];
        if len > 0 && usize::from(len) <= have {
            have -= usize::from(len);
            text.push(symbol);
        } else if let Some((symbol, len)) = long(bits, have) {
            have -= len;
            text.push(symbol);
        } else {
            // The encoder fills the last byte with the first bits of the end symbol, which are all
            // 1-bits.
            let is_padding = have < 8 && bits == (1 << have) - 1;
            return is_padding.then_some(());
        }
        bits &= (1 << have) - 1;
    }
}

/// Returns the symbol at the front and the length of its code, if that is longer than eight bits.
/// Returns `None` for the end symbol, which must not occur in a string.
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

/// Length of the index into the table `SHORT`, in bits. Nearly all characters of headers have codes
/// of this length or shorter.
const SHORT_LEN_MAX: usize = 8;

/// For each value of the next eight bits: the symbol with which they begin, and the length of its
/// code. The length is 0 if the code is longer than eight bits.
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

/// The codes, grouped by length.
struct Codes {
    first: [u32; LEN_MAX + 1],
    count: [u32; LEN_MAX + 1],
    /// For each length of a code: where its symbols begin in `symbols`.
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

/// Number of symbols: the 256 bytes and the end symbol.
const SYMBOLS: usize = 257;
const LEN_MAX: usize = 30;

/// Length of each symbol's code, bits.
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

    /// Encodes a text with the table of codes that the decoder uses.
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
        // The lengths satisfy Kraft's equation. So every long enough sequence of bits begins with a
        // symbol.
        let kraft: u64 = LENGTHS.iter().map(|len| 1 << (LEN_MAX - usize::from(*len))).sum();
        assert_eq!(kraft, 1 << LEN_MAX);
        // Three codes of RFC 7541, appendix B: '*' is 11111001, '~' is 1111111111101, the end
        // symbol is 30 ones.
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
    fn malformed_code_is_refused() {
        // Three invalid strings: one with a whole byte of padding too many, one padded with 0-bits,
        // and one with the end symbol.
        for coded in [&[0xff, 0xff][..], &[0b0001_1000], &[0xff, 0xff, 0xff, 0xff]] {
            assert!(decode(coded, &mut Vec::new()).is_none(), "{coded:x?}");
        }
    }
}
