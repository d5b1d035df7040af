//! Header blocks (HPACK, RFC 7541): a decoder with its dynamic table, and the encoding of strings.

use std::collections::VecDeque;

use thiserror::Error;

use super::huffman;

/// Why a header block cannot be decoded. After that, no later block of the connection can be
/// decoded.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum HpackError {
    /// The block is truncated.
    #[error("a header block is cut off")]
    Cut,
    /// A number is too large.
    #[error("a number in a header block is too large")]
    Number,
    /// An index is not in the tables.
    #[error("a header block names an entry that does not exist")]
    Index,
    /// A string is not valid Huffman code.
    #[error("a string in a header block is not in the Huffman code")]
    Huffman,
    /// A change of the table size is too large, or does not stand at the beginning of the block.
    #[error("a header block changes its table in a way that is not allowed")]
    TableSize,
    /// The headers exceed [`LIST_LEN_MAX`].
    #[error("the headers in a header block are too long")]
    TooLong,
}

/// The dynamic table has at most this many bytes by default (RFC 7541 and 9113).
pub const TABLE_LEN_MAX: usize = 4096;
/// An entry of the dynamic table counts as this many bytes more than its name and value (section
/// 4.1).
pub const ENTRY_OVERHEAD: usize = 32;
/// All headers of one block have at most this many bytes, counted like entries of the table.
/// Without this limit, a small block could repeat an entry of [`TABLE_LEN_MAX`] bytes many times.
pub const LIST_LEN_MAX: usize = 64 << 10;
/// A block up to this length, in bytes, is kept, to recognise when the next block repeats it.
const REPEATED_LEN_MAX: usize = 256;
/// A number has at most this many bytes after its prefix. Four bytes hold 28 bits.
const NUMBER_LEN_MAX: u32 = 4;

/// Decodes the header blocks of one connection, in order.
#[derive(Debug)]
pub struct Decoder {
    /// The entries of the dynamic table, newest first.
    table: VecDeque<Entry>,
    /// Bytes of all entries.
    len: usize,
    /// All entries together have at most this many bytes. The encoder at the other end sets this
    /// limit; it may set at most `len_allowed`.
    len_max: usize,
    len_allowed: usize,
    name: Vec<u8>,
    value: Vec<u8>,
    /// The last block. It is empty if the last block changed the table or was too long to be kept.
    last: Vec<u8>,
}

#[derive(Debug)]
struct Entry {
    name: Box<[u8]>,
    value: Box<[u8]>,
}

impl Entry {
    fn len(&self) -> usize {
        self.name.len() + self.value.len() + ENTRY_OVERHEAD
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new(TABLE_LEN_MAX)
    }
}

impl Decoder {
    /// Creates a decoder whose dynamic table holds at most this many bytes.
    #[must_use]
    pub fn new(len_max: usize) -> Self {
        Self {
            table: VecDeque::new(),
            len: 0,
            len_max,
            len_allowed: len_max,
            name: Vec::new(),
            value: Vec::new(),
            last: Vec::with_capacity(REPEATED_LEN_MAX),
        }
    }

    /// Whether a block has the same headers as the last one: the bytes are the same, and the last
    /// block did not change the table. Nearly all blocks of a connection repeat the last one.
    #[must_use]
    pub fn is_repeated(&self, block: &[u8]) -> bool {
        !self.last.is_empty() && self.last == block
    }

    /// Bytes of the dynamic table now.
    #[must_use]
    pub fn table_len(&self) -> usize {
        self.len
    }

    /// Frees the memory that a long header has taken.
    pub fn give_back(&mut self) {
        self.name = Vec::new();
        self.value = Vec::new();
        self.table.shrink_to_fit();
    }

    /// Decodes a block; calls `field` with the name and value of each header.
    ///
    /// # Errors
    /// The block is not valid. The connection must be closed, because no later block can be
    /// decoded.
    pub fn decode(
        &mut self,
        whole: &[u8],
        mut field: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), HpackError> {
        self.last.clear();
        let mut block = whole;
        let (mut list_len, mut is_first, mut changes_table) = (0, true, false);
        while let Some(byte) = block.first().copied() {
            if byte & 0xe0 == SIZE_UPDATE {
                let len = number(&mut block, 5)?;
                if len > self.len_allowed || !is_first {
                    return Err(HpackError::TableSize);
                }
                self.len_max = len;
                self.evict(0);
                changes_table = true;
                continue;
            }
            is_first = false;
            if byte & INDEXED != 0 {
                let index = number(&mut block, 7)?;
                let (name, value) = self.entry(index)?;
                list_len += name.len() + value.len() + ENTRY_OVERHEAD;
                field(name, value);
            } else {
                let is_kept = byte & 0xc0 == KEPT;
                changes_table |= is_kept;
                let index = number(&mut block, if is_kept { 6 } else { 4 })?;
                let mut name = std::mem::take(&mut self.name);
                name.clear();
                if index == 0 {
                    string(&mut block, 7, &mut name)?;
                } else {
                    name.extend_from_slice(self.entry(index)?.0);
                }
                self.value.clear();
                string(&mut block, 7, &mut self.value)?;
                list_len += name.len() + self.value.len() + ENTRY_OVERHEAD;
                field(&name, &self.value);
                if is_kept {
                    self.keep(&name);
                }
                self.name = name;
            }
            if list_len > LIST_LEN_MAX {
                return Err(HpackError::TooLong);
            }
        }
        if !changes_table && whole.len() <= REPEATED_LEN_MAX {
            self.last.extend_from_slice(whole);
        }
        Ok(())
    }

    /// Returns the header at an index. The static table comes first, then the dynamic table.
    fn entry(&self, index: usize) -> Result<(&[u8], &[u8]), HpackError> {
        let at = index.checked_sub(1).ok_or(HpackError::Index)?;
        if let Some((name, value)) = STATIC.get(at) {
            return Ok((name.as_bytes(), value.as_bytes()));
        }
        let entry = self.table.get(at - STATIC.len()).ok_or(HpackError::Index)?;
        Ok((&entry.name, &entry.value))
    }

    /// Adds a header with this name and the decoded value to the table. A header that is too large
    /// empties the table.
    fn keep(&mut self, name: &[u8]) {
        let entry = Entry { name: name.into(), value: self.value[..].into() };
        self.evict(entry.len());
        if entry.len() <= self.len_max {
            self.len += entry.len();
            self.table.push_front(entry);
        }
    }

    /// Evicts the oldest entries until `room` more bytes fit.
    fn evict(&mut self, room: usize) {
        while self.len + room > self.len_max {
            let Some(oldest) = self.table.pop_back() else { return };
            self.len -= oldest.len();
        }
    }
}

/// Reads a number with a prefix of `prefix` bits in its first byte (section 5.1).
///
/// # Errors
/// The number is truncated or too large.
pub fn number(block: &mut &[u8], prefix: u32) -> Result<usize, HpackError> {
    let (first, rest) = block.split_first().ok_or(HpackError::Cut)?;
    *block = rest;
    let most = (1_usize << prefix) - 1;
    let mut number = usize::from(*first) & most;
    if number < most {
        return Ok(number);
    }
    for at in 0..NUMBER_LEN_MAX {
        let (byte, rest) = block.split_first().ok_or(HpackError::Cut)?;
        *block = rest;
        number += usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(HpackError::Number)
}

/// Reads a string (section 5.2) and appends it to `text`. The length of the string is a number with
/// a prefix of `prefix` bits.
///
/// # Errors
/// The string is truncated, or is not valid Huffman code.
pub fn string(block: &mut &[u8], prefix: u32, text: &mut Vec<u8>) -> Result<(), HpackError> {
    let is_coded = block.first().ok_or(HpackError::Cut)? & 1 << prefix != 0;
    let len = number(block, prefix)?;
    let (bytes, rest) = block.split_at_checked(len).ok_or(HpackError::Cut)?;
    *block = rest;
    if is_coded {
        return huffman::decode(bytes, text).ok_or(HpackError::Huffman);
    }
    text.extend_from_slice(bytes);
    Ok(())
}

/// Writes a string without Huffman code.
pub fn put_string(out: &mut Vec<u8>, text: &[u8]) {
    let mut len = text.len();
    if len < 0x7f {
        out.push(len as u8);
    } else {
        out.push(0x7f);
        len -= 0x7f;
        while len >= 0x80 {
            out.push(0x80 | (len & 0x7f) as u8);
            len >>= 7;
        }
        out.push(len as u8);
    }
    out.extend_from_slice(text);
}

/// Indexed header (section 6.1).
pub const INDEXED: u8 = 0x80;
/// First byte of a literal header that is added to the dynamic table (section 6.2.1).
pub const KEPT: u8 = 0x40;
/// First byte of a change of the table size (section 6.3).
pub const SIZE_UPDATE: u8 = 0x20;
/// The byte for the newest entry of the dynamic table. Its index is the first one after the static
/// table.
pub const NEWEST: u8 = INDEXED | (STATIC.len() as u8 + 1);

/// The static table (appendix A).
const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pair =
            |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(pair).collect()
    }

    fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<(String, String)>, HpackError> {
        let mut list = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        decoder.decode(block, |name, value| list.push((text(name), text(value))))?;
        Ok(list)
    }

    /// The example of RFC 7541, appendix C.6: three answers in Huffman code, with a dynamic table
    /// of 256 bytes that overflows.
    #[test]
    fn the_answers_of_the_specification_are_decoded() {
        let mut decoder = Decoder::new(256);
        let date = "Mon, 21 Oct 2013 20:13:21 GMT";
        let first = bytes(
            "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6
             2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
        );
        let expected = |status: &str, date: &str| {
            let pairs = [
                (":status", status),
                ("cache-control", "private"),
                ("date", date),
                ("location", "https://www.example.com"),
            ];
            pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
        };
        assert_eq!(decode(&mut decoder, &first).unwrap(), expected("302", date));
        assert_eq!(decoder.len, 222);
        let second = bytes("4883 640e ffc1 c0bf");
        assert_eq!(decode(&mut decoder, &second).unwrap(), expected("307", date));
        assert_eq!((decoder.len, decoder.table.len()), (222, 4));
        let third = bytes(
            "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab
             77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f
             9587 3160 65c0 03ed 4ee5 b106 3d50 07",
        );
        let last = decode(&mut decoder, &third).unwrap();
        assert_eq!(last[..2], [(":status".into(), "200".into()), expected("", "")[1].clone()]);
        assert_eq!(last[2].1, "Mon, 21 Oct 2013 20:13:22 GMT");
        assert_eq!(last[5].1, "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1");
        assert_eq!((decoder.len, decoder.table.len()), (215, 3));
    }

    #[test]
    fn a_block_counts_as_repeated_only_while_the_table_is_unchanged() {
        let mut decoder = Decoder::default();
        assert!(!decoder.is_repeated(&[]) && !decoder.is_repeated(&[0x88]));
        // A block that adds an entry to the table changes the meaning of the block after it. So it
        // does not count as repeated.
        let kept = b"\x88\x40\x01a\x01b";
        decode(&mut decoder, kept).unwrap();
        assert!(!decoder.is_repeated(kept));
        let named = [(":status".into(), "200".into()), ("a".into(), "b".into())];
        assert_eq!(decode(&mut decoder, &[0x88, 0xbe]).unwrap(), named);
        assert!(decoder.is_repeated(&[0x88, 0xbe]) && !decoder.is_repeated(&[0x88]));
        decode(&mut decoder, kept).unwrap();
        assert!(!decoder.is_repeated(&[0x88, 0xbe]));
        // The block 0x20 sets the size of the table to 0, so all its entries are gone.
        decode(&mut decoder, &[0x88, 0xbe]).unwrap();
        decode(&mut decoder, &[0x20]).unwrap();
        assert!(!decoder.is_repeated(&[0x88, 0xbe]) && !decoder.is_repeated(&[0x20]));
        assert_eq!(decode(&mut decoder, &[0xbe]), Err(HpackError::Index));
        assert!(!decoder.is_repeated(&[0xbe]));
        decode(&mut decoder, &[0x88; REPEATED_LEN_MAX + 1]).unwrap();
        assert!(!decoder.is_repeated(&[0x88; REPEATED_LEN_MAX + 1]));
    }

    #[test]
    fn malformed_blocks_are_refused() {
        let cases: [(&[u8], HpackError); 8] = [
            (&[0x80], HpackError::Index),
            (&[0xbe], HpackError::Index),
            (&[0x40], HpackError::Cut),
            (b"\x40\x05ab", HpackError::Cut),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], HpackError::Number),
            (&[0x3f, 0xe2, 0x1f], HpackError::TableSize),
            (&[0x88, 0x20], HpackError::TableSize),
            (b"\x00\x81\xff\x00", HpackError::Huffman),
        ];
        for (block, error) in cases {
            let decoded = decode(&mut Decoder::default(), block);
            assert_eq!(decoded, Err(error), "{block:x?}");
        }
        // The block has one header of about 3 KiB, then repeats it 100 times with one byte each.
        let mut bomb = b"\x40\x01a\x7f\x81\x17".to_vec();
        bomb.resize(bomb.len() + 0x7f + 0xb81, b'x');
        bomb.resize(bomb.len() + 100, 0xbe);
        assert_eq!(decode(&mut Decoder::default(), &bomb), Err(HpackError::TooLong));
    }
}
